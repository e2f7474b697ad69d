//! The header of every object: its users, and whether it may still be used.
//!
//! One word decides. Its parts:
//!
//! ```text
//! 0..32   children    objects that were created from this one and are not destroyed yet
//! 32..56  requests    pending requests on it
//! 56..62  handlers    handlers of it that are running now
//! 62      WHEN_IDLE   a destroy waits for the last child
//! 63      CLOSED      a destroy was accepted: the object is unusable (K11)
//! ```
//!
//! *What each transition grants.* The compare-exchange that sets CLOSED is check and close in one
//! (K10): it succeeds only while there are no children, and nothing enters afterwards. The caller that
//! brings requests and handlers to zero under CLOSED continues the destroy, exactly one caller.
//!
//! *The race that looks bad*: a destroy that must wait parks itself after it closed the header, and
//! the last user may leave in between. The closer therefore counts as a user until it has parked.
//!
//! *What loom does not show*: overflow of the fields. 2^32 children, 2^24 requests and 63
//! handlers are bounded elsewhere (table sizes, the in-flight limit, handlers being serialised).

use crate::object::ObjectKind;
use crate::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

const CLOSED: u64 = 1 << 63;
const WHEN_IDLE: u64 = 1 << 62;
const CHILD: u64 = 1;
const CHILDREN: u64 = (1 << 32) - 1;
const USERS: u64 = (WHEN_IDLE - 1) & !CHILDREN;

/// The children and users of an object that could not be destroyed (K10).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// Child objects, exact at the moment of the decision.
    pub total: u32,
    /// Child objects by kind: a snapshot, each count stops at 65,535.
    kinds: [u16; ObjectKind::COUNT],
}

impl Busy {
    /// How many children of that kind there were.
    pub fn of(&self, kind: ObjectKind) -> u32 {
        u32::from(self.kinds[kind as usize])
    }

    /// The kinds that there were, with their counts.
    pub fn kinds(&self) -> impl Iterator<Item = (ObjectKind, u32)> + '_ {
        ObjectKind::ALL
            .into_iter()
            .map(|kind| (kind, self.of(kind)))
            .filter(|&(_, n)| n != 0)
    }
}

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "held by {}", self.total)?;
        for (i, (kind, n)) in self.kinds().enumerate() {
            write!(f, "{}{n} {kind}", if i == 0 { ": " } else { ", " })?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Busy({self})")
    }
}

/// A user that is not a child.
#[derive(Clone, Copy, Debug)]
pub(crate) enum User {
    /// A pending request on the object.
    Request,
    /// A running handler of the object.
    Handler,
}

impl User {
    const fn unit(self) -> u64 {
        match self {
            Self::Request => 1 << 32,
            Self::Handler => 1 << 56,
        }
    }
}

/// What a destroy does about children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfBusy {
    /// It is refused.
    Refuse,
    /// It waits until the last one has gone (K12).
    Wait,
}

/// What came of an attempt to close.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// Closed, and without users: go on with the destroy.
    Drained,
    /// Closed, but used. The caller counts as a user: park the destroy, then leave.
    Draining,
    /// Waits for the last child. The caller counts as a user: park the destroy, then leave.
    WhenIdle,
    /// Children hold it; nothing changed.
    Busy(Busy),
    /// It was closed before.
    Already,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Header {
    word: AtomicU64,
    kinds: [AtomicU32; ObjectKind::COUNT],
}

