//! Instructions of a reliable datagram, from the send to its receive, beside a bare SEND with its receive of as many bytes.
//!
//! Measured: two nodes of one process on the loopback link, where one thread sends, carries and delivers; acknowledgements are
//! among it.

use std::future::Future;
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Wake};
use std::thread::{self, Thread};

use futures::executor::block_on;
use gungraun::{library_benchmark, library_benchmark_group};
use hca_sim::clock::VirtualClock;
use hca_sim::{Hca, Loopback};
use ulp_rds::{Config, Node, RdsSocket};
use verbs_benches::pair::Pair;
use verbs_cm::Manager;
use verbs_cm::resolver::Fixed;

use crate::budget::{TIMES, budget};

/// Bytes of a datagram.
const SHORT: usize = 8;
const PAGE: usize = 4096;

/// Two sockets of two nodes, with their managers.
struct Subject {
    ends: [RdsSocket; 2],
    payload: Vec<u8>,
    _kept: Vec<(Node, Manager)>,
}

impl Subject {
    /// With a connection that has carried many datagrams, all of them on this thread: a completion queue that a second thread
    /// has pushed to is another subject, and which thread makes a connection is a race.
    fn new(len: usize) -> Self {
        let of_this_thread = || {
            let mut subject = block_on(Self::opened(len));
            let caller = Arc::new(Caller {
                thread: thread::current(),
                elsewhere: AtomicBool::new(false),
            });
            // One datagram each way.
            for _ in 0..2 {
                caller.run(subject.exchange(1));
                subject.ends.reverse();
            }
            (!caller.elsewhere.load(Relaxed)).then_some(subject)
        };
        let mut attempts = (0..100).filter_map(|_| of_this_thread());
        let mut subject = attempts.next().expect("a connection made by one thread");
        subject.send(2 * TIMES);
        subject
    }

    async fn opened(len: usize) -> Self {
        let link = Loopback::with_seed(7);
        // Time does not go on, so that no thread but this one has anything to do, however long all of it takes.
        let clock = VirtualClock::new();
        let hcas = [1, 2].map(|host| {
            let hca = Hca::on(&link).clock(clock.clone()).build();
            (IpAddr::from([10, 0, 0, host]), hca)
        });
        let table = hcas.iter().fold(Fixed::new(), |table, (addr, hca)| {
            table.way(*addr, hca.gid(), Some(hca.lid()))
        });
        let table = Arc::new(table);
        let (mut ends, mut kept) = (Vec::new(), Vec::new());
        for (addr, hca) in hcas {
            let device = Arc::new(hca.open().await.expect("a device"));
            let manager = Manager::of(&device);
            let resolver = Arc::<Fixed>::clone(&table);
            manager.use_resolver(resolver).await.expect("a manager");
            let node = Node::open(&device, Config::new([addr])).await;
            let node = node.expect("a node");
            let socket = RdsSocket::bind(&node, SocketAddr::new(addr, 4000));
            ends.push(socket.expect("a free port"));
            kept.push((node, manager));
        }
        Self {
            ends: ends.try_into().expect("two of them"),
            payload: vec![7; len],
            _kept: kept,
        }
    }

    /// So many datagrams, each taken when it has come.
    fn send(&mut self, times: u64) {
        block_on(self.exchange(times));
    }

    async fn exchange(&mut self, times: u64) {
        let [from, to] = &self.ends;
        let there = to.local_addr();
        for _ in 0..times {
            let payload = black_box(&self.payload[..]);
            from.send_to(payload, there).await.expect("it is sent");
            let got = to.recv().await;
            assert_eq!(black_box(got.payload).len(), payload.len());
        }
    }
}

/// The thread that waits, and whether another one has woken it.
struct Caller {
    thread: Thread,
    elsewhere: AtomicBool,
}

impl Caller {
    fn run(self: &Arc<Self>, future: impl Future<Output = ()>) {
        let (mut future, waker) = (pin!(future), Arc::clone(self).into());
        let mut cx = Context::from_waker(&waker);
        while future.as_mut().poll(&mut cx).is_pending() {
            thread::park();
        }
    }
}

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        if thread::current().id() != self.thread.id() {
            self.elsewhere.store(true, Relaxed);
        }
        self.thread.unpark();
    }
}

macro_rules! counted {
    ($($name:ident: $bytes:ident <= $budget:literal;)*) => {
        $(
            #[library_benchmark(config = budget($budget))]
            #[bench::counted(Subject::new($bytes))]
            fn $name(mut subject: Subject) -> Subject {
                subject.send(TIMES);
                subject
            }
        )*
    };
}

// What they cost today. What is aimed at is 1.6 times a bare SEND with its receive: 675 and 1427.
counted! {
    datagram: SHORT <= 1_880;
    datagram_page: PAGE <= 3_360;
}

fn pair(bytes: usize) -> Pair {
    let mut pair = block_on(Pair::new()).expect("a connection");
    pair.send_bytes(bytes, 1);
    pair
}

// What they stand beside.
#[library_benchmark]
#[bench::peer(pair(SHORT))]
fn bare(mut pair: Pair) -> Pair {
    pair.send_bytes(SHORT, TIMES);
    pair
}

#[library_benchmark]
#[bench::peer(pair(PAGE))]
fn bare_page(mut pair: Pair) -> Pair {
    pair.send_bytes(PAGE, TIMES);
    pair
}

library_benchmark_group!(
    name = datagrams,
    benchmarks = [datagram, datagram_page, bare, bare_page]
);
