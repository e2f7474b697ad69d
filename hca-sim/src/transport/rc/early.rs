//! Packets that arrive before the ones they follow, kept until those have arrived.
//!
//! For its peer, a half that keeps such packets looks like a network that delivers them a little later, in order; so
//! each half may do so with any peer, and no packet on the wire is new.
//!
//! What is missing may be lost, or only late. It is requested again when `wait` has passed since the first packet
//! behind it arrived. `wait` is zero at first, because most missing packets are lost. If the requested packet arrives
//! twice, it was only late, and `wait` grows to a little more than that delay; if it does not, it was lost, and `wait`
//! shrinks by an eighth. Reordering is thus learned within a few packets and forgotten within some dozens.

use std::collections::BTreeMap;
use std::time::Duration;

use arrayvec::ArrayVec;
use verbs_core::Psn;

use crate::clock::Instant;
use crate::transport::pieces::Body;
use crate::wire::Head;

/// Packets that are kept, in each direction of a queue pair: as many as this crate's requester lets its READs request,
/// 2 MiB of the largest. What arrives beyond that is dropped, as other responders drop everything early.
pub(super) const EARLY_MAX: usize = 512;
/// Bytes of the largest payload that a packet may have; a packet with more will not be executed.
const PAYLOAD_MAX: usize = 4096;
/// The longest time for which a missing packet is assumed to be late. Beyond that, a network takes longer to put
/// packets in order than the requester takes to send them again.
pub(super) const LATE_MAX: Duration = Duration::from_millis(50);
/// The most requests for missing packets whose outcome is watched.
const ASKED_MAX: usize = 16;

/// A packet that arrived early.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) head: Head,
    pub(super) payload: Vec<u8>,
    came: Instant,
}

/// The missing packets.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// The number of the first.
    psn: Psn,
    /// When the first packet behind it arrived.
    since: Instant,
    /// The peer was asked for them.
    asked: bool,
    /// All missing packets before this number were requested.
    to: Psn,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Early {
    kept: BTreeMap<u32, Kept>,
    /// The most packets that are kept.
    pub(super) room: usize,
    gap: Option<Gap>,
    wait: Duration,
    /// Packets that were requested again and have arrived once since, each with its delay after the packets behind it.
    asked: ArrayVec<(Psn, Duration), ASKED_MAX>,
    /// Since the gap appeared, a packet could not be kept.
    spilled: bool,
}

impl Default for Early {
    fn default() -> Self {
        Self {
            kept: BTreeMap::new(),
            room: EARLY_MAX,
            gap: None,
            wait: Duration::ZERO,
            asked: ArrayVec::new(),
            spilled: false,
        }
    }
}

