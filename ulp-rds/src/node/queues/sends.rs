//! Registered memory that packets are sent from, in slots of one packet each.

use std::collections::VecDeque;

use verbs_core::{Access, Error, Memory, Mr, Pd, Send};

use crate::machine::Packet;
use crate::payload::Payload;
use crate::wire::{FRAGMENT_LEN, Header};

/// Bytes of a slot: a packet, rounded up to cache lines.
pub(super) const STRIDE: usize = (Header::LEN + FRAGMENT_LEN).next_multiple_of(64);

/// The number of a work request that sends; receives have the number of their slot.
pub(in crate::node) const SEND: u64 = 1 << 32;
/// The same of a pure acknowledgement.
pub(in crate::node) const CONTROL: u64 = 1 << 33;
/// The same of an RDMA operation, with the operation's number.
pub(in crate::node) const RDMA: u64 = 1 << 34;

/// Slots are free, or posted, or kept: they hold the only copy of a message that the peer has not acknowledged. One that is
/// neither posted nor kept any more is free again.
pub(super) struct Sends {
    sent: Mr,
    count: u32,
    free: Vec<u32>,
    /// By slot: [`POSTED`] and [`KEPT`].
    uses: Vec<u8>,
    /// Slots of packets that are posted, the oldest first.
    posted: VecDeque<u32>,
    /// Packets since one that tells when it was sent, and after how many one does.
    silent: u32,
    silent_max: u32,
}

const POSTED: u8 = 1;
const KEPT: u8 = 2;

impl Sends {
    pub(super) async fn new(pd: &Pd, count: u32) -> Result<Self, Error> {
        let memory = Memory::alloc(count as usize * STRIDE)?;
        Ok(Self {
            sent: pd.register(memory, Access::empty()).await?,
            count,
            free: (0..count).rev().collect(),
            uses: vec![0; count as usize],
            posted: VecDeque::with_capacity(count as usize),
            silent: 0,
            // While all slots are taken, one that tells is under way.
            silent_max: count / 2,
        })
    }

    /// The slot for the next message that is to be kept. Some slots are for other packets alone: these are free again when
    /// they were sent, so that two ends that both keep all they can never wait for each other.
    #[inline]
    pub(super) fn next(&self) -> Option<u32> {
        let spare = self.count as usize / 4 + 1;
        self.free
            .last()
            .copied()
            .filter(|_| self.free.len() > spare)
    }

    /// Whether a packet finds a slot.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    #[inline]
    pub(super) fn is_low(&self) -> bool {
        self.free.len() * 2 <= self.count as usize
    }

    /// Copies a packet into the slot that is next, to be kept, and yields the work request that sends it.
    #[inline]
    pub(super) fn keep(&mut self, header: &[u8; Header::LEN], payload: &[u8]) -> Send<'static> {
        let slot = self.free.pop().unwrap_or_default();
        let send = self.copy(slot, header, payload, POSTED | KEPT);
        let send = Send::new(SEND | u64::from(slot)).from(send).solicited();
        self.told(send, false)
    }

    /// Copies a packet into a slot that is free, and yields the work request that sends it.
    pub(super) fn fill(&mut self, packet: &Packet<'_>) -> Option<Send<'static>> {
        let slot = self.free.pop()?;
        let bytes = self.copy(slot, &packet.header, packet.payload, POSTED);
        let control = if packet.control { CONTROL } else { 0 };
        let send = Send::new(SEND | control | u64::from(slot)).from(bytes);
        let send = if packet.is_last() {
            send.solicited()
        } else {
            send
        };
        Some(self.told(send, packet.control))
    }

    #[inline]
    fn copy(
        &mut self,
        slot: u32,
        header: &[u8; Header::LEN],
        payload: &[u8],
        uses: u8,
    ) -> verbs_core::Sge {
        let start = slot as usize * STRIDE;
        let memory = self.sent.memory();
        let written = memory.write(start, header);
        let written = written.and_then(|()| memory.write(start + Header::LEN, payload));
        debug_assert!(written.is_ok(), "a packet fits its slot");
        self.posted.push_back(slot);
        if let Some(of_slot) = self.uses.get_mut(slot as usize) {
            *of_slot = uses;
        }
        self.sent.slice(start..start + Header::LEN + payload.len())
    }

    /// Every so many packets, one tells when it was sent; so does one that the machine waits for.
    #[inline]
    fn told(&mut self, send: Send<'static>, always: bool) -> Send<'static> {
        if !always && self.silent < self.silent_max {
            self.silent += 1;
            return send;
        }
        self.silent = 0;
        send.signaled()
    }

    pub(super) fn sent(&mut self, id: u64) {
        while let Some(slot) = self.posted.pop_front() {
            self.done(slot, POSTED);
            if slot == id as u32 {
                return;
            }
        }
    }

    pub(super) fn release(&mut self, slot: u32) {
        self.done(slot, KEPT);
    }

    #[inline]
    fn done(&mut self, slot: u32, with: u8) {
        if let Some(uses) = self.uses.get_mut(slot as usize)
            && *uses & with != 0
        {
            *uses &= !with;
            if *uses == 0 {
                self.free.push(slot);
            }
        }
    }

    pub(super) fn kept(&self, slot: u32, mut into: Payload, len: usize) -> Payload {
        let start = slot as usize * STRIDE + Header::LEN;
        let copied = into.append(len, |into| self.sent.read(start, into).ok());
        debug_assert!(copied.is_some(), "what is kept was written");
        into
    }
}
