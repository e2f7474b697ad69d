//! Registered memory of a connection, in slots of one packet each.

use verbs_core::{Access, Cq, Device, Error, Memory, Mr, Pd, Qp, QpInit, Recv, Sge};

use crate::config::Config;
use crate::machine::Packet;
use crate::wire::{FRAGMENT_LEN, Header};

/// Bytes of a slot: a packet, rounded up to cache lines.
pub(super) const STRIDE: usize = (Header::LEN + FRAGMENT_LEN).next_multiple_of(64);

/// The number of a work request that sends; receives have the number of their slot.
pub(super) const SEND: u64 = 1 << 32;
/// The same of a pure acknowledgement.
pub(super) const CONTROL: u64 = 1 << 33;

/// The same of an RDMA operation, with the operation's number.
pub(super) const RDMA: u64 = 1 << 34;

/// What a queue pair receives into and sends from.
pub(super) struct Buffers {
    pub(super) cq: Cq,
    received: Mr,
    sent: Mr,
    free: Vec<u32>,
}

impl Buffers {
    /// A queue pair in INIT with all its receives posted.
    pub(super) async fn make(
        device: &Device,
        pd: &Pd,
        config: &Config,
    ) -> Result<(Qp, Self), Error> {
        let (receives, sends) = (config.receives, config.sends);
        let mut cq = device.create_cq(receives + 2 * sends).await?;
        // Nothing is posted yet, so nothing waits.
        let _empty = cq.arm(verbs_core::Arm::Next);
        let received = Memory::alloc(receives as usize * STRIDE)?;
        let received = pd.register(received, Access::LOCAL_WRITE).await?;
        let sent = Memory::alloc(sends as usize * STRIDE)?;
        let sent = pd.register(sent, Access::empty()).await?;
        // Before each packet there may be an operation.
        let init = QpInit::rc(&cq, &cq).depth(2 * sends, receives);
        let mut qp = pd.create_qp(init).await?;
        qp.init(1, Access::REMOTE).await?;
        let buffers = Self {
            cq,
            received,
            sent,
            free: (0..sends).rev().collect(),
        };
        for slot in 0..receives {
            let posted = qp.post_recv(buffers.recv(slot));
            // It is as deep as that.
            posted.map_err(|_| Error::DeviceFailed)?;
        }
        Ok((qp, buffers))
    }

    pub(super) fn recv(&self, slot: u32) -> Recv<'static> {
        let start = slot as usize * STRIDE;
        let room = self.received.slice(start..start + STRIDE);
        Recv::new(slot.into()).into(room)
    }

    /// Copies a packet that has come; `None` if there is no such slot.
    pub(super) fn read(&self, slot: u32, into: &mut [u8]) -> Option<()> {
        self.received.read(slot as usize * STRIDE, into).ok()
    }

    /// Whether a packet can be sent.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Copies a packet into a slot that is free: its number, and where it is.
    pub(super) fn fill(&mut self, packet: &Packet) -> Option<(u64, Sge)> {
        let slot = self.free.pop()?;
        let (start, payload) = (slot as usize * STRIDE, packet.payload());
        let end = start + Header::LEN + payload.len();
        let memory = self.sent.memory();
        let written = memory.write(start, &packet.header);
        let written = written.and_then(|()| memory.write(start + Header::LEN, payload));
        debug_assert!(written.is_ok(), "a packet fits its slot");
        let control = if packet.control { CONTROL } else { 0 };
        Some((
            SEND | control | u64::from(slot),
            self.sent.slice(start..end),
        ))
    }

    /// A packet was sent.
    pub(super) fn give_back(&mut self, id: u64) {
        self.free.push(id as u32);
    }
}
