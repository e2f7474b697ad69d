//! The logical units of a target.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use verbs_core::sync::Arc;
use verbs_core::{Access, Mr, Pd};

use super::error::TargetError;
use crate::iu::Lun;
use crate::lun::{LogicalUnit, Shape};
use crate::scsi::BlockLimits;

/// Ranges of one UNMAP.
const UNMAP_RANGES: u32 = 256;

/// Blocks of one UNMAP, and of one WRITE SAME: 2 GiB of 512 bytes.
const UNMAP_BLOCKS: u32 = 1 << 22;

/// Blocks of one COMPARE AND WRITE.
const COMPARE_BLOCKS: u8 = 128;

/// A logical unit as channels see it.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(super) number: u16,
    pub(super) inner: Arc<dyn LogicalUnit>,
    /// Its shape when it was added; only the number of blocks changes.
    pub(super) shape: Shape,
    blocks_now: AtomicU64,
    /// The region over all blocks, if they are in memory.
    pub(super) memory: Option<Mr>,
    /// Its limits for one command.
    pub(super) limits: BlockLimits,
}

impl Unit {
    pub(super) async fn new(
        pd: &Pd,
        number: u16,
        inner: Arc<dyn LogicalUnit>,
        buffer_bytes: u32,
    ) -> Result<Self, TargetError> {
        Lun::new(number).ok_or(TargetError::Lun(number))?;
        let shape = inner.shape();
        let size = shape.block_bytes;
        if !size.is_power_of_two() || !(512..=4096).contains(&size) {
            return Err(TargetError::BlockSize(size));
        }
        let memory = match inner.memory() {
            None => None,
            Some(memory) => {
                let registered = pd.register(memory, Access::LOCAL_WRITE).await;
                Some(registered.map_err(TargetError::verb("register a unit's memory"))?)
            }
        };
        let transfer = buffer_bytes / size;
        let can_unmap = shape.unmap_granularity > 0;
        let limits = BlockLimits {
            transfer,
            // A physical block: 4 KiB.
            granularity: (4096 / size) as u16,
            // Both halves are in one buffer.
            compare_and_write: u8::try_from(transfer / 2)
                .map_or(COMPARE_BLOCKS, |half| half.min(COMPARE_BLOCKS)),
            unmap: if can_unmap { UNMAP_BLOCKS } else { 0 },
            unmap_ranges: if can_unmap { UNMAP_RANGES } else { 0 },
            unmap_granularity: shape.unmap_granularity,
            write_same: UNMAP_BLOCKS.into(),
        };
        Ok(Self {
            number,
            inner,
            blocks_now: AtomicU64::new(shape.blocks),
            shape,
            memory,
            limits,
        })
    }

    /// Its current number of blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks_now.load(Relaxed)
    }

    /// Updates the number of blocks from the unit.
    pub(super) fn refresh(&self) {
        self.blocks_now.store(self.inner.shape().blocks, Relaxed);
    }
}

/// All units, by ascending number. Replaced as a whole when one is added.
#[derive(Clone, Debug, Default)]
pub(super) struct Units(Vec<Arc<Unit>>);

impl Units {
    pub(super) fn find(&self, number: u16) -> Option<&Arc<Unit>> {
        let found = self.0.binary_search_by_key(&number, |unit| unit.number);
        found.ok().map(|at| &self.0[at])
    }

    /// The units, with one more.
    pub(super) fn with(&self, unit: Arc<Unit>) -> Result<Self, TargetError> {
        match self
            .0
            .binary_search_by_key(&unit.number, |unit| unit.number)
        {
            Ok(_) => Err(TargetError::LunTaken(unit.number)),
            Err(at) => {
                let mut units = self.clone();
                units.0.insert(at, unit);
                Ok(units)
            }
        }
    }

    pub(super) fn luns(&self) -> Vec<Lun> {
        let numbers = self.0.iter().filter_map(|unit| Lun::new(unit.number));
        numbers.collect()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().map(|unit| unit.number)
    }
}
