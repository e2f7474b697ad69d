//! The messages between the two ends of a stream: the protocol of Debian's librdmacm, so that either end may be that
//! library.

/// The parameters of a side when a stream begins, in the private data of its request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rsocket) struct Hello {
    /// Its memory is in big-endian byte order.
    pub(in crate::rsocket) is_big_endian: bool,
    /// The messages that it takes before it grants more credits.
    pub(in crate::rsocket) credits: u16,
    /// Maps that its table for this side's memory has room for.
    pub(in crate::rsocket) maps: u16,
    /// Its ring of buffers for this side's data: address, key, and number of entries.
    pub(in crate::rsocket) ring: Piece,
    /// The first buffer for this side's data.
    pub(in crate::rsocket) first: Piece,
}

/// Memory of a side: its address, key and length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::rsocket) struct Piece {
    pub(in crate::rsocket) addr: u64,
    pub(in crate::rsocket) key: u32,
    pub(in crate::rsocket) length: u32,
}

/// Bytes of a [`Hello`].
pub(in crate::rsocket) const HELLO: usize = 40;
/// Bytes of a [`Piece`] in a ring.
pub(in crate::rsocket) const PIECE: usize = 16;
/// Bytes of an entry in a table of maps: an offset, and a piece.
pub(in crate::rsocket) const MAP: usize = 24;

const VERSION: u8 = 1;
const BIG_ENDIAN: u8 = 1;
const HAS_MAPS: u8 = 2;

impl Hello {
    pub(in crate::rsocket) fn emit(&self) -> [u8; HELLO] {
        let mut out = [0; HELLO];
        out[0] = VERSION;
        out[1] = HAS_MAPS | if self.is_big_endian { BIG_ENDIAN } else { 0 };
        out[2..4].copy_from_slice(&self.credits.to_be_bytes());
        out[7] = scaled(self.maps);
        for (piece, at) in [(self.ring, 8), (self.first, 24)] {
            out[at..at + 8].copy_from_slice(&piece.addr.to_be_bytes());
            out[at + 8..at + 12].copy_from_slice(&piece.key.to_be_bytes());
            out[at + 12..at + 16].copy_from_slice(&piece.length.to_be_bytes());
        }
        out
    }

    /// `None` for bytes that are invalid, or of another version.
    pub(in crate::rsocket) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO] = bytes.first_chunk()?;
        let [version, flags, high, low, _, _, _, maps, ..] = *bytes;
        if version != VERSION {
            return None;
        }
        let piece = |at: usize| {
            let number = |from: usize| {
                let four = [0, 1, 2, 3].map(|next| bytes[at + from + next]);
                u32::from_be_bytes(four)
            };
            Piece {
                addr: u64::from(number(0)) << 32 | u64::from(number(4)),
                key: number(8),
                length: number(12),
            }
        };
        Some(Self {
            is_big_endian: flags & BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([high, low]),
            maps: if flags & HAS_MAPS == 0 {
                0
            } else {
                unscaled(maps)
            },
            ring: piece(8),
            first: piece(24),
        })
    }
}

/// A count of maps in a byte: unchanged up to 128, in multiples of 256 beyond.
fn scaled(maps: u16) -> u8 {
    match maps {
        0..=128 => maps as u8,
        _ => 0x80 + (maps / 256).min(127) as u8,
    }
}

fn unscaled(byte: u8) -> u16 {
    match byte {
        0..=128 => byte.into(),
        _ => u16::from(byte - 0x80) * 256,
    }
}

/// A message: the immediate data of an RDMA WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rsocket) enum Message {
    /// That many bytes were written behind the previous ones.
    Data(u32),
    /// More may be sent, up to that number; a buffer may have been written into the ring.
    Credit(u16),
    /// An entry of the table of maps was written.
    Map,
    /// The sender sends no more, and receives no more.
    Disconnect,
    /// The sender sends no more.
    Shutdown,
    /// A message that needs no action.
    Other,
}

