//! Exposed memory: regions that peers read and write, and the tokens that let them.

use std::fmt;
use std::ops::Range;

use verbs_core::{Access, Mr, RKey, Remote};

use crate::error::Error;

/// Memory that peers may read or write by themselves, with a [`Token`] of it.
///
/// As a peer may write at any time there is no slice of it: [`read_at`](Region::read_at) and
/// [`write_at`](Region::write_at) copy, [`load`](Region::load) and [`store`](Region::store) are atomic.
///
/// Dropping it, or [`Region::revoke`], makes all of its tokens useless.
pub struct Region {
    mr: Mr,
}

impl Region {
    pub(crate) fn new(mr: Mr) -> Self {
        Self { mr }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.mr.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.mr.is_empty()
    }

    /// Copies bytes out, from `offset` on. A peer that writes there at the same time may tear them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        Ok(self.mr.read(offset, into)?)
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        Ok(self.mr.write(offset, from)?)
    }

    /// Loads the 8 bytes at `offset`, a multiple of 8, in one piece; acquire.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Verb`] for an offset that is not a multiple of 8.
    pub fn load(&self, offset: usize) -> Result<u64, Error> {
        Ok(self.mr.memory().load_u64(offset)?)
    }

    /// Stores 8 bytes at `offset`, a multiple of 8, in one piece; release.
    ///
    /// # Errors
    /// As [`Region::load`].
    pub fn store(&self, offset: usize, value: u64) -> Result<(), Error> {
        Ok(self.mr.memory().store_u64(offset, value)?)
    }

    /// The token of a part of it, to be given to a peer. It grants what the region was made with.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn token(&self, range: Range<usize>) -> Result<Token, Error> {
        if range.start > range.end || range.end > self.len() {
            return Err(Error::OutOfRange {
                end: range.end.max(range.start) as u64,
                size: self.len() as u64,
            });
        }
        Ok(Token {
            addr: self.mr.iova() + range.start as u64,
            len: range.len() as u64,
            rkey: self.mr.rkey(),
            rights: self.mr.access() & Access::REMOTE,
        })
    }

    /// Takes the memory back: when this has completed no peer reaches it.
    ///
    /// # Errors
    /// [`Error::Removed`], [`Error::Verb`].
    pub async fn revoke(self) -> Result<(), Error> {
        let gone = self.mr.dereg().await;
        gone.map_err(|refused| refused.error.into())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len())
    }
}

/// The right to a piece of a peer's memory: 24 bytes that travel in messages.
///
/// It is checked here before anything is posted, for the sake of errors that say what is wrong, and by the peer's
/// device, which is what protects the peer.
///
/// With feature `serde` it is a value of four numbers, which are checked as [`Token::from_bytes`] checks bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "Parts", try_from = "Parts"))]
pub struct Token {
    addr: u64,
    len: u64,
    rkey: RKey,
    rights: Access,
}

/// A token as numbers.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
struct Parts {
    addr: u64,
    len: u64,
    rkey: u32,
    rights: u32,
}

#[cfg(feature = "serde")]
impl From<Token> for Parts {
    fn from(token: Token) -> Self {
        Self {
            addr: token.addr,
            len: token.len,
            rkey: token.rkey.value(),
            rights: token.rights.bits(),
        }
    }
}

#[cfg(feature = "serde")]
impl TryFrom<Parts> for Token {
    type Error = Error;

    fn try_from(parts: Parts) -> Result<Self, Error> {
        Self::checked(parts.addr, parts.len, parts.rkey, parts.rights)
    }
}

impl Token {
    /// Bytes that it takes in a message.
    pub const SIZE: usize = 24;

    /// Bytes that it is about.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is about none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it grants: of [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`] and [`Access::REMOTE_ATOMIC`].
    pub const fn rights(&self) -> Access {
        self.rights
    }

    /// The token of a part of it, counted from its first byte.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub const fn slice(self, range: Range<u64>) -> Result<Self, Error> {
        if range.start > range.end || range.end > self.len {
            let end = if range.start > range.end {
                range.start
            } else {
                range.end
            };
            return Err(Error::OutOfRange {
                end,
                size: self.len,
            });
        }
        Ok(Self {
            addr: self.addr + range.start,
            len: range.end - range.start,
            ..self
        })
    }

    /// The 8 bytes at `offset`, for atomics.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Misaligned`] if their address is not a multiple of 8.
    pub const fn word(self, offset: u64) -> Result<Word, Error> {
        let end = offset.saturating_add(8);
        if end > self.len {
            return Err(Error::OutOfRange {
                end,
                size: self.len,
            });
        }
        let addr = self.addr + offset;
        if !addr.is_multiple_of(8) {
            return Err(Error::Misaligned { addr });
        }
        Ok(Word {
            remote: Remote {
                addr,
                rkey: self.rkey,
            },
            rights: self.rights,
        })
    }

    /// Its bytes for a message, in network order.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.value().to_be_bytes());
        bytes[20..].copy_from_slice(&self.rights.bits().to_be_bytes());
        bytes
    }

    /// The token that a peer has sent, at the start of `bytes`.
    ///
    /// # Errors
    /// [`Error::NoToken`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let bytes = bytes.first_chunk::<{ Self::SIZE }>();
        let bytes = bytes.ok_or(Error::NoToken("there are fewer than 24"))?;
        let (addr, rest) = bytes.split_first_chunk::<8>().expect("24 bytes");
        let (len, rest) = rest.split_first_chunk::<8>().expect("16 bytes");
        let (rkey, rights) = rest.split_first_chunk::<4>().expect("8 bytes");
        let rights = rights.first_chunk::<4>().expect("4 bytes");
        let (addr, len) = (u64::from_be_bytes(*addr), u64::from_be_bytes(*len));
        let (rkey, rights) = (u32::from_be_bytes(*rkey), u32::from_be_bytes(*rights));
        Self::checked(addr, len, rkey, rights)
    }

    /// The token of those numbers, which a peer has sent.
    fn checked(addr: u64, len: u64, rkey: u32, rights: u32) -> Result<Self, Error> {
        let rights = Access::from_bits(rights)
            .filter(|rights| Access::REMOTE.contains(*rights))
            .ok_or(Error::NoToken("they grant what is no remote right"))?;
        if addr.checked_add(len).is_none() {
            return Err(Error::NoToken("the range wraps around the address space"));
        }
        Ok(Self {
            addr,
            len,
            rkey: RKey::new(rkey),
            rights,
        })
    }

    /// Where `len` bytes go to, or come from, with that right.
    #[inline]
    pub(crate) fn place(self, len: usize, needed: Access) -> Result<Remote, Error> {
        if len as u64 > self.len {
            return Err(Error::OutOfRange {
                end: len as u64,
                size: self.len,
            });
        }
        granted(self.rights, needed)?;
        Ok(Remote {
            addr: self.addr,
            rkey: self.rkey,
        })
    }
}

