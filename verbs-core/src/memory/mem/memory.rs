//! Memory that can be registered.

use std::any::Any;
use std::fmt;
#[cfg(not(miri))]
use std::fs::File;
#[cfg(not(miri))]
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use super::copy::copy;
use super::window::Window;
use crate::error::{Attr, ByteCount, Error, Why};
use crate::sync::plain::{AtomicU64, Ordering};

/// This divides the page size of every supported machine.
const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Memory that a device may be given access to.
///
/// A registered region holds its memory by `Arc`, so memory outlives every key to it. While it is shared, its
/// bytes are accessed only through copies ([`read`](Self::read), [`write`](Self::write)) and atomic words, which
/// are sound while a peer writes; a slice needs `&mut Memory`, which cannot exist while a registration does.
///
/// ```
/// use verbs_core::Memory;
///
/// let mut memory = Memory::alloc(4096)?;
/// memory.write(100, b"hello")?;
/// assert_eq!(&memory.as_slice()[100..105], b"hello");
/// # Ok::<(), verbs_core::Error>(())
/// ```
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    backing: Backing,
}

enum Backing {
    /// Nothing to free: no bytes.
    Empty,
    /// A private anonymous mapping of our own.
    Mapped {
        base: NonNull<u8>,
        bytes: usize,
        huge: bool,
    },
    /// A mapping of a file, which other processes may have too.
    Shared { base: NonNull<u8>, bytes: usize },
    /// Foreign memory, valid as long as this value lives.
    Foreign(#[expect(dead_code, reason = "held for its Drop only")] Box<dyn Any + Send + Sync>),
}

// SAFETY: the bytes are shared only through copies and atomics made for concurrent access; slices need
// `&mut self`. A mapping may be unmapped on any thread, and the keeper of foreign memory is itself Send and Sync.
// itself Send and Sync.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `len` zeroed bytes of this process, starting at a page boundary. Zero is legal.
    ///
    /// Context: makes a system call that does not wait; pages are populated on first touch.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if the system refuses.
    pub fn alloc(len: usize) -> Result<Self, Error> {
        if len == 0 {
            return Ok(Self {
                start: nowhere(),
                len,
                backing: Backing::Empty,
            });
        }
        let bytes = len.checked_next_multiple_of(PAGE).ok_or(Error::NoMemory)?;
        let base = pages::map(bytes)?;
        Ok(Self {
            start: base,
            len,
            backing: Backing::Mapped {
                base,
                bytes,
                huge: false,
            },
        })
    }

    /// As [`alloc`](Self::alloc), but starts at a huge page boundary and asks for huge pages.
    ///
    /// If the system does not grant them, the memory is ordinary; [`is_huge`](Self::is_huge) tells.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if the system refuses.
    pub fn alloc_huge(len: usize) -> Result<Self, Error> {
        if len == 0 {
            return Self::alloc(0);
        }
        let bytes = len
            .checked_next_multiple_of(HUGE_PAGE)
            .and_then(|whole| whole.checked_add(HUGE_PAGE))
            .ok_or(Error::NoMemory)?;
        let base = pages::map(bytes)?;
        let skip = base.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: the mapping has HUGE_PAGE bytes more than needed and `skip` is less than that.
        let start = unsafe { base.add(skip) };
        let huge = pages::want_huge(start, bytes - HUGE_PAGE);
        Ok(Self {
            start,
            len,
            backing: Backing::Mapped { base, bytes, huge },
        })
    }

