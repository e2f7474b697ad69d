//! The ICRC of packets that come and go.

use std::net::IpAddr;

use crate::link::{Arrival, Ident, Route};
use crate::wire::{Envelope, Icrc, PacketView, ROCE_PORT};

/// The ICRC of packet number `k` of a burst; `covered` is all of it but the ICRC.
pub(crate) fn seal(route: &Route, k: usize, covered: &[u8]) -> Option<u32> {
    let ident = u16::try_from(k).ok()?;
    let envelope = envelope(route.src, route.dst, ROCE_PORT)?.with_identification(ident);
    let icrc = envelope.icrc(covered.len() + Icrc::LEN).ok()?;
    icrc.compute(covered).ok()
}

/// Whether a packet came as it was sent.
pub(crate) fn is_intact(arrival: &Arrival<'_>, view: PacketView<'_>) -> bool {
    let Some(mut envelope) = envelope(arrival.src, arrival.dst, arrival.sport) else {
        return false;
    };
    if let Ident::Known(ident) = arrival.ident {
        envelope = envelope.with_identification(ident);
    }
    let icrc = envelope.icrc(arrival.bytes.len());
    icrc.and_then(|icrc| icrc.compute(view.covered())) == Ok(view.icrc())
}

fn envelope(src: IpAddr, dst: IpAddr, sport: u16) -> Option<Envelope> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Envelope::v4(src, dst, sport)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Envelope::v6(src, dst, sport)),
        _ => None,
    }
}
