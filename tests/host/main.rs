//! Goal: verbs that arrive as bytes enter the same dispatch as typed ones, with the client as their origin; a client's
//! handles mean nothing to another; quotas hold; a client's death destroys what it had in order (A14, A21, E5). Method:
//! a whole software HCA behind the codec, with a filter in front of it that records each command that the provider
//! receives.

mod arguments;
mod bed;
mod shared_targets;

use std::sync::Arc;

use bed::{Client, Log, Seen};
use hca_sim::Hca;
use verbs_core::host::Handle;
use verbs_core::host::command::{Answer, Call, Failure};
use verbs_core::host::quota::Quota;
use verbs_core::{
    Access, Attr, Av, Device, DeviceAttr, Error, Gid, Kind, Lid, Memory, Mtu, ObjectKind, Origin,
    Path, Psn, QpAttr, QpCap, QpInit, QpState, QpType, Qpn,
};

fn path(gid: Gid, qpn: Qpn) -> Path {
    Path {
        av: Av::to_gid(1, 0, gid),
        dest_qpn: qpn,
        rq_psn: Psn::new(5),
        mtu: Mtu::B1024,
    }
}

/// The typed verbs.
fn typed_verbs(typed: &Arc<Log>) -> Arc<DeviceAttr> {
    let device = Device::open(Arc::clone(typed) as Arc<_>)
        .wait()
        .expect("open");
    let attr = device.query().wait().expect("attributes");
    let gid = device.query_gid(1, 0).wait().expect("a GID");
    let pd = device.alloc_pd().wait().expect("a PD");
    let mr = pd.register(Memory::alloc(4096).expect("memory"), Access::LOCAL_WRITE);
    let mr = mr.wait().expect("a region");
    let cq = device.create_cq(16).wait().expect("a CQ");
    let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait().expect("a QP");
    qp.init(1, Access::REMOTE_WRITE).wait().expect("INIT");
    qp.ready_to_receive(&path(gid, qp.qpn()))
        .wait()
        .expect("RTR");
    qp.ready_to_send(Psn::new(5)).wait().expect("RTS");
    assert_eq!(qp.query().wait().expect("attributes").state, QpState::Rts);
    assert_eq!(
        pd.dealloc().wait().expect_err("it is in use").error,
        Error::Busy
    );
    qp.destroy().wait().expect("destroyed");
    cq.destroy().wait().expect("destroyed");
    mr.dereg().wait().expect("deregistered");
    device.close_when_idle().wait().expect("closed");
    attr
}

/// The same verbs as bytes.
fn encoded_verbs(encoded: &Arc<Log>, attr: &DeviceAttr) {
    let client = Client::new(Arc::clone(encoded) as Arc<_>, 7);
    client
        .ask(Handle::DEVICE, Call::OpenDevice {})
        .expect("open");
    let Ok(Answer::QueryDevice(theirs)) = client.ask(Handle::DEVICE, Call::QueryDevice {}) else {
        panic!("attributes");
    };
    assert_eq!((theirs.max_qp, &theirs.name), (attr.max_qp, &attr.name));
    assert!(
        attr.qp_types
            .iter()
            .all(|kind| theirs.qp_types.contains(kind))
    );
    let Ok(Answer::QueryGid(gid)) =
        client.ask(Handle::DEVICE, Call::QueryGid { port: 1, index: 0 })
    else {
        panic!("a GID");
    };
    let pd = client.pd();
    let region = Call::RegMr {
        len: 4096,
        access: Access::LOCAL_WRITE,
    };
    let Ok(Answer::RegMr((mr, info))) = client.ask(pd, region) else {
        panic!("a region");
    };
    assert_eq!((info.len, info.lkey.value()), (4096, mr.number));
    let cq = client.cq(16);
    let (qp, qpn) = client.qp(pd, cq);
    for attr in [
        QpAttr::init(1, Access::REMOTE_WRITE),
        QpAttr::rtr(&path(gid, qpn)),
        QpAttr::rts(Psn::new(5)),
    ] {
        assert_eq!(
            client.ask(qp, Call::ModifyQp { attr }),
            Ok(Answer::ModifyQp(()))
        );
    }
    let Ok(Answer::QueryQp(info)) = client.ask(qp, Call::QueryQp {}) else {
        panic!("attributes");
    };
    assert_eq!(info.state, QpState::Rts);
    // An invalid transition is refused with the same reason as a typed one.
    let back = QpAttr::to(QpState::Init);
    let refused = client.ask(qp, Call::ModifyQp { attr: back });
    assert!(
        matches!(refused, Err(Failure::Verb(Error::Transition(_)))),
        "{refused:?}"
    );
    let busy = client.ask(pd, Call::DeallocPd { when_idle: false });
    assert_eq!(busy, Err(Failure::Busy { objects: 2 }));
    for (handle, call) in [
        (qp, Call::DestroyQp { when_idle: false }),
        (cq, Call::DestroyCq { when_idle: false }),
        (mr.handle, Call::DeregMr { when_idle: false }),
        (pd, Call::DeallocPd { when_idle: false }),
        (Handle::DEVICE, Call::CloseDevice { when_idle: false }),
    ] {
        client.ask(handle, call).expect("nothing uses it");
        assert!(client.ask(handle, Call::QueryQp {}).is_err(), "it is gone");
    }
    assert_eq!(client.session.memory_mib(), 0);
}

