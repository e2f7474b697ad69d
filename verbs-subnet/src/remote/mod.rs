//! A port of a subnet that another process hosts, as a link: HCAs of several processes share a subnet.
//!
//! Packets travel through two rings in memory that is shared with the host. A message has as many as a burst,
//! each with the route headers and the invariant CRC that it has on an InfiniBand link. The host is the switches
//! and answers for the port; the subnet manager's settings of the port arrive over a Unix socket, and so does the
//! bell that wakes an end that sleeps.

mod kept;
mod manager;
mod waiter;

use std::fmt;
use std::io;
use std::iter::once;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use verbs_core::sync::Arc;
use verbs_core::{Gid, Lid, Mtu};

use crate::ipc::RING_LEN;
use crate::ipc::message::{BELL, Message, MessageError, PACKETS_MAX, Refusal};
use crate::ipc::place::{PlaceError, check_default};
use crate::ipc::socket::{Take, connect_to, receive, ring, send_with};
use verbs_link::ring::{Bell, Broken, Rings};
use verbs_link::rng::system_entropy;
use verbs_link::sys::{self, BATCH_MAX, Slot};
use verbs_link::{
    Arrival, Burst, Change, Feedback, LinkCounters, Local, Managed, PacketLink, Route, Sent, Waiter,
};
use verbs_wire::{Frame, Grh};

use kept::Kept;
use manager::Manager;
use waiter::SocketWaiter;

/// Packets of a burst at most: an IP message over a connection is 16 packets of 4096 bytes.
const BURST: usize = 64;
const BURST_BYTES: usize = PACKETS_MAX - BURST * Frame::LEN_MAX;
/// Messages with packets that one call of `receive` takes at most.
const MESSAGES: usize = 4;
/// Packets that it hands up at most. A message may have more than 500 small ones, and a queue pair whose receives are
/// posted again between two calls would lose what it has no receives for: datagrams are not sent twice.
const PACKETS: usize = 64;
/// Messages of the socket that it takes at a time, and how often in a row.
const SAID: usize = 4;
const SAID_TURNS: usize = 64;
/// After that many empty calls of `receive` the socket is checked, which is closed if the host has died.
const LOOK_EVERY: u32 = 256;

/// Why an HCA could not be attached to a hosted subnet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// No subnet is hosted there, or the connection to it has failed.
    #[error("cannot reach a subnet at {path}: {error}; `verbs subnet TOPOLOGY` hosts one")]
    Reach {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The default place of a hosted subnet is not private to the user.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The host refuses: there is no such adapter or port, or another HCA is attached to it.
    #[error("the subnet has no port {port} of {node:?} for an HCA: {refusal}")]
    Refused {
        /// The node.
        node: String,
        /// The port.
        port: u8,
        /// Why.
        refusal: Refusal,
    },
    /// The memory to share with the host could not be allocated.
    #[error("no memory can be shared with the subnet's host: {0}")]
    Memory(io::Error),
    /// The host's answer is malformed.
    #[error("the subnet's host does not answer as it should: {0}")]
    NoAnswer(MessageError),
}

impl From<MessageError> for AttachError {
    fn from(error: MessageError) -> Self {
        Self::NoAnswer(error)
    }
}

/// A port of a hosted subnet, as a link. When it is dropped, the port's link stays as it is, and another HCA can
/// attach; when its process dies, the link goes down until another HCA attaches.
///
/// # Context
/// As in [`PacketLink`].
pub struct RemotePort {
    manager: Arc<Manager>,
    waiter: Arc<SocketWaiter>,
    addresses: [IpAddr; 1],
    mtu: Mtu,
    rings: Rings,
    /// The message with packets that was taken last.
    kept: Kept,
    /// The buffers that messages of the socket are received into.
    slots: Vec<Slot>,
    /// Messages received from the socket, without bells.
    heard: u64,
    /// Calls of `receive` since the socket was checked.
    unseen: u32,
    counters: LinkCounters,
}

