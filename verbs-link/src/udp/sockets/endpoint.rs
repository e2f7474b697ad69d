//! One address's socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover,
    set_ip_multicast_if_with_ifindex, set_ip_recvtos, set_ip_ttl, set_ipv6_mtu_discover,
    set_ipv6_multicast_if, set_ipv6_recvtclass, set_ipv6_unicast_hops, set_ipv6_v6only,
    set_socket_recv_buffer_size, set_socket_reuseport, set_socket_send_buffer_size,
};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, getsockname, socket_with,
};
use verbs_core::sync::Arc;

use crate::Route;
use crate::sys::{self, Slot};
use crate::udp::ancillary::{Address, Control};
use crate::udp::echo::Echo;
use crate::udp::error::LinkError;
use crate::udp::reports::{self, Reports};
use verbs_wire::ROCE_PORT;

/// Bytes of a socket's buffers: some milliseconds at 10 Gbit/s. The system may grant less.
const BUFFER_LEN: usize = 4 << 20;
/// Hop limit of packets for which no other is given.
const HOP_LIMIT: u8 = 64;
/// Further looks for an echo, if a driver does not return it at once.
const ECHO_LOOKS: u32 = 256;
/// How often a call is repeated whose error may be a report about an earlier packet.
const PENDING_MAX: u32 = 3;

/// A socket that is bound to one of the link's addresses, and to no peer.
#[derive(Debug)]
pub(in crate::udp) struct Endpoint {
    pub(in crate::udp) address: IpAddr,
    /// The interface of a link-local address, else 0.
    scope: u32,
    socket: Arc<OwnedFd>,
    /// How often to look for an echo that has not arrived yet.
    echo_looks: u32,
    /// The error queue may have entries.
    has_errors: bool,
    /// Slots that the next call is given: each costs instructions, and offload merges most packets into one.
    lot: usize,
}

/// How the socket finds path MTUs, which decides on the identifications of its IPv4 packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::udp) enum Discovery {
    /// Packets have DF and identification 0, and forged messages of routers are not believed.
    Probe,
    /// The system's default, which numbers packets: the mode that the link must detect.
    #[cfg(test)]
    Want,
}

impl Endpoint {
    fn new(address: IpAddr, scope: u32, socket: OwnedFd) -> Self {
        Self {
            address,
            scope,
            socket: Arc::new(socket),
            echo_looks: 0,
            has_errors: false,
            lot: 1,
        }
    }

    /// A socket at that address; `index` is the interface that it belongs to.
    pub(in crate::udp) fn bind(
        address: IpAddr,
        index: u32,
        discovery: Discovery,
    ) -> Result<Self, LinkError> {
        let failed = |error: io::Error| LinkError::Socket { address, error };
        let scope = match address {
            IpAddr::V6(address) if address.is_unicast_link_local() => index,
            _ => 0,
        };
        let socket = open(address).map_err(failed)?;
        options(socket.as_fd(), address, discovery).map_err(failed)?;
        bind(&socket, &socket_address(address, ROCE_PORT, scope)).map_err(|error| match error {
            rustix::io::Errno::ADDRINUSE => LinkError::InUse { address },
            rustix::io::Errno::ADDRNOTAVAIL => LinkError::NotOurs { address },
            error => failed(error.into()),
        })?;
        leave_by(&socket, address, index).map_err(failed)?;
        report_errors(&socket, address).map_err(failed)?;
        Ok(Self::new(address, scope, socket))
    }

    /// A socket at that address that another process of this program has bound.
    pub(in crate::udp) fn adopted(address: IpAddr, socket: OwnedFd) -> io::Result<Self> {
        let scope = match SocketAddr::try_from(getsockname(&socket)?)? {
            SocketAddr::V6(bound) => bound.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        Ok(Self::new(address, scope, socket))
    }

    /// A further socket at the same address: the two are a group, in which the system has to be told which one receives a
    /// packet. The first was bound alone, so that no other program has the address.
    pub(in crate::udp) fn beside(&self) -> io::Result<OwnedFd> {
        let socket = open(self.address)?;
        options(socket.as_fd(), self.address, Discovery::Probe)?;
        report_errors(&socket, self.address)?;
        set_socket_reuseport(&self.socket, true)?;
        set_socket_reuseport(&socket, true)?;
        bind(
            &socket,
            &socket_address(self.address, ROCE_PORT, self.scope),
        )?;
        Ok(socket)
    }

    /// Sends bytes to this address from another port.
    pub(in crate::udp) fn send_to_itself(&self, bytes: &[u8]) -> io::Result<()> {
        let (socket, _) = self.sink()?;
        let to = Address::new(self.address, ROCE_PORT, self.scope);
        sys::send(socket.as_fd(), to.as_bytes(), bytes, &[]).map(drop)
    }

    /// A socket that receives what is sent to a group, once it has joined; `index` is the interface of a link-local
    /// group.
    pub(in crate::udp) fn bind_group(group: IpAddr, index: u32) -> io::Result<Self> {
        let socket = open(group)?;
        options(socket.as_fd(), group, Discovery::Probe)?;
        super::members::share(&socket)?;
        // Memberships of other sockets do not apply to this one.
        let (level, all) = match group {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL),
        };
        // Kernels before 4.20 have the option for IPv4 only.
        let _ = sys::set_option(socket.as_fd(), level, all, 0);
        let scope = match group {
            IpAddr::V6(_) => index,
            IpAddr::V4(_) => 0,
        };
        bind(&socket, &socket_address(group, ROCE_PORT, scope))?;
        Ok(Self::new(group, scope, socket))
    }

