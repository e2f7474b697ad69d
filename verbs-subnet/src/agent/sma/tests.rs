use std::time::Duration;

use verbs_core::mad::sm::{CapabilityMask, LinkWidth, PortInfoView, SwitchInfo, SwitchInfoView};
use verbs_core::mad::{Bits, Method};

use super::*;

const KEY: u64 = 0x1234;

fn config(node_type: NodeType, ports: u8) -> NodeConfig {
    let first = u8::from(node_type != NodeType::SWITCH);
    NodeConfig {
        node_type,
        description: "a node".into(),
        guid: Guid(0x20),
        system_guid: Guid(0x20),
        vendor_id: 1,
        device_id: 1,
        pkey_capacity: 32,
        ports: (first..=ports)
            .map(|port| PortConfig {
                guid: Guid(0x20 + u64::from(port)),
                ..PortConfig::default()
            })
            .collect(),
        switch: SwitchConfig::default(),
    }
}

fn at(port: u8, now: Instant) -> Arrival {
    Arrival {
        port,
        slid: Lid(9),
        now,
    }
}

fn mad(method: Method, attribute: AttributeId, modifier: u32, key: u64) -> MadBytes {
    let mut mad = [0; 256];
    let header = MadHeader {
        base_version: 1,
        class: Class::SUBN_LID,
        class_version: sm::CLASS_VERSION,
        method,
        attribute,
        modifier,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    SmpHeader {
        m_key: key,
        ..SmpHeader::default()
    }
    .put(&mut mad);
    mad
}

fn answer(sma: &mut Sma, arrival: Arrival, mad: &MadBytes) -> Option<(Status, MadBytes)> {
    match sma.process(arrival, mad) {
        Processed::Reply(reply) => Some((header_of(&reply).status(), *reply)),
        _ => None,
    }
}

/// Sets a port, starting from its current values.
fn set(
    sma: &mut Sma,
    number: u8,
    key: u64,
    change: impl FnOnce(&mut PortInfo),
) -> Option<(Status, PortInfo)> {
    let through = if sma.is_switch() { 0 } else { number };
    let mut info = *sma.port(number)?.info();
    // A Set that keeps the state has no change in this field.
    info.state = LinkState::NO_CHANGE;
    info.phys_state = PhysState::NO_CHANGE;
    change(&mut info);
    let mut bytes = [0; PortInfo::LEN];
    info.emit(&mut bytes);
    let mut request = mad(Method::SET, AttributeId::PORT_INFO, number.into(), key);
    sm::put_attribute(&mut request, &bytes);
    let (status, reply) = answer(sma, at(through, Instant::ZERO), &request)?;
    Some((
        status,
        PortInfo::parse(PortInfoView::of(sm::attribute(&reply))),
    ))
}

fn events(sma: &mut Sma) -> Vec<SmaChange> {
    std::iter::from_fn(|| sma.poll_event().map(|event| event.change)).collect()
}

/// Goal: the state of a port changes by the rules, whatever is requested. Method: from each state a Set of each
/// state; the result is compared with IBTA vol. 1, 7.2 as a table.
#[test]
fn states_move_by_the_rules() {
    let states = [LinkState::INIT, LinkState::ARMED, LinkState::ACTIVE];
    for (from, &start) in states.iter().enumerate() {
        for asked in 0..=5 {
            let mut sma = Sma::new(config(NodeType::CA, 1));
            let peer = *sma.port(1).expect("a port").info();
            sma.link_up(Instant::ZERO, 1, &peer);
            for &state in states.iter().take(from + 1).skip(1) {
                let done = set(&mut sma, 1, 0, |info| info.state = state);
                assert_eq!(done.expect("an answer").0, Status::OK);
            }
            assert_eq!(sma.port(1).expect("a port").info().state, start);
            events(&mut sma);
            let asked = LinkState(asked);
            let (status, info) = set(&mut sma, 1, 0, |info| info.state = asked).expect("an answer");
            let allowed = matches!(
                (start, asked),
                (_, LinkState::NO_CHANGE | LinkState::DOWN)
                    | (LinkState::INIT | LinkState::ARMED, LinkState::ARMED)
                    | (LinkState::ARMED | LinkState::ACTIVE, LinkState::ACTIVE)
            );
            assert_eq!(status == Status::OK, allowed, "{start:?} to {asked:?}");
            let changes = events(&mut sma);
            if asked == LinkState::DOWN {
                assert_eq!(changes, [SmaChange::Restart(PhysState::POLLING)]);
            } else if allowed && asked != LinkState::NO_CHANGE && asked != start {
                assert_eq!(
                    (info.state, changes),
                    (asked, vec![SmaChange::State(asked)])
                );
            } else {
                assert_eq!(sma.port(1).expect("a port").info().state, start);
                assert_eq!(changes, []);
            }
        }
    }
}

/// Goal: a Set with an invalid value changes nothing. Method: one bad value at a time, among good ones.
#[test]
fn a_bad_set_changes_nothing() {
    type Spoil = fn(&mut PortInfo);
    let bad: [Spoil; 7] = [
        |info| info.lid = Lid(0xc000),
        |info| info.sm_lid = Lid(0xffff),
        |info| info.neighbor_mtu = Bits::truncated(6),
        |info| info.operational_vls = Bits::truncated(5),
        |info| info.link_width_enabled = LinkWidth::X12,
        |info| info.link_speed_enabled = Bits::truncated(8),
        |info| info.phys_state = PhysState::LINK_UP,
    ];
    let mut sma = Sma::new(config(NodeType::CA, 2));
    let before = *sma.port(2).expect("a port").info();
    for (index, spoil) in bad.into_iter().enumerate() {
        let done = set(&mut sma, 2, 0, |info| {
            (info.lid, info.gid_prefix) = (Lid(7), 1);
            spoil(info);
        });
        assert_eq!(done.expect("an answer").0, Status::BAD_VALUE, "{index}");
        assert_eq!(*sma.port(2).expect("a port").info(), before, "{index}");
    }
    let (status, info) = set(&mut sma, 2, 0, |info| {
        (info.lid, info.sm_lid, info.gid_prefix) = (Lid(7), Lid(1), 1);
        info.link_width_enabled = LinkWidth::ALL_SUPPORTED;
        info.client_reregister = true;
    })
    .expect("an answer");
    assert_eq!((status, info.lid, info.local_port), (Status::OK, Lid(7), 2));
    let told = events(&mut sma);
    let all = [
        SmaChange::Gids,
        SmaChange::Lid,
        SmaChange::SubnetManager,
        SmaChange::Reregister,
    ];
    assert_eq!(told, all);
    assert_eq!(
        sma.port(1).expect("a port").info().lid,
        Lid(0),
        "the other port is another"
    );
}

/// Goal: a key protects according to its level, violations are counted and reported, the lease ends the
/// protection. Method: each level, with and without the key.
#[test]
fn keys_protect_by_their_level() {
    for level in 0..=3 {
        let mut sma = Sma::new(config(NodeType::CA, 1));
        let done = set(&mut sma, 1, 0, |info| {
            (info.lid, info.sm_lid) = (Lid(3), Lid(1));
            (info.m_key, info.m_key_lease_s) = (KEY, 10);
            info.m_key_protect = MKeyProtect(level);
        });
        assert_eq!(done.expect("an answer").0, Status::OK);
        let get = |key| mad(Method::GET, AttributeId::PORT_INFO, 1, key);
        let shown =
            |reply: &MadBytes| PortInfo::parse(PortInfoView::of(sm::attribute(reply))).m_key;
        let (_, with) = answer(&mut sma, at(1, Instant::ZERO), &get(KEY)).expect("an answer");
        assert_eq!(shown(&with), KEY);
        let without = answer(&mut sma, at(1, Instant::ZERO), &get(0));
        match level {
            0 => assert_eq!(shown(&without.expect("an answer").1), KEY),
            1 => assert_eq!(shown(&without.expect("an answer").1), 0, "it is hidden"),
            _ => assert_eq!(without, None),
        }
        assert_eq!(
            set(&mut sma, 1, 7, |info| info.lid = Lid(8)),
            None,
            "a change needs the key"
        );
        let info = *sma.port(1).expect("a port").info();
        assert_eq!(info.lid, Lid(3));
        assert_eq!(info.m_key_violations, if level < 2 { 1 } else { 2 });
        let trap = sma.poll_trap(Instant::ZERO).expect("the manager is told");
        assert_eq!((trap.from, trap.to), (Lid(3), Lid(1)));
        assert_eq!(sm::attribute(&trap.mad)[4..6], [1, 0], "trap 256");
        let end = Instant::ZERO + Duration::from_secs(10);
        assert!(sma.poll_timeout().is_some_and(|due| due <= end));
        sma.handle_timeout(end);
        assert_eq!(
            sma.port(1).expect("a port").info().m_key_protect,
            MKeyProtect::WRITES
        );
    }
}

/// Goal: a manager gets traps about changes until it acknowledges them. Method: a switch whose link comes up, an
/// adapter that gets a manager.
#[test]
fn traps_are_repeated_until_they_are_repressed() {
    let mut sma = Sma::new(config(NodeType::SWITCH, 2));
    let peer = *sma.port(1).expect("a port").info();
    sma.link_up(Instant::ZERO, 1, &peer);
    assert!(
        sma.poll_trap(Instant::ZERO).is_none(),
        "nobody is there to be told"
    );
    let done = set(&mut sma, 0, 0, |info| {
        (info.lid, info.sm_lid) = (Lid(2), Lid(1));
    });
    assert_eq!(done.expect("an answer").0, Status::OK);
    sma.link_down(Instant::ZERO, 1, PhysState::POLLING);
    let trap = sma.poll_trap(Instant::ZERO).expect("a trap");
    let first = header_of(&trap.mad).tid();
    assert_eq!(
        (trap.port, header_of(&trap.mad).method()),
        (0, Method::TRAP)
    );
    assert_eq!(
        sm::attribute(&trap.mad)[..12],
        [0x81, 0, 0, 2, 0, 128, 0, 2, 0, 0, 0, 2]
    );
    assert!(sma.poll_trap(Instant::ZERO).is_none(), "once at a time");
    let again = sma.poll_timeout().expect("it will be repeated");
    assert_eq!(
        header_of(&sma.poll_trap(again).expect("again").mad).tid(),
        first
    );
    let mut heard = mad(Method::TRAP_REPRESS, AttributeId::NOTICE, 0, 0);
    // Managers keep the lower half.
    heard[12..16].copy_from_slice(&trap.mad[12..16]);
    assert_eq!(sma.process(at(1, again), &heard), Processed::Consumed);
    assert_eq!(sma.poll_timeout(), None);

    let get = mad(Method::GET, AttributeId::SWITCH_INFO, 0, 0);
    let info = |reply: &MadBytes| {
        SwitchInfo::parse(SwitchInfoView::new(sm::attribute(reply)).expect("64 bytes"))
    };
    let (_, reply) = answer(&mut sma, at(1, again), &get).expect("an answer");
    assert!(info(&reply).port_state_change);
    let mut clear = mad(Method::SET, AttributeId::SWITCH_INFO, 0, 0);
    sm::put_attribute(&mut clear, sm::attribute(&reply));
    let (_, reply) = answer(&mut sma, at(1, again), &clear).expect("an answer");
    assert!(!info(&reply).port_state_change, "writing a one clears it");

    sma.set_sm(again, 0, true);
    let mask = sma.port(0).expect("a port").info().capability_mask;
    assert!(mask.contains(CapabilityMask::IS_SM));
    let trap = sma.poll_trap(again).expect("capabilities have changed");
    assert_eq!(sm::attribute(&trap.mad)[4..6], [0, 144]);
}

/// Goal: datagrams for others are passed on, malformed ones are refused. Method: one of each.
#[test]
fn questions_for_others_are_left_to_them() {
    let mut sma = Sma::new(config(NodeType::CA, 1));
    let here = at(1, Instant::ZERO);
    for (method, attribute) in [
        (Method::GET, AttributeId::SM_INFO),
        (Method::SET, AttributeId::SM_INFO),
        (Method::TRAP, AttributeId::NOTICE),
        (Method::GET_RESP, AttributeId::NODE_INFO),
    ] {
        let mad = mad(method, attribute, 0, 0);
        assert_eq!(sma.process(here, &mad), Processed::NotMine, "{attribute:?}");
    }
    let mut refused = |method, attribute, modifier| {
        let mad = mad(method, attribute, modifier, 0);
        answer(&mut sma, here, &mad).expect("an answer").0
    };
    let wrong = Status::BAD_METHOD_ATTRIBUTE;
    assert_eq!(refused(Method::GET, AttributeId::SWITCH_INFO, 0), wrong);
    assert_eq!(refused(Method::SET, AttributeId::NODE_INFO, 0), wrong);
    assert_eq!(refused(Method::GET, AttributeId(0xff90), 0), wrong);
    assert_eq!(
        refused(Method::GET, AttributeId::PORT_INFO, 2),
        Status::BAD_VALUE
    );
    assert_eq!(
        refused(Method::GET, AttributeId::PKEY_TABLE, 1),
        Status::BAD_VALUE
    );
    assert_eq!(
        refused(Method::GET, AttributeId::GUID_INFO, 4),
        Status::BAD_VALUE
    );
    assert_eq!(
        refused(Method::GET, AttributeId::VL_ARBITRATION, 0x5_0000),
        Status::BAD_VALUE
    );
    let mut old = mad(Method::GET, AttributeId::NODE_INFO, 0, 0);
    old[2] = 9;
    let status = answer(&mut sma, here, &old).expect("an answer").0;
    assert_eq!(status, Status::BAD_VERSION);
    old[0] = 2;
    assert_eq!(sma.process(here, &old), Processed::Consumed);
}