impl Early {
    /// Forgets the packets, and what is missing.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.gap = None;
        self.spilled = false;
    }

    /// Whether packets have arrived behind a gap.
    pub(super) fn has_gap(&self) -> bool {
        self.gap.is_some() || !self.kept.is_empty()
    }

    /// Whether packets behind the gap were dropped, so that they have to be sent again as well.
    pub(super) fn has_spilled(&self) -> bool {
        self.spilled
    }

    /// Keeps a packet, of which there may be a copy already. Returns whether there was room.
    pub(super) fn keep(&mut self, head: &Head, payload: impl Body, now: Instant) -> bool {
        let psn = head.bth().psn.value();
        if self.kept.contains_key(&psn) {
            return true;
        }
        // Long ones come in order, unless some before them were lost on purpose.
        let Some(payload) = payload.bytes() else {
            return false;
        };
        let mut copy = Vec::new();
        if self.kept.len() >= self.room
            || payload.len() > PAYLOAD_MAX
            || copy.try_reserve_exact(payload.len()).is_err()
        {
            return false;
        }
        copy.extend_from_slice(payload);
        let kept = Kept {
            head: *head,
            payload: copy,
            came: now,
        };
        self.kept.insert(psn, kept);
        true
    }

    /// Takes the packet with that number.
    pub(super) fn take(&mut self, psn: Psn) -> Option<Kept> {
        // Nearly always nothing is kept.
        if self.kept.is_empty() {
            return None;
        }
        self.kept.remove(&psn.value())
    }

    /// Takes the first packet from that number on.
    pub(super) fn take_from(&mut self, psn: Psn) -> Option<Kept> {
        let first = self.first_from(psn)?;
        self.kept.remove(&first)
    }

    /// How far the first kept packet is from that number.
    pub(super) fn distance(&self, psn: Psn) -> Option<u32> {
        let first = self.first_from(psn)?;
        Some(Psn::new(first.wrapping_sub(psn.value())).value())
    }

    /// Puts back what was taken too early.
    pub(super) fn put_back(&mut self, kept: Kept) {
        self.kept.insert(kept.head.bth().psn.value(), kept);
    }

    fn first_from(&self, psn: Psn) -> Option<u32> {
        let ahead = self.kept.range(psn.value()..).next();
        ahead
            .or_else(|| self.kept.iter().next())
            .map(|(&psn, _)| psn)
    }

    /// A packet arrived while the one with that number is missing; `kept` says whether it was kept. Returns whether the
    /// missing packets are to be requested now.
    pub(super) fn is_missing(&mut self, psn: Psn, kept: bool, now: Instant) -> bool {
        self.spilled |= !kept;
        if self.gap.is_none_or(|gap| gap.psn != psn) {
            self.gap = Some(Gap {
                psn,
                since: now,
                asked: false,
                to: psn,
            });
        }
        self.is_due(now)
    }

    /// When the missing packets are to be requested, if they have not been.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let gap = self.gap.as_ref().filter(|gap| !gap.asked)?;
        Some(gap.since + self.wait)
    }

    /// Whether the missing packets are to be requested now: they have been waited for long enough, or packets behind
    /// them are lost anyway.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.deadline()
            .is_some_and(|deadline| self.spilled || deadline <= now)
    }

    /// The missing packets have been requested: those before the first packet that was kept, and before `to`.
    pub(super) fn asked(&mut self, to: Option<Psn>) {
        if let Some(mut gap) = self.gap {
            let first = self.first_from(gap.psn).map(Psn::new);
            gap.asked = true;
            gap.to = match (first, to) {
                (Some(first), Some(to)) if to.since(first) > 0 => first,
                (first, to) => to.or(first).unwrap_or(gap.psn),
            };
            self.gap = Some(gap);
        }
    }

    /// Everything before that number has arrived. Returns whether something is missing now that was not before. The
    /// rest of a gap that was requested is on its way. `again` says what happens if more arrives from behind it
    /// nevertheless: it is requested again, or not.
    pub(super) fn passed(&mut self, expected: Psn, again: bool, now: Instant) -> bool {
        let Some(gap) = self.gap.filter(|gap| gap.psn.since(expected) < 0) else {
            return false;
        };
        let first = self.first_from(expected).map(Psn::new);
        if gap.asked {
            if self.asked.is_full() {
                // It never arrived a second time, so it was lost.
                self.asked.remove(0);
                self.wait -= self.wait / 8;
            }
            self.asked.push((gap.psn, now.since(gap.since)));
        }
        self.gap = None;
        self.kept
            .retain(|&psn, _| Psn::new(psn).since(expected) >= 0);
        self.spilled &= !self.kept.is_empty();
        let Some(first) = first else { return false };
        let is_rest = gap.asked && gap.to.since(expected) > 0;
        if !(is_rest && again) {
            let since = self.kept.get(&first.value()).map_or(now, |kept| kept.came);
            self.gap = Some(Gap {
                psn: expected,
                since,
                asked: is_rest,
                to: gap.to,
            });
        }
        !is_rest
    }

    /// A packet arrived that had arrived before: if it was requested in between, it had only been late.
    pub(super) fn came_again(&mut self, psn: Psn) {
        if let Some(at) = self.asked.iter().position(|asked| asked.0 == psn) {
            let (_, late) = self.asked.remove(at);
            self.wait = self.wait.max(late + late / 4).min(LATE_MAX);
        }
    }
}
