//! Requests of every kind, by seeds.

use std::env;
use std::ops::Range;

use hca_sim::Hca;
use hca_sim::link::{Faults, Faulty};
use verbs_core::{Read, Send, SendOp, Wc, WcStatus, Write};

use super::{Host, NAME};

/// The seeds of a run: some, or those that `VERBS_SEEDS` names, as in `10..200`.
fn seeds(few: u64) -> Range<u64> {
    let named = env::var("VERBS_SEEDS").ok();
    let named = named.as_deref().and_then(|text| text.split_once(".."));
    let number = |text: &str| text.parse().expect("a number");
    named.map_or(1..few + 1, |(first, end)| number(first)..number(end))
}

/// The initiator's requests, in the order of a seed.
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What a run expects of the three programs.
#[derive(Default)]
struct Expected {
    /// The SENDs, by their numbers.
    sends: [Vec<u64>; 3],
    /// Where the receives are, in the order in which they were posted.
    rooms: [Vec<usize>; 3],
    /// How many receives have completed.
    came: [usize; 3],
    /// What atomics have added.
    sums: [u64; 3],
    /// Receives that are posted after the SENDs.
    late: Vec<(usize, usize)>,
}

impl Expected {
    /// Posts a request for a program; its memory has a word for atomics at 0, a place that is read at 8192, and receives
    /// from 32768 on.
    fn post(&mut self, host: &mut Host, draw: &mut Draw, number: u64, k: usize) {
        let to = draw.below(3) as usize;
        let srqn = host.srqn(to);
        let Host {
            programs, client, ..
        } = host;
        let program = &mut programs[to];
        let remote = |at| program.mr.remote(at);
        let own = |at, len| client.mr.slice(at..at + len);
        let posted = match draw.below(4) {
            0 => {
                let read = Read::new(number, remote(0)).into(own(64 * k, 8));
                let mut wr = read.srq(srqn).signaled().wr;
                wr.op = SendOp::FetchAdd {
                    remote: remote(0),
                    add: number,
                };
                self.sums[to] = self.sums[to].wrapping_add(number);
                client.qp.post_send(wr)
            }
            1 => {
                let read = Read::new(number, remote(8192)).into(own(16_384 + 1024 * k, 1000));
                client.qp.post_send(read.srq(srqn).signaled())
            }
            2 => {
                let write = Write::new(number, remote(64 * k + 64)).from(own(64 * k, 32));
                client.qp.post_send(write.srq(srqn).signaled())
            }
            _ => {
                let room = 32_768 + 64 * (self.sends[to].len() % 64);
                self.sends[to].push(number);
                if draw.below(8) == 0 {
                    self.late.push((to, room));
                } else {
                    program.post(0, room, 8);
                    self.rooms[to].push(room);
                }
                let bytes = number.to_be_bytes();
                let send = Send::new(number).inline(&bytes);
                client.qp.post_send(send.srq(srqn).signaled())
            }
        };
        posted.expect("room");
    }

    fn post_late(&mut self, host: &mut Host) {
        for (to, room) in self.late.drain(..) {
            host.programs[to].post(0, room, 8);
            self.rooms[to].push(room);
        }
    }

    /// A receive has completed at that program.
    fn came(&mut self, host: &Host, at: usize, wc: Wc) {
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        let mut number = [0; 8];
        let room = self.rooms[at][self.came[at]];
        host.programs[at]
            .mr
            .read(room, &mut number)
            .expect("in range");
        assert_eq!(u64::from_be_bytes(number), self.sends[at][self.came[at]]);
        self.came[at] += 1;
    }
}

/// Goal: requests of every kind, many at a time, for all programs in any order: each is executed once and in its order,
/// whatever the links lose, repeat and let overtake. Method: SENDs carry their number; each program counts atomics in a word of
/// its memory. A receive that is missing comes later.
pub(super) fn mixed(mut host: Host, seed: u64) {
    const ROUNDS: usize = 40;
    let mut draw = Draw(seed);
    let mut expected = Expected::default();
    for round in 0..ROUNDS {
        let count = 1 + draw.below(24) as usize;
        for k in 0..count {
            let number = (round * 100 + k) as u64;
            expected.post(&mut host, &mut draw, number, k);
        }
        expected.post_late(&mut host);
        let (ended, came) = host.settle(count);
        for wc in ended {
            assert_eq!(wc.status, WcStatus::Success, "seed {seed}: {wc:?}");
        }
        for (at, wc) in came {
            expected.came(&host, at, wc);
        }
    }
    for to in 0..3 {
        assert_eq!(expected.came[to], expected.sends[to].len(), "seed {seed}");
        let mut sum = [0; 8];
        host.programs[to].mr.read(0, &mut sum).expect("in range");
        assert_eq!(u64::from_ne_bytes(sum), expected.sums[to], "seed {seed}");
    }
}

#[test]
fn requests_of_every_kind_are_executed_once() {
    for seed in seeds(4) {
        mixed(Host::new(), seed);
    }
}

#[test]
fn requests_are_executed_once_whatever_is_lost() {
    for seed in seeds(6) {
        let faults = Faults::all(20);
        let wrap = |k, link| {
            let link = Faulty::new(link, seed * 10 + k as u64);
            Hca::over(link.receiving(faults)).build()
        };
        mixed(Host::with([Some(NAME); 3], wrap), seed);
    }
}
