//! Values as bytes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bitflags::Flags;

use crate::addr::{Gid, Guid, LKey, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey, Srqn};

/// Bytes of a text at most; longer ones are cut when they are written.
pub const TEXT_MAX: usize = 1024;

/// Entries of a list at most, of any kind.
pub const LIST_MAX: usize = 4096;

/// Bytes that are no value of the kind that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// It ends in the middle of a value.
    #[error("the message ends in the middle of a value")]
    Short,
    /// A number that names nothing.
    #[error("{what} {got} is unknown")]
    Unknown {
        /// What the number is to name.
        what: &'static str,
        /// The number.
        got: u32,
    },
    /// More than there may be.
    #[error("{got} {what}, and at most {max} are allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        got: u32,
        /// How many there may be.
        max: u32,
    },
    /// Bytes behind the part that this version knows, which are not zero.
    #[error("the message says something that this version does not know")]
    Newer,
    /// Text that is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
}

/// Reads values from the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// From the first byte on.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next value.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read<T: Encode>(&mut self) -> Result<T, Malformed> {
        T::take(self)
    }

    /// So many bytes.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Nothing is left but what a later version may have added and not used.
    ///
    /// # Errors
    /// [`Malformed::Newer`].
    pub fn end(self) -> Result<(), Malformed> {
        match self.0.iter().all(|&byte| byte == 0) {
            true => Ok(()),
            false => Err(Malformed::Newer),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let bytes = self.bytes(N)?;
        bytes.try_into().map_err(|_| Malformed::Short)
    }

    /// The length of a list whose entries take at least `least` bytes each.
    fn list(&mut self, least: usize) -> Result<usize, Malformed> {
        let got: u32 = self.read()?;
        if got as usize > LIST_MAX {
            return Err(Malformed::TooMany {
                what: "entries",
                got,
                max: LIST_MAX as u32,
            });
        }
        // What is allocated is bounded by what has come.
        match got as usize * least <= self.0.len() {
            true => Ok(got as usize),
            false => Err(Malformed::Short),
        }
    }
}

/// A value that has one form as bytes.
pub trait Encode: Sized {
    /// Writes it behind what is there.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`].
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

macro_rules! integers {
    ($($int:ty)*) => { $(
        impl Encode for $int {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                from.array().map(Self::from_le_bytes)
            }
        }
    )* };
}

integers!(u8 u16 u32 u64 u128 i32);

impl Encode for () {
    fn put(&self, _out: &mut Vec<u8>) {}

    fn take(_from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(())
    }
}

impl Encode for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.read::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            got => Err(Malformed::Unknown {
                what: "truth value",
                got: got.into(),
            }),
        }
    }
}

impl<T: Encode> Encode for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.read::<bool>()? {
            true => from.read().map(Some),
            false => Ok(None),
        }
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        let len = self.len().min(LIST_MAX);
        (len as u32).put(out);
        for entry in &self[..len] {
            entry.put(out);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = from.list(1)?;
        (0..len).map(|_| from.read()).collect()
    }
}

impl<T: Encode> Encode for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.read().map(Self::new)
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((from.read()?, from.read()?))
    }
}

impl Encode for String {
    fn put(&self, out: &mut Vec<u8>) {
        let len = self.floor_char_boundary(TEXT_MAX);
        (len as u32).put(out);
        out.extend_from_slice(&self.as_bytes()[..len]);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = from.list(1)?;
        if len > TEXT_MAX {
            return Err(Malformed::TooMany {
                what: "bytes of text",
                got: len as u32,
                max: TEXT_MAX as u32,
            });
        }
        let text = std::str::from_utf8(from.bytes(len)?);
        text.map(str::to_owned).map_err(|_| Malformed::Text)
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.array()
    }
}

