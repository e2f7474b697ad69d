//! Whether packets came as they were sent.
//!
//! The ICRC covers the IP header's identification, which the system hides from sockets over IPv4. It is
//! solved for ([`Seal::solve`]), which leaves 16 of the 32 bits to check the packet with. What remains
//! is made up for by knowing what identifications look like: a sender of ours numbers the packets of a
//! burst from 0, and Linux counts packets per pair of hosts, so the next is close to the last. One that
//! is neither is counted as weak.

use std::net::IpAddr;
use std::time::Duration;

use arrayvec::ArrayVec;

use crate::clock::Instant;
use crate::link::{Arrival, Ident};
use crate::port::Counters;
use crate::wire::{ROCE_PORT, Seal};

/// Identifications that packets of a burst have.
const BURST_IDENTS: u16 = 128;
/// How far identifications of packets that follow each other are apart, as measured under reordering.
const NEAR: u64 = 64;
/// How far they may have moved on for each second without a packet: Linux adds a random share of the
/// clock ticks since it used the counter last, of which there are at most so many.
const TICKS: u64 = 1_000;
/// Peers that are remembered. Beyond that the one that was heard longest ago is forgotten, which makes
/// its next packet weak and nothing else.
const PEERS_MAX: usize = 64;

/// The check of arriving packets, and what it remembers.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    peers: ArrayVec<Peer, PEERS_MAX>,
    /// Where the last packet's was found.
    last: usize,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    src: IpAddr,
    dst: IpAddr,
    sport: u16,
    seal: Seal,
    /// The last identification that was solved for.
    ident: Option<u16>,
    heard: Instant,
}

impl Inbox {
    /// Whether the packet's ICRC is right, as far as that can be known.
    pub(crate) fn accept(
        &mut self,
        arrival: &Arrival<'_>,
        now: Instant,
        counters: &Counters,
    ) -> bool {
        let Some(peer) = self.peer(arrival, now) else {
            return false;
        };
        let idle = now - peer.heard;
        peer.heard = now;
        if let Ident::Known(ident) = arrival.ident {
            return peer.seal.verify(ident, arrival.bytes);
        }
        let Some(solution) = peer.seal.solve(arrival.bytes) else {
            return false;
        };
        let ident = solution.identification;
        let last = peer.ident.replace(ident);
        if !(solution.dont_fragment && is_plausible(ident, last, idle)) {
            counters.weak_icrcs.up();
        }
        true
    }

    /// What is known of the flow; entered if it is new.
    fn peer(&mut self, arrival: &Arrival<'_>, now: Instant) -> Option<&mut Peer> {
        let is = |peer: &Peer| {
            peer.src == arrival.src && peer.dst == arrival.dst && peer.sport == arrival.sport
        };
        if !self.peers.get(self.last).is_some_and(is) {
            let known = self.peers.iter().position(is);
            self.last = match known {
                Some(at) => at,
                None => self.enter(arrival, now)?,
            };
        }
        self.peers.get_mut(self.last)
    }

    fn enter(&mut self, arrival: &Arrival<'_>, now: Instant) -> Option<usize> {
        let peer = Peer {
            src: arrival.src,
            dst: arrival.dst,
            sport: arrival.sport,
            seal: Seal::new(arrival.src, arrival.dst, arrival.sport)?,
            ident: None,
            heard: now,
        };
        let Err(full) = self.peers.try_push(peer) else {
            return Some(self.peers.len() - 1);
        };
        let oldest = self
            .peers
            .iter()
            .enumerate()
            .min_by_key(|(_, peer)| peer.heard);
        let at = oldest.map(|(at, _)| at)?;
        self.peers[at] = full.element();
        Some(at)
    }
}

/// Whether a sender that had `last` may have come to `ident` meanwhile.
fn is_plausible(ident: u16, last: Option<u16>, idle: Duration) -> bool {
    if ident < BURST_IDENTS {
        return true;
    }
    let Some(last) = last else { return false };
    let apart = u64::from(ident.wrapping_sub(last).cast_signed().unsigned_abs());
    apart <= NEAR + TICKS * idle.as_millis() as u64 / 1_000
}

