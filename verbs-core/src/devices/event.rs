//! Asynchronous events: what a device says unasked.
//!
//! A client takes them by a [handler](crate::Device::on_event) or by parked
//! [`next_event`](crate::Device::next_event) requests; either way it sees each event once (K17).
//! Events of an object are held until the result of its create has been delivered (K14).

use crate::device::Device;
#[cfg(doc)]
use crate::error::Error;
use crate::request::Request;
use crate::sync::atomic::Ordering::Relaxed;

pub(crate) mod hub;
mod kind;
mod next;
mod raise;

pub use hub::MAX_WAITING;
pub use kind::{AsyncEvent, EventType, EventWatcher, Subject, Undelivered};
pub use next::NextEvent;

impl Device {
    /// The next asynchronous event: completes when there is one. Several may be parked; each event
    /// goes to the one that has waited longest (K17).
    ///
    /// # Errors
    /// [`Error::Cancelled`] when cancelled, [`Error::DeviceRemoved`] when the device goes.
    ///
    /// # Cancel safety
    /// A future that is dropped takes no event with it unless one had been delivered to it already.
    pub fn next_event(&self) -> Request<'_, NextEvent> {
        Request::new(self.core(), NextEvent(()))
    }

    /// Has `handler` called for every event, under NoBlock and one call at a time (K14), instead of
    /// keeping events for `next_event`. Events that wait already come first. Replaces an earlier
    /// handler, which is not called any longer once this returns, unless it is running.
    ///
    /// The last event of a device that fails or is removed is [`EventType::DeviceFatal`].
    pub fn on_event(&self, handler: impl FnMut(AsyncEvent) + Send + 'static) {
        self.core().events.listen(Some(Box::new(handler)));
        self.core().deliver_events();
    }

    /// Takes the handler away; events wait for `next_event` again.
    pub fn ignore_events(&self) {
        self.core().events.listen(None);
        self.core().deliver_events();
    }

    /// Events that were lost because more than [`MAX_WAITING`] waited without a listener.
    pub fn lost_events(&self) -> u64 {
        self.core().events.lost.load(Relaxed)
    }
}
