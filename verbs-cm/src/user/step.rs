//! A step of connection management as a request: inert until it is issued, awaited or waited for.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use futures::future::{AbortHandle, Abortable};
use verbs_core::{no_block, task};

use crate::error::Error;

/// The future of a step.
pub type StepFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// A step that was formatted and not begun. Dropping it does nothing.
///
/// # Completion
/// By a routine, a future or a blocking wait, as the requests of verbs. No thread takes part: the step
/// goes on in the completions of the verbs and messages that it needs.
///
/// # Cancel safety
/// A future that is dropped gives its step up: the peer is told, and what the step owned is destroyed.
#[must_use = "a step does nothing until issued, awaited or waited for"]
pub struct Step<T, E = Error> {
    future: StepFuture<T, E>,
}

/// Asks for an issued step to end early.
#[derive(Clone, Debug)]
pub struct CancelStep(AbortHandle);

impl CancelStep {
    /// A hint that never waits: a step that has not ended ends with [`Error::Cancelled`], and gives up
    /// what it was about.
    pub fn cancel(&self) {
        self.0.abort();
    }
}

impl<T, E> Step<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    pub(crate) fn new(future: impl Future<Output = Result<T, E>> + Send + 'static) -> Self {
        Self {
            future: Box::pin(future),
        }
    }

    /// Begins; `routine` runs exactly once, under NoBlock, here or later. Never blocks.
    pub fn issue(self, routine: impl FnOnce(Result<T, E>) + Send + 'static) -> CancelStep {
        let (handle, registration) = AbortHandle::new_pair();
        task::detach(async move {
            let ended = Abortable::new(self.future, registration).await;
            routine(ended.unwrap_or_else(|_| Err(Error::Cancelled.into())));
        });
        CancelStep(handle)
    }

    /// Begins and blocks the thread until the step has ended.
    ///
    /// # Errors
    /// The step's; and [`Error::WouldBlock`] under NoBlock, at once and without side effects (K3).
    pub fn wait(self) -> Result<T, E> {
        if no_block() {
            return Err(Error::WouldBlock.into());
        }
        task::block_on(self.future)
    }
}

impl<T, E> IntoFuture for Step<T, E> {
    type Output = Result<T, E>;
    type IntoFuture = StepFuture<T, E>;

    fn into_future(self) -> StepFuture<T, E> {
        self.future
    }
}

impl<T, E> fmt::Debug for Step<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").finish_non_exhaustive()
    }
}
