//! Fields of management formats: runs of bits at fixed places, declared in tables.
//!
//! Management datagrams and their attributes are tables of fields that seldom end at a byte's edge.
//! [`wire_record!`](crate::wire_record) turns such a table into a *view* (a reference to the bytes,
//! whose getters cannot fail) and a *repr* (a plain struct with `parse` and `emit`). Every content is
//! legal: fields have types that hold any value of their width and no larger one. Bits that no field
//! covers are ignored on receipt and sent as zero.

use std::fmt;

use crate::addr::{Gid, Guid, Lid, PKey, Psn, QKey, Qpn};

/// Where a field stands: `width` bits from bit `bit` (0 is the most significant) of byte `byte`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub byte: usize,
    /// First bit in it, 0 the most significant one.
    pub bit: usize,
    /// Bits.
    pub width: usize,
}

impl Run {
    /// One past the last byte that the run touches.
    pub const fn end(self) -> usize {
        self.byte + (self.bit + self.width).div_ceil(8)
    }

    /// Part `index` of `count` equal ones.
    const fn part(self, index: usize, count: usize) -> Self {
        let width = self.width / count;
        let bit = self.bit + index * width;
        Self {
            byte: self.byte + bit / 8,
            bit: bit % 8,
            width,
        }
    }

    /// Bits of the last byte behind the run.
    const fn behind(self) -> usize {
        (self.end() - self.byte) * 8 - self.bit - self.width
    }
}

/// The low `width` bits.
const fn mask(width: usize) -> u128 {
    if width == 0 {
        0
    } else {
        u128::MAX >> (128 - width)
    }
}

