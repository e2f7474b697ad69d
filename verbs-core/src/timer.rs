//! Being woken at a time: what services ask of a provider, since this crate has no clock.

use std::task::Waker;

use crate::mad::Time;

/// A device's timer. A simulated device tells simulated time, so that what runs above it needs no
/// clock of its own and is decided by the simulation too.
pub trait Timer: Send + Sync {
    /// The time, since a start that the device chooses. Never goes backwards.
    fn now(&self) -> Time;

    /// Wakes when `deadline` has passed, once; never inside this call.
    ///
    /// There is no way to take it back: whoever is woken looks at the time. Never blocks, and is
    /// legal under NoBlock. The waker is called under NoBlock (K3).
    fn wake_at(&self, deadline: Time, waker: Waker);
}
