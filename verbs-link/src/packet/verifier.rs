//! Checks that received packets are as their senders made them, by the ICRC, which covers an identification that the
//! system may hide.
//!
//! A hidden identification is solved for, which leaves 16 bits of the ICRC to check the packet. The result must also be
//! plausible: senders count packets up, so it is close behind the last one of that peer, or it is a small number, as
//! this crate's are. Together that is 24 to 25 bits.

use std::net::IpAddr;
use std::time::Duration;

use crate::time::Instant;
use crate::{Arrival, Ident, Local};
use verbs_wire::Seal;

/// The result of checking a packet's ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It equals the computed one: the identification was known, or there is none. Or the packet needs no ICRC.
    Exact,
    /// It is right if the sender had this identification.
    Solved {
        /// The identification.
        ident: u16,
        /// Whether the peer may well have had it.
        plausible: bool,
    },
    /// The packet is damaged, or not a packet of RoCEv2; it has to be dropped.
    Bad,
}

impl Verdict {
    /// Whether the packet may be used.
    pub const fn is_good(self) -> bool {
        !matches!(self, Self::Bad)
    }
}

/// How many packets failed the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IcrcCounters {
    /// Packets whose ICRC is wrong, and in strict mode those that are only weakly checked.
    pub bad: u64,
    /// Packets whose ICRC is right for an identification that is not plausible.
    pub weak: u64,
}

/// Checks packets, and remembers the identifications of peers.
#[derive(Debug)]
pub struct Verifier {
    /// Peers, in sets of [`WAYS`]; a peer's set follows from its address.
    peers: Box<[Option<Peer>]>,
    /// Where the peer of the last packet is: the next one is most often from the same.
    latest: usize,
    is_strict: bool,
    counters: IcrcCounters,
}

/// Peers that share a set. The one longest silent makes room for another.
const WAYS: usize = 4;
/// Sets; a peer that is forgotten has at most one weak packet again.
const SETS: usize = 256;
/// The largest identification of this crate's packets, since a burst has no more packets.
const OWN_MAX: u16 = 127;
/// How far packets overtake each other: by 4 with rxe on two processors, by 33 in a disturbed network.
const WINDOW: u64 = 64;
/// The most that Linux may add after a pause: a step per tick of 1 ms.
const STEPS_PER_SECOND: u64 = 1000;

/// A peer, from one of its addresses to one of ours: Linux counts by that pair.
#[derive(Clone, Copy, Debug)]
struct Peer {
    src: IpAddr,
    dst: IpAddr,
    /// The port that `seal` is for.
    sport: u16,
    seal: Seal,
    last: Option<Last>,
    seen: Instant,
}

/// Where a peer's counter was.
#[derive(Clone, Copy, Debug)]
struct Last {
    ident: u16,
    dont_fragment: bool,
    at: Instant,
}

impl Default for Verifier {
    fn default() -> Self {
        Self::new()
    }
}

impl Verifier {
    /// A verifier that knows no peers, and accepts weakly checked packets.
    pub fn new() -> Self {
        Self {
            peers: vec![None; SETS * WAYS].into(),
            latest: 0,
            is_strict: false,
            counters: IcrcCounters::default(),
        }
    }

    /// Drops packets with an implausible identification, except the first of a peer: when it is repeated, its
    /// identification is close to that of the first.
    pub fn strict(mut self) -> Self {
        self.is_strict = true;
        self
    }

    /// The counters of failed checks.
    pub fn counters(&self) -> IcrcCounters {
        self.counters
    }

    /// Checks a packet that arrived `now`. Peers are remembered within bounds.
    pub fn check(&mut self, arrival: &Arrival<'_>, now: Instant) -> Verdict {
        if let Some(local) = &arrival.local {
            return self.check_local(local, arrival);
        }
        if arrival.ident == Ident::Unsealed {
            return Verdict::Exact;
        }
        let is_strict = self.is_strict;
        let verdict = match self.peer(arrival, now) {
            None => Verdict::Bad,
            Some(peer) => match arrival.ident {
                Ident::Known(ident) if peer.seal.verify(ident, arrival.bytes) => Verdict::Exact,
                Ident::Known(_) => Verdict::Bad,
                Ident::Hidden => peer.solve(arrival.bytes, now, is_strict),
                Ident::Unsealed => Verdict::Exact,
            },
        };
        match verdict {
            Verdict::Bad => self.counters.bad += 1,
            Verdict::Solved {
                plausible: false, ..
            } => self.counters.weak += 1,
            _ => {}
        }
        verdict
    }

    /// A packet with the ICRC of InfiniBand, which hides nothing.
    fn check_local(&mut self, local: &Local, arrival: &Arrival<'_>) -> Verdict {
        let icrc = local.icrc(arrival.src, arrival.dst, arrival.bytes.len());
        if icrc.is_some_and(|icrc| icrc.verify(arrival.bytes).is_ok()) {
            return Verdict::Exact;
        }
        self.counters.bad += 1;
        Verdict::Bad
    }

