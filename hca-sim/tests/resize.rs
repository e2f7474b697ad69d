//! Goal: completion queues and shared receive queues change their size while they are in use, and lose nothing. Method:
//! waiting entries are counted across resizes in both directions; then threads post and poll as fast as they can while
//! the queues are resized under them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures::executor::block_on;
use hca_sim::link::Cable;
use hca_sim::{Hca, connect};
use verbs_core::sync::{Arc, thread};
use verbs_core::{
    Access, Arm, Armed, Attr, Cq, Device, Error, Memory, Mr, Pd, PostError, Qp, QpInit, Recv, Send,
    Srq, Wc, Why,
};

fn device() -> Device {
    Hca::loopback().open().wait().unwrap()
}

fn region(pd: &Pd) -> Mr {
    let memory = Memory::alloc(4096).unwrap();
    pd.register(memory, Access::LOCAL_WRITE).wait().unwrap()
}

fn still_used(attr: Attr) -> Error {
    let why = Why::StillUsed;
    Error::Mismatch { attr, why }
}

/// Both ends of a connection in one thread.
struct Pair {
    from: Qp,
    to: Qp,
    sent: Cq,
    received: Cq,
    mr: Mr,
    next: u64,
}

impl Pair {
    fn new(cqe: u32) -> Self {
        let device = device();
        let pd = device.alloc_pd().wait().unwrap();
        let [sent, received] = [(); 2].map(|()| device.create_cq(cqe).wait().unwrap());
        let init = || QpInit::rc(&sent, &received).depth(64, 64);
        let [mut from, mut to] = [(); 2].map(|()| pd.create_qp(init()).wait().unwrap());
        block_on(connect(&mut from, &mut to)).unwrap();
        let mr = region(&pd);
        Self {
            from,
            to,
            sent,
            received,
            mr,
            next: 0,
        }
    }

    fn message(&mut self) {
        let id = self.next;
        self.next += 1;
        let recv = Recv::new(id).into(self.mr.slice(8..16));
        self.to.post_recv(recv).unwrap();
        let send = Send::new(id).from(self.mr.slice(0..8)).signaled();
        self.from.post_send(send).unwrap();
    }
}

fn polled(cq: &mut Cq) -> Vec<u64> {
    let mut out = [Wc::default(); 8];
    let mut ids = Vec::new();
    loop {
        let some = cq.poll(&mut out);
        if some.is_empty() {
            return ids;
        }
        for wc in some {
            assert!(wc.is_ok(), "{wc:?}");
            ids.push(wc.wr_id);
        }
    }
}

#[test]
fn a_cq_keeps_what_waits_and_takes_as_much_as_it_says() {
    let mut pair = Pair::new(4);
    let (mut begun, mut ended) = (0, 0);
    for cqe in [16, 4, 64, 5, 8, 8, 32] {
        // Always one less than fits before and after.
        while pair.next < begun + 3 {
            pair.message();
        }
        assert_eq!(pair.sent.resize(cqe).wait(), Ok(cqe.next_power_of_two()));
        assert_eq!(
            pair.received.resize(cqe).wait(),
            Ok(cqe.next_power_of_two())
        );
        assert_eq!(pair.sent.depth(), cqe.next_power_of_two());
        while pair.next < begun + u64::from(pair.sent.depth()) {
            pair.message();
        }
        ended = pair.next;
        let all: Vec<u64> = (begun..ended).collect();
        assert_eq!(polled(&mut pair.sent), all);
        assert_eq!(polled(&mut pair.received), all);
        begun = ended;
    }
    assert!(ended > 100);
}

#[test]
fn a_cq_does_not_become_smaller_than_what_waits() {
    let mut pair = Pair::new(16);
    (0..9).for_each(|_| pair.message());
    assert_eq!(pair.sent.resize(8).wait(), Err(still_used(Attr::Cqe)));
    assert_eq!(pair.sent.depth(), 16);
    pair.message();
    assert_eq!(polled(&mut pair.sent), Vec::from_iter(0..10));
    assert_eq!(pair.sent.resize(8).wait(), Ok(8));
    assert_eq!(polled(&mut pair.received), Vec::from_iter(0..10));
}

/// The queue reports that something waits, and fires, whatever its size was when it was armed.
#[test]
fn an_armed_cq_stays_armed() {
    let mut pair = Pair::new(4);
    for cqe in [64, 4, 16] {
        assert_eq!(pair.received.arm(Arm::Next), Armed::Empty);
        pair.received.resize(cqe).wait().unwrap();
        pair.message();
        block_on(pair.received.ready()).unwrap();
        assert_eq!(polled(&mut pair.received).len(), 1);
        pair.received.resize(cqe * 2).wait().unwrap();
        pair.message();
        assert_eq!(pair.received.arm(Arm::Next), Armed::Waiting);
        assert_eq!(polled(&mut pair.received).len(), 1);
        assert_eq!(polled(&mut pair.sent).len(), 2);
    }
}

