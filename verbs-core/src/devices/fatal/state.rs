//! The tasks and queues that are told when a device has become unusable. Of the completion queues it knows only that
//! there are some.

use std::task::Waker;

use crate::error::Error;
use crate::sync::Weak;
use crate::sync::plain::Mutex;

/// Why a device can no longer be used, and the tasks and queues that want to know.
pub(crate) struct FatalState<Q: ?Sized>(Mutex<Waiting<Q>>);

struct Waiting<Q: ?Sized> {
    reason: Option<Error>,
    /// The device's close was accepted. Its queues, if it waits for them, still hear of its end.
    is_closing: bool,
    /// Names the next entry of `wakers`.
    next: u64,
    wakers: Vec<(u64, Waker)>,
    queues: Vec<Weak<Q>>,
}

/// The tasks and queues that the end of a device concerns.
#[must_use = "they have to be told"]
pub(crate) struct Concerned<Q: ?Sized> {
    wakers: Vec<(u64, Waker)>,
    queues: Vec<Weak<Q>>,
}

impl<Q: ?Sized> Default for FatalState<Q> {
    fn default() -> Self {
        Self(Mutex::new(Waiting {
            reason: None,
            is_closing: false,
            next: 0,
            wakers: Vec::new(),
            queues: Vec::new(),
        }))
    }
}

impl<Q: ?Sized> FatalState<Q> {
    /// Why the device can no longer be used; `None` while it can.
    pub(crate) fn reason(&self) -> Option<Error> {
        self.0.lock().reason
    }

    /// Has the queue fired when the device becomes unusable. `true`: it is.
    pub(crate) fn watch(&self, queue: Weak<Q>) -> bool {
        let mut waiting = self.0.lock();
        let queues = &mut waiting.queues;
        // Queues leave nothing here when they go. What has gone is looked for when the list is full, so
        // that each queue pays for one look on average.
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(queue);
        waiting.reason.is_some()
    }

    /// The device has become unusable: returns the tasks and queues that have to be told. `None`: they were told before.
    pub(crate) fn end(&self, reason: Error) -> Option<Concerned<Q>> {
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

    /// Why a future needs not wait any longer, or the entry under which its waker waits: `entry`, if it has one.
    pub(super) fn wait(&self, entry: Option<u64>, waker: &Waker) -> Result<Error, u64> {
        // Cloned and dropped under no lock (K4).
        let mut waker = waker.clone();
        let mut waiting = self.0.lock();
        let closing = waiting.is_closing.then_some(Error::Closing);
        if let Some(reason) = waiting.reason.or(closing) {
            drop(waiting);
            return Ok(reason);
        }
        let place = waiting.wakers.iter_mut().find(|(id, _)| Some(*id) == entry);
        if let Some((id, old)) = place {
            let id = *id;
            std::mem::swap(old, &mut waker);
            drop(waiting);
            return Err(id);
        }
        let id = waiting.next;
        waiting.next += 1;
        waiting.wakers.push((id, waker));
        Err(id)
    }

    /// Takes a waker out whose future has gone.
    pub(super) fn forget(&self, entry: u64) {
        let waker = {
            let mut waiting = self.0.lock();
            let place = waiting.wakers.iter().position(|&(id, _)| id == entry);
            place.map(|n| waiting.wakers.swap_remove(n))
        };
        drop(waker);
    }

    /// The device's close was accepted: futures wait no longer. Returns the tasks that have to be told.
    pub(crate) fn close(&self) -> Concerned<Q> {
        let mut waiting = self.0.lock();
        waiting.is_closing = true;
        Concerned {
            wakers: std::mem::take(&mut waiting.wakers),
            queues: Vec::new(),
        }
    }
}

impl<Q: ?Sized> Concerned<Q> {
    /// Wakes the tasks by `wake`, which returns whatever a waker does, and tells the queues that are left by `tell`. Hold no
    /// lock.
    pub(crate) fn tell(self, wake: impl Fn(Waker), tell: impl Fn(&Q)) {
        for (_, waker) in self.wakers {
            wake(waker);
        }
        for queue in self.queues.iter().filter_map(Weak::upgrade) {
            tell(&queue);
        }
    }
}
