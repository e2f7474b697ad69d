//! A unit whose blocks are in a file or a block device.

use std::cell::RefCell;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

use async_trait::async_trait;
use futures::channel::oneshot;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use verbs_core::sync::Arc;

use super::{LogicalUnit, Piece, Shape, UnitError, serial};
use crate::scsi::Identity;

/// Bytes of a block. Every initiator takes 512; Linux does direct I/O of files in these units.
const BLOCK_BYTES: u32 = 512;

/// Bytes that one system call moves.
const CHUNK: usize = 128 << 10;

/// Blocks that a file system releases together: 4 KiB.
const GRANULARITY: u32 = 8;

/// Work that waits, and must run where waiting is allowed.
pub type Work = Box<dyn FnOnce() + Send>;

/// Where a [`FileUnit`] makes its system calls: threads of the program that may wait, unlike the thread that
/// drives a device.
///
/// Regular files offer no alternative: a read that misses the page cache waits, every flush waits, and the system
/// does not notify when they would not. (io_uring has threads of its own for the same purpose, needs unsafe code
/// to be given memory, and is switched off in many containers.)
pub trait Offload: Send + Sync + fmt::Debug {
    /// Runs `work`, once, on another thread. Never blocks. An implementation without room drops the work, and the
    /// command that it was for ends with [`UnitError::Busy`].
    fn submit(&self, work: Work);
}

/// Keeps blocks in a file.
///
/// Written data is in the system's page cache when a command ends: it outlives this process, however the process
/// ends. It outlives a power failure after [`LogicalUnit::flush`], or if the write was durable (`fdatasync`).
/// When a flush has failed, the state of the medium is unknown: every later flush fails too, and so does every
/// write.
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
    /// Exclusive for commands that compare before they write.
    changing: RwLock<()>,
    flush_failed: AtomicBool,
}

/// How a [`FileUnit`] opens a file. By default it uses the file as it is, and writes to it.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// Nothing is written, and other processes may open the file read-only too.
    pub read_only: bool,
    /// The size of the file in bytes. A file that does not exist is created, as sparse as the file system allows.
    pub size: Option<u64>,
    /// The file may be cut to `size`; the data beyond it are lost.
    pub shrink: bool,
    /// Its names. The names of a file are drawn when it is first served, and stay with it: see
    /// `docs/SRP-TARGET.md`.
    pub identity: Option<Identity>,
}

impl FileUnit {
    /// Opens the file or block device with that name, in its current size, for this process alone.
    ///
    /// # Errors
    /// As [`FileUnit::with`].
    ///
    /// # Context
    /// Waits for the file system.
    pub fn open(path: &Path, read_only: bool, offload: Arc<dyn Offload>) -> io::Result<Self> {
        let options = FileOptions {
            read_only,
            ..FileOptions::default()
        };
        Self::with(path, &options, offload)
    }

    /// Opens a file with that name and that many bytes. An existing file is enlarged to that size, but never cut.
    ///
    /// # Errors
    /// As [`FileUnit::with`].
    ///
    /// # Context
    /// Waits for the file system.
    pub fn create(path: &Path, bytes: u64, offload: Arc<dyn Offload>) -> io::Result<Self> {
        let options = FileOptions {
            size: Some(bytes),
            ..FileOptions::default()
        };
        Self::with(path, &options, offload)
    }

    /// Opens the file or block device with that name. It is locked (`flock`) before anything is changed in it.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::WouldBlock`] when another process has locked it,
    /// [`io::ErrorKind::InvalidInput`] when it is larger than `size` and may not be cut,
    /// [`io::ErrorKind::UnexpectedEof`] when it has not even one block. On an error the file is unchanged.
    ///
    /// # Context
    /// Waits for the file system.
    pub fn with(path: &Path, options: &FileOptions, offload: Arc<dyn Offload>) -> io::Result<Self> {
        let read_only = options.read_only;
        let mut open = OpenOptions::new();
        open.read(true).write(!read_only);
        open.create(options.size.is_some()).truncate(false);
        let mut file = open.open(path)?;
        lock(&file, read_only)?;
        // Only a seek tells the length of a block device.
        let mut bytes = file.seek(SeekFrom::End(0))?;
        match options.size {
            Some(size) if size < bytes && !options.shrink => {
                let error = format!(
                    "it has {bytes} bytes, and would lose what is beyond the {size} that it is to have"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
            }
            Some(size) if size != bytes => {
                file.set_len(size)?;
                bytes = size;
            }
            _ => {}
        }
        let blocks = bytes / u64::from(BLOCK_BYTES);
        if blocks == 0 {
            let error = "it is smaller than a block of 512 bytes";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error));
        }
        let identity = match &options.identity {
            Some(identity) => identity.clone(),
            None => Identity::new(serial::of_file(&file, !read_only)?),
        };
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
            identity,
        })
    }

    /// Does the work on a thread of the offload.
    async fn elsewhere(
        &self,
        work: impl FnOnce(&Store) -> Result<(), UnitError> + Send + 'static,
    ) -> Result<(), UnitError> {
        let (done, result) = oneshot::channel();
        let store = Arc::clone(&self.store);
        self.offload.submit(Box::new(move || {
            // The receiver may have been dropped.
            let _ = done.send(work(&store));
        }));
        result.await.unwrap_or(Err(UnitError::Busy))
    }
}