/// The same verbs, typed and as bytes, are the same commands to the provider, except for their origin.
#[test]
fn a21_typed_and_encoded_verbs_enter_the_same_dispatch() {
    let [typed, encoded] = [0; 2].map(|_| Log::over(Hca::loopback().build()));
    let attr = typed_verbs(&typed);
    encoded_verbs(&encoded, &attr);
    let kinds = |log: &Log, but: &[Kind]| -> Vec<Kind> {
        let seen = log.seen();
        let kinds = seen.iter().map(|seen| seen.kind);
        kinds.filter(|kind| !but.contains(kind)).collect()
    };
    // The drop of the typed PD destroys it, last; one modify more was refused.
    let but = [Kind::DeallocPd, Kind::ModifyQp];
    assert_eq!(kinds(&typed, &but), kinds(&encoded, &but));
    assert!(
        typed
            .seen()
            .iter()
            .all(|seen| seen.origin == Origin::Trusted)
    );
    let seventh = Origin::client(7).expect("not 0");
    assert!(encoded.seen().iter().all(|seen| seen.origin == seventh));
}

/// A handle of another client, a stale one, one of another kind, and an invented one all find nothing; the object
/// stays.
#[test]
fn e5_handles_mean_something_to_their_client_only() {
    let log = Log::over(Hca::loopback().build());
    let [one, other] = [1, 2].map(|number| Client::open(&log, number));
    let pd = one.pd();
    // The other client's first object has the same handle, and is a different one.
    let cq = other.cq(4);
    let denied = Err(Failure::Verb(Error::AccessDenied));
    assert_eq!(other.ask(pd, Call::DeallocPd { when_idle: false }), denied);
    assert_eq!(one.ask(cq, Call::DestroyCq { when_idle: false }), denied);
    // The right object, the wrong verb.
    assert_eq!(one.ask(pd, Call::DestroyCq { when_idle: false }), denied);
    assert_eq!(one.ask(pd, Call::QueryQp {}), denied);
    assert_eq!(
        one.ask(Handle::DEVICE, Call::DeallocPd { when_idle: false }),
        denied
    );
    // Nested: a queue pair on another's completion queue.
    let nested = Call::CreateQp {
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        qp_type: QpType::Rc,
        cap: QpCap::default(),
        sq_sig_all: false,
        low_latency: false,
        block_multicast_loopback: false,
    };
    assert_eq!(one.ask(pd, nested), denied);
    one.ask(pd, Call::DeallocPd { when_idle: false })
        .expect("it was left alone");
    assert_eq!(
        one.ask(
            pd,
            Call::AllocMw {
                window_type: verbs_core::WindowType::One
            }
        ),
        denied
    );
    other
        .ask(cq, Call::DestroyCq { when_idle: false })
        .expect("it was left alone");
    // A device that was never opened has nothing.
    let third = Client::new(Arc::clone(&log) as Arc<_>, 3);
    assert_eq!(third.ask(Handle::DEVICE, Call::AllocPd {}), denied);
}

#[test]
fn e5_quotas_hold_and_memory_comes_back() {
    let log = Log::over(Hca::loopback().build());
    let client = Client::open(&log, 1);
    let pd = client.pd();
    let region = |mib: u64| Call::RegMr {
        len: mib << 20,
        access: Access::empty(),
    };
    let full = Err(Failure::Quota(Quota::Memory.exceeded()));
    assert_eq!(client.ask(pd, region(257)), full);
    let most = Call::RegMr {
        len: u64::MAX,
        access: Access::empty(),
    };
    assert_eq!(client.ask(pd, most), full, "no number overflows");
    let Ok(Answer::RegMr((mr, _))) = client.ask(pd, region(200)) else {
        panic!("a region");
    };
    assert_eq!(client.ask(pd, region(57)), full);
    let grown = Call::ReregMr {
        len: Some(100 << 20),
        access: None,
        pd: None,
        keeps_keys: false,
    };
    assert_eq!(
        client.ask(mr.handle, grown),
        full,
        "both are there for a moment"
    );
    let smaller = Call::ReregMr {
        len: Some(50 << 20),
        access: None,
        pd: None,
        keeps_keys: false,
    };
    let Ok(Answer::ReregMr((mr, info))) = client.ask(mr.handle, smaller) else {
        panic!("a region");
    };
    assert_eq!((info.len, client.session.memory_mib()), (50 << 20, 50));
    // Bytes that the verb itself refuses are returned to the quota.
    let wrong = Call::RegMr {
        len: 100 << 20,
        access: Access::REMOTE_WRITE,
    };
    assert!(client.ask(pd, wrong).is_err());
    assert_eq!(client.session.memory_mib(), 50);
    client
        .ask(mr.handle, Call::DeregMr { when_idle: false })
        .expect("deregistered");
    assert_eq!(client.session.memory_mib(), 0);
}

