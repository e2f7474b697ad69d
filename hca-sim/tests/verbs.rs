//! Every verb beyond connections and their data: its effect, and every case in which it is refused.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::thread;

use hca_sim::clock::VirtualClock;
use hca_sim::extension::{CapabilityMask, Counters, PortCounters};
use hca_sim::{Hca, Limits, Loopback, connect};
use verbs_core::device::ModifyDevice;
use verbs_core::{
    Access, Attr, Av, Cq, Device, DeviceCap, Error, EventType, Extension, Gid, Guid, Lid, Memory,
    Mr, PKey, Pd, PostError, Qp, QpInit, QpState, Recv, Send, Srq, Wc, WcStatus, Why, Write,
};

use futures::executor::block_on;

fn device() -> Device {
    Hca::loopback().open().wait().unwrap()
}

fn invalid<T: std::fmt::Debug>(result: Result<T, Error>, attr: Attr, got: u32, max: u32) {
    assert_eq!(result.unwrap_err(), Error::Invalid { attr, got, max });
}

/// One end of a connection whose receives are shared by all queue pairs on `srq`.
struct End {
    qp: Qp,
    cq: Cq,
}

fn end(device: &Device, pd: &Pd, srq: Option<&Srq>) -> End {
    let cq = device.create_cq(64).wait().unwrap();
    let init = QpInit::rc(&cq, &cq).inline(64).depth(32, 16);
    let init = srq.map_or(init, |srq| init.srq(srq));
    let qp = pd.create_qp(init).wait().unwrap();
    End { qp, cq }
}

fn region(pd: &Pd) -> Mr {
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    pd.register(Memory::alloc(4096).unwrap(), access)
        .wait()
        .unwrap()
}

fn statuses(cq: &mut Cq) -> Vec<(u64, WcStatus)> {
    let mut out = [Wc::default(); 64];
    let polled = cq.poll(&mut out).iter();
    polled.map(|wc| (wc.wr_id, wc.status)).collect()
}

/// The device, a shared receive queue on it, and as many connections as requested, each from a sender to a queue pair
/// that takes its receives from there.
struct Shared {
    device: Device,
    pd: Pd,
    srq: Srq,
    mr: Mr,
    pairs: Vec<(End, End)>,
}

fn shared_on(hca: &Arc<Hca>, count: usize) -> Shared {
    let device = hca.open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let srq = pd.create_srq(16, 2).wait().unwrap();
    let mr = region(&pd);
    let pairs = (0..count)
        .map(|_| {
            let mut from = end(&device, &pd, None);
            let mut to = end(&device, &pd, Some(&srq));
            block_on(connect(&mut from.qp, &mut to.qp)).unwrap();
            (from, to)
        })
        .collect();
    Shared {
        device,
        pd,
        srq,
        mr,
        pairs,
    }
}

fn shared(count: usize) -> Shared {
    shared_on(&Hca::loopback().build(), count)
}

#[test]
fn tables_have_their_entries_and_no_others() {
    let hca = Hca::loopback().build();
    let device = hca.open().wait().unwrap();
    let port = device.query_port(1).wait().unwrap();
    assert_eq!((port.pkey_tbl_len, port.gid_tbl_len), (1, 1));
    assert_eq!(device.query_pkey(1, 0).wait(), Ok(PKey::DEFAULT));
    assert_eq!(device.query_gid(1, 0).wait(), Ok(port.gid));
    assert_eq!(hca.gid(), port.gid);
    invalid(device.query_pkey(2, 0).wait(), Attr::Port, 2, 1);
    invalid(device.query_pkey(1, 1).wait(), Attr::PkeyIndex, 1, 0);
    invalid(device.query_gid(0, 0).wait(), Attr::Port, 0, 1);
    invalid(device.query_gid(1, 7).wait(), Attr::GidIndex, 7, 0);
}

