//! A read-only logical unit, which detects when it was written nevertheless.

use std::sync::Arc;

use ulp_srp::lun::{LogicalUnit, MemoryUnit, Piece, Shape, UnitError};
use verbs_core::Memory;

/// The byte that block `lba` of a [`Fixed`] unit holds.
pub(super) const fn byte_of(lba: u64) -> u8 {
    (lba % 251) as u8 + 1
}

/// A unit whose blocks never change. The script decides whether its memory is moved directly or through buffers.
#[derive(Debug)]
pub(super) struct Fixed {
    inner: MemoryUnit,
    is_direct: bool,
}

impl Fixed {
    pub(super) fn new(blocks: u64, block: u32, is_direct: bool) -> Self {
        let len = blocks as usize * block as usize;
        let inner = MemoryUnit::new(len, block).expect("memory for a small unit");
        let memory = inner.memory().expect("a unit in memory");
        for lba in 0..blocks {
            let at = lba as usize * block as usize;
            let filled = memory.fill(at..at + block as usize, byte_of(lba));
            filled.expect("it is in range");
        }
        Self { inner, is_direct }
    }

    /// Checks that nothing has changed it, on any path.
    pub(super) fn check(&self) {
        let shape = self.inner.shape();
        let memory = self.inner.memory().expect("a unit in memory");
        let mut block = vec![0; shape.block_bytes as usize];
        for lba in 0..shape.blocks {
            let at = lba as usize * block.len();
            memory.read(at, &mut block).expect("it is in range");
            let is_same = block.iter().all(|&byte| byte == byte_of(lba));
            assert!(
                is_same,
                "block {lba} of a unit that is read only was written"
            );
        }
    }
}

#[async_trait::async_trait]
impl LogicalUnit for Fixed {
    fn shape(&self) -> Shape {
        Shape {
            read_only: true,
            ..self.inner.shape()
        }
    }

    fn memory(&self) -> Option<Arc<Memory>> {
        self.inner.memory().filter(|_| self.is_direct)
    }

    async fn read(&self, lba: u64, into: Piece) -> Result<(), UnitError> {
        self.inner.read(lba, into).await
    }

    async fn write(&self, _: u64, _: Piece, _: bool) -> Result<(), UnitError> {
        panic!("a unit that is read only is not written to");
    }

    async fn flush(&self) -> Result<(), UnitError> {
        Ok(())
    }

    async fn write_zeros(&self, _: u64, _: u64, _: bool) -> Result<(), UnitError> {
        panic!("a unit that is read only is not written to");
    }

    async fn compare_and_write(&self, _: u64, _: Piece, _: bool) -> Result<(), UnitError> {
        panic!("a unit that is read only is not written to");
    }
}
