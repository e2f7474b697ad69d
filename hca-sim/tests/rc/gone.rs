//! Registered memory that its program takes away: what uses it ends in an error, and the program goes on.

use verbs_core::mem::catch_faults;
use verbs_core::{
    Access, Atomic, Memory, Mr, QpInit, QpState, Read, Recv, Remote, Send, SendWr, WcCause,
    WcStatus, Write,
};

use crate::ends::{End, pair, poll, state, statuses};
use crate::way;

const OK: WcStatus = WcStatus::Success;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
/// A word, what straight-line moves copy, what a call copies, and several packets that begin before it is gone.
const LENGTHS: [usize; 4] = [8, 64, 300, 9000];
/// Where memory is gone.
const BORDER: usize = 12_288;

/// Two ends whose queue pairs are made when memory may be gone.
fn connected() -> (End, End) {
    catch_faults().unwrap();
    pair()
}

/// A region at that end of which the second half is gone.
fn half(end: &End) -> Mr {
    let memory = Memory::alloc(2 * BORDER).unwrap();
    memory.take_away(BORDER).unwrap();
    end.pd.register(memory, ALL).wait().unwrap()
}

/// Where bytes begin of which the last is the first that is gone.
fn ends_in(len: usize) -> usize {
    (BORDER + 1 - len).next_multiple_of(8).min(BORDER)
}

/// What a request comes to that the responder refuses.
fn refused(status: WcStatus) -> WcStatus {
    match way::IS_IWARP {
        true => OK,
        false => status,
    }
}

/// Another connection between new ends works: nothing of the fault is left in the process.
fn all_is_well() {
    let (mut a, mut b) = connected();
    b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..5000)))
        .unwrap();
    let send = Send::new(2).from(a.mr.slice(0..5000)).signaled();
    a.qp.post_send(send).unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(2, OK)]);
    assert_eq!(statuses(&mut b.recv_cq), [(1, OK)]);
}

/// Posts it at `a`, and expects that end of it, for that reason.
#[track_caller]
fn ends(a: &mut End, wr: SendWr<'_>, status: WcStatus) {
    a.qp.post_send(wr).unwrap();
    let done = poll(&mut a.send_cq);
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!((done[0].wr_id, done[0].status), (9, status));
    let is_local = status == WcStatus::LocProtErr;
    if status != OK && (is_local || way::PEER_SAYS_WHY) {
        let cause = WcCause::of(done[0].status, done[0].vendor_err);
        assert_eq!(cause, Some(WcCause::Unmapped));
    }
    if status != OK {
        assert_eq!(state(a), QpState::Err);
    }
}

/// Goal: WRITE, READ and atomics of memory of the responder that is gone, of each length.
#[test]
fn a_peer_is_refused_memory_that_is_gone() {
    let refused = refused(WcStatus::RemAccessErr);
    for len in LENGTHS {
        let (mut a, b) = connected();
        let gone = half(&b);
        let mine = a.mr.slice(0..len);
        let write = Write::new(9, gone.remote(ends_in(len))).from(mine);
        ends(&mut a, write.signaled().into(), refused);
        assert_ne!(state(&b), QpState::Rts, "{len} bytes");

        let (mut a, b) = connected();
        let gone = half(&b);
        let mine = a.mr.slice(0..len);
        let read = Read::new(9, gone.remote(ends_in(len))).into(mine);
        ends(
            &mut a,
            SendWr::from(read.signaled()),
            WcStatus::RemAccessErr,
        );
    }
    let atomics: [fn(Remote) -> Atomic<'static>; 4] = [
        |word| Atomic::fetch_add(9, word, 1),
        |word| Atomic::compare_swap(9, word, 0, 1),
        |word| Atomic::compare_swap(9, word, 0, 1).masks(1, 1),
        |word| Atomic::fetch_add(9, word, 1).fields(0x8080),
    ];
    for atomic in atomics {
        let (mut a, b) = connected();
        let gone = half(&b);
        let result = a.mr.slice(0..8);
        let wr = atomic(gone.remote(BORDER)).into(result).signaled();
        ends(&mut a, SendWr::from(wr), WcStatus::RemAccessErr);
    }
    all_is_well();
}