/// One of two ends that send to each other, each from a thread of its own. Both threads push to `cq`.
struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

const DEPTH: u64 = 8;
const MESSAGES: u64 = 20_000;

/// Ends on those devices, connected.
fn ends(devices: [&Device; 2]) -> [End; 2] {
    let mut ends = devices.map(|device| {
        let pd = device.alloc_pd().wait().unwrap();
        let cq = device.create_cq(16).wait().unwrap();
        let init = QpInit::rc(&cq, &cq).depth(DEPTH as u32, DEPTH as u32);
        let qp = pd.create_qp(init).wait().unwrap();
        End {
            qp,
            cq,
            mr: region(&pd),
        }
    });
    let [a, b] = &mut ends;
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    ends
}

impl End {
    /// Sends and receives that many messages, and resizes the queue whenever the last resize is over. Returns how
    /// often.
    fn run(mut self, messages: u64) -> u64 {
        const SEND: u64 = 1 << 32;
        let (from, to) = (self.mr.slice(0..8), self.mr.slice(8..16));
        let resizes = Arc::new(AtomicU64::new(0));
        let (mut asked, mut sent, mut received, mut posted) = (0, 0, 0, DEPTH);
        for id in 0..DEPTH {
            self.qp.post_recv(Recv::new(id).into(to)).unwrap();
        }
        let mut begun = 0;
        let mut out = [Wc::default(); 4];
        while sent < messages || received < messages {
            if resizes.load(Relaxed) == asked {
                asked += 1;
                let done = Arc::clone(&resizes);
                let cqe = [16, 64, 32, 256][asked as usize % 4];
                let _ = self.cq.resize(cqe).issue(move |resized| {
                    assert_eq!(resized, Ok(cqe));
                    done.fetch_add(1, Relaxed);
                });
            }
            while begun < messages && begun < sent + DEPTH {
                let send = Send::new(SEND | begun).from(from).signaled();
                self.qp.post_send(send).expect("as many as were polled");
                begun += 1;
            }
            let some = self.cq.poll(&mut out);
            if some.is_empty() {
                thread::yield_now();
            }
            for wc in some.iter() {
                assert!(wc.is_ok(), "{wc:?}");
                if wc.wr_id & SEND != 0 {
                    assert_eq!(wc.wr_id, SEND | sent);
                    sent += 1;
                } else {
                    assert_eq!(wc.wr_id, received);
                    received += 1;
                    self.qp.post_recv(Recv::new(posted).into(to)).unwrap();
                    posted += 1;
                }
            }
        }
        resizes.load(Relaxed)
    }
}

#[test]
fn a_cq_is_resized_while_two_threads_push_to_it() {
    let device = device();
    let [a, b] = ends([&device; 2]);
    let other = thread::spawn(move || b.run(MESSAGES));
    let resizes = a.run(MESSAGES) + other.join().unwrap();
    assert!(resizes > 100, "{resizes} resizes");
}

#[test]
fn a_cq_is_resized_while_packets_carry_messages() {
    let addresses = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
    let (a, b) = Cable::new().plug(&addresses[..1], &addresses[1..]);
    let devices = [a, b].map(|end| Hca::over(end).open().wait().unwrap());
    let [a, b] = ends(devices.each_ref());
    let other = thread::spawn(move || b.run(MESSAGES / 10));
    let resizes = a.run(MESSAGES / 10) + other.join().unwrap();
    assert!(resizes > 20, "{resizes} resizes");
}

#[test]
fn a_cq_is_resized_while_one_thread_pushes_to_it() {
    let mut pair = Pair::new(16);
    let (mut sent, mut from) = (pair.sent, pair.from);
    let (source, sink) = (pair.mr.slice(0..8), pair.mr.slice(8..16));
    let credits = Arc::new(AtomicU64::new(DEPTH));
    let theirs = Arc::clone(&credits);
    for id in 0..DEPTH {
        pair.to.post_recv(Recv::new(id).into(sink)).unwrap();
    }
    let sender = thread::spawn(move || {
        for id in 0..MESSAGES {
            while theirs.load(Relaxed) <= id {
                thread::yield_now();
            }
            let send = Send::new(id).from(source).signaled();
            from.post_send(send).expect("it was polled");
            while sent.poll(&mut [Wc::default()]).is_empty() {
                thread::yield_now();
            }
        }
    });
    let (mut received, mut resized) = (0, 0);
    while received < MESSAGES {
        if resized * 16 <= received {
            let cqe = [8, 64, 16, 1024][resized as usize % 4];
            assert_eq!(pair.received.resize(cqe).wait(), Ok(cqe));
            resized += 1;
        }
        for id in polled(&mut pair.received) {
            assert_eq!(id, received);
            received += 1;
            pair.to.post_recv(Recv::new(id + DEPTH).into(sink)).unwrap();
            credits.fetch_add(1, Relaxed);
        }
    }
    sender.join().unwrap();
}

