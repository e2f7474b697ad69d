//! What datagrams carry, in buffers that are used again.

use std::fmt;
use std::ops::Deref;

use verbs_core::sync::{Arc, Mutex};

use crate::wire::MESSAGE_LEN_MAX;

/// The longest payload that needs no buffer, in bytes: it is moved with its datagram.
const SHORT_MAX: usize = 56;
/// The shortest buffer, in bytes.
const LEN_MIN: usize = 128;
/// Sizes of buffers: [`LEN_MIN`] and its doubles, up to [`MESSAGE_LEN_MAX`].
const CLASSES: usize = (MESSAGE_LEN_MAX / LEN_MIN).ilog2() as usize + 1;
/// Bytes of buffers of one size that a pool keeps; those beyond go back to the allocator.
const KEPT_MAX: usize = 2 << 20;

/// What a datagram carries: bytes, read as a slice. When it is dropped, its buffer serves the node's next datagram, so that
/// datagrams do not take memory from the allocator.
///
/// [`into_vec`](Self::into_vec) takes the buffer for good.
pub struct Payload {
    len: usize,
    bytes: Bytes,
}

enum Bytes {
    Short([u8; SHORT_MAX]),
    /// All bytes of the buffer are initialized, of which the first are the payload.
    Long {
        buffer: Vec<u8>,
        pool: Option<Pool>,
    },
}

/// Buffers that wait for their next use. Clones are the same pool.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Mutex<[Vec<Vec<u8>>; CLASSES]>>);

impl Payload {
    /// The bytes. Nothing is copied unless they are few, and the buffer does not serve another datagram.
    pub fn into_vec(mut self) -> Vec<u8> {
        match &mut self.bytes {
            Bytes::Short(_) => self.to_vec(),
            Bytes::Long { buffer, pool } => {
                *pool = None;
                let mut bytes = std::mem::take(buffer);
                bytes.truncate(self.len);
                bytes
            }
        }
    }

    /// Appends so many bytes, which `fill` writes. `None` if the room that it was made with is not enough, or `fill` fails;
    /// then nothing is appended.
    pub(crate) fn append(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<()>,
    ) -> Option<()> {
        let end = self.len.checked_add(len)?;
        let bytes = match &mut self.bytes {
            Bytes::Short(bytes) => &mut bytes[..],
            Bytes::Long { buffer, .. } => buffer,
        };
        fill(bytes.get_mut(self.len..end)?)?;
        self.len = end;
        Some(())
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self {
            len: 0,
            bytes: Bytes::Short([0; SHORT_MAX]),
        }
    }
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(std::array::from_fn(|_| Vec::new()))))
    }

    /// An empty payload with room for `len` bytes.
    #[inline]
    pub(crate) fn room_for(&self, len: usize) -> Payload {
        if len <= SHORT_MAX {
            return Payload::default();
        }
        let class = class_of(len);
        let kept = class.and_then(|class| self.0.lock().get_mut(class)?.pop());
        let buffer = kept.unwrap_or_else(|| vec![0; class.map_or(len, |class| LEN_MIN << class)]);
        let pool = Some(self.clone());
        Payload {
            len: 0,
            bytes: Bytes::Long { buffer, pool },
        }
    }

    #[inline]
    pub(crate) fn copy_of(&self, bytes: &[u8]) -> Payload {
        let mut payload = self.room_for(bytes.len());
        let copied = payload.append(bytes.len(), |into| {
            into.copy_from_slice(bytes);
            Some(())
        });
        debug_assert!(copied.is_some(), "there is room for them");
        payload
    }

    /// Keeps a buffer, unless there are enough of its size.
    fn keep(&self, buffer: Vec<u8>) {
        let len = buffer.len();
        let Some(class) = class_of(len).filter(|class| LEN_MIN << class == len) else {
            return;
        };
        let mut free = self.0.lock();
        if let Some(free) = free.get_mut(class)
            && (free.len() + 1) * len <= KEPT_MAX
        {
            free.push(buffer);
        }
    }
}

