//! The contents of answers: records of equal length.

use verbs_core::mad::sa::SaStatus;

/// The records found, of equal length.
pub(crate) type Found = Result<Records, SaStatus>;

/// Records of one type, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
    /// The distance between two records: the length of one, rounded up to eight bytes.
    pub(super) step: usize,
}

impl Records {
    /// Adds a record.
    pub(crate) fn push<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.step = N.next_multiple_of(8);
        self.bytes.extend_from_slice(bytes);
        self.count += 1;
        self.bytes.resize(self.count * self.step, 0);
    }

    /// A single record.
    pub(crate) fn one<const N: usize>(bytes: &[u8; N]) -> Self {
        let mut records = Self::default();
        records.push(bytes);
        records
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

/// Whether the parts of two records that a mask names are equal; each part has a bit of the mask, and the
/// position of its bytes.
pub(crate) fn alike(mask: u64, parts: &[(u32, usize, usize)], like: &[u8], other: &[u8]) -> bool {
    parts.iter().all(|&(bit, at, len)| {
        mask >> bit & 1 == 0 || like.get(at..at + len) == other.get(at..at + len)
    })
}
