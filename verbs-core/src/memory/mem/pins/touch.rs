//! One word per object that says whether it lives and which threads ever entered.

use super::barrier;
use super::pin::Pin;
use crate::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// The object has been taken away.
const DEAD: u64 = 1 << 31;
/// Everything below `DEAD`: one bit per thread that entered.
const THREADS: u64 = DEAD - 1;
/// The object is taken away on the data path: entering threads fence.
const FENCED: u64 = 1 << 63;
/// The tag's lowest bit.
const TAG_ONE: u64 = 1 << 32;
/// The bits that belong to the object.
const TAG: u32 = u32::MAX >> 1;

/// The bits that a check of a whole tag compares, besides the bit of the checking thread.
pub(super) const WHOLE: u64 = !THREADS;

/// A word that admits pinned threads to an object, remembers them, and can be killed.
///
/// ```text
///   63      62 .. 32             31     30 .. 0
///   FENCED  the object's tag     DEAD   threads that got in
/// ```
///
/// * *Entering*, under a pin: tag as expected, not dead, own bit set: one load and one compare. The first time, a
///   thread sets its bit by an RMW and checks the value that it replaced.
/// * *Killing* is an RMW as well. The two are ordered: the killer sees the bit, or the thread sees `DEAD`. A
///   thread whose bit was set before enters without an RMW; the barrier covers that case (module
///   [`mod@super::pin`]), which is why the killer asks only those threads and needs no barrier if there are none
///   except itself.
/// * The race that looks bad: a thread loads the word, is preempted, and the object is killed. The thread is then
///   inside a pin; [`grace::after`](super::grace::after) sees that and the job waits.
///
/// The tag is the object's own: a region keeps its key there, a queue pair may keep flags.
#[derive(Debug)]
pub struct TouchWord(AtomicU64);

/// A tag as it was seen, for [`TouchWord::admits_as_seen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

impl Seen {
    /// That tag (31 bits).
    #[inline(always)]
    pub const fn new(tag: u32) -> Self {
        Self((tag & TAG) as u64 * TAG_ONE)
    }

    /// Whether it has any of those flags.
    #[inline(always)]
    pub const fn has_any(self, flags: u32) -> bool {
        self.0 & (flags as u64 * TAG_ONE) != 0
    }
}

/// Threads that may be inside, as a kill found them: what [`grace::after`](super::grace::after)
/// waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the object may still be in use until a grace period is over"]
pub struct Touched {
    pub(super) threads: u32,
    pub(super) fenced: bool,
}

impl TouchWord {
    /// The bits a tag can have.
    pub const TAG: u32 = TAG;

    /// An object that lives, with this tag (31 bits), which no thread has touched.
    pub fn new(tag: u32) -> Self {
        Self(AtomicU64::new(word(tag)))
    }

    /// An object that does not live yet.
    pub fn dead() -> Self {
        Self(AtomicU64::new(DEAD))
    }

    /// Whether the object lives and its tag, under `mask`, is `want`. If so, it stays usable until the pin is
    /// left. `want` must lie within `mask`, and `mask` within [`TouchWord::TAG`].
    #[inline(always)]
    pub fn admits(&self, pin: &Pin, mask: u32, want: u32) -> bool {
        self.admits_at_once(pin, mask, want) || self.admits_slow(pin.bit(), mask, want)
    }

    /// As [`admits`](Self::admits), for code that must stay short: `false` also if one look is not enough to
    /// decide, for instance when this thread enters for the first time.
    #[inline(always)]
    pub fn admits_at_once(&self, pin: &Pin, mask: u32, want: u32) -> bool {
        if mask == TAG {
            return self.admits_as_seen(pin, Seen(u64::from(want) << 32));
        }
        let bit = pin.bit();
        let relevant = FENCED | u64::from(mask) << 32 | DEAD | bit;
        self.0.load(Acquire) & relevant == u64::from(want) << 32 | bit
    }

    /// As [`admits_at_once`](Self::admits_at_once) for the whole tag, which is the cheapest.
    #[inline(always)]
    pub fn admits_as_seen(&self, pin: &Pin, seen: Seen) -> bool {
        self.0.load(Acquire) & pin.whole() == seen.0 | pin.bit()
    }

    /// As [`admits_at_once`](Self::admits_at_once) for the whole tag, which is the number of the thread
    /// ([`Pin::thread`]).
    #[inline(always)]
    pub fn admits_owner(&self, pin: &Pin) -> bool {
        self.0.load(Acquire) & pin.whole() == pin.own()
    }

    /// Takes the object away: no thread enters from now on. `None` if another thread did so before.
    pub fn kill(&self) -> Option<Touched> {
        let old = self.0.fetch_or(DEAD, AcqRel);
        (old & DEAD == 0).then(|| Touched::new(old))
    }

    /// Makes a dead object live, untouched. Only after the grace period of its kill, and only by the thread that
    /// killed it; data for other threads must be written before.
    pub fn revive(&self, tag: u32) {
        self.0.store(word(tag), Release);
    }

    /// As [`revive`](Self::revive), for an object that is taken away on the data path: entering costs a fence
    /// each time, and killing it needs no process-wide barrier unless a thread is inside at that moment.
    pub fn revive_fenced(&self, tag: u32) {
        self.0.store(FENCED | word(tag), Release);
    }

