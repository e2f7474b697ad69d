//! A provider that holds every command back until it is told to pass one on.

use std::collections::VecDeque;

use crate::command::{AnyCommand, Kind, PendingCommand, RequestId};
use crate::error::Error;
use crate::provider::Provider;
use crate::provider_attr::ProviderAttr;
use crate::sync::{Arc, Mutex};

/// Pends every command, and passes them to the provider behind it one by one, in any order.
///
/// A cancelled request that it still holds completes with [`Error::Cancelled`], except destroys:
/// those are not cancellable once accepted (K8).
pub struct Hold {
    inner: Arc<dyn Provider>,
    held: Mutex<VecDeque<PendingCommand>>,
}

impl Hold {
    /// Holds what goes to `inner`.
    pub fn over(inner: Arc<dyn Provider>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            held: Mutex::new(VecDeque::new()),
        })
    }

    /// How many commands are held.
    pub fn len(&self) -> usize {
        self.held.lock().len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The verbs that are held, oldest first.
    pub fn kinds(&self) -> Vec<Kind> {
        self.held.lock().iter().map(PendingCommand::kind).collect()
    }

    /// Takes the `n`th oldest out, to be forwarded, refused or dropped by the test.
    pub fn take(&self, n: usize) -> Option<PendingCommand> {
        self.held.lock().remove(n)
    }

    /// Passes the `n`th oldest on; `false` if there is none.
    pub fn step_nth(&self, n: usize) -> bool {
        let command = self.take(n);
        command
            .map(|command| command.forward(&*self.inner))
            .is_some()
    }

    /// Passes the oldest on; `false` if there is none.
    pub fn step(&self) -> bool {
        self.step_nth(0)
    }

    /// Passes on all there are and all that come in the meantime, oldest first.
    pub fn run(&self) {
        while self.step() {}
    }
}

impl Provider for Hold {
    fn issue(&self, command: AnyCommand<'_>) {
        if let Some(pending) = command.pend() {
            self.held.lock().push_back(pending);
        }
    }

    fn cancel(&self, id: RequestId) {
        let taken = {
            let mut held = self.held.lock();
            let place = held
                .iter()
                .position(|command| command.id() == id && !command.kind().destroys());
            place.and_then(|n| held.remove(n))
        };
        match taken {
            Some(command) => command.refuse(Error::Cancelled),
            None => self.inner.cancel(id),
        }
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.inner.query_provider(port)
    }
}
