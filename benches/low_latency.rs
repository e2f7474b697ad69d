//! Queue pairs for low latency ([`QpInit::low_latency`]) beside ordinary ones, over UDP, in turns in one run.
//!
//! `cargo bench -p verbs-benches --bench low_latency [acknowledged|there] [sleep|poll] [ROUNDS]` prints for each subject what
//! both kinds of queue pair take, the medians of several turns, and the ratio of the two. The flag stays if it wins by 5 %
//! for consumers that sleep.
//!
//! * `acknowledged`: a message of 64 bytes and its acknowledgement, with one thread for both ends.
//! * `there`: a message there and one back, between two threads.
//!
//! Consumers that sleep await their completion queues; those that poll are here to show what the flag costs them. A turn makes
//! its two queue pairs and destroys them, because a device works for low latency while it has such a queue pair.
//!
//! It keeps a timer of its own, and is no bench of Criterion: the figure is the ratio of two subjects that take turns, so that
//! what else the machine does affects both. Criterion measures one subject whole before the next.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::link::Udp;
use hca_sim::{Hca, connect_with};
use verbs_core::{Access, Cq, Device, Memory, Mr, Pd, Qp, QpInit, Recv, Send, Wc};

/// Bytes of a message.
const LEN: usize = 64;
/// Turns of each kind; the medians count.
const TURNS: usize = 31;
/// Messages of a turn.
const ROUNDS: u64 = 2_000;
/// Messages of a turn before it is timed: threads go to sleep and buffers are made.
const WARM: u64 = 20;

/// What is timed: that many times, between these ends, by consumers that sleep or poll.
type Subject = fn(&mut [End; 2], u64, Wait);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Sleeping,
    Polling,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_named = |name: &str, other: &str| {
        let has = |name: &str| args.iter().any(|arg| arg == name);
        has(name) || !has(other)
    };
    let smoke = args.iter().any(|arg| arg == "--test");
    let rounds = args.iter().find_map(|arg| arg.parse().ok());
    let rounds = rounds.unwrap_or(if smoke { 20 } else { ROUNDS });
    let turns = if smoke { 1 } else { TURNS };
    let hosts = verbs_benches::hosts();
    let mut ends = hosts.map(End::new);
    let subjects: [(&str, &str, &str, Subject); 2] = [
        (
            "acknowledged",
            "there",
            "a message and its acknowledgement",
            acknowledged,
        ),
        (
            "there",
            "acknowledged",
            "a message there and one back",
            there_and_back,
        ),
    ];
    let waits = [
        ("sleep", "poll", Wait::Sleeping),
        ("poll", "sleep", Wait::Polling),
    ];
    for (name, other, what, subject) in subjects {
        for (way, other_way, wait) in waits {
            if is_named(name, other) && is_named(way, other_way) {
                let mut taken = [Vec::new(), Vec::new()];
                for turn in 0..2 * turns {
                    // A B B A, so that neither kind always comes after the other.
                    let low_latency = turn % 4 == 1 || turn % 4 == 2;
                    let time = in_turn(&mut ends, low_latency, |ends| {
                        subject(ends, WARM, wait);
                        let begun = Instant::now();
                        subject(ends, rounds, wait);
                        begun.elapsed()
                    });
                    taken[usize::from(low_latency)].push(micros(time, rounds));
                }
                told(&format!("{what}, consumers that {way}"), taken);
            }
        }
    }
}

fn micros(time: Duration, rounds: u64) -> f64 {
    time.as_secs_f64() * 1e6 / rounds as f64
}

fn told(what: &str, [mut ordinary, mut low_latency]: [Vec<f64>; 2]) {
    let (without, with) = (quarters(&mut ordinary), quarters(&mut low_latency));
    println!(
        "{what}: ordinary {}, for low latency {}, {:.2} of it",
        shown(without),
        shown(with),
        with[1] / without[1]
    );
}

