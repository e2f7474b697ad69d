//! RoCEv2 over the system's own UDP sockets: interoperates with Linux rxe and with hardware, without privileges.
//!
//! The kernel writes the IP and UDP headers, and the ICRC covers them; so the link has to know what the kernel will
//! write. An unconnected socket that never fragments gives every IPv4 packet identification 0, and packet *k* of a send
//! with segmentation offload identification *k*. The first is tested when an address is bound, the second when a burst
//! is first sent on a route.
//!
//! In the other direction the kernel hides identifications: packets over IPv4 are received as [`Ident::Hidden`], except
//! those that never left the machine.

mod ancillary;
mod echo;
mod endpoint;
pub(crate) mod interfaces;
mod members;
mod offload;
mod reports;
#[cfg(test)]
mod tests;
mod waiter;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs_core::Mtu;
use verbs_core::sync::Arc;

use crate::rng::system_entropy;
use crate::sys::{BATCH_MAX, Slot};
use crate::{
    Arrival, Burst, Change, Feedback, GsoOff, Ident, LinkCounters, PacketLink, Refusal, Route,
    Sent, Waiter,
};
use verbs_wire::ROCE_PORT;

use self::ancillary::{Address, Said};
use self::endpoint::{Discovery, Endpoint, is_full, is_report};
use self::interfaces::{Interfaces, News};
use self::members::Members;
use self::offload::Offload;
use self::reports::Reports;
use self::waiter::{Poller, SOCKETS_MAX};

/// Addresses that one link may have: as many sockets, all of which are polled together.
pub const ADDRESSES_MAX: usize = 64;

/// Multicast groups that one link may be in: each has a socket of its own.
pub const GROUPS_MAX: u32 = 256;

// Each address and each group has one.
const _: () = assert!(ADDRESSES_MAX + GROUPS_MAX as usize == SOCKETS_MAX);

/// The interface of an address, for link-local ones; 0 where no interface has it.
pub(crate) fn scope_of(address: IpAddr) -> u32 {
    Interfaces::read().map_or(0, |interfaces| interfaces.index(address))
}

/// A link over UDP port 4791 of some of the machine's addresses.
///
/// Each address has a socket of its own, so that several processes can share a machine by taking different addresses:
/// 127.0.0.1, 127.0.0.2 and so on for peers on one machine.
///
/// Packets are sent from UDP port 4791, regardless of the flow, and to multicast groups by the interface of their
/// source address. A group is joined on the interfaces that the link's addresses have at that time.
///
/// # Context
/// As [`PacketLink`] says; but [`PacketLink::change`] asks the kernel about the machine's interfaces when they have
/// changed, which takes some ten microseconds. Such a change ends waits, so a caller that waits with its [`Waiter`]
/// must call `change` after each wait, or the next one ends at once.
#[derive(Debug)]
pub struct Udp {
    endpoints: Vec<Endpoint>,
    /// The groups that it has joined, which are polled like endpoints.
    members: Members,
    /// The addresses of the endpoints.
    addresses: Vec<IpAddr>,
    follows: Follows,
    interfaces: Interfaces,
    news: Arc<News>,
    offload: Offload,
    /// The reports of hosts and routers about packets that they did not deliver.
    reports: Reports,
    /// The buffers that datagrams are received into.
    slots: Vec<Slot>,
    /// The endpoint that is looked at first: each has its turn.
    first: usize,
    waiter: Arc<Poller>,
    mtu: Mtu,
    is_up: bool,
    changes: VecDeque<Change>,
    counters: LinkCounters,
}

/// Which addresses a link has when those of the machine change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follows {
    /// Those that it was given.
    Given,
    /// All that are usable: of the loopback interface, or of all others.
    Interfaces { loopback: bool },
}

impl Udp {
    /// A link with these addresses, in this order.
    ///
    /// # Errors
    /// [`LinkError::NoAddress`], [`LinkError::TooMany`]; [`LinkError::InUse`] when another process, or another link of
    /// this one, has one of them already; [`LinkError::NotOurs`]; [`LinkError::Identification`] when packets are sent
    /// with headers other than those that their ICRCs rely on; [`LinkError::Interfaces`] and [`LinkError::Socket`] when
    /// the system refuses.
    pub fn bind(addresses: &[IpAddr]) -> Result<Self, LinkError> {
        Self::open(
            addresses,
            Follows::Given,
            Interfaces::read(),
            Discovery::Probe,
        )
    }

    /// A link with all addresses of the machine's interfaces that are up, and later with those that it has then: an
    /// address is dropped when the machine gives it up, and not when its interface goes down. The loopback interface's
    /// are used only if there are no others.
    ///
    /// # Errors
    /// As [`Udp::bind`].
    pub fn bind_interfaces() -> Result<Self, LinkError> {
        let interfaces = Interfaces::read().map_err(LinkError::Interfaces)?;
        let mut addresses = interfaces.usable(false);
        let loopback = addresses.is_empty();
        if loopback {
            addresses = interfaces.usable(true);
        }
        Self::open(
            &addresses,
            Follows::Interfaces { loopback },
            Ok(interfaces),
            Discovery::Probe,
        )
    }

