//! Callbacks at deadlines.

use crate::time::Instant;

/// A callback of an engine at a deadline.
pub trait Due: Send + Sync {
    /// The deadline that was set with `token` has passed; it is `now`.
    ///
    /// Runs under NoBlock and without a lock of the engine (K3, K4): it may set and cancel deadlines, complete
    /// requests, and drop the engine. A deadline that is cancelled while it is being called is called all the same;
    /// where that matters, the callee keeps a generation in the token.
    fn due(&self, now: Instant, token: u64);
}
