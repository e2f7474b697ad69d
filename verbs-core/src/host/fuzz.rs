//! Fuzz targets as plain functions over bytes: `ci/fuzz` drives them, and tests with the bytes of every message and verb.
//! They panic when a promise of the codec is broken, and return whether the bytes were what the target looks for.

use crate::host::command::{decode_call, decode_result, encode_call, encode_result};
use crate::host::message::Message;

/// A datagram of the line. What is accepted is written again to bytes that read the same.
pub fn message(bytes: &[u8]) -> bool {
    match Message::decode(bytes) {
        Ok(message) => {
            let again = message.encode();
            let read = Message::decode(&again);
            assert_eq!(
                read.as_ref(),
                Ok(&message),
                "what was written reads differently"
            );
            let _ = format!("{message:?}");
            true
        }
        Err(error) => {
            let _ = error.to_string();
            false
        }
    }
}

/// A command, and a result.
pub fn command(bytes: &[u8]) -> bool {
    let call = decode_call(bytes);
    if let Ok((target, call)) = &call {
        let again = encode_call(*target, call);
        assert_eq!(decode_call(&again), Ok((*target, call.clone())));
        let _ = format!("{target:?} {call:?}");
    }
    let result = decode_result(bytes);
    if let Ok(result) = &result {
        let again = encode_result(result);
        assert_eq!(decode_result(&again).as_ref(), Ok(result));
        let _ = format!("{result:?}");
    }
    call.is_ok() || result.is_ok()
}
