//! Calls from C: results as error numbers, and panics caught.

pub(crate) mod live;
pub(crate) mod tell;
pub(crate) mod text;

use std::ffi::c_int;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::{Once, OnceLock};

use verbs_core::process::variable;
use verbs_core::{Error, PostError};

/// Why a call failed: an error number, as in `errno.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVAL: Self = Self(libc::EINVAL);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    pub(crate) const NOMEM: Self = Self(libc::ENOMEM);
    pub(crate) const NOTSUP: Self = Self(libc::EOPNOTSUPP);
}

impl Errno {
    /// The number of the call of this thread that has just failed.
    pub(crate) fn last() -> Self {
        Self(
            io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        )
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        explain(&error);
        Self(match error {
            Error::Busy => libc::EBUSY,
            Error::AccessDenied => libc::EACCES,
            Error::Cancelled => libc::ECANCELED,
            Error::WouldBlock | Error::TooManyRequests { .. } => libc::EAGAIN,
            Error::Unsupported(_) | Error::NoCapability { .. } => libc::EOPNOTSUPP,
            Error::Exhausted { .. } | Error::NoMemory => libc::ENOMEM,
            Error::AddrInUse { .. } => libc::EADDRINUSE,
            Error::AddrNotAvailable => libc::EADDRNOTAVAIL,
            Error::DeviceRemoved | Error::DeviceFailed | Error::Dropped => libc::EIO,
            // Invalid, Mismatch, OutOfRange, Transition, Closing: the caller's argument.
            _ => libc::EINVAL,
        })
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        explain(&error);
        Self(match error {
            PostError::Full { .. } => libc::ENOMEM,
            PostError::DeviceRemoved => libc::EIO,
            _ => libc::EINVAL,
        })
    }
}

/// A call that returns 0 or an error number, as most do.
pub(crate) fn code(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match caught(call) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// A call that returns a number, or -1 and sets `errno`.
pub(crate) fn number(call: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    caught(call).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// A call that returns a pointer, or NULL and sets `errno`.
pub(crate) fn pointer<T>(call: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    caught(call).unwrap_or_else(|errno| {
        set_errno(errno);
        null_mut()
    })
}

/// Runs `call`. A panic, which is a defect of this library, becomes `EIO`.
#[inline(always)]
pub(crate) fn caught<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno(libc::EIO)))
}

/// Makes a panic print one line.
pub(crate) fn say_panics_in_one_line() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let text = panic.payload_as_str().unwrap_or("no text");
            let at = panic
                .location()
                .map(ToString::to_string)
                .unwrap_or_default();
            log(&format!(
                "a defect of this library: {} ({at})",
                text.replace('\n', " ")
            ));
        }));
    });
}

/// With `VERBS_LOG_LEVEL` of 3 or more, prints the meaning of an error number: a program sees most refusals as
/// `EINVAL`.
pub(crate) fn explain(error: &dyn std::fmt::Display) {
    if explains() {
        log(&error.to_string());
    }
}

/// Whether the user wants to know.
pub(crate) fn explains() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let level = variable("VERBS_LOG_LEVEL").and_then(|level| level.into_string().ok());
        level.is_some_and(|level| level.parse::<u32>().is_ok_and(|level| level >= 3))
    })
}

/// Prints a line for the user of the program, where nothing else can say why a call fails. The program may have closed stderr.
pub(crate) fn log(text: &str) {
    let _ = writeln!(io::stderr(), "libibverbs (verbs): {text}");
}

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the address of this thread's own errno.
    unsafe { *libc::__errno_location() = errno.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> c_int {
        io::Error::last_os_error()
            .raw_os_error()
            .expect("one was set")
    }

    #[test]
    fn results_are_what_c_programs_expect() {
        assert_eq!(code(|| Ok(())), 0);
        assert_eq!(code(|| Err(Errno::BUSY)), libc::EBUSY);
        assert_eq!(number(|| Err(Errno::NOMEM)), -1);
        assert_eq!(last(), libc::ENOMEM);
        assert!(pointer::<u8>(|| Err(Errno::NOTSUP)).is_null());
        assert_eq!(last(), libc::EOPNOTSUPP);
        assert_eq!(Errno::from(Error::Busy), Errno::BUSY);
        assert_eq!(Errno::from(PostError::Full { depth: 1 }), Errno::NOMEM);
    }

    #[test]
    fn a_panic_is_an_error_number() {
        say_panics_in_one_line();
        assert_eq!(code(|| panic!("two\nlines")), libc::EIO);
        assert_eq!(number(|| panic!("again")), -1);
    }
}
