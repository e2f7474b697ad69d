//! The host's TCP port space, for providers that make connections over TCP: iWARP and ordinary TCP take port
//! numbers from one space, so that a number that either uses is refused to the other.
//!
//! [`TcpPortSpace`] holds the addresses of one device. [`TcpPortSpace::bind`] takes a number at one of them, or at
//! all, by binding sockets of the host: the kernel decides conflicts with the sockets of all processes, and the
//! space only remembers what its own endpoints hold. [`PortUse`] says what the sockets are for: a software
//! provider connects and listens with them; one whose hardware carries the connection keeps them bound and
//! unused. [`PortReservation`] holds a number in the space without a socket. [`mapper`] tells other hosts of numbers
//! that stand for others.
//!
//! ```
//! use verbs_link::port_space::{PortUse, TcpPortSpace};
//!
//! let space = TcpPortSpace::host();
//! let mut port = space.bind("127.0.0.1:0".parse()?, PortUse::Connection)?;
//! // An ordinary socket cannot have the number any longer.
//! assert!(std::net::TcpListener::bind(port.local()).is_err());
//! port.listen(16)?;
//! let plain = std::net::TcpStream::connect(port.local())?;
//! let accepted = loop {
//!     if let Some(accepted) = port.accept()? {
//!         break accepted;
//!     }
//! };
//! assert_eq!(accepted.remote, plain.local_addr()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bound;
mod error;
mod host;
pub mod mapper;
mod reservation;
mod table;
#[cfg(test)]
#[cfg(not(verbs_loom))]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

use verbs_core::sync::{Arc, Mutex};

use crate::udp;

use self::bound::Socket;
use self::host::{BindFlags, HostSockets, Sockets};
use self::table::{ClaimId, Scope, Table};

pub use bound::{Accepted, BoundPort};
pub use error::{PortError, PortUser};
pub use reservation::{NotBound, PortReservation};
pub use table::{CLAIMS_MAX, Holder};

/// Numbers that are tried for a wildcard without one, until one is free on all of its addresses. A host on which
/// one number of four is taken at some address gives up once in four thousand million binds.
pub const ROUNDS_MAX: usize = 16;

/// What the sockets of a bound port are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortUse {
    /// The bound socket becomes the connection or the listener, as software over TCP has it.
    Connection,
    /// The bound socket only keeps the number, as for hardware with a TCP of its own. It neither listens nor
    /// connects.
    Reserve,
}

/// The addresses of one device in the host's TCP port space, and the numbers that its endpoints hold. Clones are
/// the same space.
#[derive(Clone, Debug)]
pub struct TcpPortSpace {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Those of the device; `None` for all of the host.
    addresses: Option<Vec<IpAddr>>,
    table: Mutex<Table>,
    sockets: Box<dyn Sockets>,
}

impl TcpPortSpace {
    /// All addresses of the host, also those that it gets later.
    pub fn host() -> Self {
        Self::with(None, Box::new(HostSockets))
    }

    /// Some addresses of the host: those of a device.
    pub fn of(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut own: Vec<IpAddr> = Vec::new();
        for address in addresses {
            let address = address.to_canonical();
            if !address.is_unspecified() && !own.contains(&address) {
                own.push(address);
            }
        }
        Self::with(Some(own), Box::new(HostSockets))
    }

