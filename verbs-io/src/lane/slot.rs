//! Slots: what is known of operations that are under way.
//!
//! The id of a work request on a send queue is `generation:31 | slot:32`. A slot that is released gets the next
//! generation, so that a late completion misses (K13).

use std::task::Waker;

use verbs_core::task::OwnWaker;
use verbs_core::{PostError, WcStatus};

use super::request::What;
use crate::error::Operation;

/// No slot, no buffer, no connection.
pub(crate) const NONE: u32 = u32::MAX;
/// The id of no slot: it has the bit of receives' ids.
const NO_ID: u64 = u64::MAX;

const GENERATIONS: u32 = 0x7fff_ffff;
/// What ids of a slot differ by.
const GENERATION: u64 = 1 << 32;
/// All bits of ids.
const IDS: u64 = (GENERATIONS as u64) << 32 | u32::MAX as u64;

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

/// One of a lane's two completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// That of sends, READs, WRITEs and atomics, whose completions give buffers back to pools.
    Send = 0,
    /// That of receives.
    Recv = 1,
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
    /// The queue that the waker is for.
    side: Side,
    next: u32,
}

/// All slots, with a free list.
pub(crate) struct Slots {
    all: Vec<Slot>,
    /// The id that the first free slot will have. Until it is taken its generation is here, not in the slot.
    free: u64,
    /// How many have a waker, by the queue.
    parked: [u32; 2],
}

impl Slots {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            all: Vec::with_capacity(room),
            free: NO_ID,
            parked: [0; 2],
        }
    }

    #[inline(always)]
    pub(crate) fn get(&mut self, slot: u32) -> &mut Slot {
        &mut self.all[slot as usize]
    }

    /// Whether a task sleeps.
    pub(crate) fn is_awaited(&self) -> bool {
        self.parked != [0; 2]
    }

    /// Whether a task sleeps for that queue.
    pub(crate) fn is_awaited_at(&self, side: Side) -> bool {
        self.parked[side as usize] != 0
    }

    /// The id of the slot that is taken next.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> u64 {
        if self.free == NO_ID {
            self.grow();
        }
        self.free
    }

    #[inline(always)]
    pub(crate) fn id(&self, slot: u32) -> u64 {
        let generation = self.all[slot as usize].generation;
        u64::from(generation) << 32 | u64::from(slot)
    }

    /// The slot that a completion is about, unless it is late. One whose slot is free is late as well.
    #[inline(always)]
    pub(crate) fn of_id(&self, id: u64) -> Option<u32> {
        let slot = id as u32;
        let known = self.all.get(slot as usize)?;
        (u64::from(known.generation) == id >> 32).then_some(slot)
    }

    /// The operation of the slot that would be taken next has completed at once.
    #[inline(always)]
    pub(crate) fn skip(&mut self) {
        self.free = (self.free + GENERATION) & IDS;
    }

    pub(crate) fn take(&mut self, state: State, conn: u32) -> u32 {
        let id = self.peek();
        let slot = id as u32;
        let taken = &mut self.all[slot as usize];
        taken.generation = (id >> 32) as u32;
        (taken.state, taken.conn) = (state, conn);
        (taken.buf, taken.word, taken.fault) = (NONE, NONE, None);
        (taken.detached, taken.what) = (false, None);
        self.free = match taken.next {
            NONE => NO_ID,
            next => self.id(next),
        };
        slot
    }

    /// Gives a slot back. The waker is the caller's to drop, with no lock held.
    pub(crate) fn release(&mut self, slot: u32) -> Option<Waker> {
        let next = match self.free {
            NO_ID => NONE,
            id => {
                // It stands here no longer.
                self.all[id as u32 as usize].generation = (id >> 32) as u32;
                id as u32
            }
        };
        let released = &mut self.all[slot as usize];
        (released.state, released.next) = (State::Free, next);
        released.generation = (released.generation + 1) & GENERATIONS;
        self.free = self.id(slot);
        self.take_waker(slot)
    }

    #[inline]
    pub(crate) fn take_waker(&mut self, slot: u32) -> Option<Waker> {
        let slot = &mut self.all[slot as usize];
        let waker = slot.waker.take();
        self.parked[slot.side as usize] -= u32::from(waker.is_some());
        waker
    }

    /// Leaves a waker; the one before is dropped with `waker`, after the lock.
    pub(crate) fn leave_waker(&mut self, slot: u32, side: Side, waker: &mut OwnWaker) {
        let slot = &mut self.all[slot as usize];
        if slot.waker.is_some() {
            self.parked[slot.side as usize] -= 1;
        }
        slot.side = side;
        self.parked[side as usize] += 1;
        waker.replace(&mut slot.waker);
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
        self.free = self.all.len() as u64;
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
            side: Side::Send,
            next: NONE,
        });
    }
}
