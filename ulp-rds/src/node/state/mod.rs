//! What a node knows: sockets, connections, congestion. All of it is under one lock.

pub(crate) mod arming;
mod congestion;
mod due;
mod places;
pub(crate) mod receive;
pub(crate) mod send;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use oorandom::Rand32;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::AtomicBool;
use verbs_core::time::Instant;

pub(super) use self::arming::Turn;
use self::due::Due;
use super::half_open::HalfOpen;
use super::id::LinkId;
use super::operations::Operations;
use super::queues::Queues;
use super::table::{Links, Sockets};
use crate::config::Config;
use crate::error::Error;
use crate::machine::State as Stage;
use crate::payload::{Payload, Pool};
use crate::rdma::Atomics;
use crate::wire::{CongestionMap, Handshake};

pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) generation: u32,
    pub(crate) closed: bool,
    pub(crate) sockets: Sockets,
    pub(crate) links: Links,
    /// Connections that peers asked for and that are not established.
    pub(crate) half_open: HalfOpen,
    /// Links that were forgotten.
    forgotten: u64,
    /// Connections whose completion queues are not armed, as programs look at them; and whether there are any, which a program that
    /// polls looks at without the lock.
    unarmed: Vec<LinkId>,
    is_polled: Arc<AtomicBool>,
    /// For each address of the node, its congested ports.
    pub(crate) maps: BTreeMap<IpAddr, CongestionMap>,
    pub(crate) due: Due,
    /// Buffers of datagrams.
    pub(crate) pool: Pool,
    /// Operations that have not ended.
    pub(crate) operations: Operations,
    /// What the device has.
    atomics: Atomics,
    random: Rand32,
}

impl State {
    pub(crate) fn new(
        config: Config,
        generation: u32,
        atomics: Atomics,
        is_polled: Arc<AtomicBool>,
    ) -> Self {
        let addresses = config.addresses.iter();
        Self {
            maps: addresses
                .map(|addr| (*addr, CongestionMap::default()))
                .collect(),
            config,
            generation,
            closed: false,
            sockets: Sockets::default(),
            links: Links::default(),
            half_open: HalfOpen::default(),
            forgotten: 0,
            unarmed: Vec::new(),
            is_polled,
            due: Due::default(),
            pool: Pool::new(),
            operations: Operations::default(),
            atomics,
            random: Rand32::new(generation.into()),
        }
    }

    /// A port of those.
    pub(crate) fn draw_port(&mut self, ports: RangeInclusive<u16>) -> u16 {
        let (first, last) = (u32::from(*ports.start()), u32::from(*ports.end()));
        let drawn = self.random.rand_range(first..last + 1);
        // It is one of them.
        u16::try_from(drawn).unwrap_or(*ports.start())
    }

    /// A queue pair is connected.
    pub(super) fn established(&mut self, id: LinkId, peer: &Handshake, queues: Box<Queues>) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        link.is_over = false;
        link.queues = Some(queues);
        if let Some(map) = self.maps.get(&link.key.0) {
            link.machine.established(peer, map);
        }
        receive::after(self, id);
    }

    /// The queue pair of a connection is to be destroyed. Yields its queues, for [`lost`](Self::lost).
    pub(super) fn retire(&mut self, id: LinkId) -> Option<Box<Queues>> {
        arming::is_armed(self, id);
        self.links.get_mut(id)?.retire()
    }

    /// Drops a connection that is up. Returns whether it was.
    pub(super) fn fail(&mut self, id: LinkId) -> bool {
        let link = self.links.get_mut(id);
        let Some(link) = link.filter(|link| link.machine.state() == Stage::Up) else {
            return false;
        };
        link.machine.fail();
        self.due.wakes.extend(link.driver.clone());
        true
    }

    /// The node is closed: its drivers end, and those who asked are given up.
    pub(super) fn wake_all(&mut self) {
        self.due.wakes.extend(self.half_open.clear());
        // A driver has the node: were its waker left here, one that waits for something else would keep both for ever.
        let drivers = self.links.iter_mut();
        let drivers = drivers.filter_map(|link| link.driver.take());
        self.due.wakes.extend(drivers);
    }

    /// The driver of a connection lost its queue pair, or did not get one.
    pub(super) fn note_error(&mut self, id: LinkId, error: Option<Error>) {
        if let Some(link) = self.links.get_mut(id) {
            link.error = error.map(Box::new);
        }
    }

    pub(super) fn lost(&mut self, id: LinkId, now: Instant, queues: Option<&Queues>) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        let pool = &self.pool;
        let kept = |slot, len| match queues {
            Some(queues) => queues.kept(slot, pool.room_for(len), len),
            // There were no slots.
            None => Payload::default(),
        };
        link.machine.lost(now, kept);
        link.lost_at = now;
        for (from, end) in self.operations.lost(link.key) {
            receive::notify(self, from, end);
        }
        receive::dispatch(self, id);
    }
}
