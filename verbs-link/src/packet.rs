//! The carriers of packets between ports: their trait, and the values that pass through it.
//!
//! A link moves bytes and knows nothing of queue pairs. What it is given to send is complete, from the BTH to the ICRC;
//! what it hands up has not been checked. So a wrapper that damages packets damages them before anything checks them,
//! and one that writes them to a file writes the bytes that were on the wire.

pub(crate) mod cable;
pub(crate) mod counters;
pub(crate) mod managed;
pub(crate) mod verifier;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Range;

use verbs_core::host::HostPorts;
use verbs_core::mem::{Unmapped, Window};
use verbs_core::sync::{Arc, Weak};
use verbs_core::{Gid, Lid, Mtu, PortState, Qpn, Seed};
use verbs_wire::{Bth, BthView, Frame, Grh, Icrc};

use crate::time::Due;
pub use crate::time::Waiter;
use crate::{LinkCounters, Managed};

/// The route of a packet within one InfiniBand subnet, as in its local header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Local {
    /// The sender's port.
    pub slid: Lid,
    /// The receiver's port, or a multicast group.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// A global route header follows; without it, addresses are only known to the link.
    pub global: bool,
}

impl Local {
    /// The ICRC of packets between those addresses as far as the route headers, for that many bytes from BTH to ICRC.
    /// `None` if no header can express that length.
    #[inline]
    pub fn icrc(&self, src: IpAddr, dst: IpAddr, transport_len: usize) -> Option<Icrc> {
        self.frame(src, dst).icrc(transport_len).ok()
    }

    /// Whether a burst that begins with those bytes is one of subnet management, for queue pair 0.
    #[inline]
    pub fn is_management(&self, bytes: &[u8]) -> bool {
        let bth = bytes.first_chunk::<{ Bth::LEN }>();
        bth.is_some_and(|bth| BthView::of(bth).dest_qpn() == Qpn::new(0))
    }

    /// The headers of packets between those addresses.
    #[inline]
    pub fn frame(&self, src: IpAddr, dst: IpAddr) -> Frame {
        let grh = Grh {
            sgid: Gid::from(src),
            dgid: Gid::from(dst),
            ..Grh::default()
        };
        Frame {
            vl: 0,
            sl: self.sl,
            dlid: self.dlid,
            slid: self.slid,
            grh: self.global.then_some(grh),
        }
    }
}

/// The route of a packet: the contents of its IP header, and on links with LIDs of its local header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// One of the link's own addresses.
    pub src: IpAddr,
    /// The peer's address, of the same family.
    pub dst: IpAddr,
    /// Traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub tclass: u8,
    /// Hop limit, the TTL of IPv4.
    pub hop_limit: u8,
    /// On links with LIDs, whose packets have the ICRC of InfiniBand.
    pub local: Option<Local>,
}

/// Packets that are sent together: all are `segment` bytes long, except the last, which may be shorter.
///
/// Packet number *k* of a burst over IPv4 without a local header is sent with identification *k* and DF set, which its
/// ICRC relies on. Packets are sent from UDP port [`ROCE_PORT`](verbs_wire::ROCE_PORT).
#[derive(Clone, Copy, Debug)]
pub struct Burst<'a> {
    /// The destination.
    pub route: Route,
    /// Bytes of each packet, from its BTH to its ICRC.
    pub segment: usize,
    /// The packets, one behind the other.
    pub bytes: &'a [u8],
}

impl<'a> Burst<'a> {
    /// The most bytes of all packets of a burst, on most links: the limit of IPv4 for one datagram.
    pub const BYTES_MAX: usize = 65_507;

    /// The packets, in order.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.bytes.chunks(self.segment.max(1))
    }
}

/// The outcome of offering a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way, or lost; a link promises nothing.
    Gone,
    /// There is no room now. Nothing was sent; the same burst can be offered again after a call of
    /// [`PacketLink::receive`], or a little later.
    Blocked,
}

