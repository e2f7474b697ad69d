//! Extension headers.

use std::fmt;

use verbs_core::RKey;

/// A place in a peer's memory, as an application passes it to another one: a key and an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cookie {
    /// The key.
    pub rkey: RKey,
    /// Bytes from the start of the mapping.
    pub offset: u32,
}

impl Cookie {
    /// The 64 bits that programs exchange: the key in the low half, the offset in the high half.
    pub const fn value(self) -> u64 {
        (self.offset as u64) << 32 | self.rkey.value() as u64
    }

    /// The cookie of these 64 bits.
    pub const fn of(value: u64) -> Self {
        Self {
            rkey: RKey::new(value as u32),
            offset: (value >> 32) as u32,
        }
    }
}

/// One extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extension {
    /// The version of the protocol; obsolete on InfiniBand.
    Version(u32),
    /// The key that an RDMA operation in front of this message has used.
    Rdma(RKey),
    /// Where the application lets its peer read or write.
    Destination(Cookie),
    /// Paths that the sender can use for one connection.
    Paths(u16),
    /// The number of the sender's life: another one says that it has forgotten everything.
    Generation(u32),
}

impl Extension {
    fn kind(self) -> u8 {
        match self {
            Self::Version(_) => 1,
            Self::Rdma(_) => 2,
            Self::Destination(_) => 3,
            Self::Paths(_) => 5,
            Self::Generation(_) => 6,
        }
    }

    /// Bytes behind the type, of types that are known.
    fn body_len(kind: u8) -> Option<usize> {
        match kind {
            1 | 2 | 6 => Some(4),
            3 => Some(8),
            5 => Some(2),
            _ => None,
        }
    }

    fn of(kind: u8, body: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*body.get(at..)?.first_chunk()?));
        Some(match kind {
            1 => Self::Version(word(0)?),
            2 => Self::Rdma(RKey::new(word(0)?)),
            3 => Self::Destination(Cookie {
                rkey: RKey::new(word(0)?),
                offset: word(4)?,
            }),
            5 => Self::Paths(u16::from_be_bytes(*body.first_chunk()?)),
            6 => Self::Generation(word(0)?),
            _ => return None,
        })
    }
}

/// There is no room for another extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the 16 bytes of a header's extensions have no room for it")]
pub struct Full;

/// The extension headers of one header: 16 bytes, each extension behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Extensions {
    bytes: [u8; Self::LEN],
    used: u8,
}

impl Extensions {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads them; what follows a type that is not known, or is cut off, is dropped.
    #[inline]
    pub fn parse(bytes: [u8; Self::LEN]) -> Self {
        // Most headers have none.
        match bytes[0] {
            0 => Self::default(),
            _ => Self::parse_some(&bytes),
        }
    }

    #[inline(never)]
    fn parse_some(bytes: &[u8; Self::LEN]) -> Self {
        let mut extensions = Self::default();
        let mut rest = &bytes[..];
        while let Some((&kind, behind)) = rest.split_first() {
            let body = Extension::body_len(kind).and_then(|len| behind.split_at_checked(len));
            let Some((body, behind)) = body else { break };
            // It came from as many bytes, so that there is room.
            let _fits = Extension::of(kind, body).map(|extension| extensions.push(extension));
            rest = behind;
        }
        extensions
    }

    /// One extension alone.
    pub fn one(extension: Extension) -> Self {
        let mut extensions = Self::default();
        // The longest takes nine bytes.
        let _fits = extensions.push(extension);
        extensions
    }

    /// Appends one.
    ///
    /// # Errors
    /// [`Full`], and nothing is changed.
    pub fn push(&mut self, extension: Extension) -> Result<(), Full> {
        let mut body = [0; 8];
        let kind = extension.kind();
        let len = Extension::body_len(kind).unwrap_or_default();
        match extension {
            Extension::Version(value) | Extension::Generation(value) => {
                body[..4].copy_from_slice(&value.to_be_bytes());
            }
            Extension::Rdma(rkey) => body[..4].copy_from_slice(&rkey.value().to_be_bytes()),
            Extension::Destination(Cookie { rkey, offset }) => {
                body[..4].copy_from_slice(&rkey.value().to_be_bytes());
                body[4..].copy_from_slice(&offset.to_be_bytes());
            }
            Extension::Paths(count) => body[..2].copy_from_slice(&count.to_be_bytes()),
        }
        let begin = usize::from(self.used);
        let end = begin + 1 + len;
        let place = self.bytes.get_mut(begin..end).ok_or(Full)?;
        place[0] = kind;
        place[1..].copy_from_slice(&body[..len]);
        // It is within the 16 bytes.
        self.used = end as u8;
        Ok(())
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = Extension> + '_ {
        let mut rest = &self.bytes[..usize::from(self.used)];
        std::iter::from_fn(move || {
            let (&kind, behind) = rest.split_first()?;
            let (body, behind) = behind.split_at_checked(Extension::body_len(kind)?)?;
            rest = behind;
            Extension::of(kind, body)
        })
    }

    /// Whether there is none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// As they are on the wire.
    pub const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.bytes
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
