//! Goal: a verb that arrives as bytes keeps each of its arguments. Method: one argument after another is given a value
//! that no default has; a query, or the error of the verb, shows that the provider received it.

use hca_sim::Hca;
use verbs_core::host::Handle;
use verbs_core::host::command::{Answer, Call, Failure, Made};
use verbs_core::srq::SrqAttr;
use verbs_core::{
    Access, Av, Error, EventType, Gid, Guid, Lid, QKey, QpAttr, QpCap, QpInfo, QpState, QpType,
    WindowType,
};

use crate::bed::{Client, Log};

fn client() -> Client {
    Client::open(&Log::over(Hca::loopback().build()), 1)
}

/// The handle of a new object, from an answer that has nothing else.
macro_rules! made {
    ($client:expr, $target:expr, $call:expr, $Kind:ident) => {
        match $client.ask($target, $call) {
            Ok(Answer::$Kind(Made { handle, .. })) => handle,
            other => panic!("{other:?}"),
        }
    };
}

/// The result of a query.
macro_rules! queried {
    ($client:expr, $target:expr, $Kind:ident { $($arg:tt)* }) => {
        match $client.ask($target, Call::$Kind { $($arg)* }) {
            Ok(Answer::$Kind(what)) => what,
            other => panic!("{other:?}"),
        }
    };
}

fn query_qp(client: &Client, qp: Handle) -> Box<QpInfo> {
    queried!(client, qp, QueryQp {})
}

#[test]
fn queries_of_the_device_name_port_and_index() {
    let client = client();
    let device = Handle::DEVICE;
    let attr = queried!(client, device, QueryDevice {});
    let none = attr.phys_port_cnt + 1;
    for call in [
        Call::QueryPort { port: none },
        Call::QueryPkey {
            port: none,
            index: 0,
        },
        Call::QueryGid {
            port: none,
            index: 0,
        },
    ] {
        let answer = client.ask(device, call.clone());
        assert!(answer.is_err(), "{call:?} of no port: {answer:?}");
    }
    let port = queried!(client, device, QueryPort { port: 1 });
    for call in [
        Call::QueryPkey {
            port: 1,
            index: port.pkey_tbl_len,
        },
        Call::QueryGid {
            port: 1,
            index: u16::MAX,
        },
    ] {
        let answer = client.ask(device, call.clone());
        assert!(answer.is_err(), "{call:?} behind the end: {answer:?}");
    }
}

#[test]
fn a_device_takes_its_new_guid() {
    let client = client();
    let device = Handle::DEVICE;
    let before = queried!(client, device, QueryDevice {});
    let modify = |node_desc: Option<String>, sys_image_guid| Call::ModifyDevice {
        node_desc,
        sys_image_guid,
    };
    client
        .ask(device, modify(Some("another name".into()), None))
        .expect("modified");
    let named = queried!(client, device, QueryDevice {});
    assert_eq!(named.sys_image_guid, before.sys_image_guid);
    client
        .ask(device, modify(None, Some(Guid(0x1234))))
        .expect("modified");
    let after = queried!(client, device, QueryDevice {});
    assert_eq!(after.sys_image_guid, Guid(0x1234));
}

#[test]
fn queues_have_the_sizes_and_limits_that_were_named() {
    let client = client();
    let pd = client.pd();
    let cq = client.cq(40);
    assert!(queried!(client, cq, QueryCq {}).cqe >= 40);
    let moderation = Call::ModifyCq {
        count: 7,
        period_us: 90,
    };
    client.ask(cq, moderation).expect("modified");
    let info = queried!(client, cq, QueryCq {});
    assert_eq!((info.moderation_count, info.moderation_period_us), (7, 90));
    let cqe = queried!(client, cq, ResizeCq { cqe: 300 });
    assert!(cqe >= 300);
    assert_eq!(queried!(client, cq, QueryCq {}).cqe, cqe);

    let attr = SrqAttr {
        max_wr: 33,
        max_sge: 3,
        srq_limit: 0,
    };
    let srq = made!(client, pd, Call::CreateSrq { xrc: None, attr }, CreateSrq);
    let got = queried!(client, srq, QuerySrq {});
    assert!(got.max_wr >= 33 && got.max_sge >= 3, "{got:?}");
    // There are fewer receives than the limit, so the event is raised at once.
    let limit = Call::ModifySrq {
        max_wr: None,
        srq_limit: Some(5),
    };
    let event = client.begin(Handle::DEVICE, Call::NextEvent {});
    client.ask(srq, limit).expect("modified");
    let event = event.recv().expect("an answer");
    let Ok(Answer::NextEvent(event)) = event else {
        panic!("{event:?}");
    };
    assert_eq!(event.event, EventType::SrqLimitReached);
    let larger = Call::ModifySrq {
        max_wr: Some(200),
        srq_limit: None,
    };
    client.ask(srq, larger).expect("modified");
    let got = queried!(client, srq, QuerySrq {});
    assert!(got.max_wr >= 200 && got.srq_limit == 0, "{got:?}");
}

