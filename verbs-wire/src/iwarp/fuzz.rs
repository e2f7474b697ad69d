//! Fuzz targets of the iWARP formats, as plain functions over bytes. They panic when the parsers break a promise,
//! and return whether the bytes were what the target looks for.

use super::{
    AtomicRequest, AtomicResponse, Fpdu, Header, ImmediateData, IwarpError, MapperMessage,
    RdmapOpcode, ReadRequest, Refused, Startup, StartupKind, Terminate,
};

/// The result of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// They are what the target looks for, and all promises held.
    Accepted,
    /// More bytes could make them so.
    Unfinished,
    /// They are not, and were refused with an error.
    Refused(IwarpError),
}

impl Outcome {
    /// Whether the bytes were what the target looks for.
    pub const fn is_accepted(self) -> bool {
        matches!(self, Self::Accepted)
    }
}

fn refused(error: IwarpError) -> Outcome {
    assert!(!error.to_string().is_empty());
    Outcome::Refused(error)
}

/// A Request or a Reply at the front of a stream. If it is accepted, it reads the same after writing, and a
/// stream that is cut anywhere before its end is unfinished and never refused.
pub fn mpa_startup(bytes: &[u8]) -> Outcome {
    let request = Startup::parse_request(bytes);
    let is_request = bytes.first_chunk() == Some(b"MPA ID Req");
    let parse = if is_request {
        Startup::parse_request
    } else {
        assert!(!matches!(request, Ok(Some(_))));
        Startup::parse_reply
    };
    let (startup, len) = match parse(bytes) {
        Ok(Some(read)) => read,
        Ok(None) => return Outcome::Unfinished,
        Err(error) => return refused(error),
    };
    assert_eq!(is_request, startup.kind == StartupKind::Request);
    assert!(len <= bytes.len() && len == startup.wire_len());
    let mut out = [0; Startup::LEN_MAX];
    assert_eq!(startup.emit(&mut out), Ok(len));
    assert_eq!(parse(&out[..len]), Ok(Some((startup, len))));
    for cut in 0..len {
        assert_eq!(parse(&bytes[..cut]), Ok(None));
    }
    Outcome::Accepted
}

/// An FPDU at the front of a stream and the message in it. The first byte selects whether there are CRCs. If it
/// is accepted, writing it again gives the same bytes, except reserved bits, pad and, without CRCs, the CRC.
pub fn fpdu(bytes: &[u8]) -> Outcome {
    let Some((&first, stream)) = bytes.split_first() else {
        return Outcome::Unfinished;
    };
    let has_crc = first & 1 != 0;
    let (fpdu, len) = match Fpdu::parse(stream, has_crc) {
        Ok(Some(read)) => read,
        Ok(None) => return Outcome::Unfinished,
        Err(error) => return refused(error),
    };
    assert_eq!(Fpdu::parse(&stream[..len - 1], has_crc), Ok(None));
    let mut out = vec![0; len];
    assert_eq!(fpdu.emit(has_crc, &mut out), Ok(len));
    assert_eq!(Fpdu::parse(&out, has_crc), Ok(Some((fpdu, len))));
    let quoted = Refused::new(fpdu.ulpdu);
    let (header, payload) = match Header::parse(fpdu.ulpdu) {
        Ok(parts) => parts,
        Err(error) => {
            assert!(error.cause().is_some(), "{error} has no cause");
            return refused(error);
        }
    };
    assert_eq!(header.wire_len() + payload.len(), fpdu.ulpdu.len());
    let mut again = [0; Header::UNTAGGED_LEN];
    assert_eq!(header.emit(&mut again), Ok(header.wire_len()));
    let mut expected = fpdu.ulpdu[..header.wire_len()].to_vec();
    expected[0] &= 0xc3;
    expected[1] &= 0xcf;
    assert_eq!(again[..header.wire_len()], expected);
    let refused_segment = quoted.expect("a header that was read can be quoted");
    assert_eq!(refused_segment.header(), &fpdu.ulpdu[..header.wire_len()]);
    match body(header.opcode(), payload) {
        Ok(()) => Outcome::Accepted,
        Err(error) => refused(error),
    }
}

/// The body of a message, if its opcode has one.
fn body(opcode: RdmapOpcode, payload: &[u8]) -> Result<(), IwarpError> {
    match opcode {
        RdmapOpcode::ReadRequest => assert_eq!(ReadRequest::parse(payload)?.to_bytes(), *payload),
        RdmapOpcode::AtomicRequest => {
            let request = AtomicRequest::parse(payload)?;
            assert_eq!(AtomicRequest::parse(&request.to_bytes()), Ok(request));
        }
        RdmapOpcode::AtomicResponse => {
            assert_eq!(AtomicResponse::parse(payload)?.to_bytes(), *payload);
        }
        RdmapOpcode::Immediate | RdmapOpcode::ImmediateSolicited => {
            assert_eq!(ImmediateData::parse(payload)?.0, *payload);
        }
        RdmapOpcode::Terminate => {
            let terminate = Terminate::parse(payload)?;
            let mut out = [0; Terminate::LEN_MAX];
            let len = terminate.emit(&mut out)?;
            assert_eq!(Terminate::parse(&out[..len]), Ok(terminate));
            assert!(!terminate.cause.to_string().is_empty());
        }
        _ => {}
    }
    Ok(())
}

/// A port mapper message. If it is accepted, it reads the same after writing.
pub fn port_mapper(bytes: &[u8]) -> Outcome {
    let message = match MapperMessage::parse(bytes) {
        Ok(message) => message,
        Err(error) => return refused(error),
    };
    let mut out = [0; MapperMessage::REQUEST_LEN];
    let len = message.emit(&mut out);
    assert_eq!(len, Ok(message.wire_len()));
    assert_eq!(MapperMessage::parse(&out), Ok(message));
    Outcome::Accepted
}
