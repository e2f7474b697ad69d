//! Extensions of the device, by name and bytes: what `verbs_extensions.h` declares.

use std::ffi::{CStr, c_char, c_int, c_void};

use verbs_abi as abi;
use verbs_core::extension::{ExtensionInfo, ExtensionKind};

use super::context::Context;
use crate::call::live::look;
use crate::call::{Errno, code, number};

/// Bytes of a name, the zero at its end among them.
const NAME_MAX: usize = 56;

/// The longest input. Those of today's extensions are empty.
const INPUT_MAX: usize = 1 << 20;

/// `struct verbs_extension`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Extension {
    name: [c_char; NAME_MAX],
    version: u32,
    kind: u32,
}

const _: () = assert!(size_of::<Extension>() == 64);

impl From<&ExtensionInfo> for Extension {
    fn from(info: &ExtensionInfo) -> Self {
        let mut name = [0; NAME_MAX];
        // The last byte stays 0.
        let places = name[..NAME_MAX - 1].iter_mut();
        for (place, byte) in places.zip(info.name.bytes()) {
            *place = byte as c_char;
        }
        Self {
            name,
            version: info.version,
            kind: match info.kind {
                ExtensionKind::Call => 0,
                ExtensionKind::WorkRequest => 1,
            },
        }
    }
}

/// `verbs_query_extensions`.
pub(crate) unsafe extern "C" fn query_extensions(
    context: *mut abi::Context,
    list: *mut Extension,
    max: c_int,
) -> c_int {
    number(|| {
        let max = usize::try_from(max).map_err(|_| Errno::INVAL)?;
        if list.is_null() && max > 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program does not close it now.
        let context = unsafe { look::<Context, _>(context) }?;
        let all = context.device.extensions();
        for (at, info) in all.iter().take(max).enumerate() {
            // SAFETY: the program's list has room for `max`.
            unsafe { list.add(at).write(info.into()) };
        }
        c_int::try_from(all.len()).map_err(|_| Errno::INVAL)
    })
}

/// `verbs_call_extension`.
pub(crate) unsafe extern "C" fn call_extension(
    context: *mut abi::Context,
    name: *const c_char,
    version: u32,
    input: *const c_void,
    input_len: usize,
    output: *mut c_void,
    output_len: *mut usize,
) -> c_int {
    code(|| {
        let missing = input.is_null() && input_len > 0;
        if name.is_null() || output_len.is_null() || missing || input_len > INPUT_MAX {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program does not close it now.
        let context = unsafe { look::<Context, _>(context) }?;
        // SAFETY: a string of the program's, which ends with 0.
        let name = unsafe { CStr::from_ptr(name) };
        let name = name.to_str().map_err(|_| Errno::NOTSUP)?;
        let input = match input_len {
            0 => &[][..],
            // SAFETY: the program's input has that many bytes, and it does not change them during the call.
            len => unsafe { std::slice::from_raw_parts(input.cast::<u8>(), len) },
        };
        let answer = context.device.call_by_name(name, version, input).wait()?;
        // SAFETY: the program's place for the length, which it has filled with the room.
        let room = unsafe { output_len.replace(answer.len()) };
        if answer.len() > room {
            return Err(Errno(libc::ENOSPC));
        }
        if answer.is_empty() {
            return Ok(());
        }
        if output.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program's output has room for as much, and is no memory of this call's.
        unsafe { std::ptr::copy_nonoverlapping(answer.as_ptr(), output.cast(), answer.len()) };
        Ok(())
    })
}