const DATA: u32 = 0;
const CREDIT: u32 = 4;
const MAPPED: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    /// As immediate data, before conversion to network byte order.
    pub(in crate::rsocket) fn emit(self) -> u32 {
        let (op, value) = match self {
            Self::Data(length) => (DATA, length),
            Self::Credit(limit) => (CREDIT, limit.into()),
            Self::Map => (MAPPED, 0),
            Self::Disconnect => (CONTROL, 0),
            Self::Shutdown => (CONTROL, 2),
            Self::Other => (CONTROL, 1),
        };
        op << 29 | value
    }

    pub(in crate::rsocket) fn parse(imm: u32) -> Self {
        let value = imm & 0x1fff_ffff;
        match (imm >> 29, value) {
            (CREDIT, limit) => Self::Credit(limit as u16),
            (MAPPED, _) => Self::Map,
            (CONTROL, 0) => Self::Disconnect,
            (CONTROL, 2) => Self::Shutdown,
            (CONTROL, _) => Self::Other,
            // Reserved ones are treated as data, as the peer treats them.
            (_, length) => Self::Data(length),
        }
    }
}

impl Piece {
    /// As an entry of the ring of a peer that has the other byte order, or this machine's.
    pub(in crate::rsocket) fn to_ring(self, swaps: bool) -> [u8; PIECE] {
        let turned = if swaps {
            Self {
                addr: self.addr.swap_bytes(),
                key: self.key.swap_bytes(),
                length: self.length.swap_bytes(),
            }
        } else {
            self
        };
        let mut out = [0; PIECE];
        out[..8].copy_from_slice(&turned.addr.to_ne_bytes());
        out[8..12].copy_from_slice(&turned.key.to_ne_bytes());
        out[12..].copy_from_slice(&turned.length.to_ne_bytes());
        out
    }

    /// An entry of a ring here: the peer has put it into this machine's byte order.
    pub(in crate::rsocket) fn of_ring(bytes: [u8; PIECE]) -> Self {
        let number = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|next| bytes[at + next]));
        Self {
            addr: u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| bytes[at])),
            key: number(8),
            length: number(12),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_librdmacm() {
        for (message, imm) in [
            (Message::Data(5), 0x0000_0005),
            (Message::Credit(387), 0x8000_0183),
            (Message::Disconnect, 0xe000_0000),
            (Message::Shutdown, 0xe000_0002),
        ] {
            assert_eq!((message.emit(), Message::parse(imm)), (imm, message));
        }
        assert_eq!(Message::parse(0xc000_0002), Message::Map);
        assert_eq!(Message::parse(0x2000_0007), Message::Data(7), "reserved");
    }

    #[test]
    fn what_a_side_says_of_itself_goes_there_and_back() {
        let hello = Hello {
            is_big_endian: true,
            credits: 384,
            maps: 100,
            ring: Piece {
                addr: 0x1122_3344_5566_7788,
                key: 0x99aa_bbcc,
                length: 2,
            },
            first: Piece {
                addr: 7,
                key: 8,
                length: 65536,
            },
        };
        let bytes = hello.emit();
        assert_eq!(bytes[..8], [1, 3, 1, 128, 0, 0, 0, 100]);
        assert_eq!(bytes[8..12], [0x11, 0x22, 0x33, 0x44]);
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!(Hello::parse(&bytes[..39]), None);
        assert_eq!(Hello::parse(&[2; 40]), None, "another version");
        assert_eq!(
            (scaled(300), unscaled(0x81), unscaled(scaled(0xffff))),
            (0x81, 256, 127 * 256)
        );
    }

    #[test]
    fn entries_of_a_ring_are_in_the_readers_order() {
        let piece = Piece {
            addr: 1,
            key: 2,
            length: 3,
        };
        assert_eq!(Piece::of_ring(piece.to_ring(false)), piece);
        assert_eq!(piece.to_ring(true)[..8], 1_u64.swap_bytes().to_ne_bytes());
    }

    /// Goal: whatever bytes a peer sends, they are read as some message, and a message is read as it was sent.
    #[test]
    fn any_bytes_are_read() {
        let mut random = oorandom::Rand64::new(21);
        for _ in 0..200_000 {
            let imm = random.rand_u64() as u32;
            if let Message::Data(length) = Message::parse(imm) {
                assert!(length < 1 << 29);
            }
            let mut bytes = [0; HELLO];
            for byte in &mut bytes {
                *byte = random.rand_u64() as u8;
            }
            bytes[0] = VERSION;
            let hello = Hello::parse(&bytes).expect("of this version");
            assert_eq!(Hello::parse(&hello.emit()), Some(hello));
        }
    }
}
