//! Addresses as messages carry them.

use std::net::{IpAddr, SocketAddr};

use crate::error::Error;
use crate::wire::{IpHeader, IpPair};

/// Both ends' addresses, which the peer is told; they are of one family.
pub(crate) fn pair(source: IpAddr, destination: IpAddr) -> Result<IpPair, Error> {
    match (source.to_canonical(), destination.to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Ok(IpPair::V4 {
            source,
            destination,
        }),
        (IpAddr::V6(source), IpAddr::V6(destination)) => Ok(IpPair::V6 {
            source,
            destination,
        }),
        (_, destination) => Err(Error::NoRoute(destination)),
    }
}

/// Who asks: by the header, or else by the GID that the message came from.
pub(crate) fn peer_of(ip: Option<IpHeader>, gid: Option<IpAddr>) -> SocketAddr {
    let unknown = IpAddr::from([0, 0, 0, 0]);
    match ip {
        Some(ip) => SocketAddr::new(ip.addresses.source(), ip.source_port),
        None => SocketAddr::new(gid.unwrap_or(unknown), 0),
    }
}