/// Which size has room for so many bytes; none for a payload that is too long.
fn class_of(len: usize) -> Option<usize> {
    let size = len.next_power_of_two().max(LEN_MIN);
    let class = (size / LEN_MIN).ilog2() as usize;
    (len > 0 && class < CLASSES).then_some(class)
}

impl Drop for Bytes {
    #[inline]
    fn drop(&mut self) {
        if let Self::Long { buffer, pool } = self
            && let Some(pool) = pool
        {
            pool.keep(std::mem::take(buffer));
        }
    }
}

impl Clone for Payload {
    fn clone(&self) -> Self {
        match &self.bytes {
            Bytes::Short(bytes) => Self {
                len: self.len,
                bytes: Bytes::Short(*bytes),
            },
            Bytes::Long { pool: None, .. } => Self::from(self.to_vec()),
            Bytes::Long {
                pool: Some(pool), ..
            } => pool.copy_of(self),
        }
    }
}

impl Deref for Payload {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes = match &self.bytes {
            Bytes::Short(bytes) => &bytes[..],
            Bytes::Long { buffer, .. } => buffer,
        };
        bytes.get(..self.len).unwrap_or(bytes)
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            len: bytes.len(),
            bytes: Bytes::Long {
                buffer: bytes,
                pool: None,
            },
        }
    }
}

impl From<Payload> for Vec<u8> {
    fn from(payload: Payload) -> Self {
        payload.into_vec()
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Payload {
    fn eq(&self, other: &T) -> bool {
        self[..] == *other.as_ref()
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Pool {
        fn kept(&self) -> usize {
            self.0.lock().iter().map(Vec::len).sum()
        }
    }

    /// Goal: a buffer serves the next datagram of its size, and no other. Method: look at where it lies.
    #[test]
    fn a_buffer_serves_the_next_of_its_size() {
        let pool = Pool::new();
        let first = pool.copy_of(&[7; 100]);
        let place = first.as_ptr();
        drop(first);
        assert_eq!(pool.kept(), 1);
        assert_ne!(pool.copy_of(&[1; 300]).as_ptr(), place);
        let again = pool.copy_of(&[3; 128]);
        assert_eq!((again.as_ptr(), &again[..]), (place, &[3; 128][..]));
    }

    #[test]
    fn what_is_empty_taken_out_or_too_much_is_not_kept() {
        let pool = Pool::new();
        drop(pool.copy_of(&[]));
        assert_eq!(pool.copy_of(b"mine").into_vec(), b"mine");
        assert_eq!(pool.copy_of(&[9; 70]).into_vec(), [9; 70]);
        drop(Payload::from(vec![0; 64]));
        assert_eq!(pool.kept(), 0);
        let many: Vec<_> = (0..5).map(|_| pool.room_for(MESSAGE_LEN_MAX)).collect();
        drop(many);
        assert_eq!(pool.kept(), KEPT_MAX / MESSAGE_LEN_MAX);
    }

    /// Goal: nothing is written behind the room that a payload was made with. Method: both kinds, filled to the last byte.
    #[test]
    fn there_is_no_room_beyond_what_it_was_made_with() {
        let pool = Pool::new();
        for (len, room) in [(1, SHORT_MAX), (SHORT_MAX + 1, LEN_MIN)] {
            let mut payload = pool.room_for(len);
            let fill = |into: &mut [u8]| {
                into.fill(5);
                Some(())
            };
            assert_eq!(payload.append(room - 1, fill), Some(()));
            assert_eq!(payload.append(1, |_| None), None);
            assert_eq!(payload.append(2, fill), None);
            assert_eq!(payload.append(1, fill), Some(()));
            assert_eq!(payload, vec![5; room]);
        }
    }

    #[test]
    fn clones_are_copies() {
        let pool = Pool::new();
        let one = pool.copy_of(&[1; 100]);
        let other = one.clone();
        assert_eq!(one, other);
        assert_ne!(one.as_ptr(), other.as_ptr());
    }
}
