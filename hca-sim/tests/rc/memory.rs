//! Keys that work requests make valid and invalid, and the other memory management extensions apart from windows.

use hca_sim::clock::VirtualClock;
use std::sync::Arc;
use std::time::Duration;
use verbs_core::{
    Access, Atomic, AtomicWrite, Capability, DeviceCap, Error, Extent, FastMr, FastReg, Flush,
    FmrPoolAttr, Layout, LocalInv, Memory, Mr, Placement, PostError, Qp, QpInit, QpState, RKey,
    Read, Recv, Registration, Send, SendWr, Wc, WcFlags, WcOpcode, WcStatus, Write,
    read_with_invalidate,
};

use crate::ends::{End, bytes, end_of, pair, pair_on, poll, state, statuses, two_made};
use crate::way;
use crate::windows::denied;

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// Pages of that memory, by their numbers.
fn pages<'m>(memory: &'m Arc<Memory>, numbers: &[usize]) -> Vec<Extent<'m>> {
    let page = |&number: &usize| Extent {
        memory,
        offset: number * 4096,
        len: 4096,
    };
    numbers.iter().map(page).collect()
}

fn post<'w>(qp: &mut Qp, wr: impl Into<SendWr<'w>>) {
    qp.post_send(wr).unwrap();
}

/// A region at that end for fast registration, mapped to the first pages of some memory in another order.
fn scattered(end: &End, order: &[usize]) -> (FastMr, Arc<Memory>) {
    let memory = Arc::new(Memory::alloc(order.len() * 4096).unwrap());
    let mut mr = end.pd.alloc_mr(order.len() as u32).wait().unwrap();
    assert_eq!(mr.map(pages(&memory, order)), Ok(order.len()));
    (mr, memory)
}

/// Goal: REG_MR and a SEND of the key in one batch; the peer writes to pages that lie anywhere and reads them as one;
/// LOCAL_INV; the old key is refused.
#[test]
fn a_registration_is_good_for_the_next_work_request() {
    let (mut a, mut b) = pair();
    let (mut fast, memory) = scattered(&a, &[2, 0, 3, 1]);
    for round in 0..3_u8 {
        let key = fast.next_key();
        b.qp.post_recv(Recv::new(50).into(b.mr.slice(0..16)))
            .unwrap();
        a.mr.write(0, &key.value().to_le_bytes()).unwrap();
        let register = fast.register(1, ALL).signaled();
        let chain = [
            register.into(),
            Send::new(2).from(a.mr.slice(0..4)).signaled().into(),
        ];
        a.qp.send_queue().unwrap().post_batch(&chain).unwrap();
        let done = poll(&mut a.send_cq);
        let told: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.opcode)).collect();
        assert_eq!(told, [(1, WcOpcode::RegMr), (2, WcOpcode::Send)]);
        assert!(done.iter().all(Wc::is_ok));
        assert_eq!(statuses(&mut b.recv_cq), [(50, OK)]);
        assert_eq!(bytes(&b, 0, 4), key.value().to_le_bytes());

        // 10,000 bytes from the middle of the first page on.
        let text: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8 ^ round).collect();
        b.mr.write(1000, &text).unwrap();
        let (mine, there) = (b.mr.slice(1000..11_000), fast.remote(2000));
        post(&mut b.qp, Write::new(3, there).from(mine).signaled());
        let back = b.mr.slice(20_000..30_000);
        post(&mut b.qp, Read::new(4, there).into(back).signaled());
        assert_eq!(statuses(&mut b.send_cq), [(3, OK), (4, OK)]);
        assert_eq!(bytes(&b, 20_000, 10_000), text);
        let mut found = Vec::new();
        for page in [2, 0, 3, 1] {
            let mut one = [0; 4096];
            memory.read(page * 4096, &mut one).unwrap();
            found.extend(one);
        }
        assert_eq!(found[2000..12_000], text);
        // The consumer's own key works as well.
        let own = fast.slice(2000..2100);
        post(&mut a.qp, Write::new(5, b.mr.remote(0)).from(own));
        post(&mut a.qp, LocalInv::new(6, key).signaled());
        let done = poll(&mut a.send_cq);
        assert_eq!(done.len(), 1);
        assert_eq!((done[0].wr_id, done[0].opcode), (6, WcOpcode::LocalInv));
        assert_eq!(bytes(&b, 0, 100), text[..100]);
        assert_eq!(fast.map(pages(&memory, &[2, 0, 3, 1])), Ok(4));
    }
    fast.next_key();
    let stale = fast.remote(0);
    denied(&mut b, stale, 1);
    drop(fast);
    assert_eq!(Arc::strong_count(&memory), 1, "the memory has come back");
}