/// The seal of the last route that packets left by.
#[derive(Debug, Default)]
pub(crate) struct Seals {
    last: Option<(IpAddr, IpAddr, Seal)>,
}

impl Seals {
    /// The seal of packets between these addresses; `None` if they are not of one family.
    pub(crate) fn of(&mut self, src: IpAddr, dst: IpAddr) -> Option<Seal> {
        match self.last {
            Some((from, to, seal)) if from == src && to == dst => Some(seal),
            _ => {
                let seal = Seal::new(src, dst, ROCE_PORT)?;
                self.last = Some((src, dst, seal));
                Some(seal)
            }
        }
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::wire::{Bth, BthFlags, Extended, Head, Icrc, Opcode, Operation, Service};

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const US: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    /// A SEND of 64 bytes with that identification.
    fn packet(ident: u16) -> Vec<u8> {
        let bth = Bth {
            opcode: Opcode::new(Service::Rc, Operation::SendOnly).unwrap(),
            flags: BthFlags::empty(),
            pkey: verbs_core::PKey::DEFAULT,
            dest_qpn: verbs_core::Qpn::new(17),
            psn: verbs_core::Psn::new(1),
        };
        let mut bytes = vec![7; 12 + 64 + Icrc::LEN];
        let head = Head::new(bth, Extended::default()).unwrap();
        head.emit(64, &mut bytes).unwrap();
        let (covered, icrc) = bytes.split_last_chunk_mut::<4>().unwrap();
        let seal = Seal::new(PEER, US, 49_152).unwrap();
        *icrc = seal.icrc(ident, covered).to_le_bytes();
        bytes
    }

    fn accept(inbox: &mut Inbox, ident: Ident, bytes: &[u8], at: u64) -> (bool, u64) {
        let counters = Counters::default();
        let arrival = Arrival {
            src: PEER,
            dst: US,
            sport: 49_152,
            tclass: 0,
            ident,
            bytes,
        };
        let accepted = inbox.accept(&arrival, Instant::from_nanos(at), &counters);
        (accepted, counters.weak_icrcs.get())
    }

    #[test]
    fn identifications_are_solved_for_and_judged() {
        let mut inbox = Inbox::default();
        let steps = [
            (0, 0, 0, "a sender of ours"),
            (40_000, 1, 1, "the first of a counter"),
            (40_001, 2, 0, "the next"),
            (39_990, 3, 0, "reordered"),
            (45_000, 4, 1, "too far ahead"),
            (46_900, 2_000_000_000, 0, "not too far after two seconds"),
        ];
        for (ident, at, weak, what) in steps {
            let got = accept(&mut inbox, Ident::Hidden, &packet(ident), at);
            assert_eq!(got, (true, weak), "{what}");
        }
    }

    #[test]
    fn a_damaged_packet_is_refused_and_a_known_identification_must_be_right() {
        let mut inbox = Inbox::default();
        let mut bytes = packet(3);
        assert_eq!(accept(&mut inbox, Ident::Known(3), &bytes, 0), (true, 0));
        assert_eq!(accept(&mut inbox, Ident::Known(4), &bytes, 0), (false, 0));
        bytes[30] ^= 4;
        assert_eq!(accept(&mut inbox, Ident::Hidden, &bytes, 0), (false, 0));
    }

    #[test]
    fn more_peers_than_are_remembered_are_heard_all_the_same() {
        let mut inbox = Inbox::default();
        let bytes = packet(0);
        for port in 0..3 * PEERS_MAX as u16 {
            let arrival = Arrival {
                src: PEER,
                dst: US,
                sport: port,
                tclass: 0,
                ident: Ident::Known(0),
                bytes: &bytes,
            };
            let now = Instant::from_nanos(u64::from(port));
            // The port is covered, so all but one are wrong; what counts is that none is turned away.
            let _ = inbox.accept(&arrival, now, &Counters::default());
        }
        assert_eq!(inbox.peers.len(), PEERS_MAX);
        assert_eq!(
            accept(&mut inbox, Ident::Known(0), &bytes, 1_000),
            (true, 0)
        );
    }
}
