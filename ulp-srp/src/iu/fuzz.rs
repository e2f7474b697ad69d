//! Fuzz targets as plain functions over bytes.
//!
//! `ci/fuzz` runs them on the inputs in `fuzz/corpus` of this crate, and a test replays those. They panic when
//! this module's parsers break a promise, and return whether the bytes were what the target looks for.

use std::fmt::{self, Debug, Write};

use crate::iu::{
    AerHeader, AerRsp, Cmd, CmdHeader, CredReq, CredRsp, DataBuffer, InitiatorLogout, IuError,
    LoginAnswer, LoginRej, LoginReq, LoginRsp, RspHeader, TargetLogout, ToInitiator, ToTarget,
    TskMgmt,
};

/// A unit of an initiator. If it is accepted, writing it again gives the same bytes, except reserved bits.
pub fn to_target(bytes: &[u8]) -> bool {
    let Some(unit) = accepted(ToTarget::parse(bytes)) else {
        return false;
    };
    let emitted = emit(|out| unit.emit(out));
    assert_eq!(ToTarget::parse(&emitted), Ok(unit));
    let mut expected = bytes[..emitted.len()].to_vec();
    match &unit {
        ToTarget::Cmd(cmd) => {
            clear_command(cmd, &mut expected);
            let _ = cmd.immediate(bytes, Cmd::IMMEDIATE_OFFSET);
        }
        ToTarget::TskMgmt(_) => mask(&mut expected, &TskMgmt::covered()),
        ToTarget::CredRsp(_) => mask(&mut expected, &CredRsp::covered()),
        ToTarget::AerRsp(_) => mask(&mut expected, &AerRsp::covered()),
        ToTarget::Logout(_) => mask(&mut expected, &InitiatorLogout::covered()),
    }
    assert_eq!(emitted, expected);
    true
}

/// A unit of a target.
pub fn to_initiator(bytes: &[u8]) -> bool {
    let Some(unit) = accepted(ToInitiator::parse(bytes)) else {
        return false;
    };
    let emitted = emit(|out| unit.emit(out));
    assert_eq!(ToInitiator::parse(&emitted), Ok(unit));
    if let ToInitiator::Rsp(rsp) = &unit {
        // Lengths and counts that no flag makes valid are not kept; of response data, only the code is kept.
        let mut head = [0; RspHeader::LEN];
        rsp.header().emit(&mut head);
        assert_eq!(emitted[1..RspHeader::LEN], head[1..]);
        assert_eq!(emitted[4..16], bytes[4..16], "delta and tag");
        assert_eq!(emitted[18], bytes[18] & 0x3f, "flags");
        assert_eq!(emitted[19], bytes[19], "status");
        return true;
    }
    let mut expected = bytes[..emitted.len()].to_vec();
    match unit {
        ToInitiator::Rsp(_) => {}
        ToInitiator::CredReq(_) => mask(&mut expected, &CredReq::covered()),
        ToInitiator::AerReq(_) => mask(&mut expected, &AerHeader::covered()),
        ToInitiator::Logout(_) => mask(&mut expected, &TargetLogout::covered()),
    }
    assert_eq!(emitted, expected);
    true
}

/// The private data of a connection manager: a login, or its answer.
pub fn login(bytes: &[u8]) -> bool {
    let ib = accepted(LoginReq::parse_unit(bytes)).inspect(|login| {
        let mut expected = bytes[..LoginReq::LEN].to_vec();
        mask(&mut expected, &LoginReq::covered());
        assert_eq!(login.unit()[..], expected);
    });
    let cm = accepted(LoginReq::parse_cm(bytes)).inspect(|login| {
        let mut expected = bytes[..LoginReq::CM_LEN].to_vec();
        for (byte, bits) in expected.iter_mut().zip(LoginReq::cm_covered()) {
            *byte &= bits;
        }
        assert_eq!(login.emit_cm()[..], expected);
        assert_eq!(LoginReq::parse_unit(&login.unit()), Ok(*login));
    });
    let answer = accepted(LoginAnswer::parse(bytes)).inspect(|answer| {
        let (emitted, covered) = match answer {
            LoginAnswer::Rsp(rsp) => (rsp.unit().to_vec(), LoginRsp::covered().to_vec()),
            LoginAnswer::Rej(rej) => (rej.unit().to_vec(), LoginRej::covered().to_vec()),
        };
        let mut expected = bytes[..emitted.len()].to_vec();
        mask(&mut expected, &covered);
        assert_eq!(emitted, expected);
    });
    ib.is_some() || cm.is_some() || answer.is_some()
}

fn accepted<T: Debug>(parsed: Result<T, IuError>) -> Option<T> {
    match parsed {
        Ok(unit) => {
            print(&unit);
            Some(unit)
        }
        Err(error) => {
            print(&error);
            assert!(!matches!(
                error,
                IuError::NoRoom { .. } | IuError::TooMany(_)
            ));
            None
        }
    }
}

fn emit(write: impl Fn(&mut [u8]) -> Result<usize, IuError>) -> Vec<u8> {
    let needed = match write(&mut []) {
        Err(IuError::NoRoom { needed, .. }) => needed,
        other => panic!("no room, and {other:?}"),
    };
    let mut out = vec![0xa5; needed];
    assert_eq!(write(&mut out), Ok(needed));
    out
}

/// Clears the parts of a command that reading and writing it loses.
fn clear_command(cmd: &Cmd<'_>, bytes: &mut [u8]) {
    mask(bytes, &CmdHeader::covered());
    for (count, buffer) in [(6, &cmd.data_out), (7, &cmd.data_in)] {
        if !matches!(buffer, DataBuffer::Indirect(_)) {
            bytes[count] = 0;
        }
    }
}

/// Clears the reserved bits after the type.
fn mask(bytes: &mut [u8], covered: &[u8]) {
    for (byte, bits) in bytes.iter_mut().zip(covered).skip(1) {
        *byte &= bits;
    }
}

/// Prints into a sink: printing must not panic either.
pub(crate) fn print(value: &dyn Debug) {
    struct Nowhere;
    impl Write for Nowhere {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            Ok(())
        }
    }
    assert!(write!(Nowhere, "{value:?}").is_ok());
}