/// The number in a run of at most 64 bits; bytes that are not there read as nothing.
pub fn number(bytes: &[u8], run: Run) -> u64 {
    let touched = bytes.iter().take(run.end()).skip(run.byte);
    let wide = touched.fold(0_u128, |wide, &byte| wide << 8 | u128::from(byte));
    let [.., a, b, c, d, e, f, g, h] = (wide >> run.behind() & mask(run.width)).to_be_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Writes the low bits of a number to a run of at most 64 bits, and no other bit.
pub fn put_number(bytes: &mut [u8], run: Run, value: u64) {
    let mut covered = mask(run.width) << run.behind();
    let mut wide = u128::from(value) << run.behind() & covered;
    for byte in bytes.iter_mut().take(run.end()).skip(run.byte).rev() {
        let [cover, ..] = covered.to_le_bytes();
        let [bits, ..] = wide.to_le_bytes();
        *byte = *byte & !cover | bits;
        (covered, wide) = (covered >> 8, wide >> 8);
    }
}

/// A value that stands in a run of bits, any content of which is a legal value.
pub trait Field: Copy + fmt::Debug {
    /// Reads it.
    fn read(bytes: &[u8], run: Run) -> Self;
    /// Writes it, and no bit beside it.
    fn write(self, bytes: &mut [u8], run: Run);
}

/// Fields of at most 64 bits: how each comes from a number, and becomes one.
#[doc(hidden)]
#[macro_export]
macro_rules! number_fields {
    ($($field:ty: |$from:ident| $make:expr, |$value:ident| $number:expr;)*) => {$(
        impl $crate::mad::field::Field for $field {
            fn read(bytes: &[u8], run: $crate::mad::field::Run) -> Self {
                let $from = $crate::mad::field::number(bytes, run);
                $make
            }

            fn write(self, bytes: &mut [u8], run: $crate::mad::field::Run) {
                let $value = self;
                $crate::mad::field::put_number(bytes, run, $number);
            }
        }
    )*};
}

/// The low bits of a number, in the two sizes that fields have.
const fn low_16(value: u64) -> u16 {
    let [.., a, b] = value.to_be_bytes();
    u16::from_be_bytes([a, b])
}

const fn low_32(value: u64) -> u32 {
    let [.., a, b, c, d] = value.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

crate::number_fields! {
    bool: |bits| bits != 0, |value| u64::from(value);
    u8: |bits| bits.to_le_bytes()[0], |value| u64::from(value);
    u16: |bits| low_16(bits), |value| u64::from(value);
    u32: |bits| low_32(bits), |value| u64::from(value);
    u64: |bits| bits, |value| value;
    Qpn: |bits| Self::new(low_32(bits)), |value| u64::from(value.value());
    Psn: |bits| Self::new(low_32(bits)), |value| u64::from(value.value());
    PKey: |bits| Self(low_16(bits)), |value| u64::from(value.0);
    QKey: |bits| Self(low_32(bits)), |value| u64::from(value.0);
    Lid: |bits| Self(low_16(bits)), |value| u64::from(value.0);
    Guid: |bits| Self(bits), |value| value.0;
}

impl<const W: u32> Field for Bits<W> {
    fn read(bytes: &[u8], run: Run) -> Self {
        Self::truncated(low_32(number(bytes, run)))
    }

    fn write(self, bytes: &mut [u8], run: Run) {
        put_number(bytes, run, u64::from(self.0));
    }
}

impl Field for Gid {
    fn read(bytes: &[u8], run: Run) -> Self {
        Self(Blob::read(bytes, run).0)
    }

    fn write(self, bytes: &mut [u8], run: Run) {
        Blob(self.0).write(bytes, run);
    }
}

/// Elements of equal width, one behind the other.
impl<T: Field + Default, const N: usize> Field for [T; N] {
    fn read(bytes: &[u8], run: Run) -> Self {
        let mut all = [T::default(); N];
        for (index, element) in all.iter_mut().enumerate() {
            *element = T::read(bytes, run.part(index, N));
        }
        all
    }

    fn write(self, bytes: &mut [u8], run: Run) {
        for (index, element) in self.into_iter().enumerate() {
            element.write(bytes, run.part(index, N));
        }
    }
}

/// Bytes begin at a byte's edge, whatever the run's bit is.
impl<const N: usize> Field for Blob<N> {
    fn read(bytes: &[u8], run: Run) -> Self {
        let found = bytes.get(run.byte..).and_then(<[u8]>::first_chunk);
        Self(found.copied().unwrap_or([0; N]))
    }

    fn write(self, bytes: &mut [u8], run: Run) {
        if let Some(place) = bytes.get_mut(run.byte..run.byte + N) {
            place.copy_from_slice(&self.0);
        }
    }
}

/// A number of `W` bits, `W` at most 32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bits<const W: u32>(u32);

impl<const W: u32> Bits<W> {
    /// The largest one.
    pub const MAX: Self = Self(u32::MAX >> (32 - W));

    /// The number, unless it is too wide.
    pub const fn new(value: u32) -> Option<Self> {
        if value > Self::MAX.0 {
            None
        } else {
            Some(Self(value))
        }
    }

    /// The number, or the largest one if it is too wide.
    pub const fn saturating(value: u32) -> Self {
        if value > Self::MAX.0 {
            Self::MAX
        } else {
            Self(value)
        }
    }

    /// The low `W` bits.
    pub const fn truncated(value: u32) -> Self {
        Self(value & Self::MAX.0)
    }

    /// The number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The low eight bits: the number itself where `W` is at most 8.
    pub const fn byte(self) -> u8 {
        self.0.to_le_bytes()[0]
    }
}

impl<const W: u32> fmt::Debug for Bits<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `N` bytes whose meaning another layer knows; prints without its trailing zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Blob<const N: usize>(pub [u8; N]);

impl<const N: usize> Blob<N> {
    /// Bytes that it has.
    pub const LEN: usize = N;

    /// Those bytes, filled up with zeros.
    ///
    /// # Errors
    /// [`TooLong`] when there are more than `N`.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        let mut all = [0; N];
        let place = all.get_mut(..bytes.len()).ok_or(TooLong {
            got: bytes.len(),
            max: N,
        })?;
        place.copy_from_slice(bytes);
        Ok(Self(all))
    }
}

/// More bytes than a field holds: the caller's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got} bytes for a field of {max}")]
pub struct TooLong {
    /// Bytes that were given.
    pub got: usize,
    /// Bytes that the field holds.
    pub max: usize,
}

impl<const N: usize> Default for Blob<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for Blob<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|&byte| byte != 0);
        let used = self.0.get(..used.map_or(0, |last| last + 1)).unwrap_or(&[]);
        write!(f, "[{N} bytes: ")?;
        for byte in used {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("]")
    }
}

