//! RDMAP messages: opcodes and bodies (RFC 5040, section 4; RFC 7306).

use std::fmt;

use super::error::{Part, exactly};
use super::{IwarpError, STag};

/// The kind of an RDMAP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RdmapOpcode {
    /// RDMA Write.
    Write,
    /// RDMA Read Request.
    ReadRequest,
    /// RDMA Read Response.
    ReadResponse,
    /// Send.
    Send,
    /// Send with Invalidate.
    SendInvalidate,
    /// Send with Solicited Event.
    SendSolicited,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate,
    /// Terminate.
    Terminate,
    /// Immediate Data (RFC 7306).
    Immediate,
    /// Immediate Data with Solicited Event (RFC 7306).
    ImmediateSolicited,
    /// Atomic Request (RFC 7306).
    AtomicRequest,
    /// Atomic Response (RFC 7306).
    AtomicResponse,
}

/// Number, name and queue of every opcode, in numerical order. Tagged messages have no queue.
const OPCODES: [(RdmapOpcode, &str, Option<RdmapQueue>); 12] = [
    (RdmapOpcode::Write, "RDMA Write", None),
    (
        RdmapOpcode::ReadRequest,
        "RDMA Read Request",
        Some(RdmapQueue::Request),
    ),
    (RdmapOpcode::ReadResponse, "RDMA Read Response", None),
    (RdmapOpcode::Send, "Send", Some(RdmapQueue::Send)),
    (
        RdmapOpcode::SendInvalidate,
        "Send with Invalidate",
        Some(RdmapQueue::Send),
    ),
    (
        RdmapOpcode::SendSolicited,
        "Send with Solicited Event",
        Some(RdmapQueue::Send),
    ),
    (
        RdmapOpcode::SendSolicitedInvalidate,
        "Send with Solicited Event and Invalidate",
        Some(RdmapQueue::Send),
    ),
    (
        RdmapOpcode::Terminate,
        "Terminate",
        Some(RdmapQueue::Terminate),
    ),
    (
        RdmapOpcode::Immediate,
        "Immediate Data",
        Some(RdmapQueue::Send),
    ),
    (
        RdmapOpcode::ImmediateSolicited,
        "Immediate Data with Solicited Event",
        Some(RdmapQueue::Send),
    ),
    (
        RdmapOpcode::AtomicRequest,
        "Atomic Request",
        Some(RdmapQueue::Request),
    ),
    (
        RdmapOpcode::AtomicResponse,
        "Atomic Response",
        Some(RdmapQueue::AtomicResponse),
    ),
];

impl RdmapOpcode {
    /// The opcode with that number.
    ///
    /// # Errors
    /// [`IwarpError::Opcode`].
    pub fn new(number: u8) -> Result<Self, IwarpError> {
        let row = OPCODES.get(usize::from(number));
        row.map_or(Err(IwarpError::Opcode(number)), |row| Ok(row.0))
    }

    /// Its number on the wire.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The queue that numbers its messages; `None` for tagged messages.
    pub const fn queue(self) -> Option<RdmapQueue> {
        OPCODES[self as usize].2
    }

    /// Whether it consumes a receive of the peer, as the Sends and Immediate Data do.
    pub const fn takes_receive(self) -> bool {
        matches!(self.queue(), Some(RdmapQueue::Send))
    }

    /// Whether it wakes a peer that waits only for solicited events.
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited
        )
    }

    /// Whether it invalidates an STag of the peer.
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }
}

impl fmt::Display for RdmapOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(OPCODES[*self as usize].1)
    }
}

/// The queues of untagged messages. Each numbers its messages from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RdmapQueue {
    /// Queue 0: Sends and Immediate Data.
    Send,
    /// Queue 1: RDMA Read Requests and Atomic Requests.
    Request,
    /// Queue 2: Terminate.
    Terminate,
    /// Queue 3: Atomic Responses.
    AtomicResponse,
}

impl RdmapQueue {
    /// The number of queues.
    pub const COUNT: usize = 4;

    /// Its number on the wire.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// The body of an RDMA Read Request: the message has one segment and no other content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The memory of the requester that receives the bytes.
    pub sink: STag,
    /// The offset in that memory.
    pub sink_offset: u64,
    /// The number of bytes.
    pub len: u32,
    /// The memory that the bytes are read from.
    pub source: STag,
    /// The offset in that memory.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Bytes of the body.
    pub const LEN: usize = 28;

    /// Reads the payload of a Read Request.
    ///
    /// # Errors
    /// [`IwarpError::Truncated`], [`IwarpError::Surplus`].
    pub fn parse(payload: &[u8]) -> Result<Self, IwarpError> {
        let mut body = Fields(exactly::<{ Self::LEN }>(payload, Part::ReadRequest)?);
        Ok(Self {
            sink: STag::from_bytes(body.next()),
            sink_offset: u64::from_be_bytes(body.next()),
            len: u32::from_be_bytes(body.next()),
            source: STag::from_bytes(body.next()),
            source_offset: u64::from_be_bytes(body.next()),
        })
    }

