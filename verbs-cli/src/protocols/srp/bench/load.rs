//! The load: commands that follow each other, so many at a time.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use rustix::time::{ClockId, clock_gettime};
use ulp_srp::initiator::{Capacity, ScsiError, Session};
use ulp_srp::iu::Lun;
use verbs_core::sync::Arc;
use verbs_core::{Extent, Memory};

use super::super::error::SrpError;
use super::PAGE;

/// What is to be done.
pub(super) struct Load {
    pub(super) lun: Lun,
    pub(super) capacity: Capacity,
    pub(super) depth: u16,
    pub(super) bytes: u32,
    pub(super) fragments: u32,
    pub(super) read_percent: u32,
    pub(super) time: Duration,
}

/// What was measured.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) seconds: f64,
    /// Seconds of processors that this process took in the meantime.
    pub(super) cpu_seconds: f64,
    /// Nanoseconds of each command, sorted at the end.
    pub(super) latencies: Vec<u32>,
}

/// Latencies that are kept; more are not, which a benchmark of minutes would have.
const LATENCIES_MAX: usize = 1 << 22;

impl Load {
    /// Does it.
    pub(super) async fn run(&self, session: &Session) -> Result<Measured, SrpError> {
        let block = self.capacity.block_len;
        let blocks = self.bytes / block;
        let room = self.capacity.blocks / u64::from(blocks.max(1));
        if blocks == 0 || !self.bytes.is_multiple_of(block) || room == 0 {
            return Err(SrpError::Arguments(
                "a command is of whole blocks of the disk, and no more than all of them",
            ));
        }
        let measured = RefCell::new(Measured::default());
        let (begun, cpu) = (Instant::now(), cpu_seconds());
        let workers = (0..self.depth).map(|number| {
            let measured = &measured;
            async move {
                let memory = Arc::new(Memory::alloc(self.room())?);
                session.publish(&memory).await?;
                let list = self.list(&memory);
                let mut draw = Draw(u64::from(number) + 1);
                while begun.elapsed() < self.time {
                    let lba = draw.below(room) * u64::from(blocks);
                    let is_read = draw.below(100) < u64::from(self.read_percent);
                    let start = Instant::now();
                    match is_read {
                        true => session.read(self.lun, lba, blocks, &list).await?,
                        false => session.write(self.lun, lba, blocks, &list).await?,
                    }
                    measured.borrow_mut().count(is_read, start.elapsed());
                }
                Ok::<(), ScsiError>(())
            }
        });
        try_join_all(workers).await?;
        let mut measured = measured.into_inner();
        measured.seconds = begun.elapsed().as_secs_f64();
        measured.cpu_seconds = cpu_seconds() - cpu;
        measured.latencies.sort_unstable();
        Ok(measured)
    }

    /// Bytes of memory behind one command: every other fragment is left out.
    fn room(&self) -> usize {
        self.bytes as usize * if self.fragments > 1 { 2 } else { 1 } + PAGE as usize
    }

    /// The memory of one command in its fragments, the last ones taking what is left over.
    fn list<'m>(&self, memory: &'m Arc<Memory>) -> Vec<Extent<'m>> {
        let pages = self.bytes.div_ceil(PAGE);
        let (mut at, mut left) = (0, self.bytes);
        (0..self.fragments)
            .map(|number| {
                let share =
                    (pages * (number + 1) / self.fragments) - (pages * number / self.fragments);
                let len = match number + 1 == self.fragments {
                    true => left,
                    false => share * PAGE,
                };
                let extent = Extent {
                    memory,
                    offset: at,
                    len,
                };
                left -= len;
                at += 2 * (share * PAGE) as usize;
                extent
            })
            .collect()
    }
}

impl Measured {
    fn count(&mut self, is_read: bool, took: Duration) {
        match is_read {
            true => self.reads += 1,
            false => self.writes += 1,
        }
        if self.latencies.len() < LATENCIES_MAX {
            let nanos = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
            self.latencies.push(nanos);
        }
    }
}

/// What this process has taken of all processors.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Places, drawn: xorshift, so that a load is the same each time.
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }
}