    fn open(
        addresses: &[IpAddr],
        follows: Follows,
        interfaces: io::Result<Interfaces>,
        discovery: Discovery,
    ) -> Result<Self, LinkError> {
        if addresses.is_empty() {
            return Err(LinkError::NoAddress);
        }
        if addresses.len() > ADDRESSES_MAX {
            return Err(LinkError::TooMany {
                got: addresses.len(),
            });
        }
        let interfaces = interfaces.map_err(LinkError::Interfaces)?;
        // Opened first, so that no change between the two is lost.
        let news = Arc::new(News::open().map_err(LinkError::Interfaces)?);
        let mut slots: Vec<_> = (0..BATCH_MAX).map(|_| Slot::new()).collect();
        let mut endpoints = Vec::with_capacity(addresses.len());
        for &address in addresses {
            let mut endpoint = Endpoint::bind(address, interfaces.index(address), discovery)?;
            prove(&mut endpoint, &mut slots)?;
            endpoints.push(endpoint);
        }
        let packets_max = endpoints[0].segments_max().unwrap_or(1);
        let waiter = Poller::new(Arc::clone(&news), sockets(&endpoints, &Members::default()))
            .map_err(|error| LinkError::Interfaces(error.into()))?;
        let mut link = Self {
            addresses: addresses.to_vec(),
            endpoints,
            members: Members::default(),
            follows,
            interfaces,
            news,
            offload: Offload::new(packets_max),
            reports: Reports::default(),
            slots,
            first: 0,
            waiter: Arc::new(waiter),
            mtu: Mtu::ALL[0],
            is_up: true,
            changes: VecDeque::new(),
            counters: LinkCounters::default(),
        };
        link.look_at_interfaces();
        Ok(link)
    }

    /// Takes over the current state of the machine's interfaces.
    fn look_at_interfaces(&mut self) {
        let mut mtu = None;
        for &address in &self.addresses {
            let fits = self.interfaces.mtu(address);
            mtu = Some(mtu.map_or(fits, |mtu: Mtu| mtu.min(fits)));
        }
        self.mtu = mtu.unwrap_or(self.mtu);
        let is_up = self
            .addresses
            .iter()
            .any(|&address| self.interfaces.is_up(address));
        if is_up != self.is_up {
            self.is_up = is_up;
            self.changes
                .push_back(if is_up { Change::Up } else { Change::Down });
        }
    }

    /// Interfaces, addresses or routes have changed.
    fn follow(&mut self) {
        match Interfaces::read() {
            Ok(interfaces) => self.interfaces = interfaces,
            Err(error) => {
                tracing::warn!(%error, "cannot ask for the machine's interfaces");
                return;
            }
        }
        self.offload.forget();
        if let Follows::Interfaces { loopback } = self.follows {
            self.follow_addresses(loopback);
        }
        self.look_at_interfaces();
    }

    /// Drops the endpoints of addresses that no longer exist, and adds those of new ones behind the rest.
    fn follow_addresses(&mut self, loopback: bool) {
        let before = self.addresses.clone();
        self.endpoints
            .retain(|endpoint| self.interfaces.has(endpoint.address));
        for address in self.interfaces.usable(loopback) {
            let is_new = !before.contains(&address);
            if !is_new || self.endpoints.len() >= ADDRESSES_MAX {
                continue;
            }
            let scope = self.interfaces.index(address);
            let bound =
                Endpoint::bind(address, scope, Discovery::Probe).and_then(|mut endpoint| {
                    prove(&mut endpoint, &mut self.slots)?;
                    Ok(endpoint)
                });
            match bound {
                Ok(endpoint) => self.endpoints.push(endpoint),
                Err(error) => tracing::warn!(%address, %error, "a new address is not used"),
            }
        }
        self.addresses = self.endpoints.iter().map(|found| found.address).collect();
        if self.addresses != before {
            self.waiter.replace(sockets(&self.endpoints, &self.members));
            self.changes.push_back(Change::Addresses);
        }
    }

    /// Whether no device splits or merges packets to that address, or from it.
    fn is_local(&self, address: IpAddr) -> bool {
        self.interfaces.owns(address)
    }

    /// Counts what could not be sent. A transport treats it as lost.
    fn not_sent(&mut self, route: &Route, error: &io::Error) -> Sent {
        self.counters.send_errors += 1;
        self.counters.send_errno = error.raw_os_error();
        tracing::debug!(src = %route.src, dst = %route.dst, %error, "cannot send");
        Sent::Gone
    }

