//! Messages on their way out, kept until the peer has acknowledged them.

use std::collections::VecDeque;

use super::message::{Outgoing, RdmaWork, Short};
use crate::payload::Payload;
use crate::wire::{FRAGMENT_LEN, Header, HeaderFlags, PING_PORT, PROBE_PORT};

/// Bytes after which an acknowledgement is asked for.
const UNACKED_BYTES: usize = 16 << 20;

#[derive(Debug)]
struct Queued {
    sequence: u64,
    message: Outgoing,
    /// Whether some of it was transmitted on an earlier connection.
    again: bool,
    /// Its socket no longer wants it; it is only finished, so that the connection is not broken.
    cancelled: bool,
}

/// A message of one packet that was transmitted, and whose only copy is the caller's slot that it was transmitted from.
#[derive(Clone, Copy, Debug)]
struct Kept {
    sequence: u64,
    slot: u32,
    message: Short,
}

/// A part of a message that is transmitted in one packet.
pub(super) struct Fragment<'m> {
    pub(super) header: Header,
    pub(super) payload: &'m [u8],
    /// The message ends with it.
    pub(super) ends: bool,
    /// The operation before it.
    pub(super) rdma: Option<RdmaWork>,
}

/// Which life of this node a peer's acknowledgement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    This,
    Other,
    /// The peer does not say it.
    Unknown,
}

/// The queue: first the messages that were transmitted and wait for an acknowledgement, then the others. Messages that are kept in
/// slots were transmitted, and have a queue of their own.
#[derive(Debug, Default)]
pub(super) struct Transmit {
    queue: VecDeque<Queued>,
    kept: VecDeque<Kept>,
    /// Slots whose messages are done with.
    released: Vec<u32>,
    /// Packets after which an acknowledgement is asked for.
    ack_interval: u32,
    /// How many at the front were transmitted to their end.
    done: usize,
    /// Bytes of the next one that were transmitted, and whether any packet of it was.
    offset: usize,
    begun: bool,
    /// The last sequence number given, and the highest transmitted.
    last: u64,
    highest: u64,
    packets: u32,
    bytes: usize,
    /// An acknowledgement that the peer repeats from an earlier life of this node.
    stale: Option<u64>,
}

impl Transmit {
    pub(super) fn new(ack_interval: u32) -> Self {
        Self {
            ack_interval,
            ..Self::default()
        }
    }

    /// A message that is transmitted now, and kept in a slot. The caller has looked that no other is to be transmitted.
    #[inline]
    pub(super) fn keep(&mut self, message: &Short, slot: u32) -> Header {
        self.last += 1;
        self.highest = self.last;
        self.kept.push_back(Kept {
            sequence: self.last,
            slot,
            message: *message,
        });
        let mut flags = HeaderFlags::empty();
        let is_due = self.is_ack_due(message.len as usize, message.ack_required);
        flags.set(HeaderFlags::ACK_REQUIRED, is_due);
        Header {
            sequence: self.last,
            len: message.len,
            source: message.source,
            destination: message.destination,
            flags,
            ..Header::default()
        }
    }

    /// Counts a packet. Whether it asks for an acknowledgement, by itself or because of those before it.
    #[inline]
    fn is_ack_due(&mut self, len: usize, is_asked: bool) -> bool {
        self.packets += 1;
        self.bytes += len;
        let is_due = is_asked || self.packets >= self.ack_interval || self.bytes >= UNACKED_BYTES;
        if is_due {
            (self.packets, self.bytes) = (0, 0);
        }
        is_due
    }

    #[inline]
    pub(super) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// A slot whose message is done with.
    #[inline]
    pub(super) fn released(&mut self) -> Option<u32> {
        self.released.pop()
    }

    pub(super) fn push(&mut self, message: Outgoing) {
        self.last += 1;
        self.queue.push_back(Queued {
            sequence: self.last,
            message,
            again: false,
            cancelled: false,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len() + self.kept.len()
    }

    /// Whether a socket has a message queued: answers to pings, and probes, are the connection's own.
    pub(super) fn has_message_of_socket(&self) -> bool {
        let is_own = |source| source == PING_PORT || source == PROBE_PORT;
        let mut queued = self.queue.iter();
        !self.kept.is_empty() || queued.any(|queued| !is_own(queued.message.source))
    }

    /// Messages that wait for an acknowledgement.
    pub(super) fn unacked(&self) -> usize {
        self.done + self.kept.len()
    }

    /// Whether there is something to transmit.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.done < self.queue.len()
    }

    /// Whether a message is transmitted in part.
    pub(super) fn is_inside(&self) -> bool {
        self.begun
    }

    /// The next fragment. The caller has looked that there is one.
    pub(super) fn next(&mut self) -> Option<Fragment<'_>> {
        let Queued { message, again, .. } = self.queue.get(self.done)?;
        let left = message.payload.len().saturating_sub(self.offset);
        let is_asked = message.ack_required || *again;
        let is_due = self.is_ack_due(left.min(FRAGMENT_LEN), is_asked);
        let queued = self.queue.get_mut(self.done)?;
        let message = &queued.message;
        let len = message.payload.len();
        let end = len.min(self.offset + FRAGMENT_LEN);
        let payload = message.payload.get(self.offset..end).unwrap_or_default();
        let mut flags = HeaderFlags::empty();
        // A peer that has nothing of this life of the node would take the flag for a duplicate of the earlier one.
        let again = queued.again && self.stale.is_none();
        flags.set(HeaderFlags::RETRANSMITTED, again);
        flags.set(HeaderFlags::ACK_REQUIRED, is_due);
        let header = Header {
            sequence: queued.sequence,
            len: len as u32,
            source: message.source,
            destination: message.destination,
            flags,
            extensions: message.extensions,
            ..Header::default()
        };
        let rdma = message.rdma.filter(|_| !self.begun);
        self.highest = self.highest.max(queued.sequence);
        (self.offset, self.begun) = (end, true);
        let ends = end == len;
        if ends {
            (self.offset, self.begun) = (0, false);
            self.done += 1;
        }
        Some(Fragment {
            header,
            payload,
            ends,
            rdma,
        })
    }

