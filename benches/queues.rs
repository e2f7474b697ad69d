//! The queues of the workspace that stay its own, beside those of crossbeam-queue that could take their place.
//!
//! * `client-queue`: a routine that is queued and run later by its client: a query of a port that is answered at once,
//!   through [`ClientQueue`], and with a routine that pushes its result, boxed, into a queue of crossbeam's.
//! * `ready-list`: 1 or 16 handles (the parameter) pushed one by one and taken all at once, as the driver of a port does
//!   with queue pairs that have a reason: a vector behind a lock, which the taker empties whole.
//! * `command-line`: 1 or 16 handles pushed and popped in order, as commands that wait for a slot: a deque behind a
//!   lock, out of which a cancelled command can be taken, which no queue of crossbeam's allows.
//!
//! The vector and the deque are those of `hca-sim/src/port/ready.rs` and `hca/command/queue.rs`, without what
//! surrounds them there. One thread does all: what is compared is the cost without contention.

mod settings;

use std::collections::VecDeque;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::{ArrayQueue, SegQueue};
use settings::{group, repeats, settings};
use verbs_benches::control::Subject;
use verbs_core::ClientQueue;
use verbs_core::sync::{Arc, Mutex};

/// Places in the queues that have a bound.
const ROOM: usize = 64;
const COUNTS: [u64; 2] = [1, 16];

type Routine = Box<dyn FnOnce() + Send>;

fn client_queue(c: &mut Criterion) {
    let mut group = group(c, "client-queue");
    let subject = Subject::inline();
    let device = subject.device();
    let mut one = |name: &str, operation: &mut dyn FnMut(u64)| {
        let id = BenchmarkId::from_parameter(name);
        repeats(&mut group, id, Throughput::Elements(1), operation);
    };
    let ours = ClientQueue::new(ROOM as u32);
    one("ours", &mut |times| {
        for _ in 0..times {
            let issued = device.query_port(1).issue_on(&ours, |port| {
                black_box(port).expect("port 1");
            });
            assert!(issued.is_ok() && ours.run_one());
        }
    });
    let array = Arc::new(ArrayQueue::<Routine>::new(ROOM));
    one("array queue", &mut |times| {
        for _ in 0..times {
            let queue = Arc::clone(&array);
            let _ = device.query_port(1).issue(move |port| {
                let routine = move || {
                    black_box(port).expect("port 1");
                };
                assert!(queue.push(Box::new(routine)).is_ok());
            });
            array.pop().expect("it was pushed")();
        }
    });
    let seg = Arc::new(SegQueue::<Routine>::new());
    one("seg queue", &mut |times| {
        for _ in 0..times {
            let queue = Arc::clone(&seg);
            let _ = device.query_port(1).issue(move |port| {
                queue.push(Box::new(move || {
                    black_box(port).expect("port 1");
                }));
            });
            seg.pop().expect("it was pushed")();
        }
    });
    one("none: the routine runs at once", &mut |times| {
        subject.query_routine(times);
    });
    group.finish();
}

fn ready_list(c: &mut Criterion) {
    let mut group = group(c, "ready-list");
    let (item, mut taken) = (Arc::new(7_u64), Vec::with_capacity(ROOM));
    for count in COUNTS {
        let all = || Throughput::Elements(count);
        let ours = Mutex::new(Vec::new());
        let id = BenchmarkId::new("ours: vector behind a lock", count);
        repeats(&mut group, id, all(), |times| {
            for _ in 0..times {
                for _ in 0..count {
                    ours.lock().push(Arc::clone(black_box(&item)));
                }
                taken.append(&mut ours.lock());
                black_box(&mut taken).clear();
            }
        });
        crossbeam(&mut group, count, &item, &mut taken);
    }
    group.finish();
}

fn command_line(c: &mut Criterion) {
    let mut group = group(c, "command-line");
    let (item, mut taken) = (Arc::new(7_u64), Vec::with_capacity(ROOM));
    for count in COUNTS {
        let ours = Mutex::new(VecDeque::new());
        let id = BenchmarkId::new("ours: deque behind a lock", count);
        repeats(&mut group, id, Throughput::Elements(count), |times| {
            for _ in 0..times {
                for _ in 0..count {
                    ours.lock().push_back(Arc::clone(black_box(&item)));
                }
                for _ in 0..count {
                    taken.extend(ours.lock().pop_front());
                }
                black_box(&mut taken).clear();
            }
        });
        crossbeam(&mut group, count, &item, &mut taken);
    }
    group.finish();
}

/// As many pushes and as many pops.
fn crossbeam(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    count: u64,
    item: &Arc<u64>,
    taken: &mut Vec<Arc<u64>>,
) {
    let all = || Throughput::Elements(count);
    let array = ArrayQueue::new(ROOM);
    let id = BenchmarkId::new("array queue", count);
    repeats(group, id, all(), |times| {
        for _ in 0..times {
            for _ in 0..count {
                assert!(array.push(Arc::clone(black_box(item))).is_ok());
            }
            taken.extend(std::iter::from_fn(|| array.pop()));
            black_box(&mut *taken).clear();
        }
    });
    let seg = SegQueue::new();
    let id = BenchmarkId::new("seg queue", count);
    repeats(group, id, all(), |times| {
        for _ in 0..times {
            for _ in 0..count {
                seg.push(Arc::clone(black_box(item)));
            }
            taken.extend(std::iter::from_fn(|| seg.pop()));
            black_box(&mut *taken).clear();
        }
    });
}

criterion_group! {
    name = queues;
    config = settings();
    targets = client_queue, ready_list, command_line
}
criterion_main!(queues);
