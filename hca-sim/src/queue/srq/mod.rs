//! Shared receive queues: receives that several queue pairs take from.
//!
//! The handle posts; it has one owner. Any thread that places a message on one of the queue pairs takes a receive
//! ([`crate::direct::message`]); [`ring`] describes how they agree.
//!
//! A sender that finds no receive waits until the RNR timer expires or the next post calls it. The call may be missed,
//! the timer not.

mod ring;

use std::fmt;
use std::ptr;

use verbs_core::srq::SrqCore;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Relaxed, Release, SeqCst},
};
use verbs_core::sync::{Arc, Mutex, OnceLock, Weak};
use verbs_core::{
    Attr, Error, EventType, PostError, Qpn, RawRecvQueue, Sge, SrqAttr, Srqn, WcStatus, Why,
};

use crate::queue::base::events::QpEvents;
use crate::queue::base::removed::Removed;
use crate::queue::cq::CqRing;
use crate::queue::srq::ring::{Ring, RingSegment};

pub(crate) use crate::queue::srq::ring::Seen;

/// The additional objects of a shared receive queue for extended reliable connections.
pub(crate) struct XrcSrq {
    pub(crate) number: Srqn,
    /// Its place in the device's table.
    pub(crate) slot: u32,
    /// The XRC domain.
    pub(crate) xrcd: u32,
    /// Where its receives complete.
    pub(crate) cq: Arc<CqRing>,
}

/// A receive that a message had taken when memory turned out to be gone. It completes in error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spoiled {
    /// The queue pair whose message it was.
    pub(crate) qpn: Qpn,
    pub(crate) wr_id: u64,
    /// The limit event is due.
    pub(crate) limit: bool,
    /// How the sender's work request ends.
    pub(crate) status: WcStatus,
}

/// The part of a shared receive queue that all its users share.
pub(crate) struct SharedReceives {
    ring: Ring,
    /// The protection domain that its receives are checked against.
    pub(crate) pd: u32,
    /// For a queue for extended reliable connections.
    pub(crate) xrc: Option<XrcSrq>,
    depth: AtomicU32,
    max_sge: u32,
    /// When fewer receives than this wait, the event is due; 0 for never.
    limit: AtomicU32,
    /// There are senders in `waiting`.
    wanted: AtomicBool,
    /// Senders that found no receive.
    waiting: Mutex<Vec<Weak<dyn QpEvents>>>,
    /// There are receives in `spoiled`.
    has_spoiled: AtomicBool,
    /// At most one of each queue pair: it is in error until that one has completed.
    spoiled: Mutex<Vec<Spoiled>>,
    removed: Removed,
    /// The object that its events concern; set before the handle is given out.
    core: OnceLock<Weak<SrqCore>>,
}