    fn send(&mut self, index: usize, burst: &Burst<'_>, is_burst: bool) -> io::Result<()> {
        let Burst {
            route,
            segment,
            bytes,
        } = burst;
        let is_local = self.is_local(route.dst);
        let endpoint = &mut self.endpoints[index];
        if is_burst && self.offload.is_untried(route, is_local) {
            let echo = endpoint.send_observed(
                route,
                *segment,
                bytes,
                &mut self.slots,
                &mut self.reports,
            )?;
            self.offload.tried(route, *segment, echo);
            return Ok(());
        }
        endpoint.send(route, *segment, bytes)
    }

    /// Hands up the datagrams of one endpoint. Returns how many packets those were.
    fn receive_from(&mut self, index: usize, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let count = self.endpoints.len();
        let endpoint = match self.endpoints.get_mut(index) {
            Some(endpoint) => Some(endpoint),
            None => self.members.get_mut(index - count),
        };
        let Some(endpoint) = endpoint else { return 0 };
        let dst = endpoint.address;
        let Ok(count) = endpoint.receive(&mut self.slots, &mut self.reports) else {
            return 0;
        };
        let mut packets = 0;
        for slot in &self.slots[..count] {
            let from = Address::parse(slot.from());
            let (Some((src, sport)), false) = (from, slot.is_cut()) else {
                self.counters.receive_errors += 1;
                continue;
            };
            let said = Said::parse(slot.control());
            let bytes = slot.bytes();
            let segment = said.segment.filter(|&segment| segment > 0);
            let is_local = self.interfaces.owns(src);
            let before = packets;
            let mut arrival = Arrival {
                src,
                dst,
                sport,
                tclass: said.tclass,
                ident: Ident::Known(0),
                bytes: &[],
                local: None,
            };
            for (k, bytes) in (0..).zip(bytes.chunks(segment.unwrap_or(bytes.len()).max(1))) {
                packets += 1;
                arrival.ident = match dst {
                    IpAddr::V6(_) => Ident::Known(0),
                    IpAddr::V4(_) if is_local => Ident::Known(k),
                    IpAddr::V4(_) => Ident::Hidden,
                };
                arrival.bytes = bytes;
                sink(&arrival);
            }
            if packets - before > 1 {
                self.counters.gro_segments += (packets - before) as u64;
            }
        }
        self.counters.packets_received += packets as u64;
        packets
    }

    /// Hands up the datagrams of all endpoints and groups, that many. By itself, because its lists take room on the stack
    /// that a link with one socket would make for nothing.
    #[inline(never)]
    fn receive_from_all(&mut self, count: usize, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        // One call finds out which sockets have datagrams; most often none has.
        let mut ready = [false; SOCKETS_MAX];
        let mut polled = arrayvec::ArrayVec::<_, SOCKETS_MAX>::new();
        let endpoints = self.endpoints.iter().map(Endpoint::socket);
        for socket in endpoints.chain(self.members.sockets()).take(SOCKETS_MAX) {
            polled.push(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
        }
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if !poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0) {
            return 0;
        }
        for (ready, polled) in ready.iter_mut().zip(&polled) {
            *ready = !polled.revents().is_empty();
        }
        drop(polled);
        self.first = (self.first + 1) % count;
        (self.first..count)
            .chain(0..self.first)
            .filter(|&index| ready.get(index).is_some_and(|&ready| ready))
            .collect::<arrayvec::ArrayVec<_, SOCKETS_MAX>>()
            .into_iter()
            .map(|index| self.receive_from(index, sink))
            .sum()
    }
}

impl PacketLink for Udp {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn mtu(&self) -> Mtu {
        self.mtu
    }

