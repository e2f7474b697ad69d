//! The provider: what implements the verbs for a device.

use crate::command::{AnyCommand, Kind, RequestId};
use crate::error::Error;
use crate::sync::Arc;

/// Implements a device, or stands in front of one and looks at what goes by.
///
/// The provider sees one entry. A command that can be answered at once is completed in place; one
/// that cannot is [pended](crate::Command::pend), which yields an owned value to keep until the
/// hardware answers. Post, poll and arm do not come through here: they are the
/// [raw queues](crate::RawSendQueue) that a provider hands out with the objects it creates.
pub trait Provider: Send + Sync + 'static {
    /// Takes a command.
    ///
    /// Runs under NoBlock on the issuer's thread: it may take a lock whose holders run bounded code
    /// and never foreign code, and it may not wait (K2, K3). Dropping the command completes it with
    /// [`Error::Dropped`] (K7).
    fn issue(&self, command: AnyCommand<'_>);

    /// A hint that the pending request `id` should end early if it still can (K8).
    ///
    /// Whoever takes the request from the provider's queue completes it, here with
    /// [`Error::Cancelled`]; a request whose command the hardware has already is left alone. Never
    /// waits.
    fn cancel(&self, _id: RequestId) {}
}

/// Sees the results of the commands that a filter let through.
pub trait Hook: Send + Sync + 'static {
    /// The request with this token has completed. Runs once, before its routine, innermost filter
    /// first, under NoBlock.
    fn completed(&self, token: u64, done: &mut dyn Done);
}

/// A result on its way to the consumer.
pub trait Done {
    /// The verb.
    fn kind(&self) -> Kind;

    /// Why it failed, if it did.
    fn error(&self) -> Option<Error>;

    /// Makes it a failure. An object that it carried is destroyed; there is no way to make a
    /// success of a failure.
    fn fail(&mut self, error: Error);
}

/// A filter's entry in the chain that a result unwinds. It lives on the filter's stack while the
/// inner provider is called, and is copied only when the request pends.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// Who wants to see the result.
    pub hook: &'a Arc<dyn Hook>,
    /// Comes back to the hook.
    pub token: u64,
    /// The next filter outwards: [`AnyCommand::frames`] of the command that came in.
    pub next: Option<&'a Frame<'a>>,
}