/// Goal: a registration or invalidation that breaks a rule ends in error at its own side, and takes the queue pair to
/// ERR; the peer learns nothing of it.
#[test]
fn broken_registrations_complete_in_error() {
    type Broken = fn(&mut End, &mut FastMr) -> SendWr<'static>;
    let broken: [(&str, Broken); 9] = [
        ("valid already", |a, fast| {
            post(&mut a.qp, fast.register(1, ALL));
            fast.next_key();
            fast.register(2, ALL).into()
        }),
        ("another mapping", |_, fast| {
            let wr = fast.register(2, ALL);
            let memory = Arc::new(Memory::alloc(4096).unwrap());
            fast.map(pages(&memory, &[0])).unwrap();
            wr.into()
        }),
        ("another domain", |a, _| {
            let pd = a.device.alloc_pd().wait().unwrap();
            let mut other = pd.alloc_mr(1).wait().unwrap();
            let memory = Arc::new(Memory::alloc(4096).unwrap());
            other.map(pages(&memory, &[0])).unwrap();
            let wr = other.register(2, ALL).into();
            std::mem::forget((other, pd));
            wr
        }),
        ("rights", |_, fast| {
            fast.register(2, Access::REMOTE_WRITE).into()
        }),
        ("alignment", |_, fast| {
            fast.register_at(2, ALL, 0x1001).into()
        }),
        ("a registered key", |a, _| {
            let what = Registration {
                key: a.mr.lkey(),
                access: ALL,
                iova: 0,
                mapping: 0,
            };
            FastReg::new(2, what).into()
        }),
        ("invalidate of a registered key", |a, _| {
            LocalInv::new(2, RKey::new(a.mr.lkey().value())).into()
        }),
        ("invalidate of a stale key", |a, fast| {
            post(&mut a.qp, fast.register(1, ALL));
            LocalInv::new(2, fast.rkey().next()).into()
        }),
        ("invalidate of no key", |_, _| {
            LocalInv::new(2, RKey::new(0xffff_ff00)).into()
        }),
    ];
    for (name, make) in broken {
        let (mut a, mut b) = pair();
        let (mut fast, _memory) = scattered(&a, &[0]);
        let wr = make(&mut a, &mut fast);
        a.qp.post_send(wr).unwrap();
        let after = a.qp.post_send(LocalInv::new(3, fast.rkey()));
        assert!(after.is_ok(), "{name}: it can be posted, to be flushed");
        let failed = [(2, WcStatus::LocQpOpErr), (3, FLUSHED)];
        assert_eq!(statuses(&mut a.send_cq), failed, "{name}");
        assert_eq!(state(&a), QpState::Err, "{name}");
        assert_eq!(state(&b) == QpState::Err, way::IS_IWARP, "{name}");
        assert!(poll(&mut b.recv_cq).is_empty());
    }
}

