//! The daemon of a host, on a thread of the test: its clients are ends of socket pairs.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Instant;

use hca_sim::link::fabric::ring;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};
use verbs_core::Mtu;
use verbs_core::host::channel::FILES;
use verbs_core::host::message::{MESSAGE_MAX, PortNews};
use verbs_core::time;
use verbs_host::{ChannelEnd, ClientId, Daemon, Ended, Files, User};

fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a pair")
}

/// Starts a daemon whose port has that address, with so many clients. It ends when the last of them has gone.
pub(crate) fn start<const N: usize>(address: IpAddr) -> [OwnedFd; N] {
    let port = PortNews {
        addresses: vec![address],
        mtu: Mtu::B4096,
        is_up: true,
    };
    let mut daemon = Daemon::new(port, 1);
    let mut lines = BTreeMap::new();
    let clients = [(); N].map(|()| {
        let (ours, theirs) = pair(SocketType::SEQPACKET);
        lines.insert(daemon.enter(User { uid: 1, pid: 1 }), ours);
        theirs
    });
    let server = Server {
        daemon,
        lines,
        files: BTreeMap::new(),
        start: Instant::now(),
    };
    thread::spawn(move || server.run());
    clients
}

struct Server {
    daemon: Daemon,
    lines: BTreeMap<ClientId, OwnedFd>,
    files: BTreeMap<Files, [OwnedFd; FILES]>,
    start: Instant,
}

impl Server {
    fn run(mut self) {
        while !self.lines.is_empty() {
            let lines = self.lines.values();
            let mut polled: Vec<_> = lines.map(|line| PollFd::new(line, PollFlags::IN)).collect();
            poll(&mut polled, None).expect("it waits");
            let ready: Vec<_> = polled.iter().map(|it| !it.revents().is_empty()).collect();
            let ids: Vec<_> = self.lines.keys().copied().zip(ready).collect();
            for (id, _) in ids.into_iter().filter(|(_, is_ready)| *is_ready) {
                self.hear(id);
            }
            self.flush();
        }
    }

    fn hear(&mut self, id: ClientId) {
        let mut bytes = vec![0; MESSAGE_MAX];
        let nanos = self.start.elapsed().as_nanos() as u64;
        let now = time::Instant::from_nanos(nanos);
        match recv(&self.lines[&id], &mut bytes, RecvFlags::DONTWAIT) {
            Ok((len, _)) if len > 0 => self.daemon.hear(now, id, &bytes[..len]),
            _ => {
                self.daemon.leave(now, id, Ended::Closed);
                self.lines.remove(&id);
            }
        }
    }

    fn flush(&mut self) {
        while let Some(channel) = self.daemon.poll_channel() {
            let one = ring::file(channel.ring_len).expect("there is memory");
            let other = one.try_clone().expect("a descriptor");
            let (first, second) = pair(SocketType::STREAM);
            let number = channel.number;
            for (end, files) in [(0, [one, first]), (1, [other, second])] {
                let end = Files::Channel(ChannelEnd { number, end });
                self.files.insert(end, files);
            }
            assert!(self.daemon.channel_made(number, true));
        }
        while let Some(id) = self.daemon.poll_ready() {
            while let Some(datagram) = self.daemon.next_for(id) {
                let end = self.daemon.files_for_next(id);
                let files = end.and_then(|end| self.files.remove(&end));
                let files: Vec<_> = files.iter().flatten().map(AsFd::as_fd).collect();
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !files.is_empty() {
                    control.push(SendAncillaryMessage::ScmRights(&files));
                }
                let pieces = [IoSlice::new(datagram)];
                // A client that has gone is noticed when it is read from.
                let _ = sendmsg(&self.lines[&id], &pieces, &mut control, SendFlags::NOSIGNAL);
                self.daemon.sent(id);
            }
        }
    }
}