impl RemotePort {
    /// Attaches to a port of a node, by its name in the topology, in the subnet that is hosted at that path
    /// ([`default_path`](crate::ipc::socket::default_path) is where one usually is).
    ///
    /// Waits for the host's answer, which is immediate.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(path: &Path, node: &str, port: u8) -> Result<Self, AttachError> {
        check_default(path)?;
        let reach = |error: Errno| AttachError::Reach {
            path: path.to_owned(),
            error: error.into(),
        };
        let socket = connect_to(path).map_err(reach)?;
        let question = Message::Attach {
            host: node.to_owned(),
            adapter: 0,
            port,
        };
        let (file, rings) = Rings::create(RING_LEN).map_err(AttachError::Memory)?;
        send_with(socket.as_fd(), &question.encode(), file.as_fd(), true).map_err(reach)?;
        let answer = receive(socket.as_fd(), Take::Away, true).map_err(reach)?;
        let answer = answer.ok_or(Errno::CONNRESET).map_err(reach)?;
        let tables = match Message::decode(&answer)? {
            Message::Attached(tables) => tables,
            Message::Refused(refusal) => {
                let node = node.to_owned();
                return Err(AttachError::Refused {
                    node,
                    port,
                    refusal,
                });
            }
            _ => return Err(MessageError::Unknown(0).into()),
        };
        let gid = tables.gids.first().copied().unwrap_or_default();
        let mtu = Mtu::from_code(tables.info.mtu_cap.value()).unwrap_or(Mtu::B4096);
        let socket = Arc::new(socket);
        let waiter = SocketWaiter::new(Arc::clone(&socket), rings.reader.watch());
        let waiter = waiter.map_err(reach)?;
        Ok(Self {
            manager: Arc::new(Manager::new(socket, tables)),
            waiter: Arc::new(waiter),
            addresses: [Ipv6Addr::from(gid).into()],
            mtu,
            rings,
            kept: Kept::new(),
            slots: (0..SAID.min(BATCH_MAX)).map(|_| Slot::new()).collect(),
            // The answer.
            heard: 1,
            unseen: 0,
            counters: LinkCounters::default(),
        })
    }

    /// The host has ended.
    fn close(&self) {
        if self.waiter.close() {
            self.manager.close();
            self.waiter.wake();
        }
    }

    /// Rings for the host, if required.
    fn ring(&self, bell: Bell) {
        if bell == Bell::Ring {
            ring(self.manager.socket());
        }
    }

    /// Sends a burst as one message. Returns whether there was room.
    fn send(&mut self, local: Local, burst: &Burst<'_>) -> Result<bool, Errno> {
        let route = &burst.route;
        let frame = Frame {
            vl: if local.is_management(burst.bytes) {
                15
            } else {
                0
            },
            grh: local.global.then(|| grh_of(route)),
            ..local.frame(route.src, route.dst)
        };
        let unfit = |_| Errno::MSGSIZE;
        // All packets except the last have one length, and so the same headers.
        let (mut whole, mut last) = ([0; Frame::LEN_MAX], [0; Frame::LEN_MAX]);
        let len = frame.emit(burst.segment.min(burst.bytes.len()), &mut whole);
        let len = len.map_err(unfit)?;
        let count = burst.packets().len();
        let rest = count.saturating_sub(1) * burst.segment;
        frame
            .emit(burst.bytes.len() - rest, &mut last)
            .map_err(unfit)?;
        let headers = |packet: &[u8]| match packet.len() == burst.segment {
            true => &whole[..len],
            false => &last[..len],
        };
        let pieces = burst
            .packets()
            .flat_map(|packet| once(headers(packet)).chain(once(packet)));
        let sent = self
            .rings
            .writer
            .write(count * len + burst.bytes.len(), pieces);
        let Some(bell) = sent.map_err(|Broken| Errno::PROTO)? else {
            return Ok(false);
        };
        self.ring(bell);
        Ok(true)
    }

    /// Handles messages of the host, other than packets.
    fn listen(&mut self) {
        self.unseen = 0;
        let mut was_reset = false;
        for _ in 0..SAID_TURNS {
            let count = match sys::receive(self.manager.socket(), &mut self.slots, 0) {
                Ok(count) => count,
                // What the host has said before follows.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !was_reset => {
                    was_reset = true;
                    continue;
                }
                Err(error) => {
                    let waits = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
                    if !waits.contains(&error.kind()) {
                        self.close();
                    }
                    return;
                }
            };
            for slot in &self.slots[..count] {
                let bytes = slot.bytes();
                if bytes.is_empty() {
                    return self.close();
                }
                if bytes != BELL {
                    self.heard += 1;
                    let makes_sense = !slot.is_cut() && self.manager.take(bytes);
                    self.counters.receive_errors += u64::from(!makes_sense);
                    self.waiter.wake();
                }
            }
            if count < self.slots.len() {
                return;
            }
        }
    }

    /// Takes packets. Returns their number.
    fn read(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> Result<usize, Broken> {
        let mut packets = self.kept.hand_up(PACKETS, sink);
        for _ in 0..MESSAGES {
            if packets == PACKETS {
                break;
            }
            let has_message = self.rings.reader.has_message()?;
            // Messages sent before must be handled before.
            if self.rings.reader.told() != self.heard {
                self.listen();
            }
            if !has_message {
                break;
            }
            let len = self.rings.reader.read(&mut self.kept.message)?;
            self.kept.rest = 0..len.unwrap_or(0);
            packets += self.kept.hand_up(PACKETS - packets, sink);
        }
        self.waiter.keeps(!self.kept.rest.is_empty());
        let bell = self.rings.reader.bell();
        self.ring(bell);
        Ok(packets)
    }
}

