//! Packets in messages: of the daemon, and of channels.

use std::net::IpAddr;
use std::ops::Range;

use verbs_core::Qpn;
use verbs_core::host::Block;
use verbs_core::host::message::Packets;
use verbs_core::mem::Window;
use verbs_wire::{Bth, BthView, Icrc};

use crate::{Arrival, Ident};

/// Queue pair numbers below this have a meaning of their own; they are in the daemon's block.
const QPN_MIN: u32 = 0x10;

/// Stands in place of the ICRC of packets that have none.
const NO_ICRC: [u8; Icrc::LEN] = [0; Icrc::LEN];

/// Hands up the packets of a message. Those of a channel may have no ICRC.
pub(super) fn hand_up(
    burst: &Packets<'_>,
    is_near: bool,
    sink: &mut dyn FnMut(&Arrival<'_>),
) -> usize {
    let packets = burst.packets();
    let count = packets.len();
    for (k, bytes) in (0..).zip(packets) {
        let ident = match (burst.dst, burst.ident) {
            _ if is_near && bytes.last_chunk() == Some(&NO_ICRC) => Ident::Unsealed,
            (IpAddr::V6(_), _) => Ident::Known(0),
            (IpAddr::V4(_), Some(first)) => Ident::Known(first.wrapping_add(k)),
            (IpAddr::V4(_), None) => Ident::Hidden,
        };
        sink(&Arrival {
            src: burst.src,
            dst: burst.dst,
            sport: burst.sport,
            tclass: burst.tclass,
            ident,
            local: None,
            bytes,
            long: None,
        });
    }
    count
}

/// Hands up a long packet of a channel, whose headers these are.
pub(super) fn hand_up_long(
    head: &Packets<'_>,
    payload: Window<'_>,
    sink: &mut dyn FnMut(&Arrival<'_>),
) {
    sink(&Arrival {
        src: head.src,
        dst: head.dst,
        sport: head.sport,
        tclass: head.tclass,
        ident: Ident::Unsealed,
        local: None,
        bytes: head.bytes,
        long: Some(payload),
    });
}

/// The queue pair that a packet is for.
pub(super) fn dest_of(packet: &[u8]) -> Option<Qpn> {
    let bth = packet.first_chunk::<{ Bth::LEN }>()?;
    Some(BthView::of(bth).dest_qpn())
}

/// The queue pair numbers of a block that a port may use.
pub(super) fn numbers_of(block: Block) -> Range<u32> {
    let Range { start, end } = block.qpns();
    start.max(QPN_MIN)..end
}

/// Whether a packet is for one of these queue pairs.
pub(super) fn is_for(packet: &[u8], numbers: &[Range<u32>]) -> bool {
    let dest = dest_of(packet).map(Qpn::value);
    dest.is_some_and(|dest| numbers.iter().any(|numbers| numbers.contains(&dest)))
}

/// A packet that has come from the network, as a message carries it.
pub fn arrived<'a>(arrival: &Arrival<'a>) -> Option<Packets<'a>> {
    Some(Packets {
        src: arrival.src,
        dst: arrival.dst,
        tclass: arrival.tclass,
        hop_limit: 0,
        sport: arrival.sport,
        ident: match arrival.ident {
            Ident::Known(ident) => Some(ident),
            Ident::Hidden | Ident::Unsealed => None,
        },
        segment: u16::try_from(arrival.bytes.len())
            .ok()
            .filter(|&len| len > 0)?,
        bytes: arrival.bytes,
    })
}
