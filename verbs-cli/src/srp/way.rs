//! The way to a target: an HCA on the wire towards it.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use ulp_srp::initiator::{Target, TargetWay};

use super::error::SrpError;
use crate::wire::{Roce, Wire, WireArgs};

/// An HCA from which the target can be reached.
pub(super) fn towards(target: &Target, wire: &WireArgs) -> Result<Wire, SrpError> {
    let network = Roce::new(wire);
    let peer = match &target.way {
        TargetWay::Address(addr) => *addr,
        TargetWay::Service { .. } => SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0),
    };
    let local = sends_from(peer).map_err(|error| SrpError::System {
        doing: "find the way to the target",
        error,
    })?;
    Ok(Wire::open_towards(&network, &wire.bind, local, peer.ip())?)
}

/// Where the system sends from to reach that address. Sends nothing.
fn sends_from(peer: SocketAddr) -> io::Result<IpAddr> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}
