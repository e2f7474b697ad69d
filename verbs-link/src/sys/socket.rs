//! System calls: `setsockopt` and `getsockopt` of a number, `ioctl` for the bytes that a socket has not sent,
//! `sendmsg`, and `recvmmsg`.
//!
//! The last two are called past the C library's functions of that name: those are cancellation points, which costs more
//! than the rest of the call, and a thread that was cancelled there would never give back what it holds.

use std::fmt;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

/// Datagrams that one call receives at most.
pub const BATCH_MAX: usize = 8;

/// Bytes of the longest datagram there can be, or of several that offload has merged.
const DATAGRAM_MAX: usize = 65_536;
/// Offset of a datagram behind a 16-byte boundary: what follows a 12-byte header is then aligned.
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

    /// Takes the descriptors that came with the datagram. Those of a datagram that is received with
    /// `MSG_CMSG_CLOEXEC` are closed on `exec`; those that are not taken stay open.
    pub fn take_files(&mut self) -> Vec<OwnedFd> {
        let mut files = Vec::new();
        let control_len = mem::take(&mut self.control_len);
        let mut rest = &self.control.0[..control_len];
        while let Some((len, level, kind)) = control_header(rest) {
            let Some(data) = rest.get(CONTROL_HEADER..len) else {
                break;
            };
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                for number in data.chunks_exact(size_of::<i32>()) {
                    let number = i32::from_ne_bytes(number.try_into().expect("four bytes"));
                    // SAFETY: only the kernel writes to `control`, in `receive`, and what it writes in a message of
                    // this type are descriptors that it has opened for this process and told to nobody else. They are
                    // taken once: the length of the control messages is zero from now on.
                    files.push(unsafe { OwnedFd::from_raw_fd(number) });
                }
            }
            rest = rest.get(len.next_multiple_of(ALIGN)..).unwrap_or(&[]);
        }
        files
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

/// The alignment of control messages.
const ALIGN: usize = size_of::<usize>();
/// Bytes of a control message's header: its length as a word, its level and its type.
const CONTROL_HEADER: usize = ALIGN + 8;

/// The length, level and type of the first control message.
fn control_header(bytes: &[u8]) -> Option<(usize, i32, i32)> {
    let (len, rest) = bytes.split_first_chunk::<ALIGN>()?;
    let (level, rest) = rest.split_first_chunk()?;
    let (kind, _) = rest.split_first_chunk()?;
    let len = usize::from_ne_bytes(*len);
    (len >= CONTROL_HEADER).then_some((len, i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind)))
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

/// The value of an option that is a number.
pub fn option(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointers are those of `value` and of its length, which outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    check(result as isize).map(|_| value)
}

/// Bytes that a TCP socket has sent and the peer has not acknowledged.
pub fn unsent(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count = 0_i32;
    // SAFETY: this request writes one number, through a pointer that outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    check(result as isize).map(|_| usize::try_from(count).unwrap_or(0))
}

/// Sends one datagram, or several if a control message says so, to a socket address in the kernel's form. Does not
/// block.
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
    let number = libc::SYS_sendmsg;
    let (fd, header) = (word(socket.as_raw_fd()), &raw const header);
    // SAFETY: the arguments are those of this call, a word each. Every pointer in `header` comes with the length of the
    // slice or value that it points to, all of which outlive the call; `sendmsg` only reads through them.
    check(unsafe { libc::syscall(number, fd, header, word(flags)) } as isize)
}

/// Receives waiting datagrams, at most [`BATCH_MAX`], into the first of the slots. Returns how many. Does not block.
/// `flags` are further flags of `recvmsg`.
pub fn receive(socket: BorrowedFd<'_>, slots: &mut [Slot], flags: i32) -> io::Result<usize> {
    let slots = match slots.len() {
        0..=BATCH_MAX => slots,
        _ => &mut slots[..BATCH_MAX],
    };
    // Only those of the slots are filled: most calls have one.
    let mut pieces = [const { MaybeUninit::uninit() }; BATCH_MAX];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH_MAX];
    for ((slot, piece), header) in slots.iter_mut().zip(&mut pieces).zip(&mut headers) {
        // What is there if the call fails half-way is nobody's.
        slot.control_len = 0;
        let room = &mut slot.room[slot.begin..];
        let piece = piece.write(libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        });
        // SAFETY: integers and pointers, for which zeros are valid values.
        let header = &mut header.write(unsafe { mem::zeroed() }).msg_hdr;
        header.msg_iov = piece;
        header.msg_iovlen = 1;
        header.msg_name = slot.from.as_mut_ptr().cast();
        header.msg_namelen = FROM_MAX as libc::socklen_t;
        header.msg_control = slot.control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_MAX as _;
    }
    let number = libc::SYS_recvmmsg;
    let (fd, flags) = (word(socket.as_raw_fd()), word(flags | libc::MSG_DONTWAIT));
    let no_timeout = ptr::null_mut::<libc::timespec>();
    let first = headers.as_mut_ptr();
    // SAFETY: the arguments are those of this call, a word each. The first `slots.len()` headers, which is at most as many
    // as there are, were written above and point into slots and pieces that outlive the call and that nothing else refers
    // to during the call, each pointer with its length; all of that memory holds integers, so whatever is written there is
    // valid.
    let received = check(
        unsafe { libc::syscall(number, fd, first, slots.len(), flags, no_timeout) } as isize,
    )?;
    for (slot, header) in slots.iter_mut().zip(&headers).take(received) {
        // SAFETY: it was written above, as that of every slot.
        let header = unsafe { header.assume_init_ref() };
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

/// Receives from a Unix socket, and once more if it was reset. If the other end is closed before it has read everything, the
/// system reports that first, once, and then gives what the other end has sent before.
///
/// # Errors
/// Those of `receive`.
pub fn past_reset<T>(mut receive: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    match receive() {
        Err(Errno::CONNRESET) => receive(),
        other => other,
    }
}

/// A number as an argument of a system call.
fn word(number: i32) -> libc::c_long {
    libc::c_long::from(number)
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(all(test, not(miri), not(verbs_loom)))]
mod tests {
    use std::io::{IoSlice, Read, Write};
    use std::os::fd::AsFd;

    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, sendmsg, socketpair,
    };

    use super::*;

    /// Goal: descriptors arrive with their datagram, each once, and work.
    #[test]
    fn descriptors_are_taken_once() {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [writer.as_fd(), one.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        let sent = sendmsg(
            &one,
            &[IoSlice::new(b"two")],
            &mut control,
            SendFlags::empty(),
        );
        assert_eq!(sent, Ok(3));
        drop(writer);
        let mut slots = [Slot::new(), Slot::new()];
        let count = receive(other.as_fd(), &mut slots, libc::MSG_CMSG_CLOEXEC);
        assert_eq!(count.ok(), Some(1));
        assert_eq!(slots[0].bytes(), b"two");
        let mut files = slots[0].take_files();
        assert_eq!(files.len(), 2);
        assert!(slots[0].take_files().is_empty());
        let mut writer = io::PipeWriter::from(files.remove(0));
        writer.write_all(b"here").expect("it is a pipe");
        drop((writer, files));
        let mut text = String::new();
        reader
            .read_to_string(&mut text)
            .expect("the last writer is gone");
        assert_eq!(text, "here");
        assert!(slots[1].take_files().is_empty());
    }
}
