//! The region behind a key, and why a key may be refused.

use std::fmt;
use std::ptr::NonNull;

use super::access::Access;
use super::memory::Memory;
use crate::addr::{LKey, RKey};
use crate::error::{Attr, Error, Why};
use crate::sync::Arc;

/// A registered range of memory: the address by which peers and work requests know it, and its rights.
#[derive(Clone, Debug)]
pub struct Region {
    /// The memory.
    pub memory: Arc<Memory>,
    /// First byte of the region in `memory`.
    pub offset: usize,
    /// Bytes; 0 is legal and grants nothing.
    pub len: usize,
    /// Address of the first byte in work requests: by default its virtual address.
    pub iova: u64,
    /// Rights. `ZERO_BASED` overrides `iova` with 0.
    pub access: Access,
    /// Number of the protection domain.
    pub pd: u32,
}

impl Region {
    /// All of `memory`, at its virtual address.
    pub fn new(memory: Arc<Memory>, access: Access, pd: u32) -> Self {
        Self {
            offset: 0,
            len: memory.len(),
            iova: memory.addr(),
            memory,
            access,
            pd,
        }
    }

    /// Checks everything that a table relies on; returns the first byte.
    pub(super) fn check(&mut self) -> Result<NonNull<u8>, Error> {
        self.access.check()?;
        if self.access.contains(Access::ZERO_BASED) {
            self.iova = 0;
        }
        let host = self.memory.at(self.offset, self.len)?;
        match self.iova.checked_add(self.len as u64) {
            Some(_) => Ok(host),
            None => Err(Error::Mismatch {
                attr: Attr::Iova,
                why: Why::Overflow,
            }),
        }
    }

    /// The keys of this region under the number `key`. A region without remote rights has no
    /// remote key.
    pub(super) fn keys(&self, key: u32) -> (LKey, RKey) {
        let remote = self.access.intersects(Access::REMOTE.union(Access::FLUSH));
        (LKey::new(key), RKey::new(if remote { key } else { 0 }))
    }
}

/// The keys of a region after re-registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Keys {
    /// The next ones: the old ones miss.
    #[default]
    New,
    /// The same ones, which reach the new region.
    Kept,
}

/// Why a check of a key failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// No region has the key: it never had it, no longer has it, or does not have it yet.
    Key,
    /// The region belongs to another protection domain.
    Pd,
    /// The region does not grant the right.
    Access,
    /// The range extends beyond the region.
    Bounds,
    /// The window is bound to another queue pair.
    Qp,
    /// The state of the region or window does not allow it.
    State,
    /// Memory windows are bound to the region.
    Windows,
    /// The pages are not the ones that were staged for this mapping.
    Mapping,
    /// The address does not agree with the pages.
    Alignment,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "no region has this key",
            Self::Pd => "the region belongs to another protection domain",
            Self::Access => "the region does not grant this right",
            Self::Bounds => "the range leaves the region",
            Self::Qp => "the window is bound to another queue pair",
            Self::State => "the region or window is in no state for it",
            Self::Windows => "memory windows are bound to the region",
            Self::Mapping => "the pages are others than were meant",
            Self::Alignment => "the address does not have the offset of the first page",
        })
    }
}
