//! Paths: what a route supports, and what is requested of it (15.2.5.16).

use verbs_core::mad::Bits;
use verbs_core::mad::sa::{PathMask, PathRecord, PathRecordView, Selector};
use verbs_core::mad::sm::LinkWidth;

use super::*;

const GET: (Method, AttributeId) = (Method::GET, AttributeId::PATH_RECORD);
const TABLE: (Method, AttributeId) = (Method::GET_TABLE, AttributeId::PATH_RECORD);

fn asked(
    desk: &mut Desk,
    how: (Method, AttributeId),
    like: &PathRecord,
    mask: PathMask,
) -> Result<Vec<PathRecord>, SaStatus> {
    let mut bytes = [0; PathRecord::LEN];
    like.emit(&mut bytes);
    let found = desk.ask(11, how, &bytes, mask.bits())?;
    let parse =
        |bytes: Vec<u8>| PathRecord::parse(PathRecordView::new(&bytes).expect("long enough"));
    Ok(found.into_iter().map(parse).collect())
}

/// The path from client 11 to 13, with further requested values.
fn path(desk: &mut Desk, like: PathRecord, mask: PathMask) -> Result<PathRecord, SaStatus> {
    let like = PathRecord {
        sgid: desk.gid(11),
        dgid: desk.gid(13),
        ..like
    };
    let mask = mask | PathMask::SGID | PathMask::DGID;
    Ok(asked(desk, GET, &like, mask)?[0])
}

/// The MTU of a path that is requested like that; 0 for no path.
fn mtu(desk: &mut Desk, code: u32, how: Option<Selector>) -> u32 {
    let like = PathRecord {
        mtu: Bits::truncated(code),
        mtu_selector: how.unwrap_or_default(),
        ..PathRecord::default()
    };
    let bit = how.map_or(PathMask::empty(), |_| PathMask::MTU_SELECTOR);
    match path(desk, like, PathMask::MTU | bit) {
        Ok(path) => path.mtu.value(),
        Err(status) => {
            assert_eq!(status, SaStatus::NoRecords);
            0
        }
    }
}

fn rate(desk: &mut Desk, code: u32, how: Option<Selector>) -> u32 {
    let like = PathRecord {
        rate: Bits::truncated(code),
        rate_selector: how.unwrap_or_default(),
        ..PathRecord::default()
    };
    let bit = how.map_or(PathMask::empty(), |_| PathMask::RATE_SELECTOR);
    match path(desk, like, PathMask::RATE | bit) {
        Ok(path) => path.rate.value(),
        Err(status) => {
            assert_eq!(status, SaStatus::NoRecords);
            0
        }
    }
}

/// Goal: a path supports what the least of its links does. Method: the link in the middle, then the last one, of
/// less MTU and fewer lanes; a path that avoids them.
#[test]
fn a_path_is_as_wide_as_its_narrowest_link() {
    let mut desk = Desk::new(&config());
    let plain = |desk: &mut Desk| {
        let path = path(desk, PathRecord::default(), PathMask::empty()).unwrap();
        (path.mtu.value(), path.rate.value())
    };
    assert_eq!(plain(&mut desk), (5, 7), "4096 bytes, 40 Gb/s");
    let between = desk.between;
    desk.plan.change(between, |info| {
        info.neighbor_mtu = Bits::truncated(3);
        info.link_speed_active = Bits::truncated(2);
    });
    assert_eq!(plain(&mut desk), (3, 6), "1024 bytes, 20 Gb/s");
    desk.change(13, |info| {
        info.neighbor_mtu = Bits::truncated(4);
        info.link_width_active = LinkWidth::X1;
    });
    assert_eq!(plain(&mut desk), (3, 3), "each the least of its own");
    let like = PathRecord {
        slid: Lid(11),
        dlid: Lid(12),
        ..PathRecord::default()
    };
    let near = asked(&mut desk, GET, &like, PathMask::SLID | PathMask::DLID).unwrap();
    assert_eq!((near[0].mtu.value(), near[0].rate.value()), (5, 7));
    assert_eq!((near[0].sgid, near[0].dgid), (desk.gid(11), desk.gid(12)));
    let config = Config {
        mtu_max: verbs_core::Mtu::B512,
        ..config()
    };
    let mut desk = Desk::new(&config);
    assert_eq!(
        plain(&mut desk),
        (2, 7),
        "no more than the subnet is told to"
    );
}

