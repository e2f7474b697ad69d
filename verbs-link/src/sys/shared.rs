//! Memory that two processes share, as an anonymous file whose length cannot change.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use verbs_core::Memory;

/// A process that has the file can neither shorten it, which would make an access to a mapping of it fatal, nor remove
/// the seals.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A mapping that is unmapped when it is dropped.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is a range of addresses, which belongs to the process and not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is one that the system returned to `map`, and the `Memory` that knew its addresses is being
        // dropped, because it owns this.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "the range was mapped");
    }
}

/// A file of that many bytes, all zero, which processes [map](map).
pub fn create_file(len: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("verbs shared memory", flags)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Maps another process's file, which must have that many bytes and keep them. If `len` is no multiple of 2 MiB, the
/// file is not one of huge pages either, of which there may be none left when they are touched.
pub fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<Memory> {
    let is_fixed = fcntl_get_seals(file)?.contains(SEALS);
    let is_long_enough = u64::try_from(fstat(file)?.st_size).is_ok_and(|size| size == len as u64);
    if !is_fixed || !is_long_enough {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping where the system finds room touches no memory that is in use.
    let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)? };
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    let mapping = Box::new(Mapping { start, len });
    // SAFETY: `len` bytes from `start` are mapped for reading and writing until `mapping` is dropped, are those of the
    // file, which were zero or written since, and remain, because the seals prevent every process from shortening it.
    // No Rust reference covers them: the only addresses are in the `Memory`, which is shared from now on, so that
    // `as_slice` and `as_mut_slice`, which need exclusive access to it, are not called.
    Ok(unsafe { Memory::foreign(start, len, mapping) })
}

#[cfg(all(test, not(miri), not(verbs_loom)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn both_mappings_are_one_memory() {
        let file = create_file(8192).expect("there is memory");
        let one = map(file.as_fd(), 8192).expect("it is such a file");
        let other = map(file.as_fd(), 8192).expect("it is the same file");
        one.write(5000, b"here").expect("it is long enough");
        let mut read = [0; 4];
        other.read(5000, &mut read).expect("it is long enough");
        assert_eq!(&read, b"here");
    }

    /// Goal: no process can hand over a file that may be shortened later, or that is too short.
    #[test]
    fn files_that_may_change_are_refused() {
        let file = create_file(4096).expect("there is memory");
        assert!(map(file.as_fd(), 8192).is_err());
        assert!(rustix::fs::ftruncate(&file, 0).is_err(), "it is sealed");
        let open = memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("a file");
        rustix::fs::ftruncate(&open, 4096).expect("it is not sealed");
        assert!(map(open.as_fd(), 4096).is_err());
        fcntl_add_seals(&open, SealFlags::GROW).expect("it can be sealed");
        assert!(map(open.as_fd(), 4096).is_err());
    }
}
