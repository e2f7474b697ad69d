//! System calls: `setsockopt` of the filter that names, for each packet, the socket of a group that receives it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// An instruction of the filter, whose accumulator is set by [`load_word`](Self::load_word).
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Filter(libc::sock_filter);

impl Filter {
    const fn new(code: u32, skip_if_not: u8, value: u32) -> Self {
        Self(libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: skip_if_not,
            k: value,
        })
    }

    /// Loads four bytes of the datagram, the first of which is at that offset, in the order of the network. The answer for a
    /// shorter datagram is 0.
    pub const fn load_word(offset: u32) -> Self {
        Self::new(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, offset)
    }

    /// Keeps these bits.
    pub const fn and(mask: u32) -> Self {
        Self::new(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, mask)
    }

    /// Shifts by so many bits.
    pub const fn shift_right(bits: u32) -> Self {
        Self::new(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, bits)
    }

    /// Skips the next so many instructions unless this is the value.
    pub const fn unless_equal(value: u32, skipped: u8) -> Self {
        Self::new(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skipped, value)
    }

    /// Ends: the datagram is for the socket at that place.
    pub const fn answer(place: u32) -> Self {
        Self::new(libc::BPF_RET | libc::BPF_K, 0, place)
    }
}

/// Replaces the filter of the socket's group.
pub fn steer(socket: BorrowedFd<'_>, filter: &[Filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: filter.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the pointer and the length are those of `program`, and the pointer and the length in it are those of `filter`,
    // whose elements are `sock_filter`s in all but name. Both outlive the call, which reads and checks them, and keeps a copy.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            ptr::from_ref(&program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
