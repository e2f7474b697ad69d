//! Services: which requests may change a record, and how long it is kept (15.2.5.14).

use verbs_core::mad::Blob;
use verbs_core::mad::sa::{ServiceMask, ServiceRecord, ServiceRecordView};

use super::*;

const SET: (Method, AttributeId) = (Method::SET, AttributeId::SERVICE_RECORD);
const DELETE: (Method, AttributeId) = (Method::DELETE, AttributeId::SERVICE_RECORD);
const TABLE: (Method, AttributeId) = (Method::GET_TABLE, AttributeId::SERVICE_RECORD);

const NAMED: ServiceMask = ServiceMask::SERVICE_ID
    .union(ServiceMask::SERVICE_GID)
    .union(ServiceMask::PKEY)
    .union(ServiceMask::SERVICE_KEY)
    .union(ServiceMask::LEASE);

fn ask(
    desk: &mut Desk,
    how: (Method, AttributeId),
    record: &ServiceRecord,
    mask: ServiceMask,
) -> Result<Vec<ServiceRecord>, SaStatus> {
    let mut bytes = [0; ServiceRecord::LEN];
    record.emit(&mut bytes);
    let found = desk.ask(11, how, &bytes, mask.bits())?;
    let parse =
        |bytes: Vec<u8>| ServiceRecord::parse(ServiceRecordView::new(&bytes).expect("long enough"));
    Ok(found.into_iter().map(parse).collect())
}

fn service(desk: &Desk, id: u64, lease_seconds: u32) -> ServiceRecord {
    ServiceRecord {
        service_id: id,
        service_gid: desk.gid(11),
        pkey: PKey::DEFAULT,
        lease_seconds,
        service_key: Blob::new(&[7; 16]).expect("16 bytes"),
        ..ServiceRecord::default()
    }
}

fn ids(desk: &mut Desk) -> Vec<u64> {
    let found = ask(desk, TABLE, &ServiceRecord::default(), ServiceMask::empty()).unwrap();
    found.iter().map(|record| record.service_id).collect()
}

/// Goal: a record is kept for its lease and no longer, a renewed one from then on, and the administrator reports
/// when the next lease ends. Method: leases of one second, five seconds and no end, in virtual time.
#[test]
fn a_lease_ends_unless_it_is_renewed() {
    let mut desk = Desk::new(&config());
    let second = Duration::from_secs(1);
    assert_eq!(desk.sa.poll_timeout(), None);
    for (id, lease) in [(1, 1), (5, 5), (9, u32::MAX), (10, 0)] {
        let record = service(&desk, id, lease);
        let held = ask(&mut desk, SET, &record, NAMED).unwrap();
        let expected = if lease == 0 { u32::MAX } else { lease };
        assert_eq!(held[0].lease_seconds, expected, "none is for ever");
    }
    assert_eq!(desk.sa.poll_timeout(), Some(Instant::ZERO + second));
    desk.pass(second - Duration::from_nanos(1));
    assert_eq!(ids(&mut desk), [1, 5, 9, 10]);
    desk.pass(Duration::from_nanos(1));
    assert_eq!(ids(&mut desk), [5, 9, 10]);
    assert_eq!(desk.sa.poll_timeout(), Some(Instant::ZERO + 5 * second));
    desk.pass(3 * second);
    let record = service(&desk, 5, 5);
    ask(&mut desk, SET, &record, NAMED).unwrap();
    assert_eq!(desk.sa.poll_timeout(), Some(Instant::ZERO + 9 * second));
    desk.pass(4 * second);
    assert_eq!(ids(&mut desk), [5, 9, 10]);
    desk.pass(second);
    assert_eq!(ids(&mut desk), [9, 10]);
    assert_eq!(
        desk.sa.poll_timeout(),
        None,
        "what never ends is not waited for"
    );
    // A lease outside the mask is ignored.
    let record = service(&desk, 11, 1);
    ask(&mut desk, SET, &record, NAMED - ServiceMask::LEASE).unwrap();
    desk.pass(second * 1_000_000);
    assert_eq!(ids(&mut desk), [9, 10, 11]);
}

/// Goal: only a request with a record's key changes or deletes it, and no query shows the key. Method: another
/// key, none, the right one.
#[test]
fn a_record_belongs_to_who_knows_its_key() {
    let mut desk = Desk::new(&config());
    let record = service(&desk, 1, 60);
    ask(&mut desk, SET, &record, NAMED).unwrap();
    let stranger = ServiceRecord {
        service_key: Blob::new(&[8; 16]).expect("16 bytes"),
        ..record
    };
    for (record, mask) in [
        (stranger, NAMED),
        (record, NAMED - ServiceMask::SERVICE_KEY),
    ] {
        assert_eq!(ask(&mut desk, SET, &record, mask), Err(SaStatus::Denied));
        assert_eq!(ask(&mut desk, DELETE, &record, mask), Err(SaStatus::Denied));
    }
    let found = ask(&mut desk, TABLE, &record, ServiceMask::SERVICE_ID).unwrap();
    assert_eq!(found[0].service_key, Blob::default());
    assert_eq!(found[0].service_gid, desk.gid(11));
    let taken = ask(&mut desk, DELETE, &record, NAMED).unwrap();
    assert_eq!(taken[0].service_id, 1);
    assert_eq!(
        ask(&mut desk, DELETE, &record, NAMED),
        Err(SaStatus::NoRecords)
    );
    for without in [ServiceMask::SERVICE_ID, ServiceMask::SERVICE_GID] {
        let missing = Err(SaStatus::InsufficientComponents);
        assert_eq!(ask(&mut desk, SET, &record, NAMED - without), missing);
        assert_eq!(ask(&mut desk, DELETE, &record, NAMED - without), missing);
    }
    assert!(ids(&mut desk).is_empty());
}

/// Goal: records are distinguished by service, port and partition, and found by all their fields. Method: records
/// that differ in one of them; names, and single numbers of the service's own.
#[test]
fn records_are_found_by_what_they_say() {
    let mut desk = Desk::new(&config());
    let mut data16 = [0; 16];
    data16[3] = 9;
    let one = ServiceRecord {
        name: Blob::new(b"disk").expect("short"),
        data16: Blob::new(&data16).expect("16 bytes"),
        ..service(&desk, 1, 60)
    };
    let other_port = ServiceRecord {
        service_gid: desk.gid(13),
        name: Blob::default(),
        ..one
    };
    let other_partition = ServiceRecord {
        pkey: OTHER,
        data16: Blob::default(),
        ..one
    };
    for record in [one, other_port, other_partition] {
        ask(&mut desk, SET, &record, NAMED).unwrap();
    }
    let mut count =
        |record: &ServiceRecord, mask| ask(&mut desk, TABLE, record, mask).unwrap().len();
    assert_eq!(count(&one, ServiceMask::SERVICE_ID), 3);
    assert_eq!(count(&one, ServiceMask::SERVICE_GID), 2);
    assert_eq!(count(&one, ServiceMask::PKEY), 2);
    assert_eq!(count(&one, ServiceMask::NAME), 2);
    let second_number = ServiceMask::from_bits_retain(1 << 23);
    assert_eq!(count(&one, second_number), 2);
    assert_eq!(count(&one, ServiceMask::SERVICE_GID | ServiceMask::PKEY), 1);
}