    /// The first `len` bytes of a file, shared with every process that maps it: memory that has a name, as in `/dev/shm`, or a
    /// descriptor that was passed on. Each process registers it for itself, with keys of its own; what is written through
    /// one region is there for all.
    ///
    /// Other processes write to it at any time, so there are no slices of it, only copies and atomic words. If one of them
    /// cuts the file short, copies of what is gone fail after [`catch_faults`](super::catch_faults); without it, the
    /// process ends.
    ///
    /// ```
    /// # use std::fs::File;
    /// use verbs_core::Memory;
    ///
    /// # let path = std::env::temp_dir().join(format!("verbs-doc-{}", std::process::id()));
    /// # let path = path.as_path();
    /// let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    /// file.set_len(4096)?;
    /// let [ours, theirs] = [Memory::shared(&file, 4096)?, Memory::shared(&file, 4096)?];
    /// ours.write(100, b"hello")?;
    /// let mut text = [0; 5];
    /// theirs.read(100, &mut text)?;
    /// assert_eq!(&text, b"hello");
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the file is shorter, [`Error::Os`] if the system refuses, for instance because the file is not
    /// open for reading and writing.
    #[cfg(not(miri))]
    pub fn shared(file: &File, len: usize) -> Result<Self, Error> {
        let errno = |error: io::Error| Error::Os {
            errno: error.raw_os_error().unwrap_or(0),
        };
        let size = file.metadata().map_err(errno)?.len();
        if len as u64 > size {
            return Err(Error::OutOfRange {
                end: ByteCount::new(len as u64),
                size: ByteCount::new(size),
            });
        }
        if len == 0 {
            return Self::alloc(0);
        }
        let base = pages::map_file(file, len).map_err(errno)?;
        Ok(Self {
            start: base,
            len,
            backing: Backing::Shared { base, bytes: len },
        })
    }

