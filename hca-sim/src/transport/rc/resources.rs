//! What the responder remembers of READs and atomics: those that it has not answered yet, and the last
//! ones that it has, which the peer may ask for again (IBTA vol. 1, 9.7.5.1.2 and 9.4.5).
//!
//! A READ that is asked for again reads memory again; an atomic must not be executed again, so its
//! result is kept.

use verbs_core::{Error, Mtu, Psn};

use crate::queue::base::limits::RD_ATOMIC;
use crate::queue::base::memory::allocate;
use crate::wire::Reth;

const MASK: u32 = RD_ATOMIC - 1;
const _: () = assert!(
    RD_ATOMIC.is_power_of_two(),
    "slots are found by the lower bits of their number"
);

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Read(Reth),
    /// What was there before.
    Atomic(u64),
    /// An ATOMIC WRITE or a FLUSH: nothing but that it was done.
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
    /// What is to be sent: for a READ the part that was asked for last, and from which number on.
    pub(super) from: Psn,
    pub(super) answer: What,
    /// Packets of that which are sent.
    pub(super) sent: u32,
    /// Some of it was sent before.
    pub(super) again: bool,
}

impl Slot {
    fn contains(&self, psn: Psn) -> bool {
        self.offset(psn) < self.packets
    }

    fn offset(&self, psn: Psn) -> u32 {
        Psn::new(psn.value().wrapping_sub(self.first.value())).value()
    }

    /// All of it is sent.
    pub(super) fn done(&mut self) {
        self.due = false;
        self.answered = true;
    }

    fn answer_again(&mut self, from: Psn, answer: What) {
        self.due = true;
        self.from = from;
        self.answer = answer;
        self.restart();
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
    /// As many as a queue pair may ever ask for, 72 bytes each.
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

    /// Whether another request may be remembered by a responder for `depth` of them: then the one that
    /// makes room for it was answered.
    pub(super) fn has_room(&self, depth: u8) -> bool {
        let depth = u32::from(depth).min(RD_ATOMIC);
        self.used < depth || depth != 0 && self.slot(self.next.wrapping_sub(depth)).answered
    }

    /// Remembers a request that is to be answered.
    pub(super) fn push(&mut self, pd: u32, first: Psn, packets: u32, what: What) {
        if self.next.wrapping_sub(self.due) == RD_ATOMIC {
            // The peer goes on, so it does not wait for the repetition in there any more.
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

    /// The peer asks for a READ again, or for the rest of it: answers unless it is not remembered, or
    /// would be more than was asked for at first.
    pub(super) fn read_again(&mut self, depth: u8, psn: Psn, reth: Reth, mtu: Mtu) {
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
            self.answer_again(number, psn, What::Read(reth));
        }
    }

    /// The peer asks again for the result of what is not done twice.
    pub(super) fn done_again(&mut self, depth: u8, psn: Psn) {
        let is_done = |slot: &Slot| matches!(slot.what, What::Atomic(_) | What::Done);
        if let Some(number) = self.find(depth, psn, is_done) {
            let result = self.slot(number).what;
            self.answer_again(number, psn, result);
        }
    }

    /// The newest request of that number that is remembered and fits.
    fn find(&self, depth: u8, psn: Psn, fits: impl Fn(&Slot) -> bool) -> Option<u32> {
        let kept = self.used.min(u32::from(depth));
        (1..=kept)
            .map(|back| self.next.wrapping_sub(back))
            .find(|&number| self.slot(number).contains(psn) && fits(self.slot(number)))
    }

    fn answer_again(&mut self, number: u32, from: Psn, answer: What) {
        self.slot_mut(number).answer_again(from, answer);
        // What was sent of later answers is lost on the peer, which waits for this one.
        let mut later = number.wrapping_add(1);
        while later != self.next {
            self.slot_mut(later).restart();
            later = later.wrapping_add(1);
        }
        if self.due.wrapping_sub(number).cast_signed() > 0 {
            self.due = number;
        }
    }

    fn slot(&self, number: u32) -> &Slot {
        &self.slots[(number & MASK) as usize]
    }

    fn slot_mut(&mut self, number: u32) -> &mut Slot {
        &mut self.slots[(number & MASK) as usize]
    }
}
