//! A client of a hosted subnet: its socket, the rings of an attached HCA, and what waits for it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use hca_sim::link::fabric::message::{Message, Refusal};
use hca_sim::link::fabric::ring::{Bell, End, Mapped, Rings, Watch};
use hca_sim::link::fabric::socket::{ring, send, send_with};
use hca_sim::link::fabric::{Host, RING_LEN};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use verbs_core::time::Instant;

/// Bytes that wait for a session whose program does not read, from which on further datagrams for it are dropped, as
/// Linux's umad drops them: as many as the largest table of a subnet administrator has, eight times.
const DATAGRAMS_MAX: usize = 8 << 20;

/// The limit that replaces [`DATAGRAMS_MAX`] while the memory for all clients is short.
const DATAGRAMS_TIGHT: usize = 64 << 10;

/// Changes of its port that wait for an HCA that does not read. One that misses a change is of no use: it is
/// disconnected.
const CHANGES_MAX: usize = 4096;

/// Bytes that wait for all clients together, of datagrams and of packets, from which on memory is short.
pub(super) const WAITING_BYTES_MAX: usize = 256 << 20;

/// Messages taken in a row from a client that asks. It is asked no more before it has read the answers.
const QUESTIONS: usize = 8;

/// Messages taken in a row from any other.
const MESSAGES: usize = 64;

/// Bytes of messages taken in a row.
pub(super) const MESSAGE_BYTES: usize = 1 << 20;

/// Messages with packets that wait for room in the ring of an HCA, from which on its senders are not read from.
/// So a sender waits for a receiver that does not keep up, as it waits for credits on a link.
const FULL: usize = 8;

/// How long senders wait for a receiver that takes nothing, as long as packets stay at the head of a queue in
/// a switch: others than that receiver may wait for those senders.
const LIFETIME: Duration = Duration::from_secs(1);

/// How much longer they wait for each byte that the receiver takes: it is to take 1 MiB a second at least. One that
/// takes a packet now and then would make them wait for ever otherwise, and with them all that wait for them.
const PATIENCE_PER_BYTE: Duration = Duration::from_nanos(1_000_000_000 >> 20);

/// Messages with packets that wait in any case; what comes then is lost.
const WAITING_MAX: usize = 256;

/// Bytes of packets taken from one client before others have their turn.
pub(super) const TURN_BYTES: usize = 256 << 10;

/// What a client's connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Questions, or an HCA.
    Asker,
    /// Datagrams.
    Session,
}

/// A message that waits to be sent.
#[derive(Debug)]
struct Said {
    bytes: Vec<u8>,
    /// The end of a session's connection.
    file: Option<OwnedFd>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    kind: Kind,
    /// The process at the other end.
    pub(super) process: i32,
    /// The receiver that was full when something came from here for it.
    pub(super) held_by: Option<u32>,
    /// The last file that came with a message.
    file: Option<OwnedFd>,
    port: Option<Port>,
    backlog: VecDeque<Said>,
    /// Messages with packets; others go before them.
    packets: VecDeque<Vec<u8>>,
    /// Bytes of both.
    waiting: usize,
    /// There was no room in the socket, and poll has not said since that there is.
    is_blocked: bool,
    /// Since when the first of these is that.
    since: Instant,
}

/// What an attached HCA has besides.
#[derive(Debug)]
struct Port {
    rings: Rings,
    watch: Watch<Mapped>,
}

impl Client {
    pub(super) fn new(socket: OwnedFd, kind: Kind, process: i32) -> Self {
        Self {
            socket,
            kind,
            process,
            held_by: None,
            file: None,
            port: None,
            backlog: VecDeque::new(),
            packets: VecDeque::new(),
            waiting: 0,
            is_blocked: false,
            since: Instant::ZERO,
        }
    }

    /// A message has come, perhaps with a file.
    pub(super) fn offer(&mut self, file: Option<OwnedFd>) {
        if file.is_some() {
            self.file = file;
        }
    }

