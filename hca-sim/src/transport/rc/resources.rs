//! The responder's memory of READs and atomics: the ones that it has not answered yet, and the last ones that it has
//! answered, which the peer may request again (IBTA vol. 1, 9.7.5.1.2 and 9.4.5).
//!
//! A READ that is requested again reads memory again; an atomic must not be executed again, so its result is kept.

use verbs_core::{Error, Mtu, Psn};

use crate::queue::base::limits::RD_ATOMIC;
use crate::queue::base::memory::allocate;
use crate::wire::Reth;
use crate::wire::target::{Kept, KeptAnswer};

const MASK: u32 = RD_ATOMIC - 1;
const _: () = assert!(
    RD_ATOMIC.is_power_of_two(),
    "slots are found by the lower bits of their number"
);

/// The request.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Read(Reth),
    /// The previous value.
    Atomic(u64),
    /// An ATOMIC WRITE or a FLUSH: only the fact that it was done.
    Done,
}

/// One READ or atomic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    first: Psn,
    packets: u32,
    /// The protection domain that memory is checked against.
    pub(super) pd: u32,
    what: What,
    /// An answer is due.
    due: bool,
    /// It was answered once, to the end.
    pub(super) answered: bool,
    /// The first sequence number of the answer to send; for a READ, of the part that was requested last.
    pub(super) from: Psn,
    pub(super) answer: What,
    /// How many packets of the answer have been sent.
    pub(super) sent: u32,
    /// Some of it was sent before.
    pub(super) again: bool,
    /// The answer continues where an earlier response was left, so it does not begin one.
    pub(super) goes_on: bool,
    /// The rest that was still to be sent when an earlier part was requested again.
    rest: Option<(Psn, Reth)>,
}

impl Slot {
    fn contains(&self, psn: Psn) -> bool {
        self.offset(psn) < self.packets
    }

    /// The number of the packet before it.
    pub(super) fn before(&self) -> Psn {
        self.first.add(u32::MAX)
    }

    fn offset(&self, psn: Psn) -> u32 {
        Psn::new(psn.value().wrapping_sub(self.first.value())).value()
    }

    /// All of the answer has been sent; continues with the rest of an earlier one, if any.
    pub(super) fn done(&mut self) {
        if let Some((from, rest)) = self.rest.take() {
            (self.from, self.answer) = (from, What::Read(rest));
            self.restart();
            self.goes_on = true;
            return;
        }
        self.due = false;
        self.answered = true;
    }

    /// Nothing more of it is sent.
    pub(super) fn end(&mut self) {
        self.rest = None;
        self.done();
    }

    fn answer_again(&mut self, from: Psn, answer: What, mtu: Mtu) {
        self.rest = self.left_after(from, answer, mtu);
        self.due = true;
        self.from = from;
        self.answer = answer;
        self.goes_on = false;
        self.restart();
    }

    /// The rest that is still to be sent after that part of a READ has been sent again: nothing, unless all of the part
    /// was sent and more was being sent.
    fn left_after(&self, from: Psn, part: What, mtu: Mtu) -> Option<(Psn, Reth)> {
        let (What::Read(own), What::Read(part)) = (self.answer, part) else {
            return None;
        };
        if self.rest.is_some() || !self.due {
            return self.rest;
        }
        let next = self.from.add(self.sent);
        let is_before = self.offset(from) + mtu.packets(part.dma_len) <= self.offset(next);
        let skip = self.sent << mtu.shift();
        let rest = Reth {
            addr: own.addr.wrapping_add(u64::from(skip)),
            dma_len: own.dma_len.checked_sub(skip)?,
            ..own
        };
        is_before.then_some((next, rest))
    }

    fn restart(&mut self) {
        self.sent = 0;
        self.again = true;
    }
}

/// See the module's documentation. Slots are numbered in the order of their requests.
#[derive(Debug)]
pub(super) struct Resources {
    slots: Box<[Slot]>,
    /// The number of the next request.
    next: u32,
    /// Before this one no answer is due.
    due: u32,
    /// Slots that were used, at most all.
    used: u32,
}

