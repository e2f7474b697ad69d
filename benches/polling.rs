//! Polls of a completion queue, beside pops of a lock-free queue of crossbeam's that holds the same completions.
//!
//! Measured: a poll that finds nothing, one that takes 1 or 16 completions (the parameter), and arming an empty queue. The
//! completions are those of WRITEs, which are posted outside of the measured time.

mod settings;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use futures::executor::block_on;
use settings::{group, repeats, settings};
use verbs::sim::Carrier;
use verbs_benches::ends::Ends;
use verbs_benches::timed;
use verbs_core::{Arm, Armed, Shared, Wc, Write};

/// Work requests that complete before they are polled, and entries of the other queue.
const DEPTH: usize = 512;
/// Bytes of a WRITE.
const BYTES: usize = 8;
/// Completions that a poll takes at most.
const MOST: usize = 16;

fn polls(c: &mut Criterion) {
    let mut group = group(c, "poll");
    let ends = block_on(Ends::over(Carrier::Loopback, DEPTH as u32));
    let mut ends = ends.expect("a connection");
    let queue = ArrayQueue::new(DEPTH);
    let one = || Throughput::Elements(1);
    let mut out = [Wc::default(); MOST];

    repeats(&mut group, BenchmarkId::new("cq", 0), one(), |times| {
        for _ in 0..times {
            assert!(black_box(ends.here.cq.poll(&mut out)).is_empty());
        }
    });
    repeats(
        &mut group,
        BenchmarkId::new("array queue", 0),
        one(),
        |times| {
            for _ in 0..times {
                assert!(black_box(queue.pop()).is_none());
            }
        },
    );
    for entries in [1, MOST] {
        group.throughput(Throughput::Elements(entries as u64));
        group.bench_function(BenchmarkId::new("cq", entries), |b| {
            b.iter_custom(|polls| {
                in_rounds(polls, entries, |count| {
                    write(&mut ends, count * entries);
                    timed(|| {
                        for _ in 0..count {
                            let got = ends.here.cq.poll(&mut out[..entries]);
                            assert_eq!(black_box(got).len(), entries);
                        }
                    })
                })
            });
        });
        group.bench_function(BenchmarkId::new("array queue", entries), |b| {
            b.iter_custom(|polls| {
                in_rounds(polls, entries, |count| {
                    for _ in 0..count * entries {
                        queue.push(Wc::default()).expect("there is room");
                    }
                    timed(|| {
                        for _ in 0..count {
                            for place in &mut out[..entries] {
                                *place = queue.pop().expect("it was pushed");
                            }
                            black_box(&mut out);
                        }
                    })
                })
            });
        });
    }
    group.finish();
}

/// So many polls, in rounds of as many as the queues have room for; the time that the rounds report.
fn in_rounds(polls: u64, entries: usize, mut round: impl FnMut(usize) -> Duration) -> Duration {
    let (most, mut left, mut time) = ((DEPTH / entries) as u64, polls, Duration::ZERO);
    while left > 0 {
        let count = left.min(most);
        time += round(count as usize);
        left -= count;
    }
    time
}

/// Completions that wait to be polled.
fn write(ends: &mut Ends, count: usize) {
    let from = ends.here.mr.slice(0..BYTES);
    let to = ends.there.mr.remote(0);
    for id in 0..count as u64 {
        let write = Write::new(id, to).from(from).signaled();
        ends.here.qp.post_send(write).expect("there is room");
    }
}

fn arms(c: &mut Criterion) {
    let mut group = group(c, "arm");
    let ends = block_on(Ends::over(Carrier::Loopback, DEPTH as u32));
    let Ends { mut here, there } = ends.expect("a connection");
    let one = || Throughput::Elements(1);
    let id = BenchmarkId::from_parameter("cq");
    repeats(&mut group, id, one(), |times| {
        for _ in 0..times {
            assert_eq!(black_box(here.cq.arm(Arm::Next)), Armed::Empty);
        }
    });
    let shared = Shared::new(here.cq);
    let id = BenchmarkId::from_parameter("cq, shared");
    repeats(&mut group, id, one(), |times| {
        for _ in 0..times {
            assert_eq!(black_box(shared.arm(Arm::Next)), Armed::Empty);
        }
    });
    drop((here.qp, there));
    group.finish();
}

criterion_group! {
    name = polling;
    config = settings();
    targets = polls, arms
}
criterion_main!(polling);
