//! What carries packets between ports: the trait of such links, and what passes through it.
//!
//! A link moves bytes and knows nothing of queue pairs. What it is given to send is complete, from the
//! BTH to the ICRC; what it hands up has not been judged. So a wrapper that damages packets damages them
//! before anybody looks, and one that writes them to a file writes what was on the wire.

use std::fmt;
use std::io;
use std::net::IpAddr;

use verbs_core::sync::{Arc, Weak};
use verbs_core::{Gid, Lid, Mtu, PortState, Qpn, Seed};
use verbs_wire::{Bth, BthView, Frame, Grh, Icrc};

use crate::time::Due;
pub use crate::time::Waiter;
use crate::{LinkCounters, Managed};

/// What a packet says of its way within one InfiniBand subnet.
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
    /// The ICRC as far as the route headers go, of packets of that many bytes from BTH to ICRC, between
    /// those addresses. `None` if no header can say that length.
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

/// The way of a packet, as far as its IP header tells, and on links with LIDs its local header.
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

/// Packets that leave together: all `segment` bytes long, but for the last, which may be shorter.
///
/// Packet number *k* of a burst over IPv4 without a local header leaves with identification *k* and DF set, which its ICRC
/// relies on. Packets leave from UDP port [`ROCE_PORT`](verbs_wire::ROCE_PORT).
#[derive(Clone, Copy, Debug)]
pub struct Burst<'a> {
    /// Where to.
    pub route: Route,
    /// Bytes of each packet, from its BTH to its ICRC.
    pub segment: usize,
    /// The packets, one behind the other.
    pub bytes: &'a [u8],
}

impl<'a> Burst<'a> {
    /// Bytes of all packets of a burst at most, on most links: what IPv4 has for one datagram.
    pub const BYTES_MAX: usize = 65_507;

    /// The packets, in order.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.bytes.chunks(self.segment.max(1))
    }
}

/// What became of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way, or lost; a link promises nothing.
    Gone,
    /// There is no room now. Nothing was sent; the same burst can be offered again when
    /// [`PacketLink::receive`] was called, or a little later.
    Blocked,
}

/// The identification in the IP header that a packet came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ident {
    /// This one, with DF set; or there is none, as in IPv6.
    Known(u16),
    /// The system does not tell; the ICRC has to be solved for it.
    Hidden,
}

/// A packet that came.
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
    /// From its BTH to its ICRC, as it came.
    pub bytes: &'a [u8],
}

/// What peers' answers tell about bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// A packet behind the first of a burst was acknowledged without having been sent again.
    Arrived,
    /// The first packet of a burst arrived, and nothing behind it.
    OnlyFirst,
}

/// A packet that its destination's host has refused, as no program has the UDP port there (ICMP port
/// unreachable).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Where the packet was sent to.
    pub dst: IpAddr,
    /// What the report quotes of the packet, from its BTH on: at most [`Refusal::QUOTED_MAX`] bytes, and none if
    /// the reporter quotes no more than the UDP header. Not covered by an ICRC: any host can write a report.
    pub quoted: Vec<u8>,
}

impl Refusal {
    /// Bytes that are kept of a quoted packet: the headers, and that of a management datagram.
    pub const QUOTED_MAX: usize = 64;
}

/// What changed about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// [`PacketLink::addresses`] are others.
    Addresses,
    /// It carries nothing now.
    Down,
    /// It carries packets again.
    Up,
    /// Of a managed port: it is in that state, neither down nor in service.
    State(PortState),
    /// Of a managed port: its LIDs.
    Lids,
    /// Of a managed port: its P_Key table.
    PKeys,
    /// Of a managed port: where the subnet manager is.
    SubnetManager,
    /// Of a managed port: its clients are to register with the subnet manager anew.
    Reregister,
}

/// A link that carries packets. Nothing here blocks, but for [`Waiter::wait`].
pub trait PacketLink: Send + fmt::Debug {
    /// The addresses of the port; the index of each is its GID index.
    fn addresses(&self) -> &[IpAddr];

    /// The largest path MTU whose packets fit.
    fn mtu(&self) -> Mtu;

    /// How many packets a burst to there may have now, at least 1; [`burst_bytes`](Self::burst_bytes) bounds it as
    /// well.
    fn burst_limit(&self, route: &Route) -> usize;

    /// Bytes of all packets of a burst at most; always the same.
    fn burst_bytes(&self) -> usize {
        Burst::BYTES_MAX
    }

    /// Sends packets.
    fn transmit(&mut self, burst: &Burst<'_>) -> Sent;

    /// Hands up what has come, a bounded number of packets, in order. Returns how many that were.
    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize;

    /// What peers' answers tell about earlier bursts.
    fn feedback(&mut self, route: &Route, news: Feedback);

    /// A number: one that nobody outside can guess, or one drawn from the seed of a simulation.
    fn entropy(&mut self) -> u64;

    /// What keys, queue pair numbers and packet sequence numbers are drawn from; another one with each call.
    /// A secret, whose key is two numbers of [`PacketLink::entropy`], unless a link of a simulation says
    /// otherwise. Links that wrap another pass it on.
    fn seed(&mut self) -> Seed {
        let halves = [self.entropy(), self.entropy()].map(u64::to_ne_bytes);
        Seed::secret(std::array::from_fn(|n| halves[n / 8][n % 8]))
    }

    /// What has changed since the last call, one thing at a time.
    fn change(&mut self) -> Option<Change>;

    /// What was refused of the packets that it has sent, one at a time; asked after each
    /// [`PacketLink::receive`]. Links without such reports have none; links that wrap another pass it on.
    fn refusal(&mut self) -> Option<Refusal> {
        None
    }

    /// What a thread waits for packets with; `None` if there is nothing to wait for, as in virtual time.
    fn waiter(&self) -> Option<Arc<dyn Waiter>>;

    /// Names whom a link in virtual time calls when packets or changes have come, as no thread waits
    /// for them. It calls from a deadline, never from within another method of this trait. Links with a
    /// [`PacketLink::waiter`] have no use for it; links that wrap another pass it on.
    fn attach(&mut self, _listener: Weak<dyn Due>) {}

    /// Joins a multicast group: packets to it are handed up from now on. The same group several times
    /// is left as often.
    ///
    /// # Errors
    /// What the system says, and [`Unsupported`](std::io::ErrorKind::Unsupported) of links without
    /// multicast.
    fn join(&mut self, _group: IpAddr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Leaves a multicast group.
    fn leave(&mut self, _group: IpAddr) {}

    /// Whom it has brought packets that nobody would fetch, one at a time: within one process there is
    /// nobody else to call. It is called when this link is not in use any more.
    fn fed(&mut self) -> Option<Arc<dyn Due>> {
        None
    }

    /// What answers for the port, if a subnet manager configures it: then packets go by LIDs, and addresses
    /// are those of [`Managed::sheet`]. Links that wrap another pass it on.
    fn managed(&self) -> Option<Arc<dyn Managed>> {
        None
    }

    /// What it has counted; all zero if it does not count.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}