/// Goal: the message invalidates the key, and the receiver learns which; a wrong key ends the receiver.
#[test]
fn send_with_invalidate_takes_the_key_away() {
    for shared in [false, true] {
        let (mut a, b) = pair();
        let mut srq = shared.then(|| b.pd.create_srq(8, 1).wait().unwrap());
        let init = |cq| QpInit::rc(cq, cq);
        let mut theirs = match &srq {
            Some(srq) => b.pd.create_qp(init(&b.recv_cq).srq(srq)).wait().unwrap(),
            None => b.pd.create_qp(init(&b.recv_cq)).wait().unwrap(),
        };
        let mut ours = a.pd.create_qp(init(&a.send_cq)).wait().unwrap();
        way::connect(&mut ours, &mut theirs);
        let mut b = b;
        let mut recv = |theirs: &mut Qp, wr_id| match &mut srq {
            Some(srq) => srq.post_recv(Recv::new(wr_id)).unwrap(),
            None => theirs.post_recv(Recv::new(wr_id)).unwrap(),
        };
        let (mut fast, _memory) = scattered(&b, &[1, 0]);
        for round in 0..2 {
            let key = fast.next_key();
            theirs.post_send(fast.register(1, ALL)).unwrap();
            way::settle();
            recv(&mut theirs, 50 + round);
            let bytes = a.mr.slice(0..64);
            ours.post_send(Write::new(2, fast.remote(0)).from(bytes))
                .unwrap();
            ours.post_send(Send::new(3).invalidate(key).signaled())
                .unwrap();
            assert_eq!(statuses(&mut a.send_cq), [(3, OK)]);
            let got = poll(&mut b.recv_cq);
            assert_eq!((got[0].wr_id, got[0].status), (50 + round, OK));
            assert_eq!(got[0].invalidated(), Some(key));
            assert!(got[0].flags.contains(WcFlags::WITH_INV));
        }
        recv(&mut theirs, 60);
        recv(&mut theirs, 61);
        let plain = RKey::new(b.mr.rkey().value());
        ours.post_send(Send::new(4).invalidate(plain).signaled())
            .unwrap();
        assert_eq!(
            statuses(&mut a.send_cq),
            [(4, OK)],
            "the sender hears nothing"
        );
        let failed = statuses(&mut b.recv_cq);
        assert_eq!(failed[0], (60, WcStatus::RemInvReqErr));
        if !shared {
            assert_eq!(failed[1], (61, FLUSHED));
        }
        assert_eq!(theirs.query().wait().unwrap().state, QpState::Err);
    }
}

/// Goal: with the option, an invalidate that is not fenced breaks the READ before it, and a fenced one does not;
/// without the option neither does. The portable READ with invalidate always works.
#[test]
fn fences_matter_where_hardware_does_not_wait() {
    for (early, fenced) in [(false, false), (false, true), (true, false), (true, true)] {
        let change = if early {
            |builder: hca_sim::Builder| builder.early_invalidates()
        } else {
            |builder| builder
        };
        let (mut a, mut b) = two_made(&VirtualClock::new(), change);
        way::connect(&mut a.qp, &mut b.qp);
        let (mut sink, memory) = scattered(&a, &[1, 0]);
        b.mr.write(0, b"fetched").unwrap();
        let access = a.device.read_sink(Access::empty());
        post(&mut a.qp, sink.register(1, access).signaled());
        assert_eq!(statuses(&mut a.send_cq), [(1, OK)]);
        let read = Read::new(2, b.mr.remote(0)).into(sink.slice(4096..4103));
        if fenced {
            let caps = a.device.query().wait().unwrap().caps;
            let chain = read_with_invalidate(caps, read, sink.rkey());
            a.qp.send_queue().unwrap().post_batch(&chain).unwrap();
        } else {
            let chain = [
                SendWr::from(read),
                LocalInv::new(2, sink.rkey()).signaled().into(),
            ];
            a.qp.send_queue().unwrap().post_batch(&chain).unwrap();
        }
        let got = statuses(&mut a.send_cq);
        let mut place = [0; 7];
        memory.read(0, &mut place).unwrap();
        if early && !fenced {
            assert_eq!(got, [(2, WcStatus::LocProtErr), (2, FLUSHED)]);
            assert_eq!(place, [0; 7]);
        } else {
            assert_eq!(got, [(2, OK)], "early {early}, fenced {fenced}");
            assert_eq!(&place, b"fetched");
        }
    }
}

