//! Every asynchronous event that this HCA can cause: raised when it is due, once, and for the right object. The other
//! events are in `docs/EVENTS.md`, each with the reason.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use hca_sim::clock::VirtualClock;
use hca_sim::extension::PortCounters;
use hca_sim::link::Cable;
use hca_sim::{Hca, Loopback, connect};
use verbs_core::{
    Access, Arm, Armed, AsyncEvent, Av, CompletionChannel, Cq, Device, Error, EventType, Gid, Guid,
    Memory, Mr, Mtu, ObjectId, ObjectKind, PKey, Path, Pd, PortState, Psn, Qp, QpAttr, QpInit,
    QpState, Read, Recv, Remote, Send, Srq, Subject, Wc, WcStatus, Write,
};

/// An HCA with a device on it, and the events that it has raised.
struct Node {
    hca: Arc<Hca>,
    device: Device,
    pd: Pd,
    events: Arc<Mutex<Vec<AsyncEvent>>>,
}

impl Node {
    fn on(link: &Loopback, clock: &VirtualClock) -> Self {
        Self::of(Hca::on(link).clock(clock.clone()).build())
    }

    fn of(hca: Arc<Hca>) -> Self {
        let device = hca.open().wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        device.on_event(move |event| seen.lock().unwrap().push(event));
        Self {
            hca,
            device,
            pd,
            events,
        }
    }

    /// Two nodes that exchange packets when their HCAs take turns.
    fn over_packets() -> (Self, Self) {
        let clock = VirtualClock::new();
        let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let (a, b) = Cable::new().plug(&[a], &[b]);
        let node = |link| Self::of(Hca::over(link).clock(clock.clone()).build());
        (node(a), node(b))
    }

    fn alone() -> Self {
        Self::on(&Loopback::with_seed(1), &VirtualClock::new())
    }

    /// The events that were raised since the last look.
    fn events(&self) -> Vec<AsyncEvent> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    fn end(&self, depth: u32, srq: Option<&Srq>) -> End {
        let cq = self.device.create_cq(depth).wait().unwrap();
        let init = QpInit::rc(&cq, &cq).inline(64).depth(32, 32);
        let init = srq.map_or(init, |srq| init.srq(srq));
        let qp = self.pd.create_qp(init).wait().unwrap();
        End { qp, cq }
    }

    fn region(&self, access: Access) -> Mr {
        let memory = Memory::alloc(256).unwrap();
        self.pd.register(memory, access).wait().unwrap()
    }
}

struct End {
    qp: Qp,
    cq: Cq,
}

impl End {
    fn id(&self) -> ObjectId {
        ObjectId {
            kind: ObjectKind::Qp,
            number: self.qp.qpn().value(),
        }
    }

    fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        let mut out = [Wc::default(); 64];
        let polled = self.cq.poll(&mut out).iter();
        polled.map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn to_rtr(&self, node: &Node, peer: &Self) {
        let path = Path {
            av: Av::to_lid(1, node.hca.lid()),
            dest_qpn: peer.qp.qpn(),
            rq_psn: Psn::new(7),
            mtu: Mtu::B1024,
        };
        self.qp.init(1, Access::REMOTE).wait().unwrap();
        self.qp.ready_to_receive(&path).wait().unwrap();
    }

    fn to_rts(&self) {
        self.qp.ready_to_send(Psn::new(7)).wait().unwrap();
    }
}

fn about(event: EventType, id: ObjectId) -> AsyncEvent {
    let subject = Subject::Object(id);
    AsyncEvent { event, subject }
}

fn on_port(event: EventType) -> AsyncEvent {
    let subject = Subject::Port(1);
    AsyncEvent { event, subject }
}

/// Two ends on one node, connected.
fn connected(node: &Node, depth: u32, srq: Option<&Srq>) -> (End, End) {
    let (mut from, mut to) = (node.end(64, None), node.end(depth, srq));
    block_on(connect(&mut from.qp, &mut to.qp)).unwrap();
    assert_eq!(node.events(), [], "connecting is no event");
    (from, to)
}

