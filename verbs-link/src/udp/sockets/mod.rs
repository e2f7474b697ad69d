//! The sockets of a link: what is sent by them, and what they receive.

pub(in crate::udp) mod endpoint;
pub(in crate::udp) mod members;
pub(in crate::udp) mod offload;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs_core::sync::Arc;

use self::endpoint::{Endpoint, is_full, is_report};
use self::members::Members;
use self::offload::Offload;
use super::ancillary::{Address, Said};
use super::interfaces::Interfaces;
use super::reports::Reports;
use super::waiter::SOCKETS_MAX;
use crate::sys::{BATCH_MAX, Slot};
use crate::{Arrival, Burst, Feedback, GsoOff, Ident, LinkCounters, Refusal, Route, Sent};

/// One socket for each address, in their order, and one for each group.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(super) endpoints: Vec<Endpoint>,
    /// The groups that were joined, which are polled like endpoints.
    pub(super) members: Members,
    /// The addresses of the endpoints.
    addresses: Vec<IpAddr>,
    /// Packets that one send may have, once a socket has told.
    packets_max: Option<usize>,
    offload: Offload,
    /// The reports of hosts and routers about packets that they did not deliver.
    reports: Reports,
    /// The buffers that datagrams are received into.
    pub(super) slots: Vec<Slot>,
    /// The endpoint that is looked at first: each has its turn.
    first: usize,
    counters: LinkCounters,
}

impl Default for Sockets {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl Sockets {
    pub(super) fn new(endpoints: Vec<Endpoint>) -> Self {
        let mut sockets = Self {
            addresses: Vec::new(),
            endpoints,
            members: Members::default(),
            packets_max: None,
            offload: Offload::new(1),
            reports: Reports::default(),
            slots: slots(),
            first: 0,
            counters: LinkCounters::default(),
        };
        sockets.endpoints_changed();
        sockets
    }

    /// Endpoints were added or dropped.
    pub(super) fn endpoints_changed(&mut self) {
        self.addresses = self.endpoints.iter().map(|found| found.address).collect();
        if self.packets_max.is_none()
            && let Some(first) = self.endpoints.first_mut()
        {
            let max = first.segments_max().unwrap_or(1);
            self.packets_max = Some(max);
            self.offload = Offload::new(max);
        }
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// A socket for that address that another process has bound, in place of an earlier one.
    pub(crate) fn adopt(&mut self, address: IpAddr, socket: OwnedFd) -> io::Result<()> {
        let endpoint = Endpoint::adopted(address, socket)?;
        self.endpoints.retain(|known| known.address != address);
        self.endpoints.push(endpoint);
        self.endpoints_changed();
        Ok(())
    }

    /// Drops the sockets of other addresses. Returns whether there were some.
    pub(crate) fn keep(&mut self, addresses: &[IpAddr]) -> bool {
        let before = self.endpoints.len();
        self.endpoints
            .retain(|known| addresses.contains(&known.address));
        let changes = self.endpoints.len() < before;
        if changes {
            self.endpoints_changed();
        }
        changes
    }

    /// All of them, for those who wait for them.
    pub(crate) fn all(&self) -> Arc<[Arc<OwnedFd>]> {
        let endpoints = self.endpoints.iter().map(Endpoint::socket);
        endpoints.chain(self.members.sockets()).cloned().collect()
    }

    /// Joins a group. Returns whether there is another socket now.
    pub(super) fn join(&mut self, group: IpAddr, interfaces: &Interfaces) -> io::Result<bool> {
        self.members.join(group, &self.addresses, interfaces)
    }

    /// Routes have changed.
    pub(super) fn forget_routes(&mut self) {
        self.offload.forget();
    }

    pub(crate) fn burst_limit(&self, local: &Interfaces, route: &Route) -> usize {
        self.offload.limit(route, local.owns(route.dst))
    }

    pub(crate) fn feedback(&mut self, route: &Route, news: Feedback) {
        self.offload.feedback(route, news);
    }

    pub(crate) fn refusal(&mut self) -> Option<Refusal> {
        self.reports.take()
    }

    pub(crate) fn counters(&self) -> LinkCounters {
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

    /// Counts what could not be sent. A transport treats it as lost.
    fn not_sent(&mut self, route: &Route, error: &io::Error) -> Sent {
        self.counters.send_errors += 1;
        self.counters.send_errno = error.raw_os_error();
        tracing::debug!(src = %route.src, dst = %route.dst, %error, "cannot send");
        Sent::Gone
    }

    fn send(
        &mut self,
        local: &Interfaces,
        index: usize,
        burst: &Burst<'_>,
        is_burst: bool,
    ) -> io::Result<()> {
        let Burst {
            route,
            segment,
            bytes,
        } = burst;
        // No device splits or merges packets of the machine to itself.
        let is_local = local.owns(route.dst);
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

    pub(crate) fn transmit(&mut self, local: &Interfaces, burst: &Burst<'_>) -> Sent {
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
        let is_long = |limit| count > limit || burst.bytes.len() > Burst::BYTES_MAX;
        if is_burst && is_long(self.burst_limit(local, route)) {
            return self.not_sent(route, &io::Error::from_raw_os_error(libc::EINVAL));
        }
        match self.send(local, index, burst, is_burst) {
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

    /// Hands up the datagrams that have arrived, a bounded number. Returns how many packets those were.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        local: &Interfaces,
        sink: &mut dyn FnMut(&Arrival<'_>),
    ) -> usize {
        match self.endpoints.len() + self.members.len() {
            1 => self.receive_from(local, 0, sink),
            count => self.receive_from_all(local, count, sink),
        }
    }

    /// Hands up the datagrams of one endpoint. Returns how many packets those were.
    #[inline]
    fn receive_from(
        &mut self,
        local: &Interfaces,
        index: usize,
        sink: &mut dyn FnMut(&Arrival<'_>),
    ) -> usize {
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
            let is_local = local.owns(src);
            let before = packets;
            let mut arrival = Arrival {
                src,
                dst,
                sport,
                tclass: said.tclass,
                ident: Ident::Known(0),
                bytes: &[],
                long: None,
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
    fn receive_from_all(
        &mut self,
        local: &Interfaces,
        count: usize,
        sink: &mut dyn FnMut(&Arrival<'_>),
    ) -> usize {
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
            .map(|index| self.receive_from(local, index, sink))
            .sum()
    }
}

/// Room for what one call receives.
pub(super) fn slots() -> Vec<Slot> {
    (0..BATCH_MAX).map(|_| Slot::new()).collect()
}

/// Whether the system refuses bursts, rather than sending on that route.
fn is_refusal(error: &io::Error) -> bool {
    let codes = [libc::EINVAL, libc::EIO, libc::EOPNOTSUPP];
    error
        .raw_os_error()
        .is_some_and(|code| codes.contains(&code))
}
