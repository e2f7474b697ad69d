//! The lane: two completion queues, the ends of the connections that use them, slots, and buffers.
//!
//! One thread at a time is inside. It works for all: it takes what has completed, and posts what
//! waits for room. Wakers are not called here: they go to [`Lane::wake`], and the caller wakes them when it has left.
//!
//! The id of a receive is `1 | connection:31 | buffer:32`.

mod connections;
pub(crate) mod end;
mod reap;
pub(crate) mod slot;

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use verbs_core::sync::Arc;
use verbs_core::task::OwnWaker;
use verbs_core::{Cq, Dest, Payload, Recv, SendFlags, SendWr, Wc, WcStatus};

use crate::buf::{Buf, Lender, Loans};
use end::{End, Words};
use slot::{Fault, NONE, Slots, State, What};

/// The bit of receives' ids.
const RECV: u64 = 1 << 63;
/// Completions that are taken at a time.
const WCS: usize = 32;
/// Work requests that are posted with one doorbell.
const BATCH: usize = 16;
/// Operations that are ready at once, one after the other, before one lets other tasks run.
const STREAK: u32 = 256;

/// The sizes of a lane's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Bytes of a buffer.
    pub(crate) message: u32,
    /// Receives of a connection.
    pub(crate) window: u32,
    /// Work requests in a connection's send queue.
    pub(crate) depth: u32,
    /// Connections.
    pub(crate) connections: u32,
}

impl Sizes {
    /// Buffers of a connection: half a window may be on its way to be posted.
    pub(crate) fn buffers(self) -> u32 {
        self.window + self.window / 2
    }

    /// Bytes of the buffers of a connection, and of those with the results of atomics.
    pub(crate) fn bytes(self) -> (usize, usize) {
        let buffers = self.buffers() as usize * self.message as usize;
        let words = buffers.next_multiple_of(Words::SIZE);
        (words, words + self.depth as usize * Words::SIZE)
    }
}

pub(crate) struct Lane {
    send_cq: Cq,
    recv_cq: Cq,
    wcs: [Wc; WCS],
    pub(crate) ends: Vec<End>,
    pub(crate) slots: Slots,
    pub(crate) loans: Loans,
    /// Which end or pool a buffer belongs to, by index.
    home: Vec<u32>,
    pools: Vec<Pool>,
    /// Wakers to be called when the lane is left.
    pub(crate) wake: Vec<Waker>,
    streak: u32,
    /// Whether a handler reaps while all sleep.
    has_events: bool,
    /// Both queues were armed, and no event has come since.
    armed: bool,
    /// An end is over, and tasks have to hear of it.
    unsettled: bool,
    /// The device cannot be used any more.
    pub(crate) is_dead: bool,
    /// Completions that came for an operation that was over.
    pub(crate) late: u64,
    sizes: Sizes,
}

/// The bit of pools' numbers, which connections' do not have.
pub(crate) const POOL: u32 = 1 << 31;

/// Buffers of one size, for any connection.
struct Pool {
    size: u32,
    free: Vec<u32>,
    /// Slots that wait for one, in order.
    takers: VecDeque<u32>,
}

/// What became of an operation that was begun.
pub(crate) enum Started {
    /// It has completed, with the result of an atomic.
    Ready(u64),
    Refused(Fault),
    /// It is in that slot.
    UnderWay(u32),
}

impl Lane {
    pub(crate) fn new(send_cq: Cq, recv_cq: Cq, loans: Loans, sizes: Sizes, events: bool) -> Self {
        Self {
            send_cq,
            recv_cq,
            wcs: [Wc::default(); WCS],
            ends: Vec::new(),
            slots: Slots::new(64),
            loans,
            home: Vec::new(),
            pools: Vec::new(),
            wake: Vec::with_capacity(64),
            streak: 0,
            has_events: events,
            armed: false,
            unsettled: false,
            is_dead: false,
            late: 0,
            sizes,
        }
    }

    // --- operations ---

    /// Whether the operation that is about to begin is to let other tasks run first.
    #[inline(always)]
    pub(crate) fn yields(&mut self) -> bool {
        if self.streak < STREAK {
            self.streak += 1;
            return false;
        }
        self.streak = 0;
        true
    }