    fn with(addresses: Option<Vec<IpAddr>>, sockets: Box<dyn Sockets>) -> Self {
        let shared = Shared {
            addresses,
            table: Mutex::new(Table::default()),
            sockets,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Binds a port number at an address of the device; at all of them if it is a wildcard, `0.0.0.0` for those
    /// of IPv4 and `::` for those of IPv6. Port number 0 takes one that is free, and that no other socket
    /// shares. A wildcard is bound at all addresses or at none.
    ///
    /// A fixed number at which the kernel only keeps connections of the past, or connections of an earlier
    /// listener, is free for [`PortUse::Connection`], as it is for ordinary servers.
    ///
    /// # Errors
    /// [`PortError::AddrInUse`], [`PortError::AddrNotAvailable`], [`PortError::Denied`];
    /// [`PortError::NoFreePort`] and [`PortError::NoCommonPort`] for port number 0;
    /// [`PortError::TooMany`], [`PortError::System`]. Nothing is bound then.
    ///
    /// # Context
    /// Makes system calls that do not wait. Callable from a routine.
    pub fn bind(&self, addr: SocketAddr, usage: PortUse) -> Result<BoundPort, PortError> {
        self.bind_claimed(None, addr, usage, true)
    }

    /// As [`TcpPortSpace::bind`], with the wildcard `::` standing for the addresses of IPv4 as well
    /// (`IPV6_V6ONLY` off).
    ///
    /// # Errors
    /// As there.
    pub fn bind_dual(&self, addr: SocketAddr, usage: PortUse) -> Result<BoundPort, PortError> {
        self.bind_claimed(None, addr, usage, false)
    }

    /// Binds for a connection to a peer: the address that the host would send from, and a number that no other
    /// socket shares.
    ///
    /// # Errors
    /// [`PortError::NoRoute`]; as [`TcpPortSpace::bind`].
    pub fn bind_for(&self, remote: SocketAddr, usage: PortUse) -> Result<BoundPort, PortError> {
        let local = self.source_for(remote)?;
        self.bind(self.at(local, 0), usage)
    }

    /// The address of the device from which the host would send to a peer.
    ///
    /// # Errors
    /// [`PortError::NoRoute`].
    pub fn source_for(&self, remote: SocketAddr) -> Result<IpAddr, PortError> {
        let no_route = PortError::NoRoute { remote };
        if remote.ip().is_unspecified() || remote.ip().is_multicast() {
            return Err(no_route);
        }
        let preferred = host::source_for(None, remote);
        if let Some(source) = preferred.filter(|&source| self.has(source)) {
            return Ok(source);
        }
        let own = self.shared.addresses.iter().flatten().copied();
        own.filter(|own| own.is_ipv4() == remote.is_ipv4())
            .find(|&own| host::source_for(Some(own), remote).is_some())
            .ok_or(no_route)
    }

    /// Whether an address is one of the device's. A space of the whole host leaves that to the kernel.
    pub fn has(&self, address: IpAddr) -> bool {
        match &self.shared.addresses {
            Some(own) => own.contains(&address),
            None => true,
        }
    }

    /// Holds a number in this space without a socket; see [`PortReservation`] for what that grants. Port number
    /// 0 takes one that is free.
    ///
    /// # Errors
    /// As [`TcpPortSpace::bind`].
    pub fn reserve(&self, addr: SocketAddr) -> Result<PortReservation, PortError> {
        // The kernel is asked once whether the number is free, by sockets that are closed again.
        let probe = self.bind(addr, PortUse::Reserve)?;
        Ok(PortReservation::of(probe, true))
    }

    /// Addresses and numbers that endpoints and reservations hold, by number.
    pub fn held(&self) -> Vec<(SocketAddr, Holder)> {
        self.shared.table.lock().held().collect()
    }

    /// How many numbers endpoints and reservations hold.
    pub fn len(&self) -> usize {
        self.shared.table.lock().len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Binds, under a claim that the table has already or under one of its own.
    fn bind_claimed(
        &self,
        claim: Option<ClaimId>,
        addr: SocketAddr,
        usage: PortUse,
        v6_only: bool,
    ) -> Result<BoundPort, PortError> {
        let addr = self.canonical(addr);
        let scope = Scope::of(addr.ip(), v6_only);
        let request = Binding {
            space: self,
            addr,
            scope,
            usage,
            targets: self.targets(addr, scope)?,
        };
        match addr.port() {
            0 => request.any(),
            _ => request.fixed(claim),
        }
    }

    /// The addresses at which sockets are bound for that one.
    fn targets(&self, addr: SocketAddr, scope: Scope) -> Result<Vec<IpAddr>, PortError> {
        let missing = PortError::AddrNotAvailable { addr };
        match (&self.shared.addresses, scope) {
            (_, Scope::One(ip)) if self.has(ip) => Ok(vec![ip]),
            (_, Scope::One(_)) => Err(missing),
            (None, _) => Ok(vec![addr.ip()]),
            (Some(own), any) => {
                let found: Vec<IpAddr> = own.iter().copied().filter(|&ip| any.covers(ip)).collect();
                if found.is_empty() {
                    return Err(missing);
                }
                Ok(found)
            }
        }
    }

    /// An address with a number, and with the interface that a link-local one needs.
    fn at(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddrV6::new(v6, port, 0, udp::scope_of(ip)).into()
            }
            _ => SocketAddr::new(ip, port),
        }
    }

    /// An IPv4 address that is written as one of IPv6 is one of IPv4; a link-local one keeps its interface.
    fn canonical(&self, addr: SocketAddr) -> SocketAddr {
        match (addr, addr.ip().to_canonical()) {
            (SocketAddr::V6(v6), ip) if v6.scope_id() == 0 || ip.is_ipv4() => {
                self.at(ip, addr.port())
            }
            _ => addr,
        }
    }

    fn sockets(&self) -> &dyn Sockets {
        &*self.shared.sockets
    }

    fn hold_as(&self, claim: ClaimId, holder: Holder) {
        self.shared.table.lock().hold_as(claim, holder);
    }

    fn release(&self, claim: ClaimId) {
        self.shared.table.lock().release(claim);
    }
}

/// A bind under way.
struct Binding<'a> {
    space: &'a TcpPortSpace,
    /// What was asked for.
    addr: SocketAddr,
    scope: Scope,
    usage: PortUse,
    /// Where sockets are bound.
    targets: Vec<IpAddr>,
}

