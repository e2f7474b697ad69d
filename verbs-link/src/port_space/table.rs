//! The table of TCP port numbers that endpoints of a device hold: plain data, without sockets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::error::{PortError, PortUser};

/// Claims that one table holds at most: as many as a single address has port numbers. Each bound one has a
/// socket besides, so that the limit of open files is met long before.
pub const CLAIMS_MAX: usize = 65_536;

/// What holds a port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// An endpoint, with sockets of the host.
    Bound,
    /// A reservation, without a socket.
    Reserved,
}

/// The addresses on which a port number is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// One address.
    One(IpAddr),
    /// All addresses of IPv4.
    V4,
    /// All addresses of IPv6.
    V6,
    /// All addresses.
    Both,
}

impl Scope {
    pub(super) fn of(ip: IpAddr, v6_only: bool) -> Self {
        match ip {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Self::V4,
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) if v6_only => Self::V6,
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Self::Both,
            ip => Self::One(ip),
        }
    }

    fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::One(a), Self::One(b)) => a == b,
            (Self::One(ip), any) | (any, Self::One(ip)) => any.covers(ip),
            (Self::Both, _) | (_, Self::Both) => true,
            (a, b) => a == b,
        }
    }

    /// Whether an address belongs to it.
    pub(super) fn covers(self, ip: IpAddr) -> bool {
        match self {
            Self::One(one) => one == ip,
            Self::V4 => ip.is_ipv4(),
            Self::V6 => ip.is_ipv6(),
            Self::Both => true,
        }
    }
}

/// One claim.
#[derive(Clone, Copy, Debug)]
struct Claim {
    id: u64,
    scope: Scope,
    addr: SocketAddr,
    holder: Holder,
}

/// Names a claim until it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClaimId {
    id: u64,
    port: u16,
}

/// All claims, by port number.
#[derive(Debug, Default)]
pub(super) struct Table {
    claims: BTreeMap<u16, Vec<Claim>>,
    count: usize,
    next: u64,
}

impl Table {
    /// Claims a number. `addr` is what the endpoint asked for, with the number.
    pub(super) fn claim(
        &mut self,
        addr: SocketAddr,
        scope: Scope,
        holder: Holder,
    ) -> Result<ClaimId, PortError> {
        let port = addr.port();
        let held = self.claims.get(&port).into_iter().flatten();
        if held.clone().any(|claim| claim.scope.overlaps(scope)) {
            let by = PortUser::Endpoint;
            return Err(PortError::AddrInUse { addr, by });
        }
        if self.count >= CLAIMS_MAX {
            return Err(PortError::TooMany { max: CLAIMS_MAX });
        }
        let id = self.next;
        self.next += 1;
        self.count += 1;
        let claim = Claim {
            id,
            scope,
            addr,
            holder,
        };
        self.claims.entry(port).or_default().push(claim);
        Ok(ClaimId { id, port })
    }

    /// A reservation becomes a bound endpoint, or the reverse.
    pub(super) fn hold_as(&mut self, claim: ClaimId, holder: Holder) {
        let held = self.claims.get_mut(&claim.port).into_iter().flatten();
        for claim in held.filter(|held| held.id == claim.id) {
            claim.holder = holder;
        }
    }

    /// Gives a number back.
    pub(super) fn release(&mut self, claim: ClaimId) {
        let Some(held) = self.claims.get_mut(&claim.port) else {
            return;
        };
        let before = held.len();
        held.retain(|held| held.id != claim.id);
        self.count -= before - held.len();
        if held.is_empty() {
            self.claims.remove(&claim.port);
        }
    }

    /// Addresses and numbers that are held, by number.
    pub(super) fn held(&self) -> impl Iterator<Item = (SocketAddr, Holder)> + '_ {
        let claims = self.claims.values().flatten();
        claims.map(|claim| (claim.addr, claim.holder))
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }
}