    /// Changes the tag of a living or dead object in one step. `change` gets the current tag, may be called
    /// again, and returns `None` to leave it. Returns the replaced tag, and the threads to wait for if the change
    /// took something away.
    pub fn update(&self, mut change: impl FnMut(u32) -> Option<u32>) -> Option<(u32, Touched)> {
        let mut word = self.0.load(Relaxed);
        loop {
            let tag = tag(word);
            let new = word & !(u64::from(TAG) << 32) | u64::from(change(tag)? & TAG) << 32;
            match self.0.compare_exchange_weak(word, new, AcqRel, Relaxed) {
                Ok(_) => return Some((tag, Touched::new(word))),
                Err(now) => word = now,
            }
        }
    }

    /// Records that a thread with these bits has entered.
    #[cfg(all(test, verbs_loom))]
    pub(super) fn mark(&self, threads: u32) {
        self.0.fetch_or(u64::from(threads), AcqRel);
    }

    /// The tag, live or dead; acquire.
    #[inline(always)]
    pub fn tag(&self) -> u32 {
        tag(self.0.load(Acquire))
    }

    /// Whether the object was killed and not revived.
    pub fn is_dead(&self) -> bool {
        self.0.load(Acquire) & DEAD != 0
    }

    #[cold]
    fn admits_slow(&self, bit: u64, mask: u32, want: u32) -> bool {
        let fits = |word: u64| word & DEAD == 0 && tag(word) & mask == want;
        let mut word = self.0.load(Acquire);
        if fits(word) && word & bit == 0 {
            word = self.0.fetch_or(bit, AcqRel);
        }
        if fits(word) && word & FENCED != 0 {
            // The killer fences between its RMW and its read of this pin; with this fence between the pin and
            // this load, one of the two sees the other.
            barrier::full_fence();
            word = self.0.load(Acquire);
        }
        fits(word)
    }
}

impl Touched {
    /// No thread except the caller: a grace period that is over at once.
    pub const NOBODY: Self = Self {
        threads: 0,
        fenced: false,
    };

    fn new(word: u64) -> Self {
        Self {
            threads: (word & THREADS) as u32,
            fenced: word & FENCED != 0,
        }
    }

    /// The threads to wait for when two objects were taken away together.
    pub fn and(self, other: Self) -> Self {
        // An empty set has not fenced either.
        if self.threads == 0 {
            return other;
        }
        if other.threads == 0 {
            return self;
        }
        Self {
            threads: self.threads | other.threads,
            fenced: self.fenced && other.fenced,
        }
    }
}

/// A living object's word that no thread has touched.
pub(super) fn word(tag: u32) -> u64 {
    u64::from(tag & TAG) << 32
}

fn tag(word: u64) -> u32 {
    (word >> 32) as u32 & TAG
}

#[cfg(test)]
#[cfg(not(verbs_loom))]
mod tests {
    use super::*;
    use crate::mem::pin;

    #[test]
    fn admits_the_tag_it_has_until_killed() {
        let word = TouchWord::new(0x105);
        let pin = pin();
        assert!(!word.admits(&pin, TouchWord::TAG, 0x106));
        assert!(word.admits(&pin, TouchWord::TAG, 0x105), "first touch");
        assert!(word.admits(&pin, TouchWord::TAG, 0x105), "later touch");
        assert!(word.admits(&pin, 1, 1), "flags under a mask");
        let touched = word.kill().expect("it lives");
        assert_eq!(u64::from(touched.threads), pin.bit());
        assert!(word.kill().is_none(), "one killer");
        assert!(!word.admits(&pin, TouchWord::TAG, 0x105));
        word.revive_fenced(0x107);
        assert!(word.admits(&pin, TouchWord::TAG, 0x107));
        assert!(word.kill().expect("it lives again").fenced);
    }

    /// Goal: a pair is fenced only if both are, because no barrier is issued for it; an untouched object does not
    /// matter. Method: every pair of objects that a thread has touched and has not.
    #[test]
    fn two_that_are_taken_away_together_are_fenced_if_both_are() {
        let touched = |threads, fenced| Touched { threads, fenced };
        for (one, other) in [(false, false), (false, true), (true, false), (true, true)] {
            let both = touched(1, one).and(touched(2, other));
            assert_eq!(both, touched(3, one && other), "{one} {other}");
            let nobody = touched(0, other);
            assert_eq!(touched(1, one).and(nobody), touched(1, one));
            assert_eq!(nobody.and(touched(1, one)), touched(1, one));
            assert_eq!(touched(0, one).and(nobody).threads, 0);
        }
    }

    #[test]
    fn update_changes_the_tag_only() {
        let word = TouchWord::new(0b11);
        let pin = pin();
        assert!(word.admits(&pin, 1, 1));
        let (old, touched) = word.update(|tag| Some(tag & !1)).expect("not refused");
        assert_eq!((old, u64::from(touched.threads)), (0b11, pin.bit()));
        assert!(!word.admits(&pin, 1, 1));
        assert!(word.admits(&pin, 2, 2));
        assert!(word.update(|_| None).is_none());
    }
}
