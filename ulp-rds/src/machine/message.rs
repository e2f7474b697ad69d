//! Messages on both sides of a connection.

use crate::payload::Payload;
use crate::wire::{Extensions, Header};

/// A message that a socket sends.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The sending socket.
    pub source: u16,
    /// The receiving socket.
    pub destination: u16,
    /// What is sent; kept until the peer has acknowledged it.
    pub payload: Payload,
    /// Whether the peer is asked to acknowledge it without delay.
    pub ack_required: bool,
    /// Extension headers.
    pub extensions: Extensions,
    /// An operation that goes before it.
    pub rdma: Option<RdmaWork>,
}

/// A message of one packet that a socket sends, and no more than that: without extension headers, and no operation before it.
/// Its payload stays with the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// The sending socket.
    pub source: u16,
    /// The receiving socket.
    pub destination: u16,
    /// Bytes, [`FRAGMENT_LEN`](crate::wire::FRAGMENT_LEN) at most.
    pub len: u32,
    /// Whether the peer is asked to acknowledge it without delay.
    pub ack_required: bool,
}

impl Short {
    /// The same as any other message.
    pub fn queued(&self, payload: Payload) -> Outgoing {
        Outgoing {
            source: self.source,
            destination: self.destination,
            payload,
            ack_required: self.ack_required,
            extensions: Extensions::default(),
            rdma: None,
        }
    }
}

/// An RDMA operation that is posted right before the first packet of its message, and not a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaWork {
    /// Which one; the caller knows what it is.
    pub id: u64,
    /// The packet waits until the operation has ended.
    pub fenced: bool,
    /// The peer's program is not woken.
    pub silent: bool,
}

/// A message that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The sending socket.
    pub source: u16,
    /// The receiving socket.
    pub destination: u16,
    /// What was sent.
    pub payload: Payload,
    /// Extension headers.
    pub extensions: Extensions,
}

/// A packet that is to be posted: a header, and a piece of a message behind it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'m> {
    /// The header.
    pub header: [u8; Header::LEN],
    /// A piece of a message, or of a congestion map.
    pub payload: &'m [u8],
    /// Whether the message, or the map, ends with it. So do packets without one.
    pub ends: bool,
    /// Whether it is a pure acknowledgement, of which one is in flight at a time.
    pub control: bool,
    /// What is to be posted before it.
    pub rdma: Option<RdmaWork>,
}

impl Packet<'_> {
    /// Whether it ends a message, or is one for the peer alone: it is sent with a solicited event. Linux looks at its
    /// receives when such a one has come, and at no other time.
    pub fn is_last(&self) -> bool {
        self.ends && !self.rdma.is_some_and(|rdma| rdma.silent)
    }
}

/// What a connection says to its sockets, beside what comes for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer has messages of a socket: their bytes no longer count against the sender's buffer.
    Acked {
        /// The sending socket.
        source: u16,
        /// How many messages.
        messages: usize,
        /// Bytes of them.
        bytes: usize,
    },
    /// The peer has sent a new congestion map. Ports whose bit `port % 64` is set here became free.
    Congestion(u64),
}

/// A packet that has come, where it lies.
pub trait Arrived {
    /// Its bytes, header and payload.
    fn len(&self) -> usize;

    /// Copies bytes out, from `at` on. `None` if it has not as many, or they cannot be read.
    fn read(&self, at: usize, into: &mut [u8]) -> Option<()>;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Arrived for [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Option<()> {
        into.copy_from_slice(self.get(at..)?.get(..into.len())?);
        Some(())
    }
}
