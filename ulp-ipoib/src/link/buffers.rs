//! Registered memory in slots of one size, from which packets are sent.

use verbs_core::sync::Arc;
use verbs_core::{Memory, Mr, Sge};

use crate::wire::{CONNECTED_MTU, GRH_LEN, HEADER_LEN};

/// Bytes of a slot for a datagram: the largest MTU, 4096.
pub(super) const DATAGRAM_STRIDE: usize = 4096;
/// Bytes of a slot for a received datagram.
pub(super) const RECEIVE_STRIDE: usize = GRH_LEN + DATAGRAM_STRIDE;
/// Bytes of a slot for a message of a connection.
pub(super) const MESSAGE_STRIDE: usize = 65_536;

const _: () = assert!(CONNECTED_MTU + HEADER_LEN <= MESSAGE_STRIDE);

/// The kind of memory that a slot is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// Room for a datagram.
    Datagram,
    /// Room for a message of a connection.
    Connected,
}

impl Size {
    /// The size for a packet of that many bytes without its header.
    pub(super) const fn of(len: usize) -> Self {
        match len + HEADER_LEN <= DATAGRAM_STRIDE {
            true => Self::Datagram,
            false => Self::Connected,
        }
    }
}

/// A slot that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) size: Size,
    pub(super) index: u32,
}

/// A packet in a slot, with its link header: ready to be posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) slot: Slot,
    /// Bytes, including the header.
    pub(super) len: u32,
}

/// The purpose of a work request, decoded from its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Send(Slot),
    Receive(u32),
    ConnectedReceive(u32),
    /// The marker behind all receives of a queue pair that takes them from a shared queue.
    Drain,
}

impl Work {
    pub(super) fn id(self) -> u64 {
        let (kind, index) = match self {
            Self::Send(Slot {
                size: Size::Datagram,
                index,
            }) => (0_u64, index),
            Self::Send(Slot {
                size: Size::Connected,
                index,
            }) => (1, index),
            Self::Receive(index) => (2, index),
            Self::ConnectedReceive(index) => (3, index),
            Self::Drain => (4, 0),
        };
        kind << 32 | u64::from(index)
    }

    pub(super) fn of(id: u64) -> Option<Self> {
        let index = (id & u64::from(u32::MAX)) as u32;
        let send = |size| Self::Send(Slot { size, index });
        Some(match id >> 32 {
            0 => send(Size::Datagram),
            1 => send(Size::Connected),
            2 => Self::Receive(index),
            3 => Self::ConnectedReceive(index),
            4 => Self::Drain,
            _ => return None,
        })
    }
}

/// Slots to send from. A list that never grows holds the free ones.
#[derive(Debug)]
pub(super) struct Pool {
    memory: Arc<Memory>,
    /// The memory's first byte, for work requests.
    base: Sge,
    stride: usize,
    count: usize,
    free: Vec<u32>,
}

impl Pool {
    /// A pool over a whole region.
    pub(super) fn over(mr: &Mr, stride: usize) -> Self {
        let count = mr.len() / stride;
        let slots = u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            memory: Arc::clone(mr.memory()),
            base: mr.slice(0..0),
            stride,
            count,
            free: (0..slots).rev().collect(),
        }
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, index: u32) {
        debug_assert!(self.free.len() < self.count, "a slot came back twice");
        self.free.push(index);
    }

    /// Whether a quarter is free: enough that a writer that had to wait does not wait again at once.
    pub(super) fn has_room(&self) -> bool {
        self.free.len() * 4 >= self.count
    }

    /// The start of a slot, for a work request.
    pub(super) fn sge(&self, index: u32, len: u32) -> Sge {
        let offset = index as usize * self.stride;
        Sge {
            addr: self.base.addr.wrapping_add(offset as u64),
            len,
            lkey: self.base.lkey,
        }
    }

    /// Writes pieces, one after the other, into a slot that the caller has taken.
    pub(super) fn fill(&self, index: u32, pieces: &[&[u8]]) {
        let mut offset = index as usize * self.stride;
        for piece in pieces {
            // Pieces that do not fit are refused before the slot is taken.
            let written = self.memory.write(offset, piece);
            debug_assert!(written.is_ok());
            offset += piece.len();
        }
    }
}
