//! The door to the system's C libraries: everything that is unsafe in this crate.
//!
//! Everything that this module exports is safe to use: an object of the library is a value that holds what it was made
//! from, and is destroyed with its last owner. Two things ensure that. libibverbs locks internally: every function may
//! be called by any thread, except that an object must not be destroyed while it is used. And a value here is used by
//! shared reference, which keeps it from being dropped.
//!
//! - `library` finds the functions.
//! - `context` is an open device, with its attributes and asynchronous events.
//! - `memory` has protection domains and memory regions, `address` address handles.
//! - `cq` has completion queues and the channel of their events.
//! - `stamp` has completion queues whose completions carry the time.
//! - `qp` has queue pairs and shared receive queues, `post` posts to them.
//! - `window` has memory windows, `xrc` the objects of extended reliable connections.
//! - `table` has the functions that programs reach through a context.
//! - `cm` has the ids of librdmacm and the channel of their events.

mod address;
mod cm;
mod context;
mod cq;
mod library;
mod memory;
mod post;
mod qp;
mod window;
pub(crate) mod xrc;

pub(crate) use cq::stamp;

pub(crate) use library::table;

pub(crate) use self::address::Ah;
pub(crate) use self::cm::{Arrival, CmChannel, CmId, Wishes};
pub(crate) use self::context::{AsyncEvent, Context, Element, device_names};
pub(crate) use self::cq::{Channel, Cq, Entries};
pub(crate) use self::library::Library;
pub(crate) use self::memory::{Mr, Pd};
pub(crate) use self::post::{BATCH, Bind, To};
pub(crate) use self::qp::{Qp, QpConfig, Srq};
pub(crate) use self::stamp::Ticks;
pub(crate) use self::window::Mw;
pub(crate) use self::xrc::Xrcd;

use rustix::io::Errno;

/// The current value of errno.
fn errno() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    code.map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The result of a function that returns 0, or the error's number, or -1 with the number in errno.
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

/// The result of a destroy. A device that the kernel has removed answers EIO, and then the kernel has destroyed the
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
