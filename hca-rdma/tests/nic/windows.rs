//! Memory windows, and keys that work requests make invalid.

use verbs_core::{
    Access, Attr, Capability, Device, DeviceCap, Error, LKey, LocalInv, Memory, Mr, ObjectKind, Pd,
    PostError, QpState, QpType, RKey, Recv, Remote, Send, WcOpcode, WcStatus, WindowType, Write,
};

use crate::pair::{End, connected};
use crate::rdma_core::nic;

/// A connected pair, a region at the second end that windows may be bound to and peers may not write to; `None` if the
/// device has no such windows, which it says.
fn bed(window_type: WindowType) -> Option<(Device, Pd, End, End, Mr)> {
    let device = Device::open(nic()).wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let needed = match window_type {
        WindowType::One => DeviceCap::MEM_WINDOW,
        WindowType::TwoA => DeviceCap::MEM_WINDOW_TYPE_2A,
        WindowType::TwoB => DeviceCap::MEM_WINDOW_TYPE_2B,
    };
    if !device.query().wait().unwrap().caps.contains(needed) {
        let refused = pd.alloc_mw(window_type).wait().unwrap_err();
        let (attr, missing) = (Attr::MemoryWindow, Capability::of(needed));
        assert_eq!(refused, Error::NoCapability { attr, missing });
        return None;
    }
    let (left, right) = connected(&device, &pd, QpType::Rc);
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let memory = Memory::alloc(4096).unwrap();
    let mr = pd.register(memory, access).wait().unwrap();
    Some((device, pd, left, right, mr))
}

/// Writes through the key, and returns the status.
fn write(from: &mut End, to: Remote, bytes: &[u8]) -> WcStatus {
    let write = Write::new(9, to).inline(bytes).signaled();
    from.qp.post_send(write).unwrap();
    from.completion().status
}

fn bound(end: &mut End) {
    let wc = end.completion();
    assert_eq!(
        (wc.status, wc.opcode),
        (WcStatus::Success, WcOpcode::BindMw)
    );
}

/// How many windows keep the region, which is handed back.
fn windows_of(mr: Mr) -> (u32, Mr) {
    let refused = mr.dereg().wait().unwrap_err();
    assert_eq!(refused.error, Error::Busy);
    let busy = refused.busy.expect("it says why");
    (
        busy.of(ObjectKind::Mw),
        refused.handle.expect("it comes back"),
    )
}

/// Goal: a window of type 2 lets a peer write where the region does not; while it is bound, region and queue pair are
/// Busy; when it has been made invalid, by the holder or by the peer's message, the key is refused and both are free.
#[test]
fn windows_of_type_2_open_a_part_of_a_region_until_their_key_is_invalid() {
    opens_until_invalid(&[WindowType::TwoB, WindowType::TwoA], false);
}

/// Goal: the same, where the peer's message makes the key invalid, and its completion says so.
#[test]
fn windows_of_type_2_are_made_invalid_by_the_peer() {
    opens_until_invalid(&[WindowType::TwoB], true);
}

fn opens_until_invalid(kinds: &[WindowType], by_peer: bool) {
    for &kind in kinds {
        let Some((_device, pd, mut left, mut right, mut mr)) = bed(kind) else {
            continue;
        };
        let mut mw = pd.alloc_mw(kind).wait().unwrap();
        for round in 0..2_u8 {
            let bind = mw.bind(1, mr.slice(100..200), Access::REMOTE_WRITE);
            let bind = bind
                .key_byte(mw.rkey().key_byte().wrapping_add(7))
                .signaled();
            let key = right.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
            bound(&mut right);
            let start = mr.slice(100..200).addr;
            assert_eq!(
                write(&mut left, mw.remote(start), &[round; 50]),
                WcStatus::Success
            );
            let mut bytes = [9; 51];
            mr.read(100, &mut bytes).unwrap();
            assert_eq!(bytes[..50], [round; 50]);
            let (count, same) = windows_of(mr);
            mr = same;
            assert_eq!(count, 1);
            if by_peer {
                right.qp.post_recv(Recv::new(5)).unwrap();
                let send = Send::new(2).invalidate(key).signaled();
                left.qp.post_send(send).unwrap();
                assert_eq!(left.completion().status, WcStatus::Success);
                assert_eq!(right.completion().invalidated(), Some(key));
            } else {
                right
                    .qp
                    .post_send(LocalInv::new(2, key).signaled())
                    .unwrap();
                let wc = right.completion();
                assert_eq!(
                    (wc.status, wc.opcode),
                    (WcStatus::Success, WcOpcode::LocalInv)
                );
            }
        }
        let stale = mw.remote(mr.slice(100..200).addr);
        mr.dereg().wait().expect("nothing is bound to it");
        assert_eq!(write(&mut left, stale, b"late"), WcStatus::RemAccessErr);
        right.qp.destroy().wait().expect("nothing is bound by it");
        mw.dealloc().wait().unwrap();
    }
}

