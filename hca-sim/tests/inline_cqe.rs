//! Short messages whose bytes are carried in the completion of the receive, because the thread that posts receives is
//! not the one that sends.
//!
//! Goal: no client can see a difference, except by looking at memory before the completion is polled. Method: another
//! thread posts the receives, so the second message and those after it become inline CQEs, which the tests verify by
//! such a look.
#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use futures::executor::block_on;
use hca_sim::{Hca, connect};
use verbs_core::mem::pin;
use verbs_core::{
    Access, Arm, Armed, Cq, Device, Memory, Mr, Pd, PostError, Qp, QpAttr, QpInit, QpState, Read,
    Recv, Remote, Send, SendWr, Wc, WcCause, WcStatus, Write,
};

const DEPTH: u32 = 8;
/// Bytes of memory for each receive.
const PLACE: usize = 64;

struct End {
    qp: Option<Qp>,
    sent: Cq,
    received: Cq,
    mr: Option<Mr>,
    pd: Pd,
}

fn end(device: &Device) -> End {
    let pd = device.alloc_pd().wait().unwrap();
    let [sent, received] = [(); 2].map(|()| device.create_cq(16).wait().unwrap());
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    let mr = pd.register(Memory::alloc(4096).unwrap(), access).wait();
    let init = QpInit::rc(&sent, &received).depth(DEPTH, DEPTH).inline(64);
    let qp = pd.create_qp(init).wait().unwrap();
    End {
        qp: Some(qp),
        sent,
        received,
        mr: Some(mr.unwrap()),
        pd,
    }
}

