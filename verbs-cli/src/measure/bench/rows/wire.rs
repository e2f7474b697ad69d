//! RoCEv2 over UDP on the loopback interface, beside the same link without a transport.
//!
//! Bandwidth: both ends in one thread. The limit is what the link alone does with as many bytes: bursts
//! of full packets out of one buffer that stays in the cache, received and dropped, with no headers to
//! make, no ICRC, no copy into memory and no acknowledgement. Latency: two threads that poll, half a
//! round trip, beside one small packet each way.

pub(crate) mod iwarp;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};

use hca_sim::Hca;
use hca_sim::link::{Burst, PacketLink, Route, Sent, Udp};

use super::Stage;
use super::bed::Bed;
use super::duel::{self, Duel, Party, WAYS};
use super::error::BenchError;
use super::far::{End, MTU, SMALL, ends, sends, write};
use super::machine::Patience;
use super::method::{Figures, Method, Subject};
use super::table::{Beside, Row};

/// Bytes of a full packet without RETH: BTH, payload, ICRC.
const PACKET: usize = 12 + MTU + 4;
/// Full packets that one system call sends.
const BURST: usize = 15;
/// Regions that are written: one that second-level caches hold, and one that they do not.
const REGIONS: [usize; 2] = [256 << 10, 4 << 20];
/// Bytes of the packet that carries a small message.
const SMALL_PACKET: usize = 12 + SMALL + 4;
/// An address that a run of this benchmark takes; a second one on the machine is told so.
const fn host(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 91, 0, last))
}

/// Measures WRITE by region, and a small SEND one way.
pub(crate) fn run(stage: &Stage) -> Result<Vec<Row>, BenchError> {
    let method = stage.method.part_of(REGIONS.len() + 1);
    let mut rows = Vec::new();
    for (bytes, hosts) in REGIONS.into_iter().zip([[11, 12], [13, 14]]) {
        let [raw, write] = writes(method, bytes, hosts)?;
        let row = Row::new(stage.bench, "RDMA WRITE over UDP, CQE", write);
        let beside = Beside::new("the link alone", raw, write);
        rows.push(row.bytes(bytes).bandwidth().beside(beside));
    }
    let duels = vec![packets()?, sends(far([7, 8], 2 * MTU)?)?];
    let figures = duel::measure(method, &stage.machine, duels)?;
    let row = Row::new(stage.bench, "SEND over UDP, one way", figures[1]);
    let beside = Beside::new("the link alone", figures[0], figures[1]);
    rows.push(row.bytes(SMALL).threads(2).beside(beside));
    Ok(rows)
}

/// What the link alone takes for `bytes`, and what a WRITE of as many takes. `hosts` are taken once: an
/// HCA lets go of its sockets only when its thread has.
fn writes(method: Method, bytes: usize, hosts: [u8; 2]) -> Result<[Figures; 2], BenchError> {
    let links = RefCell::new([bind(1)?, bind(2)?]);
    let ends = far(hosts, bytes)?;
    let packets = vec![0x5a; BURST * PACKET];
    let raw = |times: u64| {
        let [from, to] = &mut *links.borrow_mut();
        for _ in 0..times {
            let mut left = bytes / MTU;
            while left != 0 {
                let count = left.min(BURST);
                transmit(from, [1, 2], &packets[..count * PACKET], PACKET)?;
                receive(to, count)?;
                left -= count;
            }
        }
        Ok(())
    };
    let subjects = &mut [
        Subject::alone(1, raw),
        Subject::alone(1, write(ends, bytes)),
    ];
    let figures = method.measure(subjects)?;
    Ok([figures[0], figures[1]])
}

/// The limit of latency: one packet there and one back.
fn packets<'a>() -> Result<Duel<'a>, BenchError> {
    let party = |hosts: [u8; 2], begins: bool| -> Result<Party<'a>, BenchError> {
        let mut link = bind(hosts[0])?;
        let packet = [0x5a; SMALL_PACKET];
        Ok(Box::new(move |times| {
            for _ in 0..times {
                if begins {
                    transmit(&mut link, hosts, &packet, SMALL_PACKET)?;
                }
                receive(&mut link, 1)?;
                if !begins {
                    transmit(&mut link, hosts, &packet, SMALL_PACKET)?;
                }
            }
            Ok(())
        }))
    };
    Ok(Duel {
        units: WAYS,
        here: party([5, 6], true)?,
        there: party([6, 5], false)?,
    })
}

/// Two ends over UDP that are connected to each other.
fn far(hosts: [u8; 2], bytes: usize) -> Result<[End; 2], BenchError> {
    let [a, b] = hosts;
    ends([bed(a)?, bed(b)?], bytes)
}

/// An HCA on an address of its own.
pub(crate) fn bed(last: u8) -> Result<Bed, BenchError> {
    Bed::on(Hca::over(bind(last)?))
}

fn bind(last: u8) -> Result<Udp, BenchError> {
    Udp::bind(&[host(last)]).map_err(BenchError::Link)
}

/// Sends packets from one address to the other.
fn transmit(
    link: &mut Udp,
    [src, dst]: [u8; 2],
    bytes: &[u8],
    segment: usize,
) -> Result<(), BenchError> {
    let route = Route {
        src: host(src),
        dst: host(dst),
        tclass: 0,
        hop_limit: 64,
        local: None,
    };
    let burst = Burst {
        route,
        segment,
        bytes,
    };
    let mut patience = Patience::new("room in a socket");
    while link.transmit(&burst) == Sent::Blocked {
        patience.lose()?;
    }
    Ok(())
}

/// Takes so many packets and drops them.
fn receive(link: &mut Udp, count: usize) -> Result<(), BenchError> {
    let mut patience = Patience::new("packets");
    let mut missing = count;
    while missing != 0 {
        missing = missing.saturating_sub(link.receive(&mut |_| {}));
        patience.lose()?;
    }
    Ok(())
}
