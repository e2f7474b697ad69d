//! Paths like those of Linux netem: 4 MiB get through in time, and without many needless packets.

use super::*;

const MS: u64 = 1_000_000;
/// Bytes that are transferred.
const TOTAL: u32 = 4 << 20;
/// Bytes of one message.
const MESSAGE: u32 = TOTAL / 8;

/// One direction of a path, described by the words of `tc qdisc add ... netem`.
#[derive(Clone, Copy, Default)]
pub(super) struct Netem {
    /// Nanoseconds, evenly within `jitter` of `delay`.
    delay: u64,
    jitter: u64,
    /// One packet in a thousand.
    loss: u32,
    duplicate: u32,
    /// Percent of the packets that may overtake others, at most one in `gap`.
    reorder: u32,
    gap: u32,
    count: u32,
    /// When the last packet has left the sender, at 1 Gbit/s.
    busy_until: u64,
}

impl Netem {
    /// When copies of a packet of that many bytes arrive.
    pub(super) fn carry(&mut self, now: u64, len: usize, rng: &mut Rng) -> Vec<u64> {
        self.busy_until = self.busy_until.max(now) + 8 * len as u64;
        let mut arrivals = Vec::new();
        if rng.within(0..1000) < self.loss {
            return arrivals;
        }
        for _ in 0..1 + u32::from(rng.within(0..1000) < self.duplicate) {
            let jitter = match self.jitter {
                0 => 0,
                most => u64::from(rng.within(0..(2 * most / 1000) as u32)) * 1000,
            };
            let may = self.gap != 0 && self.count + 1 >= self.gap;
            let overtakes = may && rng.within(0..100) < self.reorder;
            self.count = if overtakes { 0 } else { self.count + 1 };
            let late = self.delay - self.jitter + jitter;
            let late = if overtakes { 0 } else { late };
            arrivals.push(self.busy_until + 1_000 + late);
        }
        arrivals
    }
}

/// The cost of 4 MiB.
#[derive(Debug)]
struct Cost {
    ms: u64,
    /// Packets of the sender of the data, in percent of those that are needed.
    packets: usize,
}

/// 4 MiB in 8 messages over that path, to a peer that keeps early packets or does not.
fn cost(netem: Netem, reads: bool, keeps: bool, seed: u64) -> Cost {
    let mut pair = Pair::with(false, seed);
    pair.netem = Some([netem; 2]);
    pair.paths(|path| (path.timeout, path.retry_cnt) = (18, 7));
    if !keeps {
        pair.ends[1].rc.responder.early.room = 0;
    }
    let from = usize::from(reads);
    let bytes = pattern(seed, MESSAGE as usize);
    pair.ends[from].memory.write(0, &bytes).unwrap();
    for wr_id in 0..8 {
        let [ours, theirs] = &mut pair.ends;
        let (op, at) = match reads {
            true => (SendOp::Read(theirs.remote(0)), MESSAGE as usize),
            false => (SendOp::Write(theirs.remote(MESSAGE as usize)), 0),
        };
        let sges = [ours.sge(at, MESSAGE)];
        ours.post(wr(wr_id, op, &sges));
    }
    let mut ended = Vec::new();
    while ended.len() < 8 {
        assert!(pair.step(), "it hangs");
        ended.extend(pair.ends[0].send_statuses());
        assert!(pair.now < 120_000 * MS, "it takes more than two minutes");
    }
    let all: Vec<_> = (0..8).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(ended, all);
    let arrived = pair.ends[1 - from].bytes(MESSAGE as usize, MESSAGE as usize);
    assert!(arrived == bytes, "the data is another");
    let sent = pair.log.iter().filter(|(side, _, bytes)| {
        // Answers without data are not counted.
        *side == from && bytes.len() > 100
    });
    Cost {
        ms: pair.now / MS,
        packets: sent.count() * 100 / (TOTAL as usize / 1024),
    }
}

fn rows() -> [(&'static str, Netem); 8] {
    let plain = Netem::default();
    let delay = |ms| Netem {
        delay: ms * MS,
        ..plain
    };
    let loss = |loss| Netem { loss, ..plain };
    [
        ("none", plain),
        (
            "duplicate 5% corrupt 1%",
            Netem {
                duplicate: 50,
                loss: 10,
                ..plain
            },
        ),
        (
            "delay 10ms reorder 25% gap 5",
            Netem {
                reorder: 25,
                gap: 5,
                ..delay(10)
            },
        ),
        (
            "delay 20ms 10ms",
            Netem {
                jitter: 10 * MS,
                ..delay(20)
            },
        ),
        ("delay 20ms", delay(20)),
        ("loss 10%", loss(100)),
        ("loss 3%", loss(30)),
        (
            "delay 1ms loss 1%",
            Netem {
                loss: 10,
                ..delay(1)
            },
        ),
    ]
}

/// The highest cost of `seeds` runs over a path.
fn most(netem: Netem, reads: bool, keeps: bool, seeds: u64) -> Cost {
    let costs: Vec<_> = (0..seeds)
        .map(|seed| cost(netem, reads, keeps, seed))
        .collect();
    Cost {
        ms: costs.iter().map(|cost| cost.ms).max().unwrap(),
        packets: costs.iter().map(|cost| cost.packets).max().unwrap(),
    }
}

/// Goal: every row of networks that were once too slow, or never came to an end, is done within five seconds, and sends
/// few needless packets. Method: 4 MiB by WRITE and by READ over paths like those of netem, 5 seeds each, between two
/// machines that keep early packets.
#[test]
fn every_network_is_done_in_time() {
    // The bound on packets, in percent of those needed.
    let bounds = [101, 120, 115, 115, 101, 150, 115, 110];
    for ((name, netem), bound) in rows().into_iter().zip(bounds) {
        for reads in [false, true] {
            let cost = most(netem, reads, true, 5);
            println!("{name}, reads {reads}: {cost:?}");
            assert!(cost.ms <= 5000, "{name}, reads {reads}: {cost:?}");
            assert!(cost.packets <= bound, "{name}, reads {reads}: {cost:?}");
        }
    }
}

/// Goal: with a peer that drops early packets, as Linux rxe does, a loss costs the packets behind it once, and no more
/// than once. Method: as above, for WRITEs.
#[test]
fn a_peer_that_drops_what_is_early_costs_a_window_each_loss() {
    for (row, bound) in [(0, 101), (1, 400), (4, 101), (6, 400), (7, 300)] {
        let (name, netem) = rows()[row];
        let cost = most(netem, false, false, 5);
        println!("{name}: {cost:?}");
        assert!(cost.ms <= 5000, "{name}: {cost:?}");
        assert!(cost.packets <= bound, "{name}: {cost:?}");
    }
}

/// Goal: the bounds above detect a machine that does not tolerate reordering. Method: the peer keeps nothing, so that
/// packets that overtake others are lost, as they were before machines kept any.
#[test]
fn a_machine_that_keeps_nothing_is_found_out() {
    let (_, netem) = rows()[2];
    let cost = cost(netem, false, false, 1);
    assert!(cost.packets > 115 && cost.ms > 5000, "{cost:?}");
}
