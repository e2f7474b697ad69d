//! Logical units: where a target keeps blocks.
//!
//! [`LogicalUnit`] is the trait that a target uses; [`MemoryUnit`] keeps the blocks in memory that the target
//! itself moves by RDMA, [`FileUnit`] keeps them in a file, and [`FaultUnit`] fails as configured.
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

/// The properties of a unit. Except for the number of blocks, they do not change while the unit is in use.
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
    /// Written data outlives a power failure only after [`LogicalUnit::flush`].
    pub write_cache: bool,
    /// Blocks that [`LogicalUnit::unmap`] releases together; 0 if it cannot.
    pub unmap_granularity: u32,
}

/// Keeps blocks.
///
/// A target checks ranges and rights before it calls: `lba` and the piece's length are within the unit, the
/// length is a multiple of the block size, and a unit that is [read only](Shape::read_only) is not written to.
///
/// # Context
/// Every method is called under NoBlock, by the thread that drives the device: it may not wait. Work that waits
/// must run elsewhere, with a future that is woken when the work is done. The future may be dropped before; the
/// work may continue, and its thread holds the [`Piece`], whose memory is not reused until then.
///
/// Several calls run at a time. A call reads what an earlier call wrote, once that call's future was ready; calls
/// that overlap in time and blocks may see the old or the new contents, and never anything else, in a block of a
/// unit that is not damaged.
#[async_trait]
pub trait LogicalUnit: Send + Sync + fmt::Debug {
    /// Its properties.
    fn shape(&self) -> Shape;

    /// The memory that holds all blocks contiguously from its beginning, if there is one: READ and WRITE then
    /// move data between it and the initiator without a copy, and neither [`read`](Self::read) nor
    /// [`write`](Self::write) is called for them.
    fn memory(&self) -> Option<Arc<Memory>> {
        None
    }

    /// Fills `into` with the blocks from `lba` on.
    async fn read(&self, lba: u64, into: Piece) -> Result<(), UnitError>;

    /// Writes `from` to the blocks from `lba` on; if `durable`, the data must outlive a power failure.
    async fn write(&self, lba: u64, from: Piece, durable: bool) -> Result<(), UnitError>;

    /// Makes all written data outlive a power failure.
    async fn flush(&self) -> Result<(), UnitError>;

    /// Writes zeros to blocks; if `unmap`, by releasing their space where possible.
    async fn write_zeros(&self, lba: u64, count: u64, unmap: bool) -> Result<(), UnitError>;

    /// Releases the space of blocks; they read as zeros afterwards. Called only if there is a
    /// [granularity](Shape::unmap_granularity).
    async fn unmap(&self, lba: u64, count: u64) -> Result<(), UnitError> {
        self.write_zeros(lba, count, true).await
    }

    /// Writes the second half of `both` to the blocks from `lba` on if they hold the first half; no other call
    /// changes them in between.
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

/// Why a unit did not execute a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// A block cannot be read.
    #[error("block {0} cannot be read")]
    Read(u64),
    /// A block cannot be written.
    #[error("block {0} cannot be written")]
    Write(u64),
    /// The data differ from the expected data, from that byte on.
    #[error("what is there differs, from byte {0} on")]
    Differs(u64),
    /// It cannot be used now.
    #[error("it cannot be used now")]
    NotReady,
    /// It has no room; retry later.
    #[error("it takes no more at the moment")]
    Busy,
    /// It does not support the call.
    #[error("it cannot do that")]
    Unsupported,
    /// It failed.
    #[error("it failed")]
    Failed,
}

impl UnitError {
    /// The sense data for the initiator; `None` for [`UnitError::Busy`], which is a status.
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
