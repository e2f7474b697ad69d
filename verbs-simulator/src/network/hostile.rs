//! An attacker on the network that sees packets and may send any packet, but has neither the keys of a connection nor
//! its place in the sequence of packets.
//!
//! The connected ends may notice none of this. An attacker that also knows queue pair and sequence numbers can end a
//! connection, as on every RoCE network; that, too, may change no byte.

use std::net::IpAddr;

use verbs_core::addr::{PKey, Qpn};
use verbs_link::Route;
use verbs_wire::iwarp::{Revision, Startup, StartupKind};
use verbs_wire::{Bth, Envelope, Head, Packet, ROCE_PORT};

use crate::mutant::seal;
use crate::{Draw, Network, Ppm, StreamNetwork};

/// A partition that no port is in.
const FOREIGN: PKey = PKey(0x9234);
/// The most bytes of garbage.
const GARBAGE_MAX: usize = 2_000;

/// Connects to a listening address as a stranger, and sends nothing, garbage, or a part of what is right.
pub(crate) fn intrude(streams: &StreamNetwork, draw: &mut Draw) {
    let listening = streams.listening();
    if listening.is_empty() {
        return;
    }
    let to = *draw.pick(&listening);
    let mut garbage = vec![0; draw.below(GARBAGE_MAX)];
    draw.fill(&mut garbage);
    let request = Startup {
        kind: StartupKind::Request,
        wants_markers: draw.chance(Ppm::percent(10)),
        wants_crc: true,
        revision: Revision::One,
        private_data: b"a stranger's",
    };
    let mut frame = vec![0; request.wire_len()];
    if request.emit(&mut frame).is_err() {
        return;
    }
    let bytes = match draw.below(5) {
        0 => Vec::new(),
        1 => garbage,
        2 => frame[..draw.below(frame.len())].to_vec(),
        3 => frame,
        _ => [frame, garbage].concat(),
    };
    streams.intrude(to, &bytes, draw.chance(Ppm::percent(50)));
}

/// Sends one packet that must have no effect. `addresses` are those of the network's ports.
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
            // From an address that the queue pair is not connected to.
            if src != route.src && src.is_ipv4() == route.dst.is_ipv4() {
                forge(network, &Route { src, ..route }, &seen.bytes, |_| {});
            }
        }
        _ => network.replay(&seen),
    }
}

/// Sends a packet like that one with another base header and a correct ICRC.
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
