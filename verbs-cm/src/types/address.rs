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

/// The peer that asks: by the header, or else by the GID that the message came from.
pub(crate) fn peer_of(ip: Option<IpHeader>, gid: Option<IpAddr>) -> SocketAddr {
    let unknown = IpAddr::from([0, 0, 0, 0]);
    match ip {
        Some(ip) => SocketAddr::new(ip.addresses.source(), ip.source_port),
        None => SocketAddr::new(gid.unwrap_or(unknown), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: addresses of IPv4 are told as such however they are written, and a pair is of one family.
    #[test]
    fn a_pair_is_of_one_family() {
        let of = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let v4 = IpPair::V4 {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
        };
        for source in ["10.0.0.1", "::ffff:10.0.0.1"] {
            for destination in ["10.0.0.2", "::ffff:10.0.0.2"] {
                assert_eq!(pair(of(source), of(destination)), Ok(v4));
            }
        }
        let v6 = pair(of("fd00::1"), of("fd00::2")).expect("one family");
        assert_eq!(
            (v6.source(), v6.destination()),
            (of("fd00::1"), of("fd00::2"))
        );
        for (source, destination) in [("10.0.0.1", "fd00::2"), ("fd00::1", "10.0.0.2")] {
            let refused = pair(of(source), of(destination));
            assert_eq!(refused, Err(Error::NoRoute(of(destination))));
        }
    }

    /// Goal: a peer is known by what its request says, else by its GID, and without both by no address.
    #[test]
    fn a_peer_is_named_by_its_request_first() {
        let gid = IpAddr::from([10, 0, 0, 9]);
        let addresses = pair([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).expect("one family");
        let ip = IpHeader {
            source_port: 77,
            addresses,
        };
        let (said, seen) = (([10, 0, 0, 1], 77).into(), ([10, 0, 0, 9], 0).into());
        assert_eq!(peer_of(Some(ip), Some(gid)), said);
        assert_eq!(peer_of(None, Some(gid)), seen);
        assert_eq!(peer_of(None, None), ([0, 0, 0, 0], 0).into());
    }
}
