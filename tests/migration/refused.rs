//! What is refused: modifies, and peers that have moved.

use std::time::Duration;

use hca_sim::{Hca, Loopback};
use verbs_core::{
    AltPath, Attr, Av, DeviceCap, Error, EventType, Lid, MigState, Qp, QpAttr, WcStatus, Why,
};

use crate::bed::{Bed, End, alternate, lids, pass};

fn connected(bed: &Bed) -> [End; 2] {
    let ends = bed.hcas.each_ref().map(End::on);
    let [a, b] = &ends;
    a.connect(b, lids(0, 0));
    b.connect(a, lids(1, 0));
    ends
}

fn modify(qp: &Qp, attr: QpAttr) -> Result<(), Error> {
    qp.modify(attr).wait()
}

fn state(state: MigState) -> QpAttr {
    QpAttr {
        path_mig_state: Some(state),
        ..QpAttr::default()
    }
}

/// Goal: each modify that cannot be is refused by name, and changes nothing.
#[test]
fn what_makes_no_sense_is_refused() {
    let bed = Bed::new();
    let [a, _b] = connected(&bed);
    let mismatch = |attr, why| Err(Error::Mismatch { attr, why });
    let invalid = |attr, got, max| Err(Error::Invalid { attr, got, max });
    let expect = |attr, expected: Result<(), Error>| {
        let before = a.info();
        assert_eq!(modify(&a.qp, attr), expected, "{attr:?}");
        assert_eq!(a.info(), before, "{attr:?}");
    };
    assert_eq!(modify(&a.qp, state(MigState::Migrated)), Ok(()));
    expect(
        state(MigState::Rearm),
        mismatch(Attr::AltPath, Why::Missing),
    );
    expect(
        state(MigState::Armed),
        mismatch(Attr::PathMigState, Why::State),
    );
    let good = alternate(lids(0, 1));
    let with = |change: fn(&mut Av)| {
        let mut av = good.av();
        change(&mut av);
        QpAttr::load_path(alternate(av))
    };
    let slow = QpAttr::load_path(AltPath::new(good.av(), 0, 32));
    expect(slow, invalid(Attr::Timeout, 32, 31));
    expect(with(|av| av.sl = 16), invalid(Attr::AltPath, 16, 15));
    expect(with(|av| av.port = 2), invalid(Attr::Port, 2, 1));
    let keys = u32::from(a.device.query().wait().unwrap().max_pkeys);
    let far = QpAttr::load_path(AltPath::new(good.av(), keys as u16, good.timeout));
    expect(far, invalid(Attr::PkeyIndex, keys, keys - 1));
    expect(
        with(|av| av.dlid = Lid(0)),
        mismatch(Attr::AltPath, Why::Missing),
    );
    expect(
        with(|av| av.dlid = Lid(0xc001)),
        mismatch(Attr::AltPath, Why::Multicast),
    );
    assert_eq!(modify(&a.qp, QpAttr::load_path(good)), Ok(()));
    expect(
        state(MigState::Migrated),
        mismatch(Attr::PathMigState, Why::State),
    );
}

/// Goal: without the bit, and where there is one path only, nothing is loaded.
#[test]
fn devices_without_alternate_paths_refuse_them() {
    let bed = Bed::with(|builder| builder.without(DeviceCap::AUTO_PATH_MIG));
    let [a, b] = connected(&bed);
    let link = Loopback::with_seed(1);
    let on_loopback = [(); 2].map(|()| End::on(&Hca::on(&link).build()));
    let [c, d] = &on_loopback;
    c.connect(d, Av::to_lid(1, d.device.query_port(1).wait().unwrap().lid));
    for end in [&a, &b, c] {
        let caps = end.device.query().wait().unwrap().caps;
        assert!(!caps.contains(DeviceCap::AUTO_PATH_MIG));
        let load = QpAttr::load_path(alternate(lids(0, 1)));
        let refused = |attr: Attr| {
            let said = "its capability bit AUTO_PATH_MIG is clear";
            Err(format!("the device does not support {attr}: {said}"))
        };
        let said = |attr| modify(&end.qp, attr).map_err(|error| error.to_string());
        assert_eq!(said(load), refused(Attr::AltPath));
        let rearm = state(MigState::Rearm);
        assert_eq!(said(rearm), refused(Attr::PathMigState));
        assert_eq!(modify(&end.qp, state(MigState::Migrated)), Ok(()));
        assert_eq!(end.info().attr.alt_path, None);
    }
}

/// Goal: a peer that moves while this end is not armed is not followed, which both clients learn: one by an event, once,
/// the other by its completion.
#[test]
fn a_peer_that_moves_alone_is_not_followed() {
    let bed = Bed::new();
    let [mut a, b] = connected(&bed);
    for (host, end) in [&a, &b].into_iter().enumerate() {
        end.load(lids(host, 1));
    }
    a.count(&b, 1);
    pass(&bed.sim, Duration::from_millis(1));
    assert_eq!((a.state(), b.state()), (MigState::Armed, MigState::Armed));
    a.poll();
    // One end arms again, and the other moves before it hears of that.
    modify(&b.qp, state(MigState::Rearm)).unwrap();
    modify(&a.qp, QpAttr::migrate()).unwrap();
    let before = b.counted();
    a.count(&b, 1);
    pass(&bed.sim, Duration::from_secs(2));
    assert_eq!(b.counted(), before);
    let statuses: Vec<WcStatus> = a.poll().iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::RetryExcErr]);
    assert_eq!(a.moves(), [EventType::PathMig]);
    assert_eq!(b.moves(), [EventType::PathMigErr]);
    assert_eq!(b.info().attr.av, Some(lids(1, 0)));
}
