//! A unit whose blocks are in memory.

use async_trait::async_trait;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Error, Memory};

use super::{LogicalUnit, Piece, Shape, UnitError};
use crate::scsi::Identity;

/// Bytes that are copied at a time.
const CHUNK: usize = 4096;

/// Keeps blocks in memory, from which a target moves them without a copy. Its contents are lost with the process.
///
/// A COMPARE AND WRITE is atomic with respect to others, and to [`LogicalUnit::write`]; a WRITE that a target
/// moves by RDMA at the same time to the same blocks may land between its two halves, because nothing can delay
/// it.
#[derive(Debug)]
pub struct MemoryUnit {
    memory: Arc<Memory>,
    block_bytes: u32,
    identity: Identity,
    /// Held while a call changes blocks by copying; never while foreign code runs.
    changing: Mutex<()>,
}

impl MemoryUnit {
    /// A unit of that many bytes, rounded down to blocks of that size, all zeros. The system allocates pages when
    /// they are first touched.
    ///
    /// It has unique names, and gets new ones each time it is created.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; [`Error::DeviceFailed`] if the system gives no random numbers.
    pub fn new(bytes: usize, block_bytes: u32) -> Result<Self, Error> {
        let block = (block_bytes as usize).clamp(512, CHUNK).next_power_of_two();
        let blocks = (bytes / block).max(1);
        Ok(Self {
            memory: Arc::new(Memory::alloc(blocks * block)?),
            // At most 4096.
            block_bytes: block as u32,
            identity: Identity::drawn().map_err(|_| Error::DeviceFailed)?,
            changing: Mutex::new(()),
        })
    }

    /// Sets its names.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    fn place(&self, lba: u64) -> usize {
        // For places beyond the memory, the copy fails.
        usize::try_from(lba.saturating_mul(self.block_bytes.into())).unwrap_or(usize::MAX)
    }
}

/// Copies between memories, through a buffer on the stack.
pub(crate) fn copy(from: &Piece, into: &Memory, place: usize) -> Result<(), Error> {
    let mut chunk = [0; CHUNK];
    for at in (0..from.len()).step_by(CHUNK) {
        let part = &mut chunk[..CHUNK.min(from.len() - at)];
        from.read(at, part)?;
        into.write(place.saturating_add(at), part)?;
    }
    Ok(())
}

/// The first byte of `expected` that differs from what is at `place`.
fn difference(memory: &Memory, place: usize, expected: &[u8]) -> Result<Option<usize>, Error> {
    let mut found = vec![0; expected.len()];
    memory.read(place, &mut found)?;
    Ok(expected.iter().zip(&found).position(|(a, b)| a != b))
}

#[async_trait]
impl LogicalUnit for MemoryUnit {
    fn shape(&self) -> Shape {
        Shape {
            blocks: (self.memory.len() / self.block_bytes as usize) as u64,
            block_bytes: self.block_bytes,
            identity: self.identity.clone(),
            read_only: false,
            write_cache: false,
            unmap_granularity: 1,
        }
    }

    fn memory(&self) -> Option<Arc<Memory>> {
        Some(Arc::clone(&self.memory))
    }

    async fn read(&self, lba: u64, into: Piece) -> Result<(), UnitError> {
        let place = self.place(lba);
        let end = place.saturating_add(into.len());
        let from = Piece::of(Arc::clone(&self.memory)).part(place..end);
        if from.len() != into.len() {
            return Err(UnitError::Read(lba));
        }
        copy(&from, into.memory(), into.range().start).map_err(|_| UnitError::Read(lba))
    }

    async fn write(&self, lba: u64, from: Piece, _durable: bool) -> Result<(), UnitError> {
        let _changing = self.changing.lock();
        copy(&from, &self.memory, self.place(lba)).map_err(|_| UnitError::Write(lba))
    }

    async fn flush(&self) -> Result<(), UnitError> {
        Ok(())
    }

    async fn write_zeros(&self, lba: u64, count: u64, _unmap: bool) -> Result<(), UnitError> {
        let place = self.place(lba);
        let end = self.place(lba.saturating_add(count));
        let _changing = self.changing.lock();
        let filled = self.memory.fill(place..end, 0);
        filled.map_err(|_| UnitError::Write(lba))
    }

    async fn compare_and_write(
        &self,
        lba: u64,
        both: Piece,
        _durable: bool,
    ) -> Result<(), UnitError> {
        let place = self.place(lba);
        let half = both.len() / 2;
        let expected = both.part(0..half).to_vec();
        let _changing = self.changing.lock();
        match difference(&self.memory, place, &expected) {
            Ok(None) => {}
            Ok(Some(at)) => return Err(UnitError::Differs(at as u64)),
            Err(_) => return Err(UnitError::Read(lba)),
        }
        let new = both.part(half..both.len());
        copy(&new, &self.memory, place).map_err(|_| UnitError::Write(lba))
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    fn piece(text: &[u8], len: usize) -> Piece {
        let memory = Memory::alloc(len).unwrap();
        memory.write(0, text).unwrap();
        Piece::of(Arc::new(memory))
    }

    #[test]
    fn blocks_are_where_they_were_put() {
        let unit = MemoryUnit::new(10_000, 1000).unwrap();
        assert_eq!(unit.shape().block_bytes, 1024);
        assert_eq!(unit.shape().blocks, 9);
        block_on(unit.write(3, piece(b"three", 2048), false)).unwrap();
        let back = piece(b"", 1024);
        block_on(unit.read(3, back.clone())).unwrap();
        assert_eq!(&back.to_vec()[..6], b"three\0");
        let beyond = block_on(unit.write(9, piece(b"", 1024), false));
        assert_eq!(beyond, Err(UnitError::Write(9)));
        assert_eq!(
            block_on(unit.read(8, piece(b"", 2048))),
            Err(UnitError::Read(8))
        );
        block_on(unit.write_zeros(3, 1, false)).unwrap();
        block_on(unit.read(3, back.clone())).unwrap();
        assert_eq!(back.to_vec(), [0; 1024]);
    }

    #[test]
    fn comparing_says_where_it_differs() {
        let unit = MemoryUnit::new(4096, 512).unwrap();
        let both = piece(b"", 1024);
        both.write(512, b"new").unwrap();
        block_on(unit.compare_and_write(1, both.clone(), false)).unwrap();
        let differs = block_on(unit.compare_and_write(1, both.clone(), false));
        assert_eq!(differs, Err(UnitError::Differs(0)));
        both.write(0, b"nex").unwrap();
        let differs = block_on(unit.compare_and_write(1, both, false));
        assert_eq!(differs, Err(UnitError::Differs(2)));
    }
}