impl Default for Header {
    fn default() -> Self {
        Self {
            word: AtomicU64::new(0),
            kinds: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl Header {
    /// Counts a child while the caller holds the handle, which proves that it is not closed.
    #[inline]
    pub(crate) fn adopt(&self, kind: ObjectKind) {
        self.kinds[kind as usize].fetch_add(1, Relaxed);
        // Release: a close that reads this total reads a kind count that is not behind it.
        self.word.fetch_add(CHILD, Release);
    }

    /// Counts a child if the object is not closed.
    pub(crate) fn try_adopt(&self, kind: ObjectKind) -> bool {
        self.kinds[kind as usize].fetch_add(1, Relaxed);
        let counted = self.try_add(CHILD);
        if !counted {
            self.kinds[kind as usize].fetch_sub(1, Relaxed);
        }
        counted
    }

    /// A child is gone. `true`: this was the last one, a destroy waited for it, and nothing else uses the
    /// object, and the caller continues that destroy.
    #[must_use = "true obliges the caller to continue the parked destroy"]
    pub(crate) fn orphan(&self, kind: ObjectKind) -> bool {
        let before = self.word.fetch_sub(CHILD, AcqRel);
        self.kinds[kind as usize].fetch_sub(1, Relaxed);
        before & CHILDREN == 1 && before & WHEN_IDLE != 0 && self.close_idle()
    }

    /// Counts a user while the caller proves that the object is not closed.
    #[inline]
    pub(crate) fn enter(&self, user: User) {
        self.word.fetch_add(user.unit(), Relaxed);
    }

    /// Counts a user if the object is not closed.
    pub(crate) fn try_enter(&self, user: User) -> bool {
        self.try_add(user.unit())
    }

    /// A user is done. `true`: the object is closed, this was the last user, and the caller
    /// continues the parked destroy.
    #[inline]
    #[must_use = "true obliges the caller to continue the parked destroy"]
    pub(crate) fn leave(&self, user: User) -> bool {
        // AcqRel: the last one to leave sees everything that the others did.
        let before = self.word.fetch_sub(user.unit(), AcqRel);
        before & CLOSED != 0 && (before - user.unit()) & USERS == 0
    }

    /// Check and close in one step (K10).
    pub(crate) fn close(&self, if_busy: IfBusy) -> Close {
        let mut word = self.word.load(Acquire);
        loop {
            let used = User::Request.unit();
            let (next, result) = match word {
                w if w & (CLOSED | WHEN_IDLE) != 0 => return Close::Already,
                w if w & CHILDREN != 0 && if_busy == IfBusy::Refuse => {
                    return Close::Busy(self.busy(w));
                }
                w if w & CHILDREN != 0 => ((w | WHEN_IDLE) + used, Close::WhenIdle),
                w if w & USERS == 0 => (w | CLOSED, Close::Drained),
                w => ((w | CLOSED) + used, Close::Draining),
            };
            match self.word.compare_exchange_weak(word, next, AcqRel, Acquire) {
                Ok(_) => return result,
                Err(now) => word = now,
            }
        }
    }

    /// Whether a destroy was accepted, or waits for the last child.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.word.load(Acquire) & (CLOSED | WHEN_IDLE) != 0
    }

    /// Its children and users now, if it has any.
    pub(crate) fn busy_now(&self) -> Option<Busy> {
        let word = self.word.load(Acquire);
        (word & CHILDREN != 0).then(|| self.busy(word))
    }

    /// Child objects now.
    pub(crate) fn children(&self) -> u32 {
        (self.word.load(Acquire) & CHILDREN) as u32
    }

    /// The last child of a destroy that waits has gone: close. `true`: nothing uses the object.
    fn close_idle(&self) -> bool {
        let mut word = self.word.load(Acquire);
        loop {
            if word & CLOSED != 0 || word & CHILDREN != 0 {
                return false;
            }
            match self
                .word
                .compare_exchange_weak(word, word | CLOSED, AcqRel, Acquire)
            {
                Ok(_) => return word & USERS == 0,
                Err(now) => word = now,
            }
        }
    }

    fn try_add(&self, unit: u64) -> bool {
        let mut word = self.word.load(Relaxed);
        loop {
            if word & CLOSED != 0 {
                return false;
            }
            match self
                .word
                .compare_exchange_weak(word, word + unit, AcqRel, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    fn busy(&self, word: u64) -> Busy {
        let count = |kind: &AtomicU32| u16::try_from(kind.load(Relaxed)).unwrap_or(u16::MAX);
        Busy {
            total: (word & CHILDREN) as u32,
            kinds: self.kinds.each_ref().map(count),
        }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn k10_busy_names_kinds_and_changes_nothing() {
        let header = Header::default();
        header.adopt(ObjectKind::Qp);
        header.adopt(ObjectKind::Qp);
        header.adopt(ObjectKind::Mr);
        let Close::Busy(busy) = header.close(IfBusy::Refuse) else {
            panic!("children hold it")
        };
        assert_eq!(
            (busy.total, busy.of(ObjectKind::Qp), busy.of(ObjectKind::Mr)),
            (3, 2, 1)
        );
        assert_eq!(busy.to_string(), "held by 3: 2 QP, 1 MR");
        assert!(!header.is_closing());
    }

    #[test]
    fn k11_users_delay_and_the_last_one_continues() {
        let header = Header::default();
        header.enter(User::Request);
        header.enter(User::Handler);
        assert_eq!(header.close(IfBusy::Refuse), Close::Draining);
        assert!(
            !header.try_enter(User::Request),
            "closed means unusable at once"
        );
        assert!(!header.leave(User::Request));
        assert!(
            !header.leave(User::Handler),
            "the closer has not parked its destroy yet"
        );
        assert!(header.leave(User::Request));
        assert_eq!(header.close(IfBusy::Refuse), Close::Already);
    }

    #[test]
    fn k12_when_idle_waits_for_the_last_child() {
        let header = Header::default();
        header.adopt(ObjectKind::Mr);
        header.adopt(ObjectKind::Ah);
        assert_eq!(header.close(IfBusy::Wait), Close::WhenIdle);
        assert!(!header.leave(User::Request), "parked");
        assert!(!header.orphan(ObjectKind::Mr));
        assert!(header.orphan(ObjectKind::Ah));
    }
}

#[cfg(all(test, verbs_loom))]
mod loom_tests {
    //! Each was tried with a defect put in: a `leave` without the zero test continues twice; a closer
    //! that does not count itself continues before it has parked; an `adopt` with Relaxed shows Busy
    //! with a total of 1 and no kinds.

    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::slot::tracked::Tracked;

    #[test]
    fn loom_k10_enter_against_close() {
        loom::model(|| {
            let header = Arc::new(Header::default());
            let other = Arc::clone(&header);
            let entering = thread::spawn(move || other.try_enter(User::Request));
            let close = header.close(IfBusy::Refuse);
            let entered = entering.join().unwrap();
            match close {
                Close::Drained => assert!(!entered),
                Close::Draining => assert!(entered),
                other => panic!("{other:?}"),
            }
        });
    }

    #[test]
    fn loom_k10_create_child_against_destroy() {
        loom::model(|| {
            let header = Arc::new(Header::default());
            let other = Arc::clone(&header);
            header.adopt(ObjectKind::Cq);
            let creating = thread::spawn(move || other.adopt(ObjectKind::Qp));
            match header.close(IfBusy::Refuse) {
                Close::Busy(busy) => {
                    assert_eq!(busy.of(ObjectKind::Cq), 1, "{busy:?}");
                    assert!(busy.of(ObjectKind::Qp) + 1 >= busy.total, "{busy:?}");
                }
                other => panic!("a child was alive at every moment: {other:?}"),
            }
            creating.join().unwrap();
        });
    }

    /// The race of the only child, as of the first window that is bound to a region: either it is counted and the
    /// destroy is Busy, or the destroy wins and there is no child.
    #[test]
    fn loom_k10_the_only_child_against_destroy() {
        loom::model(|| {
            let header = Arc::new(Header::default());
            let other = Arc::clone(&header);
            let binding = thread::spawn(move || other.try_adopt(ObjectKind::Mw));
            let closed = match header.close(IfBusy::Refuse) {
                Close::Drained => true,
                Close::Busy(busy) => {
                    assert_eq!(busy.total, 1, "{busy:?}");
                    false
                }
                other => panic!("{other:?}"),
            };
            let counted = binding.join().unwrap();
            assert_ne!(counted, closed, "one of the two");
            assert_eq!(header.children(), u32::from(counted));
            if counted {
                assert!(!header.orphan(ObjectKind::Mw), "nobody waits");
                assert_eq!(header.close(IfBusy::Refuse), Close::Drained);
            }
        });
    }

    #[test]
    fn loom_k11_exactly_one_continues_the_destroy() {
        loom::model(|| {
            let header = Arc::new(Header::default());
            header.enter(User::Request);
            header.enter(User::Handler);
            let users = [User::Request, User::Handler].map(|user| {
                let header = Arc::clone(&header);
                thread::spawn(move || header.leave(user))
            });
            let mine = match header.close(IfBusy::Refuse) {
                Close::Drained => true,
                Close::Draining => header.leave(User::Request),
                other => panic!("{other:?}"),
            };
            let theirs = users.into_iter().map(|t| t.join().unwrap());
            let continued = theirs.filter(|&last| last).count() + usize::from(mine);
            assert_eq!(continued, 1);
            assert_eq!(header.close(IfBusy::Refuse), Close::Already);
        });
    }

    /// Whatever the users and the children of an object did last comes before the destroy that goes on when they are
    /// done, whichever thread continues it.
    fn all_before_the_destroy(
        begin: fn(&Header),
        ends: [fn(&Header) -> bool; 2],
        close: fn(&Header) -> bool,
    ) {
        loom::model(move || {
            let header = Arc::new(Header::default());
            begin(&header);
            let done = Arc::new([Tracked::new(), Tracked::new()]);
            let both = |done: &[Tracked; 2]| done.iter().for_each(Tracked::write);
            let threads = [0, 1].map(|n| {
                let (header, done) = (Arc::clone(&header), Arc::clone(&done));
                thread::spawn(move || {
                    done[n].write();
                    if ends[n](&header) {
                        both(&done);
                    }
                })
            });
            if close(&header) {
                both(&done);
            }
            threads.map(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn loom_k11_users_come_before_the_destroy() {
        all_before_the_destroy(
            |header| {
                header.enter(User::Request);
                header.enter(User::Handler);
            },
            [
                |header| header.leave(User::Request),
                |header| header.leave(User::Handler),
            ],
            |header| match header.close(IfBusy::Refuse) {
                Close::Drained => true,
                Close::Draining => header.leave(User::Request),
                other => panic!("{other:?}"),
            },
        );
    }

    #[test]
    fn loom_k12_children_come_before_the_destroy() {
        all_before_the_destroy(
            |header| {
                header.adopt(ObjectKind::Qp);
                header.adopt(ObjectKind::Mr);
            },
            [
                |header| header.orphan(ObjectKind::Qp),
                |header| header.orphan(ObjectKind::Mr),
            ],
            |header| match header.close(IfBusy::Wait) {
                Close::Drained => true,
                Close::WhenIdle | Close::Draining => header.leave(User::Request),
                other => panic!("{other:?}"),
            },
        );
    }

    #[test]
    fn loom_k12_when_idle_against_the_last_children() {
        loom::model(|| {
            let header = Arc::new(Header::default());
            header.adopt(ObjectKind::Qp);
            header.adopt(ObjectKind::Mr);
            let children = [ObjectKind::Qp, ObjectKind::Mr].map(|kind| {
                let header = Arc::clone(&header);
                thread::spawn(move || header.orphan(kind))
            });
            let mine = match header.close(IfBusy::Wait) {
                Close::Drained => true,
                Close::WhenIdle | Close::Draining => header.leave(User::Request),
                other => panic!("{other:?}"),
            };
            let theirs = children
                .into_iter()
                .map(|t| t.join().unwrap())
                .filter(|&last| last)
                .count();
            assert_eq!(theirs + usize::from(mine), 1);
        });
    }
}
