//! Verbs as bytes: every verb of the table, with its arguments by value and the objects that it names by their handles, and
//! every result.
//!
//! ```
//! use verbs_core::host::Handle;
//! use verbs_core::host::command::{Answer, Call, decode_call, encode_call};
//! use verbs_core::{Kind, PKey};
//!
//! let bytes = encode_call(Handle::DEVICE, &Call::QueryPkey { port: 1, index: 0 });
//! let (target, call) = decode_call(&bytes)?;
//! assert_eq!((target, call.kind()), (Handle::DEVICE, Kind::QueryPkey));
//! let answer = Answer::QueryPkey(PKey::DEFAULT);
//! assert_eq!(answer.kind(), Kind::QueryPkey);
//! # Ok::<(), verbs_core::host::Malformed>(())
//! ```
//!
//! No command names memory of the client: where a verb registers memory, the side that carries it out allocates so many
//! bytes. Arguments are copied before they are looked at, as they come in one datagram (K16).

mod attr;
mod error;
#[cfg(test)]
mod tests;
mod verbs;

pub use attr::Made;
pub use error::Failure;
pub use verbs::{Answer, Call};

use crate::command::Kind;
use crate::host::bytes::{Encode, Malformed, Reader};
use crate::host::handle::Handle;
use crate::host::quota::QuotaError;

/// A command.
pub fn encode_call(target: Handle, call: &Call) -> Vec<u8> {
    let mut out = Vec::new();
    call.kind().wire_id().put(&mut out);
    0_u16.put(&mut out);
    target.put(&mut out);
    call.put(&mut out);
    out
}

/// Reads a command: what it acts on, and the verb.
///
/// # Errors
/// [`Malformed`].
pub fn decode_call(bytes: &[u8]) -> Result<(Handle, Call), Malformed> {
    let mut from = Reader::new(bytes);
    let kind = take_kind(&mut from)?;
    if from.read::<u16>()? != 0 {
        return Err(Malformed::Newer);
    }
    let target = from.read()?;
    let call = Call::take(kind, &mut from)?;
    from.end()?;
    Ok((target, call))
}

/// The result of a command.
pub fn encode_result(result: &Result<Answer, Failure>) -> Vec<u8> {
    let mut out = Vec::new();
    match result {
        Ok(answer) => {
            0_u16.put(&mut out);
            answer.kind().wire_id().put(&mut out);
            answer.put(&mut out);
        }
        Err(failure) => {
            1_u16.put(&mut out);
            failure.put(&mut out);
        }
    }
    out
}

/// Reads a result.
///
/// # Errors
/// [`Malformed`].
pub fn decode_result(bytes: &[u8]) -> Result<Result<Answer, Failure>, Malformed> {
    let mut from = Reader::new(bytes);
    let result = match from.read::<u16>()? {
        0 => {
            let kind = take_kind(&mut from)?;
            Ok(Answer::take(kind, &mut from)?)
        }
        1 => Err(from.read()?),
        got => {
            return Err(Malformed::Unknown {
                what: "result",
                got: got.into(),
            });
        }
    };
    from.end()?;
    Ok(result)
}

/// The result of a command that is one too many.
pub fn refused(error: QuotaError) -> Vec<u8> {
    encode_result(&Err(Failure::Quota(error)))
}

fn take_kind(from: &mut Reader<'_>) -> Result<Kind, Malformed> {
    let id: u16 = from.read()?;
    Kind::of_wire_id(id).ok_or(Malformed::Unknown {
        what: "verb",
        got: id.into(),
    })
}