    pub(in crate::udp) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Sends bytes as packets of `segment` bytes.
    pub(in crate::udp) fn send(
        &mut self,
        route: &Route,
        segment: usize,
        bytes: &[u8],
    ) -> io::Result<()> {
        let mut control = Control::new();
        if bytes.len() > segment {
            // Callers bound the whole burst, so that a part of it fits as well.
            let segment =
                u16::try_from(segment).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, segment.to_ne_bytes());
        }
        let hop_limit = i32::from(route.hop_limit.max(1)).to_ne_bytes();
        let is_other = route.hop_limit != HOP_LIMIT || route.dst.is_multicast();
        let (level, hops, tclass) = match route.dst {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_TOS),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, libc::IPV6_TCLASS),
        };
        if is_other {
            control.push(level, hops, hop_limit);
        }
        if route.tclass != 0 {
            control.push(level, tclass, i32::from(route.tclass).to_ne_bytes());
        }
        let to = Address::new(route.dst, ROCE_PORT, self.scope);
        self.submit(&to, bytes, control.as_bytes())
    }

    /// Sends to an address. A report about an earlier packet fails the next call, whatever that is: so a call that
    /// fails is repeated.
    fn submit(&mut self, to: &Address, bytes: &[u8], control: &[u8]) -> io::Result<()> {
        let mut again = PENDING_MAX;
        loop {
            match sys::send(self.fd(), to.as_bytes(), bytes, control) {
                Err(error) if again > 0 && !is_full(&error) => {
                    self.has_errors = true;
                    again -= 1;
                }
                sent => return sent.map(drop),
            }
        }
    }

    /// As [`Endpoint::send`], and finds out what was sent. `None` if the driver or the system does not report it, or
    /// not at once.
    pub(in crate::udp) fn send_observed(
        &mut self,
        route: &Route,
        segment: usize,
        bytes: &[u8],
        slots: &mut [Slot],
        reports: &mut Reports,
    ) -> io::Result<Option<Echo>> {
        self.observed(route.dst, slots, reports, |socket| {
            socket.send(route, segment, bytes)
        })
    }

    /// Finds out with which headers single packets are sent, by sending one to a socket of its own.
    ///
    /// `None` if the system does not report it, or there is nothing to report, as over IPv6.
    pub(in crate::udp) fn observe_plain(&mut self, slots: &mut [Slot]) -> io::Result<Option<Echo>> {
        if self.address.is_ipv6() {
            return Ok(None);
        }
        let (_sink, to) = self.sink()?;
        let reports = &mut Reports::default();
        self.observed(self.address, slots, reports, |socket| {
            socket.submit(&to, &[0; 16], &[])
        })
    }

    /// How many packets one send may have: determined by sending them to a socket of its own.
    pub(in crate::udp) fn segments_max(&mut self) -> io::Result<usize> {
        let (_sink, to) = self.sink()?;
        let mut control = Control::new();
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, 16_u16.to_ne_bytes());
        let fits = |count: &usize| {
            let bytes = [0; 16 * 128];
            self.submit(&to, &bytes[..16 * count], control.as_bytes())
                .is_ok()
        };
        // The limits of different kernels.
        Ok([128, 64].into_iter().find(fits).unwrap_or(1))
    }

    /// Receives into the first of the slots. Returns how many are filled.
    pub(in crate::udp) fn receive(
        &mut self,
        slots: &mut [Slot],
        reports: &mut Reports,
    ) -> io::Result<usize> {
        // An entry that stays in the error queue would end every wait for packets at once.
        if self.has_errors || self.echo_looks > 0 {
            self.echo_looks = self.echo_looks.saturating_sub(1);
            let _ = self.take_errors(slots, reports);
        }
        let received = self.receive_now(slots);
        if self.has_errors && received.is_err() {
            // The slots are free.
            let _ = self.take_errors(slots, reports);
        }
        received
    }

    /// Receives the packets that have arrived, skipping reports, each of which fails one call.
    fn receive_now(&mut self, slots: &mut [Slot]) -> io::Result<usize> {
        let mut again = PENDING_MAX;
        let most = slots.len().min(sys::BATCH_MAX);
        let slots = &mut slots[..self.lot.min(most)];
        loop {
            match sys::receive(self.fd(), slots, 0) {
                Ok(count) => {
                    // All of them: more datagrams may wait.
                    let wanted = if count == slots.len() {
                        2 * count
                    } else {
                        count
                    };
                    self.lot = wanted.clamp(1, most.max(1));
                    return Ok(count);
                }
                Err(error) if again > 0 && error.kind() != io::ErrorKind::WouldBlock => {
                    self.has_errors = true;
                    again -= 1;
                }
                received => return received,
            }
        }
    }

    /// Takes one batch out of the error queue: reports are added to `reports`; the other entries, packets as they were
    /// sent, are in the slots with them. Returns how many slots are filled.
    fn take_errors(&mut self, slots: &mut [Slot], reports: &mut Reports) -> io::Result<usize> {
        let taken = sys::receive(self.fd(), slots, libc::MSG_ERRQUEUE);
        let count = *taken.as_ref().unwrap_or(&0);
        // If a batch is not full, nothing is left.
        self.has_errors = count > 0 && count == slots.len().min(sys::BATCH_MAX);
        let mut has_echo = false;
        for slot in &slots[..count] {
            has_echo |= !reports.note(slot);
        }
        if has_echo {
            self.echo_looks = 0;
        }
        taken
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// A socket at the same address with a port of its own, and its address.
    fn sink(&self) -> io::Result<(OwnedFd, Address)> {
        let family = match self.address {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &socket_address(self.address, 0, self.scope))?;
        let port = port(getsockname(&socket)?)?;
        Ok((socket, Address::new(self.address, port, self.scope)))
    }

    fn observed(
        &mut self,
        dst: IpAddr,
        slots: &mut [Slot],
        reports: &mut Reports,
        send: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<Option<Echo>> {
        let stamps = libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
        self.stamp(stamps as i32)?;
        let sent = send(self);
        let echo = match sent {
            Ok(()) => self.echo(dst, slots, reports),
            Err(_) => None,
        };
        self.stamp(0)?;
        sent.map(|()| echo)
    }

    fn stamp(&self, flags: i32) -> io::Result<()> {
        sys::set_option(self.fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags)
    }

    /// Takes in the echoes that have arrived. Returns the last one of a packet to `dst`.
    fn echo(&mut self, dst: IpAddr, slots: &mut [Slot], reports: &mut Reports) -> Option<Echo> {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.address, dst) else {
            return None;
        };
        self.echo_looks = ECHO_LOOKS;
        let count = self.take_errors(slots, reports).ok()?;
        let echoes = slots[..count]
            .iter()
            .filter(|slot| !reports::is_report(slot));
        echoes
            .rev()
            .find_map(|slot| Echo::find(slot.bytes(), src, dst))
    }
}