/// Goal: a device that does not fence has no memory management extensions: whatever takes them is refused by the name of
/// their bit, and the rest works.
#[test]
fn a_device_without_fences_cannot_invalidate_keys() {
    let (mut a, mut b) = two_made(&VirtualClock::new(), hca_sim::Builder::without_fences);
    way::connect(&mut a.qp, &mut b.qp);
    let caps = a.device.query().wait().unwrap().caps;
    assert!(!caps.contains(DeviceCap::MEM_MGT_EXTENSIONS));
    let bit = "its capability bit MEM_MGT_EXTENSIONS is clear";
    let said = a.pd.alloc_mr(1).wait().unwrap_err().to_string();
    assert_eq!(
        said,
        format!("the device does not support the page list: {bit}")
    );
    let (key, to) = (RKey::new(0x100), b.mr.remote(0));
    let read = Read::new(3, to).into(a.mr.slice(0..7));
    for wr in [
        SendWr::from(LocalInv::new(1, key).fenced()),
        Send::new(2).invalidate(key).into(),
        SendWr::from(read.invalidate()),
    ] {
        let said = a.qp.post_send(wr).unwrap_err().to_string();
        let operation = "the device does not support this operation or flag";
        assert_eq!(said, format!("{operation}: {bit}"), "{:?}", wr.op);
    }
    b.mr.write(0, b"fetched").unwrap();
    post(&mut a.qp, read.signaled());
    assert_eq!(statuses(&mut a.send_cq), [(3, OK)]);
    assert_eq!(bytes(&a, 0, 7), b"fetched");
}

/// Goal: local work requests keep their place among others: they wait for those before them to complete
/// first, and complete in order.
#[test]
fn local_work_requests_complete_in_order() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = pair_on(&clock);
    let (mut fast, _memory) = scattered(&a, &[0]);
    b.qp.post_recv(Recv::new(50).into(b.mr.slice(0..64)))
        .unwrap();
    for wr_id in [1, 11, 21] {
        let key = fast.next_key();
        a.qp.send_queue()
            .unwrap()
            .post_batch(&[
                fast.register(wr_id, ALL).signaled().into(),
                Write::new(wr_id + 1, b.mr.remote(0))
                    .from(fast.slice(0..4096))
                    .signaled()
                    .into(),
                SendWr::from(
                    Read::new(wr_id + 2, b.mr.remote(0))
                        .into(fast.slice(0..4096))
                        .signaled(),
                ),
                LocalInv::new(wr_id + 3, key).signaled().into(),
            ])
            .unwrap();
        let done = statuses(&mut a.send_cq);
        let expected: Vec<_> = (wr_id..wr_id + 4).map(|wr_id| (wr_id, OK)).collect();
        assert_eq!(done, expected);
    }
    if way::IS_IWARP {
        // No SEND waits for a receive.
        return;
    }
    // A SEND that waits for a receive delays an invalidate.
    let key = fast.next_key();
    post(&mut a.qp, fast.register(31, ALL));
    let own = fast.slice(0..8);
    post(&mut a.qp, Send::new(32).from(own).signaled());
    post(&mut a.qp, Send::new(33).from(own).signaled());
    post(&mut a.qp, LocalInv::new(34, key).signaled());
    assert_eq!(statuses(&mut a.send_cq), [(32, OK)]);
    b.qp.post_recv(Recv::new(51).into(b.mr.slice(0..64)))
        .unwrap();
    // Over packets the RNR timer has to expire first.
    way::advance(&clock, Duration::from_millis(10));
    assert_eq!(statuses(&mut a.send_cq), [(33, OK), (34, OK)]);
}