fn sizes(cap: QpCap) -> [u32; 5] {
    [
        cap.max_send_wr,
        cap.max_recv_wr,
        cap.max_send_sge,
        cap.max_recv_sge,
        cap.max_inline_data,
    ]
}

#[test]
fn a_queue_pair_keeps_what_its_creation_says() {
    let client = client();
    let (pd, cq, other_cq) = (client.pd(), client.cq(8), client.cq(8));
    let attr = SrqAttr {
        max_wr: 8,
        max_sge: 1,
        srq_limit: 0,
    };
    let srq = made!(client, pd, Call::CreateSrq { xrc: None, attr }, CreateSrq);
    let cap = QpCap {
        max_send_wr: 21,
        max_recv_wr: 37,
        max_send_sge: 2,
        max_recv_sge: 3,
        max_inline_data: 48,
    };
    let create = |srq, sq_sig_all| Call::CreateQp {
        send_cq: cq,
        recv_cq: other_cq,
        srq,
        qp_type: QpType::Rc,
        cap,
        sq_sig_all,
        low_latency: false,
        block_multicast_loopback: false,
    };
    for signals in [false, true] {
        let Ok(Answer::CreateQp((made, got))) = client.ask(pd, create(None, signals)) else {
            panic!("a queue pair");
        };
        let info = query_qp(&client, made.handle);
        assert_eq!((info.sq_sig_all, info.cap), (signals, got));
        let enough = sizes(got)
            .iter()
            .zip(sizes(cap))
            .all(|(got, want)| *got >= want);
        assert!(enough, "{got:?} for {cap:?}");
    }
    let Ok(Answer::CreateQp((with_srq, _))) = client.ask(pd, create(Some(srq), false)) else {
        panic!("a queue pair");
    };
    // Each of the objects that it names is in use now.
    for (handle, call) in [
        (srq, Call::DestroySrq { when_idle: false }),
        (cq, Call::DestroyCq { when_idle: false }),
        (other_cq, Call::DestroyCq { when_idle: false }),
    ] {
        let refused = client.ask(handle, call.clone());
        let is_busy = matches!(refused, Err(Failure::Busy { .. }));
        assert!(is_busy, "{call:?}: {refused:?}");
    }
    client
        .ask(with_srq.handle, Call::DestroyQp { when_idle: false })
        .expect("nothing uses it");
    client
        .ask(srq, Call::DestroySrq { when_idle: false })
        .expect("nothing uses it any longer");
}

/// Each side by itself, and both.
#[test]
fn a_queue_pair_is_resized_on_the_sides_that_are_named() {
    let client = client();
    let (pd, cq) = (client.pd(), client.cq(8));
    let (qp, _) = client.qp(pd, cq);
    for (max_send_wr, max_recv_wr) in [(Some(100), None), (None, Some(200)), (Some(300), Some(400))]
    {
        let before = query_qp(&client, qp).cap;
        let got = queried!(
            client,
            qp,
            ResizeQp {
                max_send_wr,
                max_recv_wr
            }
        );
        assert_eq!(query_qp(&client, qp).cap, got);
        for (got, before, wanted) in [
            (got.max_send_wr, before.max_send_wr, max_send_wr),
            (got.max_recv_wr, before.max_recv_wr, max_recv_wr),
        ] {
            match wanted {
                Some(wanted) => assert!(got >= wanted, "{got} of {wanted}"),
                None => assert_eq!(got, before, "that side was not named"),
            }
        }
    }
}

