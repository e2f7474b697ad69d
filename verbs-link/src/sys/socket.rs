//! Three system calls: `setsockopt` of a number, `sendmsg`, and `recvmmsg`.

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Datagrams that one call receives at most.
pub const BATCH_MAX: usize = 8;

/// Bytes of the longest datagram there can be, or of several that offload has merged.
const DATAGRAM_MAX: usize = 65_536;
/// Where a datagram begins behind a 16-byte boundary: what follows a 12-byte header is then aligned.
const MISALIGNMENT: usize = 4;

/// Room for a datagram, its sender's address and its control messages.
pub struct Slot {
    room: Box<[u8]>,
    begin: usize,
    len: usize,
    from: [u8; FROM_MAX],
    from_len: usize,
    control: Control,
    control_len: usize,
    is_cut: bool,
}

/// Bytes of the longest socket address of the IP families, rounded up.
const FROM_MAX: usize = 32;
/// Bytes of control messages: what the link asks for takes 48, a time stamp and an error 112.
const CONTROL_MAX: usize = 256;

/// Control messages, aligned as the kernel does.
#[repr(align(8))]
struct Control([u8; CONTROL_MAX]);

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

impl Slot {
    pub fn new() -> Self {
        let room = vec![0; DATAGRAM_MAX + 16 + MISALIGNMENT].into_boxed_slice();
        let begin = match room.as_ptr().align_offset(16) {
            offset if offset < 16 => offset + MISALIGNMENT,
            _ => 0,
        };
        Self {
            room,
            begin,
            len: 0,
            from: [0; FROM_MAX],
            from_len: 0,
            control: Control([0; CONTROL_MAX]),
            control_len: 0,
            is_cut: false,
        }
    }

    /// The datagram.
    pub fn bytes(&self) -> &[u8] {
        &self.room[self.begin..self.begin + self.len]
    }

    /// Whether the datagram or its control messages did not fit.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The socket address of the sender, as the kernel writes it.
    pub fn from(&self) -> &[u8] {
        &self.from[..self.from_len]
    }

    /// The control messages, as the kernel writes them.
    pub fn control(&self) -> &[u8] {
        &self.control.0[..self.control_len]
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("len", &self.len).finish()
    }
}

/// Sets an option whose value is a number.
pub fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(&value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    check(result as isize).map(drop)
}

/// Sends one datagram, or several as a control message says, to a socket address in the kernel's
/// form. Does not block.
pub fn send(socket: BorrowedFd<'_>, to: &[u8], bytes: &[u8], control: &[u8]) -> io::Result<usize> {
    let mut piece = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: integers and pointers, for which zeros are valid values.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = to.as_ptr().cast_mut().cast();
    header.msg_namelen = to.len() as libc::socklen_t;
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    if !control.is_empty() {
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len() as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: every pointer in `header` comes with the length of the slice or value that it points
    // to, all of which outlive the call; `sendmsg` only reads through them.
    check(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) })
}

/// Receives what is there, at most [`BATCH_MAX`] datagrams, into the first of the slots; says how many
/// those were. Does not block. `flags` are further flags of `recvmsg`.
pub fn receive(socket: BorrowedFd<'_>, slots: &mut [Slot], flags: i32) -> io::Result<usize> {
    let slots = match slots.len() {
        0..=BATCH_MAX => slots,
        _ => &mut slots[..BATCH_MAX],
    };
    let mut pieces = [const {
        libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }
    }; BATCH_MAX];
    // SAFETY: integers and pointers, for which zeros are valid values.
    let mut headers: [libc::mmsghdr; BATCH_MAX] = unsafe { mem::zeroed() };
    for ((slot, piece), header) in slots.iter_mut().zip(&mut pieces).zip(&mut headers) {
        let room = &mut slot.room[slot.begin..];
        piece.iov_base = room.as_mut_ptr().cast();
        piece.iov_len = room.len();
        let header = &mut header.msg_hdr;
        header.msg_iov = piece;
        header.msg_iovlen = 1;
        header.msg_name = slot.from.as_mut_ptr().cast();
        header.msg_namelen = FROM_MAX as libc::socklen_t;
        header.msg_control = slot.control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_MAX as _;
    }
    // SAFETY: the first `slots.len()` headers, which is at most as many as there are, point into
    // slots and pieces that outlive the call and that nothing else refers to meanwhile, each pointer
    // with its length; all of that memory holds integers, so whatever is written there is valid.
    let received = check(unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            slots.len() as libc::c_uint,
            (flags | libc::MSG_DONTWAIT) as _,
            ptr::null_mut(),
        )
    } as isize)?;
    for (slot, header) in slots.iter_mut().zip(&headers).take(received) {
        slot.len = (header.msg_len as usize).min(slot.room.len() - slot.begin);
        let header = &header.msg_hdr;
        slot.from_len = (header.msg_namelen as usize).min(FROM_MAX);
        // The type of this length differs between C libraries.
        #[allow(
            clippy::unnecessary_cast,
            reason = "the field's type depends on the C library"
        )]
        let control_len = header.msg_controllen as usize;
        slot.control_len = control_len.min(CONTROL_MAX);
        slot.is_cut = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    }
    Ok(received)
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