/// Declares the view and the repr of a format of fixed length from the table of its fields:
/// `name: type = (byte, bit, width)`, with bit 0 the most significant one of its byte.
///
/// Both have `LEN`; the repr also has `COVERED`, the bits that some field covers.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_record {
    (
        $(#[$doc:meta])*
        $vis:vis struct $repr:ident, $view:ident: $len:literal bytes {
            $($(#[$field_doc:meta])* $field:ident: $ty:ty = ($byte:literal, $bit:literal, $width:literal),)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        $vis struct $repr {
            $($(#[$field_doc])* $vis $field: $ty,)*
        }

        $(const _: () = {
            let run = $crate::mad::field::Run { byte: $byte, bit: $bit, width: $width };
            assert!(run.end() <= $len, "a field leaves its record");
        };)*

        impl $repr {
            /// Bytes on the wire.
            $vis const LEN: usize = $len;

            /// Reads it; every content is legal, bits without a meaning are ignored.
            $vis fn parse(view: $view<'_>) -> Self {
                Self { $($field: view.$field(),)* }
            }

            /// Writes it; bits without a meaning become zero.
            $vis fn emit(&self, out: &mut [u8; $len]) {
                out.fill(0);
                $($crate::mad::field::Field::write(
                    self.$field,
                    out,
                    $crate::mad::field::Run { byte: $byte, bit: $bit, width: $width },
                );)*
            }

            /// The bits that have a meaning.
            $vis fn covered() -> [u8; $len] {
                let mut bits = [0; $len];
                $(for bit in $byte * 8 + $bit..$byte * 8 + $bit + $width {
                    let run = $crate::mad::field::Run { byte: bit / 8, bit: bit % 8, width: 1 };
                    $crate::mad::field::put_number(&mut bits, run, 1);
                })*
                bits
            }
        }

        #[doc = concat!("A [`", stringify!($repr), "`] in bytes.")]
        #[derive(Clone, Copy, PartialEq, Eq)]
        $vis struct $view<'a>(&'a [u8; $len]);

        impl<'a> $view<'a> {
            /// The record that these bytes start with; `None` when there are too few.
            $vis fn new(bytes: &'a [u8]) -> Option<Self> {
                bytes.first_chunk().map(Self)
            }

            /// The record in these bytes.
            $vis const fn of(bytes: &'a [u8; $len]) -> Self {
                Self(bytes)
            }

            $($(#[$field_doc])*
            $vis fn $field(self) -> $ty {
                let run = $crate::mad::field::Run { byte: $byte, bit: $bit, width: $width };
                $crate::mad::field::Field::read(self.0, run)
            })*
        }

        impl std::fmt::Debug for $view<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $repr::parse(*self).fmt(f)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::wire_record! {
        /// Fields at every kind of edge.
        struct Sample, SampleView: 12 bytes {
            /// Across two edges.
            wide: u64 = (0, 3, 64),
            /// Three bits.
            small: Bits<3> = (8, 3, 3),
            /// One bit.
            flag: bool = (8, 7, 1),
            /// Bytes.
            rest: Blob<2> = (10, 0, 16),
        }
    }

    #[test]
    fn fields_read_and_write_their_bits_and_no_other() {
        let sample = Sample {
            wide: 0xfedc_ba98_7654_3210,
            small: Bits::MAX,
            flag: true,
            rest: Blob([0xab, 0xcd]),
        };
        let mut bytes = [0xff; Sample::LEN];
        sample.emit(&mut bytes);
        assert_eq!(
            u64::from_be_bytes(*bytes.first_chunk().unwrap()),
            0x1fdb_9753_0eca_8642
        );
        assert_eq!(bytes[8..], [0x1d, 0, 0xab, 0xcd]);
        assert_eq!(Sample::parse(SampleView::of(&bytes)), sample);
        let all = [[0x1f; 1].as_slice(), &[0xff; 7], &[0xfd, 0, 0xff, 0xff]].concat();
        assert_eq!(Sample::covered()[..], all);
        assert!(SampleView::new(&bytes[..11]).is_none());
    }

    #[test]
    fn blobs_fill_up_and_refuse_too_much() {
        let blob = Blob::<4>::new(b"ab").unwrap();
        assert_eq!(format!("{blob:?}"), "[4 bytes: 6162]");
        assert_eq!(Blob::<1>::new(b"ab"), Err(TooLong { got: 2, max: 1 }));
        assert_eq!(Bits::<5>::new(32), None);
        assert_eq!(Bits::<5>::saturating(99).value(), 31);
    }
}