/// The identification in the IP header of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ident {
    /// This one, with DF set; or there is none, as in IPv6.
    Known(u16),
    /// The system does not report it; it has to be computed from the ICRC.
    Hidden,
    /// The packet has no ICRC, because it came through memory: see [`PacketLink::seals`].
    Unsealed,
}

/// A received packet.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Where it came from.
    pub src: IpAddr,
    /// Which of the link's addresses, or which multicast group, it was sent to.
    pub dst: IpAddr,
    /// The sender's UDP port.
    pub sport: u16,
    /// Traffic class, with the ECN bits as the network left them.
    pub tclass: u8,
    /// The identification that its ICRC covers; on links with LIDs there is none.
    pub ident: Ident,
    /// On links with LIDs, whose packets have the ICRC of InfiniBand.
    pub local: Option<Local>,
    /// From its BTH to its ICRC, as received; of a long packet the headers, and nothing else.
    pub bytes: &'a [u8],
    /// The payload of a long packet, in memory that its sender can still change: it is copied once, and nothing is decided
    /// by it.
    pub long: Option<Window<'a>>,
}

/// A packet whose payload may be longer than any MTU, because it does not leave this host's memory. It stands for the
/// packets of a message that its payload would fill, and takes their numbers.
#[derive(Clone, Copy, Debug)]
pub struct LongPacket<'a> {
    /// The destination.
    pub route: Route,
    /// The queue pair that it is for.
    pub dest: Qpn,
    /// Its headers, from the BTH on.
    pub head: &'a [u8],
    /// Bytes of its payload: at least one, and as many as [`PacketLink::longest`] at most.
    pub len: usize,
}

/// Writes the payload of a long packet, all of the window.
pub type FillWindow<'f> = &'f mut dyn FnMut(Window<'_>) -> Result<(), Unmapped>;

/// What acknowledgements reveal about the delivery of bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// A packet behind the first of a burst was acknowledged without having been sent again.
    Arrived,
    /// The first packet of a burst arrived, and nothing behind it.
    OnlyFirst,
}

/// A packet that its destination's host has refused, because no program has the UDP port there (ICMP port unreachable).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Where the packet was sent to.
    pub dst: IpAddr,
    /// What the report quotes of the packet, from its BTH on: at most [`Refusal::QUOTED_MAX`] bytes, and none if
    /// the reporter quotes no more than the UDP header. Not covered by an ICRC: any host can write a report.
    pub quoted: Vec<u8>,
}

impl Refusal {
    /// Bytes that are kept of a quoted packet: the headers, and the header of a management datagram.
    pub const QUOTED_MAX: usize = 64;
}

/// A change of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// [`PacketLink::addresses`] have changed.
    Addresses,
    /// It carries nothing now.
    Down,
    /// It carries packets again.
    Up,
    /// Of a managed port: it is in that state, which is neither down nor active.
    State(PortState),
    /// Of a managed port: its LIDs.
    Lids,
    /// Of a managed port: its P_Key table.
    PKeys,
    /// Of a managed port: the subnet manager's address.
    SubnetManager,
    /// Of a managed port: its clients have to register with the subnet manager again.
    Reregister,
}

/// A link that carries packets. Nothing here blocks, except [`Waiter::wait`].
pub trait PacketLink: Send + fmt::Debug {
    /// The addresses of the port; the index of each is its GID index.
    fn addresses(&self) -> &[IpAddr];

    /// The largest path MTU whose packets fit.
    fn mtu(&self) -> Mtu;

    /// How many packets a burst on that route may have now, at least 1; [`burst_bytes`](Self::burst_bytes) bounds it
    /// too.
    fn burst_limit(&self, route: &Route) -> usize;

    /// The most bytes of all packets of a burst; always the same.
    fn burst_bytes(&self) -> usize {
        Burst::BYTES_MAX
    }

    /// Whether packets for that queue pair need an ICRC on that route. Those that do not may have zero in its place: they do
    /// not leave this host's memory. A link that wraps another one, and may look at packets or damage them, says yes.
    fn seals(&self, _route: &Route, _dest: Qpn) -> bool {
        true
    }

