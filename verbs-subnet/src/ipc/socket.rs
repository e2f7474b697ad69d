//! Messages over Unix sockets of type seqpacket, both ends.

use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    FileType, MemfdFlags, Mode, SealFlags, chmod, fcntl_add_seals, fcntl_get_seals, fstat,
    memfd_create,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with, socketpair,
};

use verbs_link::sys::past_reset;

use super::message::{BELL, BULK, BULK_MIN, MESSAGE_MAX};

pub use super::place::default_path;

/// Connections that wait to be accepted: as many as a system usually allows.
const BACKLOG: i32 = 4096;

/// The seals of a message in a file: no process can change the message or its length any longer. Only files in
/// memory can be sealed, so reading one never waits.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::WRITE)
    .union(SealFlags::SEAL);

/// Connects to a hosted subnet.
///
/// # Errors
/// The system's error.
pub fn connect_to(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = unix_socket(SocketFlags::empty())?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Connects to a program that listens there, without waiting.
///
/// # Errors
/// The system's error; `EAGAIN` if as many wait there as there may be.
pub fn connect_now(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = unix_socket(SocketFlags::NONBLOCK)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Listens for clients, which are programs of this user. A file left by a dead program is replaced; one whose
/// program is alive is not.
///
/// # Errors
/// The system's error; `EADDRINUSE` when another program listens there.
pub fn listen_at(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = unix_socket(SocketFlags::NONBLOCK)?;
    let address = SocketAddrUnix::new(path)?;
    match bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if is_abandoned(&address)? => {
            rustix::fs::unlink(path)?;
            bind(&socket, &address)?;
        }
        other => other?,
    }
    // No client has connected yet; from now on only this user can.
    chmod(path, Mode::RUSR | Mode::WUSR)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Whether no program listens at a socket's file. Does not wait for a program that listens but does not accept.
fn is_abandoned(address: &SocketAddrUnix) -> rustix::io::Result<bool> {
    let probe = unix_socket(SocketFlags::NONBLOCK)?;
    Ok(connect(&probe, address) == Err(Errno::CONNREFUSED))
}

/// Accepts a client that has connected. Does not wait for one.
///
/// # Errors
/// The system's error.
pub fn accept_from(listener: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    accept_with(listener, SocketFlags::CLOEXEC)
}

fn unix_socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A connection without a file: the host keeps one end, and [sends](send_with) the other to a client that has
/// opened a port.
///
/// # Errors
/// The system's error.
pub fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends a whole message; if a socket's buffer may not hold it, as a file.
///
/// # Errors
/// `EAGAIN` if there is no room and `waits` is not set, and any other error of the system.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], waits: bool) -> rustix::io::Result<()> {
    if bytes.len() < BULK_MIN {
        let nothing = &mut SendAncillaryBuffer::default();
        return sendmsg(socket, &[IoSlice::new(bytes)], nothing, flags(waits)).map(drop);
    }
    let flags_of_file = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("verbs message", flags_of_file)?;
    let mut file = std::fs::File::from(file);
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    file.write_all(bytes).map_err(failed)?;
    fcntl_add_seals(&file, SEALS)?;
    send_with(socket, &BULK, file.as_fd(), waits)
}

/// Sends a short message and a file.
///
/// # Errors
/// As [`send`].
pub fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    file: BorrowedFd<'_>,
    waits: bool,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags(waits)).map(drop)
}

/// Rings the bell at the other end of a socket: wakes the thread that waits for messages.
pub fn ring(socket: BorrowedFd<'_>) {
    // Without room, messages already wait; without a peer, the next receive reports that.
    let _ = send(socket, &BELL, false);
}

fn flags(waits: bool) -> SendFlags {
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::DONTWAIT, !waits);
    flags
}

/// How a message is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// It is removed.
    Away,
    /// It stays, for the next call.
    Look,
}

/// Receives a message if there is one. `None` when the other end has closed.
///
/// # Errors
/// `EAGAIN` if there is none and `waits` is not set; `EMSGSIZE` for a message that is too long; `EBADMSG` for one
/// in a file that is not from [`send`]; any other error of the system.
pub fn receive(
    socket: BorrowedFd<'_>,
    take: Take,
    waits: bool,
) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; BULK_MIN];
    let (len, _) = receive_into(socket, take, waits, &mut buffer)?;
    buffer.truncate(len);
    Ok((len > 0).then_some(buffer))
}

