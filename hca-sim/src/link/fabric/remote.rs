//! A port of a subnet that another process hosts, as a link: HCAs of several processes share a subnet.
//!
//! Packets go over a Unix socket of type seqpacket, as many in a message as a burst has, each with the route
//! headers and CRCs that it has on an InfiniBand link. The host is the switches and answers for the port;
//! what a subnet manager sets of the port comes in messages between the packets.

mod manager;
mod waiter;

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use verbs_core::sync::Arc;
use verbs_core::{Gid, Lid, Mtu};

use super::message::{Message, MessageError, PACKETS, PACKETS_AT, Refusal};
use super::socket::{Take, connect_to, receive, send};
use crate::link::entropy::system_entropy;
use crate::link::{
    Arrival, Burst, Change, Feedback, Ident, LinkCounters, Local, Managed, PacketLink, Route, Sent,
    Waiter,
};
use crate::port::mtu_of;
use crate::sys::{self, BATCH_MAX, Slot};
use crate::wire::{Frame, Grh, ROCE_PORT, Vcrc};

use manager::Manager;
use waiter::SocketWaiter;

/// Packets of a burst at most.
const BURST: usize = 64;
/// Messages that one call of `receive` takes at most.
const MESSAGES: usize = 4;

/// Why an HCA is not attached to a hosted subnet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Nobody hosts a subnet there, or the connection to it has failed.
    #[error("cannot reach a subnet at {path}: {source}; `verbs subnet TOPOLOGY` hosts one")]
    Reach {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The host refuses: there is no such adapter or port, or somebody else is attached to it.
    #[error("the subnet has no port {port} of {node:?} for an HCA: {refusal}")]
    Refused {
        /// The node.
        node: String,
        /// The port.
        port: u8,
        /// Why.
        refusal: Refusal,
    },
    /// What the host says makes no sense.
    #[error("the subnet's host does not answer as it should: {0}")]
    NoAnswer(#[from] MessageError),
}

/// A port of a hosted subnet, as a link. When it goes, the port's link stays as it is, and somebody else can
/// attach; when its process dies, the link goes down until somebody does.
///
/// # Context
/// As [`PacketLink`] says.
pub struct RemotePort {
    manager: Arc<Manager>,
    waiter: Arc<SocketWaiter>,
    addresses: [IpAddr; 1],
    mtu: Mtu,
    /// What messages are received into.
    slots: Vec<Slot>,
    counters: LinkCounters,
}

impl RemotePort {
    /// Attaches to a port of a node, by its name in the topology, in the subnet that is hosted at that path
    /// ([`default_path`](super::socket::default_path) is where one usually is).
    ///
    /// Waits for the host's answer, which comes at once.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(path: &Path, node: &str, port: u8) -> Result<Self, AttachError> {
        let reach = |source: Errno| AttachError::Reach {
            path: path.to_owned(),
            source: source.into(),
        };
        let socket = connect_to(path).map_err(reach)?;
        let question = Message::Attach {
            host: node.to_owned(),
            adapter: 0,
            port,
        };
        send(socket.as_fd(), &question.encode(), true).map_err(reach)?;
        let answer = receive(socket.as_fd(), Take::Away, true).map_err(reach)?;
        let answer = answer.ok_or(Errno::CONNRESET).map_err(reach)?;
        let sheet = match Message::decode(&answer)? {
            Message::Attached(sheet) => sheet,
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
        let gid = sheet.gids.first().copied().unwrap_or_default();
        let mtu = mtu_of(sheet.info.mtu_cap.value(), Mtu::B4096);
        let socket = Arc::new(socket);
        let waiter = SocketWaiter::new(Arc::clone(&socket)).map_err(reach)?;
        Ok(Self {
            manager: Arc::new(Manager::new(socket, sheet)),
            waiter: Arc::new(waiter),
            addresses: [Ipv6Addr::from(gid).into()],
            mtu,
            slots: (0..MESSAGES.min(BATCH_MAX)).map(|_| Slot::new()).collect(),
            counters: LinkCounters::default(),
        })
    }

    /// The host has gone.
    fn close(&self) {
        if self.waiter.close() {
            self.manager.close();
            self.waiter.wake();
        }
    }

    /// Sends a burst as one message.
    fn send(&self, local: Local, burst: &Burst<'_>) -> Result<(), Errno> {
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
        // All packets but the last have one length, and so the same headers.
        let (mut whole, mut last) = ([0; Frame::LEN_MAX], [0; Frame::LEN_MAX]);
        let len = frame.emit(burst.segment.min(burst.bytes.len()), &mut whole);
        let len = len.map_err(unfit)?;
        let packets = burst.packets();
        let rest = packets.len().saturating_sub(1) * burst.segment;
        frame
            .emit(burst.bytes.len() - rest, &mut last)
            .map_err(unfit)?;
        let mut vcrcs = [[0; Vcrc::LEN]; BURST];
        let headers = |packet: &[u8]| match packet.len() == burst.segment {
            true => &whole[..len],
            false => &last[..len],
        };
        for (vcrc, packet) in vcrcs.iter_mut().zip(burst.packets()) {
            let mut crc = Vcrc::new();
            crc.update(headers(packet));
            crc.update(packet);
            *vcrc = crc.finish();
        }
        let begin = [PACKETS, 0, 0, 0];
        let mut pieces = ArrayVec::<_, { 1 + 3 * BURST }>::new();
        pieces.push(IoSlice::new(&begin));
        for (vcrc, packet) in vcrcs.iter().zip(burst.packets()) {
            pieces.push(IoSlice::new(headers(packet)));
            pieces.push(IoSlice::new(packet));
            pieces.push(IoSlice::new(vcrc));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let nothing = &mut SendAncillaryBuffer::default();
        sendmsg(self.manager.socket(), &pieces, nothing, flags).map(|_| ())
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

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        let Some(local) = burst.route.local else {
            return Sent::Gone;
        };
        if local.dlid == Lid(0) && !local.global {
            return Sent::Gone;
        }
        self.manager.flush();
        // Most often it still is, and headers and CRCs would be made for nothing.
        if self.waiter.is_still_full() {
            self.counters.blocked += 1;
            return Sent::Blocked;
        }
        let count = burst.packets().len();
        match self.send(local, burst) {
            Ok(()) => {
                self.waiter.set_full(false);
                self.counters.packets_sent += count as u64;
                self.counters.gso_bursts += u64::from(count > 1);
                Sent::Gone
            }
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {
                self.counters.blocked += 1;
                self.waiter.set_full(true);
                Sent::Blocked
            }
            // A transport takes it for lost.
            Err(error) => {
                self.counters.send_errors += 1;
                self.counters.send_errno = Some(error.raw_os_error());
                Sent::Gone
            }
        }
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        self.manager.flush();
        let count = match sys::receive(self.manager.socket(), &mut self.slots, 0) {
            Ok(count) => count,
            Err(error) => {
                let waits = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
                if !waits.contains(&error.kind()) {
                    self.close();
                }
                return 0;
            }
        };
        let (mut packets, mut is_closed) = (0, false);
        for slot in &self.slots[..count] {
            let bytes = slot.bytes();
            self.counters.receive_errors += u64::from(slot.is_cut());
            match bytes.first() {
                Some(&PACKETS) => packets += hand_up(bytes, sink),
                Some(_) => {
                    if self.manager.take(bytes) {
                        self.waiter.wake();
                    } else {
                        self.counters.receive_errors += 1;
                    }
                }
                None => is_closed = true,
            }
        }
        if is_closed {
            self.close();
        }
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

    /// The subnet administrator has switches forward to the port; the port takes all that comes.
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

/// Hands up the packets of a message; how many there were.
fn hand_up(message: &[u8], sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
    let mut rest = message.get(PACKETS_AT..).unwrap_or_default();
    let mut count = 0;
    while let Ok((frame, transport, behind)) = Frame::split(rest) {
        rest = behind;
        count += 1;
        let nowhere = Gid::from(Ipv6Addr::UNSPECIFIED);
        let [src, dst] = match &frame.grh {
            Some(grh) => [grh.sgid, grh.dgid],
            None => [nowhere; 2],
        };
        sink(&Arrival {
            src: src.into(),
            dst: dst.into(),
            sport: ROCE_PORT,
            tclass: frame.grh.map_or(0, |grh| grh.traffic_class),
            ident: Ident::Known(0),
            bytes: transport,
            local: Some(Local {
                slid: frame.slid,
                dlid: frame.dlid,
                sl: frame.sl,
                global: frame.grh.is_some(),
            }),
        });
    }
    count
}

impl fmt::Debug for RemotePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemotePort")
            .field("manager", &self.manager)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
