//! Multicast groups: which ports may join, which requesters see members, when a group is deleted (15.2.5.17).

use verbs_core::QKey;
use verbs_core::mad::Bits;
use verbs_core::mad::sa::{JoinState, McMemberMask, McMemberRecord, McMemberRecordView, Selector};
use verbs_core::mad::sm::LinkWidth;

use super::*;

const JOIN: (Method, AttributeId) = (Method::SET, AttributeId::MC_MEMBER_RECORD);
const LEAVE: (Method, AttributeId) = (Method::DELETE, AttributeId::MC_MEMBER_RECORD);
const TABLE: (Method, AttributeId) = (Method::GET_TABLE, AttributeId::MC_MEMBER_RECORD);

const FULL: JoinState = JoinState::FULL_MEMBER;
const INVALID: SaStatus = SaStatus::RequestInvalid;

/// The group that these tests create.
pub(super) const GROUP: Gid = Gid([0xff, 0x12, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);

type Joined = Result<McMemberRecord, SaStatus>;

pub(super) fn ask(
    desk: &mut Desk,
    (key, from): (u64, u16),
    how: (Method, AttributeId),
    record: &McMemberRecord,
    mask: McMemberMask,
) -> Result<Vec<McMemberRecord>, SaStatus> {
    let mut bytes = [0; McMemberRecord::LEN];
    record.emit(&mut bytes);
    let found = desk.ask_with_key(key, from, how, &bytes, mask.bits())?;
    let view = |bytes: Vec<u8>| {
        McMemberRecord::parse(McMemberRecordView::new(&bytes).expect("long enough"))
    };
    Ok(found.into_iter().map(view).collect())
}

/// A request that creates a group: its identity, and the fields that the specification requires.
pub(super) fn group(desk: &Desk, port: u16, join_state: JoinState) -> McMemberRecord {
    McMemberRecord {
        mgid: GROUP,
        port_gid: desk.gid(port),
        join_state,
        qkey: QKey(0x1234),
        pkey: PKey::DEFAULT,
        ..McMemberRecord::default()
    }
}

fn make(
    desk: &mut Desk,
    port: u16,
    like: impl Fn(McMemberRecord) -> McMemberRecord,
    bits: McMemberMask,
) -> Joined {
    let record = like(group(desk, port, FULL));
    Ok(ask(desk, (0, port), JOIN, &record, McMemberMask::CREATE | bits)?[0])
}

fn join(desk: &mut Desk, port: u16, how: JoinState) -> Joined {
    let record = group(desk, port, how);
    Ok(ask(desk, (0, port), JOIN, &record, McMemberMask::JOIN)?[0])
}

fn leave(desk: &mut Desk, port: u16, how: JoinState) -> Joined {
    let record = group(desk, port, how);
    Ok(ask(desk, (0, port), LEAVE, &record, McMemberMask::JOIN)?[0])
}

/// Whether the group exists.
fn is_there(desk: &mut Desk) -> bool {
    let like = group(desk, 11, FULL);
    !ask(desk, (0, 12), TABLE, &like, McMemberMask::MGID)
        .unwrap()
        .is_empty()
}

/// The ports that receive the group's packets.
fn receivers(desk: &Desk, mlid: Lid) -> Vec<Gid> {
    let members = desk.sa.groups.members(mlid);
    members
        .filter(|&(_, receives)| receives)
        .map(|(gid, _)| gid)
        .collect()
}

/// Goal: a port joins and leaves only for itself; a requester with the managers' key, for others too. Method:
/// another port's GID, with and without the key; a GID of no port.
#[test]
fn a_port_joins_and_leaves_for_itself() {
    let mut desk = Desk::new(&config());
    make(&mut desk, 11, |group| group, McMemberMask::empty()).unwrap();
    let other = group(&desk, 12, FULL);
    let (named, key) = (McMemberMask::JOIN, desk.sa.config.sm_key);
    assert_eq!(ask(&mut desk, (0, 13), JOIN, &other, named), Err(INVALID));
    assert_eq!(
        ask(&mut desk, (key + 1, 13), JOIN, &other, named),
        Err(INVALID)
    );
    let record = McMemberRecord {
        mgid: Gid([0xff; 16]),
        ..other
    };
    assert_eq!(
        ask(&mut desk, (0, 13), JOIN, &record, McMemberMask::CREATE),
        Err(INVALID)
    );
    join(&mut desk, 12, FULL).unwrap();
    assert_eq!(ask(&mut desk, (0, 13), LEAVE, &other, named), Err(INVALID));
    assert_eq!(
        receivers(&desk, Lid(0xc001)).len(),
        2,
        "nothing has changed"
    );
    ask(&mut desk, (key, 13), LEAVE, &other, named).unwrap();
    assert_eq!(receivers(&desk, Lid(0xc001)), [desk.gid(11)]);
    ask(&mut desk, (key, 13), JOIN, &other, named).unwrap();
    assert_eq!(receivers(&desk, Lid(0xc001)).len(), 2);
    let nobody = McMemberRecord {
        port_gid: Gid([2; 16]),
        ..other
    };
    for how in [JOIN, LEAVE] {
        assert_eq!(
            ask(&mut desk, (key, 13), how, &nobody, named),
            Err(SaStatus::InvalidGid)
        );
    }
}

/// Goal: a request must have the required fields, and a membership must be of some kind. Method: each part of the
/// mask left out; an empty state, to join and to leave.
#[test]
fn requests_say_what_they_mean() {
    let mut desk = Desk::new(&config());
    let missing = Err(SaStatus::InsufficientComponents);
    let record = group(&desk, 11, FULL);
    for bit in McMemberMask::CREATE.iter() {
        let mask = McMemberMask::CREATE - bit;
        assert_eq!(
            ask(&mut desk, (0, 11), JOIN, &record, mask),
            missing,
            "{bit:?}"
        );
    }
    make(&mut desk, 11, |group| group, McMemberMask::empty()).unwrap();
    for bit in McMemberMask::JOIN
        .iter()
        .filter(|&bit| bit != McMemberMask::MGID)
    {
        let mask = McMemberMask::JOIN - bit;
        assert_eq!(
            ask(&mut desk, (0, 11), JOIN, &record, mask),
            missing,
            "{bit:?}"
        );
        assert_eq!(
            ask(&mut desk, (0, 11), LEAVE, &record, mask),
            missing,
            "{bit:?}"
        );
    }
    let none = JoinState::empty();
    assert_eq!(join(&mut desk, 12, none), Err(INVALID));
    assert_eq!(leave(&mut desk, 11, none), Err(INVALID));
    let unicast = |group| McMemberRecord {
        mgid: Gid([0xfe; 16]),
        ..group
    };
    assert_eq!(
        make(&mut desk, 11, unicast, McMemberMask::empty()),
        Err(INVALID)
    );
    // A kind of member that keeps no group alive creates none.
    let other = Gid([0xff; 16]);
    for how in [JoinState::NON_MEMBER, JoinState::SEND_ONLY_NON_MEMBER] {
        let like = |group| McMemberRecord {
            mgid: other,
            join_state: how,
            ..group
        };
        assert_eq!(
            make(&mut desk, 11, like, McMemberMask::empty()),
            Err(INVALID)
        );
    }
}

/// Goal: a port that creates or joins a group is in its partition. Method: a port outside, an invalid partition,
/// a limited member.
#[test]
fn members_are_in_the_partition() {
    let mut desk = Desk::new(&config());
    let of = |pkey| move |group| McMemberRecord { pkey, ..group };
    let none = McMemberMask::empty();
    assert_eq!(make(&mut desk, 14, of(OTHER), none), Err(INVALID));
    assert_eq!(make(&mut desk, 11, of(PKey(0x8777)), none), Err(INVALID));
    let made = make(&mut desk, 11, of(OTHER), none).unwrap();
    assert_eq!(
        (made.pkey, made.mlid, made.mtu.value(), made.rate.value()),
        (OTHER, Lid(0xc001), 5, 7)
    );
    assert_eq!(join(&mut desk, 14, FULL), Err(INVALID));
    join(&mut desk, 12, FULL).expect("a limited member");
}

/// Goal: a join must agree with the group's properties; fields outside the mask are ignored. Method: another
/// value of each component, and the same one.
#[test]
fn who_joins_agrees_with_the_group() {
    let mut desk = Desk::new(&config());
    let other = |group| McMemberRecord {
        pkey: OTHER,
        ..group
    };
    make(&mut desk, 11, other, McMemberMask::empty()).unwrap();
    let mut wants = |change: fn(&mut McMemberRecord), bits: McMemberMask| {
        let mut record = group(&desk, 13, FULL);
        change(&mut record);
        let joined = ask(&mut desk, (0, 13), JOIN, &record, McMemberMask::JOIN | bits);
        let refused = joined.map(drop).err();
        assert!(
            refused.is_none_or(|status| status == INVALID),
            "{refused:?}"
        );
        refused.is_none()
    };
    use McMemberMask as Mask;
    type Change = fn(&mut McMemberRecord);
    let by_mtu = Mask::MTU | Mask::MTU_SELECTOR;
    let by_rate = Mask::RATE | Mask::RATE_SELECTOR;
    let all: [(Mask, Change, bool); 16] = [
        (Mask::QKEY, |_| (), true),
        (Mask::QKEY, |like| like.qkey = QKey(0x1235), false),
        (Mask::empty(), |like| like.qkey = QKey(0x1235), true),
        (Mask::PKEY, |like| like.pkey = PKey::DEFAULT, false),
        (Mask::PKEY, |like| like.pkey = PKey(0x0123), true),
        (Mask::SL, |like| like.sl = Bits::truncated(1), false),
        (Mask::TRAFFIC_CLASS, |like| like.traffic_class = 1, false),
        (
            Mask::FLOW_LABEL,
            |like| like.flow_label = Bits::truncated(1),
            false,
        ),
        (Mask::MTU, |like| like.mtu = Bits::truncated(5), true),
        (Mask::MTU, |like| like.mtu = Bits::truncated(4), false),
        (by_mtu, |like| like.mtu = Bits::truncated(4), true),
        (by_mtu, |like| like.mtu = Bits::truncated(5), false),
        (Mask::RATE, |like| like.rate = Bits::truncated(6), false),
        // 30 Gb/s are less than the group's 40, 60 are more.
        (by_rate, |like| like.rate = Bits::truncated(4), true),
        (by_rate, |like| like.rate = Bits::truncated(8), false),
        // The hop limit and the lifetime are the group's.
        (Mask::HOP_LIMIT, |like| like.hop_limit = 9, true),
    ];
    for (number, (mask, change, joins)) in all.into_iter().enumerate() {
        assert_eq!(wants(change, mask), joins, "{number}: {mask:?}");
    }
}

/// Goal: a port that joins supports the group's MTU and rate. Method: a port of the same MTU and rate, of less
/// MTU, of less rate.
#[test]
fn who_joins_can_carry_the_groups_packets() {
    let mut desk = Desk::new(&config());
    make(&mut desk, 11, |group| group, McMemberMask::empty()).unwrap();
    join(&mut desk, 13, FULL).unwrap();
    leave(&mut desk, 13, FULL).unwrap();
    desk.change(13, |info| info.neighbor_mtu = Bits::truncated(4));
    assert_eq!(join(&mut desk, 13, FULL), Err(INVALID), "shorter");
    desk.change(13, |info| {
        info.neighbor_mtu = Bits::truncated(5);
        info.link_width_active = LinkWidth::X1;
    });
    assert_eq!(join(&mut desk, 13, FULL), Err(INVALID), "slower");
}

/// Goal: a group has the requested properties, as far as the port that creates it supports them. Method: MTU and
/// rate by each selector, for groups that are created and left; codes without a meaning.
#[test]
fn who_makes_a_group_says_what_it_is_like() {
    use Selector::{Best, Exactly, Greater, Less};
    let mut desk = Desk::new(&config());
    desk.change(11, |info| info.neighbor_mtu = Bits::truncated(4));
    let mut made = |mtu: (Selector, u32), rate: (Selector, u32)| {
        let like = |group| McMemberRecord {
            mtu_selector: mtu.0,
            mtu: Bits::truncated(mtu.1),
            rate_selector: rate.0,
            rate: Bits::truncated(rate.1),
            ..group
        };
        let bits = McMemberMask::MTU
            | McMemberMask::MTU_SELECTOR
            | McMemberMask::RATE
            | McMemberMask::RATE_SELECTOR;
        let made = make(&mut desk, 11, like, bits).ok()?;
        leave(&mut desk, 11, FULL).unwrap();
        assert_eq!((made.mtu_selector, made.rate_selector), (Exactly, Exactly));
        Some((made.mtu.value(), made.rate.value()))
    };
    let fast = (Best, 0);
    assert_eq!(made((Best, 0), fast), Some((4, 7)));
    assert_eq!(
        (made((Exactly, 4), fast), made((Exactly, 2), fast)),
        (Some((4, 7)), Some((2, 7)))
    );
    assert_eq!(
        (made((Exactly, 5), fast), made((Exactly, 0), fast)),
        (None, None)
    );
    assert_eq!(
        (made((Less, 4), fast), made((Less, 9), fast)),
        (Some((3, 7)), Some((4, 7)))
    );
    assert_eq!(made((Less, 1), fast), None);
    assert_eq!(
        (made((Greater, 3), fast), made((Greater, 4), fast)),
        (Some((4, 7)), None)
    );
    let long = (Best, 0);
    assert_eq!(
        (made(long, (Exactly, 7)), made(long, (Exactly, 3))),
        (Some((4, 7)), Some((4, 3)))
    );
    assert_eq!(
        (made(long, (Exactly, 8)), made(long, (Exactly, 63))),
        (None, None)
    );
    assert_eq!(
        (made(long, (Less, 7)), made(long, (Less, 10))),
        (Some((4, 4)), Some((4, 7)))
    );
    assert_eq!(
        (made(long, (Less, 2)), made(long, (Less, 63))),
        (None, None)
    );
    assert_eq!(
        (made(long, (Greater, 4)), made(long, (Greater, 7))),
        (Some((4, 7)), None)
    );
}

/// Goal: a group requested without an address gets one of its own. Method: two of them, of one scope.
#[test]
fn a_group_without_an_address_gets_one() {
    let mut desk = Desk::new(&config());
    let like = |group| McMemberRecord {
        mgid: Gid::default(),
        scope: Bits::truncated(5),
        ..group
    };
    let made = [11, 12].map(|port| make(&mut desk, port, like, McMemberMask::SCOPE).unwrap());
    assert_ne!(made[0].mgid, made[1].mgid);
    assert_ne!(made[0].mlid, made[1].mlid);
    for made in made {
        assert_eq!(
            (made.mgid.0[0], made.mgid.0[1], made.scope.value()),
            (0xff, 0x15, 5)
        );
    }
}

/// Goal: a group exists as long as it has a full member, even a send-only one; then its LID is free. Method:
/// kinds of members that leave one after the other.
#[test]
fn a_group_goes_with_its_last_full_member() {
    let mut desk = Desk::new(&config());
    let sender = JoinState::SEND_ONLY_FULL_MEMBER;
    make(&mut desk, 11, |group| group, McMemberMask::empty()).unwrap();
    join(&mut desk, 12, sender).unwrap();
    join(&mut desk, 13, JoinState::NON_MEMBER).unwrap();
    let left = leave(&mut desk, 11, FULL).unwrap();
    assert_eq!(
        (left.join_state, left.port_gid),
        (JoinState::empty(), desk.gid(11))
    );
    assert!(is_there(&mut desk), "who only sends keeps it");
    assert_eq!(
        leave(&mut desk, 11, FULL),
        Err(INVALID),
        "it is no member any more"
    );
    leave(&mut desk, 12, sender).unwrap();
    assert!(!is_there(&mut desk), "a non-member does not keep it");
    assert_eq!(leave(&mut desk, 13, JoinState::NON_MEMBER), Err(INVALID));
    assert_eq!(
        join(&mut desk, 13, FULL),
        Err(SaStatus::InsufficientComponents)
    );
    let again = make(&mut desk, 11, |group| group, McMemberMask::empty()).unwrap();
    assert_eq!((again.mlid, desk.sa.groups.members), (Lid(0xc001), 1));
    // The broadcast group exists without members.
    let like = McMemberRecord {
        mgid: Partition::default().broadcast(),
        ..group(&desk, 11, FULL)
    };
    ask(&mut desk, (0, 11), JOIN, &like, McMemberMask::JOIN).unwrap();
    ask(&mut desk, (0, 11), LEAVE, &like, McMemberMask::JOIN).unwrap();
    assert_eq!(
        ask(&mut desk, (0, 11), TABLE, &like, McMemberMask::MGID).map(|found| found.len()),
        Ok(1)
    );
}

/// Goal: a port can be a member of several kinds at once, and leaves by kind; a send-only member receives no
/// packets. Method: states one after the other; kinds that it does not have.
#[test]
fn kinds_of_membership_add_up() {
    let mut desk = Desk::new(&config());
    let mlid = make(&mut desk, 11, |group| group, McMemberMask::empty())
        .unwrap()
        .mlid;
    let (sender, listener) = (JoinState::SEND_ONLY_NON_MEMBER, JoinState::NON_MEMBER);
    for (how, is_receiver) in [
        (sender, false),
        (JoinState::SEND_ONLY_FULL_MEMBER, false),
        (listener, true),
    ] {
        join(&mut desk, 12, how).unwrap();
        assert_eq!(
            receivers(&desk, mlid).contains(&desk.gid(12)),
            is_receiver,
            "{how:?}"
        );
        assert_eq!(desk.sa.groups.members(mlid).count(), 2);
        leave(&mut desk, 12, how).unwrap();
        assert_eq!(desk.sa.groups.members(mlid).count(), 1);
    }
    assert_eq!(join(&mut desk, 12, sender).unwrap().join_state, sender);
    assert_eq!(join(&mut desk, 12, FULL).unwrap().join_state, sender | FULL);
    assert_eq!(leave(&mut desk, 12, listener), Err(INVALID));
    assert_eq!(
        leave(&mut desk, 12, listener | sender),
        Err(INVALID),
        "it is only one of them"
    );
    assert_eq!(leave(&mut desk, 12, FULL).unwrap().join_state, sender);
    assert!(!receivers(&desk, mlid).contains(&desk.gid(12)));
    assert_eq!(desk.sa.groups.members, 2);
}

/// Goal: requesters with the managers' key see members; others see groups, and whether a named port is a member.
/// Method: tables with and without the key, by member, by state, by LID.
#[test]
fn members_are_shown_to_who_is_trusted() {
    let mut desk = Desk::new(&config());
    let mlid = make(&mut desk, 11, |group| group, McMemberMask::empty())
        .unwrap()
        .mlid;
    join(&mut desk, 12, JoinState::SEND_ONLY_NON_MEMBER).unwrap();
    let key = desk.sa.config.sm_key;
    let mut find = |key, like: fn(&mut McMemberRecord), mask| {
        let mut record = group(&desk, 12, JoinState::SEND_ONLY_NON_MEMBER);
        record.mlid = Lid(0xc001);
        like(&mut record);
        let found = ask(&mut desk, (key, 13), TABLE, &record, mask).unwrap();
        found
            .into_iter()
            .map(|found| (found.port_gid, found.join_state))
            .collect::<Vec<_>>()
    };
    let nobody = (Gid::default(), JoinState::empty());
    let by_group = McMemberMask::MGID;
    assert_eq!(find(0, |_| (), by_group), [nobody]);
    assert_eq!(find(key + 1, |_| (), by_group), [nobody]);
    assert_eq!(find(key, |_| (), by_group).len(), 2);
    let by_member = by_group | McMemberMask::PORT_GID;
    assert_eq!(
        find(0, |_| (), by_member),
        [nobody],
        "it is in, but is not shown how"
    );
    assert_eq!(find(key, |_| (), by_member).len(), 1);
    assert!(find(0, |record| record.port_gid = Gid([3; 16]), by_member).is_empty());
    assert!(find(key, |record| record.port_gid = Gid([3; 16]), by_member).is_empty());
    let by_state = by_group | McMemberMask::JOIN_STATE;
    assert_eq!(find(key, |_| (), by_state).len(), 1);
    assert_eq!(
        find(key, |record| record.join_state = FULL, by_state).len(),
        1
    );
    assert!(
        find(
            0,
            |record| record.join_state = JoinState::NON_MEMBER,
            by_state
        )
        .is_empty()
    );
    assert_eq!(find(0, |_| (), McMemberMask::MLID).len(), 1);
    assert!(find(0, |record| record.mlid = Lid(0xc009), McMemberMask::MLID).is_empty());
    assert_eq!(
        find(0, |_| (), McMemberMask::empty()).len(),
        2,
        "the broadcast group too"
    );
    assert_eq!(mlid, Lid(0xc001));
}

/// Goal: members whose ports have disappeared are removed, and a group that they kept is deleted. Method: two
/// members that are unplugged one after the other.
#[test]
fn members_go_with_their_ports() {
    let mut desk = Desk::new(&config());
    let mlid = make(&mut desk, 11, |group| group, McMemberMask::empty())
        .unwrap()
        .mlid;
    join(&mut desk, 13, FULL).unwrap();
    join(&mut desk, 12, JoinState::NON_MEMBER).unwrap();
    desk.unplug(11);
    assert_eq!(receivers(&desk, mlid).len(), 2);
    let key = desk.sa.config.sm_key;
    let like = group(&desk, 12, FULL);
    assert_eq!(
        ask(&mut desk, (key, 12), TABLE, &like, McMemberMask::MGID)
            .unwrap()
            .len(),
        2
    );
    assert_eq!(desk.sa.groups.members, 2);
    desk.unplug(13);
    assert!(
        ask(&mut desk, (key, 12), TABLE, &like, McMemberMask::MGID)
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        (desk.sa.groups.members, desk.sa.groups.members(mlid).count()),
        (0, 0)
    );
    assert_eq!(desk.sa.groups.lids(), [Lid(0xc000)]);
}
