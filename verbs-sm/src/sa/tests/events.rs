//! Subscriptions and reports (13.4.8 to 13.4.10).

use verbs_core::mad::header::header_of;
use verbs_core::mad::sa::{InformInfo, JoinState, McMemberMask, record};
use verbs_core::mad::sm::{Notice, NoticeView, TrapNumber};

use super::groups::{self, GROUP};
use super::*;

const SET: (Method, AttributeId) = (Method::SET, AttributeId::INFORM_INFO);
const ALL: u16 = 0xffff;

pub(super) fn subscribe(
    desk: &mut Desk,
    from: u16,
    trap: u16,
    subscribe: u8,
    producer: u32,
) -> Result<(), SaStatus> {
    let info = InformInfo {
        lid_range_begin: Lid(0xffff),
        is_generic: 1,
        subscribe,
        event_type: ALL,
        trap_number: trap,
        producer_type: producer,
        ..InformInfo::default()
    };
    let mut bytes = [0; InformInfo::LEN];
    info.emit(&mut bytes);
    desk.ask(from, SET, &bytes, 0).map(drop)
}

/// Reports to send: number, subscriber, trap, GID.
fn reports(desk: &mut Desk) -> Vec<(u64, u16, TrapNumber, Gid)> {
    let reports = std::iter::from_fn(|| desk.sa.poll_report());
    let parse = |(number, to, mad): (u64, Address, Box<MadBytes>)| {
        assert_eq!(header_of(&mad).method(), Method::REPORT);
        assert_eq!(to.qpn, verbs_core::Qpn::new(1));
        let notice = NoticeView::new(record(&mad)).expect("long enough");
        let gid = Notice::parse(notice).gid().expect("a GID");
        (number, to.av.dlid.0, notice.trap(), gid)
    };
    reports.map(parse).collect()
}

fn join(desk: &mut Desk, port: u16) {
    let record = groups::group(desk, port, JoinState::FULL_MEMBER);
    let how = (Method::SET, AttributeId::MC_MEMBER_RECORD);
    groups::ask(desk, (0, port), how, &record, McMemberMask::CREATE).unwrap();
}

fn leave(desk: &mut Desk, port: u16) {
    let record = groups::group(desk, port, JoinState::FULL_MEMBER);
    let how = (Method::DELETE, AttributeId::MC_MEMBER_RECORD);
    groups::ask(desk, (0, port), how, &record, McMemberMask::JOIN).unwrap();
}

/// Goal: subscribers are notified once of each group that is created or deleted, and of nothing that they did not
/// subscribe to. Method: one subscriber for creation, one for all traps, one for another producer; a second
/// member; a group that is deleted when its last member is unplugged.
#[test]
fn groups_that_come_and_go_are_reported() {
    let mut desk = Desk::new(&config());
    subscribe(
        &mut desk,
        12,
        TrapNumber::GROUP_CREATED.0,
        1,
        Notice::MANAGER,
    )
    .unwrap();
    subscribe(&mut desk, 13, ALL, 1, 0xff_ffff).unwrap();
    subscribe(&mut desk, 14, ALL, 1, 1).unwrap();
    join(&mut desk, 11);
    let seen: Vec<_> = reports(&mut desk)
        .into_iter()
        .map(|(_, to, trap, gid)| (to, trap, gid))
        .collect();
    let made = TrapNumber::GROUP_CREATED;
    assert_eq!(seen, [(12, made, GROUP), (13, made, GROUP)]);
    join(&mut desk, 12);
    leave(&mut desk, 12);
    assert!(
        reports(&mut desk).is_empty(),
        "the group was there and stays"
    );
    leave(&mut desk, 11);
    let seen: Vec<_> = reports(&mut desk)
        .into_iter()
        .map(|(_, to, trap, _)| (to, trap))
        .collect();
    assert_eq!(seen, [(13, TrapNumber::GROUP_DELETED)]);
    join(&mut desk, 14);
    reports(&mut desk);
    desk.unplug(14);
    let seen: Vec<_> = reports(&mut desk)
        .into_iter()
        .map(|(_, to, trap, gid)| (to, trap, gid))
        .collect();
    assert_eq!(seen, [(13, TrapNumber::GROUP_DELETED, GROUP)]);
}

/// Goal: ports that come into service and leave it are reported. Method: a subnet with a port less, then with it
/// again.
#[test]
fn ports_that_come_and_go_are_reported() {
    let mut desk = Desk::new(&config());
    subscribe(&mut desk, 12, ALL, 1, Notice::MANAGER).unwrap();
    let whole = desk.plan.fabric.clone();
    let gid = desk.gid(13);
    let mut less = whole.clone();
    less.nodes.remove(&verbs_core::Guid(13));
    desk.sa.compare(&whole, &less);
    let seen = reports(&mut desk);
    assert_eq!(
        (seen.len(), seen[0].2, seen[0].3),
        (1, TrapNumber::GID_OUT_OF_SERVICE, gid)
    );
    desk.sa.compare(&less, &whole);
    let seen = reports(&mut desk);
    assert_eq!(
        (seen.len(), seen[0].2, seen[0].3),
        (1, TrapNumber::GID_IN_SERVICE, gid)
    );
    desk.sa.compare(&whole, &whole);
    assert!(reports(&mut desk).is_empty());
}

/// Goal: a subscription ends when it is ended, and when its owner leaves three reports in a row unanswered.
/// Method: two misses and an answer, twice, then three misses; one that is ended twice.
#[test]
fn subscriptions_end() {
    let mut desk = Desk::new(&config());
    let made = TrapNumber::GROUP_CREATED.0;
    subscribe(&mut desk, 12, made, 1, Notice::MANAGER).unwrap();
    for heard in [false, false, true, false, false, true, false, false, false] {
        join(&mut desk, 11);
        leave(&mut desk, 11);
        let seen = reports(&mut desk);
        assert_eq!(seen.len(), 1);
        desk.sa.reported(seen[0].0, heard);
    }
    join(&mut desk, 11);
    assert!(reports(&mut desk).is_empty(), "three misses in a row");
    subscribe(&mut desk, 12, ALL, 1, Notice::MANAGER).unwrap();
    subscribe(&mut desk, 12, ALL, 0, Notice::MANAGER).unwrap();
    leave(&mut desk, 11);
    assert!(reports(&mut desk).is_empty());
    let twice = subscribe(&mut desk, 12, ALL, 0, Notice::MANAGER);
    assert_eq!(twice, Err(SaStatus::RequestInvalid));
    assert_eq!(
        subscribe(&mut desk, 12, ALL, 2, Notice::MANAGER),
        Err(SaStatus::RequestInvalid)
    );
}
