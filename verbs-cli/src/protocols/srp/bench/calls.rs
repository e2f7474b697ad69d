//! The same load without a protocol: function calls on the logical unit.

use std::time::{Duration, Instant};

use futures::FutureExt;
use ulp_srp::lun::{LogicalUnit, MemoryUnit, Piece};
use verbs_core::Memory;
use verbs_core::sync::Arc;

use super::super::error::SrpError;
use super::load::{Draw, Load};

/// How long it is measured.
const TIME: Duration = Duration::from_millis(500);

/// Calls between two looks at the clock.
const BATCH: u64 = 256;

/// Commands a second, of one after the other.
pub(super) fn per_second(load: &Load) -> Result<f64, SrpError> {
    let bytes = usize::try_from(load.capacity.bytes()).unwrap_or(usize::MAX);
    let failed = || SrpError::verb("allocate the disk");
    let unit: Arc<dyn LogicalUnit> =
        Arc::new(MemoryUnit::new(bytes, load.capacity.block_len).map_err(failed())?);
    let piece = Piece::of(Arc::new(
        Memory::alloc(load.bytes as usize).map_err(failed())?,
    ));
    let blocks = u64::from(load.bytes / load.capacity.block_len);
    let room = load.capacity.blocks / blocks.max(1);
    let mut draw = Draw(1);
    let mut done = 0;
    let begun = Instant::now();
    while begun.elapsed() < TIME {
        for _ in 0..BATCH {
            let lba = draw.below(room) * blocks;
            let moved = match draw.below(100) < u64::from(load.read_percent) {
                true => unit.read(lba, piece.clone()).now_or_never(),
                false => unit.write(lba, piece.clone(), false).now_or_never(),
            };
            // Memory is ready at once, and the place is on the disk.
            done += u64::from(moved == Some(Ok(())));
        }
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}
