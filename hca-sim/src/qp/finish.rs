//! Verbs on a queue pair that are done but for the waiting.

use verbs_core::command::Pending;
use verbs_core::qp::{DestroyQp, ModifyQp};

/// A verb that is done but for the waiting.
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
