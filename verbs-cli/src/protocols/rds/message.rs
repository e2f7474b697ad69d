//! What requests and answers of `verbs rds stress` carry.
//!
//! ```text
//!   0  4  "RDSq", a request, or "RDSa", its answer
//!   4  4  bytes that the answer is to have
//!   8  8  number of the request, from 0 on, for each socket that asks
//!  16  …  a pattern that the number decides
//! ```
//! All numbers are big-endian.

/// Bytes before the pattern.
pub(super) const HEADER: usize = 16;

const REQUEST: [u8; 4] = *b"RDSq";
const ANSWER: [u8; 4] = *b"RDSa";

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) is_answer: bool,
    pub(super) ack_bytes: u32,
    pub(super) number: u64,
}

/// What is wrong with a message. Half a sentence.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Wrong {
    #[error("a datagram of {0} bytes that is not of `verbs rds stress`")]
    Foreign(usize),
    #[error("number {got} came where {expected} was due")]
    Order { got: u64, expected: u64 },
    #[error("number {number} has {got} bytes and was to have {expected}")]
    Length {
        number: u64,
        got: usize,
        expected: usize,
    },
    #[error("byte {at} of number {number} is {got:#04x} and was sent as {expected:#04x}")]
    Byte {
        number: u64,
        at: usize,
        got: u8,
        expected: u8,
    },
}

impl Message {
    /// Writes it into all of `into`, which has room for the header.
    pub(super) fn put(&self, into: &mut [u8]) {
        into[..4].copy_from_slice(if self.is_answer { &ANSWER } else { &REQUEST });
        into[4..8].copy_from_slice(&self.ack_bytes.to_be_bytes());
        into[8..HEADER].copy_from_slice(&self.number.to_be_bytes());
        for (at, byte) in (0..).zip(&mut into[HEADER..]) {
            *byte = pattern(self.number, at);
        }
    }

    /// Reads the header.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Wrong> {
        let foreign = Wrong::Foreign(bytes.len());
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Err(foreign);
        };
        let (kind, rest) = header.split_at(4);
        let (ack, number) = rest.split_at(4);
        let is_answer = match kind {
            kind if kind == REQUEST => false,
            kind if kind == ANSWER => true,
            _ => return Err(foreign),
        };
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        Ok(Self {
            is_answer,
            ack_bytes: word(ack) as u32,
            number: word(number),
        })
    }

    /// Compares what follows the header with what was sent.
    pub(super) fn check(&self, bytes: &[u8]) -> Result<(), Wrong> {
        let rest = bytes.iter().enumerate().skip(HEADER);
        for (at, &got) in rest {
            let expected = pattern(self.number, (at - HEADER) as u64);
            if got != expected {
                let number = self.number;
                return Err(Wrong::Byte {
                    number,
                    at,
                    got,
                    expected,
                });
            }
        }
        Ok(())
    }
}

fn pattern(number: u64, at: u64) -> u8 {
    (number.wrapping_mul(31).wrapping_add(at) % 251) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let message = Message {
            is_answer: true,
            ack_bytes: 77,
            number: 1 << 40,
        };
        let mut bytes = [0; 100];
        message.put(&mut bytes);
        assert_eq!(Message::parse(&bytes), Ok(message));
        assert_eq!(message.check(&bytes), Ok(()));
        bytes[60] ^= 1;
        assert!(matches!(
            message.check(&bytes),
            Err(Wrong::Byte { at: 60, .. })
        ));
    }

    #[test]
    fn what_is_something_else_is_refused() {
        assert_eq!(Message::parse(b""), Err(Wrong::Foreign(0)));
        assert_eq!(Message::parse(&[0; 64]), Err(Wrong::Foreign(64)));
        let mut bytes = [0; HEADER];
        Message {
            is_answer: false,
            ack_bytes: 16,
            number: 1,
        }
        .put(&mut bytes);
        assert_eq!(
            Message::parse(&bytes[..HEADER - 1]),
            Err(Wrong::Foreign(HEADER - 1))
        );
    }
}
