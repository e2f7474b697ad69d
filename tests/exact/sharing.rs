//! What verbs, posts and polls share with other threads, counted exactly: atomic read-modify-writes, reference counts
//! and locks among them, and system calls.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use futures::executor::block_on;
use hca_sim::{Hca, connect};
use verbs_core::testing::Null;
use verbs_core::{
    Access, Arm, Cq, Device, Memory, Mr, Pd, Qp, QpAttr, QpInit, QpState, Recv, Send, Wc, Write,
};

use crate::steps::{self, Steps};

/// A connection of an HCA with itself.
struct Bed {
    qp: Qp,
    peer: Qp,
    spare: Qp,
    cq: Cq,
    /// Nothing completes here.
    quiet: Cq,
    mr: Mr,
    _pd: Pd,
    device: Device,
    null: Device,
}

impl Bed {
    fn new() -> Self {
        let device = Hca::loopback().build().open().wait().expect("opens");
        let null = Device::open(Arc::new(Null::default()))
            .wait()
            .expect("opens");
        let pd = device.alloc_pd().wait().expect("a PD");
        let cq = device.create_cq(64).wait().expect("a CQ");
        let quiet = device.create_cq(64).wait().expect("a CQ");
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let memory = Memory::alloc(4096).expect("a page");
        let mr = pd.register(memory, access).wait().expect("an MR");
        let make = || pd.create_qp(QpInit::rc(&cq, &cq)).wait().expect("a QP");
        let (mut qp, mut peer, spare) = (make(), make(), make());
        block_on(connect(&mut qp, &mut peer)).expect("connects");
        spare.init(1, Access::empty()).wait().expect("INIT");
        Self {
            qp,
            peer,
            spare,
            cq,
            quiet,
            mr,
            _pd: pd,
            device,
            null,
        }
    }

    fn poll(&mut self) {
        black_box(self.cq.poll(&mut [Wc::default(); 4]));
    }
}

type Operation = (&'static str, u64, u64, fn(&mut Bed));

/// Operations: their atomic read-modify-writes, how many of these belong to locks, and their names. None makes a system
/// call.
const OPERATIONS: &[Operation] = &[
    ("query_port, null provider", 0, 0, |bed| {
        black_box(bed.null.query_port(1).wait()).expect("port 1");
    }),
    ("query_port", 2, 2, |bed| {
        black_box(bed.device.query_port(1).wait()).expect("port 1");
    }),
    ("query_device", 2, 0, |bed| {
        black_box(bed.device.query().wait()).expect("attributes");
    }),
    ("query_qp", 2, 2, |bed| {
        black_box(bed.spare.query().wait()).expect("attributes");
    }),
    ("modify_qp, INIT to INIT", 15, 14, |bed| {
        let attr = QpAttr {
            state: Some(QpState::Init),
            ..QpAttr::default()
        };
        bed.spare.modify(attr).wait().expect("INIT");
    }),
    ("alloc_pd and dealloc", 21, 6, |bed| {
        let pd = bed.device.alloc_pd().wait().expect("a PD");
        pd.dealloc().wait().expect("goes");
    }),
    ("post_recv", 0, 0, |bed| {
        let recv = Recv::new(1).into(bed.mr.slice(0..64));
        bed.peer.post_recv(recv).expect("has room");
    }),
    ("post_send and both polls", 0, 0, |bed| {
        let send = Send::new(1).from(bed.mr.slice(64..128)).signaled();
        bed.qp.post_send(send).expect("has room");
        bed.poll();
    }),
    ("post WRITE and poll", 0, 0, |bed| {
        let write = Write::new(1, bed.mr.remote(0)).from(bed.mr.slice(64..128));
        bed.qp.post_send(write.signaled()).expect("has room");
        bed.poll();
    }),
    ("poll in vain", 0, 0, Bed::poll),
    ("arm", 2, 0, |bed| {
        let _ = bed.quiet.arm(Arm::Next);
    }),
];

/// Goal: an operation shares no more with other threads than is written here. Method: the instructions of one are
/// stepped through, after one round that makes what a thread needs once, and again.
#[test]
fn operations_share_no_more_than_their_budgets() {
    let mut bed = Bed::new();
    let mut wrong = Vec::new();
    let nothing = steps::count(|| ());
    for round in 0..3 {
        for &(name, atomics, of_locks, operation) in OPERATIONS {
            let steps = steps::count(|| operation(&mut bed));
            if round == 0 {
                continue;
            }
            let all = steps.all - nothing.all;
            println!(
                "{name:28}{:4}{:4}{:4}{all:8}",
                steps.atomics, steps.of_locks, steps.calls
            );
            let got = (steps.atomics, steps.of_locks, steps.calls);
            if got != (atomics, of_locks, 0) {
                wrong.push(format!("{name}: {got:?}, not ({atomics}, {of_locks}, 0)"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn steps_see_what_they_count() {
    let word = AtomicU32::new(0);
    let lock = verbs_core::sync::Mutex::new(0);
    let baseline = steps::count(|| ());
    assert_eq!(
        (baseline.atomics, baseline.of_locks, baseline.calls),
        (0, 0, 0)
    );
    let counts = |steps: Steps| (steps.atomics, steps.of_locks, steps.calls);
    let added = steps::count(|| {
        black_box(&word).fetch_add(1, SeqCst);
    });
    assert_eq!(counts(added), (1, 0, 0));
    assert!(added.all > baseline.all);
    let swapped = steps::count(|| {
        black_box(&word).swap(1, SeqCst);
    });
    assert_eq!(counts(swapped), (1, 0, 0));
    let locked = steps::count(|| *lock.lock() += 1);
    assert_eq!(counts(locked), (2, 2, 0), "taken and given back");
    let shared = Arc::new(1);
    let cloned = steps::count(|| drop(black_box(Arc::clone(&shared))));
    assert_eq!(counts(cloned), (2, 0, 0));
    let large = steps::count(|| drop(black_box(Vec::<u8>::with_capacity(1 << 30))));
    assert_eq!(
        counts(large),
        (0, 0, 0),
        "the system's allocator does not count"
    );
    let called = steps::count(std::thread::yield_now);
    assert_eq!(counts(called), (0, 0, 1));
}
