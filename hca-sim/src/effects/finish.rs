//! Verbs on a queue pair that are done except for the wait.

use verbs_core::command::Pending;
use verbs_core::qp::{DestroyQp, ModifyQp};

/// A verb that is done except for the wait.
#[derive(Debug)]
pub(crate) enum Finish {
    Modify(Pending<ModifyQp>),
    Destroy(Pending<DestroyQp>),
}

impl Finish {
    pub(crate) fn complete(self) {
        match self {
            Self::Modify(pending) => pending.complete(Ok(())),
            Self::Destroy(pending) => pending.complete(Ok(())),
        }
    }
}
