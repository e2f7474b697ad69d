//! The room of a listener for connections that are half open: a peer has asked for them, and has not confirmed the
//! answer. Its address may be forged.
//!
//! One takes a queue pair, and neither a place among the endpoint's connections nor buffers. Where the room is full, or
//! the share of one address, the oldest gives way to the next request.

use std::collections::VecDeque;
use std::net::IpAddr;

use futures::future::AbortHandle;

/// Half-open connections of a listener, unless the program says otherwise: at least this many, and as many as the
/// endpoint has connections. An honest peer keeps its own while fewer requests come in one round trip.
pub(super) const ROOM: u32 = 256;
/// The most that are of use: the connection manager of the port has room for as many.
pub(super) const ROOM_MAX: u32 = 1024;

/// Those of one listener, the oldest first.
pub(super) struct HalfOpen {
    all: VecDeque<Entry>,
    max: usize,
    /// Of one address.
    share: usize,
    entered: u64,
}

struct Entry {
    number: u64,
    source: IpAddr,
    abort: AbortHandle,
}

impl HalfOpen {
    /// Room for that many, half of them of one address.
    pub(super) fn new(max: u32) -> Self {
        let max = max.clamp(1, ROOM_MAX) as usize;
        Self {
            all: VecDeque::new(),
            max,
            share: max.div_ceil(2),
            entered: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.all.len() as u32
    }

    /// Adds one of that address, and says its number. What comes out gives way, and is to be ended under no lock.
    pub(super) fn enter(
        &mut self,
        source: IpAddr,
        abort: AbortHandle,
    ) -> (u64, Option<AbortHandle>) {
        let of_source = |entry: &&Entry| entry.source == source;
        let oldest = if self.all.iter().filter(of_source).count() >= self.share {
            self.all.iter().position(|entry| entry.source == source)
        } else {
            (self.all.len() >= self.max).then_some(0)
        };
        let oldest = oldest.and_then(|at| self.all.remove(at));
        let number = self.entered;
        self.entered += 1;
        self.all.push_back(Entry {
            number,
            source,
            abort,
        });
        (number, oldest.map(|entry| entry.abort))
    }

    /// One is half open no longer. `false` if it had to give way.
    pub(super) fn leave(&mut self, number: u64) -> bool {
        let found = self.all.iter().position(|entry| entry.number == number);
        found.and_then(|at| self.all.remove(at)).is_some()
    }

    /// All of them, which are to be ended under no lock.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = AbortHandle> + use<> {
        let all = std::mem::take(&mut self.all);
        all.into_iter().map(|entry| entry.abort)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    /// Goal: the oldest gives way: of the address whose share is used up, or else of all; others keep their places.
    #[test]
    fn the_oldest_gives_way() {
        let mut room = HalfOpen::new(4);
        let mut enter = |source| {
            let (abort, _) = AbortHandle::new_pair();
            let (number, old) = room.enter(address(source), abort.clone());
            (number, abort, old.is_some())
        };
        let first = enter(1);
        let other = enter(2);
        let second = enter(1);
        assert!(!first.2 && !other.2 && !second.2, "there is room");
        let third = enter(1);
        assert!(third.2, "two of four are the share of an address");
        let fourth = enter(3);
        assert!(!fourth.2, "there is room again");
        let fifth = enter(4);
        assert!(fifth.2, "the room is full");
        // The oldest of all was the one of address 2.
        assert!(!room.leave(first.0) && !room.leave(other.0));
        assert!(room.leave(second.0) && !room.leave(second.0));
        assert_eq!(room.len(), 3);
        assert_eq!(room.clear().count(), 3);
        assert_eq!(room.len(), 0);
    }

    /// Goal: a room has place for one at least, and for no more than the connection manager has.
    #[test]
    fn a_room_has_bounds() {
        let mut room = HalfOpen::new(0);
        for n in 0..3 {
            let (abort, _) = AbortHandle::new_pair();
            assert_eq!(room.enter(address(n), abort).1.is_some(), n > 0);
            assert_eq!(room.len(), 1);
        }
        assert_eq!(HalfOpen::new(u32::MAX).max, ROOM_MAX as usize);
    }
}