/// Goal: MTU and rate are as requested; a path may always be used for less than it supports. Method: each
/// selector below, at and above the values of the route, and codes without a meaning.
#[test]
fn selectors_choose_the_mtu_and_the_rate() {
    use Selector::{Best, Exactly, Greater, Less};
    let mut desk = Desk::new(&config());
    let between = desk.between;
    desk.plan
        .change(between, |info| info.neighbor_mtu = Bits::truncated(4));
    let wanted = [
        (None, [4, 4, 0]),
        (Some(Greater), [4, 0, 0]),
        (Some(Less), [2, 3, 4]),
        (Some(Exactly), [3, 4, 0]),
        (Some(Best), [4, 4, 4]),
    ];
    for (how, expected) in wanted {
        let got = [3, 4, 5].map(|code| mtu(&mut desk, code, how));
        assert_eq!(got, expected, "MTU {how:?}");
    }
    assert_eq!(
        (mtu(&mut desk, 1, Some(Less)), mtu(&mut desk, 0, Some(Less))),
        (0, 0)
    );
    assert_eq!(mtu(&mut desk, 0, Some(Exactly)), 0);
    // 40 Gb/s, code 7, between 20 Gb/s, code 4 (12 lanes of 2.5 are 30), and 60 Gb/s, code 8.
    let wanted = [
        (None, [7, 7, 0]),
        (Some(Greater), [7, 0, 0]),
        (Some(Less), [15, 4, 7]),
        (Some(Exactly), [4, 7, 0]),
        (Some(Best), [7, 7, 7]),
    ];
    for (how, expected) in wanted {
        let got = [4, 7, 8].map(|code| rate(&mut desk, code, how));
        assert_eq!(got, expected, "rate {how:?}");
    }
    assert_eq!(
        (
            rate(&mut desk, 2, Some(Less)),
            rate(&mut desk, 63, Some(Exactly))
        ),
        (0, 0)
    );
}

/// Goal: a request with contradictory fields for one end finds nothing; one that names something that does not
/// exist is refused with that reason. Method: GIDs and LIDs of the same and of different ports.
#[test]
fn what_contradicts_itself_finds_nothing() {
    let mut desk = Desk::new(&config());
    let (source, destination) = (
        PathMask::SGID | PathMask::SLID,
        PathMask::DGID | PathMask::DLID,
    );
    let mut ask = |gids: (u16, u16), lids: (u16, u16), mask| {
        let like = PathRecord {
            sgid: desk.gid(gids.0),
            dgid: desk.gid(gids.1),
            slid: Lid(lids.0),
            dlid: Lid(lids.1),
            ..PathRecord::default()
        };
        asked(&mut desk, GET, &like, mask).map(|found| found.len())
    };
    let all = source | destination;
    assert_eq!(ask((11, 13), (11, 13), all), Ok(1));
    assert_eq!(ask((11, 13), (12, 13), all), Err(SaStatus::NoRecords));
    assert_eq!(ask((11, 13), (11, 14), all), Err(SaStatus::NoRecords));
    assert_eq!(
        ask((11, 13), (12, 14), (all - source) | PathMask::SGID),
        Err(SaStatus::NoRecords)
    );
    assert_eq!(
        ask((11, 13), (12, 14), PathMask::SGID | PathMask::DGID),
        Ok(1)
    );
    assert_eq!(
        ask((11, 13), (11, 99), PathMask::SLID | PathMask::DLID),
        Err(SaStatus::NoRecords)
    );
    assert_eq!(
        ask((11, 13), (11, 13), PathMask::SGID),
        Err(SaStatus::TooManyRecords)
    );
    let stranger = PathRecord {
        sgid: desk.gid(11),
        dgid: Gid([3; 16]),
        ..PathRecord::default()
    };
    let mask = PathMask::SGID | PathMask::DGID;
    assert_eq!(
        asked(&mut desk, GET, &stranger, mask),
        Err(SaStatus::InvalidGid)
    );
}

/// Goal: a path is in a partition that both ends are in. Method: the default one if none is named; one that only
/// some are in; two limited members; another service level, which no path has.
#[test]
fn paths_are_in_a_partition_of_both_ends() {
    let mut desk = Desk::new(&config());
    let mut pkey = |from: u16, to: u16, pkey: Option<PKey>| {
        let like = PathRecord {
            slid: Lid(from),
            dlid: Lid(to),
            pkey: pkey.unwrap_or_default(),
            ..PathRecord::default()
        };
        let bit = pkey.map_or(PathMask::empty(), |_| PathMask::PKEY);
        let found = asked(&mut desk, GET, &like, PathMask::SLID | PathMask::DLID | bit);
        found.map(|found| found[0].pkey)
    };
    assert_eq!(pkey(11, 13, None), Ok(PKey::DEFAULT));
    assert_eq!(pkey(11, 13, Some(OTHER)), Ok(OTHER));
    assert_eq!(
        pkey(12, 13, Some(PKey(0x0123))),
        Ok(OTHER),
        "a limited member to a full one"
    );
    assert_eq!(pkey(11, 14, Some(OTHER)), Err(SaStatus::NoRecords));
    assert_eq!(pkey(14, 11, Some(OTHER)), Err(SaStatus::NoRecords));
    assert_eq!(pkey(11, 13, Some(PKey(0x8124))), Err(SaStatus::NoRecords));
    let level = PathRecord {
        sl: Bits::truncated(3),
        ..PathRecord::default()
    };
    assert_eq!(
        path(&mut desk, level, PathMask::SL),
        Err(SaStatus::NoRecords)
    );
    assert!(path(&mut desk, PathRecord::default(), PathMask::SL).is_ok());
}