/// Goal: lists of blocks and of pieces with gaps, at any alignment, under one key; offsets instead of
/// addresses.
#[test]
fn unaligned_lists_and_zero_based_regions() {
    let (mut a, mut b) = pair();
    let memory = Arc::new(Memory::alloc(4096).unwrap());
    for layout in [Layout::Gaps, Layout::Blocks(100)] {
        let mut fast = a.pd.alloc_mr(4).layout(layout).wait().unwrap();
        let pieces = [(901, 7), (13, 100), (333, 100), (2, 9)];
        let extents = pieces.map(|(offset, len)| Extent {
            memory: &memory,
            offset,
            len,
        });
        assert_eq!(fast.map(extents), Ok(4));
        assert_eq!(fast.len(), 216);
        post(&mut a.qp, fast.register(1, ALL | Access::ZERO_BASED));
        way::settle();
        assert_eq!(fast.remote(0).addr, 0);
        let text: Vec<u8> = (0..216).map(|i| i as u8).collect();
        b.mr.write(0, &text).unwrap();
        let mine = b.mr.slice(0..216);
        post(
            &mut b.qp,
            Write::new(2, fast.remote(0)).from(mine).signaled(),
        );
        assert_eq!(statuses(&mut b.send_cq), [(2, OK)]);
        let mut at = 0;
        for (offset, len) in pieces {
            let mut got = vec![0; len as usize];
            memory.read(offset, &mut got).unwrap();
            assert_eq!(got, text[at..at + len as usize]);
            at += len as usize;
        }
        // An atomic cannot span two pieces.
        if layout == Layout::Gaps {
            let fetch = Atomic::fetch_add(3, fast.remote(104), 1).into(b.mr.slice(0..8));
            post(&mut b.qp, fetch);
            let status = match way::IS_IWARP {
                true => WcStatus::RemOpErr,
                false => WcStatus::RemInvReqErr,
            };
            assert_eq!(statuses(&mut b.send_cq), [(3, status)]);
            assert!(fast.unmap().is_err(), "valid");
            (a, b) = pair();
        }
    }
}

#[test]
fn atomic_write_flush_and_masked_atomics() {
    let (mut a, b) = pair();
    if way::IS_IWARP {
        let (to, key) = (b.mr.remote(8), b.mr.rkey());
        let none = |cap| Err(PostError::NoCapability(Capability::of(cap)));
        let write = AtomicWrite::new(1, to).inline(b"8 bytes!");
        assert_eq!(a.qp.post_send(write), none(DeviceCap::ATOMIC_WRITE));
        let flush = Flush::region(2, key, Placement::GLOBAL);
        assert_eq!(a.qp.post_send(flush), none(DeviceCap::FLUSH_GLOBAL));
        return masked_atomics(&mut a, &b.mr);
    }
    let access = ALL | Access::FLUSH_GLOBAL;
    let mr =
        b.pd.register(Memory::alloc(4096).unwrap(), access)
            .wait()
            .unwrap();
    a.mr.write(0, b"8 bytes!").unwrap();
    post(
        &mut a.qp,
        AtomicWrite::new(1, mr.remote(8))
            .from(a.mr.slice(0..8))
            .signaled(),
    );
    let inline = AtomicWrite::new(2, mr.remote(16));
    post(&mut a.qp, inline.inline(b"inlined!").signaled());
    let range = Flush::range(3, mr.remote(0), 64, Placement::GLOBAL);
    post(&mut a.qp, range.signaled());
    let region = Flush::region(4, mr.rkey(), Placement::GLOBAL);
    post(&mut a.qp, region.signaled());
    let done = poll(&mut a.send_cq);
    let told: Vec<_> = done
        .iter()
        .map(|wc| (wc.wr_id, wc.status, wc.opcode))
        .collect();
    let (write, flush) = (WcOpcode::AtomicWrite, WcOpcode::Flush);
    assert_eq!(
        told,
        [
            (1, OK, write),
            (2, OK, write),
            (3, OK, flush),
            (4, OK, flush)
        ]
    );
    let mut got = [0; 16];
    mr.read(8, &mut got).unwrap();
    assert_eq!(&got, b"8 bytes!inlined!");
    masked_atomics(&mut a, &mr);
}

