//! What the two ends tell each other by SENDs, apart from the data.
//!
//! Announcements and credits say the low half of a chunk number: as immediate data of a message without payload, or as the
//! payload where SENDs have no immediate data, as with iWARP. Each end closes with its [`Totals`].

use blake3::Hash;

/// Bytes of a number that is the payload of a message, in network order.
pub(crate) const NUMBER_LEN: usize = 4;

/// What went through one end: the sender's of what it read, the receiver's of what arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Chunks of the file.
    pub(crate) chunks: u64,
    /// Digest of all bytes in order.
    pub(crate) digest: Hash,
}

impl Totals {
    /// Bytes of the message.
    pub(crate) const LEN: usize = 48;

    /// As it travels: numbers in network order, then the digest.
    pub(crate) fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.bytes.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.chunks.to_be_bytes());
        bytes[16..].copy_from_slice(self.digest.as_bytes());
        bytes
    }

    /// From what has arrived; every sequence of bytes is some message.
    pub(crate) fn parse(message: &[u8; Self::LEN]) -> Self {
        let (mut bytes, mut chunks, mut digest) = ([0; 8], [0; 8], [0; 32]);
        bytes.copy_from_slice(&message[..8]);
        chunks.copy_from_slice(&message[8..16]);
        digest.copy_from_slice(&message[16..]);
        Self {
            bytes: u64::from_be_bytes(bytes),
            chunks: u64::from_be_bytes(chunks),
            digest: Hash::from_bytes(digest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_come_back() {
        let totals = Totals {
            bytes: 5 << 30,
            chunks: 5120,
            digest: blake3::hash(b"file"),
        };
        let message = totals.emit();
        assert_eq!(Totals::parse(&message), totals);
        assert_eq!(&message[..8], &[0, 0, 0, 1, 0x40, 0, 0, 0]);
    }
}