#[test]
fn comm_est_at_the_first_message_in_rtr_and_only_there() {
    let node = Node::alone();
    let (mut from, mut to) = (node.end(64, None), node.end(64, None));
    from.to_rtr(&node, &to);
    to.to_rtr(&node, &from);
    from.to_rts();
    let mr = node.region(Access::LOCAL_WRITE);
    for number in [1, 2] {
        to.qp.post_recv(Recv::new(number).into(mr.all())).unwrap();
    }
    assert_eq!(node.events(), []);
    from.qp.post_send(Send::new(1).inline(b"a")).unwrap();
    assert_eq!(node.events(), [about(EventType::CommEst, to.id())]);
    from.qp.post_send(Send::new(2).inline(b"b")).unwrap();
    assert_eq!(to.statuses().len(), 2);
    to.to_rts();
    to.qp.post_recv(Recv::new(3).into(mr.all())).unwrap();
    from.qp.post_send(Send::new(3).inline(b"c")).unwrap();
    assert_eq!(to.statuses(), [(3, WcStatus::Success)]);
    assert_eq!(node.events(), [], "once");
}

#[test]
fn comm_est_even_if_nobody_was_ready() {
    let node = Node::alone();
    let (mut from, to) = (node.end(64, None), node.end(64, None));
    from.to_rtr(&node, &to);
    to.to_rtr(&node, &from);
    from.to_rts();
    from.qp.post_send(Send::new(1).inline(b"a")).unwrap();
    assert_eq!(node.events(), [about(EventType::CommEst, to.id())]);
}

#[test]
fn sq_drained_when_asked_for() {
    let node = Node::alone();
    let (from, _to) = connected(&node, 64, None);
    let drain = |notify| QpAttr {
        en_sqd_async_notify: notify,
        ..QpAttr::to(QpState::Sqd)
    };
    from.qp.modify(drain(None)).wait().unwrap();
    from.qp.modify(QpAttr::to(QpState::Rts)).wait().unwrap();
    assert_eq!(node.events(), []);
    from.qp.modify(drain(Some(true))).wait().unwrap();
    assert_eq!(node.events(), [about(EventType::SqDrained, from.id())]);
}