    /// The body in wire format.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.sink.to_bytes());
        out[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        out[12..16].copy_from_slice(&self.len.to_be_bytes());
        out[16..20].copy_from_slice(&self.source.to_bytes());
        out[20..].copy_from_slice(&self.source_offset.to_be_bytes());
        out
    }
}

/// The operation of an Atomic Request on the eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Adds. A set bit of the mask ends a field: no carry leaves the field.
    FetchAdd {
        /// The addend.
        add: u64,
        /// The ends of fields; 0 for one field of 64 bits.
        mask: u64,
    },
    /// Compares the bits of one mask and, if they are equal, replaces those of the other.
    CmpSwap {
        /// The new bits.
        swap: u64,
        /// The bits that are replaced.
        swap_mask: u64,
        /// The expected bits.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
    },
}

/// The body of an Atomic Request (RFC 7306, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The number that matches the response to the request.
    pub request: u32,
    /// The memory.
    pub stag: STag,
    /// The offset in it.
    pub offset: u64,
    /// The operation.
    pub operation: AtomicOperation,
}

impl AtomicRequest {
    /// Bytes of the body.
    pub const LEN: usize = 52;

    /// Reads the payload of an Atomic Request.
    ///
    /// # Errors
    /// [`IwarpError::Truncated`], [`IwarpError::Surplus`], [`IwarpError::AtomicOperation`].
    pub fn parse(payload: &[u8]) -> Result<Self, IwarpError> {
        let mut body = Fields(exactly::<{ Self::LEN }>(payload, Part::AtomicRequest)?);
        let [_, _, _, code] = body.next();
        let request = u32::from_be_bytes(body.next());
        let stag = STag::from_bytes(body.next());
        let offset = u64::from_be_bytes(body.next());
        let [first, first_mask, compare, compare_mask] =
            std::array::from_fn(|_| u64::from_be_bytes(body.next()));
        let operation = match code & 0xf {
            FETCH_ADD => AtomicOperation::FetchAdd {
                add: first,
                mask: first_mask,
            },
            CMP_SWAP => AtomicOperation::CmpSwap {
                swap: first,
                swap_mask: first_mask,
                compare,
                compare_mask,
            },
            code => return Err(IwarpError::AtomicOperation(code)),
        };
        Ok(Self {
            request,
            stag,
            offset,
            operation,
        })
    }

    /// The body in wire format.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let (code, operands) = match self.operation {
            AtomicOperation::FetchAdd { add, mask } => (FETCH_ADD, [add, mask, 0, 0]),
            AtomicOperation::CmpSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            } => (CMP_SWAP, [swap, swap_mask, compare, compare_mask]),
        };
        let mut out = [0; Self::LEN];
        out[3] = code;
        out[4..8].copy_from_slice(&self.request.to_be_bytes());
        out[8..12].copy_from_slice(&self.stag.to_bytes());
        out[12..20].copy_from_slice(&self.offset.to_be_bytes());
        for (field, operand) in out[20..].chunks_exact_mut(8).zip(operands) {
            field.copy_from_slice(&operand.to_be_bytes());
        }
        out
    }
}

/// The body of an Atomic Response (RFC 7306, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The number of the request.
    pub request: u32,
    /// The value in memory before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Bytes of the body.
    pub const LEN: usize = 12;

    /// Reads the payload of an Atomic Response.
    ///
    /// # Errors
    /// [`IwarpError::Truncated`], [`IwarpError::Surplus`].
    pub fn parse(payload: &[u8]) -> Result<Self, IwarpError> {
        let mut body = Fields(exactly::<{ Self::LEN }>(payload, Part::AtomicResponse)?);
        Ok(Self {
            request: u32::from_be_bytes(body.next()),
            original: u64::from_be_bytes(body.next()),
        })
    }

    /// The body in wire format.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.request.to_be_bytes());
        out[4..].copy_from_slice(&self.original.to_be_bytes());
        out
    }
}

/// The body of an Immediate Data message (RFC 7306, section 6): eight bytes for the peer's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmediateData(pub [u8; 8]);

impl ImmediateData {
    /// Bytes of the body.
    pub const LEN: usize = 8;

    /// Reads the payload of an Immediate Data message.
    ///
    /// # Errors
    /// [`IwarpError::Truncated`], [`IwarpError::Surplus`].
    pub fn parse(payload: &[u8]) -> Result<Self, IwarpError> {
        exactly(payload, Part::ImmediateData).map(|body| Self(*body))
    }
}

const FETCH_ADD: u8 = 0;
const CMP_SWAP: u8 = 2;

/// The fields of a body whose length has been checked, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// The next field; zeros beyond the end, which the lengths of the bodies rule out.
    fn next<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }
}
