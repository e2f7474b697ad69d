//! The rights of a key, and the parties that hold them.

use bitflags::bitflags;

use crate::caps::{Capability, DeviceCap};
use crate::error::{Attr, Error, Why};

bitflags! {
    /// Access flags of regions, windows and queue pairs, with the values of `ibv_access_flags`.
    ///
    /// Reading through a local key is always allowed and has no flag.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The device may write the region on behalf of this side: receives, READ results, atomic
        /// results.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may do atomic operations; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from the start of the region instead of from its virtual address.
        const ZERO_BASED = 1 << 5;
        /// Page faults instead of pinning, on devices with
        /// [`ON_DEMAND_PAGING`](crate::DeviceCap::ON_DEMAND_PAGING). Software pins nothing anyway.
        const ON_DEMAND = 1 << 6;
        /// The memory is made of huge pages; a hint.
        const HUGETLB = 1 << 7;
        /// A peer may FLUSH for global visibility: every other access then sees the data.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may FLUSH for persistence: the data then survives a power failure.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may be reordered; a hint.
        const RELAXED_ORDERING = 1 << 20;
        /// READs of this side fill the region, to which peers have no right. A device that lets in nothing but what was
        /// asked for, as software does, then wants no [`REMOTE_WRITE`](Self::REMOTE_WRITE) of the sink
        /// ([`TransportType::read_sink`](crate::TransportType::read_sink)); others ignore it. The field has no bit for it.
        const READ_SINK = 1 << 28;
    }
}

impl Access {
    /// Every right a peer can have to read and change memory.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC);

    /// Both rights to FLUSH.
    pub const FLUSH: Self = Self::FLUSH_GLOBAL.union(Self::FLUSH_PERSISTENT);

    /// What a memory window can grant, and how it can be addressed.
    pub const WINDOW: Self = Self::REMOTE.union(Self::FLUSH).union(Self::ZERO_BASED);

    /// Flags that a provider must ignore if it does not know them (`IBV_ACCESS_OPTIONAL_RANGE`).
    const OPTIONAL: u32 = 0x3ff0_0000;

    /// Whether a region can be registered with these flags.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if a peer may write or do atomics and `LOCAL_WRITE` is missing (IBTA vol. 1,
    /// 11.2.8.2); [`Error::NoCapability`] for `ON_DEMAND`, which a provider that has it removes before;
    /// [`Error::Unsupported`] for unknown flags outside the range of optional ones.
    pub const fn check(self) -> Result<(), Error> {
        let taken = Self::all().difference(Self::ON_DEMAND).bits() | Self::OPTIONAL;
        if self.bits() & !taken != 0 {
            return Err(self.not_taken());
        }
        if self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
            && !self.contains(Self::LOCAL_WRITE)
        {
            return Err(Error::Mismatch {
                attr: Attr::Access,
                why: Why::NeedsLocalWrite,
            });
        }
        Ok(())
    }

    #[cold]
    const fn not_taken(self) -> Error {
        if self.contains(Self::ON_DEMAND) {
            return Error::NoCapability {
                attr: Attr::Access,
                missing: Capability::of(DeviceCap::ON_DEMAND_PAGING),
            };
        }
        Error::Unsupported(Attr::Access)
    }
}

/// The party that accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Protection domain of the queue pair, or of its shared receive queue.
    pub pd: u32,
    /// Number of the queue pair.
    pub qpn: u32,
}

/// The kinds of memory windows (IBTA vol. 1, 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// Bound by the bind verb, and again at any time; any queue pair of its protection domain can access it.
    One,
    /// Bound by a work request to one queue pair, whatever its protection domain.
    TwoA,
    /// Bound by a work request to one queue pair of its own protection domain.
    TwoB,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_write_and_atomic_need_local_write() {
        for remote in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert!(matches!(
                remote.check(),
                Err(Error::Mismatch {
                    why: Why::NeedsLocalWrite,
                    ..
                })
            ));
            assert_eq!((remote | Access::LOCAL_WRITE).check(), Ok(()));
        }
        assert_eq!(Access::REMOTE_READ.check(), Ok(()));
        assert_eq!(Access::empty().check(), Ok(()));
    }

    #[test]
    fn unknown_flags_are_refused_unless_optional() {
        let unsupported = Err(Error::Unsupported(Attr::Access));
        let said = Access::ON_DEMAND.check().map_err(|error| error.to_string());
        let text = "the device does not support access flags: its capability bit ON_DEMAND_PAGING is clear";
        assert_eq!(said, Err(text.into()));
        assert_eq!(Access::from_bits_retain(1 << 10).check(), unsupported);
        assert_eq!(Access::from_bits_retain(1 << 29).check(), Ok(()));
        assert_eq!(Access::from_bits_retain(1 << 30).check(), unsupported);
        assert_eq!(Access::RELAXED_ORDERING.check(), Ok(()));
    }
}