#[test]
fn a_modified_device_says_so_on_every_handle() {
    let hca = Hca::loopback().name("sim7").build();
    let (one, two) = (hca.open().wait().unwrap(), hca.open().wait().unwrap());
    let before = one.query().wait().unwrap();
    assert_eq!(hca.node_desc(), "sim7");
    let change = ModifyDevice {
        node_desc: Some("n".repeat(64)),
        sys_image_guid: Some(Guid(42)),
    };
    one.modify(change).wait().unwrap();
    assert_eq!(hca.node_desc(), "n".repeat(64));
    let after = two.query().wait().unwrap();
    assert_eq!(after.sys_image_guid, Guid(42));
    assert_eq!(after.node_guid, before.node_guid);
    let change = ModifyDevice {
        node_desc: Some("n".repeat(65)),
        sys_image_guid: Some(Guid(43)),
    };
    invalid(one.modify(change).wait(), Attr::NodeDesc, 65, 64);
    let kept = one.query().wait().unwrap().sys_image_guid;
    assert_eq!(kept, Guid(42), "all or nothing");
}

#[test]
fn a_modified_port_keeps_the_bits() {
    let device = device();
    let mask = || device.call::<CapabilityMask>(()).wait().unwrap();
    device.modify_port(1).set_caps(0b1110).wait().unwrap();
    device
        .modify_port(1)
        .set_caps(1)
        .clear_caps(0b0100)
        .reset_qkey_violations()
        .wait()
        .unwrap();
    assert_eq!(mask(), 0b1011);
    assert_eq!(device.query_port(1).wait().unwrap().qkey_viol_cntr, 0);
    invalid(device.modify_port(3).wait(), Attr::Port, 3, 1);
}

#[test]
fn an_extension_is_found_by_its_type() {
    struct Other;
    impl Extension for Other {
        const NAME: &'static str = "test.other";
        type Input = ();
        type Output = Counters;
    }
    let device = device();
    let counters = device.call::<PortCounters>(()).wait();
    assert_eq!(counters, Ok(Counters::default()));
    let other = device.call::<Other>(()).wait();
    assert_eq!(other, Err(Error::Unsupported(Attr::Extension)));
}

#[test]
fn capabilities_and_limits_are_those_that_hold() {
    let limits = Limits {
        max_srq: 1,
        max_ah: 1,
        ..Limits::default()
    };
    let device = Hca::loopback().limits(limits).open().wait().unwrap();
    let attr = device.query().wait().unwrap();
    let caps = DeviceCap::RC_RNR_NAK_GEN
        | DeviceCap::RESIZE_MAX_WR
        | DeviceCap::BAD_PKEY_CNTR
        | DeviceCap::SRQ_RESIZE
        | DeviceCap::N_NOTIFY_CQ
        | DeviceCap::SYS_IMAGE_GUID
        | DeviceCap::XRC
        | DeviceCap::CHANGE_PHY_PORT
        | DeviceCap::PORT_ACTIVE_EVENT
        | DeviceCap::MEM_WINDOW
        | DeviceCap::MEM_WINDOW_TYPE_2A
        | DeviceCap::MEM_WINDOW_TYPE_2B
        | DeviceCap::MEM_MGT_EXTENSIONS
        | DeviceCap::SG_GAPS_REG
        | DeviceCap::BLOCK_LIST
        | DeviceCap::ZERO_BASED
        | DeviceCap::FMR_POOL
        | DeviceCap::FLUSH_GLOBAL
        | DeviceCap::ATOMIC_WRITE
        | DeviceCap::SEND_WITH_IMM
        | DeviceCap::WRITE_WITH_IMM;
    assert_eq!(attr.caps, caps);
    assert_eq!((attr.max_srq, attr.max_ah, attr.max_pkeys), (1, 1, 1));
    assert_eq!((attr.max_mcast_grp, attr.max_mcast_qp_attach), (256, 64));
    let pd = device.alloc_pd().wait().unwrap();
    let av = Av::to_lid(1, Lid(1));
    let exhausted = |attr| Error::Exhausted { attr, max: 1 };
    let srq = pd.create_srq(attr.max_srq_wr, 1).wait().unwrap();
    assert_eq!(
        pd.create_srq(1, 1).wait().unwrap_err(),
        exhausted(Attr::MaxSrq)
    );
    let ah = pd.create_ah(av).wait().unwrap();
    assert_eq!(pd.create_ah(av).wait().unwrap_err(), exhausted(Attr::MaxAh));
    srq.destroy().wait().unwrap();
    ah.destroy().wait().unwrap();
    pd.create_srq(1, attr.max_srq_sge).wait().unwrap();
    pd.create_ah(av).wait().unwrap();
}

