//! The sockets of clients, and what tells that their processes have ended.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hca_sim::link::past_reset;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
    sockopt::socket_peercred,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use verbs_core::host::channel::FILES as FILES_MAX;
use verbs_core::host::message::MESSAGE_MAX;
use verbs_core::sync::Arc;
use verbs_host::{ClientId, Files, User};

/// Bytes that a socket is to have room for, as far as the system allows.
const SOCKET_BYTES: usize = 1 << 20;

/// One client's socket.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: OwnedFd,
    /// Readable when the client's process has ended, whoever else has the socket.
    pidfd: Option<OwnedFd>,
    pub(super) user: User,
    /// It has no room, and is asked for it.
    pub(super) is_full: bool,
    /// The files that the client does not have yet.
    pub(super) files: BTreeMap<Files, Vec<Arc<OwnedFd>>>,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Listener,
    Stop,
    /// A client's socket.
    Line(ClientId),
    /// A client's process.
    Process(ClientId),
}

impl Source {
    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Listener => 0,
            Self::Stop => 1,
            Self::Line(client) => u64::from(client.number()) << 1,
            Self::Process(client) => u64::from(client.number()) << 1 | 1,
        })
    }

    fn of(data: u64) -> Option<Self> {
        match data {
            0 => Some(Self::Listener),
            1 => Some(Self::Stop),
            _ => {
                let client = ClientId::new(u32::try_from(data >> 1).ok()?)?;
                Some(match data & 1 {
                    0 => Self::Line(client),
                    _ => Self::Process(client),
                })
            }
        }
    }
}

/// All that is waited for.
#[derive(Debug)]
pub(super) struct Watch(OwnedFd);

/// What has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    pub(super) from: Source,
    pub(super) has_room: bool,
}

impl Watch {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    pub(super) fn add(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        Ok(epoll::add(
            &self.0,
            fd,
            source.data(),
            epoll::EventFlags::IN,
        )?)
    }

    /// Whether connections are waited for.
    pub(super) fn listen(&self, listener: impl AsFd, waits: bool) {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, waits);
        // It was added, and is there.
        let _ = epoll::modify(&self.0, listener, Source::Listener.data(), flags);
    }

    /// A client's line, and its process.
    pub(super) fn add_line(&self, line: &Line, client: ClientId) -> io::Result<()> {
        self.add(&line.socket, Source::Line(client))?;
        if let Some(pidfd) = &line.pidfd {
            self.add(pidfd, Source::Process(client))?;
        }
        Ok(())
    }

    /// Whether room in a client's socket is waited for.
    pub(super) fn ask_for_room(&self, line: &mut Line, client: ClientId, asks: bool) {
        if line.is_full == asks {
            return;
        }
        line.is_full = asks;
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, asks);
        // It was added, and is there.
        let _ = epoll::modify(&self.0, &line.socket, Source::Line(client).data(), flags);
    }

    /// Waits; calls `tell` with what has come.
    pub(super) fn wait(
        &self,
        timeout: Option<Duration>,
        mut tell: impl FnMut(Came),
    ) -> io::Result<()> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = Vec::with_capacity(64);
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.0, spare, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            let flags = event.flags;
            let has_room = flags.contains(epoll::EventFlags::OUT);
            if let Some(from) = Source::of(event.data.u64()) {
                tell(Came { from, has_room });
            }
        }
        Ok(())
    }
}

/// What was read of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// A datagram of that many bytes, which may be more than there was room for.
    Datagram(usize),
    Nothing,
    Closed,
}

impl Line {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        for set in [set_socket_send_buffer_size, set_socket_recv_buffer_size] {
            // With less it is slower.
            let _ = set(&socket, SOCKET_BYTES);
        }
        let who = socket_peercred(&socket)?;
        // In another namespace of processes it may have no number here, and the end of its line tells.
        let pidfd = pidfd_open(who.pid, PidfdFlags::empty()).ok();
        Ok(Self {
            socket,
            pidfd,
            user: User {
                uid: who.uid.as_raw(),
                pid: Pid::as_raw(Some(who.pid)).unsigned_abs(),
            },
            is_full: false,
            files: BTreeMap::new(),
        })
    }

    /// Reads a datagram into `buffer`, which has room for one byte more than the longest. Descriptors that come along are
    /// closed by the system, as nothing asks for them.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Read {
        debug_assert!(buffer.len() > MESSAGE_MAX);
        match past_reset(|| recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT)) {
            Ok((0, _)) => Read::Closed,
            Ok((len, _)) => Read::Datagram(len),
            Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
            Err(_) => Read::Closed,
        }
    }

    /// Sends a datagram, and those files with it. False if there is no room.
    pub(super) fn write(&mut self, datagram: &[u8], with: Option<Files>) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = match with.and_then(|with| self.files.get(&with)) {
            None => send(&self.socket, datagram, flags),
            Some(files) => {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
                control.push(SendAncillaryMessage::ScmRights(&files));
                sendmsg(&self.socket, &[IoSlice::new(datagram)], &mut control, flags)
            }
        };
        // That nobody reads any more is noticed when something is read. Files that the system does not pass on, because
        // too many are under way, are closed: the other end of a channel notices, and packets go through the daemon.
        let has_room = !matches!(sent, Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR));
        if has_room && let Some(with) = with {
            self.files.remove(&with);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// Goal: what a client has said before its end is heard, also if it has not read what it was told. Method: one that
    /// has read nothing ends, of which the system tells first.
    #[test]
    fn last_words_are_heard() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (here, there) =
            socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair of sockets");
        let mut line = Line::new(here).expect("a line");
        assert!(line.write(b"told", None));
        for words in [&b"last"[..], b"words"] {
            send(&there, words, SendFlags::empty()).expect("there is room");
        }
        drop(there);
        let mut buffer = vec![0; MESSAGE_MAX + 1];
        for words in [&b"last"[..], b"words"] {
            assert_eq!(line.read(&mut buffer), Read::Datagram(words.len()));
            assert_eq!(&buffer[..words.len()], words);
        }
        assert_eq!(line.read(&mut buffer), Read::Closed);
    }
}
