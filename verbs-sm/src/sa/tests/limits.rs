//! Limits: one port's share of the common tables, and what a refused request leaves behind.

use verbs_core::mad::sa::{
    JoinState, McMemberMask, PathMask, PathRecord, ServiceMask, ServiceRecord,
};
use verbs_core::mad::sm::Notice;

use super::*;
use super::{events, groups};

const JOIN: (Method, AttributeId) = (Method::SET, AttributeId::MC_MEMBER_RECORD);
const LEAVE: (Method, AttributeId) = (Method::DELETE, AttributeId::MC_MEMBER_RECORD);
const FULL: (Result<(), SaStatus>, Result<(), SaStatus>) = (Err(SaStatus::NoResources), Ok(()));

/// Creates a group with that number.
fn make(desk: &mut Desk, port: u16, number: u8) -> Result<(), SaStatus> {
    let mut record = groups::group(desk, port, JoinState::FULL_MEMBER);
    record.mgid.0[14..].copy_from_slice(&[1, number]);
    groups::ask(desk, (0, port), JOIN, &record, McMemberMask::CREATE).map(drop)
}

fn leave(desk: &mut Desk, port: u16, number: u8) {
    let mut record = groups::group(desk, port, JoinState::FULL_MEMBER);
    record.mgid.0[14..].copy_from_slice(&[1, number]);
    groups::ask(desk, (0, port), LEAVE, &record, McMemberMask::JOIN).unwrap();
}

fn register(desk: &mut Desk, port: u16, id: u64, lease_seconds: u32) -> Result<(), SaStatus> {
    let record = ServiceRecord {
        service_id: id,
        // Of any port: the requester's share is counted.
        service_gid: desk.gid(14),
        lease_seconds,
        ..ServiceRecord::default()
    };
    let mut bytes = [0; ServiceRecord::LEN];
    record.emit(&mut bytes);
    let mask = ServiceMask::SERVICE_ID | ServiceMask::SERVICE_GID | ServiceMask::LEASE;
    let how = (Method::SET, AttributeId::SERVICE_RECORD);
    desk.ask(port, how, &bytes, mask.bits()).map(drop)
}

/// Goal: one port gets no more than its share, a refusal says that there is no room, and others are served. It
/// can use again what it gives back. Method: groups, services and subscriptions up to the limit and beyond.
#[test]
fn one_port_does_not_take_all() {
    let config = Config {
        groups_per_port_max: 3,
        services_per_port_max: 4,
        subscriptions_per_port_max: 5,
        ..config()
    };
    let mut desk = Desk::new(&config);
    for number in 0..3 {
        make(&mut desk, 11, number).unwrap();
    }
    assert_eq!((make(&mut desk, 11, 3), make(&mut desk, 12, 3)), FULL);
    make(&mut desk, 11, 3).expect("what another has made is joined");
    leave(&mut desk, 11, 0);
    make(&mut desk, 11, 0).unwrap();
    assert_eq!(make(&mut desk, 11, 9), Err(SaStatus::NoResources));

    for (id, lease) in (0..).zip([9, u32::MAX, u32::MAX, u32::MAX]) {
        register(&mut desk, 11, id, lease).unwrap();
    }
    assert_eq!(
        (register(&mut desk, 11, 4, 9), register(&mut desk, 12, 4, 9)),
        FULL
    );
    register(&mut desk, 11, 3, 9).expect("it is renewed, not another");
    desk.pass(Duration::from_secs(9));
    register(&mut desk, 11, 4, 9).expect("a lease has ended");

    for trap in 0..5 {
        events::subscribe(&mut desk, 11, trap, 1, Notice::MANAGER).unwrap();
    }
    let mut more = |from, trap| events::subscribe(&mut desk, from, trap, 1, Notice::MANAGER);
    assert_eq!((more(11, 5), more(12, 5)), FULL);
    more(11, 4).expect("it is the same again");
    events::subscribe(&mut desk, 11, 4, 0, Notice::MANAGER).unwrap();
    events::subscribe(&mut desk, 11, 5, 1, Notice::MANAGER).unwrap();
}

