//! The cost of a packet over the UDP link: one thread sends and receives over the loopback interface.
//!
//! `cargo run --release -p hca-sim --example udp_packets`
//!
//! The lines differ in one respect each: the system calls alone, the link with single packets, the link with bursts,
//! and bursts whose ICRCs are computed by the sender and checked by the receiver, which knows their identifications or
//! has to solve for them. Times are the medians of several rounds.

use std::error::Error;
use std::net::{IpAddr, UdpSocket};

use hca_sim::Udp;
use hca_sim::clock::{Clock, Instant};
use hca_sim::link::{Arrival, Burst, Ident, PacketLink, Route, Sent, Verifier};
use hca_sim::wire::{ROCE_PORT, Seal};

/// Payload of 4096 bytes, BTH and ICRC.
const PACKET_LEN: usize = 4096 + 12 + 4;
/// Packets of the longest burst that fits a datagram.
const BURST: usize = 15;
/// Packets of a round.
const PACKETS: usize = 15_000;
/// The number of rounds; the median counts.
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let clock = Clock::wall();
    let (here, there): (IpAddr, IpAddr) = ("127.77.200.1".parse()?, "127.77.200.2".parse()?);
    let sockets = [(here, 0), (there, 0)].map(UdpSocket::bind);
    let [from, to] = sockets;
    let (from, to) = (from?, to?);
    let address = to.local_addr()?;
    let mut room = vec![0; 65_536];
    let bytes = vec![0x5a; PACKET_LEN];
    report("send_to and recv_from", &clock, || {
        for _ in 0..PACKETS {
            from.send_to(&bytes, address)?;
            to.recv_from(&mut room)?;
        }
        Ok(())
    })?;

    let mut links = Links {
        sender: Udp::bind(&[here])?,
        receiver: Udp::bind(&[there])?,
        route: Route {
            src: here,
            dst: there,
            tclass: 0,
            hop_limit: 64,
            local: None,
        },
        bytes: vec![0x5a; BURST * PACKET_LEN],
    };
    report("link, one by one", &clock, || {
        links.carry(1, None, &mut |_| true)
    })?;
    report("link, bursts of 15", &clock, || {
        links.carry(BURST, None, &mut |_| true)
    })?;
    let seal = Seal::new(here, there, ROCE_PORT).ok_or("two families")?;
    let mut verifier = Verifier::new();
    report("same, sealed and verified", &clock, || {
        let mut check = |arrival: &Arrival<'_>| verifier.check(arrival, Instant::ZERO).is_good();
        links.carry(BURST, Some(seal), &mut check)
    })?;
    let mut verifier = Verifier::new();
    report("same, identifications solved for", &clock, || {
        let mut check = |arrival: &Arrival<'_>| {
            let hidden = Arrival {
                ident: Ident::Hidden,
                ..*arrival
            };
            verifier.check(&hidden, Instant::ZERO).is_good()
        };
        links.carry(BURST, Some(seal), &mut check)
    })
}

/// Two ends and the packets between them.
struct Links {
    sender: Udp,
    receiver: Udp,
    route: Route,
    bytes: Vec<u8>,
}

impl Links {
    /// Carries the packets of a round in bursts; with a seal, every packet gets its ICRC.
    fn carry(
        &mut self,
        burst: usize,
        seal: Option<Seal>,
        check: &mut dyn FnMut(&Arrival<'_>) -> bool,
    ) -> Result<(), Box<dyn Error>> {
        let bytes = &mut self.bytes[..burst * PACKET_LEN];
        for _ in 0..PACKETS / burst {
            if let Some(seal) = seal {
                for (k, packet) in (0..).zip(bytes.chunks_mut(PACKET_LEN)) {
                    let (covered, icrc) = packet.split_at_mut(PACKET_LEN - 4);
                    icrc.copy_from_slice(&seal.icrc(k, covered).to_le_bytes());
                }
            }
            let burst = Burst {
                route: self.route,
                segment: PACKET_LEN,
                bytes,
            };
            if self.sender.transmit(&burst) != Sent::Gone {
                return Err("no room".into());
            }
            let mut good = 0;
            while good < burst.packets().len() {
                let got = self
                    .receiver
                    .receive(&mut |arrival| good += usize::from(check(arrival)));
                if got == 0 {
                    return Err(format!("lost or damaged: {:?}", self.receiver.counters()).into());
                }
            }
        }
        Ok(())
    }
}

/// Prints the nanoseconds per packet of the median round.
fn report(
    name: &str,
    clock: &Clock,
    mut round: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut nanos = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let before = clock.now();
        round()?;
        nanos.push((clock.now() - before).as_nanos());
    }
    nanos.sort_unstable();
    let per_packet = nanos[ROUNDS / 2] / PACKETS as u128;
    println!("{name:34} {per_packet:5} ns per packet of 4096 bytes");
    Ok(())
}
