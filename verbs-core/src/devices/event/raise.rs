//! How events are raised: by providers, and by the end of the device.

use super::kind::{AsyncEvent, EventType, EventWatcher, Subject, Undelivered};
use crate::device::DeviceCore;
use crate::error::Error;
use crate::object::header::User;
use crate::object::{InUse, Target};
use crate::panics::FirstPanic;
use crate::routine;
use crate::sync::Arc;

impl EventType {
    /// Raises the event about an object on the object's device: see [`DeviceCore::raise_for`].
    pub fn raise_for<T: Target>(self, target: &Arc<T>) {
        T::device(target).raise_for(&**target, self);
    }
}

impl DeviceCore {
    /// Raises an event about the device or a port. For providers; hold no lock.
    ///
    /// [`EventType::DeviceFatal`] about the device says that it has failed. It is heard once: a device
    /// that has failed or was [removed](DeviceCore::remove) does not become unusable again.
    pub fn raise(self: &Arc<Self>, event: EventType, subject: Subject) {
        if (event, subject) == (EventType::DeviceFatal, Subject::Device) {
            if self.end(Error::DeviceFailed) {
                self.show(AsyncEvent { event, subject });
            }
            return;
        }
        let event = AsyncEvent { event, subject };
        self.events.push(event);
        self.deliver_events();
        self.show(event);
    }

    /// The device has become unusable, by failure or removal: the client hears so, once, as its last
    /// event of the device, and so do the tasks that wait for that or for completions. `false`: they have
    /// heard already.
    pub(crate) fn end(self: &Arc<Self>, reason: Error) -> bool {
        let Some(concerned) = self.fatal.end(reason) else {
            return false;
        };
        // Handlers run at the end: one that panics does not keep the others from hearing of it.
        routine::collect(|| {
            self.events.push(AsyncEvent {
                event: EventType::DeviceFatal,
                subject: Subject::Device,
            });
            self.deliver_events();
            concerned.tell(routine::wake, |queue| {
                if !self.hold_end(queue) {
                    queue.tell_end();
                }
            });
        });
        true
    }

    /// Raises an event about an object. It waits until the create's result has been delivered (K14)
    /// and is dropped when the object's destroy has been accepted (K11). For providers; hold no
    /// lock.
    pub fn raise_for(self: &Arc<Self>, target: &dyn Target, event: EventType) {
        let base = target.base();
        if base.header.is_closing() {
            return;
        }
        let event = AsyncEvent {
            event,
            subject: Subject::Object(base.id()),
        };
        if self.events.hold(&base.announced, event) {
            return;
        }
        self.events.push(event);
        self.deliver_events();
        self.show(event);
    }

    /// Has `watcher` see every event besides the client, from now until it is dropped: for services
    /// that share the device with its client, which still sees each event once.
    pub fn watch_events(&self, watcher: &Arc<dyn EventWatcher>) {
        self.events.watch(watcher);
    }

    /// Tells services that the network has reported a management datagram as not delivered. For
    /// providers; hold no lock.
    pub fn report_undelivered(&self, mad: Undelivered) {
        self.each_watcher(move |watcher| watcher.undelivered(mad));
    }

    /// Tells the watchers that the device has gone.
    pub(crate) fn tell_removed(&self) {
        self.each_watcher(|watcher| watcher.removed());
    }

    /// Shows the event to the watchers.
    fn show(&self, event: AsyncEvent) {
        self.each_watcher(move |watcher| watcher.event(event));
    }

    fn each_watcher(&self, call: impl Fn(&dyn EventWatcher) + Copy + Send + 'static) {
        let mut panics = FirstPanic::default();
        for watcher in self.events.watchers() {
            panics.catch(|| routine::defer(move || call(&*watcher)));
        }
        panics.resume();
    }

    /// The result of the create has been delivered: its events may go.
    pub(crate) fn announce(self: &Arc<Self>, target: &dyn Target) {
        let base = target.base();
        let announced = self.events.announce(&base.announced, base.id());
        if announced.has_events {
            self.deliver_events();
        }
        if announced.has_ended {
            target.tell_end();
        }
    }

    /// Keeps the end of the device for an object whose create has not been delivered; `false`: it has been.
    pub(crate) fn hold_end(&self, target: &dyn Target) -> bool {
        let base = target.base();
        let event = AsyncEvent {
            event: EventType::DeviceFatal,
            subject: Subject::Object(base.id()),
        };
        self.events.hold(&base.announced, event)
    }

    pub(super) fn deliver_events(self: &Arc<Self>) {
        if !self.events.calls.enter() {
            return;
        }
        let target: Arc<dyn Target> = Arc::<Self>::clone(self);
        // A device whose close was accepted hears nothing more; the thread that closes it drops the rest.
        let Some(in_use) = InUse::try_enter(target, User::Handler) else {
            return;
        };
        let core = Arc::clone(self);
        routine::defer(move || {
            core.events.deliver();
            drop(in_use);
        });
    }
}
