//! A client of a hosted subnet: its socket, the rings of an attached HCA, and what waits for it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hca_sim::link::fabric::Host;
use hca_sim::link::fabric::message::Message;
use hca_sim::link::fabric::ring::{Bell, Mapped, Rings, Watch};
use hca_sim::link::fabric::socket::{ring, send};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use verbs_core::mad::Time;

/// Messages that wait for a client to read: more than it ever has requests outstanding. One that does
/// not read at all is disconnected.
const BACKLOG_MAX: usize = 100_000;

/// Messages with packets that wait for room in the ring of an HCA, from which on its senders are not read from.
/// So a sender waits for a receiver that does not keep up, as it waits for credits on a link.
const FULL: usize = 8;

/// How long senders wait for a receiver that takes nothing, as long as packets stay at the head of a queue in
/// a switch: others than that receiver may wait for those senders.
const LIFETIME: Duration = Duration::from_secs(1);

/// Messages with packets that wait in any case; what comes then is lost.
const WAITING_MAX: usize = 256;

/// Bytes of packets taken from one client before others have their turn.
pub(super) const TURN_BYTES: usize = 256 << 10;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    /// The receiver that was full when something came from here for it.
    pub(super) held_by: Option<u32>,
    /// The last file that came with a message.
    file: Option<OwnedFd>,
    port: Option<Port>,
    backlog: VecDeque<Vec<u8>>,
    /// Messages with packets; others go before them.
    packets: VecDeque<Vec<u8>>,
    /// Since when the first of these is that.
    since: Time,
}

/// What an attached HCA has besides.
#[derive(Debug)]
struct Port {
    rings: Rings,
    watch: Watch<Mapped>,
}

impl Client {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            held_by: None,
            file: None,
            port: None,
            backlog: VecDeque::new(),
            packets: VecDeque::new(),
            since: Time::ZERO,
        }
    }

    /// A message has come, perhaps with a file.
    pub(super) fn offer(&mut self, file: Option<OwnedFd>) {
        if file.is_some() {
            self.file = file;
        }
    }

    /// Queues a message, and opens the rings of one whose HCA is attached by it.
    pub(super) fn say(&mut self, message: &Message) {
        if let Message::Attached(_) = message {
            let rings = self.file.take().and_then(|file| Rings::open(&file).ok());
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
        self.backlog.push_back(message.encode());
    }

    /// Queues packets; gives them back when there are too many.
    pub(super) fn queue(&mut self, message: Vec<u8>, now: Time) -> Option<Vec<u8>> {
        if self.packets.len() >= WAITING_MAX {
            return Some(message);
        }
        if self.packets.is_empty() {
            self.since = now;
        }
        self.packets.push_back(message);
        None
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn flush(&mut self, host: &mut Host, now: Time) -> Result<(), Errno> {
        while let Some(bytes) = self.backlog.front() {
            match send(self.socket.as_fd(), bytes, false) {
                Ok(()) => {
                    self.backlog.pop_front();
                    if let Some(port) = &mut self.port {
                        port.rings.writer.tell();
                    }
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return Ok(()),
                Err(error) => return Err(error),
            }
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
            self.since = now;
            if let Some(sent) = self.packets.pop_front() {
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

    /// No bell is needed any more.
    pub(super) fn wake(&self) {
        if let Some(port) = &self.port {
            port.watch.wake();
        }
    }

    /// Whether messages wait for room in the socket. When there is room in a ring, a bell is rung.
    pub(super) fn has_messages(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Whether it does not read what it is told.
    pub(super) fn is_deaf(&self) -> bool {
        self.backlog.len() > BACKLOG_MAX
    }

    pub(super) fn is_full(&self) -> bool {
        self.packets.len() >= FULL
    }

    /// Until when senders wait for it, if they do.
    pub(super) fn holds_until(&self, now: Time) -> Option<Time> {
        let end = self.since + LIFETIME;
        (self.is_full() && now < end).then_some(end)
    }
}
