//! Somebody on the network who sees packets pass and may send what they like, but has neither the keys of
//! a connection nor its place in the sequence of packets.
//!
//! None of this may be noticed by those who are connected. Who also knows queue pair and sequence numbers
//! can end a connection, as on every RoCE network; that, too, may change no byte.

use std::net::IpAddr;

use verbs_core::addr::{PKey, Qpn};

use crate::link::Route;
use crate::sim::plant::seal;
use crate::sim::{Draw, Network};
use crate::wire::{Bth, Envelope, Head, Packet, ROCE_PORT};

/// A partition that no port is in.
const FOREIGN: PKey = PKey(0x9234);
/// Bytes of garbage at most.
const GARBAGE_MAX: usize = 2_000;

/// Sends one packet that must do nothing. `addresses` are those of the network's ports.
pub(crate) fn attack(network: &Network, addresses: &[IpAddr], draw: &mut Draw) {
    let Some(seen) = network.overheard(draw) else {
        return;
    };
    let route = seen.route;
    match draw.below(6) {
        0 => {
            let mut garbage = vec![0; draw.below(GARBAGE_MAX)];
            draw.fill(&mut garbage);
            network.inject(&route, &garbage);
        }
        1 => {
            // Headers that look right, and an ICRC that does not.
            let mut bytes = seen.bytes.to_vec();
            if let Some(last) = bytes.last_mut() {
                *last ^= 1 << draw.below(8);
            }
            network.inject(&route, &bytes);
        }
        2 => forge(network, &route, &seen.bytes, |bth| bth.pkey = FOREIGN),
        3 => {
            let dest_qpn = Qpn::new(draw.number() as u32 & 0xff_fffe);
            forge(network, &route, &seen.bytes, |bth| bth.dest_qpn = dest_qpn);
        }
        4 => {
            let src = *draw.pick(addresses);
            // From somebody whom the queue pair is not connected to.
            if src != route.src && src.is_ipv4() == route.dst.is_ipv4() {
                forge(network, &Route { src, ..route }, &seen.bytes, |_| {});
            }
        }
        _ => network.replay(&seen),
    }
}

/// Sends a packet like that one with another base header and an ICRC that is right.
fn forge(network: &Network, route: &Route, bytes: &[u8], change: impl FnOnce(&mut Bth)) {
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    let mut bth = *packet.head.bth();
    change(&mut bth);
    let envelope = match (route.src, route.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Envelope::v4(src, dst, ROCE_PORT),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Envelope::v6(src, dst, ROCE_PORT),
        _ => return,
    };
    if let Ok(head) = Head::new(bth, *packet.head.ext())
        && let Some(forged) = seal(&envelope, head, packet.payload)
    {
        network.inject(route, &forged);
    }
}