impl Binding<'_> {
    /// Binds the number that was asked for.
    fn fixed(self, reserved: Option<ClaimId>) -> Result<BoundPort, PortError> {
        let claim = match reserved {
            Some(claim) => claim,
            None => self.claim(self.addr)?,
        };
        match self.extend(Vec::new(), self.addr.port()) {
            Ok(sockets) => {
                self.space.hold_as(claim, Holder::Bound);
                Ok(self.bound(claim, self.addr, sockets))
            }
            Err((error, _)) => {
                if reserved.is_none() {
                    self.space.release(claim);
                }
                Err(error)
            }
        }
    }

    /// Binds any number: the kernel picks one for the first address, which is then extended to the others. A
    /// number that is taken at one of those stays bound until another is found, so that the kernel does not
    /// pick it twice.
    fn any(self) -> Result<BoundPort, PortError> {
        let mut refused = Vec::new();
        let mut last = self.addr;
        for _ in 0..ROUNDS_MAX {
            let first = self.space.at(self.targets[0], 0);
            let (fd, got) = self.open(first)?;
            let port = got.port();
            let mut local = self.addr;
            local.set_port(port);
            let first = vec![Socket {
                addr: got,
                fd: Some(fd),
            }];
            let claim = match self.claim(local) {
                Ok(claim) => claim,
                Err(PortError::AddrInUse { addr, .. }) => {
                    last = addr;
                    refused.push(first);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match self.extend(first, port) {
                Ok(sockets) => return Ok(self.bound(claim, local, sockets)),
                Err((PortError::AddrInUse { addr, .. }, mut sockets)) => {
                    self.space.release(claim);
                    last = addr;
                    sockets.truncate(1);
                    refused.push(sockets);
                }
                Err((error, _)) => {
                    self.space.release(claim);
                    return Err(error);
                }
            }
        }
        Err(PortError::NoCommonPort {
            ip: self.addr.ip(),
            addresses: self.targets.len(),
            rounds: ROUNDS_MAX,
            last,
        })
    }

    /// Binds the number at the addresses that have no socket yet. After an error, what was bound is given back
    /// to be closed.
    fn extend(
        &self,
        mut sockets: Vec<Socket>,
        port: u16,
    ) -> Result<Vec<Socket>, (PortError, Vec<Socket>)> {
        for &ip in &self.targets[sockets.len()..] {
            let addr = match self.addr.ip() == ip {
                true => self.addr,
                false => self.space.at(ip, port),
            };
            match self.open(addr) {
                Ok((fd, addr)) => sockets.push(Socket { addr, fd: Some(fd) }),
                Err(error) => return Err((error, sockets)),
            }
        }
        Ok(sockets)
    }

    /// A socket at one address. A fixed number that only connections of the past have is free for a listener.
    fn open(&self, addr: SocketAddr) -> Result<(OwnedFd, SocketAddr), PortError> {
        let mut flags = BindFlags {
            v6_only: self.scope != Scope::Both,
            reuse: false,
        };
        let sockets = self.space.sockets();
        let bound = match sockets.bind(addr, flags) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && self.usage == PortUse::Connection
                    && addr.port() != 0 =>
            {
                flags.reuse = true;
                sockets.bind(addr, flags)
            }
            bound => bound,
        };
        bound.map_err(|error| PortError::of("bind", addr, error))
    }

    fn claim(&self, addr: SocketAddr) -> Result<ClaimId, PortError> {
        let mut table = self.space.shared.table.lock();
        table.claim(addr, self.scope, Holder::Bound)
    }

    fn bound(&self, claim: ClaimId, local: SocketAddr, sockets: Vec<Socket>) -> BoundPort {
        BoundPort::new(self.space.clone(), claim, self.usage, local, sockets)
    }
}
