//! One end of a connection, as its lane has it.

use std::collections::VecDeque;
use std::task::Waker;

use verbs_core::sync::Arc;
use verbs_core::{LKey, Memory, RecvQueue, SendQueue, Sge};

use crate::lane::slot::Fault;

/// One end of a connection. When the connection is gone the end, with its buffers, waits for another.
pub(crate) struct End {
    /// Tells the connections apart that have this end one after the other.
    pub(crate) serial: u32,
    /// Until the connection is made its receives are posted on the queue pair by the attempt to make it.
    pub(crate) queues: Option<(SendQueue, RecvQueue)>,
    /// Work requests in the send queue, and how many it holds.
    pub(crate) posted: u32,
    pub(crate) depth: u32,
    /// Slots that wait for room, in order.
    pub(crate) waiting: VecDeque<u32>,
    /// Receives in the receive queue.
    pub(crate) recv_posted: u32,
    /// Messages, as buffer and length, that no task has asked for yet.
    pub(crate) inbox: VecDeque<(u32, u32)>,
    /// Slots that wait for messages, in order.
    pub(crate) receivers: VecDeque<u32>,
    /// Buffers that are to be posted as receives.
    pub(crate) home: Vec<u32>,
    /// How many of those are posted together.
    pub(crate) half: usize,
    /// Where results of atomics go.
    pub(crate) words: Words,
    /// The first failure that is not a consequence of another, or the first at all.
    pub(crate) fault: Option<Fault>,
    pub(crate) is_over: bool,
    /// Its handles are gone.
    pub(crate) is_retired: bool,
    /// Wakers of tasks that wait until nothing is posted.
    pub(crate) drainers: Vec<Waker>,
}

impl End {
    pub(crate) fn new(depth: u32, window: u32, words: Words) -> Self {
        let window = window as usize;
        Self {
            serial: 0,
            queues: None,
            posted: 0,
            depth,
            waiting: VecDeque::new(),
            recv_posted: 0,
            inbox: VecDeque::with_capacity(2 * window),
            receivers: VecDeque::new(),
            home: Vec::with_capacity(2 * window),
            half: (window / 2).max(1),
            words,
            fault: None,
            is_over: false,
            is_retired: false,
            drainers: Vec::new(),
        }
    }

    /// Takes over why it is over.
    pub(crate) fn fail(&mut self, fault: Fault) {
        self.is_over = true;
        let known = self.fault.get_or_insert(fault);
        if known.is_consequence() && !fault.is_consequence() {
            *known = fault;
        }
    }

    /// Whether an operation may be posted before any other, while it has its queues.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        !self.is_over && self.posted < self.depth && self.waiting.is_empty()
    }

    /// Whether a task that waits for messages depends on completions of sends: buffers come home with them, and few
    /// receives are left. Without any the peer's messages find the receiver not ready, and no event wakes the task.
    pub(crate) fn needs_its_sends(&self) -> bool {
        self.posted > 0 && self.recv_posted as usize <= self.half
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.posted == 0 && self.waiting.is_empty()
    }

    /// Makes it ready for another connection.
    pub(crate) fn reset(&mut self) {
        self.serial = self.serial.wrapping_add(1);
        (self.fault, self.is_over, self.is_retired) = (None, false, false);
    }

    /// Whether another connection may have it: a queue pair that could not be destroyed keeps its end.
    pub(crate) fn is_vacant(&self) -> bool {
        self.is_retired && self.posted == 0 && self.recv_posted == 0
    }
}

/// Words of registered memory that take the results of atomics.
pub(crate) struct Words {
    memory: Arc<Memory>,
    /// Where the words begin in the memory, and as work requests reach it.
    offset: usize,
    addr: u64,
    lkey: LKey,
    free: Vec<u32>,
}

impl Words {
    /// Bytes of one.
    pub(crate) const SIZE: usize = 8;

    /// `count` words at the end of the piece that begins there.
    pub(crate) fn new(memory: Arc<Memory>, offset: usize, first: Sge, count: u32) -> Self {
        Self {
            memory,
            offset,
            addr: first.addr,
            lkey: first.lkey,
            free: (0..count).rev().collect(),
        }
    }

    /// One word; there are as many as work requests in the queue.
    pub(crate) fn take(&mut self) -> (u32, Sge) {
        let word = self.free.pop().expect("a word for each posted atomic");
        let sge = Sge {
            addr: self.addr + u64::from(word) * Self::SIZE as u64,
            len: Self::SIZE as u32,
            lkey: self.lkey,
        };
        (word, sge)
    }

    /// Gives a word back, with what is in it.
    pub(crate) fn give_back(&mut self, word: u32) -> u64 {
        self.free.push(word);
        let offset = self.offset + word as usize * Self::SIZE;
        self.memory.load_u64(offset).expect("an aligned word of it")
    }
}
