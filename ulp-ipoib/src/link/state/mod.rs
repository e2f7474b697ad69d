//! What an interface knows, under one lock.
//!
//! The fields are here; each file beside this one has the methods for one table of them. The entries
//! ([`entry`](super::entry)) and the actions are below the state and do not know it.

mod action;
mod active;
mod groups;
mod neighbours;
mod passive;
mod paths;
mod resolve;
mod route;

pub(super) use action::{Action, Verdict};

use std::collections::BTreeMap;

use verbs_core::mad::Time;
use verbs_core::mad::sa::McMemberRecord;
use verbs_core::wr::Datagram;
use verbs_core::{Gid, PKey, PostError, QKey, Qpn, RecvQueue, Send, SendQueue, Srq};

use super::buffers::{Packet, Pool, Size, Slot, Work};
use super::entry::active::{Active, Key};
use super::entry::group::Group;
use super::entry::neighbour::Neighbours;
use super::entry::passive::Passive;
use super::entry::path::Path;
use crate::config::Config;
use crate::counters::Counters;
use crate::wire::{HEADER_LEN, HardwareAddress};

/// All that the lock guards.
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
    /// Receives and sends of the queue pair for datagrams that have not completed.
    pub(super) receiving: u32,
    pub(super) sending: u32,
    /// Whether a receive that completes is posted again.
    pub(super) reposts: bool,
    pub(super) neighbours: Neighbours,
    pub(super) paths: BTreeMap<Gid, Path>,
    pub(super) groups: BTreeMap<Gid, Group>,
    pub(super) active: BTreeMap<Key, Active>,
    /// By the number of the queue pair.
    pub(super) passive: BTreeMap<u32, Passive>,
    /// What is to be done when the lock is free.
    pub(super) actions: Vec<Action>,
    /// A writer was sent away.
    pub(super) is_awaited: bool,
    pub(super) is_closed: bool,
    pub(super) counters: Counters,
}

/// What the broadcast group fixes for the whole link.
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
        let size = match len + HEADER_LEN <= self.datagrams.stride() {
            true => Size::Datagram,
            false => Size::Connected,
        };
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

    /// Drops what does not wait any more.
    pub(super) fn drop_all(&mut self, packets: impl IntoIterator<Item = Packet>) -> u64 {
        let mut dropped = 0;
        for packet in packets {
            self.give_back(packet.slot);
            dropped += 1;
        }
        dropped
    }

    /// A packet of the interface's own. `None` when no buffer is free: whoever asked asks again.
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

    /// Posts a datagram.
    pub(super) fn post(&mut self, packet: Packet, to: &Datagram) -> Verdict {
        let Packet { slot, len } = packet;
        let sge = self.pool(slot.size).sge(slot.index, len);
        let send = Send::new(Work::Send(slot).id()).from(sge).to(to).signaled();
        match self.send.post(send) {
            Ok(()) => {
                self.sending += 1;
                self.counters.datagrams_sent += 1;
                self.counters.bytes_sent += u64::from(len) - HEADER_LEN as u64;
                Verdict::Taken
            }
            Err(PostError::Full { .. }) => Verdict::Full,
            Err(_) => {
                self.counters.unreachable += 1;
                self.give_back(slot);
                Verdict::Taken
            }
        }
    }

    /// Where datagrams for a queue pair behind that path go.
    pub(super) fn datagram(&self, path: &Path, qpn: Qpn) -> Option<Datagram> {
        let (terms, av) = (self.link.as_ref()?, path.av()?);
        Some(Datagram {
            pkey_index: self.partition.1,
            ..Datagram::new(av, qpn, terms.qkey)
        })
    }

    /// Bytes of the longest packet that goes as a datagram.
    pub(super) fn datagram_mtu(&self) -> usize {
        self.link.as_ref().map_or(0, |terms| terms.mtu)
    }

    /// Whether a writer that was sent away can come back.
    pub(super) fn has_room_again(&mut self) -> bool {
        let has_room = self.is_awaited && self.datagrams.has_room() && self.messages.has_room();
        self.is_awaited &= !has_room;
        has_room
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Time) {
        self.tick_neighbours(now);
        self.tick_groups(now);
        self.tick_connections(now);
    }
}
