//! The verb that takes the next event: it waits in the device.

use smallbox::smallbox;

use super::hub::Waiter;
use super::kind::AsyncEvent;
use crate::command::{Command, Pending, RequestId};
use crate::device::DeviceCore;
use crate::error::Error;
use crate::sync::Arc;
use crate::verb::verb;

/// Asks for the next event; arguments of the verb. It pends in the device until there is one.
#[derive(Debug)]
pub struct NextEvent(pub(super) ());

verb!(NextEvent, DeviceCore => AsyncEvent);

impl Command<'_, NextEvent> {
    /// Answers with an event that waits, or parks the request in the device: all that a provider
    /// does with this verb.
    pub fn park(self) {
        let device = Arc::clone(self.target());
        if let Some((_, pending)) = self.pend() {
            device.events.wait(smallbox!(Waits(Some(pending))));
        }
    }
}

/// `None` when it has been answered.
struct Waits(Option<Pending<NextEvent>>);

impl Waits {
    fn pending(&self) -> &Pending<NextEvent> {
        let pending = self.0.as_ref();
        pending.expect("a request waits until it is answered")
    }
}

impl Waiter for Waits {
    fn id(&self) -> RequestId {
        self.pending().id()
    }

    fn is_cancelled(&self) -> bool {
        self.pending().cancelled()
    }

    fn complete(&mut self, event: Result<AsyncEvent, Error>) {
        if let Some(pending) = self.0.take() {
            pending.complete(event);
        }
    }
}
