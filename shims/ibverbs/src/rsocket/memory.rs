//! Memory of a socket that its queue pair reads and writes, and the peer of a stream writes.

use std::ffi::c_int;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use verbs_abi::{Mr, Pd, Sge};

use super::stream::wire::Piece;
use crate::call::Errno;
use crate::memory::{dereg_mr, reg_mr};

/// `IBV_ACCESS_LOCAL_WRITE` and `_REMOTE_WRITE`.
const ACCESS: c_int = 0b11;

/// A registered buffer: zero, and in memory only as far as it is used, because a connection has it before anything is sent. Only its own methods access the bytes, by pointers: the peer may write them at any time.
pub(super) struct Buffer {
    at: *mut u8,
    len: usize,
    mr: *mut Mr,
}

// SAFETY: the bytes and their region are this buffer's own.
unsafe impl Send for Buffer {}

impl Buffer {
    pub(super) fn new(pd: *mut Pd, len: usize) -> Result<Self, Errno> {
        let (rights, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: at a place that the system selects.
        let at = unsafe { mmap_anonymous(null_mut(), len.max(1), rights, kind) }?.cast::<u8>();
        // SAFETY: of that many bytes, until the region is deregistered.
        let mr = unsafe { reg_mr(pd, at.cast(), len, ACCESS) };
        let buffer = Self { at, len, mr };
        if mr.is_null() {
            Err(Errno::last())
        } else {
            Ok(buffer)
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A part of it, as the peer addresses it.
    pub(super) fn piece(&self, at: usize, length: usize) -> Piece {
        Piece {
            addr: self.at.addr() as u64 + at as u64,
            // SAFETY: the region exists as long as this.
            key: unsafe { (*self.mr).rkey },
            length: length as u32,
        }
    }

    /// A part of it, as the queue pair addresses it.
    pub(super) fn part(&self, at: usize, length: usize) -> Sge {
        Sge {
            addr: self.at.addr() as u64 + at as u64,
            length: length as u32,
            // SAFETY: the region exists as long as this.
            lkey: unsafe { (*self.mr).lkey },
        }
    }

    /// Puts bytes in, from `at` on and, after the end, from the beginning: the pieces, and how many of them are used.
    pub(super) fn put(&self, at: usize, data: &[u8]) -> ([Sge; 2], usize) {
        let first = data.len().min(self.len - at);
        self.write(at, &data[..first]);
        self.write(0, &data[first..]);
        let parts = [self.part(at, first), self.part(0, data.len() - first)];
        (parts, if first < data.len() { 2 } else { 1 })
    }

    /// Takes bytes out, from `at` on and, after the end, from the beginning.
    pub(super) fn get(&self, at: usize, into: &mut [u8]) {
        let first = into.len().min(self.len - at);
        let (one, other) = into.split_at_mut(first);
        for (from, to) in [(at, one), (0, other)] {
            // SAFETY: within the buffer; it is not written while it is read, because the peer has not been given it
            // again.
            unsafe { std::ptr::copy_nonoverlapping(self.at.add(from), to.as_mut_ptr(), to.len()) };
        }
    }

    pub(super) fn write(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.len, "within the buffer");
        // SAFETY: within the buffer.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.at.add(at), data.len()) };
    }

    pub(super) fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        assert!(at + N <= self.len, "within the buffer");
        // SAFETY: within the buffer; the peer may write it now, and reports that in a message afterwards.
        unsafe { self.at.add(at).cast::<[u8; N]>().read_volatile() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: nothing is under way any longer: the queue pair has been destroyed before; mapped with this length.
        unsafe {
            if !self.mr.is_null() {
                dereg_mr(self.mr);
            }
            let _ = munmap(self.at.cast(), self.len.max(1));
        }
    }
}

/// Memory of the program that the peer may write: see `riomap`.
pub(super) struct Region {
    mr: *mut Mr,
    pub(super) index: u16,
    pub(super) offset: u64,
    pub(super) at: usize,
    pub(super) len: usize,
    /// The peer knows of it.
    pub(super) is_published: bool,
}

// SAFETY: the region is this library's own object.
unsafe impl Send for Region {}

impl Region {
    /// # Safety
    /// The program's memory, until it is unmapped.
    pub(super) unsafe fn new(
        pd: *mut Pd,
        at: *mut std::ffi::c_void,
        len: usize,
        index: u16,
        offset: u64,
    ) -> Result<Self, Errno> {
        // SAFETY: guaranteed by the caller.
        let mr = unsafe { reg_mr(pd, at, len, ACCESS) };
        if mr.is_null() {
            return Err(Errno::last());
        }
        Ok(Self {
            mr,
            index,
            offset,
            at: at.addr(),
            len,
            is_published: false,
        })
    }

    pub(super) fn piece(&self) -> Piece {
        Piece {
            addr: self.at as u64,
            // SAFETY: the region exists as long as this.
            key: unsafe { (*self.mr).rkey },
            length: self.len as u32,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `new`.
        unsafe { dereg_mr(self.mr) };
    }
}