    /// Queues a message, and opens the rings of one whose HCA is attached by it. The end of a session's connection goes
    /// with the message that tells of the session.
    pub(super) fn say(&mut self, message: &Message, end: Option<OwnedFd>, is_tight: bool) {
        // A file came with the question that this answers, and is of no use for others.
        let file = self.file.take();
        if let Message::Attached(_) = message {
            let rings = file.and_then(|file| Rings::open(&file, RING_LEN, End::Second).ok());
            self.port = rings.map(|rings| Port {
                watch: rings.reader.watch(),
                rings,
            });
            if self.port.is_none() {
                // Packets of it could not come or go. The end of its connection is read next.
                let _ = shutdown(&self.socket, Shutdown::Both);
                return;
            }
        }
        let bytes = message.encode();
        let max = if is_tight {
            DATAGRAMS_TIGHT
        } else {
            DATAGRAMS_MAX
        };
        if matches!(message, Message::Mad(_)) && self.waiting + bytes.len() > max {
            return;
        }
        self.waiting += bytes.len();
        self.backlog.push_back(Said { bytes, file: end });
    }

    /// Queues packets; gives them back when there are too many.
    pub(super) fn queue(
        &mut self,
        message: Vec<u8>,
        now: Instant,
        is_tight: bool,
    ) -> Option<Vec<u8>> {
        let max = if is_tight { FULL } else { WAITING_MAX };
        if self.packets.len() >= max {
            return Some(message);
        }
        if self.packets.is_empty() {
            self.since = now;
        }
        self.waiting += message.len();
        self.packets.push_back(message);
        None
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn flush(&mut self, host: &mut Host, now: Instant) -> Result<(), Errno> {
        while let Some(said) = self.backlog.front_mut().filter(|_| !self.is_blocked) {
            match said.send(self.socket.as_fd()) {
                Ok(()) => {
                    self.waiting -= said.bytes.len();
                    self.backlog.pop_front();
                    if let Some(port) = &mut self.port {
                        port.rings.writer.tell();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => self.is_blocked = true,
                Err(error) => return Err(error),
            }
        }
        if !self.backlog.is_empty() {
            return Ok(());
        }
        let Some(port) = &mut self.port else {
            return Ok(());
        };
        let mut rings = false;
        while let Some(bytes) = self.packets.front() {
            let written = port
                .rings
                .writer
                .write(bytes.len(), [&bytes[..]].into_iter());
            let Some(bell) = written.map_err(|_| Errno::PROTO)? else {
                break;
            };
            rings |= bell == Bell::Ring;
            let more = PATIENCE_PER_BYTE * u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.since = (self.since + more).min(now);
            if let Some(sent) = self.packets.pop_front() {
                self.waiting -= sent.len();
                host.recycle(sent);
            }
        }
        if rings {
            self.ring(Bell::Ring);
        }
        Ok(())
    }

    /// Rings for it, if it is to be.
    pub(super) fn ring(&self, bell: Bell) {
        if bell == Bell::Ring {
            ring(self.socket.as_fd());
        }
    }

    /// The rings of an HCA.
    pub(super) fn rings(&mut self) -> Option<&mut Rings> {
        self.port.as_mut().map(|port| &mut port.rings)
    }

    /// Whether packets of its HCA have come; so it seems as well of one that has broken its ring.
    pub(super) fn has_packets(&self) -> bool {
        self.port
            .as_ref()
            .is_some_and(|port| port.watch.has_message())
    }

    /// Has a bell rung when packets of its HCA come; `false` if some have.
    pub(super) fn sleep(&self) -> bool {
        self.port.as_ref().is_none_or(|port| port.watch.sleep())
    }

    /// A bell is no longer needed.
    pub(super) fn wake(&self) {
        if let Some(port) = &self.port {
            port.watch.wake();
        }
    }

    /// Whether messages wait for room in the socket. When there is room in a ring, a bell is rung.
    pub(super) fn has_messages(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// There is room in the socket again.
    pub(super) fn unblock(&mut self) {
        self.is_blocked = false;
    }

    /// Whether it is asked what it has to say: one that asks is to read the answers before, and one with an HCA what it
    /// is told of its port.
    pub(super) fn is_heard(&self) -> bool {
        let unread = if self.port.is_some() { MESSAGES } else { 0 };
        self.kind == Kind::Session || self.backlog.len() <= unread
    }

    /// Messages taken from it before others have their turn.
    pub(super) fn turn(&self) -> usize {
        match self.kind {
            Kind::Asker => QUESTIONS,
            Kind::Session => MESSAGES,
        }
    }

    /// Whether it does not read what it has to know.
    pub(super) fn is_deaf(&self) -> bool {
        self.kind == Kind::Asker && self.backlog.len() > CHANGES_MAX
    }

    /// Bytes that wait for it.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn is_full(&self) -> bool {
        self.packets.len() >= FULL
    }

    /// Until when senders wait for it, if they do.
    pub(super) fn holds_until(&self, now: Instant) -> Option<Instant> {
        let end = self.since + LIFETIME;
        (self.is_full() && now < end).then_some(end)
    }
}

impl Said {
    fn send(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let Some(file) = &self.file else {
            return send(socket, &self.bytes, false);
        };
        match send_with(socket, &self.bytes, file.as_fd(), false) {
            // So many descriptors of this user are on their way that the system lets no more go. The session ends, as
            // no process has its other end.
            Err(Errno::TOOMANYREFS) => {
                self.file = None;
                // What is counted as waiting is as long.
                let refused = Message::Refused(Refusal::Full).encode();
                send(socket, &refused, false)
            }
            sent => sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use hca_sim::link::fabric::message::MadMessage;
    use hca_sim::link::fabric::socket::{Take, pair, receive};
    use hca_sim::link::fabric::{SubnetConfig, Topology};

    use super::*;

    fn host() -> Host {
        let topology = Topology::parse("Hca 1 \"a\"\n").expect("a topology");
        Host::new(topology, SubnetConfig::default())
    }

    /// Goal: a program that does not read costs a bounded amount of memory, is not disconnected, and finds what came
    /// first when it reads. Method: more datagrams than are kept, with memory to spare and without.
    #[test]
    fn a_session_that_does_not_read_is_told_less() {
        for (is_tight, max) in [(false, DATAGRAMS_MAX), (true, DATAGRAMS_TIGHT)] {
            let (near, far) = pair().expect("a pair of sockets");
            let (mut client, mut host) = (Client::new(near, Kind::Session, 0), host());
            for number in 0..50_000 {
                let mad = MadMessage {
                    agent: number,
                    bytes: vec![0; 256],
                    ..MadMessage::default()
                };
                client.say(&Message::Mad(mad), None, is_tight);
            }
            assert!(client.waiting() <= max && client.waiting() > max / 2);
            assert!(!client.is_deaf());
            assert!(client.is_heard(), "what it sends is of its own program");
            let kept = client.backlog.len();
            for number in 0..kept {
                client.unblock();
                client.flush(&mut host, Instant::ZERO).expect("it is there");
                let got = receive(far.as_fd(), Take::Away, false).expect("it is there");
                let got = Message::decode(&got.expect("it is open")).expect("a message");
                assert!(matches!(got, Message::Mad(mad) if mad.agent as usize == number));
            }
            assert_eq!((client.waiting(), client.has_messages()), (0, false));
        }
    }

    /// Goal: senders wait for an HCA that keeps on taking packets, and not for one that takes a few to make them wait.
    /// Method: an HCA whose queue is full all the time, and that takes 2 MiB a second, 72 KiB a second, and none.
    #[test]
    fn a_receiver_that_only_pretends_is_not_waited_for() {
        const PACKETS: usize = 72 << 10;
        for (each, is_waited_for) in [
            (Some(Duration::from_millis(36)), true),
            (Some(Duration::from_secs(1)), false),
            (None, false),
        ] {
            let (near, _far) = pair().expect("a pair of sockets");
            let (mut client, mut host) = (Client::new(near, Kind::Asker, 0), host());
            let (file, mut theirs) = Rings::create(RING_LEN).expect("there is memory");
            let rings = Rings::open(&file, RING_LEN, End::Second).expect("it is a ring's");
            client.port = Some(Port {
                watch: rings.reader.watch(),
                rings,
            });
            let mut now = Instant::ZERO;
            let end = now + Duration::from_secs(4);
            let mut taken = vec![0; PACKETS];
            while now < end {
                while client.queue(vec![0; PACKETS], now, false).is_none() {}
                client.flush(&mut host, now).expect("it is there");
                now += each.unwrap_or(Duration::from_millis(100));
                if each.is_some() {
                    theirs.reader.read(&mut taken).expect("it is whole");
                }
                client.flush(&mut host, now).expect("it is there");
            }
            assert_eq!(client.holds_until(now).is_some(), is_waited_for, "{each:?}");
        }
    }
}
