//! Resizing a completion queue.
//!
//! ```text
//! kill the lane -> grace period -> copy what waits -> put the new lane in its place -> call who waits
//! ```
//!
//! The new lane is allocated before anything else is done. From the kill on, pushers are refused as they
//! are by a queue that changes hands, and are called at the end; nobody waits. The consumer polls on all
//! the time. What waits is copied to the same positions, so that the consumer can go over to the new
//! lane whenever it finds nothing in the old one: what it has polled is behind it there, too. Without
//! pushers, nothing comes to the old lane that is not in the new one.
//!
//! Where packets carry messages, who holds the port's driver pushes and must not be refused: there the
//! holder changes the lane, between two rounds, when nobody else is inside.
//!
//! What nobody loses: a push that was under way is in the old lane when the grace period is over. *The
//! race that looks bad*: the queue is armed for the first time while its lane is replaced, so that the
//! flag is put into a mode that nobody looks at. The lock of the latest lane orders the two.

use std::collections::VecDeque;

use verbs_core::mem::{Touched, grace};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Attr, Error, Why};

use super::CqRing;
use super::lane::Lane;
use crate::effects::Effects;
use crate::fit::renew_landings;
use crate::port::Port;

/// A resize that was asked for.
pub(super) struct Resize {
    lane: Lane,
    port: Arc<Port>,
    done: Box<dyn FnOnce(Result<u32, Error>) + Send>,
}

impl CqRing {
    /// Room for a resize to that many entries, which is a power of two.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn next_lane(&self, cqe: u32) -> Result<Lane, Error> {
        Lane::new(cqe, Arc::clone(&self.consumer), self.clock.clone(), false)
    }

    /// Gives the queue that lane, and tells its size; [`Error::Mismatch`] if more waits than fits.
    /// Outside pins and locks. Resizes of one queue are done one after the other.
    pub(crate) fn resize(
        self: &Arc<Self>,
        lane: Lane,
        port: Arc<Port>,
        done: impl FnOnce(Result<u32, Error>) + Send + 'static,
    ) {
        let done = Box::new(done);
        let resize = Resize { lane, port, done };
        let mut resizes = self.resizes.lock();
        if let Some(later) = resizes.as_mut() {
            return later.push_back(resize);
        }
        *resizes = Some(VecDeque::new());
        drop(resizes);
        self.begin(resize);
    }

    fn begin(self: &Arc<Self>, resize: Resize) {
        let ring = Arc::clone(self);
        if let Some(driver) = Arc::clone(&resize.port).driver() {
            let port = Arc::clone(&resize.port);
            return driver.alone(&port, move |effects| ring.change_at_once(resize, effects));
        }
        grace::after(self.kill_lane(), move || {
            let over = ring.change_lane(resize);
            ring.end(over);
        });
    }

    /// By whoever holds the driver, who refuses nobody: changes the lane if nobody is inside just now,
    /// and otherwise gives it back and begins again when they have left.
    fn change_at_once(self: &Arc<Self>, resize: Resize, effects: &mut Effects) {
        #[derive(Default)]
        struct Put {
            is_over: bool,
            off: Option<Resize>,
        }
        let put = Arc::new(Mutex::new(Put::default()));
        let (ring, theirs) = (Arc::clone(self), Arc::clone(&put));
        grace::after(self.kill_lane(), move || {
            let off = {
                let mut put = theirs.lock();
                put.is_over = true;
                put.off.take()
            };
            if let Some(resize) = off {
                ring.begin(resize);
            }
        });
        let mut put = put.lock();
        if put.is_over {
            let over = self.change_lane(resize);
            let ring = Arc::clone(self);
            effects.after.push(Box::new(move || ring.end(over)));
        } else {
            self.revive_lane();
            put.off = Some(resize);
        }
    }

    fn kill_lane(&self) -> Touched {
        // Under the lock, so that nobody begins to convert a lane that is dead.
        self.latest.lock().mode().kill().unwrap_or(Touched::NOBODY)
    }

    fn revive_lane(&self) {
        let latest = self.latest.lock();
        latest.mode().revive(latest.last_mode());
    }

    /// Puts the new lane in the place of the old one, if it is large enough. Nobody pushes.
    fn change_lane(&self, resize: Resize) -> Over {
        let Resize { lane, port, done } = resize;
        let (old, cqe) = (self.lane(), lane.len());
        let fits = lane.take_over(&old);
        if fits {
            let mut latest = self.latest.lock();
            let _ = lane.mode().update(|_| Some(old.last_mode()));
            // In this order, under the lock: whoever finds the new one knows that the old one is not
            // the last.
            old.replace();
            *latest = Arc::new(lane);
        } else {
            self.revive_lane();
        }
        let (attr, why) = (Attr::Cqe, Why::StillUsed);
        Over {
            port,
            done,
            resized: fits.then_some(cqe).ok_or(Error::Mismatch { attr, why }),
        }
    }

    /// Tells everybody that a resize is over. Outside pins and locks.
    fn end(self: &Arc<Self>, over: Over) {
        if over.resized.is_ok() {
            renew_landings(&over.port.link, self);
        }
        self.call_waiting();
        (over.done)(over.resized);
        let next = {
            let mut resizes = self.resizes.lock();
            let next = resizes.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                *resizes = None;
            }
            next
        };
        if let Some(next) = next {
            self.begin(next);
        }
    }
}

/// What is left to be done for a resize.
struct Over {
    port: Arc<Port>,
    done: Box<dyn FnOnce(Result<u32, Error>) + Send>,
    resized: Result<u32, Error>,
}