#[test]
fn sizes_of_completion_queues_are_checked() {
    let device = device();
    let mut cq = device.create_cq(10).wait().unwrap();
    let max = device.query().wait().unwrap().max_cqe;
    invalid(cq.resize(0).wait(), Attr::Cqe, 0, max);
    invalid(cq.resize(max + 1).wait(), Attr::Cqe, max + 1, max);
    assert_eq!(cq.depth(), 16);
}

#[test]
fn address_handles_are_checked_and_changed() {
    let device = device();
    let pd = device.alloc_pd().wait().unwrap();
    let gid = device.query_gid(1, 0).wait().unwrap();
    let ah = pd.create_ah(Av::to_gid(1, 0, gid)).wait().unwrap();
    assert_eq!(ah.query().wait(), Ok(Av::to_gid(1, 0, gid)));
    ah.modify(Av::to_lid(1, Lid(9))).wait().unwrap();
    assert_eq!(ah.query().wait(), Ok(Av::to_lid(1, Lid(9))));
    let service = Av {
        sl: 16,
        ..Av::to_lid(1, Lid(9))
    };
    invalid(ah.modify(Av::to_lid(2, Lid(9))).wait(), Attr::Port, 2, 1);
    invalid(ah.modify(service).wait(), Attr::Av, 16, 15);
    assert_eq!(ah.av(), Av::to_lid(1, Lid(9)), "a refused change is none");
    invalid(
        pd.create_ah(Av::to_gid(1, 1, gid)).wait(),
        Attr::GidIndex,
        1,
        0,
    );
    invalid(pd.create_ah(Av::to_lid(0, Lid(9))).wait(), Attr::Port, 0, 1);
    let busy = pd.dealloc().wait().unwrap_err();
    assert_eq!(busy.error, Error::Busy);
    ah.destroy().wait().unwrap();
    busy.handle.unwrap().dealloc().wait().unwrap();
}

#[test]
fn only_datagrams_can_be_multicast() {
    let device = device();
    let pd = device.alloc_pd().wait().unwrap();
    let end = end(&device, &pd, None);
    let mut group = [0; 16];
    (group[0], group[15]) = (0xff, 1);
    let attached = end.qp.attach_mcast(Gid(group), Lid(0xc001)).wait();
    let why = Why::NotDatagram;
    let attr = Attr::QpType;
    assert_eq!(attached.unwrap_err(), Error::Mismatch { attr, why });
    end.qp.destroy().wait().unwrap();
}

#[test]
fn a_region_is_queried_and_registered_anew() {
    let s = shared(1);
    let before = s.mr.query().wait().unwrap();
    assert_eq!((before.lkey, before.len), (s.mr.lkey(), 4096));
    let other = s.device.alloc_pd().wait().unwrap();
    let (old_key, old_sge) = (s.mr.lkey(), s.mr.slice(0..8));
    let mr =
        s.mr.rereg()
            .access(Access::LOCAL_WRITE)
            .pd(&other)
            .memory(Memory::alloc(100).unwrap())
            .wait()
            .unwrap();
    let after = mr.query().wait().unwrap();
    assert_ne!(after.lkey, old_key);
    assert_eq!((after.len, after.access), (100, Access::LOCAL_WRITE));
    assert_eq!(after.iova, mr.memory().addr());
    // The old key misses, and the new one is in another protection domain.
    let Shared {
        mut srq,
        mut pairs,
        pd,
        ..
    } = Shared {
        mr: region(&s.pd),
        ..s
    };
    let (from, to) = &mut pairs[0];
    srq.post_recv(Recv::new(1).into(old_sge)).unwrap();
    from.qp
        .post_send(Send::new(2).inline(b"12345678").signaled())
        .unwrap();
    assert_eq!(statuses(&mut to.cq), [(1, WcStatus::LocProtErr),]);
    assert_eq!(statuses(&mut from.cq), [(2, WcStatus::RemOpErr)]);
    let busy = other.dealloc().wait().unwrap_err();
    let mr = mr.rereg().pd(&pd).wait().unwrap();
    busy.handle.unwrap().dealloc().wait().unwrap();
    mr.write(0, b"anew").unwrap();
    mr.dereg().wait().unwrap();
}

#[test]
fn a_refused_reregistration_gives_the_handle_back() {
    let device = device();
    let pd = device.alloc_pd().wait().unwrap();
    let mr = region(&pd);
    let key = mr.lkey();
    let refused = mr.rereg().access(Access::REMOTE_WRITE).wait().unwrap_err();
    let (attr, why) = (Attr::Access, Why::NeedsLocalWrite);
    assert_eq!(refused.error, Error::Mismatch { attr, why });
    let mr = refused.handle.unwrap();
    assert_eq!(mr.query().wait().unwrap().lkey, key);
    mr.dereg().wait().unwrap();
}