fn masked_atomics(a: &mut End, mr: &Mr) {
    mr.memory().store_u64(32, 0x00ff).unwrap();
    let word = mr.remote(32);
    let swap = Atomic::compare_swap(5, word, 0x00f0, 0x0a00).masks(0x00f0, 0x0f00);
    post(&mut a.qp, swap.into(a.mr.slice(64..72)).signaled());
    let add = Atomic::fetch_add(6, word, 0x0101).fields(0x8080);
    post(&mut a.qp, add.into(a.mr.slice(72..80)).signaled());
    let done = poll(&mut a.send_cq);
    let told: Vec<_> = done.iter().map(|wc| (wc.status, wc.opcode)).collect();
    assert_eq!(
        told,
        [
            (OK, WcOpcode::MaskedCompSwap),
            (OK, WcOpcode::MaskedFetchAdd)
        ]
    );
    let old: Vec<_> = [64, 72]
        .map(|at| a.mr.memory().load_u64(at).unwrap())
        .to_vec();
    assert_eq!(old, [0x00ff, 0x0aff]);
    assert_eq!(mr.memory().load_u64(32), Ok(0x0b00));
}

/// Goal: an operation without the right ends in the status that the specification has for it.
#[test]
fn atomic_write_and_flush_are_refused() {
    if way::IS_IWARP {
        // There are none.
        return;
    }
    type Broken = fn(&End, &End) -> (SendWr<'static>, WcStatus);
    let broken: [(&str, Broken); 4] = [
        ("ATOMIC WRITE beyond the end", |_, b| {
            let wr = AtomicWrite::new(1, b.mr.remote(1 << 16)).inline(b"too late");
            (wr.into(), WcStatus::RemAccessErr)
        }),
        ("FLUSH of a region that does not grant it", |_, b| {
            let wr = Flush::range(1, b.mr.remote(0), 8, Placement::GLOBAL);
            (wr.into(), WcStatus::RemAccessErr)
        }),
        ("FLUSH of the whole of such a region", |_, b| {
            let wr = Flush::region(1, b.mr.rkey(), Placement::GLOBAL);
            (wr.into(), WcStatus::RemAccessErr)
        }),
        ("FLUSH of nothing", |_, _| {
            let wr = Flush::region(1, RKey::new(0x700), Placement::GLOBAL);
            (wr.into(), WcStatus::RemAccessErr)
        }),
    ];
    for (name, make) in broken {
        let (mut a, mut b) = pair();
        let (wr, status) = make(&a, &b);
        a.qp.post_send(wr).unwrap();
        assert_eq!(statuses(&mut a.send_cq), [(1, status)], "{name}");
        assert_eq!(state(&b), QpState::Err, "{name}");
        assert!(poll(&mut b.recv_cq).is_empty());
    }
    let (mut a, b) = pair();
    let askew = AtomicWrite::new(1, b.mr.remote(4)).inline(b"unevenly");
    assert_eq!(a.qp.post_send(askew), Err(PostError::AtomicAlignment));
    let long = AtomicWrite::new(1, b.mr.remote(0)).from(a.mr.slice(0..9));
    assert_eq!(a.qp.post_send(long), Err(PostError::AtomicSize { got: 9 }));
    let lasting = Flush::range(1, b.mr.remote(0), 8, Placement::PERSISTENT);
    let refused = a.qp.post_send(lasting);
    assert_eq!(
        refused,
        Err(PostError::NoCapability(Capability::of(
            DeviceCap::FLUSH_PERSISTENT
        ))),
        "nothing outlives power"
    );
}

/// Goal: a pool maps at once, unmapped keys stay valid until they are flushed (the stale-key window), and no longer;
/// remaps have a limit; what is mapped already is shared.
#[test]
fn a_pool_maps_and_flushes() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = two_made(&clock, |builder| builder);
    way::connect(&mut a.qp, &mut b.qp);
    let attr = FmrPoolAttr {
        max_remaps: 2,
        dirty_watermark: 1,
        cache: true,
        ..FmrPoolAttr::new(2, 4, ALL)
    };
    let mut pool = a.pd.create_fmr_pool(attr).wait().unwrap();
    let memory = Arc::new(Memory::alloc(8 * 4096).unwrap());
    let write = |b: &mut End, to, wr_id| {
        let mine = b.mr.slice(0..4096);
        b.qp.post_send(Write::new(wr_id, to).from(mine).signaled())
            .unwrap();
        statuses(&mut b.send_cq)
    };
    let first = pool.map(pages(&memory, &[3, 1])).unwrap();
    let again = pool.map(pages(&memory, &[3, 1])).unwrap();
    assert_eq!(first.rkey, again.rkey, "shared");
    assert_eq!(write(&mut b, first.remote(0), 1), [(1, OK)]);
    let second = pool.map(pages(&memory, &[0])).unwrap();
    let none = pool.map(pages(&memory, &[5]));
    assert!(matches!(none, Err(Error::Exhausted { .. })));
    let stale = second.remote(0);
    assert!(!pool.unmap(again) && !pool.unmap(second));
    assert_eq!(write(&mut b, stale, 2), [(2, OK)], "nobody has flushed");
    let third = pool.map(pages(&memory, &[6])).unwrap();
    assert!(pool.unmap(third), "mapped twice: a flush is due");
    assert_eq!(pool.available(), 0);
    pool.flush().wait().unwrap();
    assert_eq!(pool.available(), 1, "the first is in use");
    assert_eq!(write(&mut b, first.remote(0), 3), [(3, OK)]);
    let odd = pool.map_at(pages(&memory, &[7]), 0x7_0001);
    assert!(matches!(odd, Err(Error::Mismatch { .. })), "{odd:?}");
    let fourth = pool.map_at(pages(&memory, &[7]), 0x7_0000).unwrap();
    assert_eq!(fourth.addr, 0x7_0000);
    assert_eq!(write(&mut b, fourth.remote(0), 4), [(4, OK)]);
    denied(&mut b, stale, 1);
    assert!(!pool.unmap(first));
    pool.destroy().wait().unwrap();
    assert_eq!(Arc::strong_count(&memory), 1);
    assert_eq!(a.hca.regions(), 1, "the end's own");
}

