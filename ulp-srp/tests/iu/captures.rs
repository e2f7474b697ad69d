//! Goal: units from Linux are read correctly and written to the same bytes. Method: every unit of every capture
//! in `tests/captures`, and the fields of some whose values are known.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ulp_srp::iu::{
    BufferFormats, Cmd, DataBuffer, Delta, Detail, LoginAnswer, LoginReq, MultiChannel, PortId,
    Residual, Rsp, Status, Tag, ToInitiator, ToTarget,
};
use verbs_core::Guid;

/// The sender and the bytes of each unit, in order.
fn units(capture: &str) -> Vec<(String, Vec<u8>)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/captures")
        .join(capture)
        .with_extension("txt");
    let text = std::fs::read_to_string(path).unwrap();
    let unit = |line: &str| {
        let (who, digits) = line.split_once(' ').unwrap();
        let digit = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (
            who.to_owned(),
            (0..digits.len()).step_by(2).map(digit).collect(),
        )
    };
    text.lines().map(unit).collect()
}

const CAPTURES: [&str; 2] = ["srp-rxe-login-logout", "srp-rxe-io"];

#[test]
fn every_unit_of_linux_is_read_and_written_to_the_same_bytes() {
    let mut count = BTreeMap::new();
    for capture in CAPTURES {
        for (number, (who, bytes)) in (1..).zip(units(capture)) {
            let mut out = vec![0xa5; bytes.len()];
            let len = match &*who {
                "login-request" => {
                    out = LoginReq::parse_cm(&bytes).unwrap().emit_cm().to_vec();
                    out.len()
                }
                "login-answer" => match LoginAnswer::parse(&bytes).unwrap() {
                    LoginAnswer::Rsp(rsp) => rsp.emit_unit(&mut out).unwrap(),
                    other => panic!("{other:?}"),
                },
                "initiator" => ToTarget::parse(&bytes).unwrap().emit(&mut out).unwrap(),
                "target" => ToInitiator::parse(&bytes).unwrap().emit(&mut out).unwrap(),
                other => panic!("{other}"),
            };
            // The single write in these captures carries its data inside.
            let data = if bytes[0] == 0x02 && bytes[5] == 0x30 {
                8192 + 16
            } else {
                0
            };
            assert_eq!(len + data, bytes.len(), "{capture} {number}");
            assert_eq!(out[..len], bytes[..len], "{capture} {number}");
            *count.entry(who).or_insert(0) += 1;
        }
    }
    let count: Vec<_> = count.iter().map(|(who, n)| (&**who, *n)).collect();
    assert_eq!(
        count,
        [
            ("initiator", 86),
            ("login-answer", 2),
            ("login-request", 2),
            ("target", 86)
        ]
    );
}

#[test]
fn the_login_says_what_it_is_known_to_say() {
    let units = units("srp-rxe-io");
    let login = LoginReq::parse_cm(&units[0].1).unwrap();
    let name = |extension, guid| PortId {
        extension,
        guid: Guid(guid),
    };
    assert_eq!(
        login,
        LoginReq {
            tag: Tag(0),
            max_iu_len: 8260,
            formats: BufferFormats::DIRECT | BufferFormats::INDIRECT,
            immediate: true,
            channels: MultiChannel::SINGLE,
            immediate_offset: Cmd::IMMEDIATE_OFFSET,
            initiator: name(0, 0x5054_00ff_fe77_0003),
            target: name(0x5054_00ff_fe77_0002, 0x5054_00ff_fe77_0002),
        }
    );
    let LoginAnswer::Rsp(rsp) = LoginAnswer::parse(&units[1].1).unwrap() else {
        panic!("a login that succeeded");
    };
    assert_eq!(rsp.delta, Delta(128));
    assert_eq!(
        (rsp.max_initiator_iu_len, rsp.max_target_iu_len),
        (8276, 8260)
    );
    assert_eq!(rsp.formats, login.formats);
    assert!(rsp.immediate);
    assert_eq!(rsp.channels, MultiChannel::SINGLE);
}

#[test]
fn inquiry_and_immediate_write_say_what_they_are_known_to_say() {
    let units = units("srp-rxe-io");
    let ToTarget::Cmd(inquiry) = ToTarget::parse(&units[2].1).unwrap() else {
        panic!("a command");
    };
    assert_eq!(inquiry.cdb.bytes()[..6], [0x12, 0, 0, 0, 36, 0]);
    assert!(matches!(inquiry.data_in, DataBuffer::Direct(piece) if piece.len == 36));
    assert_eq!(inquiry.data_out, DataBuffer::None);

    let is_write = |unit: &&(String, Vec<u8>)| unit.1.len() > 8192;
    let (_, bytes) = units.iter().find(is_write).unwrap();
    let ToTarget::Cmd(write) = ToTarget::parse(bytes).unwrap() else {
        panic!("a command");
    };
    assert_eq!(write.cdb.opcode(), 0x2a);
    assert_eq!(write.data_out, DataBuffer::Immediate(8192));
    let data = write.immediate(bytes, Cmd::IMMEDIATE_OFFSET).unwrap();
    assert_eq!(data.len(), 8192);
    assert!(data.starts_with(b"1\n2\n3\n4\n"));
}

#[test]
fn answers_carry_residuals_and_sense() {
    let mut seen = (false, false);
    for (who, bytes) in units("srp-rxe-io") {
        if who != "target" {
            continue;
        }
        match ToInitiator::parse(&bytes).unwrap() {
            ToInitiator::Rsp(Rsp {
                status,
                detail: Detail::Sense(sense),
                ..
            }) => {
                assert_eq!(status, Status::CHECK_CONDITION);
                assert_eq!(sense.len(), 96);
                // Fixed format, illegal request.
                assert_eq!((sense[0], sense[2]), (0x70, 5));
                seen.0 = true;
            }
            ToInitiator::Rsp(Rsp {
                data_in: Residual::Under(count),
                ..
            }) => {
                seen.1 |= count == 0x18;
            }
            _ => {}
        }
    }
    assert_eq!(seen, (true, true));
}
