//! Messages of several sizes between two ends of one thread, beside what else moves as many bytes.
//!
//! Measured, with the post and the completion at both ends: SEND with its receive, WRITE, READ and the atomics, by a queue
//! pair (`direct`), by queues that threads may share (`shared`), and awaited (`awaited`), over the loopback link and
//! over UDP (RoCEv2). Beside them: memcpy, channels that send a boxed copy, sockets of UDP and TCP. READ over UDP
//! stands beside a request over TCP with its answer.
//!
//! `cargo bench -p verbs-benches --bench messages -- send-udp` runs one group.

mod settings;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
    measurement::WallTime,
};
use futures::executor::block_on;
use settings::{group, repeats, settings};
use verbs::sim::Carrier;
use verbs_benches::awaited::Awaited;
use verbs_benches::ends::{Ends, LONGEST};
use verbs_benches::pair::Pair;
use verbs_benches::rivals::{Tcp, Udp};
use verbs_core::{Recv, Send, SendWr, Wc};

const SIZES: [usize; 6] = [8, 64, 512, 4 << 10, 64 << 10, LONGEST];
const CARRIERS: [(&str, Carrier); 2] = [("loopback", Carrier::Loopback), ("udp", Carrier::Roce)];
/// Work requests in each queue of an end.
const DEPTH: u32 = 64;
/// Work requests in a batch.
const BATCH: usize = 16;
/// Bytes of a request over TCP that asks for bytes.
const REQUEST: usize = 16;

type Group<'c> = BenchmarkGroup<'c, WallTime>;

fn sends(c: &mut Criterion) {
    for (name, carrier) in CARRIERS {
        let mut group = group(c, &format!("send-{name}"));
        let mut direct = ends(carrier);
        each_size(&mut group, "direct", |bytes, times| {
            direct.send(bytes, times);
        });
        let shared = direct.shared();
        each_size(&mut group, "shared", |bytes, times| {
            shared.send(bytes, times);
        });
        drop(shared);
        each_awaited(&mut group, carrier, Awaited::send);
        if carrier == Carrier::Loopback {
            batches(&mut group);
            memcpy(&mut group);
            channels(&mut group);
        } else {
            sockets(&mut group);
        }
        group.finish();
    }
}

fn writes(c: &mut Criterion) {
    for (name, carrier) in CARRIERS {
        let mut group = group(c, &format!("write-{name}"));
        let mut direct = ends(carrier);
        each_size(&mut group, "direct", |bytes, times| {
            direct.write(bytes, times);
        });
        drop(direct);
        each_awaited(&mut group, carrier, Awaited::write);
        match carrier {
            Carrier::Loopback => memcpy(&mut group),
            _ => sockets(&mut group),
        }
        group.finish();
    }
}

fn reads(c: &mut Criterion) {
    for (name, carrier) in CARRIERS {
        let mut group = group(c, &format!("read-{name}"));
        let mut direct = ends(carrier);
        each_size(&mut group, "direct", |bytes, times| {
            direct.read(bytes, times);
        });
        drop(direct);
        each_awaited(&mut group, carrier, Awaited::read);
        match carrier {
            Carrier::Loopback => memcpy(&mut group),
            _ => {
                for bytes in SIZES {
                    let mut tcp = Tcp::new(bytes);
                    sized(&mut group, "tcp request and answer", bytes, |times| {
                        tcp.ask(REQUEST, times);
                    });
                }
            }
        }
        group.finish();
    }
}

fn atomics(c: &mut Criterion) {
    for (name, carrier) in CARRIERS {
        let mut group = group(c, &format!("atomics-{name}"));
        let mut one = |name: &str, operation: &mut dyn FnMut(u64)| {
            let id = BenchmarkId::from_parameter(name);
            repeats(&mut group, id, Throughput::Elements(1), operation);
        };
        let mut direct = ends(carrier);
        one("fetch-add, direct", &mut |times| direct.fetch_add(times));
        one("compare-swap, direct", &mut |times| {
            direct.compare_swap(times);
        });
        drop(direct);
        let awaited = block_on(Awaited::over(carrier, 64)).expect("a connection");
        one("fetch-add, awaited", &mut |times| awaited.fetch_add(times));
        one("compare-swap, awaited", &mut |times| {
            awaited.compare_swap(times);
        });
        drop(awaited);
        if carrier == Carrier::Loopback {
            let word = AtomicU64::new(0);
            one("fetch_add of the processor", &mut |times| {
                for _ in 0..times {
                    black_box(black_box(&word).fetch_add(1, SeqCst));
                }
            });
        } else {
            let mut tcp = Tcp::new(8);
            one("tcp request and answer", &mut |times| {
                tcp.ask(REQUEST, times);
            });
        }
        group.finish();
    }
}