/// Goal: an end without the extensions refuses them when they are created or posted, and continues to work.
#[test]
fn without_the_bits_nothing_is_half_done() {
    let clock = VirtualClock::new();
    let (mut a, mut b) = two_made(&clock, |builder| {
        builder
            .without(DeviceCap::MEM_MGT_EXTENSIONS)
            .without(DeviceCap::ATOMIC_WRITE)
    });
    way::connect(&mut a.qp, &mut b.qp);
    let extensions = Capability::of(DeviceCap::MEM_MGT_EXTENSIONS);
    let refused = a.pd.alloc_mr(1).wait().unwrap_err();
    assert!(matches!(refused, Error::NoCapability { missing, .. } if missing == extensions));
    let write = AtomicWrite::new(1, b.mr.remote(0));
    for (wr, missing) in [
        (LocalInv::new(1, RKey::new(0x100)).into(), extensions),
        (Send::new(1).invalidate(RKey::new(0x100)).into(), extensions),
        (
            SendWr::from(write.inline(b"8 bytes!")),
            Capability::of(DeviceCap::ATOMIC_WRITE),
        ),
    ] {
        let refused = Err(PostError::NoCapability(missing));
        assert_eq!(a.qp.post_send(wr), refused);
    }
    post(
        &mut a.qp,
        Write::new(2, b.mr.remote(0))
            .from(a.mr.slice(0..8))
            .signaled(),
    );
    assert_eq!(statuses(&mut a.send_cq), [(2, OK)]);
    let again = end_of(Arc::clone(&a.hca), |init| init);
    assert_eq!(again.hca.regions(), 2, "one for each end");
}
