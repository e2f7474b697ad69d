//! Checks whether packets arrive whole over the UDP link, and prints what this machine knows of the route.
//!
//! ```text
//! udp_route receive 10.9.0.2 5 15           for five seconds, or until 15 packets have come
//! udp_route send 10.9.0.1 10.9.0.2          on another machine, or in another network namespace
//! ```
//!
//! The sender sends three bursts of five packets. Both print a line of `name=value` pairs: the sender how many packets
//! a burst may have before and after, the receiver how many packets arrived, how many of them had the ICRC that was
//! expected for their number in the burst, and how many were merged.

use std::env;
use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use hca_sim::Udp;
use hca_sim::clock::{Clock, Instant};
use hca_sim::link::{Burst, PacketLink, Route, Verdict, Verifier};
use hca_sim::wire::{ROCE_PORT, Seal};

/// Bytes of a packet: 1024 of payload, BTH and ICRC.
const PACKET_LEN: usize = 1024 + 12 + 4;
/// Packets of a burst.
const BURST: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["receive", address, seconds, packets] => {
            let duration = Duration::from_secs(seconds.parse()?);
            receive(address.parse()?, duration, packets.parse()?)
        }
        ["send", src, dst] => send(src.parse()?, dst.parse()?),
        _ => Err("udp_route receive ADDRESS SECONDS PACKETS | udp_route send FROM TO".into()),
    }
}

fn send(src: IpAddr, dst: IpAddr) -> Result<(), Box<dyn Error>> {
    let mut link = Udp::bind(&[src])?;
    let route = Route {
        src,
        dst,
        tclass: 0,
        hop_limit: 64,
        local: None,
    };
    let seal = Seal::new(src, dst, ROCE_PORT).ok_or("only one of the addresses is IPv4")?;
    let before = link.burst_limit(&route);
    for _ in 0..3 {
        let mut bytes = vec![0x5a; BURST * PACKET_LEN];
        for (k, packet) in (0..).zip(bytes.chunks_mut(PACKET_LEN)) {
            let (covered, icrc) = packet.split_at_mut(PACKET_LEN - 4);
            icrc.copy_from_slice(&seal.icrc(k, covered).to_le_bytes());
        }
        link.transmit(&Burst {
            route,
            segment: PACKET_LEN,
            bytes: &bytes,
        });
        link.receive(&mut |_| ());
    }
    let counters = link.counters();
    println!(
        "mtu={} before={before} after={} sent={} errors={} errno={}",
        link.mtu().bytes(),
        link.burst_limit(&route),
        counters.packets_sent,
        counters.send_errors,
        counters.send_errno.unwrap_or(0),
    );
    Ok(())
}

fn receive(address: IpAddr, duration: Duration, packets: usize) -> Result<(), Box<dyn Error>> {
    let mut link = Udp::bind(&[address])?;
    let waiter = link.waiter().ok_or("nothing to wait with")?;
    let clock = Clock::wall();
    let end = clock.now() + duration;
    let mut verifier = Verifier::new();
    let (mut right, mut next) = (0, 0);
    loop {
        let now = clock.now();
        if now >= end || next >= packets {
            break;
        }
        waiter.wait(Some(end - now), true);
        link.receive(&mut |arrival| {
            right += match verifier.check(arrival, Instant::ZERO) {
                Verdict::Exact => 1,
                Verdict::Solved { ident, .. } => u32::from(usize::from(ident) == next % BURST),
                Verdict::Bad => 0,
            };
            next += 1;
        });
        while let Some(change) = link.change() {
            println!("{change:?}");
        }
    }
    let counters = link.counters();
    println!(
        "came={} right={right} merged={}",
        counters.packets_received, counters.gro_segments
    );
    Ok(())
}
