//! A link with the queue before it: packets wait, are marked, and hold back those who send them.

use std::collections::VecDeque;
use std::time::Duration;

use super::tree::LinkId;
use crate::{Draw, SwitchQueue};

/// A packet under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) flow: u32,
    pub(super) len: u32,
    /// Links behind it.
    pub(super) hop: u8,
    pub(super) is_marked: bool,
}

/// One direction of a cable, and what waits for it.
#[derive(Debug, Default)]
pub(super) struct Link {
    queue: VecDeque<(Packet, Option<LinkId>)>,
    /// Bytes in the queue.
    waiting: usize,
    /// A packet is being sent.
    is_busy: bool,
    /// The other end has no room.
    is_paused: bool,
    /// Bytes that came by this link and still wait at its end.
    held: usize,
    /// Its sender was told to pause.
    has_paused: bool,
}

/// What a link's end tells its sender: priority flow control (IEEE 802.1Qbb).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pfc {
    Pause,
    Resume,
}

impl Link {
    /// A packet is to be sent on it, which came by link `via` to the switch at its beginning.
    pub(super) fn push(&mut self, packet: Packet, via: Option<LinkId>) {
        self.waiting += packet.len as usize;
        self.queue.push_back((packet, via));
    }

    /// Marks a packet that is about to join the queue, as the switch does.
    pub(super) fn mark(&self, packet: &mut Packet, config: &SwitchQueue, draw: &mut Draw) {
        packet.is_marked |= draw.chance(config.chance(self.waiting));
    }

    /// The next packet, if it can be sent now. The link is busy then.
    pub(super) fn start(&mut self) -> Option<(Packet, Option<LinkId>)> {
        if self.is_busy || self.is_paused {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.waiting -= next.0.len as usize;
        self.is_busy = true;
        Some(next)
    }

    /// The packet has left.
    pub(super) fn sent(&mut self) {
        self.is_busy = false;
    }

    pub(super) fn set(&mut self, told: Pfc) {
        self.is_paused = told == Pfc::Pause;
    }

    /// Whether another packet would not be sent at once.
    pub(super) fn is_taken(&self) -> bool {
        self.is_busy || self.is_paused || !self.queue.is_empty()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Bytes that came by it wait at its end. Returns what its sender is told, if that changes.
    pub(super) fn hold(&mut self, bytes: usize, pause_at: usize) -> Option<Pfc> {
        self.held += bytes;
        let pauses = self.held > pause_at && !self.has_paused;
        self.has_paused |= pauses;
        pauses.then_some(Pfc::Pause)
    }

    /// They do not any longer.
    pub(super) fn let_go(&mut self, bytes: usize, resume_at: usize) -> Option<Pfc> {
        self.held -= bytes;
        let resumes = self.held <= resume_at && self.has_paused;
        self.has_paused &= !resumes;
        resumes.then_some(Pfc::Resume)
    }
}

/// How long a link takes to send that many bytes; rounded up, so that it is never faster than it is.
pub(super) fn time_of(bytes: u32, rate: u64) -> Duration {
    let nanos = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn packet(len: u32) -> Packet {
        Packet {
            flow: 0,
            len,
            hop: 0,
            is_marked: false,
        }
    }

    #[test]
    fn a_link_sends_one_packet_at_a_time_and_none_while_it_is_paused() {
        let mut link = Link::default();
        assert!(!link.is_taken());
        for len in [10, 20, 30] {
            link.push(packet(len), None);
        }
        assert_eq!(link.waiting(), 60);
        assert_eq!(link.start().map(|(packet, _)| packet.len), Some(10));
        assert!(link.start().is_none(), "it is busy");
        link.sent();
        link.set(Pfc::Pause);
        assert!(link.start().is_none());
        link.set(Pfc::Resume);
        assert_eq!(link.start().map(|(packet, _)| packet.len), Some(20));
        assert_eq!(link.waiting(), 30);
    }

    #[test]
    fn senders_are_paused_and_let_go_once() {
        let mut link = Link::default();
        assert_eq!(link.hold(100, 100), None);
        assert_eq!(link.hold(1, 100), Some(Pfc::Pause));
        assert_eq!(link.hold(50, 100), None, "it knows");
        assert_eq!(link.let_go(60, 80), None);
        assert_eq!(link.let_go(11, 80), Some(Pfc::Resume));
        assert_eq!(link.let_go(80, 80), None);
    }
}