    /// Posts, and takes one completion: its own, if the device was as quick as that. Only otherwise a slot is
    /// written.
    #[inline(always)]
    pub(crate) fn start(&mut self, conn: u32, what: What, detached: bool) -> Started {
        let end = &mut self.ends[conn as usize];
        if end.is_over {
            return Started::Refused(Fault::Over);
        }
        if end.posted >= end.depth || !end.waiting.is_empty() {
            return self.start_later(conn, what, detached);
        }
        let Some((send, _)) = &mut end.queues else {
            return Started::Refused(Fault::Over);
        };
        let (slot, id) = self.slots.peek();
        let (word, sge) = match what.sge {
            Some(sge) => (NONE, sge),
            None => end.words.take(),
        };
        let wr = work_request(id, &what, sge);
        if let Err(error) = send.post(wr) {
            if word != NONE {
                end.words.give_back(word);
            }
            return Started::Refused(Fault::Post(error));
        }
        let n = self.send_cq.poll(&mut self.wcs[..1]).len();
        let wc = &self.wcs[0];
        if n == 1 && wc.wr_id == id && wc.status == WcStatus::Success {
            self.slots.skip(slot);
            let value = match word {
                NONE => 0,
                word => self.ends[conn as usize].words.give_back(word),
            };
            return Started::Ready(value);
        }
        self.under_way(conn, &what, word, n, detached)
    }

    #[inline(never)]
    fn under_way(
        &mut self,
        conn: u32,
        what: &What,
        word: u32,
        polled: usize,
        detached: bool,
    ) -> Started {
        let state = match detached {
            true => State::Orphan,
            false => State::Posted,
        };
        let slot = self.slots.take(state, conn);
        let taken = self.slots.get(slot);
        (taken.buf, taken.word, taken.operation) = (what.buf, word, what.operation);
        self.ends[conn as usize].posted += 1;
        if polled == 1 {
            self.dispatch(0);
            self.settle_if_needed();
        }
        Started::UnderWay(slot)
    }

    /// There is no room, or others wait for it.
    #[cold]
    #[inline(never)]
    fn start_later(&mut self, conn: u32, what: What, detached: bool) -> Started {
        self.reap();
        // A batch that was not submitted yet: what comes after it does not wait for that.
        self.submit(conn);
        let end = &self.ends[conn as usize];
        let has_room = end.posted < end.depth && end.waiting.is_empty();
        if end.is_over || has_room {
            return self.start(conn, what, detached);
        }
        match self.queue(conn, what, detached) {
            Some(slot) => Started::UnderWay(slot),
            None => Started::Refused(Fault::Over),
        }
    }

    /// Queues an operation, to be posted when there is room, or with others; `None` if the connection is over.
    pub(crate) fn queue(&mut self, conn: u32, what: What, detached: bool) -> Option<u32> {
        if self.ends[conn as usize].is_over {
            return None;
        }
        let slot = self.slots.take(State::Waiting, conn);
        let taken = self.slots.get(slot);
        (taken.buf, taken.operation) = (what.buf, what.operation);
        (taken.what, taken.detached) = (Some(what), detached);
        self.ends[conn as usize].waiting.push_back(slot);
        Some(slot)
    }

    /// Posts what was queued, and tells the tasks that are concerned what followed.
    pub(crate) fn submit(&mut self, conn: u32) {
        self.refill(conn);
        self.settle_if_needed();
        if !self.ends[conn as usize].waiting.is_empty() {
            self.arm_if_needed();
        }
    }

    /// Posts what waits for room, with one doorbell for several.
    #[inline(never)]
    fn refill(&mut self, conn: u32) {
        loop {
            let end = &mut self.ends[conn as usize];
            // Not one by one: when a quarter is free, or nothing is under way.
            let is_busy = end.posted > 0 && end.depth - end.posted < (end.depth / 4).max(1);
            let Some((send, _)) = &mut end.queues else {
                return;
            };
            if end.is_over || is_busy || end.waiting.is_empty() {
                return;
            }
            let room = ((end.depth - end.posted) as usize).min(BATCH);
            let mut wrs = arrayvec::ArrayVec::<SendWr<'_>, BATCH>::new();
            let mut posted = arrayvec::ArrayVec::<u32, BATCH>::new();
            for &slot in end.waiting.iter().take(room) {
                let id = self.slots.id(slot);
                let waiting = self.slots.get(slot);
                let what = waiting.what.expect("it waits for room");
                let (word, sge) = match what.sge {
                    Some(sge) => (NONE, sge),
                    None => end.words.take(),
                };
                waiting.word = word;
                wrs.push(work_request(id, &what, sge));
                posted.push(slot);
            }
            let outcome = send.post_batch(&wrs);
            let accepted = outcome.map_or_else(|error| error.posted, |()| posted.len());
            end.posted += accepted as u32;
            end.waiting.drain(..posted.len());
            for (n, &slot) in posted.iter().enumerate() {
                match outcome {
                    Err(error) if n >= accepted => self.refuse(slot, Fault::Post(error.error)),
                    _ => self.posted(slot),
                }
            }
        }
    }