    /// Memory with another owner: an application's buffer behind a C interface, a mapping shared with another
    /// process.
    ///
    /// # Safety
    /// Until `keep` is dropped:
    /// * `len` bytes from `start` are valid for reads, initialised, and, if a key with write access
    ///   or any method that writes is used, valid for writes;
    /// * no Rust reference covers a byte of them while a device or a method of this value may write it, or, for
    ///   `&mut` references, read it. Other languages and processes may write at any time, except during a borrow
    ///   from [`as_slice`](Self::as_slice) or [`as_mut_slice`](Self::as_mut_slice): a caller that cannot promise
    ///   that must not call those.
    pub unsafe fn foreign(
        start: NonNull<u8>,
        len: usize,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            start,
            len,
            backing: Backing::Foreign(keep),
        }
    }

    /// All bytes, for an exclusive owner: no region is registered over the memory.
    ///
    /// # Panics
    /// If it is [shared](Self::shared) with other processes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let is_shared = matches!(self.backing, Backing::Shared { .. });
        assert!(
            !is_shared,
            "other processes write to shared memory, so there are no slices of it"
        );
        // SAFETY: `len` initialised bytes are valid for the life of `self`, and no other process has them. `&mut self` proves that no `Arc` of a
        // registration exists, and the last one was dropped after its grace period, so no window can access the
        // bytes either.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// All bytes for reading. Takes `&mut self` for the reason given at
    /// [`as_mut_slice`](Self::as_mut_slice).
    ///
    /// # Panics
    /// As that does.
    pub fn as_slice(&mut self) -> &[u8] {
        self.as_mut_slice()
    }

    /// Bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Virtual address of the first byte: the address of a region unless another is set.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// The first byte, for pools that lend parts of memory to which no peer has a right.
    #[doc(hidden)]
    #[inline]
    pub const fn base(&self) -> NonNull<u8> {
        self.start
    }

    /// Whether the system accepted the request for huge pages. It may still use small ones when it has no others.
    pub const fn is_huge(&self) -> bool {
        matches!(self.backing, Backing::Mapped { huge: true, .. })
    }

    /// Takes the rights to those pages away, as a program may that has registered memory of its own; `offset` is that
    /// of a page. Copies then fail after [`catch_faults`](super::catch_faults); any other access ends the process.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] past the end; [`Error::NoMemory`] if the system refuses.
    #[cfg(all(any(test, feature = "testing"), not(miri)))]
    #[doc(hidden)]
    pub fn take_away(&self, offset: usize) -> Result<(), Error> {
        let from = self.at(offset, 0)?;
        pages::protect(from, self.len - offset)
    }

    /// Copies bytes out, from `offset` on. A peer that writes at the same time makes them torn.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range leaves the memory; nothing was copied.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let from = self.at(offset, into.len())?;
        // SAFETY: `at` has checked the range; `into` is private to the caller and disjoint, because
        // no reference covers registered memory.
        unsafe { copy(NonNull::from(&mut *into).cast(), from, into.len()) }.map_err(Error::from)
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range leaves the memory; nothing was copied.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let into = self.at(offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { copy(into, NonNull::from(from).cast(), from.len()) }.map_err(Error::from)
    }

    /// Sets every byte of `range` to `value`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range leaves the memory or ends before it starts.
    pub fn fill(&self, range: Range<usize>, value: u8) -> Result<(), Error> {
        let len = range.end.checked_sub(range.start);
        let into = self.at(range.start, len.unwrap_or(usize::MAX))?;
        let chunk = [value; 256];
        let mut done = 0;
        while done < range.len() {
            let n = chunk.len().min(range.len() - done);
            // SAFETY: `done + n` is at most the length that `at` has checked.
            unsafe { copy(into.add(done), NonNull::from(&chunk).cast(), n) }?;
            done += n;
        }
        Ok(())
    }

    /// The `len` bytes from `offset` on, to be copied from and to.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range leaves the memory, or is longer than a window can be.
    #[inline]
    pub fn window(&self, offset: usize, len: usize) -> Result<Window<'_>, Error> {
        let start = self.at(offset, len)?;
        let short = u32::try_from(len).map_err(|_| Error::OutOfRange {
            end: ByteCount::new(len as u64),
            size: ByteCount::new(u64::from(u32::MAX)),
        })?;
        // SAFETY: `at` has checked the range, which lives as long as `self` does. A slice of it needs the only reference
        // to `self`, so none covers it.
        Ok(unsafe { Window::new(start, short) })
    }

    /// Loads an aligned word that a peer may change by WRITE or atomics; acquire.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] outside the memory, [`Error::Mismatch`] if the address of the word is
    /// not a multiple of 8.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, Error> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores an aligned word as a single access; release.
    ///
    /// # Errors
    /// As for [`load_u64`](Self::load_u64).
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), Error> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// The first of `len` bytes at `offset`, if all of them exist.
    #[inline]
    pub(super) fn at(&self, offset: usize, len: usize) -> Result<NonNull<u8>, Error> {
        match offset.checked_add(len) {
            // SAFETY: `offset <= self.len`, so the pointer stays within the memory or at its end.
            Some(end) if end <= self.len => Ok(unsafe { self.start.add(offset) }),
            end => Err(Error::OutOfRange {
                end: end.map_or(ByteCount::MAX, |end| ByteCount::new(end as u64)),
                size: ByteCount::new(self.len as u64),
            }),
        }
    }

    #[inline]
    fn word(&self, offset: usize) -> Result<&AtomicU64, Error> {
        let word = self.at(offset, 8)?;
        // SAFETY: 8 bytes that live as long as `self`, as `at` has checked.
        unsafe { atomic_word(word) }.ok_or(Error::Mismatch {
            attr: Attr::Atomics,
            why: Why::Alignment,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Backing::Mapped { base, bytes, .. } | Backing::Shared { base, bytes } = self.backing
        {
            // SAFETY: the mapping belongs to this value, made by `pages::map` or `pages::map_file` with this length. No
            // thread can access it: registrations hold an `Arc` of this value until their grace period is over.
            unsafe { pages::unmap(base, bytes) }
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x}, {} bytes)", self.addr(), self.len)
    }
}

