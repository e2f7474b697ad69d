//! Slots: what is known of operations that are under way.
//!
//! The id of a work request on a send queue is `generation:31 | slot:32`. A slot that is released gets the next
//! generation, so that a late completion misses (K13).

use std::task::Waker;

use verbs_core::task::OwnWaker;
use verbs_core::{PostError, SendOp, Sge, WcStatus};

use crate::error::Operation;

/// No slot, no buffer, no connection.
pub(crate) const NONE: u32 = u32::MAX;

const GENERATIONS: u32 = 0x7fff_ffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    /// For room in the send queue.
    Waiting,
    Posted,
    /// Posted, and its future is gone or does not want to know.
    Orphan,
    /// Completed; for its future to read.
    Done,
    /// Waits for a message, or for a buffer of the pool.
    Receiving,
    /// Has it; for its future to take.
    Received,
}

/// Why an operation failed, as the lane knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Status {
        status: WcStatus,
        operation: Operation,
        vendor_err: u32,
    },
    Post(PostError),
    /// The connection was over before.
    Over,
    /// The device is gone.
    Removed,
}

impl Fault {
    /// Whether something else is the cause.
    pub(crate) fn is_consequence(&self) -> bool {
        match self {
            Self::Status { status, .. } => *status == WcStatus::WrFlushErr,
            Self::Over => true,
            Self::Post(_) | Self::Removed => false,
        }
    }
}

/// What an operation does, for a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct What {
    pub(crate) op: SendOp,
    pub(crate) operation: Operation,
    /// The memory of this side; atomics get theirs when they are posted.
    pub(crate) sge: Option<Sge>,
    /// The buffer of that memory.
    pub(crate) buf: u32,
}

pub(crate) struct Slot {
    generation: u32,
    pub(crate) state: State,
    pub(crate) conn: u32,
    /// The buffer that the lane has of it, and the bytes in use.
    pub(crate) buf: u32,
    pub(crate) len: u32,
    /// Where an atomic's result goes.
    pub(crate) word: u32,
    pub(crate) value: u64,
    pub(crate) operation: Operation,
    pub(crate) fault: Option<Fault>,
    /// Its future ends when it is posted.
    pub(crate) detached: bool,
    /// Of one that waits for room.
    pub(crate) what: Option<What>,
    waker: Option<Waker>,
    next: u32,
}

/// All slots, with a free list.
pub(crate) struct Slots {
    all: Vec<Slot>,
    free: u32,
    /// How many have a waker.
    parked: u32,
}

impl Slots {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            all: Vec::with_capacity(room),
            free: NONE,
            parked: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn get(&mut self, slot: u32) -> &mut Slot {
        &mut self.all[slot as usize]
    }

    /// Whether a task sleeps.
    pub(crate) fn is_awaited(&self) -> bool {
        self.parked != 0
    }

    /// The slot that is taken next, with the id that it will have.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> (u32, u64) {
        if self.free == NONE {
            self.grow();
        }
        (self.free, self.id(self.free))
    }

    #[inline(always)]
    pub(crate) fn id(&self, slot: u32) -> u64 {
        let generation = self.all[slot as usize].generation;
        u64::from(generation) << 32 | u64::from(slot)
    }

    /// The slot that a completion is about, unless it is late.
    #[inline(always)]
    pub(crate) fn of_id(&self, id: u64) -> Option<u32> {
        let slot = id as u32;
        let known = self.all.get(slot as usize)?;
        (u64::from(known.generation) == id >> 32).then_some(slot)
    }

    /// The operation of the slot that would be taken next has completed at once.
    #[inline(always)]
    pub(crate) fn skip(&mut self, slot: u32) {
        let slot = &mut self.all[slot as usize];
        slot.generation = (slot.generation + 1) & GENERATIONS;
    }

    pub(crate) fn take(&mut self, state: State, conn: u32) -> u32 {
        let (slot, _) = self.peek();
        let taken = &mut self.all[slot as usize];
        self.free = taken.next;
        (taken.state, taken.conn) = (state, conn);
        (taken.buf, taken.word, taken.fault) = (NONE, NONE, None);
        (taken.detached, taken.what) = (false, None);
        slot
    }

    /// Gives a slot back. The waker is the caller's to drop, with no lock held.
    pub(crate) fn release(&mut self, slot: u32) -> Option<Waker> {
        let free = std::mem::replace(&mut self.free, slot);
        self.skip(slot);
        let released = &mut self.all[slot as usize];
        (released.state, released.next) = (State::Free, free);
        self.take_waker(slot)
    }

    #[inline]
    pub(crate) fn take_waker(&mut self, slot: u32) -> Option<Waker> {
        let waker = self.all[slot as usize].waker.take();
        self.parked -= u32::from(waker.is_some());
        waker
    }

    /// Leaves a waker; the one before is dropped with `waker`, after the lock.
    pub(crate) fn leave_waker(&mut self, slot: u32, waker: &mut OwnWaker) {
        let place = &mut self.all[slot as usize].waker;
        self.parked += u32::from(place.is_none());
        waker.replace(place);
    }

    /// Every slot that is in use.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = u32> + use<> {
        let used: Vec<u32> = (0..self.all.len() as u32)
            .filter(|&slot| self.all[slot as usize].state != State::Free)
            .collect();
        used.into_iter()
    }

    #[cold]
    fn grow(&mut self) {
        self.free = self.all.len() as u32;
        self.all.push(Slot {
            generation: 0,
            state: State::Free,
            conn: NONE,
            buf: NONE,
            len: 0,
            word: NONE,
            value: 0,
            operation: Operation::Send,
            fault: None,
            detached: false,
            what: None,
            waker: None,
            next: NONE,
        });
    }
}
