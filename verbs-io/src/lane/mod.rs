//! The lane: two completion queues, the ends of the connections that use them, slots, and buffers.
//!
//! One thread at a time is inside. It works for all: it takes what has completed, and posts what
//! waits for room. Wakers are not called here: they go to [`Lane::wake`], and the caller wakes them when it has left.
//!
//! The id of a receive is `1 | connection:31 | buffer:32`.

mod connections;
pub(crate) mod core;
pub(crate) mod end;
pub(crate) mod probe;
pub(crate) mod reap;
pub(crate) mod request;
pub(crate) mod sleep;
pub(crate) mod slot;

use std::collections::VecDeque;
use std::task::Waker;

use verbs_core::sync::Arc;
use verbs_core::{Cq, PostError, Recv, SendWr, Sge, Wc, WcFlags, WcStatus};

use crate::buf::{Buf, Lender, Loans};
use end::{End, Words};
use request::{Kind, What, work_request};
pub(crate) use slot::Side;
use slot::{Fault, NONE, Slots, State};

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
    /// Which queues were armed, and had no event since.
    armed: [bool; 2],
    /// Why an operation was refused last.
    pub(crate) refusal: Fault,
    /// An end is over, and tasks have to hear of it.
    unsettled: bool,
    /// The device can no longer be used.
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
    /// [`Lane::refusal`] says why.
    Refused,
    /// It is in that slot. As wide as a result, so that both travel in registers.
    UnderWay(u64),
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
            armed: [false; 2],
            refusal: Fault::Over,
            unsettled: false,
            is_dead: false,
            late: 0,
            sizes,
        }
    }

    // --- operations ---

    /// Whether an operation has been told to let other tasks run, and nothing has begun since.
    pub(crate) fn has_yielded(&self) -> bool {
        self.streak == 0
    }

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
    /// written. `memory` is the place and number of a buffer; atomics get theirs here.
    #[inline(always)]
    pub(crate) fn start<K: Kind>(
        &mut self,
        conn: u32,
        kind: &K,
        memory: Option<(Sge, u32)>,
        detached: bool,
    ) -> Started {
        let end = &mut self.ends[conn as usize];
        let (true, Some((send, _))) = (end.has_room(), &mut end.queues) else {
            return self.start_later(conn, kind.what(memory), detached);
        };
        let id = self.slots.peek();
        let (word, sge) = match memory {
            Some((sge, _)) => (NONE, sge),
            None => end.words.take(),
        };
        if let Err(error) = kind.post(send, id, sge) {
            return self.not_posted(conn, word, error);
        }
        let n = self.send_cq.poll(&mut self.wcs[..1]).len();
        let wc = &self.wcs[0];
        if n == 1 && wc.wr_id == id && wc.status == WcStatus::Success {
            self.slots.skip();
            let value = match word {
                NONE => 0,
                word => self.ends[conn as usize].words.give_back(word),
            };
            return Started::Ready(value);
        }
        self.under_way(conn, &kind.what(memory), word, n, detached)
    }

    #[cold]
    #[inline(never)]
    fn not_posted(&mut self, conn: u32, word: u32, error: PostError) -> Started {
        if word != NONE {
            self.ends[conn as usize].words.give_back(word);
        }
        self.refused(Fault::Post(error))
    }

    #[cold]
    fn refused(&mut self, why: Fault) -> Started {
        self.refusal = why;
        Started::Refused
    }

    #[cold]
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
            reap::dispatch(self, 0);
            reap::settle_if_needed(self);
        }
        Started::UnderWay(u64::from(slot))
    }

    /// There is no room, or others wait for it, or the connection is over.
    #[cold]
    #[inline(never)]
    fn start_later(&mut self, conn: u32, what: What, detached: bool) -> Started {
        if self.ends[conn as usize].queues.is_none() {
            return self.refused(Fault::Over);
        }
        reap::all(self);
        // A batch that was not submitted yet: what comes after it does not wait for that.
        self.submit(conn);
        if self.ends[conn as usize].has_room() {
            return self.start(conn, &what, what.memory(), detached);
        }
        match self.queue(conn, what, detached) {
            Some(slot) => Started::UnderWay(u64::from(slot)),
            None => self.refused(Fault::Over),
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
        reap::settle_if_needed(self);
        if !self.ends[conn as usize].waiting.is_empty() {
            sleep::arm_if_needed(self, Side::Send);
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
                wrs.push(work_request(id, what.op, sge));
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
        let end = &mut self.ends[conn as usize];
        if !end.inbox.is_empty() || !end.receivers.is_empty() {
            return self.message_of_many(conn, 0);
        }
        let n = self.recv_cq.poll(&mut self.wcs[..1]).len();
        let wc = &self.wcs[0];
        let is_plain = wc.status == WcStatus::Success && !wc.flags.contains(WcFlags::WITH_IMM);
        if n == 1 && wc.wr_id >> 32 == receive_id(conn) && is_plain {
            end.recv_posted -= 1;
            return Some((wc.wr_id as u32, wc.byte_len.min(self.sizes.message)));
        }
        match n {
            0 => None,
            n => self.message_of_many(conn, n),
        }
    }

    /// As [`Lane::message`], where some have come already, or for others as well; `polled` is yet to be dispatched.
    #[inline(never)]
    fn message_of_many(&mut self, conn: u32, mut polled: usize) -> Option<(u32, u32)> {
        let message = loop {
            if polled == 1 {
                reap::dispatch(self, 0);
            }
            let next = self.ends[conn as usize].inbox.pop_front();
            if next.is_some() {
                break next;
            }
            polled = self.recv_cq.poll(&mut self.wcs[..1]).len();
            if polled == 0 {
                break None;
            }
        };
        reap::settle_if_needed(self);
        message
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

    /// A buffer is no longer used.
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
            // Not collected, which moves all of them.
            let mut wrs = arrayvec::ArrayVec::<Recv<'_>, BATCH>::new();
            for &buf in &end.home[first..] {
                wrs.push(receive(conn, buf).into(loans.sge(buf)));
            }
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
}

fn receive(conn: u32, buf: u32) -> Recv<'static> {
    Recv::new(receive_id(conn) << 32 | u64::from(buf))
}

/// The upper half of the ids of an end's receives.
#[inline(always)]
fn receive_id(conn: u32) -> u64 {
    RECV >> 32 | u64::from(conn)
}
