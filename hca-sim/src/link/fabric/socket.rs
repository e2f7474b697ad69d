//! Messages over Unix sockets of type seqpacket, both ends.

use std::env;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};

use super::message::{BELL, BULK, BULK_MIN, MESSAGE_MAX};

/// Connections that wait to be accepted: as many as a system usually allows.
const BACKLOG: i32 = 4096;

/// Where a hosted subnet is: what the variable `VERBS_SUBNET` says, or a socket in the user's runtime
/// directory, or one in the directory for temporary files.
pub fn default_path() -> PathBuf {
    if let Some(path) = env::var_os("VERBS_SUBNET") {
        return path.into();
    }
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) => Path::new(&folder).join("verbs-subnet"),
        None => {
            let user = rustix::process::getuid().as_raw();
            env::temp_dir().join(format!("verbs-subnet-{user}"))
        }
    }
}

/// Connects to a hosted subnet.
///
/// # Errors
/// What the system says.
pub fn connect_to(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = unix_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Listens for clients. A file that is left of a program that has died is replaced; one whose program
/// is alive is not.
///
/// # Errors
/// What the system says; `EADDRINUSE` when another program listens there.
pub fn listen_at(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = unix_socket()?;
    let address = SocketAddrUnix::new(path)?;
    match bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if connect_to(path).err() == Some(Errno::CONNREFUSED) => {
            rustix::fs::unlink(path)?;
            bind(&socket, &address)?;
        }
        other => other?,
    }
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes a client that has connected.
///
/// # Errors
/// What the system says.
pub fn accept_from(listener: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    accept_with(listener, SocketFlags::CLOEXEC)
}

fn unix_socket() -> rustix::io::Result<OwnedFd> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Sends a message whole, one that a socket's buffer may not hold as a file.
///
/// # Errors
/// `EAGAIN` when there is no room and `waits` is not set, and whatever else the system says.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], waits: bool) -> rustix::io::Result<()> {
    if bytes.len() < BULK_MIN {
        let nothing = &mut SendAncillaryBuffer::default();
        return sendmsg(socket, &[IoSlice::new(bytes)], nothing, flags(waits)).map(drop);
    }
    let file = memfd_create("verbs message", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    file.write_all(bytes).map_err(failed)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
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

/// Rings the bell at the other end of a socket: whoever waits for messages does not any more.
pub fn ring(socket: BorrowedFd<'_>) {
    // Where there is no room, messages wait already; where nobody is, that is told when something is received.
    let _ = send(socket, &BELL, false);
}

fn flags(waits: bool) -> SendFlags {
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::DONTWAIT, !waits);
    flags
}

/// Which way a message is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// It is taken away.
    Away,
    /// It stays, for the next call.
    Look,
}

/// Receives a message if there is one. `None` when the other end is gone.
///
/// # Errors
/// `EAGAIN` when there is none and `waits` is not set; `EMSGSIZE` for one that is too long; whatever
/// else the system says.
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

/// Receives a message if there is one into a buffer, which grows for one that comes as a file; says how long
/// it is, 0 when the other end is gone, and hands over the file that came [with](send_with) it.
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
    let mut slices = [IoSliceMut::new(buffer)];
    let received = recvmsg(socket, &mut slices, &mut control, flags)?;
    let len = received.bytes;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let file = files.last();
    if buffer.get(..len) != Some(&BULK[..]) {
        return Ok((len, file));
    }
    *buffer = read_file(file.ok_or(Errno::BADMSG)?, take)?;
    Ok((buffer.len(), None))
}

fn read_file(file: OwnedFd, take: Take) -> rustix::io::Result<Vec<u8>> {
    let max = u64::try_from(MESSAGE_MAX).unwrap_or(u64::MAX);
    let len = rustix::fs::fstat(&file)?.st_size;
    if u64::try_from(len).unwrap_or(u64::MAX) > max {
        return Err(Errno::MSGSIZE);
    }
    let file = std::fs::File::from(file);
    let mut bytes = Vec::new();
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    (&file).take(max).read_to_end(&mut bytes).map_err(failed)?;
    if take == Take::Look {
        // Whoever looks again shares the place in the file.
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    }
    Ok(bytes)
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use rustix::net::socketpair;

    use super::*;

    /// Goal: a message arrives whole, whatever its length, and can be looked at before. Method: lengths
    /// around those at which the way changes.
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
        drop(one);
        assert_eq!(receive(other.as_fd(), Take::Away, true), Ok(None));
    }
}