#[test]
fn srq_sizes_are_checked_and_told() {
    let device = device();
    let pd = device.alloc_pd().wait().unwrap();
    let attr = device.query().wait().unwrap();
    let (wr, sge) = (attr.max_srq_wr, attr.max_srq_sge);
    invalid(pd.create_srq(wr + 1, 1).wait(), Attr::MaxSrqWr, wr + 1, wr);
    invalid(
        pd.create_srq(1, sge + 1).wait(),
        Attr::MaxRecvSge,
        sge + 1,
        sge,
    );
    let (attr, why) = (Attr::MaxSrqWr, Why::Zero);
    let none = pd.create_srq(0, 1).wait().unwrap_err();
    assert_eq!(none, Error::Mismatch { attr, why });
    let mut srq = pd.create_srq(3, 1).wait().unwrap();
    let told = srq.query().wait().unwrap();
    assert_eq!((told.max_wr, told.max_sge, told.srq_limit), (3, 1, 0));
    invalid(srq.resize(wr + 1).wait(), Attr::MaxSrqWr, wr + 1, wr);
    invalid(srq.arm_limit(4).wait(), Attr::SrqLimit, 4, 3);
    let mr = region(&pd);
    for number in 0..3 {
        srq.post_recv(Recv::new(number).into(mr.all())).unwrap();
    }
    let full = srq.post_recv(Recv::new(9).into(mr.all()));
    assert_eq!(full, Err(PostError::Full { depth: 3 }));
    let two = [mr.slice(0..1), mr.slice(1..2)];
    let many = srq.post_recv(Recv::new(9).scatter(&two));
    assert_eq!(many, Err(PostError::TooManySges { got: 2, max: 1 }));
    srq.destroy().wait().unwrap();
}

#[test]
fn queue_pairs_take_turns_on_an_srq() {
    let mut s = shared(2);
    for number in 0..4 {
        let at = number as usize * 16;
        s.srq
            .post_recv(Recv::new(number).into(s.mr.slice(at..at + 16)))
            .unwrap();
    }
    for (number, sender) in [(0, 0), (1, 1), (2, 1), (3, 0)] {
        let (from, to) = &mut s.pairs[sender];
        let text = [number as u8; 16];
        from.qp
            .post_send(Send::new(number).inline(&text).signaled())
            .unwrap();
        assert_eq!(statuses(&mut from.cq), [(number, WcStatus::Success)]);
        assert_eq!(statuses(&mut to.cq), [(number, WcStatus::Success)]);
        let mut arrived = [0xff; 16];
        s.mr.read(number as usize * 16, &mut arrived).unwrap();
        assert_eq!(arrived, text);
    }
    let (from, to) = &mut s.pairs[0];
    let own = to.qp.post_recv(Recv::new(1).into(s.mr.all()));
    assert_eq!(own, Err(PostError::UsesSrq));
    assert_eq!(to.qp.cap().max_recv_wr, 0);
    // A WRITE with immediate takes one too, whatever its memory; its bytes are not written there.
    s.srq.post_recv(Recv::new(8)).unwrap();
    let write = Write::new(9, s.mr.remote(256)).from(s.mr.slice(0..16));
    from.qp.post_send(write.imm(77).signaled()).unwrap();
    let mut out = [Wc::default(); 4];
    let [wc] = to.cq.poll(&mut out) else { panic!() };
    assert_eq!((wc.wr_id, wc.imm, wc.byte_len), (8, 77, 16));
}