/// Receives that several connections share, one for each thread that sends.
struct Shared {
    srq: Srq,
    cq: Cq,
    mr: Mr,
    senders: Vec<(Qp, Cq)>,
    _receivers: Vec<Qp>,
}

fn shared(senders: usize, depth: u32) -> Shared {
    let device = device();
    let pd = device.alloc_pd().wait().unwrap();
    let srq = pd.create_srq(depth, 2).wait().unwrap();
    let cq = device.create_cq(256).wait().unwrap();
    let mut receivers = Vec::new();
    let senders = (0..senders).map(|_| {
        let own = device.create_cq(16).wait().unwrap();
        let init = QpInit::rc(&own, &own).depth(DEPTH as u32, 1).inline(8);
        let mut from = pd.create_qp(init).wait().unwrap();
        let init = QpInit::rc(&cq, &cq).srq(&srq);
        let mut to = pd.create_qp(init).wait().unwrap();
        block_on(connect(&mut from, &mut to)).unwrap();
        receivers.push(to);
        (from, own)
    });
    Shared {
        senders: senders.collect(),
        srq,
        cq,
        mr: region(&pd),
        _receivers: receivers,
    }
}

#[test]
fn an_srq_keeps_what_is_posted_and_takes_as_much_as_it_says() {
    let mut shared = shared(1, 3);
    let sge = shared.mr.slice(0..8);
    let (mut posted, mut taken) = (0, 0);
    for depth in [6, 2, 40, 3] {
        while posted < taken + 2 {
            shared.srq.post_recv(Recv::new(posted).into(sge)).unwrap();
            posted += 1;
        }
        assert_eq!(shared.srq.resize(1).wait(), Err(still_used(Attr::MaxSrqWr)));
        shared.srq.resize(depth).wait().unwrap();
        assert_eq!(shared.srq.query().wait().unwrap().max_wr, depth);
        while posted < taken + u64::from(depth) {
            shared.srq.post_recv(Recv::new(posted).into(sge)).unwrap();
            posted += 1;
        }
        let full = shared.srq.post_recv(Recv::new(0).into(sge));
        assert_eq!(full, Err(PostError::Full { depth }));
        let (from, own) = &mut shared.senders[0];
        while taken < posted {
            from.post_send(Send::new(0).inline(&[0; 8]).signaled())
                .unwrap();
            assert_eq!(polled(own), [0]);
            assert_eq!(polled(&mut shared.cq), [taken]);
            taken += 1;
        }
    }
    let (attr, why) = (Attr::MaxSrqWr, Why::Zero);
    let none = shared.srq.resize(0).wait();
    assert_eq!(none, Err(Error::Mismatch { attr, why }));
    let max = u32::MAX;
    assert!(matches!(
        shared.srq.resize(max).wait(),
        Err(Error::Invalid { .. })
    ));
}

#[test]
fn an_srq_is_resized_while_threads_take_from_it() {
    let mut shared = shared(2, 16);
    let sge = shared.mr.slice(0..8);
    let each = MESSAGES / 4;
    let senders: Vec<_> = shared
        .senders
        .drain(..)
        .map(|(mut from, mut own)| {
            thread::spawn(move || {
                for id in 0..each {
                    let send = Send::new(id).inline(&[0; 8]).signaled();
                    from.post_send(send).unwrap();
                    let mut out = [Wc::default()];
                    while own.poll(&mut out).is_empty() {
                        thread::yield_now();
                    }
                    assert!(out[0].is_ok() && out[0].wr_id == id, "{out:?}");
                }
            })
        })
        .collect();
    let total = 2 * each;
    let (mut posted, mut seen) = (0, vec![false; total as usize]);
    let (mut received, mut resized) = (0, 0);
    while received < total {
        if resized * 4 <= received {
            // More may wait than would fit.
            let depth = [16, 64, 12, 512][resized as usize % 4];
            let answer = shared.srq.resize(depth).wait();
            assert!(answer == Ok(()) || answer == Err(still_used(Attr::MaxSrqWr)));
            resized += 1;
        }
        while posted < received + 12 {
            shared.srq.post_recv(Recv::new(posted).into(sge)).unwrap();
            posted += 1;
        }
        for id in polled(&mut shared.cq) {
            assert!(!std::mem::replace(&mut seen[id as usize], true));
            received += 1;
        }
        thread::yield_now();
    }
    for sender in senders {
        sender.join().unwrap();
    }
}
