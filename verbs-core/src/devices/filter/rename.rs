//! A filter that changes addresses.

use std::fmt;
use std::net::SocketAddr;

use crate::command::{AnyCommand, RequestId};
use crate::provider::Provider;
use crate::sync::Arc;

type Change = dyn Fn(&mut SocketAddr) + Send + Sync;

/// Changes the addresses that connections are bound and made to, by the verbs of connections.
///
/// The change is called within `issue`, under NoBlock.
pub struct Rename {
    inner: Arc<dyn Provider>,
    change: Box<Change>,
}

impl Rename {
    /// Changes addresses on their way to `inner`.
    pub fn new(
        inner: Arc<dyn Provider>,
        change: impl Fn(&mut SocketAddr) + Send + Sync + 'static,
    ) -> Self {
        let change = Box::new(change);
        Self { inner, change }
    }
}

impl fmt::Debug for Rename {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rename").finish_non_exhaustive()
    }
}

impl Provider for Rename {
    fn issue(&self, mut command: AnyCommand<'_>) {
        match &mut command {
            AnyCommand::BindCm(bind) => (self.change)(&mut bind.args_mut().local),
            AnyCommand::ConnectCm(connect) => (self.change)(&mut connect.args_mut().remote),
            _ => {}
        }
        self.inner.issue(command);
    }

    fn cancel(&self, id: RequestId) {
        self.inner.cancel(id);
    }

    passes_on!(inner);
}