/// Objects that use each other.
fn make_one_of_each(client: &Client) {
    let pd = client.pd();
    let cq = client.cq(8);
    let (qp, _) = client.qp(pd, cq);
    let mgid = Gid([0xff; 16]);
    let (ud, _) = client.qp_of(pd, cq, QpType::Ud);
    for attr in [
        QpAttr::init_datagram(1, verbs_core::QKey(5)),
        QpAttr::to(QpState::Rtr),
    ] {
        client
            .ask(ud, Call::ModifyQp { attr })
            .expect("it is in order");
    }
    let _ = client.ask(
        ud,
        Call::AttachMcast {
            mgid,
            mlid: Lid(0xc001),
        },
    );
    let _ = client.ask(
        pd,
        Call::RegMr {
            len: 100,
            access: Access::MW_BIND,
        },
    );
    let _ = client.ask(
        pd,
        Call::CreateAh {
            av: Av::to_lid(1, Lid(1)),
        },
    );
    let _ = client.ask(
        pd,
        Call::AllocMw {
            window_type: verbs_core::WindowType::One,
        },
    );
    let _ = client.ask(
        qp,
        Call::ModifyQp {
            attr: QpAttr::init(1, Access::empty()),
        },
    );
}

/// The objects that a client leaves behind are destroyed: users before what they use, each reported, and none refused.
#[test]
fn e5_a_clients_death_destroys_in_order() {
    let log = Log::over(Hca::loopback().build());
    let client = Client::open(&log, 9);
    make_one_of_each(&client);
    let before = client.session.objects();
    assert!(before >= 8, "{before}");
    // A request that waits for an event ends with the device.
    let waiting = client.begin(Handle::DEVICE, Call::NextEvent {});
    log.forget();
    let reported = client.end();
    assert_eq!(reported.len(), before + 1, "each, and the device");
    assert!(
        reported.iter().all(|(_, result)| result.is_ok()),
        "{reported:?}"
    );
    assert_eq!(
        reported.last().map(|(kind, _)| *kind),
        Some(ObjectKind::Device)
    );
    let ended = waiting.recv().expect("an answer");
    assert!(ended.is_err(), "{ended:?}");
    let origin = Origin::client(9).expect("not 0");
    assert!(
        log.seen()
            .iter()
            .all(|seen: &Seen| seen.origin == origin && seen.kind.destroys())
    );
    // Users come before what they use.
    let seen = log.seen();
    let places = |kinds: &[Kind]| -> Vec<usize> {
        let places = seen.iter().enumerate();
        let places = places.filter(|(_, seen)| kinds.contains(&seen.kind));
        places.map(|(place, _)| place).collect()
    };
    let order: [&[Kind]; 7] = [
        &[Kind::DetachMcast],
        &[Kind::DestroyQp],
        &[Kind::DeallocMw, Kind::DestroyAh],
        &[Kind::DeregMr],
        &[Kind::DestroyCq],
        &[Kind::DeallocPd],
        &[Kind::CloseDevice],
    ];
    for pair in order.windows(2) {
        let (users, used) = (places(pair[0]), places(pair[1]));
        assert!(
            !users.is_empty() && !used.is_empty(),
            "{pair:?} of {seen:?}"
        );
        assert!(users.iter().max() < used.iter().min(), "{pair:?}: {seen:?}");
    }
    // Nothing is left of it: the HCA serves the next.
    let next = Client::open(&log, 10);
    next.pd();
}

#[test]
fn what_has_no_form_as_bytes_is_said_to_be_unsupported() {
    let log = Log::over(Hca::loopback().build());
    let client = Client::open(&log, 1);
    let call = Call::CallExtension {
        name: "x".into(),
        input: vec![1],
    };
    let refused = client.ask(Handle::DEVICE, call);
    assert_eq!(
        refused,
        Err(Failure::Verb(Error::Unsupported(Attr::Extension)))
    );
    let call = Call::BindCm {
        local: "127.0.0.1:7".parse().expect("an address"),
    };
    let refused = client.ask(Handle::DEVICE, call);
    assert_eq!(refused, Err(Failure::Verb(Error::Unsupported(Attr::Verb))));
    let garbage = client.ask_bytes(b"garbage");
    assert!(matches!(garbage, Err(Failure::Malformed(_))), "{garbage:?}");
}
