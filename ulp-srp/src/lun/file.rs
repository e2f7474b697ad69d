//! A unit whose blocks are in a file or a block device.

use std::cell::RefCell;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

use async_trait::async_trait;
use futures::channel::oneshot;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use verbs_core::sync::Arc;

use super::{LogicalUnit, Piece, Shape, UnitError};
use crate::scsi::Identity;

/// Bytes of a block. Every initiator takes 512; Linux does direct I/O of files in these units.
const BLOCK_BYTES: u32 = 512;

/// Bytes that one system call moves.
const CHUNK: usize = 128 << 10;

/// Blocks that a file system gives back together: 4 KiB.
const GRANULARITY: u32 = 8;

/// Something that waits, and that is to be done where that is allowed.
pub type Work = Box<dyn FnOnce() + Send>;

/// Where a [`FileUnit`]'s system calls are made: some threads of the program's, which may wait as the thread
/// that drives a device may not.
///
/// Regular files have no other way: a read that misses the page cache and every flush wait, and there is no
/// notification of when they would not. (io_uring has threads of its own for the same, takes unsafe code to
/// be given memory, and is switched off in many containers.)
pub trait Offload: Send + Sync + fmt::Debug {
    /// Has `work` done, once, elsewhere. Never blocks. Who has no room drops it, and the command that it
    /// was for ends with [`UnitError::Busy`].
    fn submit(&self, work: Work);
}

/// Keeps blocks in a file.
///
/// What was written is in the system's page cache when a command ends: it outlives this process, however
/// that ends. It outlives a power failure after [`LogicalUnit::flush`], or if it was durable (`fdatasync`).
/// When a flush has failed, nobody knows what is on the medium: every later one fails, too, and so does
/// every write.
#[derive(Debug)]
pub struct FileUnit {
    store: Arc<Store>,
    offload: Arc<dyn Offload>,
    blocks: u64,
    read_only: bool,
    identity: Identity,
}

#[derive(Debug)]
struct Store {
    file: File,
    /// Exclusive for those who compare first.
    changing: RwLock<()>,
    flush_failed: AtomicBool,
}

impl FileUnit {
    /// The file or block device of that name, as large as it is, for this process alone.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::WouldBlock`] when another process has it open as a unit,
    /// [`io::ErrorKind::UnexpectedEof`] when there is not even one block.
    ///
    /// # Context
    /// Waits for the file system.
    pub fn open(path: &Path, read_only: bool, offload: Arc<dyn Offload>) -> io::Result<Self> {
        let opened = OpenOptions::new().read(true).write(!read_only).open(path)?;
        Self::of(opened, read_only, offload)
    }

    /// A file of that name and of that many bytes, as sparse as the file system has it. One that exists is
    /// made as large as that, and keeps what fits.
    ///
    /// # Errors
    /// As [`FileUnit::open`].
    ///
    /// # Context
    /// Waits for the file system.
    pub fn create(path: &Path, bytes: u64, offload: Arc<dyn Offload>) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let opened = options.open(path)?;
        opened.set_len(bytes)?;
        Self::of(opened, false, offload)
    }

    fn of(mut file: File, read_only: bool, offload: Arc<dyn Offload>) -> io::Result<Self> {
        flock(
            &file,
            match read_only {
                true => FlockOperation::NonBlockingLockShared,
                false => FlockOperation::NonBlockingLockExclusive,
            },
        )?;
        // Block devices have no length that a query would tell.
        let blocks = file.seek(SeekFrom::End(0))? / u64::from(BLOCK_BYTES);
        if blocks == 0 {
            let error = "it is smaller than a block of 512 bytes";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error));
        }
        let metadata = file.metadata()?;
        let serial = format!("{:x}-{:x}", metadata.dev(), metadata.ino());
        let store = Store {
            file,
            changing: RwLock::new(()),
            flush_failed: AtomicBool::new(false),
        };
        Ok(Self {
            store: Arc::new(store),
            offload,
            blocks,
            read_only,
            identity: Identity::new(serial),
        })
    }

    /// With these names.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Does it elsewhere.
    async fn elsewhere(
        &self,
        work: impl FnOnce(&Store) -> Result<(), UnitError> + Send + 'static,
    ) -> Result<(), UnitError> {
        let (done, result) = oneshot::channel();
        let store = Arc::clone(&self.store);
        self.offload.submit(Box::new(move || {
            // Nobody may want to know any more.
            let _ = done.send(work(&store));
        }));
        result.await.unwrap_or(Err(UnitError::Busy))
    }
}