fn open(address: IpAddr) -> io::Result<OwnedFd> {
    let family = match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::DGRAM, flags, None)?)
}

/// Has multicast packets sent by the interface that the address belongs to.
fn leave_by(socket: &OwnedFd, address: IpAddr, index: u32) -> io::Result<()> {
    match address {
        IpAddr::V4(address) => {
            let any = Ipv4Addr::UNSPECIFIED;
            set_ip_multicast_if_with_ifindex(socket, &any, &address, index)?;
        }
        IpAddr::V6(_) => set_ipv6_multicast_if(socket, index)?,
    }
    Ok(())
}

/// Sets what a socket needs before it is bound.
fn options(socket: BorrowedFd<'_>, address: IpAddr, discovery: Discovery) -> io::Result<()> {
    if address.is_ipv4() {
        let mode = match discovery {
            Discovery::Probe => Ipv4PathMtuDiscovery::PROBE,
            #[cfg(test)]
            Discovery::Want => Ipv4PathMtuDiscovery::WANT,
        };
        set_ip_mtu_discover(socket, mode)?;
        set_ip_recvtos(socket, true)?;
        set_ip_ttl(socket, HOP_LIMIT.into())?;
    } else {
        set_ipv6_v6only(socket, true)?;
        set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::PROBE)?;
        set_ipv6_recvtclass(socket, true)?;
        set_ipv6_unicast_hops(socket, Some(HOP_LIMIT))?;
        // Most RoCEv2 devices send no checksum.
        sys::set_option(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    }
    // An older kernel merges nothing, which makes no difference.
    let _ = sys::set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    set_socket_recv_buffer_size(socket, BUFFER_LEN)?;
    set_socket_send_buffer_size(socket, BUFFER_LEN)?;
    Ok(())
}

/// Has the socket keep what the network reports about its packets (`IP_RECVERR`).
///
/// From then on a report also fails the next call, and if a queue of the system has no room, the send fails; without
/// the option the packet would be lost silently.
fn report_errors(socket: &OwnedFd, address: IpAddr) -> io::Result<()> {
    let (level, name) = match address {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    sys::set_option(socket.as_fd(), level, name, 1)
}

/// Whether there is just no room now.
pub(in crate::udp) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Whether it is a report about an earlier packet; no send has such an error of its own.
pub(in crate::udp) fn is_report(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECONNREFUSED)
}

fn socket_address(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V4(address) => SocketAddr::new(address.into(), port),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, scope).into(),
    }
}

fn port(address: SocketAddrAny) -> io::Result<u16> {
    Ok(SocketAddr::try_from(address)?.port())
}