/// Receives a message if there is one into a buffer, which grows for a message in a file; returns its length, 0
/// when the other end has closed, and the file that was sent [with](send_with) it.
///
/// # Errors
/// As [`receive`].
pub fn receive_into(
    socket: BorrowedFd<'_>,
    take: Take,
    waits: bool,
    buffer: &mut Vec<u8>,
) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    if buffer.len() < BULK_MIN {
        buffer.resize(BULK_MIN, 0);
    }
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    flags.set(RecvFlags::PEEK, take == Take::Look);
    flags.set(RecvFlags::DONTWAIT, !waits);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = past_reset(|| {
        let slices = &mut [IoSliceMut::new(buffer)];
        recvmsg(socket, slices, &mut control, flags)
    })?;
    let len = received.bytes;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let file = files.last();
    if buffer.get(..len) != Some(&BULK[..]) {
        return Ok((len, file));
    }
    *buffer = read_file(&file.ok_or(Errno::BADMSG)?)?;
    Ok((buffer.len(), None))
}

/// The message in a file, which is sealed memory or is refused: any other file may make its reader wait (a pipe,
/// a device, a file of a file system that does not answer).
fn read_file(file: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS));
    let stat = fstat(file)?;
    if !is_sealed || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::BADMSG);
    }
    let len = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if len > MESSAGE_MAX {
        return Err(Errno::MSGSIZE);
    }
    let mut bytes = vec![0; len];
    let mut read = 0;
    // From its start, whatever position other holders of the file have moved to.
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, read as u64) {
            Ok(0) => return Err(Errno::BADMSG),
            Ok(count) => read += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    /// Goal: a message arrives whole, whatever its length, and can be peeked at before. Method: lengths around
    /// those where the transport changes.
    #[test]
    fn messages_of_any_length_arrive_whole() {
        let (one, other) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a pair of sockets");
        for len in [1, 256, BULK_MIN - 1, BULK_MIN, 600_000] {
            let message: Vec<u8> = (0..=255).cycle().take(len).collect();
            send(one.as_fd(), &message, true).expect("there is room");
            for take in [Take::Look, Take::Look, Take::Away] {
                let got = receive(other.as_fd(), take, false).expect("it is there");
                assert!(got.as_ref() == Some(&message), "{len} bytes, {take:?}");
            }
            let none = receive(other.as_fd(), Take::Away, false);
            assert_eq!(none, Err(Errno::AGAIN));
        }
        // Of one that ends without having read, too.
        for _ in 0..2 {
            send(one.as_fd(), b"last words", true).expect("there is room");
        }
        send(other.as_fd(), b"unread", true).expect("there is room");
        drop(one);
        for _ in 0..2 {
            let got = receive(other.as_fd(), Take::Away, true);
            assert_eq!(got, Ok(Some(b"last words".to_vec())));
        }
        assert_eq!(receive(other.as_fd(), Take::Away, true), Ok(None));
    }

    /// Goal: no file sent with a message makes its reader wait, or changes while it is read. Method: files of
    /// every kind, among them a pipe without a writer.
    #[test]
    fn a_message_in_a_file_that_is_not_sealed_memory_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = folder.path().join("file");
        std::fs::write(&plain, [8; 100]).expect("a file");
        let open = |path: &Path| OwnedFd::from(std::fs::File::open(path).expect("it is there"));
        let memory = |seals: SealFlags| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("test", flags).expect("memory");
            let mut file = std::fs::File::from(file);
            file.write_all(&[8; 100]).expect("there is room");
            fcntl_add_seals(&file, seals).expect("it can be sealed");
            OwnedFd::from(file)
        };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let (_here, there) = pair().expect("a pair of sockets");
        let refused = [
            OwnedFd::from(reader),
            there,
            open(Path::new("/dev/zero")),
            open(folder.path()),
            open(&plain),
            memory(SealFlags::empty()),
            memory(SEALS.difference(SealFlags::WRITE)),
            memory(SEALS.difference(SealFlags::SHRINK)),
        ];
        for (number, file) in refused.into_iter().enumerate() {
            let (one, other) = pair().expect("a pair of sockets");
            send_with(one.as_fd(), &BULK, file.as_fd(), true).expect("there is room");
            let got = receive(other.as_fd(), Take::Away, true);
            assert_eq!(got, Err(Errno::BADMSG), "file {number}");
        }
        drop(writer);
        let (one, other) = pair().expect("a pair of sockets");
        let sealed = memory(SEALS);
        send_with(one.as_fd(), &BULK, sealed.as_fd(), true).expect("there is room");
        let got = receive(other.as_fd(), Take::Away, true);
        assert_eq!(got, Ok(Some(vec![8; 100])));
        // Without a file there is no message.
        sendmsg(
            &one,
            &[IoSlice::new(&BULK)],
            &mut SendAncillaryBuffer::default(),
            SendFlags::empty(),
        )
        .expect("there is room");
        let got = receive(other.as_fd(), Take::Away, true);
        assert_eq!(got, Err(Errno::BADMSG));
    }
}
