//! What a port sends: through the daemon, or through channels to processes of this host.

use rustix::io::Errno;
use verbs_core::Qpn;
use verbs_core::host::message::Packets;
use verbs_core::host::{Block, Message};
use verbs_core::mem::Unmapped;
use verbs_wire::ROCE_PORT;

use super::Joined;
use super::near::channel::Put;
use super::near::channels::{Ended, Path};
use super::packet::dest_of;
use super::waiter::LOOKS;
use crate::{Burst, FillWindow, LongPacket, Sent};

/// The queue pair of general services, where connection managers listen.
const GSI: Qpn = Qpn::new(1);

impl Joined {
    /// Sends packets that are all for one place.
    pub(super) fn transmit_run(&mut self, path: Path, burst: &Burst<'_>, first: u16) -> Sent {
        let count = burst.packets().len() as u64;
        let Some(packets) = packets_of(burst, first) else {
            self.counters.send_errors += 1;
            return Sent::Gone;
        };
        if let Path::Ask(block) = path
            && !self.tie.is_cut()
        {
            self.line.say(&Message::OpenChannel(block.number()));
        }
        let Path::Channel(key) = path else {
            return self.relay(&packets, count);
        };
        let put = self.channels.put(key, &packets);
        self.was_put(put, count)
    }

    /// Packets were written to a channel, or not.
    fn was_put(&mut self, put: Result<Put, Ended>, count: u64) -> Sent {
        match put {
            Ok(Put::Written) => {
                self.counters.packets_sent += count;
                self.counters.shared_sent += count;
                self.counters.gso_bursts += u64::from(count > 1);
                return Sent::Gone;
            }
            Ok(Put::Full) => {
                self.counters.blocked += 1;
                return Sent::Blocked;
            }
            Ok(Put::Lost) => {}
            Err(end) => self.end_channel(end),
        }
        // A transport treats it as lost.
        self.counters.shared_lost += count;
        Sent::Gone
    }

    /// Sends a long packet to another process of this host.
    pub(super) fn transmit_near_long(
        &mut self,
        packet: &LongPacket<'_>,
        fill: FillWindow<'_>,
    ) -> Result<Sent, Unmapped> {
        let burst = Burst {
            route: packet.route,
            segment: packet.head.len(),
            bytes: packet.head,
        };
        let key = self.channels.channel_of(Block::of(packet.dest));
        let (Some(key), Some(headers)) = (key, packets_of(&burst, 0)) else {
            // It had one when it was asked.
            self.counters.send_errors += 1;
            return Ok(Sent::Gone);
        };
        match self.channels.put_long(key, &headers, packet.len, fill) {
            Ok(Ok(put)) => Ok(self.was_put(Ok(put), 1)),
            Ok(Err(unmapped)) => Err(unmapped),
            Err(end) => Ok(self.was_put(Err(end), 1)),
        }
    }

    /// Sends packets to this host's processes: those of one burst may be for several.
    pub(super) fn transmit_near(&mut self, burst: &Burst<'_>) -> Sent {
        let mut runs = Runs::of(burst);
        let Some(first) = runs.next() else {
            return Sent::Gone;
        };
        let only = first.burst.bytes.len() == burst.bytes.len();
        if only {
            let path = self.path(first.block);
            return self.transmit_run(path, burst, 0);
        }
        // A burst is sent as a whole or not at all: first, see that there is room.
        for run in Runs::of(burst) {
            let Some(key) = self.channels.channel_of(run.block) else {
                continue;
            };
            match self.channels.takes(key, run.burst.bytes.len()) {
                Ok(true) => {}
                Ok(false) => {
                    self.counters.blocked += 1;
                    return Sent::Blocked;
                }
                Err(end) => self.end_channel(end),
            }
        }
        let mut any = false;
        for run in Runs::of(burst) {
            let path = self.path(run.block);
            let sent = self.transmit_run(path, &run.burst, run.first);
            if sent == Sent::Blocked && !any {
                return Sent::Blocked;
            }
            // Of a burst that was sent in part, the rest is lost.
            any = true;
        }
        Sent::Gone
    }

    /// Sends packets to another host: through the daemon if there is one of the connection manager among them, because the
    /// daemon follows connections. A burst stays whole: its packets are numbered, and their ICRCs cover the numbers.
    pub(super) fn transmit_far(&mut self, burst: &Burst<'_>) -> Sent {
        let is_management = |packet: &[u8]| dest_of(packet) == Some(GSI);
        let sent = match burst.packets().any(is_management) {
            true => None,
            false => self.wire.transmit(burst),
        };
        sent.unwrap_or_else(|| self.transmit_run(Path::Daemon, burst, 0))
    }

    fn path(&mut self, block: Option<Block>) -> Path {
        match block {
            Some(block) if block != Block::DAEMON => self.channels.path(block),
            _ => Path::Daemon,
        }
    }

    /// Sends packets through the daemon.
    fn relay(&mut self, packets: &Packets<'_>, count: u64) -> Sent {
        self.looks = LOOKS;
        self.datagram.clear();
        Message::Packets(*packets).encode_into(&mut self.datagram);
        match self.line.send(&self.datagram) {
            Ok(()) => {
                self.counters.packets_sent += count;
                self.counters.gso_bursts += u64::from(count > 1);
                Sent::Gone
            }
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {
                self.counters.blocked += 1;
                Sent::Blocked
            }
            // A transport treats it as lost.
            Err(error) => {
                self.counters.send_errors += 1;
                self.counters.send_errno = Some(error.raw_os_error());
                Sent::Gone
            }
        }
    }
}

/// A burst as a message, its first packet with that identification. `None` for packets that are longer than any can be.
fn packets_of<'a>(burst: &Burst<'a>, first: u16) -> Option<Packets<'a>> {
    let route = &burst.route;
    Some(Packets {
        src: route.src,
        dst: route.dst,
        tclass: route.tclass,
        hop_limit: route.hop_limit,
        sport: ROCE_PORT,
        ident: Some(first),
        segment: u16::try_from(burst.segment).ok()?,
        bytes: burst.bytes,
    })
}

/// The runs of packets of a burst that are for one block.
struct Runs<'a> {
    burst: Burst<'a>,
    at: usize,
}

struct Run<'a> {
    block: Option<Block>,
    burst: Burst<'a>,
    /// The place of its first packet in the whole burst.
    first: u16,
}

impl<'a> Runs<'a> {
    fn of(burst: &Burst<'a>) -> Self {
        Self {
            burst: Burst {
                segment: burst.segment.max(1),
                ..*burst
            },
            at: 0,
        }
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let segment = self.burst.segment;
        let rest = self
            .burst
            .bytes
            .get(self.at..)
            .filter(|rest| !rest.is_empty())?;
        let block = block_of(rest);
        let same = rest
            .chunks(segment)
            .take_while(|&next| block_of(next) == block);
        let len = (same.count() * segment).min(rest.len());
        let first = (self.at / segment) as u16;
        self.at += len;
        let bytes = &rest[..len];
        Some(Run {
            block,
            burst: Burst {
                bytes,
                ..self.burst
            },
            first,
        })
    }
}

/// The block of the queue pair number that a packet is for.
fn block_of(packet: &[u8]) -> Option<Block> {
    Block::of(dest_of(packet)?)
}