/// Goal: a queue pair by which a window of type 2 is bound is Busy until the window is deallocated.
#[test]
fn a_bound_window_of_type_2_keeps_its_queue_pair() {
    let Some((device, pd, _left, mut right, mr)) = bed(WindowType::TwoB) else {
        return;
    };
    let mut mw = pd.alloc_mw(WindowType::TwoB).wait().unwrap();
    let bind = mw.bind(1, mr.all(), Access::REMOTE_READ).signaled();
    right.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap();
    bound(&mut right);
    let End { qp, cq, .. } = right;
    let refused = qp.destroy().wait().unwrap_err();
    assert_eq!(refused.error, Error::Busy);
    assert_eq!(refused.busy.expect("it says why").of(ObjectKind::Mw), 1);
    let qp = refused.handle.expect("it comes back");
    mw.dealloc().wait().unwrap();
    qp.destroy().wait().expect("nothing is bound by it");
    mr.dereg().wait().expect("nothing is bound to it");
    drop((cq, pd));
    device.close().wait().unwrap_err();
}

/// Goal: a window of type 1 is bound at any time, by a new key each time; bound to nothing, it gives no access.
#[test]
fn windows_of_type_1_are_bound_again_and_unbound() {
    let Some((_device, pd, mut left, mut right, mr)) = bed(WindowType::One) else {
        return;
    };
    let mut mw = pd.alloc_mw(WindowType::One).wait().unwrap();
    let mut keys = vec![mw.rkey()];
    for at in [0, 500] {
        let bind = mw
            .bind(1, mr.slice(at..at + 8), Access::REMOTE_WRITE)
            .signaled();
        keys.push(right.qp.send_queue().unwrap().bind(&mut mw, bind).unwrap());
        bound(&mut right);
        let there = mw.remote(mr.slice(at..at + 8).addr);
        assert_eq!(write(&mut left, there, &[at as u8; 8]), WcStatus::Success);
    }
    keys.dedup();
    assert_eq!(keys.len(), 3, "each bind has a key of its own");
    let (count, mr) = windows_of(mr);
    assert_eq!(count, 1);
    let unbind = mw.unbind(2).signaled();
    right
        .qp
        .send_queue()
        .unwrap()
        .bind(&mut mw, unbind)
        .unwrap();
    bound(&mut right);
    let there = mw.remote(mr.slice(500..508).addr);
    mr.dereg().wait().expect("nothing is bound to it");
    assert_eq!(write(&mut left, there, b"late"), WcStatus::RemAccessErr);
}

/// Goal: what cannot be bound is refused at the post, by the key that is wrong; then nothing is Busy.
#[test]
fn a_bind_of_keys_that_nothing_has_is_refused_by_the_key() {
    let Some((_device, pd, left, mut right, mr)) = bed(WindowType::One) else {
        return;
    };
    let mw = pd.alloc_mw(WindowType::One).wait().unwrap();
    let mut refused = |bind| right.qp.post_send(bind).unwrap_err();
    let unknown = LKey::new(0x00ff_ff01);
    let bind = mw.bind_long(1, unknown, 0, 8, Access::REMOTE_READ);
    assert_eq!(refused(bind), PostError::Key(unknown.value()));
    // A region without MW_BIND.
    let bind = mw.bind(1, left.mr.slice(0..8), Access::REMOTE_READ);
    assert_eq!(refused(bind), PostError::Key(left.mr.lkey().value()));
    // A window of type 1 has no key of its consumer's choice.
    let bind = mw.bind(1, mr.slice(0..8), Access::REMOTE_READ);
    let byte = mw.rkey().key_byte().wrapping_add(2);
    let key = RKey::new(mw.rkey().index() << 8 | u32::from(byte));
    assert_eq!(refused(bind.key_byte(byte)), PostError::Key(key.value()));
    let gone = mw.rkey();
    mw.dealloc().wait().unwrap();
    assert_eq!(refused(bind), PostError::Key(gone.value()));
    let batch = right.qp.send_queue().unwrap().post_batch(&[bind.wr]);
    assert_eq!(batch.unwrap_err().error, PostError::Key(gone.value()));
    mr.dereg().wait().expect("nothing is bound to it");
    // Datagrams have no windows.
    let mut datagrams = crate::pair::datagrams(&_device, &pd);
    let inv = LocalInv::new(1, gone);
    assert_eq!(datagrams.qp.post_send(inv), Err(PostError::NoDestination));
    assert_eq!(right.qp.query().wait().unwrap().state, QpState::Rts);
}
