//! Memory windows: bound, used, unbound, and the objects that cannot be destroyed because of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use hca_sim::clock::VirtualClock;
use verbs_core::{
    Access, Error, Extent, FmrPoolAttr, LocalInv, Memory, Mr, ObjectKind, QpInit, QpState, Recv,
    Send, WcCause, WcOpcode, WcStatus, WindowType, Write,
};

use crate::ends::{End, pair, poll, state, statuses, two_made};
use crate::way;

const OK: WcStatus = WcStatus::Success;

/// A WRITE that the peer refuses: it ends in error, or, if it was done when it was handed over, in the end of the
/// connection.
pub(crate) fn denied(from: &mut End, to: verbs_core::Remote, len: usize) {
    let mine = from.mr.slice(0..len);
    let write = Write::new(9, to).from(mine).signaled();
    from.qp.post_send(write).unwrap();
    let status = match way::IS_IWARP {
        true => WcStatus::Success,
        false => WcStatus::RemAccessErr,
    };
    assert_eq!(statuses(&mut from.send_cq), [(9, status)]);
    assert_eq!(state(from), QpState::Err);
}

/// A region that windows may be bound to, and that itself grants peers nothing.
fn bindable(end: &End) -> Mr {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let memory = Memory::alloc(4096).unwrap();
    end.pd.register(memory, access).wait().unwrap()
}

fn write(from: &mut End, to: verbs_core::Remote, len: usize) -> Vec<(u64, WcStatus)> {
    let mine = from.mr.slice(0..len);
    from.qp
        .post_send(Write::new(9, to).from(mine).signaled())
        .unwrap();
    statuses(&mut from.send_cq)
}

/// Goal: a window lets peers write where the region itself does not, and no further; after it is invalidated, no peer
/// can. Both the holder and the peer invalidate it.
#[test]
fn windows_of_type_2_open_a_part_of_a_region() {
    for kind in [WindowType::TwoA, WindowType::TwoB] {
        for by_peer in [false, true] {
            let (mut a, mut b) = pair();
            let mr = bindable(&b);
            let mut mw = b.pd.alloc_mw(kind).wait().unwrap();
            assert_eq!(mw.window_type(), kind);
            for _ in 0..2 {
                let bind = mw.bind(1, mr.slice(100..200), Access::REMOTE_WRITE);
                let bind = bind
                    .key_byte(mw.rkey().key_byte().wrapping_add(7))
                    .signaled();
                let key = b.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
                let done = poll(&mut b.send_cq);
                assert_eq!((done[0].status, done[0].opcode), (OK, WcOpcode::BindMw));
                let start = mr.slice(100..200).addr;
                assert_eq!(write(&mut a, mw.remote(start), 100), [(9, OK)]);
                if by_peer {
                    b.qp.post_recv(Recv::new(5)).unwrap();
                    a.qp.post_send(Send::new(2).invalidate(key)).unwrap();
                    assert_eq!(poll(&mut b.recv_cq)[0].invalidated(), Some(key));
                } else {
                    b.qp.post_send(LocalInv::new(2, key).signaled()).unwrap();
                    assert_eq!(statuses(&mut b.send_cq), [(2, OK)]);
                }
            }
            let stale = mw.remote(mr.slice(100..200).addr);
            denied(&mut a, stale, 1);
            mw.dealloc().wait().unwrap();
            mr.dereg().wait().unwrap();
        }
    }
}

/// Goal: an access beyond a window is refused although the region extends further.
#[test]
fn the_window_is_checked_and_not_the_region() {
    for (offset, len) in [(0, 101), (100, 1), (99, 2)] {
        let (mut a, mut b) = pair();
        let mr = bindable(&b);
        let mut mw = b.pd.alloc_mw(WindowType::TwoB).wait().unwrap();
        let access = Access::REMOTE_WRITE | Access::ZERO_BASED;
        let bind = mw.bind(1, mr.slice(100..200), access);
        b.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
        way::settle();
        assert_eq!(write(&mut a, mw.remote(0), 100), [(9, OK)]);
        denied(&mut a, mw.remote(offset), len);
        assert_eq!(state(&b), QpState::Err);
    }
}

