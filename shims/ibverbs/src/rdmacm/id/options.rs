//! `rdma_set_option`.

use std::ffi::{c_int, c_void};

use verbs_abi::rdmacm::CmId;

use crate::call::live::look;
use crate::call::{Errno, number};
use crate::rdmacm::id::Id;
use crate::rdmacm::manager::endpoint::Role;

/// `RDMA_OPTION_ID` and `RDMA_OPTION_IB`.
const LEVEL_ID: c_int = 0;
const LEVEL_IB: c_int = 1;

/// `RDMA_OPTION_ID_TOS`, `_REUSEADDR`, `_AFONLY`, `_ACK_TIMEOUT`.
const TOS: c_int = 0;
const REUSEADDR: c_int = 1;
const AFONLY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;

/// `rdma_set_option`. `IB_PATH` is refused: RoCE needs no path records.
pub(crate) unsafe extern "C" fn set_option(
    id: *mut CmId,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and does not destroy the id now.
        let (id, value) = unsafe {
            if value.is_null() {
                return Err(Errno::INVAL);
            }
            let bytes = std::slice::from_raw_parts(value.cast::<u8>(), length);
            (look::<Id, _>(id)?, bytes)
        };
        if level == LEVEL_IB {
            return Err(Errno::NOTSUP);
        }
        if level != LEVEL_ID {
            return Err(Errno(libc::ENOSYS));
        }
        let mut state = id.endpoint.state.lock();
        match (name, value) {
            (TOS, &[tos]) => state.options.tos = tos,
            (REUSEADDR, &[a, b, c, d]) => {
                if state.binding.is_some() {
                    return Err(Errno::INVAL);
                }
                state.options.reuse_address = i32::from_ne_bytes([a, b, c, d]) != 0;
            }
            (AFONLY, &[a, b, c, d]) => {
                if state.role != Role::Idle {
                    return Err(Errno::INVAL);
                }
                // It counts where a wildcard is bound.
                state.options.family_only = Some(i32::from_ne_bytes([a, b, c, d]) != 0);
            }
            (ACK_TIMEOUT, &[code @ 0..=31]) => state.options.ack_timeout = Some(code),
            (TOS | REUSEADDR | AFONLY | ACK_TIMEOUT, _) => return Err(Errno::INVAL),
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(0)
    })
}
