//! Messages that no capture has: byte by byte as the specification lays them out (IBTA vol. 1, tables of 12.8.1 and
//! 12.8.2). Every field has another value, so that none can stand in another's place.

use verbs_cm::wire::{Apr, AprStatus, CommId, Lap, Message, fuzz};
use verbs_core::addr::{Gid, Lid, Qpn};
use verbs_core::mad::{Bits, Blob, MadBytes, TimeCode, TransactionId};

/// The header of a message: version 1, class 7, class version 2, method SEND; its transaction and attribute.
fn header(attribute: u8) -> Vec<u8> {
    let mut bytes = vec![1, 7, 2, 3, 0, 0, 0, 0];
    bytes.extend([0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7]);
    bytes.extend([0, attribute, 0, 0, 0, 0, 0, 0]);
    bytes
}

const TID: TransactionId = TransactionId(0xa0a1_a2a3_a4a5_a6a7);

fn same(message: Message, expected: &[u8]) {
    let mut golden: MadBytes = [0; 256];
    golden[..expected.len()].copy_from_slice(expected);
    assert_eq!(message.emit(TID), golden);
    assert_eq!(Message::parse(&golden), Ok((TID, message)));
    assert!(fuzz::message(&golden));
}

#[test]
fn a_load_of_an_alternate_path_has_its_bytes() {
    let gid = |first: u8| Gid(std::array::from_fn(|at| first + at as u8));
    let lap = Lap {
        local_id: CommId(0x0102_0304),
        remote_id: CommId(0x0506_0708),
        remote_qpn: Qpn::new(0x09_0a0b),
        remote_response_timeout: TimeCode::new(20),
        local_lid: Lid(0x0c0d),
        remote_lid: Lid(0x0e0f),
        local_gid: gid(0x10),
        remote_gid: gid(0x20),
        flow_label: Bits::truncated(0x3_1323),
        traffic_class: 0x34,
        hop_limit: 0x35,
        rate: Bits::truncated(0x16),
        sl: Bits::truncated(7),
        subnet_local: true,
        ack_timeout: TimeCode::new(19),
        private_data: Blob::new(b"path").unwrap(),
    };
    let mut bytes = header(0x19);
    bytes.extend([1, 2, 3, 4, 5, 6, 7, 8]);
    bytes.extend([0; 4]);
    bytes.extend([0x09, 0x0a, 0x0b, 20 << 3]);
    bytes.extend([0; 4]);
    bytes.extend([0x0c, 0x0d, 0x0e, 0x0f]);
    bytes.extend(0x10..0x30);
    bytes.extend([0x31, 0x32, 0x30, 0x34]);
    bytes.extend([0x35, 0x16, 7 << 4 | 1 << 3, 19 << 3]);
    bytes.extend(b"path");
    same(lap.into(), &bytes);
}

#[test]
fn an_answer_about_an_alternate_path_has_its_bytes() {
    let apr = Apr {
        local_id: CommId(0x0102_0304),
        remote_id: CommId(0x0506_0708),
        info_len: 3,
        status: AprStatus::InvalidLid,
        info: Blob::new(b"why").unwrap(),
        private_data: Blob::new(b"no").unwrap(),
    };
    let mut bytes = header(0x1a);
    bytes.extend([1, 2, 3, 4, 5, 6, 7, 8]);
    bytes.extend([3, 7, 0, 0]);
    bytes.extend(b"why");
    bytes.resize(24 + 84, 0);
    bytes.extend(b"no");
    same(apr.into(), &bytes);
}