fn shown([first, median, third]: [f64; 3]) -> String {
    format!("{median:.1} us ({first:.1} to {third:.1})")
}

/// The quarters of the values, which are sorted then.
fn quarters(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| {
        let at = values.len() * quarter / 4;
        values.get(at).copied().unwrap_or(f64::NAN)
    })
}

/// One end, without its queue pair.
struct End {
    qp: Option<Qp>,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    _device: Device,
}

impl End {
    fn new(address: IpAddr) -> Self {
        let link = Udp::bind(&[address]).expect("an address of the loopback interface");
        let device = Hca::over(link).open().wait().expect("a device");
        let pd = device.alloc_pd().wait().expect("a domain");
        let cq = device.create_cq(64).wait().expect("a queue");
        let memory = Memory::alloc(2 * LEN).expect("memory");
        let mr = pd.register(memory, Access::LOCAL_WRITE).wait();
        Self {
            qp: None,
            cq,
            mr: mr.expect("a region"),
            pd,
            _device: device,
        }
    }

    fn qp(&mut self) -> &mut Qp {
        self.qp.as_mut().expect("it has one during a turn")
    }

    fn post_recv(&mut self, wr_id: u64) {
        let recv = Recv::new(wr_id).into(self.mr.slice(0..LEN));
        self.qp().post_recv(recv).expect("there is room");
    }

    fn post_send(&mut self, wr_id: u64) {
        let send = Send::new(wr_id).from(self.mr.slice(LEN..2 * LEN));
        self.qp().post_send(send.signaled()).expect("there is room");
    }

    /// Takes so many completions.
    fn take(&mut self, mut count: usize, wait: Wait) {
        let mut out = [Wc::default(); 4];
        loop {
            let some = self.cq.poll(&mut out);
            assert!(some.iter().all(Wc::is_ok), "{some:?}");
            count -= some.len();
            if count == 0 {
                return;
            }
            match wait {
                Wait::Polling => std::hint::spin_loop(),
                Wait::Sleeping => block_on(self.cq.ready()).expect("the device is there"),
            }
        }
    }
}

/// Runs that with a connection of such queue pairs.
fn in_turn<T>(ends: &mut [End; 2], low_latency: bool, run: impl FnOnce(&mut [End; 2]) -> T) -> T {
    for end in &mut *ends {
        let init = QpInit::rc(&end.cq, &end.cq).depth(16, 16);
        let init = if low_latency {
            init.low_latency()
        } else {
            init
        };
        end.qp = Some(end.pd.create_qp(init).wait().expect("a queue pair"));
    }
    let [a, b] = ends;
    // 8.6 s to answer: a process may wait for its processor.
    let patient = |rts: &mut verbs_core::QpAttr| rts.timeout = Some(18);
    block_on(connect_with(a.qp(), b.qp(), patient)).expect("a connection");
    let result = run(ends);
    for end in ends {
        let qp = end.qp.take().expect("it was made");
        qp.destroy().wait().expect("nothing uses it");
    }
    result
}

fn acknowledged(ends: &mut [End; 2], times: u64, wait: Wait) {
    for message in 0..times {
        let [from, to] = &mut *ends;
        to.post_recv(message);
        from.post_send(message);
        to.take(1, wait);
        from.take(1, wait);
        ends.swap(0, 1);
    }
}

fn there_and_back(ends: &mut [End; 2], times: u64, wait: Wait) {
    let [here, there] = ends;
    here.post_recv(0);
    there.post_recv(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            for message in 1..=times {
                // The message, and from the second one on the completion of the last answer.
                there.take(if message == 1 { 1 } else { 2 }, wait);
                if message != times {
                    there.post_recv(message);
                }
                there.post_send(message);
            }
            there.take(1, wait);
        });
        for message in 1..=times {
            here.post_send(message);
            here.take(2, wait);
            if message != times {
                here.post_recv(message);
            }
        }
    });
}
