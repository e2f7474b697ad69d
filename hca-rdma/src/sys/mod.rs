//! The door to the system's C libraries: everything that is unsafe in this crate.
//!
//! What comes out of here is safe to use: an object of the library is a value that holds what it was made from, and that
//! is destroyed when nobody holds it any more. Two things make that so. libibverbs locks inside: every function may be
//! called by any thread, except that an object must not be destroyed while it is used. And a value here is used by shared
//! reference, which keeps it from being dropped.
//!
//! - `library` finds the functions.
//! - `context` is an open device, with its attributes and asynchronous events.
//! - `memory` has protection domains and memory regions, `address` address handles.
//! - `cq` has completion queues and the channel of their events.
//! - `qp` has queue pairs and shared receive queues, `post` what is posted to them.

mod address;
mod context;
mod cq;
mod library;
mod memory;
mod post;
mod qp;

pub(crate) use self::address::Ah;
pub(crate) use self::context::{AsyncEvent, Context, Element, device_names};
pub(crate) use self::cq::{Channel, Cq, Entries};
pub(crate) use self::library::Library;
pub(crate) use self::memory::{Mr, Pd};
pub(crate) use self::post::{BATCH, To};
pub(crate) use self::qp::{Qp, QpConfig, Srq};

use rustix::io::Errno;

/// What errno says now.
fn errno() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    code.map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The answer of a function that returns 0, or the error's number, or -1 with the number in errno.
#[inline(always)]
fn check(code: i32) -> Result<(), Errno> {
    match code {
        0 => Ok(()),
        code => Err(failed(code)),
    }
}

#[cold]
fn failed(code: i32) -> Errno {
    match code {
        -1 => errno(),
        code => Errno::from_raw_os_error(code.saturating_abs()),
    }
}

/// The answer of a destroy. A device that the kernel has taken away answers EIO, and then the kernel has destroyed the
/// object already.
fn destroyed(what: &'static str, code: i32) -> Result<(), Errno> {
    match check(code) {
        Err(Errno::IO | Errno::NODEV) => Ok(()),
        Err(errno) => {
            tracing::warn!(what, %errno, "an object could not be destroyed, and stays until the program ends");
            Err(errno)
        }
        Ok(()) => Ok(()),
    }
}