    /// What waited for room was posted.
    fn posted(&mut self, slot: u32) {
        let waiting = self.slots.get(slot);
        if waiting.detached {
            waiting.state = State::Orphan;
            let waker = self.slots.take_waker(slot);
            self.wake.extend(waker);
        } else {
            waiting.state = State::Posted;
        }
    }

    /// What waited for room, or was posted, has failed without a completion.
    fn refuse(&mut self, slot: u32, fault: Fault) {
        let refused = self.slots.get(slot);
        let (word, conn) = (refused.word, refused.conn);
        (refused.state, refused.fault, refused.word) = (State::Done, Some(fault), NONE);
        if word != NONE {
            self.ends[conn as usize].words.give_back(word);
        }
        let waker = self.slots.take_waker(slot);
        self.wake.extend(waker);
    }

    /// The future of a slot sleeps.
    pub(crate) fn park(&mut self, slot: u32, waker: &mut OwnWaker) {
        self.streak = 0;
        self.slots.leave_waker(slot, waker);
        self.arm_if_needed();
    }

    /// The future of a slot is dropped. What comes out is dropped when the lane is left.
    pub(crate) fn forget(&mut self, slot: u32) -> Option<Waker> {
        let dropped = self.slots.get(slot);
        let (state, conn, buf, len) = (dropped.state, dropped.conn, dropped.buf, dropped.len);
        match state {
            State::Posted => {
                dropped.state = State::Orphan;
                return self.slots.take_waker(slot);
            }
            State::Waiting => {
                self.ends[conn as usize].waiting.retain(|&s| s != slot);
                self.give_back(buf);
            }
            State::Done => self.give_back(buf),
            State::Receiving => self.receivers(conn).retain(|&s| s != slot),
            State::Received if conn & POOL != 0 => self.give_back(buf),
            State::Received => self.put_back(conn, (buf, len)),
            State::Free | State::Orphan => return None,
        }
        self.slots.release(slot)
    }

    fn receivers(&mut self, conn: u32) -> &mut VecDeque<u32> {
        match conn {
            pool if pool & POOL != 0 => &mut self.pools[(pool & !POOL) as usize].takers,
            conn => &mut self.ends[conn as usize].receivers,
        }
    }

    // --- messages and buffers ---

    /// The next message of that end, if it is there.
    #[inline(always)]
    pub(crate) fn message(&mut self, conn: u32) -> Option<(u32, u32)> {
        if let Some(message) = self.ends[conn as usize].inbox.pop_front() {
            return Some(message);
        }
        while self.recv_cq.poll(&mut self.wcs[..1]).len() == 1 {
            let wc = &self.wcs[0];
            let end = &mut self.ends[conn as usize];
            if wc.wr_id >> 32 == (RECV >> 32 | u64::from(conn))
                && wc.status == WcStatus::Success
                && end.receivers.is_empty()
            {
                end.recv_posted -= 1;
                return Some((wc.wr_id as u32, wc.byte_len.min(self.sizes.message)));
            }
            self.dispatch(0);
            if let Some(message) = self.ends[conn as usize].inbox.pop_front() {
                self.settle_if_needed();
                return Some(message);
            }
        }
        self.settle_if_needed();
        None
    }

    /// A message that was given to a task that does not take it.
    fn put_back(&mut self, conn: u32, (buf, len): (u32, u32)) {
        let end = &mut self.ends[conn as usize];
        match end.receivers.pop_front() {
            None => end.inbox.push_front((buf, len)),
            Some(next) => self.hand(next, buf, len),
        }
    }

    /// Gives a buffer to the future of a slot.
    fn hand(&mut self, slot: u32, buf: u32, len: u32) {
        let receiver = self.slots.get(slot);
        (receiver.state, receiver.buf, receiver.len) = (State::Received, buf, len);
        let waker = self.slots.take_waker(slot);
        self.wake.extend(waker);
    }

