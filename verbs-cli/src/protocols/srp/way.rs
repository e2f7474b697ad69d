//! The way to a target: an HCA on the wire towards it.

use std::net::{IpAddr, SocketAddr};

use ulp_srp::initiator::{Target, TargetWay};

use super::error::SrpError;
use crate::net::sends_from;
use crate::wire::{Wire, WireArgs, network};

/// An HCA from which the target can be reached.
pub(super) fn towards(target: &Target, wire: &WireArgs) -> Result<Wire, SrpError> {
    let network = network(wire);
    let peer = match &target.way {
        TargetWay::Address(addr) => *addr,
        TargetWay::Service { .. } => SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0),
    };
    let local = sends_from(peer).map_err(|error| SrpError::System {
        doing: "find the way to the target",
        error,
    })?;
    Ok(Wire::open_towards(&*network, &wire.bind, local, peer.ip())?)
}