impl SharedReceives {
    /// A queue for `depth` receives of up to `max_sge` pieces.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(
        removed: Removed,
        pd: u32,
        xrc: Option<XrcSrq>,
        depth: u32,
        max_sge: u32,
    ) -> Result<Self, Error> {
        Ok(Self {
            ring: Ring::new(depth, max_sge)?,
            pd,
            xrc,
            depth: AtomicU32::new(depth),
            max_sge,
            limit: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
            waiting: Mutex::new(Vec::new()),
            has_spoiled: AtomicBool::new(false),
            spoiled: Mutex::new(Vec::new()),
            removed,
            core: OnceLock::new(),
        })
    }

    pub(crate) fn set_core(&self, core: &Arc<SrqCore>) {
        // The queue is new, so this has not been set before.
        let _ = self.core.set(Arc::downgrade(core));
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Relaxed)
    }

    /// Makes room for `depth` receives, from the next post on.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if more wait now, [`Error::NoMemory`].
    pub(crate) fn resize(&self, depth: u32) -> Result<(), Error> {
        if self.ring.waiting() > depth {
            let (attr, why) = (Attr::MaxSrqWr, Why::StillUsed);
            return Err(Error::Mismatch { attr, why });
        }
        self.ring.offer(depth)?;
        self.depth.store(depth, Relaxed);
        Ok(())
    }

    /// Sizes and limit; a limit whose event was raised is 0.
    pub(crate) fn attr(&self) -> SrqAttr {
        SrqAttr {
            max_wr: self.depth(),
            max_sge: self.max_sge,
            srq_limit: self.limit.load(Relaxed),
        }
    }

    /// The oldest receive, to be checked.
    pub(crate) fn look(&self) -> Option<Seen> {
        self.ring.look()
    }

    /// Whether what was read of that receive is valid.
    pub(crate) fn is_oldest(&self, seen: &Seen) -> bool {
        self.ring.is_oldest(seen)
    }

    /// Takes a receive. Returns whether the limit event is due then, or `None` if another thread has taken it first.
    pub(crate) fn take(&self, seen: &Seen) -> Option<bool> {
        self.ring.take(seen).then(|| self.limit_is_due())
    }

    /// Keeps a receive that is to complete in error.
    #[cold]
    pub(crate) fn spoil(&self, spoiled: Spoiled) {
        self.spoiled.lock().push(spoiled);
        self.has_spoiled.store(true, Release);
    }

    /// How the message of that queue pair ends whose receive is to complete in error, if there is one.
    #[inline]
    pub(crate) fn spoiled(&self, qpn: Qpn) -> Option<WcStatus> {
        if !self.has_spoiled.load(Relaxed) {
            return None;
        }
        let spoiled = self.spoiled.lock();
        let own = spoiled.iter().find(|spoiled| spoiled.qpn == qpn);
        own.map(|spoiled| spoiled.status)
    }

    /// Takes that receive.
    #[cold]
    pub(crate) fn take_spoiled(&self, qpn: Qpn) -> Option<Spoiled> {
        let mut spoiled = self.spoiled.lock();
        let at = spoiled.iter().position(|spoiled| spoiled.qpn == qpn)?;
        let taken = spoiled.swap_remove(at);
        self.has_spoiled.store(!spoiled.is_empty(), Release);
        Some(taken)
    }

    /// Arms the limit event. Returns whether it is due at once, because too few receives wait already.
    pub(crate) fn arm(&self, limit: u32) -> bool {
        self.limit.store(limit, SeqCst);
        self.limit_is_due()
    }

    /// The thread that takes the limit away raises its event. Arming and taking a receive are ordered by the total
    /// order of head and limit: one of the two sees the other.
    fn limit_is_due(&self) -> bool {
        let limit = self.limit.load(SeqCst);
        limit != 0
            && self.ring.waiting() < limit
            && self
                .limit
                .compare_exchange(limit, 0, AcqRel, Relaxed)
                .is_ok()
    }

    /// Raises the limit event. Called outside pins and locks.
    pub(crate) fn raise_limit(&self) {
        if let Some(core) = self.core.get().and_then(Weak::upgrade) {
            EventType::SrqLimitReached.raise_for(&core);
        }
    }

    /// Asks the producer to call that sender when it posts.
    pub(crate) fn want(&self, sender: Weak<dyn QpEvents>) {
        let mut waiting = self.waiting.lock();
        let is_sender = |known: &Weak<_>| ptr::addr_eq(known.as_ptr(), sender.as_ptr());
        if !waiting.iter().any(is_sender) {
            waiting.push(sender);
        }
        self.wanted.store(true, Release);
    }

    #[cold]
    fn call_waiting(&self) {
        let waiting = {
            let mut waiting = self.waiting.lock();
            self.wanted.store(false, Relaxed);
            std::mem::take(&mut *waiting)
        };
        for qp in waiting.iter().filter_map(Weak::upgrade) {
            qp.kick();
        }
    }
}

impl fmt::Debug for SharedReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceives")
            .field("attr", &self.attr())
            .field("waiting", &self.ring.waiting())
            .finish_non_exhaustive()
    }
}

/// The producer's end.
#[derive(Debug)]
pub(crate) struct SharedPoster {
    shared: Arc<SharedReceives>,
    segment: Arc<RingSegment>,
    tail: u32,
    /// The depth when the segment began.
    depth: u32,
    /// Entries that are known to be free.
    room: u32,
}

impl SharedPoster {
    /// The one producer of a new queue.
    pub(crate) fn new(shared: Arc<SharedReceives>) -> Self {
        let depth = shared.depth();
        Self {
            segment: Arc::clone(shared.ring.first()),
            shared,
            tail: 0,
            depth,
            room: depth,
        }
    }

    /// Changes to the size that a resize has offered.
    #[cold]
    fn change_size(&mut self) {
        let accepted = self.shared.ring.accept(&mut self.segment, self.tail);
        if let Some(depth) = accepted {
            (self.depth, self.room) = (depth, 0);
        }
    }
}

impl RawRecvQueue for SharedPoster {
    fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.shared.ring.has_offer() {
            self.change_size();
        }
        let shared = &*self.shared;
        if sges.len() > shared.ring.max_sge() {
            return Err(PostError::TooManySges {
                got: u32::try_from(sges.len()).unwrap_or(u32::MAX),
                max: shared.max_sge,
            });
        }
        if shared.removed.is_set() {
            return Err(PostError::DeviceRemoved);
        }
        if self.room == 0 {
            let depth = self.depth;
            self.room = depth.saturating_sub(shared.ring.used(self.tail));
            if self.room == 0 {
                return Err(PostError::Full { depth });
            }
        }
        shared.ring.publish(&self.segment, self.tail, wr_id, sges);
        self.tail = self.tail.wrapping_add(1);
        self.room -= 1;
        if shared.wanted.load(Relaxed) {
            shared.call_waiting();
        }
        Ok(())
    }
}

/// The receive queue of a queue pair that takes its receives from a shared one.
#[derive(Debug)]
pub(crate) struct NoReceives;

impl RawRecvQueue for NoReceives {
    fn post(&mut self, _wr_id: u64, _sges: &[Sge]) -> Result<(), PostError> {
        Err(PostError::UsesSrq)
    }
}