/// The global route header of packets by that route.
fn grh_of(route: &Route) -> Grh {
    Grh {
        traffic_class: route.tclass,
        hop_limit: route.hop_limit,
        sgid: Gid::from(route.src),
        dgid: Gid::from(route.dst),
        ..Grh::default()
    }
}

impl PacketLink for RemotePort {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn mtu(&self) -> Mtu {
        self.mtu
    }

    fn burst_limit(&self, _route: &Route) -> usize {
        BURST
    }

    fn burst_bytes(&self) -> usize {
        BURST_BYTES
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        let Some(local) = burst.route.local else {
            return Sent::Gone;
        };
        if local.dlid == Lid(0) && !local.global {
            return Sent::Gone;
        }
        self.manager.flush();
        if self.waiter.is_closed() {
            self.counters.send_errors += 1;
            return Sent::Gone;
        }
        let count = burst.packets().len();
        match self.send(local, burst) {
            Ok(true) => {
                self.counters.packets_sent += count as u64;
                self.counters.gso_bursts += u64::from(count > 1);
                Sent::Gone
            }
            Ok(false) => {
                self.counters.blocked += 1;
                Sent::Blocked
            }
            // The transport treats it as lost.
            Err(error) => {
                self.counters.send_errors += 1;
                self.counters.send_errno = Some(error.raw_os_error());
                Sent::Gone
            }
        }
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        self.manager.flush();
        self.unseen += 1;
        if self.waiter.was_rung() || self.unseen >= LOOK_EVERY {
            self.listen();
        }
        let packets = match self.read(sink) {
            Ok(packets) => packets,
            Err(Broken) => {
                self.counters.receive_errors += 1;
                self.close();
                0
            }
        };
        self.counters.packets_received += packets as u64;
        packets
    }

    fn feedback(&mut self, _route: &Route, _news: Feedback) {}

    fn entropy(&mut self) -> u64 {
        system_entropy()
    }

    fn change(&mut self) -> Option<Change> {
        self.manager.change()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        let waiter: Arc<dyn Waiter> = Arc::clone(&self.waiter) as _;
        Some(waiter)
    }

    /// The subnet administrator makes switches forward to the port; the port takes all packets that arrive.
    fn join(&mut self, _group: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn managed(&self) -> Option<Arc<dyn Managed>> {
        let managed: Arc<dyn Managed> = Arc::clone(&self.manager) as _;
        Some(managed)
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

impl Drop for RemotePort {
    fn drop(&mut self) {
        self.manager.say(&Message::Leave);
    }
}

impl fmt::Debug for RemotePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemotePort")
            .field("manager", &self.manager)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