/// The 8 bytes at `at` as an atomic word; `None` if they are not aligned.
///
/// Copies of the same bytes may race with it. They are made in `asm!` (module [`super::copy`]), so the compiler
/// sees no second access of another size; the machine accesses aligned words atomically.
///
/// # Safety
/// 8 bytes valid for reads and writes for `'a`, without any references to them.
#[inline(always)]
pub(super) unsafe fn atomic_word<'a>(at: NonNull<u8>) -> Option<&'a AtomicU64> {
    let word = at.cast::<u64>();
    // SAFETY: aligned as just checked, valid as the caller promises.
    word.is_aligned()
        .then(|| unsafe { AtomicU64::from_ptr(word.as_ptr()) })
}

/// The address of memory without bytes: page-aligned like any other.
fn nowhere() -> NonNull<u8> {
    NonNull::without_provenance(const { std::num::NonZeroUsize::new(PAGE).expect("not zero") })
}

#[cfg(not(miri))]
mod pages {
    use std::fs::File;
    use std::io;
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

    use crate::error::Error;

    pub(super) fn map(bytes: usize) -> Result<NonNull<u8>, Error> {
        // SAFETY: a new private mapping at an address of the system's choice affects nothing that exists.
        let base = unsafe {
            mmap_anonymous(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        base.ok()
            .and_then(|base| NonNull::new(base.cast()))
            .ok_or(Error::NoMemory)
    }

    /// Maps the beginning of a file, for reading and writing.
    pub(super) fn map_file(file: &File, bytes: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: a new mapping at an address of the system's choice affects nothing that exists.
        let base = unsafe {
            mmap(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        NonNull::new(base?.cast()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    pub(super) fn want_huge(start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the range is in a mapping of this process, and this advice does not change its content.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) }.is_ok()
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn protect(from: NonNull<u8>, bytes: usize) -> Result<(), Error> {
        use rustix::mm::{MprotectFlags, mprotect};
        // SAFETY: nothing is read or written; who does so later is told by a signal, which ends the process.
        unsafe { mprotect(from.as_ptr().cast(), bytes, MprotectFlags::empty()) }
            .map_err(|_| Error::NoMemory)
    }

    /// # Safety
    /// The mapping is the caller's, of this length, and not used again.
    pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise. An error would mean that the range was never mapped, and then there is
        // nothing to do.
        let _ = unsafe { munmap(base.as_ptr().cast(), bytes) };
    }
}

/// Miri does not support raw system calls: the allocator replaces the mapping.
#[cfg(miri)]
mod pages {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use crate::error::Error;

    fn layout(bytes: usize) -> Result<Layout, Error> {
        Layout::from_size_align(bytes, super::PAGE).map_err(|_| Error::NoMemory)
    }

    pub(super) fn map(bytes: usize) -> Result<NonNull<u8>, Error> {
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) }).ok_or(Error::NoMemory)
    }

    pub(super) fn want_huge(_: NonNull<u8>, _: usize) -> bool {
        false
    }

    /// # Safety
    /// Allocated by `map` with this length and not used again.
    pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = layout(bytes) {
            // SAFETY: the caller's promise.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
#[cfg(not(verbs_loom))]
mod tests {
    use super::*;
    use crate::sync::Arc;
    use crate::sync::plain::AtomicBool;

    #[test]
    fn memory_is_zeroed_aligned_and_copies() {
        for len in [0, 1, 4095, 4096, 4097, 100_000] {
            let mut memory = Memory::alloc(len).unwrap();
            assert_eq!((memory.len(), memory.addr() % 4096), (len, 0));
            assert!(memory.as_slice().iter().all(|b| *b == 0));
            let all: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            memory.write(0, &all).unwrap();
            let mut back = vec![0; len];
            memory.read(0, &mut back).unwrap();
            assert_eq!(back, all);
            memory.fill(0..len, 7).unwrap();
            assert!(memory.as_mut_slice().iter().all(|b| *b == 7));
        }
    }

    /// Goal: a file that is too short, or not open for writing, is refused with the reason; and nobody gets a slice of what
    /// others write to.
    #[cfg(not(miri))]
    #[test]
    fn shared_memory_is_a_whole_file_that_can_be_written() {
        let folder = std::env::temp_dir().join(format!("verbs-shared-{}", std::process::id()));
        std::fs::write(&folder, [5; 100]).unwrap();
        let open = |writes| File::options().read(true).write(writes).open(&folder);
        let file = open(true).unwrap();
        let mut memory = Memory::shared(&file, 100).unwrap();
        let refused = Memory::shared(&file, 101).unwrap_err();
        assert!(matches!(refused, Error::OutOfRange { .. }), "{refused}");
        let refused = Memory::shared(&open(false).unwrap(), 100).unwrap_err();
        assert!(matches!(refused, Error::Os { .. }), "{refused}");
        assert!(Memory::shared(&file, 0).unwrap().is_empty());
        memory.write(99, &[7]).unwrap();
        assert_eq!(std::fs::read(&folder).unwrap()[98..], [5, 7]);
        let slice =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| memory.as_slice().len()));
        assert!(slice.is_err());
        std::fs::remove_file(&folder).unwrap();
    }

    #[test]
    fn leaving_the_memory_is_an_error_that_says_by_how_much() {
        let memory = Memory::alloc(100).unwrap();
        let out_of_range = |end| Error::OutOfRange {
            end: ByteCount::new(end),
            size: ByteCount::new(100),
        };
        let refused = |end| Err(out_of_range(end));
        assert_eq!(memory.write(90, &[0; 11]), refused(101));
        assert_eq!(memory.read(usize::MAX, &mut [0; 2]), refused(u64::MAX));
        assert_eq!(memory.fill(0..101, 1), refused(101));
        #[expect(clippy::reversed_empty_ranges, reason = "the mistake under test")]
        let backwards = 7..3;
        assert_eq!(memory.fill(backwards, 1), refused(u64::MAX));
        assert_eq!(memory.load_u64(93), Err(out_of_range(101)));
        assert_eq!(memory.write(100, &[]), Ok(()));
        assert_eq!(Memory::alloc(usize::MAX).unwrap_err(), Error::NoMemory);
        assert_eq!(Memory::alloc_huge(usize::MAX).unwrap_err(), Error::NoMemory);
    }

    #[test]
    fn words_must_be_aligned() {
        let memory = Memory::alloc(64).unwrap();
        memory.store_u64(8, 0x1122).unwrap();
        assert_eq!(memory.load_u64(8), Ok(0x1122));
        let unaligned = Error::Mismatch {
            attr: Attr::Atomics,
            why: Why::Alignment,
        };
        assert_eq!(memory.load_u64(4), Err(unaligned));
    }

    #[test]
    fn huge_memory_starts_at_a_huge_page() {
        let memory = Memory::alloc_huge(HUGE_PAGE + 1).unwrap();
        assert_eq!(memory.addr() as usize % HUGE_PAGE, 0);
        assert_eq!(memory.len(), HUGE_PAGE + 1);
        memory.fill(0..memory.len(), 9).unwrap();
        assert!(!Memory::alloc(1).unwrap().is_huge());
    }

    #[test]
    fn foreign_memory_keeps_its_owner() {
        struct Owner(Arc<AtomicBool>);
        impl Drop for Owner {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let gone = Arc::new(AtomicBool::new(false));
        let mut bytes = vec![1_u8; 16];
        // SAFETY: `bytes` outlives the memory and is not accessed during that time.
        let memory = unsafe {
            let start = NonNull::from(bytes.as_mut_slice()).cast();
            Memory::foreign(start, 16, Box::new(Owner(Arc::clone(&gone))))
        };
        memory.write(4, &[9, 9]).unwrap();
        assert!(!gone.load(Ordering::Relaxed));
        drop(memory);
        assert!(gone.load(Ordering::Relaxed));
        assert_eq!(bytes[3..7], [1, 9, 9, 1]);
    }
}