#[test]
fn memory_has_the_length_rights_and_domain_that_were_named() {
    let client = client();
    let (pd, other_pd) = (client.pd(), client.pd());
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let Ok(Answer::RegMr((mr, info))) = client.ask(pd, Call::RegMr { len: 5000, access }) else {
        panic!("a region");
    };
    assert_eq!((info.len, info.access), (5000, access));
    assert_eq!(queried!(client, mr.handle, QueryMr {}), info);
    let shared = Call::RegSharedMr {
        pd: other_pd,
        access: Access::REMOTE_READ,
    };
    let Ok(Answer::RegSharedMr((shared, info))) = client.ask(mr.handle, shared) else {
        panic!("a second region");
    };
    assert_eq!((info.len, info.access), (5000, Access::REMOTE_READ));
    assert_eq!(queried!(client, shared.handle, QueryMr {}), info);
    let in_use = client.ask(other_pd, Call::DeallocPd { when_idle: false });
    assert_eq!(in_use, Err(Failure::Busy { objects: 1 }));
    // The region moves, and keeps what was not named.
    let moved = Call::ReregMr {
        len: None,
        access: None,
        pd: Some(other_pd),
        keeps_keys: false,
    };
    let Ok(Answer::ReregMr((mr, info))) = client.ask(mr.handle, moved) else {
        panic!("a region");
    };
    assert_eq!((info.len, info.access), (5000, access));
    let in_use = client.ask(other_pd, Call::DeallocPd { when_idle: false });
    assert_eq!(in_use, Err(Failure::Busy { objects: 2 }));
    client
        .ask(pd, Call::DeallocPd { when_idle: false })
        .expect("the region has left it");
    // Rights, and the same keys.
    let keys = (info.lkey, info.rkey);
    let granted = Call::ReregMr {
        len: None,
        access: Some(Access::REMOTE_READ),
        pd: None,
        keeps_keys: true,
    };
    let Ok(Answer::ReregMr((_, info))) = client.ask(mr.handle, granted) else {
        panic!("a region");
    };
    assert_eq!(info.access, Access::REMOTE_READ);
    assert_eq!((info.lkey, info.rkey), keys);
    // Another verb's refusal gives back what it counted.
    let before = client.session.memory_mib();
    let wrong = Call::RegSharedMr {
        pd: other_pd,
        access: Access::REMOTE_WRITE,
    };
    assert!(client.ask(shared.handle, wrong).is_err());
    assert_eq!(client.session.memory_mib(), before);
}

#[test]
fn windows_and_address_handles_are_those_that_were_named() {
    let client = client();
    let pd = client.pd();
    for window_type in [WindowType::One, WindowType::TwoA, WindowType::TwoB] {
        let mw = made!(client, pd, Call::AllocMw { window_type }, AllocMw);
        assert_eq!(queried!(client, mw, QueryMw {}).window_type, window_type);
    }
    let gid = queried!(client, Handle::DEVICE, QueryGid { port: 1, index: 0 });
    let mut av = Av::to_gid(1, 0, gid);
    av.sl = 3;
    let ah = made!(client, pd, Call::CreateAh { av }, CreateAh);
    assert_eq!(queried!(client, ah, QueryAh {}), av);
    let another = Av::to_gid(1, 0, Gid([0x11; 16]));
    client
        .ask(ah, Call::ModifyAh { av: another })
        .expect("modified");
    assert_eq!(queried!(client, ah, QueryAh {}), another);
}

#[test]
fn a_modify_keeps_its_attributes_and_a_group_its_address() {
    let client = client();
    let (pd, cq) = (client.pd(), client.cq(8));
    let (qp, _) = client.qp_of(pd, cq, QpType::Ud);
    for attr in [
        QpAttr::init_datagram(1, QKey(0x77)),
        QpAttr::to(QpState::Rtr),
    ] {
        client
            .ask(qp, Call::ModifyQp { attr })
            .expect("it is in order");
    }
    let info = query_qp(&client, qp);
    assert_eq!(
        (info.state, info.attr.qkey),
        (QpState::Rtr, Some(QKey(0x77)))
    );
    let group = Gid([0xff; 16]);
    let attach = Call::AttachMcast {
        mgid: group,
        mlid: Lid(0xc001),
    };
    let mcast = made!(client, qp, attach, AttachMcast);
    // It is no group's address.
    let wrong = Call::AttachMcast {
        mgid: Gid([0x11; 16]),
        mlid: Lid(0xc001),
    };
    let refused = client.ask(qp, wrong);
    assert!(
        matches!(refused, Err(Failure::Verb(Error::Mismatch { .. }))),
        "{refused:?}"
    );
    client
        .ask(mcast, Call::DetachMcast {})
        .expect("it is attached");
}
