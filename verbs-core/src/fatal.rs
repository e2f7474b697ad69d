//! A device that has become unusable: who is told, and once.
//!
//! Failure and removal are the same thing to whoever drives a device: nothing works on it any more.
//! The first of the two counts. It wakes [`Fatal`] futures and fires the completion queues, armed or
//! not, so that a driver whose queues are idle finds out; the event is
//! [`DeviceFatal`](crate::EventType::DeviceFatal) in both cases.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::cq::CqCore;
use crate::device::{Device, DeviceCore};
use crate::error::Error;
use crate::object::Target;
use crate::routine;
use crate::sync::plain::Mutex;
use crate::sync::{Arc, Weak};

/// Why a device cannot be used any more, and who wants to know.
#[derive(Default)]
pub(crate) struct FatalState(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    reason: Option<Error>,
    /// The device's close was accepted. Its queues, if it waits for them, still hear of its end.
    is_closing: bool,
    /// Names the next entry of `wakers`.
    next: u64,
    wakers: Vec<(u64, Waker)>,
    queues: Vec<Weak<CqCore>>,
}

/// Whom the end of a device concerns.
#[must_use = "they have to be told"]
pub(crate) struct Concerned {
    wakers: Vec<(u64, Waker)>,
    queues: Vec<Weak<CqCore>>,
}

impl FatalState {
    /// Why the device cannot be used any more; `None` while it can.
    pub(crate) fn reason(&self) -> Option<Error> {
        self.0.lock().reason
    }

    /// Has the queue fired when the device becomes unusable. `true`: it is.
    pub(crate) fn watch(&self, queue: &Arc<CqCore>) -> bool {
        let mut waiting = self.0.lock();
        let queues = &mut waiting.queues;
        // Queues leave nothing here when they go. What has gone is looked for when the list is full, so
        // that each queue pays for one look on average.
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(Arc::downgrade(queue));
        waiting.reason.is_some()
    }

    /// The device has become unusable: says who has to be told. `None`: they were told before.
    pub(crate) fn end(&self, reason: Error) -> Option<Concerned> {
        let mut waiting = self.0.lock();
        if waiting.reason.is_some() {
            return None;
        }
        waiting.reason = Some(reason);
        Some(Concerned {
            wakers: std::mem::take(&mut waiting.wakers),
            queues: std::mem::take(&mut waiting.queues),
        })
    }

    /// The device's close was accepted: futures wait no longer.
    pub(crate) fn close(&self) {
        let wakers = {
            let mut waiting = self.0.lock();
            waiting.is_closing = true;
            std::mem::take(&mut waiting.wakers)
        };
        wake_all(wakers);
    }
}

impl Concerned {
    /// Tells them. Hold no lock.
    pub(crate) fn tell(self, device: &DeviceCore) {
        wake_all(self.wakers);
        for queue in self.queues.iter().filter_map(Weak::upgrade) {
            if !device.events.hold_end(&*queue) {
                queue.tell_end();
            }
        }
    }
}

/// Each waker is a call of its own, so that one that panics keeps no other task asleep.
fn wake_all(wakers: Vec<(u64, Waker)>) {
    routine::collect(|| {
        for (_, waker) in wakers {
            routine::defer(move || waker.wake());
        }
    });
}

/// Completes when a device has become unusable; see [`Device::fatal`].
#[must_use = "futures do nothing unless polled"]
pub struct Fatal {
    device: Arc<DeviceCore>,
    /// Its entry among those who wait.
    entry: Option<u64>,
}

impl Device {
    /// Waits until the device cannot be used any more, and says why: [`Error::DeviceRemoved`] or
    /// [`Error::DeviceFailed`], whichever came first, or [`Error::Closing`] when its close was accepted.
    /// Completes at once if that has happened already.
    ///
    /// The future borrows nothing and does not keep the device open. Any number may wait. See the
    /// [module](crate::device#surprise-removal) for what else is heard of a removal.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use futures::executor::block_on;
    /// use verbs_core::testing::Null;
    /// use verbs_core::{Device, Error};
    ///
    /// let device = Device::open(Arc::new(Null::default())).wait()?;
    /// let fatal = device.fatal();
    /// device.target().remove(); // the provider does this when its hardware is pulled
    /// assert_eq!(block_on(fatal), Error::DeviceRemoved);
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "removed")]
    pub fn fatal(&self) -> Fatal {
        Fatal {
            device: Arc::clone(self.core()),
            entry: None,
        }
    }
}

impl Future for Fatal {
    type Output = Error;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        // Cloned and dropped under no lock (K4).
        let mut waker = cx.waker().clone();
        let (device, entry) = (Arc::clone(&self.device), self.entry);
        let mut waiting = device.fatal.0.lock();
        let closing = waiting.is_closing.then_some(Error::Closing);
        if let Some(reason) = waiting.reason.or(closing) {
            drop(waiting);
            self.entry = None;
            return Poll::Ready(reason);
        }
        let place = waiting.wakers.iter_mut().find(|(id, _)| Some(*id) == entry);
        if let Some((_, old)) = place {
            std::mem::swap(old, &mut waker);
            drop(waiting);
            return Poll::Pending;
        }
        let id = waiting.next;
        waiting.next += 1;
        waiting.wakers.push((id, waker));
        drop(waiting);
        self.entry = Some(id);
        Poll::Pending
    }
}

impl Drop for Fatal {
    fn drop(&mut self) {
        let Some(entry) = self.entry else { return };
        let waker = {
            let mut waiting = self.device.fatal.0.lock();
            let place = waiting.wakers.iter().position(|&(id, _)| id == entry);
            place.map(|n| waiting.wakers.swap_remove(n))
        };
        drop(waker);
    }
}

impl fmt::Debug for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fatal")
            .field("device", &self.device)
            .field("reason", &self.device.fatal.reason())
            .finish()
    }
}