    /// Sends packets.
    fn transmit(&mut self, burst: &Burst<'_>) -> Sent;

    /// The port takes long packets. A link that wraps another one, and may look at packets or damage them, says nothing, so
    /// that none arrive.
    fn take_long(&mut self) {}

    /// How many bytes of payload a long packet for that queue pair may have on that route now; `None`: none is sent.
    fn longest(&mut self, _route: &Route, _dest: Qpn) -> Option<usize> {
        None
    }

    /// Sends a long packet behind those that were sent before. Only if [`longest`](Self::longest) permits it.
    ///
    /// # Errors
    /// What `fill` fails with; nothing was sent then.
    fn transmit_long(
        &mut self,
        _packet: &LongPacket<'_>,
        _fill: FillWindow<'_>,
    ) -> Result<Sent, Unmapped> {
        Ok(Sent::Gone)
    }

    /// Hands up packets that have arrived, a bounded number, in order. Returns how many.
    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize;

    /// Passes on what acknowledgements reveal about earlier bursts.
    fn feedback(&mut self, route: &Route, news: Feedback);

    /// A number: one that no other host can guess, or one drawn from the seed of a simulation.
    fn entropy(&mut self) -> u64;

    /// The seed from which keys, queue pair numbers and packet sequence numbers are drawn; another one with each call.
    /// A secret, whose key is two numbers of [`PacketLink::entropy`], unless a link of a simulation overrides this.
    /// Links that wrap another pass it on.
    fn seed(&mut self) -> Seed {
        let halves = [self.entropy(), self.entropy()].map(u64::to_ne_bytes);
        Seed::secret(std::array::from_fn(|n| halves[n / 8][n % 8]))
    }

    /// The changes since the last call, one at a time.
    fn change(&mut self) -> Option<Change>;

    /// The refused ones of the packets that it has sent, one at a time; asked after each [`PacketLink::receive`]. Links
    /// without such reports have none; links that wrap another pass it on.
    fn refusal(&mut self) -> Option<Refusal> {
        None
    }

    /// The waiter for packets of a thread; `None` if there is nothing to wait for, as in virtual time.
    fn waiter(&self) -> Option<Arc<dyn Waiter>>;

    /// Sets the listener that a link in virtual time calls when packets or changes have arrived, because no thread
    /// waits for them. The link calls from a deadline, never from within another method of this trait. Links with a
    /// [`PacketLink::waiter`] have no use for it; links that wrap another pass it on.
    fn attach(&mut self, _listener: Weak<dyn Due>) {}

    /// Joins a multicast group: packets to it are handed up from now on. A group that is joined several times has to be
    /// left as often.
    ///
    /// # Errors
    /// The system's, and [`Unsupported`](std::io::ErrorKind::Unsupported) on links without multicast.
    fn join(&mut self, _group: IpAddr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Leaves a multicast group.
    fn leave(&mut self, _group: IpAddr) {}

    /// Receivers that it has delivered packets to and that would not fetch them by themselves, one at a time: within
    /// one process no thread waits for them. They are called when this link is no longer in use.
    fn fed(&mut self) -> Option<Arc<dyn Due>> {
        None
    }

    /// The agent that answers for the port, if a subnet manager configures it: then packets are routed by LIDs, and
    /// addresses are those of [`Managed::tables`]. Links that wrap another pass it on.
    fn managed(&self) -> Option<Arc<dyn Managed>> {
        None
    }

    /// The queue pair numbers that the port may use, if it shares the number space with other processes: ranges that do
    /// not overlap. `used` says how many it has in use, so that the link requests more in time. `None`: all are the
    /// port's.
    fn numbers(&mut self, _used: usize) -> Option<&[Range<u32>]> {
        None
    }

    /// Queue pair numbers at the port's own addresses that no longer exist, because the process that had them has
    /// ended; one range at a time, asked after each [`PacketLink::receive`]. Links that wrap another pass it on.
    fn gone(&mut self) -> Option<Range<u32>> {
        None
    }

    /// The port numbers that the port shares with other processes, if it does.
    fn host_ports(&self) -> Option<Arc<dyn HostPorts>> {
        None
    }

    /// The link's counters; all zero if it does not count.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}
