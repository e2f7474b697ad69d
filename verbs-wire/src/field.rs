//! Common parts of the header modules: 24-bit fields, flag letters and the macro for views.

use std::fmt;

/// A 24-bit field as a number.
#[inline]
pub(crate) const fn u24([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

/// The low 24 bits of a number as a field.
#[inline]
pub(crate) const fn u24_bytes(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

/// Prints bytes of unknown meaning: their number, and at most 16 of them.
pub(crate) struct Garbage<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Garbage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes", self.0.len())?;
        if !self.0.is_empty() {
            f.write_str(": ")?;
        }
        for byte in self.0.iter().take(16) {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(if self.0.len() > 16 { "..]" } else { "]" })
    }
}

/// Declares the view of a header of fixed length: a reference to exactly its bytes, so getters with constant
/// offsets cannot fail.
macro_rules! view {
    ($(#[$doc:meta])* $vis:vis $view:ident of $header:ident, $len:literal bytes) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        $vis struct $view<'a>(&'a [u8; $len]);

        impl<'a> $view<'a> {
            /// Bytes of the header.
            $vis const LEN: usize = $len;

            /// The header at the start of these bytes; later bytes are ignored.
            ///
            /// # Errors
            /// [`WireError::Truncated`](crate::WireError::Truncated) if there are fewer bytes than the header
            /// has.
            #[inline]
            $vis fn new(bytes: &'a [u8]) -> Result<Self, $crate::WireError> {
                match bytes.first_chunk() {
                    Some(header) => Ok(Self(header)),
                    None => Err($crate::WireError::Truncated {
                        header: $crate::HeaderName::$header,
                        need: $len,
                        got: bytes.len(),
                    }),
                }
            }

            /// The header in these bytes.
            #[inline]
            $vis const fn of(bytes: &'a [u8; $len]) -> Self {
                Self(bytes)
            }
        }
    };
}

pub(crate) use view;
