//! Taking completions, and what follows from each.

use verbs_core::WcStatus;

use super::slot::{Fault, State};
use super::{Lane, RECV, WCS};
use crate::error::Operation;

impl Lane {
    /// Takes all that has completed; says how many that were.
    #[inline(never)]
    pub(crate) fn reap(&mut self) -> usize {
        let mut all = 0;
        loop {
            let sent = self.send_cq.poll(&mut self.wcs).len();
            (0..sent).for_each(|n| self.dispatch(n));
            let received = self.recv_cq.poll(&mut self.wcs).len();
            (0..received).for_each(|n| self.dispatch(n));
            all += sent + received;
            if sent < WCS && received < WCS {
                break;
            }
        }
        if self.unsettled {
            self.settle();
        }
        all
    }

    /// One completion.
    #[inline]
    pub(super) fn dispatch(&mut self, n: usize) {
        let wc = self.wcs[n];
        let fault = |operation| {
            (wc.status != WcStatus::Success).then_some(Fault::Status {
                status: wc.status,
                operation,
                vendor_err: wc.vendor_err,
            })
        };
        if wc.wr_id & RECV == 0 {
            let Some(slot) = self.slots.of_id(wc.wr_id) else {
                self.late += 1;
                return;
            };
            let operation = self.slots.get(slot).operation;
            self.completed(slot, fault(operation));
        } else {
            let conn = (wc.wr_id >> 32) as u32 & !(1 << 31);
            let len = wc.byte_len.min(self.sizes.message);
            self.received(conn, wc.wr_id as u32, len, fault(Operation::Recv));
        }
    }

    /// An operation has completed.
    fn completed(&mut self, slot: u32, fault: Option<Fault>) {
        let done = self.slots.get(slot);
        let (state, conn, buf, word) = (done.state, done.conn, done.buf, done.word);
        if !matches!(state, State::Posted | State::Orphan) {
            self.late += 1;
            return;
        }
        (done.fault, done.word) = (fault, super::NONE);
        let end = &mut self.ends[conn as usize];
        end.posted -= 1;
        if word != super::NONE {
            self.slots.get(slot).value = end.words.give_back(word);
        }
        if let Some(fault) = fault {
            end.fail(fault);
            self.unsettled = true;
        }
        if end.is_drained() {
            self.wake.append(&mut end.drainers);
        }
        let waits = !end.waiting.is_empty();
        if state == State::Orphan {
            // Nothing was left to wake.
            let _none = self.slots.release(slot);
            self.give_back(buf);
        } else {
            self.slots.get(slot).state = State::Done;
            let waker = self.slots.take_waker(slot);
            self.wake.extend(waker);
        }
        if waits {
            self.refill(conn);
        }
    }

    /// A receive has completed.
    fn received(&mut self, conn: u32, buf: u32, len: u32, fault: Option<Fault>) {
        let Some(end) = self.ends.get_mut(conn as usize) else {
            self.late += 1;
            return;
        };
        end.recv_posted -= 1;
        if let Some(fault) = fault {
            end.home.push(buf);
            end.fail(fault);
            self.unsettled = true;
            return;
        }
        match end.receivers.pop_front() {
            None => end.inbox.push_back((buf, len)),
            Some(receiver) => self.hand(receiver, buf, len),
        }
    }

    #[inline(always)]
    pub(super) fn settle_if_needed(&mut self) {
        if self.unsettled {
            self.reap();
        }
    }

    /// Tells the tasks of ends that are over. Both queues are empty, so that messages that came before are where
    /// they belong.
    #[cold]
    #[inline(never)]
    pub(super) fn settle(&mut self) {
        self.unsettled = false;
        for conn in 0..self.ends.len() {
            let end = &mut self.ends[conn];
            if !end.is_over {
                continue;
            }
            let waiting = std::mem::take(&mut end.waiting);
            let receivers = std::mem::take(&mut end.receivers);
            if end.is_drained() {
                self.wake.append(&mut end.drainers);
            }
            for slot in waiting.into_iter().chain(receivers) {
                self.refuse(slot, Fault::Over);
            }
        }
    }

    /// The device cannot be used any more. What it has flushed has completed; of the rest nothing will be heard, and
    /// the buffers stay with the lane, as the device may have them still.
    #[cold]
    pub(super) fn die(&mut self) {
        self.reap();
        self.is_dead = true;
        for end in &mut self.ends {
            end.fail(Fault::Removed);
            end.posted = 0;
        }
        for slot in self.slots.in_use() {
            let lost = self.slots.get(slot);
            match lost.state {
                State::Posted => {
                    lost.buf = super::NONE;
                    self.refuse(slot, Fault::Removed);
                }
                State::Orphan => {
                    let _none = self.slots.release(slot);
                }
                _ => {}
            }
        }
        self.settle();
    }
}