#[test]
fn receives_are_checked_against_the_domain_of_the_srq() {
    let hca = Hca::loopback().build();
    let device = hca.open().wait().unwrap();
    let (pd, other) = (
        device.alloc_pd().wait().unwrap(),
        device.alloc_pd().wait().unwrap(),
    );
    let mut srq = other.create_srq(4, 1).wait().unwrap();
    let (theirs, ours) = (region(&other), region(&pd));
    let (mut from, mut to) = (end(&device, &pd, None), end(&device, &pd, Some(&srq)));
    block_on(connect(&mut from.qp, &mut to.qp)).unwrap();
    srq.post_recv(Recv::new(1).into(theirs.slice(0..8)))
        .unwrap();
    srq.post_recv(Recv::new(2).into(ours.slice(0..8))).unwrap();
    srq.post_recv(Recv::new(3).into(theirs.slice(0..8)))
        .unwrap();
    for number in [1, 2] {
        let send = Send::new(number).inline(b"abc").signaled();
        from.qp.post_send(send).unwrap();
    }
    assert_eq!(
        statuses(&mut to.cq),
        [(1, WcStatus::Success), (2, WcStatus::LocProtErr)]
    );
    assert_eq!(
        statuses(&mut from.cq),
        [(1, WcStatus::Success), (2, WcStatus::RemOpErr)]
    );
    // The third is not flushed: it belongs to all queue pairs.
    let mut next = (end(&device, &pd, None), end(&device, &pd, Some(&srq)));
    block_on(connect(&mut next.0.qp, &mut next.1.qp)).unwrap();
    next.0.qp.post_send(Send::new(5).inline(b"x")).unwrap();
    assert_eq!(statuses(&mut next.1.cq), [(3, WcStatus::Success)]);
}

#[test]
fn a_message_too_long_for_a_shared_receive_fails_at_both_ends() {
    let mut s = shared(1);
    s.srq
        .post_recv(Recv::new(1).into(s.mr.slice(0..4)))
        .unwrap();
    let (from, to) = &mut s.pairs[0];
    from.qp
        .post_send(Send::new(2).inline(b"12345").signaled())
        .unwrap();
    assert_eq!(statuses(&mut to.cq), [(1, WcStatus::LocLenErr)]);
    assert_eq!(statuses(&mut from.cq), [(2, WcStatus::RemInvReqErr)]);
    assert_eq!(to.qp.query().wait().unwrap().state, QpState::Err);
}

#[test]
fn a_sender_waits_for_a_shared_receive() {
    let clock = VirtualClock::new();
    let mut s = shared_on(&Hca::loopback().clock(clock).build(), 2);
    for (number, (from, _)) in s.pairs.iter_mut().enumerate() {
        let send = Send::new(number as u64).inline(b"late").signaled();
        from.qp.post_send(send).unwrap();
        assert_eq!(statuses(&mut from.cq), []);
    }
    let naks = s.device.call::<PortCounters>(()).wait().unwrap().rnr_naks;
    assert_eq!(naks, 2);
    // The clock stands still: the post makes the call.
    s.srq.post_recv(Recv::new(7).into(s.mr.all())).unwrap();
    s.srq.post_recv(Recv::new(8).into(s.mr.all())).unwrap();
    for (number, (from, to)) in s.pairs.iter_mut().enumerate() {
        let number = number as u64;
        assert_eq!(statuses(&mut from.cq), [(number, WcStatus::Success)]);
        assert_eq!(statuses(&mut to.cq), [(number + 7, WcStatus::Success)]);
    }
}

#[test]
fn a_write_that_finds_no_shared_receive_places_nothing_yet() {
    let clock = VirtualClock::new();
    let mut s = shared_on(&Hca::loopback().clock(clock).build(), 1);
    s.mr.write(0, b"data").unwrap();
    let (from, to) = &mut s.pairs[0];
    let write = Write::new(9, s.mr.remote(256)).from(s.mr.slice(0..4));
    from.qp.post_send(write.imm(5).signaled()).unwrap();
    let placed = |mr: &Mr| {
        let mut bytes = [0; 4];
        mr.read(256, &mut bytes).unwrap();
        bytes
    };
    assert_eq!(placed(&s.mr), [0; 4]);
    s.srq.post_recv(Recv::new(1)).unwrap();
    assert_eq!(&placed(&s.mr), b"data");
    assert_eq!(statuses(&mut to.cq), [(1, WcStatus::Success)]);
    assert_eq!(statuses(&mut from.cq), [(9, WcStatus::Success)]);
}

#[test]
fn an_srq_is_busy_while_queue_pairs_use_it() {
    let s = shared(1);
    let refused = s.srq.destroy().wait().unwrap_err();
    assert_eq!(refused.error, Error::Busy);
    for (from, to) in s.pairs {
        from.qp.destroy().wait().unwrap();
        to.qp.destroy().wait().unwrap();
    }
    refused.handle.unwrap().destroy().wait().unwrap();
}