    /// The known state of the sender; `None` if it is of another family than the receiver.
    fn peer(&mut self, arrival: &Arrival<'_>, now: Instant) -> Option<&mut Peer> {
        let Arrival {
            src, dst, sport, ..
        } = *arrival;
        let is_it = |peer: &Option<Peer>| {
            peer.as_ref()
                .is_some_and(|peer| peer.src == src && peer.dst == dst)
        };
        if !self.peers.get(self.latest).is_some_and(is_it) {
            self.latest = self.find_peer(arrival, now, is_it)?;
        }
        let peer = self.peers.get_mut(self.latest)?.as_mut()?;
        if peer.sport != sport {
            peer.seal = Seal::new(src, dst, sport)?;
            peer.sport = sport;
        }
        peer.seen = now;
        Some(peer)
    }

    /// Where that peer is, which may be new; it takes the place of the one that was seen longest ago.
    fn find_peer(
        &mut self,
        arrival: &Arrival<'_>,
        now: Instant,
        is_it: impl Fn(&Option<Peer>) -> bool,
    ) -> Option<usize> {
        let Arrival {
            src, dst, sport, ..
        } = *arrival;
        let first = set(src, dst) * WAYS;
        let ways = &mut self.peers[first..first + WAYS];
        let way = match ways.iter().position(is_it) {
            Some(way) => way,
            None => {
                let seal = Seal::new(src, dst, sport)?;
                let seen = |way: &usize| ways[*way].as_ref().map(|peer| peer.seen);
                let way = (0..WAYS).min_by_key(seen)?;
                ways[way] = Some(Peer {
                    src,
                    dst,
                    sport,
                    seal,
                    last: None,
                    seen: now,
                });
                way
            }
        };
        Some(first + way)
    }
}

impl Peer {
    fn solve(&mut self, packet: &[u8], now: Instant, is_strict: bool) -> Verdict {
        let Some(solution) = self.seal.solve(packet) else {
            return Verdict::Bad;
        };
        let ident = solution.identification;
        let is_own_kind = ident <= OWN_MAX && solution.dont_fragment;
        let is_first = self.last.is_none();
        let is_close = self.last.is_some_and(|last| {
            last.dont_fragment == solution.dont_fragment
                && u64::from(distance(ident, last.ident)) <= window(now - last.at)
        });
        // A small number that is not close says nothing about a counter's value. Any other does, even if the packet is
        // dropped: then its repetition is close.
        if is_close || is_first || !is_own_kind {
            self.last = Some(Last {
                ident,
                dont_fragment: solution.dont_fragment,
                at: now,
            });
        }
        let plausible = is_close || is_own_kind;
        if is_strict && !plausible && !is_first {
            return Verdict::Bad;
        }
        Verdict::Solved { ident, plausible }
    }
}

/// How far apart two identifications are, in either direction.
fn distance(a: u16, b: u16) -> u16 {
    let forward = a.wrapping_sub(b);
    forward.min(forward.wrapping_neg())
}

/// How far an identification may be from one that was seen that long ago.
fn window(idle: Duration) -> u64 {
    let millis = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
    WINDOW.saturating_add(millis.saturating_mul(STEPS_PER_SECOND) / 1000)
}

