//! Messages on their way out, kept until the peer has acknowledged them.

use std::collections::VecDeque;
use std::ops::Range;

use verbs_core::sync::Arc;

use super::message::{Outgoing, RdmaWork};
use crate::wire::{FRAGMENT_LEN, Header, HeaderFlags};

/// Packets after which an acknowledgement is asked for.
const UNACKED_PACKETS: u32 = 8;
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

/// A fragment: its header, its message and the part of it, and the operation before it.
type Fragment = (Header, Arc<[u8]>, Range<usize>, Option<RdmaWork>);

/// The queue: first the messages that were transmitted and wait for an acknowledgement, then the others.
#[derive(Debug, Default)]
pub(super) struct Transmit {
    queue: VecDeque<Queued>,
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
        self.queue.len()
    }

    /// Messages that wait for an acknowledgement.
    pub(super) fn unacked(&self) -> usize {
        self.done
    }

    /// Whether there is something to transmit.
    pub(super) fn is_ready(&self) -> bool {
        self.done < self.queue.len()
    }

    /// Whether a message is transmitted in part.
    pub(super) fn is_inside(&self) -> bool {
        self.begun
    }

    /// The next fragment. The caller has looked that there is one.
    pub(super) fn next(&mut self) -> Option<Fragment> {
        let queued = self.queue.get_mut(self.done)?;
        let message = &queued.message;
        let len = message.payload.len();
        let end = len.min(self.offset + FRAGMENT_LEN);
        let range = self.offset..end;
        let mut flags = HeaderFlags::empty();
        // A peer that has nothing of this life of the node would take the flag for a duplicate of the earlier one.
        let again = queued.again && self.stale.is_none();
        flags.set(HeaderFlags::RETRANSMITTED, again);
        self.packets += 1;
        self.bytes += range.len();
        if message.ack_required
            || queued.again
            || self.packets >= UNACKED_PACKETS
            || self.bytes >= UNACKED_BYTES
        {
            (self.packets, self.bytes) = (0, 0);
            flags |= HeaderFlags::ACK_REQUIRED;
        }
        let header = Header {
            sequence: queued.sequence,
            len: len as u32,
            source: message.source,
            destination: message.destination,
            flags,
            extensions: message.extensions,
            ..Header::default()
        };
        let payload = Arc::clone(&message.payload);
        let rdma = message.rdma.filter(|_| !self.begun);
        self.highest = self.highest.max(queued.sequence);
        (self.offset, self.begun) = (end, true);
        if end == len {
            (self.offset, self.begun) = (0, false);
            self.done += 1;
        }
        Some((header, payload, range, rdma))
    }

    /// What the peer said when the connection was made.
    pub(super) fn peer_has(&mut self, ack: u64) {
        match self.stale {
            Some(stale) if stale == ack => {}
            _ if ack > self.highest => self.stale = Some(ack),
            _ => self.stale = None,
        }
    }

    /// The peer has all up to `ack`. Yields socket and length of what is done with.
    pub(super) fn acked(&mut self, ack: u64, mut each: impl FnMut(u16, usize)) {
        if self.stale == Some(ack) || ack > self.highest {
            return;
        }
        if ack > 0 {
            self.stale = None;
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
                each(first.message.source, first.message.payload.len());
            }
        }
    }

    /// The connection is lost: everything is to be transmitted from the first message on that is not
    /// acknowledged. Messages whose operation was posted are dropped, as that cannot be done a second time: their sockets and
    /// lengths.
    pub(super) fn lost(&mut self) -> Vec<(u16, usize)> {
        let touched = self.done + usize::from(self.begun);
        for queued in self.queue.iter_mut().take(touched) {
            queued.again = true;
        }
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
        (count, bytes)
    }
}