/// Goal: a window of type 1 can be bound again at any time, and is unbound by a bind of no bytes; every bind has
/// another key.
#[test]
fn windows_of_type_1_are_bound_at_any_time() {
    let (mut a, mut b) = pair();
    let (first, second) = (bindable(&b), bindable(&b));
    let mut mw = b.pd.alloc_mw(WindowType::One).wait().unwrap();
    let mut keys = vec![mw.rkey()];
    for mr in [&first, &second, &first] {
        let bind = mw.bind(1, mr.all(), Access::REMOTE_WRITE).signaled();
        let key = b.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
        assert_eq!(statuses(&mut b.send_cq), [(1, OK)]);
        assert!(!keys.contains(&key));
        keys.push(key);
        let place = mw.remote(mr.iova());
        assert_eq!(write(&mut a, place, 64), [(9, OK)]);
        let mut got = [1; 64];
        mr.read(0, &mut got).unwrap();
    }
    let busy = first.dereg().wait().unwrap_err();
    assert_eq!(busy.error, Error::Busy);
    assert_eq!(busy.busy.unwrap().of(ObjectKind::Mw), 1);
    let first = busy.handle.unwrap();
    second.dereg().wait().unwrap();
    let busy = first.rereg().access(Access::empty()).wait().unwrap_err();
    assert_eq!(busy.error, Error::Busy);
    let first = busy.handle.unwrap();
    // o10-37.2.26: type 1 cannot be invalidated; a zero-length bind unbinds it.
    let unbind = mw.unbind(2).signaled();
    b.qp.send_queue().unwrap().bind(&mut mw, unbind).unwrap();
    assert_eq!(statuses(&mut b.send_cq), [(2, OK)]);
    let iova = first.iova();
    first.dereg().wait().unwrap();
    denied(&mut a, mw.remote(iova), 1);
    b.qp.post_send(LocalInv::new(3, mw.rkey())).unwrap();
}

/// Goal: a bind that breaks a rule completes in error at its own side; the window is as before.
#[test]
fn broken_binds_complete_in_error() {
    let (mut a, mut b) = pair();
    let mr = bindable(&b);
    let mut mw = b.pd.alloc_mw(WindowType::TwoB).wait().unwrap();
    let before = mw.rkey();
    let bind = mw.bind(1, mr.slice(4000..4097), Access::REMOTE_WRITE);
    b.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
    let done = poll(&mut b.send_cq);
    assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::MwBindErr));
    assert_eq!(done[0].cause(), Some(WcCause::Range));
    assert_eq!(state(&b), QpState::Err);
    assert_eq!(state(&a) == QpState::Err, way::IS_IWARP);
    mw.set_rkey(before);
    // Another queue pair may bind it.
    let mut ours =
        a.pd.create_qp(QpInit::rc(&a.send_cq, &a.recv_cq))
            .wait()
            .unwrap();
    let mut theirs =
        b.pd.create_qp(QpInit::rc(&b.send_cq, &b.recv_cq))
            .wait()
            .unwrap();
    way::connect(&mut ours, &mut theirs);
    let bind = mw
        .bind(2, mr.slice(4000..4096), Access::REMOTE_WRITE)
        .signaled();
    theirs.send_queue().unwrap().bind(&mut mw, bind).unwrap();
    assert_eq!(statuses(&mut b.send_cq), [(2, OK)]);
    let place = mw.remote(mr.iova() + 4000);
    let mine = a.mr.slice(0..96);
    ours.post_send(Write::new(3, place).from(mine).signaled())
        .unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(3, OK)]);
    // The queue pair that it is bound to stays until it is unbound.
    let busy = theirs.destroy().wait().unwrap_err();
    assert_eq!(busy.busy.unwrap().of(ObjectKind::Mw), 1);
    let theirs = busy.handle.unwrap();
    mw.dealloc().wait().unwrap();
    theirs.destroy().wait().unwrap();
    drop(poll(&mut a.recv_cq));
}

