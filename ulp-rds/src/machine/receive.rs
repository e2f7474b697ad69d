//! Packets that come in, put together.

use super::message::{Arrived, Incoming};
use crate::payload::Payload;
use crate::wire::{
    CongestionMap, FRAGMENT_LEN, Header, HeaderError, HeaderFlags, MESSAGE_LEN_MAX, MapLength,
};

/// What a peer did that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The header cannot be read.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A congestion map has a wrong length.
    #[error(transparent)]
    Map(#[from] MapLength),
    /// A message is longer than allowed.
    #[error("a message of {0} bytes; 1048576 are allowed")]
    TooLong(u32),
    /// A message carries no sequence number.
    #[error("a message of {0} bytes without a sequence number")]
    NoSequence(u32),
    /// A fragment belongs to another message than the one before.
    #[error("a fragment of message {got} inside message {expected}")]
    Mixed {
        /// The message that is incomplete.
        expected: u64,
        /// The one that the fragment is of.
        got: u64,
    },
    /// A fragment has a wrong length.
    #[error("a fragment of {got} bytes where {expected} are due")]
    Fragment {
        /// Bytes that are due.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
}

/// What a packet completed.
#[derive(Debug)]
pub(super) enum Whole {
    /// Nothing yet.
    Nothing,
    /// A message that is new.
    Message(Incoming),
    /// A message that was delivered before.
    Duplicate,
    /// A congestion map.
    Map(CongestionMap),
}

#[derive(Debug)]
pub(super) struct Receive {
    /// The lowest sequence number that is new.
    next: u64,
    partial: Option<(Header, Payload)>,
}

impl Default for Receive {
    fn default() -> Self {
        Self {
            next: 1,
            partial: None,
        }
    }
}

impl Receive {
    /// The highest sequence number that was received.
    pub(super) fn ack(&self) -> u64 {
        self.next - 1
    }

    /// The connection is lost, and with it the rest of an incomplete message.
    pub(super) fn lost(&mut self) {
        self.partial = None;
    }

    /// The peer counts from 1 again.
    pub(super) fn restart(&mut self) {
        self.next = 1;
    }

    /// Takes a packet of so many bytes of payload without them, if it is a message of one packet that was not received before.
    #[inline]
    pub(super) fn single(&mut self, header: &Header, payload: usize) -> bool {
        let unlike = HeaderFlags::CONGESTION | HeaderFlags::RETRANSMITTED;
        let is_single = payload == header.len as usize
            && payload <= FRAGMENT_LEN
            && header.sequence != 0
            && !header.flags.intersects(unlike)
            && self.partial.is_none();
        if is_single {
            self.next = header.sequence.saturating_add(1);
        }
        is_single
    }

    /// Takes a fragment, whose header was read. `room` makes an empty payload with room for so many bytes.
    pub(super) fn fragment(
        &mut self,
        header: &Header,
        packet: &(impl Arrived + ?Sized),
        room: impl FnOnce(usize) -> Payload,
    ) -> Result<Whole, Fault> {
        if header.len as usize > MESSAGE_LEN_MAX {
            return Err(Fault::TooLong(header.len));
        }
        let is_map = header.flags.contains(HeaderFlags::CONGESTION);
        if !is_map && header.sequence == 0 {
            return Err(Fault::NoSequence(header.len));
        }
        let (first, mut bytes) = match self.partial.take() {
            Some((first, _)) if !first.is_same_message(header) => {
                return Err(Fault::Mixed {
                    expected: first.sequence,
                    got: header.sequence,
                });
            }
            Some(partial) => partial,
            None => (*header, room(header.len as usize)),
        };
        let expected = FRAGMENT_LEN.min(header.len as usize - bytes.len());
        let got = packet.len().saturating_sub(Header::LEN);
        let copied = bytes.append(expected, |into| {
            (got == expected).then(|| packet.read(Header::LEN, into))?
        });
        copied.ok_or(Fault::Fragment { expected, got })?;
        if bytes.len() < first.len as usize {
            self.partial = Some((first, bytes));
            return Ok(Whole::Nothing);
        }
        if is_map {
            return Ok(Whole::Map(CongestionMap::parse(&bytes)?));
        }
        // The flags are those of its last packet.
        let is_again = header.flags.contains(HeaderFlags::RETRANSMITTED);
        if header.sequence < self.next && is_again {
            return Ok(Whole::Duplicate);
        }
        self.next = header.sequence.saturating_add(1);
        Ok(Whole::Message(Incoming {
            source: first.source,
            destination: first.destination,
            payload: bytes,
            extensions: first.extensions,
        }))
    }
}