/// 8 bytes of a peer's memory, for atomics: [`Token::word`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    remote: Remote,
    rights: Access,
}

impl Word {
    pub(crate) fn place(self) -> Result<Remote, Error> {
        granted(self.rights, Access::REMOTE_ATOMIC)?;
        Ok(self.remote)
    }
}

#[inline]
fn granted(granted: Access, needed: Access) -> Result<(), Error> {
    match granted.contains(needed) {
        true => Ok(()),
        false => Err(Error::NoRight { needed, granted }),
    }
}

#[cfg(all(test, feature = "serde"))]
mod serde_tests {
    use super::*;

    /// Goal: a token goes through JSON, and one that cannot be is refused, as in bytes.
    #[test]
    fn tokens_are_checked_values() {
        let token = Token {
            addr: 0x1000,
            len: 64,
            rkey: RKey::new(7),
            rights: Access::REMOTE_READ,
        };
        let text = serde_json::to_string(&token).expect("numbers");
        assert_eq!(serde_json::from_str::<Token>(&text).ok(), Some(token));
        for wrong in [
            r#"{"addr":1,"len":18446744073709551615,"rkey":7,"rights":4}"#,
            r#"{"addr":1,"len":1,"rkey":7,"rights":4294967295}"#,
        ] {
            let error = serde_json::from_str::<Token>(wrong).expect_err(wrong);
            assert!(error.to_string().contains("no token"), "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token {
            addr: 0x1000,
            len: 64,
            rkey: RKey::new(0x205),
            rights: Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        }
    }

    #[test]
    fn tokens_travel() {
        let bytes = token().to_bytes();
        assert_eq!(Token::from_bytes(&bytes), Ok(token()));
        assert!(matches!(
            Token::from_bytes(&bytes[..23]),
            Err(Error::NoToken(_))
        ));
        let mut bad = bytes;
        bad[23] = 1; // LOCAL_WRITE is no right of a peer's
        assert!(matches!(Token::from_bytes(&bad), Err(Error::NoToken(_))));
        let mut bad = bytes;
        bad[..16].fill(0xff);
        assert!(matches!(Token::from_bytes(&bad), Err(Error::NoToken(_))));
    }

    proptest::proptest! {
        /// Goal: whatever a peer sends for a token is refused, or is one all of whose parts lie within it. Method: random
        /// bytes, with rights that are often legal.
        #[test]
        fn foreign_tokens_do_no_harm(
            mut bytes: [u8; Token::SIZE],
            rights in 0_u32..32,
            start: u64,
            len in 0_u64..100,
        ) {
            bytes[20..].copy_from_slice(&rights.to_be_bytes());
            if let Ok(token) = Token::from_bytes(&bytes) {
                assert_eq!(token.to_bytes(), bytes);
                let start = start % token.len().max(1);
                match token.slice(start..start.saturating_add(len)) {
                    Ok(part) => assert!(part.addr - token.addr + part.len <= token.len),
                    Err(error) => assert!(matches!(error, Error::OutOfRange { .. })),
                }
                if let Ok(word) = token.word(start) {
                    assert!(word.remote.addr.is_multiple_of(8));
                }
            }
        }
    }

    #[test]
    fn parts_stay_within_the_whole() {
        let part = token().slice(8..24).unwrap();
        assert_eq!((part.addr, part.len()), (0x1008, 16));
        assert_eq!(
            token().slice(8..65),
            Err(Error::OutOfRange { end: 65, size: 64 })
        );
        assert!(token().word(56).is_ok());
        assert_eq!(
            token().word(57),
            Err(Error::OutOfRange { end: 65, size: 64 })
        );
        assert_eq!(token().word(4), Err(Error::Misaligned { addr: 0x1004 }));
        let right = token().place(8, Access::REMOTE_WRITE);
        assert!(matches!(right, Err(Error::NoRight { .. })));
        assert!(token().place(64, Access::REMOTE_READ).is_ok());
    }
}