/// Locks the file for this process alone, or shared with other readers.
fn lock(file: &File, read_only: bool) -> io::Result<()> {
    let operation = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    flock(file, operation).map_err(|error| match error {
        Errno::WOULDBLOCK => {
            let error = "it is locked by another process; another target may be serving it";
            io::Error::new(io::ErrorKind::WouldBlock, error)
        }
        error => error.into(),
    })
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
            // The system discards what it could not write; the next flush would succeed.
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

/// The first byte of a block. The target has checked the block, so nothing overflows.
fn byte(lba: u64) -> u64 {
    lba.saturating_mul(BLOCK_BYTES.into())
}

/// Calls `each` with the position of each chunk of the piece and a buffer for it; reports where it failed.
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

    /// An offload without room.
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

    /// Goal: a process that is refused a file leaves it unchanged. Method: a second process would make it
    /// smaller, or larger, while the first one serves it; then a lone one would cut it without being told to.
    /// while the first one serves it; then a lone one that would cut it without being told to.
    #[test]
    fn who_is_refused_a_file_leaves_it_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let content = vec![7; 1 << 20];
        std::fs::write(&path, &content).unwrap();
        let is_whole = || std::fs::read(&path).unwrap() == content;
        let first = FileUnit::create(&path, 1 << 20, Arc::new(Here)).unwrap();
        let cut = |size| FileOptions {
            size: Some(size),
            shrink: true,
            ..FileOptions::default()
        };
        for size in [4096, 2 << 20] {
            let second = FileUnit::with(&path, &cut(size), Arc::new(Here)).unwrap_err();
            assert_eq!(second.kind(), io::ErrorKind::WouldBlock);
            assert!(
                second.to_string().contains("locked by another process"),
                "{second}"
            );
            assert!(is_whole());
        }
        drop(first);
        let refused = FileUnit::create(&path, 4096, Arc::new(Here)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(
            refused.to_string(),
            "it has 1048576 bytes, and would lose what is beyond the 4096 that it is to have"
        );
        assert!(is_whole());
        let larger = FileUnit::create(&path, 2 << 20, Arc::new(Here)).unwrap();
        assert_eq!(larger.shape().blocks, 4096);
        drop(larger);
        let smaller = FileUnit::with(&path, &cut(4096), Arc::new(Here)).unwrap();
        assert_eq!(smaller.shape().blocks, 8);
        assert_eq!(std::fs::read(&path).unwrap(), content[..4096]);
    }

    #[test]
    fn units_have_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let serial = |options: &FileOptions| {
            let unit = FileUnit::with(&path, options, Arc::new(Here)).unwrap();
            unit.shape().identity.serial
        };
        let sized = FileOptions {
            size: Some(4096),
            ..FileOptions::default()
        };
        let first = serial(&sized);
        assert_eq!(serial(&FileOptions::default()), first);
        let named = FileOptions {
            identity: Some(Identity::new("disk 7")),
            ..FileOptions::default()
        };
        assert_eq!(serial(&named), "disk 7");
        let units = [(); 2].map(|()| crate::lun::MemoryUnit::new(4096, 512).unwrap());
        let [one, other] = units.map(|unit| unit.shape().identity);
        assert!(one.serial != other.serial && one.naa != other.naa);
    }

    #[test]
    fn the_first_difference_is_told_and_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let unit = FileUnit::create(&path, 4096, Arc::new(Here)).unwrap();
        for at in [0, 1, 300, 511] {
            let both = piece(&[0; 512], 1024);
            both.write(at, &[1]).unwrap();
            both.write(511, &[1]).unwrap();
            both.write(512, &[9; 512]).unwrap();
            let differs = block_on(unit.compare_and_write(2, both, false));
            assert_eq!(differs, Err(UnitError::Differs(at as u64)));
        }
        assert_eq!(std::fs::read(&path).unwrap(), [0; 4096]);
    }

    /// Goal: when a flush has failed, the state of the medium is unknown: no later flush succeeds, though the
    /// system would say so, and nothing is written. Method: a file that cannot be flushed replaces the disk, then
    /// the disk is restored.
    #[test]
    fn a_failed_flush_is_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let mut unit = FileUnit::create(&path, 4096, Arc::new(Here)).unwrap();
        block_on(unit.flush()).unwrap();
        let (pipe, _writer) = io::pipe().unwrap();
        let replace = |unit: &mut FileUnit, file: File| {
            let store = Arc::get_mut(&mut unit.store).expect("nothing is under way");
            std::mem::replace(&mut store.file, file)
        };
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        let disk = replace(&mut unit, pipe);
        assert_eq!(block_on(unit.flush()), Err(UnitError::Failed));
        replace(&mut unit, disk);
        for durable in [false, true] {
            let written = block_on(unit.write(0, piece(b"x", 512), durable));
            assert_eq!(written, Err(UnitError::Failed));
        }
        assert_eq!(block_on(unit.flush()), Err(UnitError::Failed));
        let zeroed = block_on(unit.write_zeros(0, 1, false));
        assert_eq!(zeroed, Err(UnitError::Failed));
        assert_eq!(std::fs::read(&path).unwrap(), [0; 4096]);
        let back = piece(b"", 512);
        block_on(unit.read(0, back)).unwrap();
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