#[test]
fn a_queue_pair_drains_until_what_it_began_has_ended() {
    let (near, far) = Node::over_packets();
    let (mut from, mut to) = (near.end(64, None), far.end(64, None));
    block_on(connect(&mut from.qp, &mut to.qp)).unwrap();
    let mr = far.region(Access::LOCAL_WRITE);
    to.qp.post_recv(Recv::new(1).into(mr.all())).unwrap();
    near.hca.turn();
    from.qp
        .post_send(Send::new(1).inline(b"a").signaled())
        .unwrap();
    let drain = QpAttr {
        en_sqd_async_notify: Some(true),
        ..QpAttr::to(QpState::Sqd)
    };
    from.qp.modify(drain).wait().unwrap();
    let info = from.qp.query().wait().unwrap();
    assert_eq!(
        (info.state, info.sq_draining),
        (QpState::Sqd, true),
        "nobody has answered"
    );
    assert_eq!(near.events(), []);
    for _ in 0..8 {
        far.hca.turn();
        near.hca.turn();
    }
    assert_eq!(from.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(near.events(), [about(EventType::SqDrained, from.id())]);
    assert!(!from.qp.query().wait().unwrap().sq_draining);
}

#[test]
fn a_refused_right_is_an_invalid_request_and_a_bad_key_an_access_violation() {
    let node = Node::alone();
    let ours = node.region(Access::LOCAL_WRITE);
    let local = node.region(Access::LOCAL_WRITE);
    let remote = node.region(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let (mut from, to) = connected(&node, 64, None);
    to.qp
        .modify(QpAttr {
            access: Some(Access::REMOTE_READ),
            ..QpAttr::default()
        })
        .wait()
        .unwrap();
    let write = Write::new(1, remote.remote(0)).from(ours.slice(0..8));
    from.qp.post_send(write).unwrap();
    assert_eq!(node.events(), [about(EventType::QpReqErr, to.id())]);
    assert_eq!(from.statuses(), [(1, WcStatus::RemInvReqErr)]);

    let (mut from, to) = connected(&node, 64, None);
    let there = Remote {
        rkey: verbs_core::RKey::new(local.lkey().value()),
        ..local.remote(0)
    };
    let read = Read::new(2, there).into(ours.slice(0..8));
    from.qp.post_send(read).unwrap();
    assert_eq!(node.events(), [about(EventType::QpAccessErr, to.id())]);
    assert_eq!(from.statuses(), [(2, WcStatus::RemAccessErr)]);
    assert_eq!(to.qp.query().wait().unwrap().state, QpState::Err);
}

#[test]
fn a_receive_that_completes_in_error_is_told_by_that_alone() {
    let node = Node::alone();
    let mr = node.region(Access::LOCAL_WRITE);
    let (mut from, mut to) = connected(&node, 64, None);
    to.qp.post_recv(Recv::new(1).into(mr.slice(0..1))).unwrap();
    from.qp.post_send(Send::new(2).inline(b"too long")).unwrap();
    assert_eq!(to.statuses(), [(1, WcStatus::LocLenErr)]);
    assert_eq!(node.events(), []);
}

#[test]
fn an_overrun_queue_and_its_queue_pairs_fail_once() {
    let node = Node::alone();
    let mr = node.region(Access::LOCAL_WRITE);
    let (mut from, mut to) = connected(&node, 2, None);
    for number in 0..4 {
        to.qp.post_recv(Recv::new(number).into(mr.all())).unwrap();
    }
    for number in 0..3 {
        from.qp.post_send(Send::new(number).inline(b"x")).unwrap();
    }
    let events = node.events();
    let [first, second] = events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(first.event, EventType::CqErr);
    let Subject::Object(cq) = first.subject else {
        panic!("{first}");
    };
    assert_eq!(cq.kind, ObjectKind::Cq);
    assert_eq!(second, about(EventType::QpFatal, to.id()));
    let counted = node.device.call::<PortCounters>(()).wait().unwrap();
    assert_eq!(counted.cq_overruns, 1);
}

#[test]
fn the_srq_limit_fires_once_per_arming() {
    let node = Node::alone();
    let mut srq = node.pd.create_srq(8, 1).wait().unwrap();
    let mr = node.region(Access::LOCAL_WRITE);
    let (mut from, _to) = connected(&node, 64, Some(&srq));
    for number in 0..4 {
        srq.post_recv(Recv::new(number).into(mr.all())).unwrap();
    }
    srq.arm_limit(3).wait().unwrap();
    from.qp.post_send(Send::new(0).inline(b"x")).unwrap();
    assert_eq!(node.events(), [], "three are not fewer than three");
    assert_eq!(srq.query().wait().unwrap().srq_limit, 3);
    from.qp.post_send(Send::new(1).inline(b"x")).unwrap();
    let events = node.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].event, EventType::SrqLimitReached);
    let told = matches!(events[0].subject, Subject::Object(id) if id.kind == ObjectKind::Srq);
    assert!(told);
    assert_eq!(srq.query().wait().unwrap().srq_limit, 0, "not armed");
    from.qp.post_send(Send::new(2).inline(b"x")).unwrap();
    assert_eq!(node.events(), []);
    // One is left: armed above that, it is due at once.
    srq.arm_limit(1).wait().unwrap();
    assert_eq!(node.events(), []);
    srq.arm_limit(2).wait().unwrap();
    assert_eq!(node.events().len(), 1);
}

#[test]
fn the_last_wqe_of_a_queue_pair_on_an_srq() {
    let node = Node::alone();
    let mut srq = node.pd.create_srq(8, 1).wait().unwrap();
    let mr = node.region(Access::LOCAL_WRITE);
    let (from, to) = connected(&node, 64, Some(&srq));
    srq.post_recv(Recv::new(1).into(mr.all())).unwrap();
    to.qp.to_error().wait().unwrap();
    assert_eq!(node.events(), [about(EventType::QpLastWqeReached, to.id())]);
    to.qp.to_error().wait().unwrap();
    assert_eq!(node.events(), [], "once");
    from.qp.to_error().wait().unwrap();
    assert_eq!(node.events(), [], "that one has a queue of its own");
    to.qp.modify(QpAttr::to(QpState::Reset)).wait().unwrap();
    to.qp.destroy().wait().unwrap();
    assert_eq!(node.events(), []);
}

