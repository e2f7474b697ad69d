//! Connections that peers have asked for and that are not established: whoever asked has shown nothing yet.
//!
//! A request may come from anybody, in the name of any address. It gets a queue pair and an answer, and no more than that: no
//! link, no packet, and no connection that is there ends for it. When it is established, the link of its peer takes it. Until
//! then it is in a room of its own, where the oldest gives way: the oldest of its address, if that has its part already.

use std::collections::VecDeque;
#[cfg(test)]
use std::net::IpAddr;
use std::task::{Context, Poll, Waker};

use verbs_cm::Connection;

use super::id::Key;
use super::queues::Made;
use crate::machine::Asked;
use crate::wire::Handshake;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct HalfOpen {
    /// The oldest first.
    all: VecDeque<Entry>,
    last: u64,
}

struct Entry {
    number: u64,
    key: Key,
    /// Wakes the task that has its queue pair.
    waker: Option<Waker>,
}

/// A connection that a peer asked for, established.
pub(super) struct Arrived {
    pub(super) number: u64,
    pub(super) key: Key,
    pub(super) asked: Asked,
    pub(super) connection: Connection,
    pub(super) made: Made,
    pub(super) peer: Handshake,
}

impl HalfOpen {
    /// A place for another one, with its number; at a bound the oldest gives way, and its task is to be woken.
    pub(super) fn enter(
        &mut self,
        key: Key,
        max: usize,
        of_address_max: usize,
    ) -> (u64, Option<Waker>) {
        let of_address = |entry: &&Entry| entry.key.1 == key.1;
        let out = match self.all.iter().filter(of_address).count() >= of_address_max {
            true => self.all.iter().position(|entry| entry.key.1 == key.1),
            false => (self.all.len() >= max).then_some(0),
        };
        let out = out.and_then(|at| self.all.remove(at));
        self.last += 1;
        self.all.push_back(Entry {
            number: self.last,
            key,
            waker: None,
        });
        (self.last, out.and_then(|entry| entry.waker))
    }

    /// It is established, or has come to nothing.
    pub(super) fn leave(&mut self, number: u64) {
        self.all.retain(|entry| entry.number != number);
    }

    /// All of them are given up: the tasks that are to be woken.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Waker> + '_ {
        self.all.drain(..).filter_map(|entry| entry.waker)
    }

    /// Whether there is one of that link.
    pub(super) fn has(&self, key: Key) -> bool {
        self.all.iter().any(|entry| entry.key == key)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Pending while it has its place.
    pub(super) fn poll_out(&mut self, number: u64, cx: &mut Context<'_>) -> Poll<()> {
        let entry = self.all.iter_mut().find(|entry| entry.number == number);
        let Some(entry) = entry else {
            return Poll::Ready(());
        };
        // The task's own, which stays the same.
        entry.waker.get_or_insert_with(|| cx.waker().clone());
        Poll::Pending
    }

    /// As many as there are of an address.
    #[cfg(test)]
    fn of(&self, address: IpAddr) -> usize {
        self.all
            .iter()
            .filter(|entry| entry.key.1 == address)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(host: u8, tos: u8) -> Key {
        ([10, 0, 0, 1].into(), [10, 0, 0, host].into(), tos)
    }

    /// Goal: nobody who asks keeps others from asking. Method: one address asks for ever, then very many ask once each; the
    /// newest of all has its place, and an address that asks once keeps its own beside one that asks for ever.
    #[test]
    fn the_oldest_gives_way_that_of_the_same_address_first() {
        let mut room = HalfOpen::default();
        let (honest, _) = room.enter(key(9, 0), 8, 3);
        for tos in 0..20 {
            let (number, _) = room.enter(key(2, tos), 8, 3);
            assert!(room.all.iter().any(|entry| entry.number == number));
        }
        assert_eq!((room.of(key(2, 0).1), room.len()), (3, 4));
        assert!(room.has(key(9, 0)) && room.has(key(2, 19)) && !room.has(key(2, 16)));
        for host in 10..15 {
            room.enter(key(host, 0), 8, 3);
        }
        assert_eq!(room.len(), 8);
        assert!(!room.has(key(9, 0)), "it was the oldest");
        room.leave(honest);
        room.leave(room.last);
        assert_eq!(room.len(), 7);
    }
}
