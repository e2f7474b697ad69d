//! Logical units: what a target keeps blocks in.
//!
//! [`LogicalUnit`] is the trait that a target is given; [`MemoryUnit`] keeps the blocks in memory that the
//! target moves by RDMA itself, [`FileUnit`] in a file, and [`FaultUnit`] fails as it is told to.
//!
//! ```
//! use std::sync::Arc;
//!
//! use futures::executor::block_on;
//! use ulp_srp::lun::{LogicalUnit, MemoryUnit, Piece};
//! use verbs_core::Memory;
//!
//! let unit = MemoryUnit::new(1 << 20, 512)?;
//! let buffer = Piece::of(Arc::new(Memory::alloc(512)?));
//! buffer.memory().write(0, b"block 7")?;
//! block_on(unit.write(7, buffer.clone(), false))?;
//! assert_eq!(unit.shape().blocks, 2048);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fault;
mod file;
mod memory;
mod piece;
pub(crate) mod serial;

use std::fmt;

use async_trait::async_trait;
use verbs_core::Memory;
use verbs_core::sync::Arc;

use crate::scsi::{Code, Identity, Sense, SenseKey};

pub use fault::{Fault, FaultUnit};
pub use file::{FileOptions, FileUnit, Offload, Work};
pub use memory::MemoryUnit;
pub(crate) use memory::copy;
pub use piece::{Piece, Returned};

/// What a unit is like. It does not change while the unit is in use, but for the number of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks; at least 1.
    pub blocks: u64,
    /// Bytes of a block: a power of two from 512 to 4096.
    pub block_bytes: u32,
    /// Names.
    pub identity: Identity,
    /// Nothing can be written.
    pub read_only: bool,
    /// Only [`LogicalUnit::flush`] makes sure that what was written outlives a power failure.
    pub write_cache: bool,
    /// Blocks that [`LogicalUnit::unmap`] gives back together; 0 if it cannot.
    pub unmap_granularity: u32,
}

/// Keeps blocks.
///
/// A target checks ranges and rights before it calls: `lba` and the piece's length are within the unit, the
/// length is a multiple of the block size, and a unit that is [read only](Shape::read_only) is not written to.
///
/// # Context
/// Every method is called under NoBlock, by whoever drives the device: it may not wait, and what takes
/// waiting is to be done elsewhere, with a future that is woken when it is done. The future may be dropped
/// before; the work may go on, and whoever does it holds the [`Piece`], whose memory nobody gets until then.
///
/// Several calls run at a time. What a call wrote is what a later one reads, once its future was ready; calls
/// that overlap in time and blocks may see either, and never anything else in a block of a unit that was
/// not damaged.
#[async_trait]
pub trait LogicalUnit: Send + Sync + fmt::Debug {
    /// What it is like.
    fn shape(&self) -> Shape;

    /// The memory in which all blocks lie, one after the other from its beginning, if they do: READ and
    /// WRITE are then moved between it and the initiator without a copy, and neither
    /// [`read`](Self::read) nor [`write`](Self::write) is called for them.
    fn memory(&self) -> Option<Arc<Memory>> {
        None
    }

    /// Fills `into` with the blocks from `lba` on.
    async fn read(&self, lba: u64, into: Piece) -> Result<(), UnitError>;

    /// Puts `from` into the blocks from `lba` on; if `durable`, so that it outlives a power failure.
    async fn write(&self, lba: u64, from: Piece, durable: bool) -> Result<(), UnitError>;

    /// Makes sure that all that was written outlives a power failure.
    async fn flush(&self) -> Result<(), UnitError>;

    /// Puts zeros into blocks; if `unmap`, by giving their room back where that can be done.
    async fn write_zeros(&self, lba: u64, count: u64, unmap: bool) -> Result<(), UnitError>;

    /// Gives the room of blocks back; they read as zeros then. Called only with a
    /// [granularity](Shape::unmap_granularity).
    async fn unmap(&self, lba: u64, count: u64) -> Result<(), UnitError> {
        self.write_zeros(lba, count, true).await
    }

    /// Puts the second half of `both` into the blocks from `lba` on if they hold the first half; no other
    /// call changes them in between.
    ///
    /// # Errors
    /// [`UnitError::Differs`] with the first byte that differs.
    async fn compare_and_write(
        &self,
        lba: u64,
        both: Piece,
        durable: bool,
    ) -> Result<(), UnitError>;
}

/// Why a unit did not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// A block cannot be read.
    #[error("block {0} cannot be read")]
    Read(u64),
    /// A block cannot be written.
    #[error("block {0} cannot be written")]
    Write(u64),
    /// What is there differs from what was expected, from that byte on.
    #[error("what is there differs, from byte {0} on")]
    Differs(u64),
    /// It cannot be used now.
    #[error("it cannot be used now")]
    NotReady,
    /// It takes no more; to be asked again.
    #[error("it takes no more at the moment")]
    Busy,
    /// It does not do that.
    #[error("it cannot do that")]
    Unsupported,
    /// It failed.
    #[error("it failed")]
    Failed,
}

impl UnitError {
    /// What an initiator is told; `None` for [`UnitError::Busy`], which is a status.
    pub fn sense(self) -> Option<Sense> {
        Some(match self {
            Self::Read(lba) => {
                Sense::new(SenseKey::MediumError, Code::UNRECOVERED_READ_ERROR).at(lba)
            }
            Self::Write(lba) => Sense::new(SenseKey::MediumError, Code::WRITE_ERROR).at(lba),
            Self::Differs(at) => Sense::new(SenseKey::Miscompare, Code::MISCOMPARE).at(at),
            Self::NotReady => Sense::new(SenseKey::NotReady, Code::NOT_READY),
            Self::Unsupported => Sense::illegal(Code::INVALID_OPCODE),
            Self::Failed => Sense::new(SenseKey::HardwareError, Code::INTERNAL_FAILURE),
            Self::Busy => return None,
        })
    }
}