/// As an IPv6 address, IPv4 ones mapped (`::ffff:a.b.c.d`), which no host has otherwise.
impl Encode for IpAddr {
    fn put(&self, out: &mut Vec<u8>) {
        let v6 = match self {
            Self::V4(v4) => v4.to_ipv6_mapped(),
            Self::V6(v6) => *v6,
        };
        v6.octets().put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let octets: [u8; 16] = from.array()?;
        Ok(Self::from(Ipv6Addr::from(octets)).to_canonical())
    }
}

impl Encode for SocketAddr {
    fn put(&self, out: &mut Vec<u8>) {
        self.ip().put(out);
        self.port().put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self::new(from.read()?, from.read()?))
    }
}

macro_rules! newtypes {
    ($($name:ident($int:ty) = $new:expr, $value:expr;)*) => { $(
        impl Encode for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let value: fn(&Self) -> $int = $value;
                value(self).put(out);
            }
            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let new: fn($int) -> Self = $new;
                from.read().map(new)
            }
        }
    )* };
}

newtypes! {
    Lid(u16) = Self, |lid| lid.0;
    PKey(u16) = Self, |pkey| pkey.0;
    QKey(u32) = Self, |qkey| qkey.0;
    Guid(u64) = Self, |guid| guid.0;
    Gid([u8; 16]) = Self, |gid| gid.0;
    // Numbers of 24 bits: the upper ones mean nothing.
    Qpn(u32) = Self::new, |qpn| qpn.value();
    Psn(u32) = Self::new, |psn| psn.value();
    Srqn(u32) = Self::new, |srqn| srqn.value();
    LKey(u32) = Self::new, |key| key.value();
    RKey(u32) = Self::new, |key| key.value();
}

impl Encode for Mtu {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u32).put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let got: u32 = from.read()?;
        Self::from_code(got).ok_or(Malformed::Unknown {
            what: "MTU code",
            got,
        })
    }
}

/// Writes flags.
pub(crate) fn put_flags<F: Flags<Bits: Encode>>(flags: &F, out: &mut Vec<u8>) {
    flags.bits().put(out);
}

/// Reads flags; those that this version does not know are kept, and their receiver refuses them.
pub(crate) fn take_flags<F: Flags<Bits: Encode>>(from: &mut Reader<'_>) -> Result<F, Malformed> {
    from.read().map(F::from_bits_retain)
}

/// The form of structs, field by field, and of enums without fields, by a number written by hand.
macro_rules! encode {
    () => {};
    (struct $name:ident { $($field:ident),* $(,)? } $($rest:tt)*) => {
        impl $crate::host::bytes::Encode for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let Self { $($field),* } = self;
                $($crate::host::bytes::Encode::put($field, out);)*
            }
            fn take(
                from: &mut $crate::host::bytes::Reader<'_>,
            ) -> Result<Self, $crate::host::bytes::Malformed> {
                Ok(Self { $($field: from.read()?),* })
            }
        }
        $crate::host::bytes::encode! { $($rest)* }
    };
    (enum $name:ident($what:literal) { $($variant:ident = $number:literal),* $(,)? } $($rest:tt)*) => {
        impl $crate::host::bytes::Encode for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let number: u16 = match self { $(Self::$variant => $number),* };
                $crate::host::bytes::Encode::put(&number, out);
            }
            fn take(
                from: &mut $crate::host::bytes::Reader<'_>,
            ) -> Result<Self, $crate::host::bytes::Malformed> {
                match from.read::<u16>()? {
                    $($number => Ok(Self::$variant),)*
                    got => Err($crate::host::bytes::Malformed::Unknown { what: $what, got: got.into() }),
                }
            }
        }
        $crate::host::bytes::encode! { $($rest)* }
    };
    (flags $name:ident; $($rest:tt)*) => {
        impl $crate::host::bytes::Encode for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::host::bytes::put_flags(self, out);
            }
            fn take(
                from: &mut $crate::host::bytes::Reader<'_>,
            ) -> Result<Self, $crate::host::bytes::Malformed> {
                $crate::host::bytes::take_flags(from)
            }
        }
        $crate::host::bytes::encode! { $($rest)* }
    };
}
pub(super) use encode;
