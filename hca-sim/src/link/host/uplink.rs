//! The daemon's side of the network: bursts to and from a link, and management datagrams as packets.

use std::net::IpAddr;

use verbs_core::host::message::{Packets, PortNews};
use verbs_core::mad::MadBytes;
use verbs_core::{PKey, Psn, QKey, Qpn};
use verbs_wire::{
    Bth, BthFlags, Deth, Extended, Head, Opcode, Operation, Packet, ROCE_PORT, Seal, Service,
};

use crate::link::{Burst, Change, PacketLink, Route, Sent};

pub use verbs_link::arrived;

/// Bytes of the packet of a management datagram, its headers and a margin.
const MAD_PACKET_MAX: usize = 512;

/// What the port is, as far as its link tells.
pub fn port_of(link: &dyn PacketLink, is_up: bool) -> PortNews {
    PortNews {
        addresses: link.addresses().to_vec(),
        mtu: link.mtu(),
        is_up,
    }
}

/// What has changed: whether the port carries packets now.
pub fn follow(link: &mut dyn PacketLink, is_up: &mut bool) -> bool {
    let mut any = false;
    while let Some(change) = link.change() {
        match change {
            Change::Down => *is_up = false,
            Change::Up => *is_up = true,
            _ => {}
        }
        any = true;
    }
    any
}

/// Offers packets of a client to the link. False if there is no room now.
pub fn transmit(link: &mut dyn PacketLink, packets: &Packets<'_>) -> bool {
    let route = Route {
        src: packets.src,
        dst: packets.dst,
        tclass: packets.tclass,
        hop_limit: packets.hop_limit,
        local: None,
    };
    let burst = Burst {
        route,
        segment: packets.segment.into(),
        bytes: packets.bytes,
    };
    link.transmit(&burst) == Sent::Gone
}

/// A management datagram from one address to another as a packet: from queue pair 1 to queue pair 1, with its check sum.
pub fn packet_of((src, dst): (IpAddr, IpAddr), mad: &MadBytes, psn: u32) -> Option<Vec<u8>> {
    let bth = Bth {
        opcode: Opcode::new(Service::Ud, Operation::SendOnly)?,
        flags: BthFlags::empty(),
        pkey: PKey::DEFAULT,
        dest_qpn: Qpn::new(1),
        psn: Psn::new(psn),
    };
    let ext = Extended {
        deth: Some(Deth {
            qkey: QKey::GSI,
            src_qpn: Qpn::new(1),
        }),
        ..Extended::default()
    };
    let head = Head::new(bth, ext).ok()?;
    let packet = Packet { head, payload: mad };
    let seal = Seal::new(src, dst, ROCE_PORT)?;
    let mut bytes = vec![0; MAD_PACKET_MAX];
    let len = packet
        .emit(&mut bytes, &seal.begin(0, packet.wire_len()))
        .ok()?;
    bytes.truncate(len);
    Some(bytes)
}

/// The burst of that packet.
pub fn burst_of((src, dst): (IpAddr, IpAddr), packet: &[u8]) -> Packets<'_> {
    Packets {
        src,
        dst,
        tclass: 0,
        hop_limit: 64,
        sport: ROCE_PORT,
        ident: Some(0),
        segment: packet.len() as u16,
        bytes: packet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what the daemon itself sends is a packet that any receiver takes.
    #[test]
    fn a_datagram_of_the_daemon_has_the_right_check_sum() {
        let [src, dst] = ["127.0.0.1", "127.0.0.2"].map(|text| text.parse().expect("one"));
        let bytes = packet_of((src, dst), &[7; 256], 5).expect("a packet");
        let seal = Seal::new(src, dst, ROCE_PORT).expect("one family");
        assert!(seal.verify(0, &bytes));
        let parsed = Packet::parse(&bytes).expect("a packet");
        assert_eq!(parsed.payload, &[7; 256]);
        assert_eq!(
            usize::from(burst_of((src, dst), &bytes).segment),
            bytes.len()
        );
    }
}