/// Goal: memory of the requester that is gone, as a source and as a sink; the peer's receive is untouched.
#[test]
fn work_requests_end_at_home_whose_own_memory_is_gone() {
    for len in LENGTHS {
        let sends: [fn(&Mr, &End, usize) -> SendWr<'static>; 3] = [
            |gone, _, len| {
                let from = ends_in(len);
                let send = Send::new(9).from(gone.slice(from..from + len));
                send.signaled().into()
            },
            |gone, b, len| {
                let from = ends_in(len);
                let write = Write::new(9, b.mr.remote(0)).from(gone.slice(from..from + len));
                write.signaled().into()
            },
            |gone, b, len| {
                let from = ends_in(len);
                let read = Read::new(9, b.mr.remote(0)).into(gone.slice(from..from + len));
                SendWr::from(read.signaled())
            },
        ];
        for send in sends {
            let (mut a, mut b) = connected();
            let gone = half(&a);
            b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..9000)))
                .unwrap();
            let wr = send(&gone, &b, len);
            ends(&mut a, wr, WcStatus::LocProtErr);
            let told = statuses(&mut b.recv_cq);
            match way::IS_IWARP {
                true => assert!(told.iter().all(|&(_, status)| status != OK)),
                false => assert_eq!(told, [], "{len} bytes"),
            }
        }
    }
    all_is_well();
}

/// Goal: a batch of short messages ends at the one whose memory is gone, and those before it have arrived.
#[test]
fn a_batch_ends_where_memory_is_gone() {
    let (mut a, b) = connected();
    let gone = half(&a);
    let write = |wr_id, piece| Write::new(wr_id, b.mr.remote(0)).from(piece).signaled();
    let there = a.mr.slice(0..8);
    let wrs: [SendWr<'_>; 4] = [
        write(1, there).into(),
        write(2, there).into(),
        write(3, gone.slice(BORDER..BORDER + 8)).into(),
        write(4, there).into(),
    ];
    // One that is refused because the queue pair has failed by then is not posted.
    let _ = a.qp.send_queue().unwrap().post_batch(&wrs);
    let done = statuses(&mut a.send_cq);
    assert_eq!(done[..3], [(1, OK), (2, OK), (3, WcStatus::LocProtErr)]);
    assert!(
        done[3..].iter().all(|&(_, status)| status != OK),
        "{done:?}"
    );
    all_is_well();
}

/// Goal: a SEND into a receive whose memory is gone, of the queue pair's own and of a shared queue: it alone completes,
/// in error, with the sender; both queue pairs fail.
#[test]
fn a_receive_ends_in_error_whose_memory_is_gone() {
    for (len, shared) in LENGTHS.iter().flat_map(|&len| [(len, false), (len, true)]) {
        let (mut a, mut b) = connected();
        let gone = half(&b);
        let piece = gone.slice(ends_in(len)..BORDER + 4096);
        let mut srq = shared.then(|| b.pd.create_srq(8, 1).wait().unwrap());
        if let Some(srq) = &mut srq {
            let init = |cq| QpInit::rc(cq, cq);
            b.qp = b.pd.create_qp(init(&b.recv_cq).srq(srq)).wait().unwrap();
            a.qp = a.pd.create_qp(init(&a.send_cq)).wait().unwrap();
            way::connect(&mut a.qp, &mut b.qp);
            srq.post_recv(Recv::new(1).into(piece)).unwrap();
            srq.post_recv(Recv::new(2).into(b.mr.slice(0..9000)))
                .unwrap();
        } else {
            b.qp.post_recv(Recv::new(1).into(piece)).unwrap();
        }
        let send = Send::new(9).from(a.mr.slice(0..len)).signaled();
        ends(&mut a, send.into(), refused(WcStatus::RemOpErr));
        let told = poll(&mut b.recv_cq);
        let first = told.first().map(|wc| (wc.wr_id, wc.status));
        assert_eq!(first, Some((1, WcStatus::LocProtErr)), "{len} {shared}");
        assert_eq!(told.len(), 1, "the next receive is for others");
        assert_eq!(state(&b), QpState::Err);
    }
    all_is_well();
}