    /// What the peer said when the connection was made, and of which life of this node, where it said that.
    pub(super) fn peer_has(&mut self, ack: u64, life: Life) {
        self.stale = match (life, self.stale) {
            (Life::This, _) => None,
            (Life::Other, _) => Some(ack),
            (Life::Unknown, Some(stale)) if stale == ack => Some(stale),
            (Life::Unknown, _) => (ack > self.highest).then_some(ack),
        }
    }

    /// The peer has heard of this life of the node: what it says from now on is about it.
    pub(super) fn peer_knows(&mut self) {
        self.stale = None;
    }

    /// Whether an acknowledgement may say something new.
    #[inline]
    pub(super) fn is_news(&self, ack: u64) -> bool {
        self.stale.is_some()
            || self.done > 0
            || self.kept.front().is_some_and(|kept| kept.sequence <= ack)
    }

    /// The peer has all up to `ack`. Yields sockets, with messages and bytes that are done with.
    pub(super) fn acked(&mut self, ack: u64, mut each: impl FnMut(u16, usize, usize)) {
        if self.stale == Some(ack) || ack > self.highest {
            return;
        }
        if ack > 0 {
            self.stale = None;
        }
        let (mut socket, mut messages, mut bytes) = (0, 0, 0);
        while let Some(first) = self.kept.pop_front_if(|first| first.sequence <= ack) {
            self.released.push(first.slot);
            if first.message.source != socket && messages > 0 {
                each(socket, messages, bytes);
                (messages, bytes) = (0, 0);
            }
            socket = first.message.source;
            messages += 1;
            bytes += first.message.len as usize;
        }
        if messages > 0 {
            each(socket, messages, bytes);
        }
        while self.done > 0
            && self
                .queue
                .front()
                .is_some_and(|first| first.sequence <= ack)
        {
            self.done -= 1;
            if let Some(first) = self.queue.pop_front()
                && !first.cancelled
            {
                each(first.message.source, 1, first.message.payload.len());
            }
        }
    }

    /// The connection is lost: everything is to be transmitted from the first message on that is not
    /// acknowledged. Messages whose operation was posted are dropped, as that cannot be done a second time: their sockets and
    /// lengths. `copy` yields the message of so many bytes that is kept in a slot.
    pub(super) fn lost(
        &mut self,
        mut copy: impl FnMut(u32, usize) -> Payload,
    ) -> Vec<(u16, usize)> {
        let touched = self.done + usize::from(self.begun);
        for queued in self.queue.iter_mut().take(touched) {
            queued.again = true;
        }
        if !self.kept.is_empty() {
            let kept = self.kept.drain(..);
            self.queue.extend(kept.map(|kept| {
                Queued {
                    sequence: kept.sequence,
                    message: kept
                        .message
                        .queued(copy(kept.slot, kept.message.len as usize)),
                    again: true,
                    cancelled: false,
                }
            }));
            let queue = self.queue.make_contiguous();
            queue.sort_unstable_by_key(|queued| queued.sequence);
        }
        self.released.clear();
        let mut dropped = Vec::new();
        self.queue.retain(|queued| {
            let message = &queued.message;
            let is_dropped = queued.again && message.rdma.is_some() && !queued.cancelled;
            if is_dropped {
                dropped.push((message.source, message.payload.len()));
            }
            !is_dropped && !queued.cancelled
        });
        (self.done, self.offset, self.begun) = (0, 0, false);
        (self.packets, self.bytes) = (0, 0);
        dropped
    }

    /// Takes messages of a socket back, to one port or to all. Yields how many and how many bytes.
    pub(super) fn cancel(&mut self, source: u16, destination: Option<u16>) -> (usize, usize) {
        let (mut count, mut bytes, mut index) = (0, 0, 0);
        let (done, begun) = (self.done, self.begun);
        self.queue.retain_mut(|queued| {
            let at = index;
            index += 1;
            let message = &queued.message;
            let is_meant = message.source == source
                && destination.is_none_or(|port| port == message.destination)
                && !queued.cancelled;
            if !is_meant {
                return true;
            }
            count += 1;
            bytes += message.payload.len();
            if at == done && begun {
                queued.cancelled = true;
                return true;
            }
            if at < done {
                self.done -= 1;
            }
            false
        });
        self.kept.retain(|kept| {
            let message = &kept.message;
            let is_meant = message.source == source
                && destination.is_none_or(|port| port == message.destination);
            if is_meant {
                count += 1;
                bytes += message.len as usize;
                self.released.push(kept.slot);
            }
            !is_meant
        });
        (count, bytes)
    }
}