    fn burst_limit(&self, route: &Route) -> usize {
        self.offload.limit(route, self.is_local(route.dst))
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        let route = &burst.route;
        let index = self
            .addresses
            .iter()
            .position(|&address| address == route.src);
        let (Some(index), true) = (index, route.src.is_ipv4() == route.dst.is_ipv4()) else {
            let error = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
            return self.not_sent(route, &error);
        };
        let count = burst.packets().len();
        let is_burst = count > 1;
        // A burst that was made when more packets were allowed: sent in parts, its ICRCs would be wrong.
        if is_burst && (count > self.burst_limit(route) || burst.bytes.len() > Burst::BYTES_MAX) {
            return self.not_sent(route, &io::Error::from_raw_os_error(libc::EINVAL));
        }
        match self.send(index, burst, is_burst) {
            Ok(()) => {
                self.counters.packets_sent += count as u64;
                self.counters.gso_bursts += u64::from(is_burst);
                Sent::Gone
            }
            Err(error) if is_full(&error) || is_report(&error) => {
                self.counters.blocked += 1;
                Sent::Blocked
            }
            Err(error) => {
                if is_burst && is_refusal(&error) {
                    self.offload.give_up(route, GsoOff::Refused);
                }
                self.not_sent(route, &error)
            }
        }
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        match self.endpoints.len() + self.members.len() {
            1 => self.receive_from(0, sink),
            count => self.receive_from_all(count, sink),
        }
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if self.members.len() == GROUPS_MAX as usize {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        if self
            .members
            .join(group, &self.addresses, &self.interfaces)?
        {
            self.waiter.replace(sockets(&self.endpoints, &self.members));
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        if self.members.leave(group) {
            self.waiter.replace(sockets(&self.endpoints, &self.members));
        }
    }

    fn feedback(&mut self, route: &Route, news: Feedback) {
        self.offload.feedback(route, news);
    }

    fn refusal(&mut self) -> Option<Refusal> {
        self.reports.take()
    }

    fn change(&mut self) -> Option<Change> {
        if self.news.take() {
            self.follow();
        }
        self.changes.pop_front()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        let waiter: Arc<dyn Waiter> = Arc::clone(&self.waiter) as _;
        Some(waiter)
    }

    fn entropy(&mut self) -> u64 {
        system_entropy()
    }

    fn counters(&self) -> LinkCounters {
        let (gso_routes_off, gso_off_reason) = self.offload.routes_off();
        LinkCounters {
            gso_routes_off,
            gso_off_reason,
            icmp_errors: self.reports.icmp_errors,
            packet_too_big: self.reports.packet_too_big,
            port_unreachable: self.reports.port_unreachable,
            ..self.counters
        }
    }
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There are no addresses to use.
    #[error("no address to use: give some, or bring up an interface that has one")]
    NoAddress,
    /// There are more addresses than a link may have.
    #[error("{got} addresses, and {ADDRESSES_MAX} are possible: give fewer")]
    TooMany {
        /// How many there are.
        got: usize,
    },
    /// The port is taken already.
    #[error(
        "UDP port {ROCE_PORT} of {address} is taken: another process, another link of this one, or \
         the kernel's rxe owns it; use another address (each of 127.0.0.0/8 is one), or stop the other"
    )]
    InUse {
        /// The address.
        address: IpAddr,
    },
    /// No interface has that address.
    #[error("{address} is not an address of this machine: see `ip address`")]
    NotOurs {
        /// The address.
        address: IpAddr,
    },
    /// Packets are sent with headers other than those that their ICRCs cover, so no peer would take them.
    #[error(
        "packets from {address} leave with identification {identification} \
         (DF {dont_fragment}, {header_words} header words), and only 0 (DF true, 5 words) can be \
         covered by an ICRC; this kernel's sockets cannot carry RoCEv2 over IPv4, use IPv6"
    )]
    Identification {
        /// The packets' source address.
        address: IpAddr,
        /// The identification that a packet had.
        identification: u16,
        /// Whether its header had DF set.
        dont_fragment: bool,
        /// Words of its header.
        header_words: u8,
    },
    /// The kernel does not report the machine's interfaces.
    #[error("cannot ask the kernel for the machine's interfaces (a route socket): {0}")]
    Interfaces(io::Error),
    /// The system refuses a socket, or an option of it.
    #[error("no socket on UDP port {ROCE_PORT} of {address}: {error}")]
    Socket {
        /// The address.
        address: IpAddr,
        /// The system's error.
        error: io::Error,
    },
}

/// Tests that packets are sent with the headers that their ICRCs will cover.
fn prove(endpoint: &mut Endpoint, slots: &mut [Slot]) -> Result<(), LinkError> {
    let address = endpoint.address;
    match endpoint.observe_plain(slots) {
        Ok(Some(echo)) if echo.is_plain() => Ok(()),
        Ok(Some(echo)) => Err(LinkError::Identification {
            address,
            identification: echo.identification,
            dont_fragment: echo.dont_fragment,
            header_words: echo.header_words,
        }),
        Ok(None) if address.is_ipv6() => Ok(()),
        Ok(None) => {
            tracing::warn!(
                %address,
                "the system does not show what leaves (sysctl net.core.tstamp_allow_data): \
                 identifications are taken on trust"
            );
            Ok(())
        }
        Err(error) => Err(LinkError::Socket { address, error }),
    }
}

fn sockets(endpoints: &[Endpoint], members: &Members) -> Arc<[Arc<std::os::fd::OwnedFd>]> {
    let endpoints = endpoints.iter().map(Endpoint::socket);
    endpoints.chain(members.sockets()).cloned().collect()
}

/// Whether the system refuses bursts, rather than sending on that route.
fn is_refusal(error: &io::Error) -> bool {
    let codes = [libc::EINVAL, libc::EIO, libc::EOPNOTSUPP];
    error
        .raw_os_error()
        .is_some_and(|code| codes.contains(&code))
}