impl Resources {
    /// As many as a queue pair may ever request, 104 bytes each.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn new() -> Result<Self, Error> {
        let empty = Slot {
            first: Psn::new(0),
            packets: 0,
            pd: 0,
            what: What::Atomic(0),
            due: false,
            answered: true,
            from: Psn::new(0),
            answer: What::Atomic(0),
            sent: 0,
            again: false,
            goes_on: false,
            rest: None,
        };
        Ok(Self {
            slots: allocate(RD_ATOMIC as usize, || empty)?,
            next: 0,
            due: 0,
            used: 0,
        })
    }

    pub(super) fn reset(&mut self) {
        self.drop_due();
        self.used = 0;
    }

    /// Forgets the answers that are due.
    pub(super) fn drop_due(&mut self) {
        while let Some(slot) = self.first_due() {
            slot.due = false;
        }
    }

    /// Whether another request may be remembered by a responder for `depth` of them, which requires that the one whose
    /// place it takes was answered.
    pub(super) fn has_room(&self, depth: u8) -> bool {
        let depth = u32::from(depth).min(RD_ATOMIC);
        self.used < depth || depth != 0 && self.slot(self.next.wrapping_sub(depth)).answered
    }

    /// Remembers a request that has to be answered.
    pub(super) fn push(&mut self, pd: u32, first: Psn, packets: u32, what: What) {
        if self.next.wrapping_sub(self.due) == RD_ATOMIC {
            // The peer has continued, so it no longer waits for the repetition in there.
            self.due = self.due.wrapping_add(1);
        }
        *self.slot_mut(self.next) = Slot {
            first,
            packets,
            pd,
            what,
            due: true,
            answered: false,
            from: first,
            answer: what,
            sent: 0,
            again: false,
            goes_on: false,
            rest: None,
        };
        self.next = self.next.wrapping_add(1);
        self.used = (self.used + 1).min(RD_ATOMIC);
    }

    /// The first request whose answer is due.
    pub(super) fn first_due(&mut self) -> Option<&mut Slot> {
        while self.due != self.next && !self.slot(self.due).due {
            self.due = self.due.wrapping_add(1);
        }
        (self.due != self.next).then(|| self.slot_mut(self.due))
    }

    /// The peer requests a READ again, or the rest of it: answers unless the READ is not remembered, or more is
    /// requested than at first.
    pub(super) fn read_again(&mut self, depth: u8, psn: Psn, (pd, reth): (u32, Reth), mtu: Mtu) {
        let found = self.find(depth, psn, |slot| {
            let What::Read(whole) = slot.what else {
                return false;
            };
            let skip = reth.addr.wrapping_sub(whole.addr);
            let end = skip.saturating_add(u64::from(reth.dma_len));
            reth.rkey == whole.rkey
                && end <= u64::from(whole.dma_len)
                && slot.offset(psn) + mtu.packets(reth.dma_len) <= slot.packets
        });
        if let Some(number) = found {
            self.slot_mut(number).pd = pd;
            self.answer_again(number, psn, What::Read(reth), mtu);
        }
    }

    /// The peer requests the result of an operation again that is not done twice.
    pub(super) fn done_again(&mut self, depth: u8, psn: Psn, mtu: Mtu) {
        let is_done = |slot: &Slot| matches!(slot.what, What::Atomic(_) | What::Done);
        if let Some(number) = self.find(depth, psn, is_done) {
            let result = self.slot(number).what;
            self.answer_again(number, psn, result, mtu);
        }
    }

    /// The newest request of that number that is remembered and fits.
    fn find(&self, depth: u8, psn: Psn, fits: impl Fn(&Slot) -> bool) -> Option<u32> {
        let kept = self.used.min(u32::from(depth));
        (1..=kept)
            .map(|back| self.next.wrapping_sub(back))
            .find(|&number| self.slot(number).contains(psn) && fits(self.slot(number)))
    }

    fn answer_again(&mut self, number: u32, from: Psn, answer: What, mtu: Mtu) {
        self.slot_mut(number).answer_again(from, answer, mtu);
        // The peer has dropped what was sent of later answers, because it waits for this one.
        let mut later = number.wrapping_add(1);
        while later != self.next {
            self.slot_mut(later).restart();
            later = later.wrapping_add(1);
        }
        if self.due.wrapping_sub(number).cast_signed() > 0 {
            self.due = number;
        }
    }

    /// What a responder for `depth` of them remembers, the oldest first.
    pub(super) fn kept(&self, depth: u8) -> Vec<Kept> {
        let count = self.used.min(u32::from(depth));
        (1..=count)
            .rev()
            .map(|back| {
                let slot = self.slot(self.next.wrapping_sub(back));
                Kept {
                    first: slot.first,
                    packets: slot.packets,
                    what: match slot.what {
                        What::Read(reth) => KeptAnswer::Read(reth),
                        What::Atomic(result) => KeptAnswer::Atomic(result),
                        What::Done => KeptAnswer::Done,
                    },
                }
            })
            .collect()
    }

    /// Takes over the operations that another program's responder has answered. If the peer repeats a READ, it is checked
    /// again, in the protection domain of the repeat.
    pub(super) fn keep(&mut self, all: &[Kept]) {
        self.reset();
        for kept in all {
            let what = match kept.what {
                KeptAnswer::Read(reth) => What::Read(reth),
                KeptAnswer::Atomic(result) => What::Atomic(result),
                KeptAnswer::Done => What::Done,
            };
            self.push(0, kept.first, kept.packets, what);
            let slot = self.slot_mut(self.next.wrapping_sub(1));
            (slot.due, slot.answered) = (false, true);
        }
        self.due = self.next;
    }

    fn slot(&self, number: u32) -> &Slot {
        &self.slots[(number & MASK) as usize]
    }

    fn slot_mut(&mut self, number: u32) -> &mut Slot {
        &mut self.slots[(number & MASK) as usize]
    }
}