/// The set that a pair of addresses belongs to.
fn set(src: IpAddr, dst: IpAddr) -> usize {
    let number = |address| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    // Multiplying by an odd number with many ones carries every bit into the upper ones.
    let mixed = (number(src) ^ number(dst).rotate_left(64))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    (mixed >> 120) as usize % SETS
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs_wire::ROCE_PORT;

    const SRC: &str = "192.0.2.2";

    /// A packet from that address with that identification; its length is that of an ACK.
    fn packet(src: &str, ident: u16) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..16).collect();
        let seal = Seal::new(src.parse().unwrap(), dst(), ROCE_PORT).unwrap();
        bytes.extend(seal.icrc(ident, &bytes).to_le_bytes());
        bytes
    }

    fn dst() -> IpAddr {
        "192.0.2.1".parse().unwrap()
    }

    fn check(verifier: &mut Verifier, src: &str, bytes: &[u8], ms: u64) -> Verdict {
        let arrival = Arrival {
            src: src.parse().unwrap(),
            dst: dst(),
            sport: ROCE_PORT,
            tclass: 0,
            ident: Ident::Hidden,
            bytes,
            long: None,
            local: None,
        };
        verifier.check(&arrival, Instant::from_nanos(ms * 1_000_000))
    }

    fn solved(ident: u16, plausible: bool) -> Verdict {
        Verdict::Solved { ident, plausible }
    }

    #[test]
    fn a_counting_peer_is_followed() {
        let mut verifier = Verifier::new();
        let steps = [
            (65_500, 0, false), // the first is unknown
            (65_501, 0, true),
            (27, 1, true),  // round, by 62
            (120, 1, true), // small, like this crate's, but too far for a counter
            (90, 1, true),
            (154, 1, true),     // by 64
            (219, 1, false),    // by 65
            (283, 1, true),     // followed nevertheless
            (1347, 1001, true), // a thousand for a second
            (2412, 2001, false),
        ];
        for (ident, ms, plausible) in steps {
            let got = check(&mut verifier, SRC, &packet(SRC, ident), ms);
            assert_eq!(got, solved(ident, plausible), "{ident}");
        }
        let counters = IcrcCounters { bad: 0, weak: 3 };
        assert_eq!(verifier.counters(), counters);
    }

    #[test]
    fn strict_means_that_an_implausible_packet_must_be_repeated() {
        let mut verifier = Verifier::new().strict();
        let mut judge = |ident| check(&mut verifier, SRC, &packet(SRC, ident), 0);
        assert_eq!(judge(5000), solved(5000, false), "the first");
        assert_eq!(judge(9000), Verdict::Bad);
        assert_eq!(judge(9001), solved(9001, true), "its repetition");
        assert_eq!(judge(9000), solved(9000, true));
        assert_eq!(verifier.counters(), IcrcCounters { bad: 1, weak: 1 });
    }

    /// Goal: a packet without DF is no sign of damage if the peer never sets it.
    #[test]
    fn a_peer_may_leave_df_out_but_not_now_and_then() {
        let mut verifier = Verifier::new();
        let envelope = |identification, dont_fragment| verbs_wire::Envelope {
            net: verbs_wire::Net::V4 {
                src: [192, 0, 2, 2].into(),
                dst: [192, 0, 2, 1].into(),
                identification,
                dont_fragment,
            },
            ..verbs_wire::Envelope::v4([0; 4].into(), [0; 4].into(), ROCE_PORT)
        };
        let mut judge = |identification, dont_fragment| {
            let mut bytes: Vec<u8> = (0..16).collect();
            let icrc = envelope(identification, dont_fragment).icrc(20).unwrap();
            bytes.extend(icrc.compute(&bytes).unwrap().to_le_bytes());
            check(&mut verifier, SRC, &bytes, 0)
        };
        assert_eq!(judge(50, false), solved(50, false));
        assert_eq!(judge(51, false), solved(51, true));
        assert_eq!(judge(52, true), solved(52, true), "as ours");
        assert_eq!(judge(700, true), solved(700, false));
    }

    #[test]
    fn what_is_known_must_be_right() {
        let mut verifier = Verifier::new();
        let bytes = packet(SRC, 3);
        let mut judge = |ident| {
            let arrival = Arrival {
                src: SRC.parse().unwrap(),
                dst: dst(),
                sport: ROCE_PORT,
                tclass: 0,
                ident,
                bytes: &bytes,
                long: None,
                local: None,
            };
            verifier.check(&arrival, Instant::ZERO)
        };
        assert_eq!(judge(Ident::Known(3)), Verdict::Exact);
        assert_eq!(judge(Ident::Known(2)), Verdict::Bad);
        assert_eq!(judge(Ident::Hidden), solved(3, true));
        assert_eq!(verifier.counters(), IcrcCounters { bad: 1, weak: 0 });
    }

    /// Goal: peers are kept apart, in bounded memory; the one that is forgotten is the one longest
    /// silent of its set.
    #[test]
    fn many_peers_are_remembered_and_no_more() {
        let mut verifier = Verifier::new();
        let peers: Vec<_> = (0..200).map(|i| format!("10.1.0.{i}")).collect();
        for round in 0..3 {
            for (i, peer) in (0..).zip(&peers) {
                let ident = 1000 + 300 * i + round;
                let got = check(&mut verifier, peer, &packet(peer, ident), 0);
                assert_eq!(got, solved(ident, round > 0), "{peer}");
            }
        }
        for i in 0..5000 {
            let peer = format!("10.2.{}.{}", i / 250, i % 250);
            check(&mut verifier, &peer, &packet(&peer, 1000), 1);
        }
        assert_eq!(verifier.peers.len(), SETS * WAYS);
        assert!(verifier.peers.iter().all(Option::is_some), "all are used");
    }

    /// Goal: damage is accepted as rarely as arithmetic says: 16 bits by solving, 24 with the window. Method: noise in
    /// place of packets from a peer whose counter is known.
    #[test]
    fn noise_is_accepted_as_rarely_as_it_should_be() {
        let mut verifier = Verifier::new();
        let mut rng = crate::rng::Rng::new(7);
        check(&mut verifier, SRC, &packet(SRC, 30_000), 0);
        let (mut solved, mut plausible) = (0, 0);
        let trials = 150_000;
        for _ in 0..trials {
            let mut bytes = packet(SRC, 30_000);
            bytes[12..].copy_from_slice(&rng.draw().to_ne_bytes());
            if let Verdict::Solved { plausible: is, .. } = check(&mut verifier, SRC, &bytes, 0) {
                solved += 1;
                plausible += u32::from(is);
                // The counter has followed the noise; the peer continues.
                check(&mut verifier, SRC, &packet(SRC, 30_000), 0);
            }
        }
        // With DF or, on a peer that sets it, weakly without: two in 2^16.
        assert!((1..=15).contains(&solved), "{solved} of {trials}");
        assert_eq!(plausible, 0);
    }
}