#[test]
fn a_port_goes_down_and_comes_back() {
    let (link, clock) = (Loopback::with_seed(2), VirtualClock::new());
    let (a, b) = (Node::on(&link, &clock), Node::on(&link, &clock));
    let (mut from, mut to) = (a.end(64, None), b.end(64, None));
    block_on(connect(&mut from.qp, &mut to.qp)).unwrap();
    let mr = b.region(Access::LOCAL_WRITE);
    to.qp.post_recv(Recv::new(1).into(mr.all())).unwrap();
    let state = |node: &Node| node.device.query_port(1).wait().unwrap().state;
    b.hca.port_down();
    b.hca.port_down();
    assert_eq!(b.events(), [on_port(EventType::PortErr)], "once");
    assert_eq!((state(&a), state(&b)), (PortState::Active, PortState::Down));
    from.qp
        .post_send(Send::new(2).inline(b"x").signaled())
        .unwrap();
    assert_eq!((from.statuses(), to.statuses()), (vec![], vec![]));
    b.hca.port_up();
    assert_eq!(b.events(), [on_port(EventType::PortActive)]);
    assert_eq!(to.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(from.statuses(), [(2, WcStatus::Success)]);
    assert_eq!(a.events(), [], "the other port has seen nothing");
    let counted = b.device.call::<PortCounters>(()).wait().unwrap();
    assert_eq!(counted.link_downed, 1);
}

#[test]
fn a_port_that_stays_down_is_given_up() {
    let (link, clock) = (Loopback::with_seed(2), VirtualClock::new());
    let (a, b) = (Node::on(&link, &clock), Node::on(&link, &clock));
    let (mut from, mut to) = (a.end(64, None), b.end(64, None));
    block_on(connect(&mut from.qp, &mut to.qp)).unwrap();
    a.hca.port_down();
    from.qp.post_send(Send::new(2).inline(b"x")).unwrap();
    clock.advance(Duration::from_secs(60));
    assert_eq!(from.statuses(), [(2, WcStatus::RetryExcErr)]);
}

#[test]
fn tables_change_with_an_event() {
    let node = Node::alone();
    let gid = Gid::from_parts(Gid::LINK_LOCAL_PREFIX, Guid(99));
    node.hca.set_gid(gid);
    node.hca.set_gid(gid);
    assert_eq!(node.events(), [on_port(EventType::GidChange)]);
    assert_eq!(node.device.query_gid(1, 0).wait(), Ok(gid));
    node.hca.set_pkey(PKey(0x8001));
    node.hca.set_pkey(PKey(0x8001));
    assert_eq!(node.events(), [on_port(EventType::PkeyChange)]);
}

#[test]
fn a_peer_that_is_named_by_an_old_gid_is_not_reached() {
    let node = Node::alone();
    let (mut from, mut to) = (node.end(64, None), node.end(64, None));
    let old = node.hca.gid();
    for (end, peer) in [(&from, &to), (&to, &from)] {
        let path = Path {
            av: Av::to_gid(1, 0, old),
            dest_qpn: peer.qp.qpn(),
            rq_psn: Psn::new(7),
            mtu: Mtu::B1024,
        };
        end.qp.init(1, Access::REMOTE).wait().unwrap();
        end.qp.ready_to_receive(&path).wait().unwrap();
        end.to_rts();
    }
    let mr = node.region(Access::LOCAL_WRITE);
    to.qp.post_recv(Recv::new(1).into(mr.all())).unwrap();
    node.hca
        .set_gid(Gid::from_parts(Gid::LINK_LOCAL_PREFIX, Guid(99)));
    from.qp.post_send(Send::new(2).inline(b"x")).unwrap();
    assert_eq!(to.statuses(), []);
    node.hca.set_gid(old);
    assert_eq!(to.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn a_failed_device_says_so_on_every_handle_once() {
    let node = Node::alone();
    let other = node.hca.open().wait().unwrap();
    let (mut from, _to) = connected(&node, 64, None);
    node.hca.fail();
    node.hca.fail();
    let fatal = AsyncEvent {
        event: EventType::DeviceFatal,
        subject: Subject::Device,
    };
    assert_eq!(node.events(), [fatal]);
    assert_eq!(other.next_event().wait(), Ok(fatal));
    from.qp.post_send(Send::new(1).inline(b"x")).unwrap();
    assert_eq!(from.statuses(), [(1, WcStatus::WrFlushErr)]);
    // The device is removed after that; its event has been read already.
    node.hca.remove();
    assert_eq!(node.events(), []);
    let late = other.next_event().wait();
    assert_eq!(late, Err(Error::DeviceRemoved), "each event is seen once");
}

/// The order in which a driver learns of a removal: what was posted, what was pending, the event, and the queues that
/// have nothing to report.
#[test]
fn a_removed_device_says_so_last() {
    let node = Node::alone();
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = |what: &'static str| {
        let log = Arc::clone(&log);
        move || log.lock().unwrap().push(what)
    };
    let idle = node.device.create_cq(4).handler(note("idle queue"));
    let idle = idle.wait().unwrap();
    let mut cq = {
        let flushed = node.device.create_cq(4).handler(note("flushed queue"));
        flushed.wait().unwrap()
    };
    let mut qp = node.pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap();
    qp.init(1, Access::empty()).wait().unwrap();
    qp.post_recv(Recv::new(1)).unwrap();
    assert_eq!(cq.arm(Arm::Next), Armed::Empty);
    let heard = note("event");
    node.device.on_event(move |event| {
        assert_eq!(event.event, EventType::DeviceFatal);
        heard();
    });
    let (other, ended) = (node.hca.open().wait().unwrap(), note("request"));
    let _ = other.next_event().issue(move |result| {
        assert_eq!(result, Err(Error::DeviceRemoved));
        ended();
    });
    node.hca.remove();
    let heard = std::mem::take(&mut *log.lock().unwrap());
    assert_eq!(heard[0], "flushed queue", "{heard:?}");
    let at = |what| heard.iter().position(|&heard| heard == what).unwrap();
    assert!(at("event") < at("idle queue"), "{heard:?}");
    assert!(heard.contains(&"request"), "{heard:?}");
    let mut out = [Wc::default(); 2];
    assert!(block_on(cq.ready()).is_ok(), "what was flushed comes first");
    assert_eq!(cq.poll(&mut out)[0].status, WcStatus::WrFlushErr);
    assert_eq!(block_on(cq.ready()), Err(Error::DeviceRemoved));
    assert_eq!(block_on(node.device.fatal()), Error::DeviceRemoved);
    qp.destroy().wait().unwrap();
    drop((idle, cq));
}

#[test]
fn an_idle_client_hears_of_a_failure_too() {
    let node = Node::alone();
    let called = Arc::new(Mutex::new(0));
    let calls = Arc::clone(&called);
    let handled = node
        .device
        .create_cq(4)
        .handler(move || *calls.lock().unwrap() += 1);
    let handled = handled.wait().unwrap();
    let (mut awaited, fatal) = (
        node.device.create_cq(4).wait().unwrap(),
        node.device.fatal(),
    );
    let channel = CompletionChannel::new().unwrap();
    let told = node
        .device
        .create_cq(4)
        .channel(&channel, 7)
        .wait()
        .unwrap();
    node.hca.fail();
    assert_eq!(block_on(fatal), Error::DeviceFailed);
    assert_eq!(block_on(awaited.ready()), Err(Error::DeviceFailed));
    assert_eq!(*called.lock().unwrap(), 1);
    assert_eq!(channel.try_next().map(|event| event.token()), Some(7));
    drop((handled, told));
}

/// A link that flaps under traffic loses nothing and repeats nothing.
#[test]
fn a_flapping_link_loses_nothing() {
    const MESSAGES: u64 = 300;
    let link = Loopback::with_seed(4);
    let hca = Hca::on(&link).build();
    let device = hca.open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let (send_cq, recv_cq) = (
        device.create_cq(64).wait().unwrap(),
        device.create_cq(64).wait().unwrap(),
    );
    let make = || {
        let init = QpInit::rc(&send_cq, &recv_cq).inline(8).depth(16, 16);
        pd.create_qp(init).wait().unwrap()
    };
    let (mut from, mut to) = (make(), make());
    block_on(connect(&mut from, &mut to)).unwrap();
    let (mut send_cq, mut recv_cq) = (send_cq, recv_cq);
    let memory = Memory::alloc(64).unwrap();
    let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
    let mut out = [Wc::default(); 16];
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    thread::scope(|scope| {
        let flapper = scope.spawn(|| {
            for _ in 0..20 {
                hca.port_down();
                thread::yield_now();
                hca.port_up();
                thread::yield_now();
            }
        });
        while received < MESSAGES {
            if posted < MESSAGES && to.post_recv(Recv::new(posted).into(mr.all())).is_ok() {
                posted += 1;
            }
            if sent < posted
                && from
                    .post_send(Send::new(sent).inline(b"x").signaled())
                    .is_ok()
            {
                sent += 1;
            }
            for wc in send_cq.poll(&mut out) {
                assert_eq!(wc.status, WcStatus::Success);
            }
            for wc in recv_cq.poll(&mut out) {
                assert_eq!((wc.wr_id, wc.status), (received, WcStatus::Success));
                received += 1;
            }
        }
        flapper.join().unwrap();
    });
    assert_eq!((posted, sent), (MESSAGES, MESSAGES));
}