/// Runs it in another thread, with another thread number.
fn elsewhere<T: std::marker::Send>(run: impl FnOnce() -> T + std::marker::Send) -> T {
    drop(pin());
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

impl End {
    fn qp(&mut self) -> &mut Qp {
        self.qp.as_mut().unwrap()
    }

    fn mr(&self) -> &Mr {
        self.mr.as_ref().unwrap()
    }

    fn try_expect(&mut self, wr_id: u64, place: usize) -> Result<(), PostError> {
        let at = place * PLACE;
        let recv = Recv::new(wr_id).into(self.mr().slice(at..at + PLACE));
        let qp = self.qp();
        elsewhere(|| qp.post_recv(recv))
    }

    fn expect(&mut self, wr_id: u64, place: usize) {
        self.try_expect(wr_id, place).unwrap();
    }

    /// Sends those bytes from memory.
    fn send(&mut self, wr_id: u64, bytes: &[u8]) {
        self.mr().write(2048, bytes).unwrap();
        let from = self.mr().slice(2048..2048 + bytes.len());
        self.qp()
            .post_send(Send::new(wr_id).from(from).signaled())
            .unwrap();
    }

    fn bytes(&self, place: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr().read(place * PLACE, &mut bytes).unwrap();
        bytes
    }

    fn is_untouched(&self, place: usize) -> bool {
        self.bytes(place, PLACE).iter().all(|byte| *byte == 0)
    }
}

fn poll(cq: &mut Cq) -> Vec<Wc> {
    let mut out = [Wc::default(); 16];
    cq.poll(&mut out).to_vec()
}

fn statuses(cq: &mut Cq) -> Vec<(u64, WcStatus)> {
    poll(cq).iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

fn successes(ids: std::ops::Range<u64>) -> Vec<(u64, WcStatus)> {
    ids.map(|id| (id, WcStatus::Success)).collect()
}

/// Two ends between which messages become inline CQEs from now on; no completion waits.
fn ends() -> (End, End) {
    let device = Hca::loopback().open().wait().unwrap();
    let (mut a, mut b) = (end(&device), end(&device));
    block_on(connect(a.qp(), b.qp())).unwrap();
    begin(&mut a, &mut b);
    (a, b)
}

/// The first message is placed.
fn begin(a: &mut End, b: &mut End) {
    b.expect(100, DEPTH as usize);
    a.send(100, &[9]);
    assert_eq!(b.bytes(DEPTH as usize, 1), [9]);
    assert_eq!(statuses(&mut a.sent), [(100, WcStatus::Success)]);
    assert_eq!(statuses(&mut b.received), [(100, WcStatus::Success)]);
}

#[test]
fn bytes_arrive_with_the_poll() {
    let (mut a, mut b) = ends();
    for id in 0..=33_u64 {
        let bytes: Vec<u8> = (1..=id as u8).collect();
        b.mr().write(0, &[0; PLACE]).unwrap();
        b.expect(id, 0);
        if id % 2 == 0 {
            a.send(id, &bytes);
        } else {
            let send = Send::new(id).inline(&bytes).signaled().solicited();
            a.qp().post_send(send).unwrap();
        }
        assert_eq!(statuses(&mut a.sent), [(id, WcStatus::Success)]);
        assert_eq!(b.is_untouched(0), id <= 32, "{id} bytes");
        let [wc] = poll(&mut b.received)[..] else {
            panic!("one message")
        };
        assert_eq!((wc.wr_id, wc.byte_len), (id, id as u32));
        assert_eq!((wc.status, wc.qpn), (WcStatus::Success, b.qp().qpn()));
        assert_eq!(wc.immediate(), None);
        assert_eq!(b.bytes(0, id as usize), bytes);
        assert_eq!(b.bytes(0, PLACE)[id as usize], 0, "no more than that");
    }
}

#[test]
fn what_is_sent_later_is_placed_later() {
    for later in 0..4 {
        let (mut a, mut b) = ends();
        for id in 0..3 {
            b.expect(id, 0);
        }
        a.send(0, &[1; 8]);
        a.send(1, &[2; 8]);
        assert!(b.is_untouched(0));
        a.mr().write(0, &[3; PLACE]).unwrap();
        let (all, to) = (a.mr().slice(0..PLACE), b.mr().remote(0));
        let op = a.qp();
        match later {
            0 => op.post_send(Write::new(2, to).from(all).signaled()),
            1 => op.post_send(Read::new(2, to).into(all).signaled()),
            2 => op.post_send(Send::new(2).from(all).signaled()),
            _ => op.post_send(Send::new(2).from(all).imm(7).signaled()),
        }
        .unwrap();
        assert_eq!(statuses(&mut a.sent), successes(0..3), "without any poll");
        let read = later == 1;
        let place = if read { 2 } else { 3 };
        assert_eq!(b.bytes(0, 8), [place; 8], "inline CQEs first");
        if read {
            assert_eq!(a.bytes(0, 8), [2; 8]);
        }
        b.mr().write(0, &[5; 8]).unwrap();
        let arrived = if later < 2 { 2 } else { 3 };
        assert_eq!(statuses(&mut b.received), successes(0..arrived));
        assert_eq!(b.bytes(0, 8), [5; 8], "nothing is written any more");
    }
}

#[test]
fn inline_cqes_come_before_a_queue_pair_that_goes_to_err() {
    let (mut a, mut b) = ends();
    for id in 0..4 {
        b.expect(id, id as usize);
    }
    a.send(0, &[1; 8]);
    a.send(1, &[2; 20]);
    b.qp().modify(QpAttr::to(QpState::Err)).wait().unwrap();
    assert_eq!(b.bytes(0, 8), [1; 8]);
    assert_eq!(b.bytes(1, 20), [2; 20]);
    let flushed = |id| (id, WcStatus::WrFlushErr);
    let mut expected = successes(0..2);
    expected.extend([flushed(2), flushed(3)]);
    assert_eq!(statuses(&mut b.received), expected);
}

#[test]
fn nothing_is_written_for_a_queue_pair_that_is_gone() {
    let (mut a, mut b) = ends();
    for id in 0..3 {
        b.expect(id, id as usize);
    }
    a.send(0, &[1; 8]);
    a.send(1, &[2; 8]);
    b.qp.take().unwrap().destroy().wait().unwrap();
    assert_eq!((b.bytes(0, 8), b.bytes(1, 8)), (vec![1; 8], vec![2; 8]));
    b.mr().write(0, &[0; 3 * PLACE]).unwrap();
    let mut expected = successes(0..2);
    expected.push((2, WcStatus::WrFlushErr));
    assert_eq!(statuses(&mut b.received), expected);
    assert!((0..3).all(|place| b.is_untouched(place)));
}

#[test]
fn a_completion_queue_goes_with_what_was_not_polled() {
    let (mut a, mut b) = ends();
    b.expect(0, 0);
    a.send(0, &[1; 8]);
    b.qp.take().unwrap().destroy().wait().unwrap();
    let received = b.received;
    received.destroy().wait().unwrap();
    let mut out = [0; 8];
    b.mr.as_ref().unwrap().read(0, &mut out).unwrap();
    assert_eq!(out, [1; 8]);
}

#[test]
fn a_queue_pair_is_used_again_while_its_inline_cqes_wait() {
    let (mut a, mut b) = ends();
    for id in 0..3 {
        b.expect(id, id as usize);
    }
    a.send(0, &[1; 8]);
    a.send(1, &[2; 8]);
    for qp in [a.qp(), b.qp()] {
        qp.modify(QpAttr::to(QpState::Reset)).wait().unwrap();
    }
    b.mr().write(0, &[0; 4096 / 2]).unwrap();
    block_on(connect(a.qp.as_mut().unwrap(), b.qp())).unwrap();
    for id in 10..10 + u64::from(DEPTH) {
        b.expect(id, id as usize);
    }
    let full = b.try_expect(99, 0);
    assert_eq!(full, Err(PostError::Full { depth: DEPTH }));
    assert_eq!(statuses(&mut a.sent), successes(0..2));
    for id in 10..13 {
        a.send(id, &[id as u8; 8]);
    }
    let mut expected = successes(0..2);
    expected.extend(successes(10..13));
    assert_eq!(statuses(&mut b.received), expected);
    assert!((0..3).all(|place| b.is_untouched(place)));
    assert!((10..13).all(|place| b.bytes(place, 8) == [place as u8; 8]));
}

#[test]
fn a_sender_that_is_gone_leaves_its_inline_cqes() {
    let (mut a, mut b) = ends();
    for id in 0..3 {
        b.expect(id, id as usize);
    }
    a.send(0, &[1; 8]);
    a.qp.take().unwrap().destroy().wait().unwrap();
    assert_eq!(statuses(&mut b.received), successes(0..1));
    assert_eq!(b.bytes(0, 8), [1; 8]);
}

/// The one difference from a message that is placed or sent as packets.
#[test]
fn a_region_that_goes_before_the_poll_fails_the_receive() {
    for set_aside in [false, true] {
        let (mut a, mut b) = ends();
        for id in 0..2 {
            b.expect(id, id as usize);
        }
        a.send(0, &[1; 8]);
        assert_eq!(statuses(&mut a.sent), successes(0..1));
        b.mr.take().unwrap().dereg().wait().unwrap();
        if set_aside {
            let write = Write::new(1, a.mr().remote(0));
            a.qp().post_send(write.inline(&[1])).unwrap();
        }
        let [wc, flushed] = poll(&mut b.received)[..] else {
            panic!("both receives")
        };
        assert_eq!((wc.wr_id, wc.status), (0, WcStatus::LocProtErr));
        assert_eq!(wc.cause(), Some(WcCause::KeyGone));
        assert_eq!((flushed.wr_id, flushed.status), (1, WcStatus::WrFlushErr));
        let state = b.qp().query().wait().unwrap().state;
        assert_eq!(state, QpState::Err);
    }
}

#[test]
fn a_receive_counts_until_its_inline_cqe_is_polled() {
    let (mut a, mut b) = ends();
    for id in 0..u64::from(DEPTH) {
        b.expect(id, 0);
    }
    for id in 0..3 {
        a.send(id, &[1]);
    }
    let mut out = [Wc::default(); 2];
    for left in [3, 1] {
        let full = b.try_expect(50, 0);
        assert_eq!(full, Err(PostError::Full { depth: DEPTH }), "{left} wait");
        let polled = b.received.poll(&mut out).len() as u64;
        for id in 0..polled {
            b.expect(20 + id, 0);
        }
    }
    let placed = [7; 40];
    a.send(3, &placed);
    assert_eq!(b.bytes(0, 40), placed);
    b.expect(30, 0);
}

#[test]
fn a_queue_is_resized_and_armed_while_inline_cqes_wait() {
    let (mut a, mut b) = ends();
    for id in 0..5 {
        b.expect(id, id as usize);
    }
    a.send(0, &[1; 8]);
    b.received.resize(64).wait().unwrap();
    a.send(1, &[2; 8]);
    assert_eq!(b.received.arm(Arm::Next), Armed::Waiting);
    assert_eq!(statuses(&mut b.received), successes(0..2));
    assert_eq!((b.bytes(0, 8), b.bytes(1, 8)), (vec![1; 8], vec![2; 8]));
    a.send(2, &[3; 8]);
    assert_eq!(b.bytes(2, 8), [3; 8], "a queue that is armed takes none");
    assert_eq!(statuses(&mut b.received), successes(2..3));
}

/// That many further connections between two ends.
fn connections(a: &End, b: &End, count: usize) -> Vec<(Qp, Qp)> {
    let make = |end: &End| {
        let init = QpInit::rc(&end.sent, &end.received).depth(DEPTH, DEPTH);
        end.pd.create_qp(init).wait().unwrap()
    };
    let pair = |_| {
        let (mut from, mut to) = (make(a), make(b));
        block_on(connect(&mut from, &mut to)).unwrap();
        (from, to)
    };
    (0..count).map(pair).collect()
}

#[test]
fn queue_pairs_on_one_queue_keep_their_inline_cqes_apart() {
    let device = Hca::loopback().open().wait().unwrap();
    let (a, mut b) = (end(&device), end(&device));
    // The ends have one each already.
    let mut pairs = connections(&a, &b, 3);
    for round in 0..3_u8 {
        let count = pairs.len();
        for (n, (from, to)) in pairs.iter_mut().enumerate() {
            let (at, bytes) = (n * PLACE, [round * 10 + n as u8; 8]);
            let recv = Recv::new(n as u64).into(b.mr().slice(at..at + PLACE));
            elsewhere(|| to.post_recv(recv)).unwrap();
            a.mr().write(2048, &bytes).unwrap();
            let from_there = a.mr().slice(2048..2056);
            from.post_send(Send::new(0).from(from_there)).unwrap();
            let at_once = b.bytes(n, 8) == bytes;
            assert_eq!(at_once, round == 0, "the first is placed");
        }
        if round == 1 {
            let (from, to) = pairs.remove(2);
            drop(from);
            to.destroy().wait().unwrap();
            assert_eq!(b.bytes(2, 1), [12]);
        }
        assert_eq!(statuses(&mut b.received), successes(0..count as u64));
        assert!((0..count).all(|n| b.bytes(n, 8) == [round * 10 + n as u8; 8]));
    }
}

/// Goal: a consumer that would have to look queue pairs up takes no lock for each message. Method: one queue pair more
/// than it can know.
#[test]
fn a_queue_of_many_queue_pairs_gets_no_inline_cqes() {
    let device = Hca::loopback().open().wait().unwrap();
    let (a, mut b) = (end(&device), end(&device));
    let mut pairs = connections(&a, &b, 4);
    for round in 0..3_u8 {
        for (n, (from, to)) in pairs.iter_mut().enumerate() {
            let (at, bytes) = (n * PLACE, [round * 10 + n as u8; 8]);
            let recv = Recv::new(n as u64).into(b.mr().slice(at..at + PLACE));
            elsewhere(|| to.post_recv(recv)).unwrap();
            a.mr().write(2048, &bytes).unwrap();
            let from_there = a.mr().slice(2048..2056);
            from.post_send(Send::new(0).from(from_there)).unwrap();
            assert_eq!(b.bytes(n, 8), bytes, "it is placed");
        }
        assert_eq!(statuses(&mut b.received), successes(0..4));
    }
}

#[test]
fn one_thread_sends_no_inline_cqes() {
    let device = Hca::loopback().open().wait().unwrap();
    let (mut a, mut b) = (end(&device), end(&device));
    block_on(connect(a.qp(), b.qp())).unwrap();
    for id in 0..100 {
        b.mr().write(0, &[0]).unwrap();
        let recv = Recv::new(id).into(b.mr().slice(0..PLACE));
        b.qp().post_recv(recv).unwrap();
        a.send(id, &[1]);
        assert_eq!(b.bytes(0, 1), [1]);
        assert_eq!(statuses(&mut b.received), successes(id..id + 1));
        let _ = poll(&mut a.sent);
    }
}

/// The bytes of message `id`: mostly few, some more than fit in a CQE.
fn message(id: u64) -> Vec<u8> {
    let len = if id % 7 == 5 { 40 } else { 1 + id % 32 };
    (0..len).map(|n| (id + n) as u8 | 1).collect()
}

/// Ends the sender, even if the receiver fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Sends until it is over; every so often writes behind the messages.
fn send(a: &mut End, over: &AtomicBool, writes: bool, to: Remote) {
    for id in 0.. {
        // A place for each that is under way.
        let (bytes, at) = (message(id), (id % 16) as usize * PLACE);
        let from = a.mr().slice(at..at + bytes.len());
        a.mr().write(at, &bytes).unwrap();
        let mut post = |wr: SendWr<'_>| {
            while let Err(PostError::Full { .. }) = a.qp.as_mut().unwrap().post_send(wr) {
                let _ = poll(&mut a.sent);
                if over.load(Relaxed) {
                    return;
                }
                thread::yield_now();
            }
        };
        post(Send::new(id).from(from).signaled().into());
        if writes && id % 64 == 63 {
            post(Write::new(id, to).inline(&[1]).signaled().into());
        }
        if over.load(Relaxed) {
            return;
        }
    }
}

/// Takes at least that many messages, looks at each, and returns how many; what was taken is not written to until it is
/// posted again.
fn receive(b: &mut End, count: u64) -> u64 {
    let place = |id: u64| (id % u64::from(DEPTH)) as usize;
    let (mut posted, mut next) = (0, 0);
    while next < count {
        while posted < next + u64::from(DEPTH) {
            assert!(
                b.is_untouched(place(posted)),
                "written to when nobody waits"
            );
            let at = place(posted) * PLACE;
            let recv = Recv::new(posted).into(b.mr().slice(at..at + PLACE));
            b.qp().post_recv(recv).unwrap();
            posted += 1;
        }
        for wc in poll(&mut b.received) {
            assert_eq!((wc.wr_id, wc.status), (next, WcStatus::Success));
            let expected = message(next);
            assert_eq!(wc.byte_len as usize, expected.len());
            assert_eq!(b.bytes(place(next), expected.len()), expected);
            b.mr().write(place(next) * PLACE, &[0; PLACE]).unwrap();
            next += 1;
        }
        thread::yield_now();
    }
    next
}

/// Goal: two threads that run at once lose, duplicate and mix up nothing, and a queue pair that goes to ERR or is
/// destroyed has what it was sent. Method: many short connections; each ends while messages are under way.
#[test]
fn two_threads_agree_on_every_message() {
    let device = Hca::loopback().open().wait().unwrap();
    for round in 0..20 {
        let (mut a, mut b) = (end(&device), end(&device));
        block_on(connect(a.qp(), b.qp())).unwrap();
        let to = b.mr().remote(2048);
        let (count, over) = (400 + 37 * round, AtomicBool::new(false));
        thread::scope(|scope| {
            let _ends = Ends(&over);
            scope.spawn(|| send(&mut a, &over, round % 3 == 0, to));
            let next = receive(&mut b, count);
            if round % 2 == 0 {
                b.qp().modify(QpAttr::to(QpState::Err)).wait().unwrap();
            } else {
                b.qp.take().unwrap().destroy().wait().unwrap();
            }
            // The messages that have arrived are in memory, and nothing else arrives.
            let before = b.bytes(0, DEPTH as usize * PLACE);
            for (wc, id) in poll(&mut b.received).iter().zip(next..) {
                assert_eq!(wc.wr_id, id);
                let bytes = message(id);
                if wc.is_ok() {
                    let place = (id % u64::from(DEPTH)) as usize;
                    assert_eq!(b.bytes(place, bytes.len()), bytes);
                } else {
                    assert_eq!(wc.status, WcStatus::WrFlushErr);
                }
            }
            assert!(b.bytes(0, DEPTH as usize * PLACE) == before);
        });
    }
}
