//! Registered memory that packets are received into, in slots of one packet each.

use verbs_core::{Access, Error, Memory, Mr, Pd, Recv, RecvQueue};

use super::STRIDE;
use crate::machine::Arrived;

pub(super) struct Receives {
    received: Mr,
    count: u32,
    /// Receives that are to be posted again, and from how many on they are.
    taken: Vec<Recv<'static>>,
    taken_max: usize,
}

/// A packet in its slot.
pub(in crate::node) struct Slot<'r> {
    received: &'r Mr,
    start: usize,
    len: usize,
}

impl Receives {
    pub(super) async fn new(pd: &Pd, count: u32) -> Result<Self, Error> {
        let received = Memory::alloc(count as usize * STRIDE)?;
        Ok(Self {
            received: pd.register(received, Access::LOCAL_WRITE).await?,
            count,
            taken: Vec::with_capacity(count as usize),
            taken_max: (count / 8).max(1) as usize,
        })
    }

    /// All of them, for a queue pair that has none yet.
    pub(super) fn all(&self) -> impl Iterator<Item = Recv<'static>> + '_ {
        (0..self.count).map(|slot| self.recv(slot))
    }

    #[inline]
    fn recv(&self, slot: u32) -> Recv<'static> {
        let start = slot as usize * STRIDE;
        let room = self.received.slice(start..start + STRIDE);
        Recv::new(slot.into()).into(room)
    }

    /// The packet that a completion tells of; its slot is to be posted again.
    #[inline]
    pub(super) fn take(&mut self, slot: u32, len: usize) -> Slot<'_> {
        let recv = self.recv(slot);
        self.taken.push(recv);
        self.at(slot, len)
    }

    /// A packet that lies in a slot.
    #[inline]
    pub(super) fn at(&self, slot: u32, len: usize) -> Slot<'_> {
        Slot {
            received: &self.received,
            start: slot as usize * STRIDE,
            len: len.min(STRIDE),
        }
    }

    /// Whether it is time to post receives again.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.taken.len() >= self.taken_max
    }

    /// Posts receives whose packets were taken out; yields how many. `None` if they are refused.
    pub(super) fn post(&mut self, queue: &mut RecvQueue) -> Option<u32> {
        queue.post_batch(&self.taken).ok()?;
        let count = self.taken.len() as u32;
        self.taken.clear();
        Some(count)
    }
}

impl Arrived for Slot<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn read(&self, at: usize, into: &mut [u8]) -> Option<()> {
        let end = at.checked_add(into.len())?;
        if end > self.len {
            return None;
        }
        self.received.memory().read(self.start + at, into).ok()
    }
}