/// Goal: the common limits hold exactly. Method: each limit reached by several ports.
#[test]
fn all_together_keep_to_the_limits() {
    let config = Config {
        groups_max: 3,
        services_max: 3,
        subscriptions_max: 3,
        members_max: 5,
        ..config()
    };
    let mut desk = Desk::new(&config);
    // The broadcast group is one of the three.
    for port in [11, 12] {
        make(&mut desk, port, port as u8).unwrap();
    }
    assert_eq!(make(&mut desk, 13, 13), Err(SaStatus::NoResources));
    for port in [13, 14, 11] {
        make(&mut desk, port, 12).unwrap();
    }
    assert_eq!(desk.sa.groups.members, 5);
    assert_eq!(
        make(&mut desk, 14, 11),
        Err(SaStatus::NoResources),
        "no more members"
    );
    make(&mut desk, 13, 12).expect("it is one already");
    for (port, id) in [(11, 1), (12, 2), (13, 3)] {
        register(&mut desk, port, id, 9).unwrap();
        events::subscribe(&mut desk, port, 64, 1, Notice::MANAGER).unwrap();
    }
    assert_eq!(register(&mut desk, 14, 4, 9), Err(SaStatus::NoResources));
    let more = events::subscribe(&mut desk, 14, 64, 1, Notice::MANAGER);
    assert_eq!(more, Err(SaStatus::NoResources));
}

/// Goal: a group whose creator could not join does not exist: its LID is free, and no subscriber is notified.
/// Method: no room for a member, then room.
#[test]
fn a_refused_join_leaves_no_group_behind() {
    let config = Config {
        members_max: 1,
        groups_max: 3,
        ..config()
    };
    let mut desk = Desk::new(&config);
    events::subscribe(&mut desk, 12, 0xffff, 1, Notice::MANAGER).unwrap();
    make(&mut desk, 11, 1).unwrap();
    assert!(desk.sa.poll_report().is_some());
    for number in 2..20 {
        assert_eq!(make(&mut desk, 12, number), Err(SaStatus::NoResources));
    }
    assert!(desk.sa.poll_report().is_none());
    assert_eq!(desk.sa.groups.lids().len(), 2);
    leave(&mut desk, 11, 1);
    make(&mut desk, 12, 2).unwrap();
    assert_eq!(desk.sa.groups.lids().len(), 2);
}

/// Goal: a request costs no more than the longest answer, even when nothing matches. Method: paths between all
/// ports, of which none matches.
#[test]
fn tables_have_an_end() {
    let config = Config {
        answer_records_max: 3,
        ..config()
    };
    let mut desk = Desk::new(&config);
    let ask = |desk: &mut Desk, like: PathRecord, mask: PathMask| {
        let mut bytes = [0; PathRecord::LEN];
        like.emit(&mut bytes);
        let how = (Method::GET_TABLE, AttributeId::PATH_RECORD);
        desk.ask(11, how, &bytes, mask.bits())
            .map(|found| found.len())
    };
    let like = PathRecord {
        slid: Lid(11),
        pkey: OTHER,
        ..PathRecord::default()
    };
    let own = PathMask::SLID;
    assert_eq!(ask(&mut desk, like, own), Err(SaStatus::NoResources), "six");
    assert_eq!(
        ask(&mut desk, like, own | PathMask::PKEY),
        Ok(3),
        "as many as may be"
    );
    assert_eq!(
        ask(&mut desk, like, PathMask::SL),
        Err(SaStatus::NoResources),
        "36"
    );
    let none = PathRecord {
        pkey: PKey(0x8777),
        ..like
    };
    assert_eq!(
        ask(&mut desk, none, PathMask::PKEY),
        Ok(0),
        "36 pairs are looked at"
    );
    desk.sa.config.answer_records_max = 2;
    assert_eq!(
        ask(&mut desk, none, PathMask::PKEY),
        Err(SaStatus::NoResources)
    );
    let nodes = |desk: &mut Desk| {
        let how = (Method::GET_TABLE, AttributeId::NODE_RECORD);
        desk.ask(11, how, &[0; verbs_core::mad::sa::NodeRecord::LEN], 0)
            .map(|found| found.len())
    };
    assert_eq!(nodes(&mut desk), Err(SaStatus::NoResources));
    desk.sa.config.answer_records_max = 6;
    assert_eq!(nodes(&mut desk), Ok(6));
}

/// Goal: reports to subscribers that do not answer take no more room than the limit. Method: a port that creates
/// and leaves a group a thousand times.
#[test]
fn a_flood_of_events_is_bounded() {
    let config = Config {
        reports_max: 7,
        ..config()
    };
    let mut desk = Desk::new(&config);
    for port in CLIENTS {
        events::subscribe(&mut desk, port, 0xffff, 1, Notice::MANAGER).unwrap();
    }
    let mut sent = 0;
    for _ in 0..1000 {
        make(&mut desk, 11, 1).unwrap();
        leave(&mut desk, 11, 1);
        sent += usize::from(desk.sa.poll_report().is_some());
    }
    sent += std::iter::from_fn(|| desk.sa.poll_report()).count();
    assert_eq!(sent, 7);
    assert_eq!(desk.sa.groups.lids().len(), 1);
}
