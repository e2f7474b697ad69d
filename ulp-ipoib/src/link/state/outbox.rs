//! Packets that wait to be posted with one call, which then leave together.

use arrayvec::ArrayVec;
use verbs_core::wr::Datagram;
use verbs_core::{BatchError, PostError, Send};

use super::State;
use super::action::Verdict;
use crate::link::buffers::{Packet, Work};
use crate::link::entry::active::{Key, Phase};
use crate::wire::HEADER_LEN;

/// Packets that are posted with one call at most.
const LOT: usize = 32;

/// Where packets go to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::link) enum Target {
    /// A queue pair for datagrams.
    Datagram(Datagram),
    /// The other end of a connection.
    Connection(Key),
}

/// Packets in their order, all to one destination. They wait until the change of the state is complete, and if the
/// send queue has no room then, until something has completed.
#[derive(Debug, Default)]
pub(in crate::link) struct Outbox {
    target: Option<Target>,
    packets: ArrayVec<Packet, LOT>,
    /// The send queue had no room for them.
    is_held: bool,
}

impl Outbox {
    pub(in crate::link) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether they wait until something has completed.
    pub(in crate::link) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Whether a packet for that destination can be put.
    fn takes(&self, target: &Target) -> bool {
        self.is_empty() || !self.packets.is_full() && self.target.as_ref() == Some(target)
    }
}

impl State {
    /// Puts a packet behind those that wait.
    pub(in crate::link) fn put(&mut self, packet: Packet, target: Target) -> Verdict {
        if !self.outbox.takes(&target) {
            self.flush();
        }
        if !self.outbox.takes(&target) {
            return Verdict::Full;
        }
        self.outbox.target = Some(target);
        self.outbox.packets.push(packet);
        Verdict::Taken
    }

    /// Posts what waits, as far as the send queue has room.
    pub(in crate::link) fn flush(&mut self) {
        let Some(target) = self.outbox.target.filter(|_| !self.outbox.is_empty()) else {
            return;
        };
        let mut packets = std::mem::take(&mut self.outbox.packets);
        let (posted, error) = match self.post_to(&target, &packets) {
            Ok(()) => (packets.len(), None),
            Err(BatchError { posted, error }) => (posted, Some(error)),
        };
        let bytes = |packet: Packet| u64::from(packet.len) - HEADER_LEN as u64;
        self.counters.bytes_sent += packets.drain(..posted).map(bytes).sum::<u64>();
        match target {
            Target::Datagram(_) => {
                self.sending += posted as u32;
                self.counters.datagrams_sent += posted as u64;
            }
            Target::Connection(_) => self.counters.connected_sent += posted as u64,
        }
        self.outbox.is_held = matches!(error, Some(PostError::Full { .. }));
        match error {
            None => {}
            Some(PostError::Full { .. }) => self.outbox.packets = packets,
            // The queue pair is in a state that its keeper, or its end, takes care of.
            Some(_) => self.counters.unreachable += self.drop_all(packets),
        }
    }

    fn post_to(&mut self, target: &Target, packets: &[Packet]) -> Result<(), BatchError> {
        let [datagrams, messages] = [&self.datagrams, &self.messages];
        let sends = packets.iter().map(|&Packet { slot, len }| {
            let pool = match slot.size {
                super::Size::Datagram => datagrams,
                super::Size::Connected => messages,
            };
            Send::new(Work::Send(slot).id()).from(pool.sge(slot.index, len))
        });
        match target {
            Target::Datagram(to) => {
                let wrs = sends.map(|send| send.to(to).signaled().wr);
                self.send.post_batch(&wrs.collect::<ArrayVec<_, LOT>>())
            }
            Target::Connection(key) => {
                let wrs = sends.map(|send| send.signaled().wr);
                let wrs = wrs.collect::<ArrayVec<_, LOT>>();
                match self.active.get_mut(key).map(|active| &mut active.phase) {
                    Some(Phase::Up { connection, .. }) => connection.post_batch(&wrs),
                    // It is over.
                    _ => Err(BatchError {
                        posted: 0,
                        error: PostError::Destroyed,
                    }),
                }
            }
        }
    }
}