    /// A slot that waits for a message of that end, or for a buffer of that pool.
    pub(crate) fn wait(&mut self, conn: u32) -> u32 {
        let slot = self.slots.take(State::Receiving, conn);
        self.receivers(conn).push_back(slot);
        slot
    }

    /// A free buffer of a pool with its full length, unless others wait for one.
    pub(crate) fn take_full(&mut self, pool: u32) -> Option<Buf> {
        let pool = &mut self.pools[(pool & !POOL) as usize];
        if !pool.takers.is_empty() {
            return None;
        }
        let buf = pool.free.pop()?;
        Some(self.loans.lend(buf, pool.size))
    }

    /// Keeps the buffer of an operation that is under way. What comes out is to be dropped when the lane was left.
    pub(crate) fn keep(&mut self, slot: u32, buf: Buf) -> Option<Arc<dyn Lender>> {
        self.slots.get(slot).len = buf.len() as u32;
        let (_index, last) = self.loans.take_in(buf);
        last
    }

    /// A buffer is not used any more.
    #[inline]
    pub(crate) fn give_back(&mut self, buf: u32) {
        if buf == NONE {
            return;
        }
        match self.home[buf as usize] {
            pool if pool & POOL != 0 => {
                let pool = &mut self.pools[(pool & !POOL) as usize];
                match pool.takers.pop_front() {
                    None => pool.free.push(buf),
                    Some(taker) => {
                        let size = pool.size;
                        self.hand(taker, buf, size);
                    }
                }
            }
            conn => {
                let end = &mut self.ends[conn as usize];
                end.home.push(buf);
                if end.home.len() >= end.half {
                    self.replenish(conn);
                }
            }
        }
    }

    /// Posts the receives whose buffers are at home.
    #[inline(never)]
    fn replenish(&mut self, conn: u32) {
        let end = &mut self.ends[conn as usize];
        let Some((_, queue)) = &mut end.queues else {
            return;
        };
        while !end.is_over && !end.home.is_empty() {
            let (loans, first) = (&self.loans, end.home.len().saturating_sub(BATCH));
            let wrs: arrayvec::ArrayVec<Recv<'_>, BATCH> = end.home[first..]
                .iter()
                .map(|&buf| receive(conn, buf).into(loans.sge(buf)))
                .collect();
            let outcome = queue.post_batch(&wrs);
            let accepted = outcome.map_or_else(|error| error.posted, |()| wrs.len());
            end.recv_posted += accepted as u32;
            end.home.drain(first..first + accepted);
            if outcome.is_err() {
                // The connection is ending; completions, or the connection manager, say why.
                return;
            }
        }
    }

    // --- sleeping ---

    /// What a driver does that hears of no events.
    pub(crate) fn turn(&mut self) -> usize {
        let n = self.reap();
        // It says whether the device is still there.
        if self.slots.is_awaited() && !self.is_dead && self.arm() {
            return n + self.reap();
        }
        n
    }

    /// Arms both queues for the tasks that sleep, unless they are.
    pub(crate) fn arm_if_needed(&mut self) {
        if self.has_events && !self.armed && !self.is_dead {
            self.armed = true;
            while self.arm() {
                self.reap();
            }
        }
    }

    /// Arms both queues; `true` if completions wait.
    fn arm(&mut self) -> bool {
        // It says whether the device is there, and this waker does nothing.
        let cx = &mut Context::from_waker(Waker::noop());
        let polls = [self.send_cq.poll_ready(cx), self.recv_cq.poll_ready(cx)];
        if polls.iter().any(|poll| matches!(poll, Poll::Ready(Err(_)))) {
            self.die();
            return false;
        }
        polls.iter().any(Poll::is_ready)
    }

    /// What a handler of either queue does inside.
    pub(crate) fn on_event(&mut self) {
        self.armed = false;
        self.reap();
        let waits = |end: &End| !end.waiting.is_empty() || !end.drainers.is_empty();
        if self.slots.is_awaited() || self.ends.iter().any(waits) {
            self.arm_if_needed();
        }
    }
}

/// The work request of an operation.
#[inline(always)]
fn work_request(wr_id: u64, what: &What, sge: verbs_core::Sge) -> SendWr<'static> {
    SendWr {
        wr_id,
        op: what.op,
        flags: SendFlags::SIGNALED,
        payload: Payload::One(sge),
        dest: Dest::Peer,
    }
}

fn receive(conn: u32, buf: u32) -> Recv<'static> {
    Recv::new(RECV | u64::from(conn) << 32 | u64::from(buf))
}
