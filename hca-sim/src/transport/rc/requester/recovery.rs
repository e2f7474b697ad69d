//! How the requester reacts to losses: how much it sends again, and how much may be under way.
//!
//! # What is sent again
//!
//! This crate's responder keeps packets that arrive behind a loss, hardware may do so, and Linux rxe drops them. A
//! requester is not told which, but finds out. It assumes that the peer keeps them and sends only the packet that is
//! missing. If the answer confirms more than that, the peer did keep the rest. If it confirms no more, the next packet
//! is missing too, and twice as many are sent: 1, 2, 4, [`PATCH_MAX`]. When that many confirm nothing but themselves,
//! the peer drops early packets, and from then on everything behind a loss is sent again at once (go-back-N), until an
//! answer confirms more than was sent again.
//!
//! # How much is under way
//!
//! A loss reduces the limit by a quarter; a peer that seems to be gone halves it, and the sender begins again with one
//! packet. Either happens once for everything that was under way then. Below its former value, the limit grows by what
//! is confirmed; above it, by an eighth of that. That is bolder than TCP's additive increase, and what the field
//! expects of RoCE: losses come from damage as often as from congestion, which has marks of its own.

use verbs_core::Psn;

use super::PACKETS_MAX;

/// A loss does not reduce the limit below this.
const LIMIT_MIN: u32 = 32;
/// Nor below this for a peer that drops everything behind a loss.
const LIMIT_MIN_DROPS: u32 = 8;
/// The most packets that are sent again at once to a peer that is assumed to keep early packets.
const PATCH_MAX: u32 = 8;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Recovery {
    /// Packets that may be unacknowledged now.
    limit: u32,
    /// The limit grows by what is confirmed below this.
    threshold: u32,
    /// Eighths that the limit will grow by.
    credit: u32,
    /// All that was under way when the limit was lowered is before this number.
    until: Option<Psn>,
    /// The peer keeps early packets.
    keeps: bool,
    /// Packets that are sent again at once.
    patch: u32,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            limit: PACKETS_MAX,
            threshold: PACKETS_MAX,
            credit: 0,
            until: None,
            keeps: true,
            patch: 1,
        }
    }
}

impl Recovery {
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// The first packets to send again, or all if `None`.
    pub(super) fn patch(&self) -> Option<u32> {
        self.keeps.then_some(self.patch)
    }

    /// The peer has confirmed that many packets, all before `una`.
    pub(super) fn confirmed(&mut self, packets: u32, una: Psn) {
        if self.until.is_some_and(|until| una.since(until) >= 0) {
            self.until = None;
        }
        if self.limit < self.threshold {
            self.limit = self.limit.saturating_add(packets).min(self.threshold);
        } else if self.limit < PACKETS_MAX {
            self.credit += packets;
            self.limit = (self.limit + self.credit / 8).min(PACKETS_MAX);
            self.credit %= 8;
        }
    }

    /// A packet is lost, and packets up to `end` are under way.
    pub(super) fn lost(&mut self, end: Psn) {
        if self.until.is_none() {
            self.lower(self.limit.max(self.threshold) / 4 * 3, end);
            self.limit = self.limit.min(self.threshold);
        }
    }

    /// No answer has arrived for too long, and packets up to `end` are under way.
    pub(super) fn timed_out(&mut self, end: Psn) {
        if self.until.is_none() {
            self.lower(self.limit.max(self.threshold) / 2, end);
        }
        self.limit = 1;
        self.patch = 1;
    }

    fn lower(&mut self, threshold: u32, end: Psn) {
        let least = if self.keeps {
            LIMIT_MIN
        } else {
            LIMIT_MIN_DROPS
        };
        self.threshold = threshold.max(least);
        self.until = Some(end);
        self.credit = 0;
    }

    /// The packets that were sent again are confirmed, and nothing else, although more was sent.
    pub(super) fn brought_itself(&mut self) {
        self.patch *= 2;
        if self.patch > PATCH_MAX {
            self.keeps = false;
        }
    }

    /// More is confirmed than was sent again.
    pub(super) fn brought_more(&mut self) {
        self.keeps = true;
        self.patch = 1;
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    /// Goal: one window causes one reduction, and the limit grows back, fast to its former value and slowly beyond.
    #[test]
    fn a_window_is_punished_once() {
        let mut recovery = Recovery::default();
        recovery.lost(Psn::new(100));
        assert_eq!(recovery.limit(), 192);
        recovery.confirmed(1, Psn::new(99));
        recovery.lost(Psn::new(100));
        assert_eq!(recovery.limit(), 192, "of the same window");
        recovery.confirmed(16, Psn::new(100));
        assert_eq!(recovery.limit(), 194);
        recovery.timed_out(Psn::new(200));
        assert_eq!(recovery.limit(), 1);
        recovery.confirmed(40, Psn::new(140));
        assert_eq!(recovery.limit(), 41);
        recovery.timed_out(Psn::new(200));
        recovery.confirmed(1000, Psn::new(200));
        assert_eq!(recovery.limit(), 97, "half of what it was");
        for n in 0..100 {
            recovery.lost(Psn::new(300 + n));
            recovery.confirmed(1, Psn::new(300 + n));
        }
        assert!(recovery.limit() >= LIMIT_MIN && recovery.limit() <= LIMIT_MIN + 1);
        recovery.confirmed(10_000, Psn::new(1000));
        assert_eq!(recovery.limit(), PACKETS_MAX);
    }

    /// Goal: a peer that drops what is early is known after 1, 2, 4 and 8 packets, and one that keeps it at once.
    #[test]
    fn a_peer_that_drops_is_found_out() {
        let mut recovery = Recovery::default();
        for expected in [1, 2, 4, 8] {
            assert_eq!(recovery.patch(), Some(expected));
            recovery.brought_itself();
        }
        assert_eq!(recovery.patch(), None);
        recovery.brought_more();
        assert_eq!(recovery.patch(), Some(1));
    }
}
