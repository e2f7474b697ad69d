//! Panics of client code, of which several calls are made one after the other.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::sync::panicking;

/// Makes every one of several calls, and passes on the first panic when all are made.
///
/// Routines, handlers, wakers, jobs and destructors are the client's code and may panic. A caller that has
/// several of them to call owes each of them its call: so each goes through [`FirstPanic::catch`], and
/// [`FirstPanic::resume`] comes last. The panic hook has reported each panic by then.
///
/// ```
/// use std::panic::catch_unwind;
/// use verbs_core::FirstPanic;
///
/// let calls: [fn(); 3] = [|| panic!("first"), || panic!("second"), || ()];
/// let mut made = 0;
/// let outcome = catch_unwind(std::panic::AssertUnwindSafe(|| {
///     let mut panics = FirstPanic::default();
///     for call in calls {
///         panics.catch(call);
///         made += 1;
///     }
///     panics.resume();
/// }));
/// assert_eq!(made, 3);
/// assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&"first"));
/// ```
#[derive(Debug, Default)]
#[must_use = "the panic that was caught is to be passed on"]
pub struct FirstPanic(Option<Payload>);

type Payload = Box<dyn Any + Send>;

impl FirstPanic {
    /// Calls `call`; `None` if it panics.
    #[inline]
    pub fn catch<R>(&mut self, call: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(value) => Some(value),
            Err(payload) => {
                self.keep(payload);
                None
            }
        }
    }

    #[cold]
    fn keep(&mut self, payload: Payload) {
        match self.0 {
            None => self.0 = Some(payload),
            Some(_) => discard(payload),
        }
    }

    /// Passes the first panic on, if there was one. A thread that is unwinding already, because this runs
    /// in a destructor, goes on with the panic that it has: a second one would end the process.
    ///
    /// # Panics
    /// With the payload of the first call that did.
    #[inline]
    pub fn resume(self) {
        if let Some(payload) = self.due() {
            resume_unwind(payload);
        }
    }

    /// What [`FirstPanic::resume`] would pass on.
    #[inline]
    fn due(self) -> Option<Payload> {
        let payload = self.0?;
        if panicking() {
            discard(payload);
            return None;
        }
        Some(payload)
    }
}

/// A payload's destructor is the client's code as well. What it panics with is kept for ever.
#[cold]
fn discard(payload: Payload) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}
