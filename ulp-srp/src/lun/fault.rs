//! A unit that fails as configured.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use async_trait::async_trait;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::task::{self, OwnWaker};

use super::{LogicalUnit, Piece, Shape, UnitError};

/// The fault of commands that touch a bad block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// They end with this error.
    Error(UnitError),
    /// They do not end until [`FaultUnit::release`].
    Hang,
}

/// Another unit, some of whose blocks are bad.
///
/// Moves all data by copying, so that every command passes through here.
#[derive(Debug)]
pub struct FaultUnit {
    inner: Arc<dyn LogicalUnit>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// First block, one past the last, and their fault.
    bad: Vec<(u64, u64, Fault)>,
    /// How often a fault occurred.
    hits: u64,
    /// Counts releases, for the commands that hang.
    released: u64,
    waiting: Vec<Waker>,
}

impl State {
    /// The fault of those blocks, and the number of releases so far.
    fn hit(&mut self, lba: u64, count: u64) -> Option<(Fault, u64)> {
        let end = lba.saturating_add(count);
        let touches = |(first, last, _): &&(u64, u64, Fault)| *first < end && lba < *last;
        let (_, _, fault) = *self.bad.iter().find(touches)?;
        self.hits += 1;
        Some((fault, self.released))
    }

    fn poll_released(&mut self, before: u64, waker: &mut OwnWaker) -> Poll<()> {
        if self.released != before {
            return Poll::Ready(());
        }
        waker.join(&mut self.waiting);
        Poll::Pending
    }
}

impl FaultUnit {
    /// Wraps that unit, with no faults yet.
    pub fn new(inner: Arc<dyn LogicalUnit>) -> Self {
        Self {
            inner,
            state: Mutex::default(),
        }
    }

    /// From now on, `count` blocks from `lba` on have that fault. A flush touches all blocks.
    pub fn break_blocks(&self, lba: u64, count: u64, fault: Fault) {
        let end = lba.saturating_add(count);
        self.state.lock().bad.push((lba, end, fault));
    }

    /// Removes all faults; hanging commands continue.
    pub fn release(&self) {
        let mut state = self.state.lock();
        state.bad.clear();
        state.released += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(task::wake);
    }

    /// How often a command failed or hung.
    pub fn hits(&self) -> u64 {
        self.state.lock().hits
    }

    /// Fails or hangs if those blocks have a fault.
    async fn trouble(&self, lba: u64, count: u64) -> Result<(), UnitError> {
        let hit = self.state.lock().hit(lba, count);
        match hit {
            None => Ok(()),
            Some((Fault::Error(error), _)) => Err(error),
            Some((Fault::Hang, before)) => {
                poll_fn(|cx| {
                    let mut waker = OwnWaker::of(cx.waker());
                    self.state.lock().poll_released(before, &mut waker)
                })
                .await;
                Ok(())
            }
        }
    }

    fn blocks(&self, piece: &Piece) -> u64 {
        piece.len() as u64 / u64::from(self.inner.shape().block_bytes)
    }
}

#[async_trait]
impl LogicalUnit for FaultUnit {
    fn shape(&self) -> Shape {
        self.inner.shape()
    }

    async fn read(&self, lba: u64, into: Piece) -> Result<(), UnitError> {
        self.trouble(lba, self.blocks(&into)).await?;
        self.inner.read(lba, into).await
    }

    async fn write(&self, lba: u64, from: Piece, durable: bool) -> Result<(), UnitError> {
        self.trouble(lba, self.blocks(&from)).await?;
        self.inner.write(lba, from, durable).await
    }

    async fn flush(&self) -> Result<(), UnitError> {
        self.trouble(0, u64::MAX).await?;
        self.inner.flush().await
    }

    async fn write_zeros(&self, lba: u64, count: u64, unmap: bool) -> Result<(), UnitError> {
        self.trouble(lba, count).await?;
        self.inner.write_zeros(lba, count, unmap).await
    }

    async fn compare_and_write(
        &self,
        lba: u64,
        both: Piece,
        durable: bool,
    ) -> Result<(), UnitError> {
        self.trouble(lba, self.blocks(&both) / 2).await?;
        self.inner.compare_and_write(lba, both, durable).await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::executor::block_on;
    use verbs_core::Memory;

    use super::*;
    use crate::lun::MemoryUnit;

    #[test]
    fn bad_blocks_are_bad_until_they_are_released() {
        let unit = FaultUnit::new(Arc::new(MemoryUnit::new(1 << 16, 512).unwrap()));
        assert!(unit.memory().is_none());
        let piece = || Piece::of(Arc::new(Memory::alloc(1024).unwrap()));
        unit.break_blocks(8, 2, Fault::Error(UnitError::Read(9)));
        assert_eq!(block_on(unit.read(6, piece())), Ok(()));
        assert_eq!(block_on(unit.read(7, piece())), Err(UnitError::Read(9)));
        assert_eq!(block_on(unit.flush()), Err(UnitError::Read(9)));
        unit.break_blocks(20, 1, Fault::Hang);
        let mut hangs = unit.write(19, piece(), false);
        assert_eq!((&mut hangs).now_or_never(), None);
        unit.release();
        assert_eq!(block_on(hangs), Ok(()));
        assert_eq!(block_on(unit.read(7, piece())), Ok(()));
        assert_eq!(unit.hits(), 3);
    }
}