#[test]
fn a_removed_device_takes_no_shared_receives() {
    let hca = Hca::loopback().build();
    let mut s = shared_on(&hca, 1);
    hca.remove();
    let refused = s.srq.post_recv(Recv::new(1).into(s.mr.all()));
    assert_eq!(refused, Err(PostError::DeviceRemoved));
}

/// Each receive is given to exactly one message, whichever thread sends it.
#[test]
fn threads_share_an_srq() {
    const MESSAGES: u64 = 400;
    let mut s = shared(3);
    let mr = &s.mr;
    let srq = &mut s.srq;
    let mut seen = thread::scope(|scope| {
        let senders: Vec<_> = s
            .pairs
            .iter_mut()
            .map(|(from, to)| {
                scope.spawn(move || {
                    let (mut sent, mut done, mut seen) = (0, 0, Vec::new());
                    while done < MESSAGES || seen.len() < MESSAGES as usize {
                        if sent < MESSAGES
                            && from
                                .qp
                                .post_send(Send::new(sent).inline(b"m").signaled())
                                .is_ok()
                        {
                            sent += 1;
                        }
                        for (number, status) in statuses(&mut from.cq) {
                            assert_eq!((number, status), (done, WcStatus::Success));
                            done += 1;
                        }
                        for (number, status) in statuses(&mut to.cq) {
                            assert_eq!(status, WcStatus::Success);
                            seen.push(number);
                        }
                        thread::yield_now();
                    }
                    seen
                })
            })
            .collect();
        let mut posted = 0;
        while posted < 3 * MESSAGES {
            match srq.post_recv(Recv::new(posted).into(mr.slice(0..64))) {
                Ok(()) => posted += 1,
                Err(error) => {
                    assert_eq!(error, PostError::Full { depth: 16 });
                    thread::yield_now();
                }
            }
        }
        senders
            .into_iter()
            .flat_map(|sender| sender.join().unwrap())
            .collect::<Vec<u64>>()
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..3 * MESSAGES).collect::<Vec<_>>());
}

#[test]
fn ports_out_of_a_partition_are_not_reached() {
    let link = Loopback::with_seed(5);
    let clock = VirtualClock::new();
    let make = || Hca::on(&link).clock(clock.clone()).build();
    let (a, b) = (make(), make());
    let (da, db) = (a.open().wait().unwrap(), b.open().wait().unwrap());
    let (pa, pb) = (da.alloc_pd().wait().unwrap(), db.alloc_pd().wait().unwrap());
    let (mut from, mut to) = (end(&da, &pa, None), end(&db, &pb, None));
    block_on(connect(&mut from.qp, &mut to.qp)).unwrap();
    let mr = region(&pb);
    to.qp.post_recv(Recv::new(1).into(mr.all())).unwrap();
    b.set_pkey(PKey(0x8005));
    assert_eq!(db.query_pkey(1, 0).wait(), Ok(PKey(0x8005)));
    let send = || Send::new(2).inline(b"x").signaled();
    from.qp.post_send(send()).unwrap();
    assert_eq!(statuses(&mut to.cq), []);
    a.set_pkey(PKey(0x0005));
    assert_eq!(statuses(&mut to.cq), [(1, WcStatus::Success)]);
    assert_eq!(statuses(&mut from.cq), [(2, WcStatus::Success)]);
}

#[test]
fn a_failed_device_answers_destroys_and_events_only() {
    let hca = Hca::loopback().build();
    let mut s = shared_on(&hca, 1);
    s.pairs[0]
        .0
        .qp
        .post_send(Send::new(3).inline(b"x"))
        .unwrap();
    hca.fail();
    assert!(hca.has_failed());
    // The end of its shared receive queue's use is reported first.
    for expected in [EventType::QpLastWqeReached, EventType::DeviceFatal] {
        assert_eq!(s.device.next_event().wait().unwrap().event, expected);
    }
    assert_eq!(s.device.query().wait().unwrap_err(), Error::DeviceFailed);
    let refused = s.pd.create_srq(1, 1).wait().unwrap_err();
    assert_eq!(refused, Error::DeviceFailed);
    assert_eq!(statuses(&mut s.pairs[0].0.cq), [(3, WcStatus::WrFlushErr)]);
    drop(s.pairs);
    s.srq.destroy().wait().unwrap();
    s.mr.dereg().wait().unwrap();
    s.pd.dealloc().wait().unwrap();
    s.device.close().wait().unwrap();
}
