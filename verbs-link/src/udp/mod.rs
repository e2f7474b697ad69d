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
mod error;
pub(crate) mod interfaces;
mod loopback;
mod reports;
pub(crate) mod sockets;
pub(crate) mod steering;
#[cfg(test)]
mod tests;
mod waiter;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use verbs_core::Mtu;
use verbs_core::sync::Arc;

pub use self::error::{ADDRESSES_MAX, LinkError};
pub use self::loopback::loopback_addresses;
use crate::rng::system_entropy;
use crate::sys::Slot;
use crate::{
    Arrival, Burst, Change, Feedback, LinkCounters, PacketLink, Refusal, Route, Sent, Waiter,
};

use self::interfaces::{Interfaces, News};
use self::sockets::endpoint::{Discovery, Endpoint};
use self::sockets::{Sockets, slots};
use self::waiter::{Poller, SOCKETS_MAX};

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
    sockets: Sockets,
    follows: Follows,
    interfaces: Interfaces,
    news: Arc<News>,
    waiter: Arc<Poller>,
    mtu: Mtu,
    is_up: bool,
    changes: VecDeque<Change>,
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
        Self::bind_again(addresses, BTreeMap::new())
    }

    /// As [`Udp::bind`], with the sockets that a process before this one has bound to some of the addresses.
    ///
    /// # Errors
    /// As [`Udp::bind`].
    pub fn bind_again(
        addresses: &[IpAddr],
        bound: BTreeMap<IpAddr, OwnedFd>,
    ) -> Result<Self, LinkError> {
        let interfaces = Interfaces::read();
        Self::open(
            addresses,
            Follows::Given,
            interfaces,
            Discovery::Probe,
            bound,
        )
    }

    /// A link with all addresses of the machine's interfaces that are up, and later with those that it has then: an
    /// address is dropped when the machine gives it up, and not when its interface goes down. The loopback interface's
    /// are used only if there are no others.
    ///
    /// # Errors
    /// As [`Udp::bind`].
    pub fn bind_interfaces() -> Result<Self, LinkError> {
        Self::bind_interfaces_again(BTreeMap::new())
    }

    /// As [`Udp::bind_interfaces`], with the sockets that a process before this one has bound to some of the addresses.
    ///
    /// # Errors
    /// As [`Udp::bind`].
    pub fn bind_interfaces_again(bound: BTreeMap<IpAddr, OwnedFd>) -> Result<Self, LinkError> {
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
            bound,
        )
    }

    fn open(
        addresses: &[IpAddr],
        follows: Follows,
        interfaces: io::Result<Interfaces>,
        discovery: Discovery,
        mut bound: BTreeMap<IpAddr, OwnedFd>,
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
        let mut slots = slots();
        let mut endpoints = Vec::with_capacity(addresses.len());
        for &address in addresses {
            let failed = |error| LinkError::Socket { address, error };
            let endpoint = match bound.remove(&address) {
                Some(socket) => Endpoint::adopted(address, socket).map_err(failed)?,
                None => {
                    let index = interfaces.index(address);
                    let mut endpoint = Endpoint::bind(address, index, discovery)?;
                    prove(&mut endpoint, &mut slots)?;
                    endpoint
                }
            };
            endpoints.push(endpoint);
        }
        let sockets = Sockets::new(endpoints);
        let waiter = Poller::new(Arc::clone(&news), sockets.all())
            .map_err(|error| LinkError::Interfaces(error.into()))?;
        let mut link = Self {
            sockets,
            follows,
            interfaces,
            news,
            waiter: Arc::new(waiter),
            mtu: Mtu::ALL[0],
            is_up: true,
            changes: VecDeque::new(),
        };
        link.look_at_interfaces();
        Ok(link)
    }

    /// The sockets of its addresses.
    pub fn sockets(&self) -> impl Iterator<Item = (IpAddr, &Arc<OwnedFd>)> {
        let endpoints = self.endpoints().iter();
        endpoints.map(|endpoint| (endpoint.address, endpoint.socket()))
    }

    fn endpoints(&self) -> &[Endpoint] {
        &self.sockets.endpoints
    }

    fn endpoint(&self, address: IpAddr) -> Option<&Endpoint> {
        self.endpoints()
            .iter()
            .find(|endpoint| endpoint.address == address)
    }

    /// Takes over the current state of the machine's interfaces.
    fn look_at_interfaces(&mut self) {
        let mut mtu = None;
        for &address in self.sockets.addresses() {
            let fits = self.interfaces.mtu(address);
            mtu = Some(mtu.map_or(fits, |mtu: Mtu| mtu.min(fits)));
        }
        self.mtu = mtu.unwrap_or(self.mtu);
        let is_up = self
            .sockets
            .addresses()
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
        self.sockets.forget_routes();
        if let Follows::Interfaces { loopback } = self.follows {
            self.follow_addresses(loopback);
        }
        self.look_at_interfaces();
    }

    /// Drops the endpoints of addresses that no longer exist, and adds those of new ones behind the rest.
    fn follow_addresses(&mut self, loopback: bool) {
        let before = self.sockets.addresses().to_vec();
        let Sockets {
            endpoints, slots, ..
        } = &mut self.sockets;
        endpoints.retain(|endpoint| self.interfaces.has(endpoint.address));
        for address in self.interfaces.usable(loopback) {
            let is_new = !before.contains(&address);
            if !is_new || endpoints.len() >= ADDRESSES_MAX {
                continue;
            }
            let scope = self.interfaces.index(address);
            let bound =
                Endpoint::bind(address, scope, Discovery::Probe).and_then(|mut endpoint| {
                    prove(&mut endpoint, slots)?;
                    Ok(endpoint)
                });
            match bound {
                Ok(endpoint) => endpoints.push(endpoint),
                Err(error) => tracing::warn!(%address, %error, "a new address is not used"),
            }
        }
        self.sockets.endpoints_changed();
        if self.sockets.addresses() != before {
            self.waiter.replace(self.sockets.all());
            self.changes.push_back(Change::Addresses);
        }
    }
}

impl PacketLink for Udp {
    fn addresses(&self) -> &[IpAddr] {
        self.sockets.addresses()
    }

    fn mtu(&self) -> Mtu {
        self.mtu
    }

    fn burst_limit(&self, route: &Route) -> usize {
        self.sockets.burst_limit(&self.interfaces, route)
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        self.sockets.transmit(&self.interfaces, burst)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        self.sockets.receive(&self.interfaces, sink)
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let Sockets { members, .. } = &mut self.sockets;
        if members.len() == GROUPS_MAX as usize {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        if self.sockets.join(group, &self.interfaces)? {
            self.waiter.replace(self.sockets.all());
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        if self.sockets.members.leave(group) {
            self.waiter.replace(self.sockets.all());
        }
    }

    fn feedback(&mut self, route: &Route, news: Feedback) {
        self.sockets.feedback(route, news);
    }

    fn refusal(&mut self) -> Option<Refusal> {
        self.sockets.refusal()
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
        self.sockets.counters()
    }
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