/// Goal: tables have a path for each pair, and none to a port that is cut off. Method: from one port, from all; a
/// link that is removed.
#[test]
fn tables_and_ports_that_are_cut_off() {
    let mut desk = Desk::new(&config());
    let from = PathRecord {
        slid: Lid(11),
        ..PathRecord::default()
    };
    let found = asked(&mut desk, TABLE, &from, PathMask::SLID).unwrap();
    let lids: Vec<_> = found.iter().map(|path| path.dlid.0).collect();
    assert_eq!(lids, [1, 2, 11, 12, 13, 14]);
    assert_eq!(
        asked(&mut desk, TABLE, &from, PathMask::empty())
            .unwrap()
            .len(),
        36
    );

    let between = desk.between;
    desk.plan.fabric.links.remove(&between.0);
    assert_eq!(
        path(&mut desk, PathRecord::default(), PathMask::empty()),
        Err(SaStatus::NoRecords)
    );
}

/// Goal: the path to a group has the group's properties, if they match the request. Method: each component as it
/// is, and other values; a group that does not exist.
#[test]
fn a_path_to_a_group_is_what_the_group_is_like() {
    let mut desk = Desk::new(&config());
    let group = Partition::default().broadcast();
    let like = PathRecord {
        dgid: group,
        slid: Lid(12),
        pkey: PKey::DEFAULT,
        mtu: Bits::truncated(4),
        rate: Bits::truncated(3),
        ..PathRecord::default()
    };
    let named = PathMask::DGID | PathMask::SLID;
    let found = asked(
        &mut desk,
        GET,
        &like,
        named | PathMask::PKEY | PathMask::MTU | PathMask::RATE,
    )
    .unwrap();
    assert_eq!((found[0].dlid, found[0].slid), (Lid(0xc000), Lid(12)));
    assert_eq!((found[0].mtu.value(), found[0].rate.value()), (4, 3));
    let mut refused = |like: PathRecord, bits| asked(&mut desk, GET, &like, named | bits).err();
    let more = |mtu: u32, rate: u32| PathRecord {
        mtu: Bits::truncated(mtu),
        rate: Bits::truncated(rate),
        ..like
    };
    assert_eq!(
        refused(more(5, 3), PathMask::MTU),
        Some(SaStatus::NoRecords)
    );
    assert_eq!(
        refused(more(4, 6), PathMask::RATE),
        Some(SaStatus::NoRecords)
    );
    let greater = PathMask::MTU | PathMask::MTU_SELECTOR;
    assert_eq!(
        (refused(more(4, 3), greater), refused(more(3, 3), greater)),
        (Some(SaStatus::NoRecords), None)
    );
    assert_eq!(
        refused(
            PathRecord {
                pkey: OTHER,
                ..like
            },
            PathMask::PKEY
        ),
        Some(SaStatus::NoRecords)
    );
    let nobody = PathRecord {
        dgid: Gid([0xff; 16]),
        ..like
    };
    assert_eq!(
        refused(nobody, PathMask::empty()),
        Some(SaStatus::NoRecords)
    );
}

/// Goal: values that a requester may choose are as requested, and others are not. Method: the traffic class,
/// requested and only written; service levels.
#[test]
fn the_traffic_class_is_the_askers_and_the_service_level_is_not() {
    let mut desk = Desk::new(&config());
    let like = PathRecord {
        traffic_class: 0x28,
        sl: Bits::truncated(3),
        ..PathRecord::default()
    };
    let asked = path(&mut desk, like, PathMask::TRAFFIC_CLASS).unwrap();
    assert_eq!((asked.traffic_class, asked.sl.value()), (0x28, 0));
    let plain = path(&mut desk, like, PathMask::empty()).unwrap();
    assert_eq!((plain.traffic_class, plain.sl.value()), (0, 0));
    assert!(plain.reversible);
    let level = path(&mut desk, like, PathMask::SL);
    assert_eq!(level, Err(SaStatus::NoRecords));
    let usual = PathRecord {
        sl: Bits::default(),
        ..like
    };
    assert!(path(&mut desk, usual, PathMask::SL).is_ok());
}