impl Store {
    fn read(&self, lba: u64, into: &Piece) -> Result<(), UnitError> {
        in_chunks(into, |at, chunk| {
            self.file.read_exact_at(chunk, byte(lba) + at as u64)?;
            // The chunk is a part of the piece.
            into.write(at, chunk).map_err(io::Error::other)
        })
        .map_err(|at| UnitError::Read(lba + at / u64::from(BLOCK_BYTES)))
    }

    fn write(&self, lba: u64, from: &Piece, durable: bool) -> Result<(), UnitError> {
        if self.flush_failed.load(Relaxed) {
            return Err(UnitError::Failed);
        }
        in_chunks(from, |at, chunk| {
            from.read(at, chunk).map_err(io::Error::other)?;
            self.file.write_all_at(chunk, byte(lba) + at as u64)
        })
        .map_err(|at| UnitError::Write(lba + at / u64::from(BLOCK_BYTES)))?;
        match durable {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&self) -> Result<(), UnitError> {
        if self.flush_failed.load(Relaxed) {
            return Err(UnitError::Failed);
        }
        self.file.sync_data().map_err(|_| {
            // The system forgets what it could not write; the next one would succeed.
            self.flush_failed.store(true, Relaxed);
            UnitError::Failed
        })
    }

    fn compare_and_write(&self, lba: u64, both: &Piece, durable: bool) -> Result<(), UnitError> {
        let _alone = self
            .changing
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let half = both.len() / 2;
        let expected = both.part(0..half).to_vec();
        let mut found = vec![0; half];
        let read = self.file.read_exact_at(&mut found, byte(lba));
        read.map_err(|_| UnitError::Read(lba))?;
        if let Some(at) = expected.iter().zip(&found).position(|(a, b)| a != b) {
            return Err(UnitError::Differs(at as u64));
        }
        self.write(lba, &both.part(half..both.len()), durable)
    }

    fn write_zeros(&self, lba: u64, count: u64, unmap: bool) -> Result<(), UnitError> {
        if self.flush_failed.load(Relaxed) {
            return Err(UnitError::Failed);
        }
        let flags = match unmap {
            true => FallocateFlags::PUNCH_HOLE,
            false => FallocateFlags::ZERO_RANGE,
        };
        let (start, len) = (byte(lba), byte(count));
        let allocated = fallocate(&self.file, flags | FallocateFlags::KEEP_SIZE, start, len);
        if allocated.is_ok() {
            return Ok(());
        }
        // Not every file system can do that.
        let zeros = vec![0; CHUNK];
        for at in (0..len).step_by(CHUNK) {
            let part = &zeros[..CHUNK.min(usize::try_from(len - at).unwrap_or(CHUNK))];
            let written = self.file.write_all_at(part, start + at);
            written.map_err(|_| UnitError::Write(lba + at / u64::from(BLOCK_BYTES)))?;
        }
        Ok(())
    }
}

/// The first byte of a block. A target checks blocks before, so that nothing overflows.
fn byte(lba: u64) -> u64 {
    lba.saturating_mul(BLOCK_BYTES.into())
}

/// Calls with the place of each chunk of the piece and with room for it; says where it failed.
fn in_chunks(
    piece: &Piece,
    mut move_chunk: impl FnMut(usize, &mut [u8]) -> io::Result<()>,
) -> Result<(), u64> {
    thread_local! {
        static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    ROOM.with_borrow_mut(|room| {
        room.resize(CHUNK, 0);
        for at in (0..piece.len()).step_by(CHUNK) {
            let len = CHUNK.min(piece.len() - at);
            move_chunk(at, &mut room[..len]).map_err(|_| at as u64)?;
        }
        Ok(())
    })
}

#[async_trait]
impl LogicalUnit for FileUnit {
    fn shape(&self) -> Shape {
        Shape {
            blocks: self.blocks,
            block_bytes: BLOCK_BYTES,
            identity: self.identity.clone(),
            read_only: self.read_only,
            write_cache: true,
            unmap_granularity: GRANULARITY,
        }
    }

    async fn read(&self, lba: u64, into: Piece) -> Result<(), UnitError> {
        self.elsewhere(move |store| store.read(lba, &into)).await
    }

    async fn write(&self, lba: u64, from: Piece, durable: bool) -> Result<(), UnitError> {
        self.elsewhere(move |store| {
            let _changing = store
                .changing
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            store.write(lba, &from, durable)
        })
        .await
    }

    async fn flush(&self) -> Result<(), UnitError> {
        self.elsewhere(Store::flush).await
    }

    async fn write_zeros(&self, lba: u64, count: u64, unmap: bool) -> Result<(), UnitError> {
        self.elsewhere(move |store| {
            let _changing = store
                .changing
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            store.write_zeros(lba, count, unmap)
        })
        .await
    }

    async fn compare_and_write(
        &self,
        lba: u64,
        both: Piece,
        durable: bool,
    ) -> Result<(), UnitError> {
        self.elsewhere(move |store| store.compare_and_write(lba, &both, durable))
            .await
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use verbs_core::Memory;

    use super::*;

    /// Does it here: tests may wait.
    #[derive(Debug)]
    struct Here;

    impl Offload for Here {
        fn submit(&self, work: Work) {
            work();
        }
    }

    /// Has no room.
    #[derive(Debug)]
    struct Full;

    impl Offload for Full {
        fn submit(&self, _: Work) {}
    }

    fn piece(text: &[u8], len: usize) -> Piece {
        let memory = Memory::alloc(len).unwrap();
        memory.write(0, text).unwrap();
        Piece::of(Arc::new(memory))
    }

    #[test]
    fn blocks_are_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let unit = FileUnit::create(&path, 1 << 20, Arc::new(Here)).unwrap();
        assert_eq!(unit.shape().blocks, 2048);
        let long = vec![7; 300_000 / 512 * 512];
        block_on(unit.write(100, piece(&long, long.len()), true)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[100 * 512..][..long.len()], long);
        assert_eq!(bytes[100 * 512 - 1], 0);
        let back = piece(b"", long.len());
        block_on(unit.read(100, back.clone())).unwrap();
        assert_eq!(back.to_vec(), long);

        block_on(unit.unmap(104, 8)).unwrap();
        block_on(unit.write_zeros(120, 1, false)).unwrap();
        block_on(unit.read(100, back.clone())).unwrap();
        let back = back.to_vec();
        assert_eq!(back[4 * 512..12 * 512], [0; 8 * 512]);
        assert_eq!((back[12 * 512], back[20 * 512], back[21 * 512]), (7, 0, 7));

        let both = piece(&[0; 512], 1024);
        both.write(512, &[9; 512]).unwrap();
        block_on(unit.compare_and_write(0, both.clone(), false)).unwrap();
        let differs = block_on(unit.compare_and_write(0, both, true));
        assert_eq!(differs, Err(UnitError::Differs(0)));

        let second = FileUnit::open(&path, false, Arc::new(Here));
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(unit);
        let again = FileUnit::open(&path, true, Arc::new(Full)).unwrap();
        assert!(again.shape().read_only);
        assert_eq!(
            block_on(again.read(0, piece(b"", 512))),
            Err(UnitError::Busy)
        );
        let short = dir.path().join("short");
        std::fs::write(&short, [0; 511]).unwrap();
        assert!(FileUnit::open(&short, true, Arc::new(Here)).is_err());
    }

    #[test]
    fn what_cannot_be_written_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, [0; 4096]).unwrap();
        let unit = FileUnit::open(&path, true, Arc::new(Here)).unwrap();
        let written = block_on(unit.write(3, piece(b"x", 512), false));
        assert_eq!(written, Err(UnitError::Write(3)));
        let zeroed = block_on(unit.write_zeros(3, 1, true));
        assert_eq!(zeroed, Err(UnitError::Write(3)));
        let read = block_on(unit.read(7, piece(b"", 1024)));
        assert_eq!(read, Err(UnitError::Read(7)), "beyond the end");
    }
}
