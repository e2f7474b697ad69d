//! A filter that traces verbs.

use std::fmt;

use tracing::Span;
use tracing::field::{Empty, display};

use crate::command::{AnyCommand, RequestId};
use crate::provider::{Done, Frame, Hook, Provider};
use crate::sync::Arc;

/// Opens a `tracing` span for every verb that goes by: level DEBUG, target `verbs`, name `verb`.
///
/// The span has the fields `kind`, `target`, `origin` and, when the verb has completed, `result`:
/// `ok` or the error. The provider behind runs inside the span, so what it traces is found under the
/// verb that caused it. The completion is an event in the span, and closes it.
///
/// Where no subscriber listens to these spans, a verb passes with one look at a flag; else each costs an
/// allocation. No lock is taken.
#[derive(Clone)]
pub struct Trace {
    inner: Arc<dyn Provider>,
}

impl Trace {
    /// Traces what goes to `inner`.
    pub fn new(inner: Arc<dyn Provider>) -> Self {
        Self { inner }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").finish_non_exhaustive()
    }
}

impl Provider for Trace {
    fn issue(&self, command: AnyCommand<'_>) {
        let span = tracing::debug_span!(
            target: "verbs",
            "verb",
            kind = %command.kind(),
            target = %command.target(),
            origin = ?command.origin(),
            result = Empty,
        );
        if span.is_disabled() {
            return self.inner.issue(command);
        }
        let hook: Arc<dyn Hook> = Arc::new(Traced(span.clone()));
        let frame = Frame {
            hook: &hook,
            token: 0,
            next: command.frames(),
        };
        span.in_scope(|| self.inner.issue(command.through(&frame)));
    }

    fn cancel(&self, id: RequestId) {
        tracing::debug!(target: "verbs", ?id, "cancel");
        self.inner.cancel(id);
    }

    passes_on!(inner);
}

/// The span of a verb that is on its way.
struct Traced(Span);

impl Hook for Traced {
    fn completed(&self, _token: u64, done: &mut dyn Done) {
        let Self(span) = self;
        match done.error() {
            None => {
                span.record("result", "ok");
                tracing::debug!(target: "verbs", parent: span, "completed");
            }
            Some(error) => {
                span.record("result", display(error));
                tracing::debug!(target: "verbs", parent: span, %error, "failed");
            }
        }
    }
}
