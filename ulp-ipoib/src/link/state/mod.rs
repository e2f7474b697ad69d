//! The state of an interface, under one lock.
//!
//! The fields are here; each file beside this one has the methods for one of their tables. The entries
//! ([`entry`](super::entry)) and the actions are below the state and do not know it.

mod action;
mod active;
mod groups;
mod neighbours;
mod outbox;
mod passive;
mod paths;
mod resolve;
mod route;

pub(super) use action::{Action, Verdict};
pub(super) use outbox::Outbox;
use outbox::Target;

use std::collections::BTreeMap;

use verbs_core::mad::sa::McMemberRecord;
use verbs_core::time::Instant;
use verbs_core::wr::Datagram;
use verbs_core::{Gid, PKey, QKey, Qpn, RecvQueue, SendQueue, Srq};

use super::buffers::{Packet, Pool, Size, Slot};
use super::entry::active::{Active, Key};
use super::entry::group::Group;
use super::entry::neighbour::Neighbours;
use super::entry::passive::Passive;
use super::entry::path::Path;
use crate::config::Config;
use crate::counters::Counters;
use crate::wire::HardwareAddress;

/// Everything that the lock guards.
pub(super) struct State {
    pub(super) config: Config,
    pub(super) own: HardwareAddress,
    /// The terms of the broadcast group, while the link is up.
    pub(super) link: Option<Terms>,
    pub(super) partition: (PKey, u16),
    pub(super) send: SendQueue,
    pub(super) recv: RecvQueue,
    pub(super) srq: Option<Srq>,
    pub(super) datagrams: Pool,
    pub(super) messages: Pool,
    pub(super) outbox: Outbox,
    /// Receives and sends of the queue pair for datagrams that have not completed.
    pub(super) receiving: u32,
    pub(super) sending: u32,
    /// Whether a completed receive is posted again.
    pub(super) reposts: bool,
    pub(super) neighbours: Neighbours,
    pub(super) paths: BTreeMap<Gid, Path>,
    pub(super) groups: BTreeMap<Gid, Group>,
    pub(super) active: BTreeMap<Key, Active>,
    /// By the number of the queue pair.
    pub(super) passive: BTreeMap<u32, Passive>,
    /// Actions to run after the lock is released.
    pub(super) actions: Vec<Action>,
    /// A writer was refused.
    pub(super) is_awaited: bool,
    pub(super) is_closed: bool,
    pub(super) counters: Counters,
}

/// The parameters that the broadcast group sets for the whole link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Terms {
    pub(super) qkey: QKey,
    /// Bytes of a datagram, without the header.
    pub(super) mtu: usize,
    pub(super) record: McMemberRecord,
}

impl State {
    /// A slot for a packet of that many bytes.
    pub(super) fn take_slot(&mut self, len: usize) -> Option<Slot> {
        let size = Size::of(len);
        let index = self.pool(size).take();
        self.is_awaited |= index.is_none();
        index.map(|index| Slot { size, index })
    }

    pub(super) fn pool(&mut self, size: Size) -> &mut Pool {
        match size {
            Size::Datagram => &mut self.datagrams,
            Size::Connected => &mut self.messages,
        }
    }

    pub(super) fn give_back(&mut self, slot: Slot) {
        self.pool(slot.size).give_back(slot.index);
    }

    /// Drops packets that no longer wait.
    pub(super) fn drop_all(&mut self, packets: impl IntoIterator<Item = Packet>) -> u64 {
        let mut dropped = 0;
        for packet in packets {
            self.give_back(packet.slot);
            dropped += 1;
        }
        dropped
    }

    /// A packet of the interface itself. `None` when no buffer is free: the caller tries again later.
    pub(super) fn compose(&mut self, pieces: &[&[u8]]) -> Option<Packet> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let index = self.datagrams.take()?;
        self.datagrams.fill(index, pieces);
        Some(Packet {
            slot: Slot {
                size: Size::Datagram,
                index,
            },
            len: u32::try_from(len).unwrap_or(u32::MAX),
        })
    }

    /// Sends a datagram.
    pub(super) fn post(&mut self, packet: Packet, to: &Datagram) -> Verdict {
        self.put(packet, Target::Datagram(*to))
    }

    /// The destination of datagrams for a queue pair on that path.
    pub(super) fn datagram(&self, path: &Path, qpn: Qpn) -> Option<Datagram> {
        let (terms, av) = (self.link.as_ref()?, path.av()?);
        Some(Datagram {
            pkey_index: self.partition.1,
            ..Datagram::new(av, qpn, terms.qkey)
        })
    }

    /// Bytes of the longest packet sent as a datagram.
    pub(super) fn datagram_mtu(&self) -> usize {
        self.link.as_ref().map_or(0, |terms| terms.mtu)
    }

    /// Whether a writer that was refused can try again.
    pub(super) fn has_room_again(&mut self) -> bool {
        let has_room = self.is_awaited
            && self.outbox.is_empty()
            && self.datagrams.has_room()
            && self.messages.has_room();
        self.is_awaited &= !has_room;
        has_room
    }

    /// Handles timers.
    pub(super) fn tick(&mut self, now: Instant) {
        self.tick_neighbours(now);
        self.tick_groups(now);
        self.tick_connections(now);
    }
}