/// Goal: a queue pair to which a window of type 2 is not bound has no access, and 2A and 2B differ in the domain.
#[test]
fn other_queue_pairs_stay_outside() {
    for (kind, other_domain) in [
        (WindowType::TwoA, true),
        (WindowType::TwoB, true),
        (WindowType::TwoB, false),
    ] {
        let (mut a, b) = pair();
        let mr = bindable(&b);
        let mut mw = b.pd.alloc_mw(kind).wait().unwrap();
        let other = b.device.alloc_pd().wait().unwrap();
        let pd = if other_domain { &other } else { &b.pd };
        let mut theirs = pd
            .create_qp(QpInit::rc(&b.send_cq, &b.recv_cq))
            .wait()
            .unwrap();
        let mut ours =
            a.pd.create_qp(QpInit::rc(&a.send_cq, &a.recv_cq))
                .wait()
                .unwrap();
        way::connect(&mut ours, &mut theirs);
        let mut b = b;
        let bind = mw.bind(1, mr.all(), Access::REMOTE_WRITE).signaled();
        theirs.send_queue().unwrap().bind(&mut mw, bind).unwrap();
        let bound = statuses(&mut b.send_cq);
        if kind == WindowType::TwoB && other_domain {
            assert_eq!(bound, [(1, WcStatus::MwBindErr)], "C10-72");
            continue;
        }
        assert_eq!(bound, [(1, OK)]);
        let place = mw.remote(mr.iova());
        let mine = a.mr.slice(0..8);
        ours.post_send(Write::new(2, place).from(mine).signaled())
            .unwrap();
        assert_eq!(statuses(&mut a.send_cq), [(2, OK)]);
        // Through another queue pair to the same memory.
        denied(&mut a, place, 8);
    }
}

/// Goal: a window that is bound to a pool's mapping grants access no longer than the mapping: the flush ends it, the
/// pool's destroy is Busy until then, and a destroy that waits for it continues.
#[test]
fn windows_of_a_pool_end_with_its_flush_and_keep_it_from_being_destroyed() {
    let (mut a, mut b) = pair();
    let memory = Arc::new(Memory::alloc(4096).unwrap());
    let all = [Extent {
        memory: &memory,
        offset: 0,
        len: 4096,
    }];
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let make = || {
        let attr = FmrPoolAttr::new(2, 4, access);
        b.pd.create_fmr_pool(attr).wait().unwrap()
    };
    let (mut pool, mut idle) = (make(), make());
    let fmr = pool.map(all).unwrap();
    let mut mw = b.pd.alloc_mw(WindowType::TwoB).wait().unwrap();
    for _ in 0..2 {
        let bind = mw.bind_long(1, fmr.lkey, fmr.addr, 4096, Access::REMOTE_WRITE);
        b.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
        way::settle();
        assert_eq!(write(&mut a, mw.remote(fmr.addr), 16), [(9, OK)]);
        let busy = pool.destroy().wait().unwrap_err();
        assert_eq!(busy.error, Error::Busy);
        assert_eq!(busy.busy.unwrap().of(ObjectKind::Mw), 1);
        pool = busy.handle.unwrap();
        // A mapping in use is not flushed.
        pool.flush().wait().unwrap();
        assert_eq!(write(&mut a, mw.remote(fmr.addr), 16), [(9, OK)]);
        b.qp.post_send(LocalInv::new(2, mw.rkey())).unwrap();
        way::settle();
    }
    let bind = mw.bind_long(1, fmr.lkey, fmr.addr, 4096, Access::REMOTE_WRITE);
    b.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
    let addr = fmr.addr;
    pool.unmap(fmr);
    way::settle();
    a.mr.write(0, b"before the flush").unwrap();
    assert_eq!(write(&mut a, mw.remote(addr), 16), [(9, OK)]);
    pool.flush().wait().unwrap();
    a.mr.write(0, b"after the flush!").unwrap();
    denied(&mut a, mw.remote(addr), 16);
    let mut got = [0; 16];
    memory.read(0, &mut got).unwrap();
    assert_eq!(&got, b"before the flush");
    assert_eq!(state(&b), QpState::Err);

    // The same window again, on another queue pair, and a destroy that waits for it.
    let [mut c, mut d] = [&b, &a].map(|end| {
        let init = QpInit::rc(&end.send_cq, &end.recv_cq);
        end.pd.create_qp(init).wait().unwrap()
    });
    way::connect(&mut c, &mut d);
    let fmr = idle.map(all).unwrap();
    let bind = mw.bind_long(1, fmr.lkey, fmr.addr, 4096, Access::REMOTE_WRITE);
    c.send_queue().unwrap().bind(&mut mw, bind).unwrap();
    way::settle();
    let ended = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&ended);
    let _ = idle
        .destroy_when_idle()
        .issue(move |done| theirs.store(done.is_ok(), SeqCst));
    assert!(!ended.load(SeqCst), "the window is bound");
    c.post_send(LocalInv::new(2, mw.rkey())).unwrap();
    way::settle();
    assert!(ended.load(SeqCst));
    pool.destroy().wait().unwrap();
    mw.dealloc().wait().unwrap();
}

