//! An HCA behind a test, which sees its commands and answers its management datagrams.

use std::sync::Arc;

use hca_sim::Hca;
use verbs_core::mad::{MadArrival, MadBytes, MadVerdict};
use verbs_core::{AnyCommand, Provider, ProviderAttr, RequestId, Timer};

type Answers = dyn Fn(&MadArrival<'_>, &mut MadBytes) -> MadVerdict + Send + Sync;

pub(crate) struct Front {
    hca: Arc<Hca>,
    issued: Box<dyn Fn() + Send + Sync>,
    answers: Box<Answers>,
}

impl Front {
    pub(crate) fn of(
        hca: Arc<Hca>,
        answers: impl Fn(&MadArrival<'_>, &mut MadBytes) -> MadVerdict + Send + Sync + 'static,
    ) -> Self {
        Self {
            hca,
            issued: Box::new(|| ()),
            answers: Box::new(answers),
        }
    }

    /// Calls that before each command.
    pub(crate) fn issued(self, issued: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            issued: Box::new(issued),
            ..self
        }
    }
}

impl Provider for Front {
    fn issue(&self, command: AnyCommand<'_>) {
        (self.issued)();
        self.hca.issue(command);
    }

    fn cancel(&self, id: RequestId) {
        self.hca.cancel(id);
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.hca.query_provider(port)
    }

    fn timer(&self) -> Option<Arc<dyn Timer>> {
        self.hca.timer()
    }

    fn process_mad(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict {
        (self.answers)(incoming, reply)
    }
}
