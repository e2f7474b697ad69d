//! RoCEv2 over UDP on the loopback interface, beside the same link without a transport.
//!
//! Bandwidth: both ends in one thread. The limit is what the link alone does with as many bytes: bursts
//! of full packets out of one buffer that stays in the cache, received and dropped, with no headers to
//! make, no ICRC, no copy into memory and no acknowledgement. Latency: two threads that poll, half a
//! round trip, beside one small packet each way.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};

use futures::executor::block_on;
use hca_sim::link::{Burst, PacketLink, Route, Sent, Udp};
use hca_sim::{Hca, connect};
use verbs_core::{Mr, Qp, QpInit, Recv, Send, Write};

use super::Stage;
use super::bed::{Bed, Poller};
use super::duel::{self, Duel, Party};
use super::error::BenchError;
use super::machine::Patience;
use super::method::{Figures, Method, Subject};
use super::table::{Beside, Row};

/// Payload bytes of a full packet.
const MTU: usize = 4096;
/// Bytes of a full packet without RETH: BTH, payload, ICRC.
const PACKET: usize = 12 + MTU + 4;
/// Full packets that one system call sends.
const BURST: usize = 15;
/// Regions that are written: one that second-level caches hold, and one that they do not.
const REGIONS: [usize; 2] = [256 << 10, 4 << 20];
/// Bytes of the small messages, and of the packet that carries one.
const SMALL: usize = 64;
const SMALL_PACKET: usize = 12 + SMALL + 4;
/// Work requests on a queue.
const DEPTH: u32 = 64;
/// Receives posted ahead.
const AHEAD: u64 = 16;
/// A round trip counts as two messages one way.
const WAYS: u64 = 2;

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
    let duels = vec![packets()?, sends()?];
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
    let ends = RefCell::new(ends(hosts, bytes)?);
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
    let write = |times: u64| {
        let [a, b] = &mut *ends.borrow_mut();
        let (ours, theirs) = (a.mr.slice(0..bytes), b.mr.remote(0));
        for _ in 0..times {
            a.qp.post_send(Write::new(1, theirs).from(ours).signaled())?;
            let mut patience = Patience::new("a WRITE");
            while a.cq.poll(1)?.is_empty() {
                // The responder is in this thread too; nothing completes there.
                b.cq.poll(1)?;
                patience.lose()?;
            }
        }
        Ok(())
    };
    let subjects = &mut [Subject::alone(1, raw), Subject::alone(1, write)];
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

/// A small SEND there and one back.
fn sends<'a>() -> Result<Duel<'a>, BenchError> {
    let [a, b] = ends([7, 8], 2 * MTU)?;
    let party = |mut end: End, begins: bool| -> Result<Party<'a>, BenchError> {
        for _ in 0..AHEAD {
            end.expect()?;
        }
        Ok(Box::new(move |times| {
            for _ in 0..times {
                if begins {
                    end.send()?;
                }
                end.receive()?;
                if !begins {
                    end.send()?;
                }
            }
            Ok(())
        }))
    };
    Ok(Duel {
        units: WAYS,
        here: party(a, true)?,
        there: party(b, false)?,
    })
}

/// One end of a connection over UDP, with one completion queue.
struct End {
    qp: Qp,
    cq: Poller,
    mr: Mr,
    sent: u64,
}

impl End {
    fn expect(&mut self) -> Result<(), BenchError> {
        let recv = Recv::new(0).into(self.mr.slice(MTU..MTU + SMALL));
        Ok(self.qp.post_recv(recv)?)
    }

    fn send(&mut self) -> Result<(), BenchError> {
        self.sent += 1;
        let send = Send::new(1).from(self.mr.slice(0..SMALL));
        // One in so many is signalled, so that the queue gets its entries back.
        let signaled = self.sent.is_multiple_of(16);
        Ok(self
            .qp
            .post_send(if signaled { send.signaled() } else { send })?)
    }

    fn receive(&mut self) -> Result<(), BenchError> {
        let mut patience = Patience::new("a message");
        loop {
            if let [wc] = self.cq.poll(1)?
                && wc.wr_id == 0
            {
                return self.expect();
            }
            patience.lose()?;
        }
    }
}

fn bind(last: u8) -> Result<Udp, BenchError> {
    Udp::bind(&[host(last)]).map_err(BenchError::Link)
}

/// Two ends that are connected to each other, each with so many bytes of memory.
fn ends(hosts: [u8; 2], bytes: usize) -> Result<[End; 2], BenchError> {
    let [mut a, mut b] = [end(hosts[0], bytes)?, end(hosts[1], bytes)?];
    block_on(connect(&mut a.qp, &mut b.qp)).map_err(BenchError::verb("connect two queue pairs"))?;
    Ok([a, b])
}

fn end(last: u8, bytes: usize) -> Result<End, BenchError> {
    let bed = Bed::on(Hca::over(bind(last)?))?;
    let cq = bed.cq(2 * DEPTH)?;
    let init = QpInit::rc(&cq, &cq).depth(DEPTH, DEPTH);
    let qp = block_on(async { bed.pd.create_qp(init).await })
        .map_err(BenchError::verb("create a queue pair"))?;
    Ok(End {
        qp,
        cq: Poller::new(cq),
        mr: bed.memory(bytes)?,
        sent: 0,
    })
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