/// Goal: destroys that wait for a memory window continue when it is unbound: of the region under a window of either
/// type, and of the queue pair of a window of type 2.
#[test]
fn k12_destroys_that_wait_for_a_window_go_on() {
    for kind in [WindowType::One, WindowType::TwoB] {
        let (_a, mut b) = pair();
        let mr = bindable(&b);
        let mut mw = b.pd.alloc_mw(kind).wait().unwrap();
        let bind = mw.bind(1, mr.all(), Access::REMOTE_WRITE);
        b.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
        way::settle();
        let ended = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&ended);
        let _ = mr.dereg_when_idle().issue(move |done| {
            done.unwrap();
            theirs.fetch_add(1, SeqCst);
        });
        assert_eq!(ended.load(SeqCst), 0, "{kind:?}");
        if kind == WindowType::One {
            let unbind = mw.unbind(2);
            b.qp.send_queue().unwrap().bind(&mut mw, unbind).unwrap();
        } else {
            b.qp.post_send(LocalInv::new(2, mw.rkey())).unwrap();
        }
        way::settle();
        assert_eq!(ended.load(SeqCst), 1, "{kind:?}");
        if kind == WindowType::One {
            continue;
        }
        let mr = bindable(&b);
        let bind = mw.bind(3, mr.all(), Access::REMOTE_WRITE);
        b.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
        way::settle();
        let theirs = Arc::clone(&ended);
        let _ = b.qp.destroy_when_idle().issue(move |done| {
            done.unwrap();
            theirs.fetch_add(1, SeqCst);
        });
        assert_eq!(ended.load(SeqCst), 1, "the window is bound to it");
        mw.dealloc().wait().unwrap();
        way::settle();
        assert_eq!(ended.load(SeqCst), 2);
    }
}

/// Goal: a destroy that waits for a memory window continues when the peer invalidates it. Method: the region and the
/// queue pair of a window, each with a destroy that waits for it, and a SEND with its key.
#[test]
fn k12_destroys_go_on_when_the_peer_ends_the_window() {
    for of_region in [true, false] {
        let (mut a, mut b) = pair();
        let mr = bindable(&b);
        let mut mw = b.pd.alloc_mw(WindowType::TwoB).wait().unwrap();
        let bind = mw.bind(1, mr.all(), Access::REMOTE_WRITE);
        let key = b.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
        way::settle();
        b.qp.post_recv(Recv::new(5)).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&ended);
        let mut kept = None;
        if of_region {
            let _ = mr.dereg_when_idle().issue(move |done| {
                theirs.store(done.is_ok(), SeqCst);
            });
        } else {
            kept = Some(mr);
            let _ = b.qp.destroy_when_idle().issue(move |done| {
                theirs.store(done.is_ok(), SeqCst);
            });
        }
        assert!(!ended.load(SeqCst), "the window is bound");
        a.qp.post_send(Send::new(2).invalidate(key)).unwrap();
        assert_eq!(poll(&mut b.recv_cq)[0].invalidated(), Some(key));
        assert!(ended.load(SeqCst), "of the region: {of_region}");
        drop(kept);
    }
}

/// Goal: a device that does not fence refuses windows of type 2, which work requests invalidate, by the name of their bit; and it
/// allocates windows of type 1.
#[test]
fn a_device_without_fences_has_windows_of_type_1_alone() {
    let (a, _) = two_made(&VirtualClock::new(), hca_sim::Builder::without_fences);
    for (kind, bit) in [
        (WindowType::TwoA, "MEM_WINDOW_TYPE_2A"),
        (WindowType::TwoB, "MEM_WINDOW_TYPE_2B"),
    ] {
        let said = a.pd.alloc_mw(kind).wait().unwrap_err().to_string();
        assert!(said.ends_with(&format!("{bit} is clear")), "{said}");
    }
    a.pd.alloc_mw(WindowType::One).wait().unwrap();
}
