//! Memory that two processes share, as a file without a name that cannot change its length.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use verbs_core::Memory;

/// Whoever has the file can neither shorten it, which would make an access to a mapping of it fatal, nor
/// take that back.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A mapping that is given back.
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
        // SAFETY: the range is one that `map` was given by the system, and the `Memory` that knew its
        // addresses is going, as it owns this.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "the range was mapped");
    }
}

/// New memory of that many bytes, all zero, and the file by which another process maps it.
pub fn create(len: usize) -> io::Result<(OwnedFd, Memory)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("verbs shared memory", flags)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SEALS)?;
    let memory = map(file.as_fd(), len)?;
    Ok((file, memory))
}

/// The memory of somebody's file, which must have that many bytes and keep them. If that is no multiple of 2 MiB
/// the file is not one of huge pages either, of which there may be none left when they are touched.
pub fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<Memory> {
    let is_fixed = fcntl_get_seals(file)?.contains(SEALS);
    let is_long_enough = u64::try_from(fstat(file)?.st_size).is_ok_and(|size| size == len as u64);
    if !is_fixed || !is_long_enough {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping where the system finds room touches no memory that anybody uses.
    let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)? };
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    let mapping = Box::new(Mapping { start, len });
    // SAFETY: `len` bytes from `start` are mapped for reading and writing until `mapping` is dropped, are
    // those of the file, which were zero or written since, and remain, since the seals keep anybody from
    // shortening it. No Rust reference covers them: the only addresses are in the `Memory`, which is shared
    // from now on, so that `as_slice` and `as_mut_slice`, which need it alone, are not called.
    Ok(unsafe { Memory::foreign(start, len, mapping) })
}

#[cfg(all(test, not(miri), not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_are_one_memory() {
        let (file, one) = create(8192).expect("there is memory");
        let other = map(file.as_fd(), 8192).expect("it is the same file");
        one.write(5000, b"here").expect("it is long enough");
        let mut read = [0; 4];
        other.read(5000, &mut read).expect("it is long enough");
        assert_eq!(&read, b"here");
    }

    /// Goal: nobody can hand over a file that may be shortened later, or that is too short.
    #[test]
    fn files_that_may_change_are_refused() {
        let (file, _memory) = create(4096).expect("there is memory");
        assert!(map(file.as_fd(), 8192).is_err());
        assert!(rustix::fs::ftruncate(&file, 0).is_err(), "it is sealed");
        let open = memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("a file");
        rustix::fs::ftruncate(&open, 4096).expect("it is not sealed");
        assert!(map(open.as_fd(), 4096).is_err());
        fcntl_add_seals(&open, SealFlags::GROW).expect("it can be sealed");
        assert!(map(open.as_fd(), 4096).is_err());
    }
}
