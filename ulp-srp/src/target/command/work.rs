//! The work that a command needs from a logical unit.

use verbs_core::sync::Arc;

use crate::lun::{Piece, UnitError};
use crate::scsi::{Code, Sense, SenseKey, parse_unmap};
use crate::target::units::Unit;

/// Work of a unit, with values that have been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Move blocks to the initiator.
    Read { lba: u64, bytes: u32, fua: bool },
    /// Move blocks from the initiator.
    Write { lba: u64, bytes: u32, durable: bool },
    /// Flush all written data to the medium.
    Flush,
    /// Read blocks without returning them.
    Verify { lba: u64, count: u64 },
    /// Write blocks from the initiator if the present ones match; `bytes` counts both halves.
    Compare { lba: u64, bytes: u32, durable: bool },
    /// Write one block from the initiator many times.
    Same { lba: u64, count: u64, unmap: bool },
    /// Unmap the ranges in a list from the initiator.
    Unmap { length: u16 },
}

impl Work {
    /// Bytes that come from the initiator.
    pub(crate) fn data_out(&self, block_bytes: u32) -> u32 {
        match *self {
            Self::Write { bytes, .. } | Self::Compare { bytes, .. } => bytes,
            Self::Same { .. } => block_bytes,
            Self::Unmap { length } => length.into(),
            Self::Read { .. } | Self::Flush | Self::Verify { .. } => 0,
        }
    }

    /// Bytes that go to the initiator.
    pub(crate) fn data_in(&self) -> u32 {
        match *self {
            Self::Read { bytes, .. } => bytes,
            _ => 0,
        }
    }

    /// Bytes of buffer that it needs; data that arrived with the command need none.
    pub(crate) fn buffer(&self, buffer_bytes: u32, block_bytes: u32) -> u32 {
        match *self {
            Self::Flush => 0,
            Self::Verify { .. } | Self::Same { .. } => buffer_bytes,
            Self::Read { bytes, .. } => bytes,
            _ => self.data_out(block_bytes),
        }
    }

    /// The offset of the blocks in the memory of a unit that holds all of them there, if they only have to be
    /// moved.
    pub(crate) fn in_memory(&self, block_bytes: u32) -> Option<u64> {
        match *self {
            Self::Read { lba, .. } | Self::Write { lba, .. } => Some(lba * u64::from(block_bytes)),
            _ => None,
        }
    }
}

/// Why a unit failed the work: sense data, or the status BUSY.
pub(crate) type Trouble = Option<Sense>;

/// Lets the unit do the work. `piece` is the buffer, with the data from the initiator at its beginning.
pub(crate) async fn perform(
    unit: Arc<Unit>,
    work: Work,
    piece: Option<Piece>,
) -> Result<(), Trouble> {
    let inner = &unit.inner;
    let told = |error: UnitError| error.sense();
    let need = || piece.clone().ok_or(UnitError::Failed.sense());
    match work {
        Work::Read { lba, fua, .. } => {
            if fua && unit.shape.write_cache {
                inner.flush().await.map_err(told)?;
            }
            inner.read(lba, need()?).await.map_err(told)
        }
        Work::Write { lba, durable, .. } => inner.write(lba, need()?, durable).await.map_err(told),
        Work::Flush => inner.flush().await.map_err(told),
        Work::Compare { lba, durable, .. } => {
            let done = inner.compare_and_write(lba, need()?, durable).await;
            done.map_err(told)
        }
        Work::Verify { lba, count } => verify(&unit, lba, count, &need()?).await,
        Work::Same { lba, count, unmap } => same(&unit, lba, count, unmap, &need()?).await,
        Work::Unmap { .. } => unmap(&unit, &need()?).await,
    }
}

async fn verify(unit: &Unit, mut lba: u64, count: u64, room: &Piece) -> Result<(), Trouble> {
    let end = lba.saturating_add(count);
    while lba < end {
        let part = blocks_of(unit, room, end - lba);
        let blocks = part.len() as u64 / u64::from(unit.shape.block_bytes);
        let read = unit.inner.read(lba, part).await;
        read.map_err(UnitError::sense)?;
        lba += blocks;
    }
    Ok(())
}

async fn same(
    unit: &Unit,
    mut lba: u64,
    count: u64,
    unmap: bool,
    room: &Piece,
) -> Result<(), Trouble> {
    let size = unit.shape.block_bytes;
    let block = room.part(0..size as usize).to_vec();
    if block.iter().all(|byte| *byte == 0) {
        let zeroed = unit.inner.write_zeros(lba, count, unmap).await;
        return zeroed.map_err(UnitError::sense);
    }
    let end = lba.saturating_add(count);
    let part = blocks_of(unit, room, count);
    for at in (0..part.len()).step_by(block.len()) {
        // The part consists of whole blocks.
        let copied = part.write(at, &block);
        copied.map_err(|_| UnitError::Failed.sense())?;
    }
    while lba < end {
        let part = blocks_of(unit, room, end - lba);
        let blocks = part.len() as u64 / u64::from(size);
        let written = unit.inner.write(lba, part, false).await;
        written.map_err(UnitError::sense)?;
        lba += blocks;
    }
    Ok(())
}

/// The beginning of a buffer with room for that many blocks, or as many as fit.
fn blocks_of(unit: &Unit, room: &Piece, count: u64) -> Piece {
    let size = unit.shape.block_bytes as usize;
    let fit = room.len() / size;
    let blocks = usize::try_from(count).map_or(fit, |count| count.min(fit));
    room.part(0..blocks * size)
}

async fn unmap(unit: &Unit, list: &Piece) -> Result<(), Trouble> {
    let extents = parse_unmap(&list.to_vec()).map_err(Some)?;
    let wrong = |code| Some(Sense::illegal(code));
    if extents.len() > unit.limits.unmap_ranges as usize {
        return Err(wrong(Code::INVALID_PARAMETER));
    }
    let mut all = 0;
    for extent in &extents {
        all += u64::from(extent.count);
        let end = extent.lba.checked_add(extent.count.into());
        if end.is_none_or(|end| end > unit.blocks()) {
            return Err(wrong(Code::LBA_OUT_OF_RANGE));
        }
    }
    if all > unit.limits.unmap.into() {
        return Err(wrong(Code::INVALID_PARAMETER));
    }
    for extent in extents.iter().filter(|extent| extent.count > 0) {
        let done = unit.inner.unmap(extent.lba, extent.count.into()).await;
        done.map_err(UnitError::sense)?;
    }
    Ok(())
}

/// The sense data of a command beyond the unit's end.
pub(crate) fn out_of_range(lba: u64) -> Sense {
    let mut sense = Sense::illegal(Code::LBA_OUT_OF_RANGE);
    sense.information = Some(lba);
    sense
}

/// Sense data that report nothing.
pub(crate) const NOTHING: Sense = Sense::new(SenseKey::NoSense, Code::NONE);