fn ends(carrier: Carrier) -> Ends {
    block_on(Ends::over(carrier, DEPTH)).expect("a connection")
}

fn sized(group: &mut Group<'_>, name: &str, bytes: usize, operation: impl FnMut(u64)) {
    let id = BenchmarkId::new(name, bytes);
    repeats(group, id, Throughput::Bytes(bytes as u64), operation);
}

fn each_size(group: &mut Group<'_>, name: &str, mut operation: impl FnMut(usize, u64)) {
    for bytes in SIZES {
        sized(group, name, bytes, |times| operation(bytes, times));
    }
}

/// An endpoint is opened for messages of one size.
fn each_awaited(group: &mut Group<'_>, carrier: Carrier, operation: fn(&Awaited, u64)) {
    for bytes in SIZES {
        let awaited = block_on(Awaited::over(carrier, bytes)).expect("a connection");
        sized(group, "awaited", bytes, |times| operation(&awaited, times));
    }
}

/// SENDs of 8 bytes on one device, 16 of them a post. A repetition is a message; up to 15 more are sent.
fn batches(group: &mut Group<'_>) {
    let mut pair = block_on(Pair::new()).expect("a connection");
    let ((from, to), mut out) = (pair.places(), [Wc::default(); BATCH]);
    let send = |id| -> SendWr<'_> { Send::new(id).from(from).signaled().into() };
    let sends: [_; BATCH] = std::array::from_fn(|id| send(id as u64));
    let recvs: [_; BATCH] = std::array::from_fn(|id| Recv::new(id as u64).into(to));
    sized(group, "direct, batches of 16", 8, |times| {
        for _ in 0..times.div_ceil(BATCH as u64) {
            let recv_queue = pair.receiver.recv_queue().expect("it is here");
            recv_queue
                .post_batch(black_box(&recvs))
                .expect("there is room");
            let send_queue = pair.sender.send_queue().expect("it is here");
            send_queue
                .post_batch(black_box(&sends))
                .expect("there is room");
            assert_eq!(pair.sent.poll(&mut out).len(), BATCH);
            assert_eq!(pair.received.poll(&mut out).len(), BATCH);
        }
    });
}

fn memcpy(group: &mut Group<'_>) {
    let (from, mut to) = (vec![7_u8; LONGEST], vec![0_u8; LONGEST]);
    each_size(group, "memcpy", |bytes, times| {
        for _ in 0..times {
            to[..bytes].copy_from_slice(black_box(&from[..bytes]));
            black_box(&mut to);
        }
    });
}

/// A box of its own for each message, as a channel needs it: copied by the sender, dropped by the receiver.
fn channels(group: &mut Group<'_>) {
    let bytes_of = |bytes: usize| vec![7_u8; bytes].into_boxed_slice();
    let from = bytes_of(LONGEST);
    let boxed = |bytes: usize| -> Box<[u8]> { black_box(&from[..bytes]).into() };
    let (sender, receiver) = crossbeam_channel::bounded(256);
    each_size(group, "crossbeam-channel", |bytes, times| {
        for _ in 0..times {
            sender.send(boxed(bytes)).expect("there is room");
            black_box(receiver.recv()).expect("a message waits");
        }
    });
    let (sender, mut receiver) = tokio::sync::mpsc::channel(256);
    each_size(group, "tokio mpsc", |bytes, times| {
        block_on(async {
            for _ in 0..times {
                sender.send(boxed(bytes)).await.expect("there is room");
                black_box(receiver.recv().await).expect("a message waits");
            }
        });
    });
}

fn sockets(group: &mut Group<'_>) {
    for bytes in SIZES {
        let mut udp = Udp::new(bytes);
        sized(group, "udp socket", bytes, |times| udp.send(times));
    }
    for bytes in SIZES {
        let mut tcp = Tcp::new(bytes);
        sized(group, "tcp", bytes, |times| tcp.send(times));
    }
}

criterion_group! {
    name = messages;
    config = settings();
    targets = sends, writes, reads, atomics
}
criterion_main!(messages);
