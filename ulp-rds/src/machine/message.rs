//! Messages on both sides of a connection.

use std::ops::Range;

use verbs_core::sync::Arc;

use crate::wire::{Extensions, Header};

/// A message that a socket sends.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The sending socket.
    pub source: u16,
    /// The receiving socket.
    pub destination: u16,
    /// What is sent; shared, since it is kept until the peer has acknowledged it.
    pub payload: Arc<[u8]>,
    /// Whether the peer is asked to acknowledge it without delay.
    pub ack_required: bool,
    /// Extension headers.
    pub extensions: Extensions,
    /// An operation that goes before it.
    pub rdma: Option<RdmaWork>,
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
    pub payload: Vec<u8>,
    /// Extension headers.
    pub extensions: Extensions,
}

/// A packet that is to be posted: a header, and a piece of a message behind it.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The header.
    pub header: [u8; Header::LEN],
    /// The message that the payload is part of.
    pub message: Arc<[u8]>,
    /// The part of it.
    pub range: Range<usize>,
    /// Whether it is a pure acknowledgement, of which one is in flight at a time.
    pub control: bool,
    /// What is to be posted before it.
    pub rdma: Option<RdmaWork>,
}

impl Packet {
    /// The payload.
    pub fn payload(&self) -> &[u8] {
        self.message.get(self.range.clone()).unwrap_or_default()
    }

    /// Whether it ends a message, or is one for the peer alone: it is sent with a solicited event. Linux looks at its
    /// receives when such a one has come, and at no other time.
    pub fn is_last(&self) -> bool {
        self.range.end == self.message.len() && !self.rdma.is_some_and(|rdma| rdma.silent)
    }
}

/// What a connection says to its sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message has come.
    Datagram(Incoming),
    /// The peer has a message: its bytes no longer count against the sender's buffer.
    Acked {
        /// The sending socket.
        source: u16,
        /// Bytes of the message.
        len: usize,
    },
    /// The peer has sent a new congestion map. Ports whose bit `port % 64` is set here became free.
    Congestion(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_message_is_last_and_what_carries_none_too() {
        let message: Arc<[u8]> = Arc::from([7; 10]);
        let is_last = |range: Range<usize>, message: &Arc<[u8]>| {
            let packet = Packet {
                header: [0; Header::LEN],
                message: Arc::clone(message),
                range,
                control: false,
                rdma: None,
            };
            packet.is_last()
        };
        assert!(!is_last(0..4, &message));
        assert!(!is_last(4..8, &message));
        assert!(is_last(8..10, &message));
        assert!(is_last(0..0, &Arc::from([])), "an acknowledgement, a ping");
    }
}
