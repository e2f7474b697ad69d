//! Resizing a completion queue.
//!
//! ```text
//! kill the buffer -> grace period -> copy what waits -> put the new buffer in its place -> call the waiters
//! ```
//!
//! The new buffer is allocated before anything else is done. From the kill on, pushers are refused as they are by a
//! queue that changes hands, and are called at the end; no thread waits. The consumer continues to poll. What waits is
//! copied to the same positions, so that the consumer can switch to the new buffer whenever it finds nothing in the old
//! one: the new one, too, counts what it has polled as consumed. Without pushers, nothing is added to the old buffer
//! that is not in the new one.
//!
//! Where packets carry messages, the thread that holds the port's driver pushes and must not be refused: it
//! changes the buffer itself, between two rounds, when no other thread is inside.
//!
//! No push is lost: one that was under way is in the old buffer when the grace period is over. *The race that looks
//! bad*: the queue is armed for the first time while its buffer is replaced, so that the flag is put into a mode word
//! that is no longer read. The lock of the latest buffer orders the two.

use verbs_core::Error;
use verbs_core::mem::grace;
use verbs_core::sync::{Arc, Mutex};

use crate::effects::{Effect, Effects};
use crate::port::Port;
use crate::qp::pairing::renew_direct_paths;
use crate::queue::cq::{CqBuffer, CqRing};

/// Gives the queue that buffer, and returns its size; [`Error::Mismatch`] if more waits than fits. Called outside pins
/// and locks. Resizes of one queue are done one after the other.
pub(crate) fn resize(
    ring: &Arc<CqRing>,
    buffer: CqBuffer,
    port: Arc<Port>,
    done: impl FnOnce(Result<u32, Error>) + Send + 'static,
) {
    let resize = Resize {
        ring: Arc::clone(ring),
        buffer,
        port,
        done: Box::new(done),
    };
    ring.in_turn(Box::new(move || resize.begin()));
}

/// A resize that was asked for.
struct Resize {
    ring: Arc<CqRing>,
    buffer: CqBuffer,
    port: Arc<Port>,
    done: Box<dyn FnOnce(Result<u32, Error>) + Send>,
}

/// The rest of a resize.
struct Over {
    ring: Arc<CqRing>,
    port: Arc<Port>,
    done: Box<dyn FnOnce(Result<u32, Error>) + Send>,
    resized: Result<u32, Error>,
}

impl Resize {
    fn begin(self) {
        let port = Arc::clone(&self.port);
        if let Some(driver) = port.driver() {
            return driver.alone(&port, move |effects| self.change_at_once(effects));
        }
        grace::after(self.ring.kill_lane(), move || self.change_lane().end());
    }

    /// Called by the holder of the driver, which refuses no pusher: changes the buffer if no other thread is inside
    /// just now, and otherwise gives it back and begins again when they have left.
    fn change_at_once(self, effects: &mut Effects) {
        #[derive(Default)]
        struct Put {
            is_over: bool,
            off: Option<Resize>,
        }
        let put = Arc::new(Mutex::new(Put::default()));
        let theirs = Arc::clone(&put);
        grace::after(self.ring.kill_lane(), move || {
            let off = {
                let mut put = theirs.lock();
                put.is_over = true;
                put.off.take()
            };
            if let Some(resize) = off {
                resize.begin();
            }
        });
        let mut put = put.lock();
        if put.is_over {
            let over = self.change_lane();
            effects.add(Effect::Run(Box::new(move || over.end())));
        } else {
            self.ring.revive_lane();
            put.off = Some(self);
        }
    }

    fn change_lane(self) -> Over {
        let Self {
            ring,
            buffer,
            port,
            done,
        } = self;
        let resized = ring.change_lane(buffer);
        Over {
            ring,
            port,
            done,
            resized,
        }
    }
}

impl Over {
    /// Reports the end of a resize to all that wait for it. Called outside pins and locks.
    fn end(self) {
        if self.resized.is_ok() {
            renew_direct_paths(&self.port.link, &self.ring);
        }
        self.ring.call_waiting();
        (self.done)(self.resized);
        self.ring.turn_is_over();
    }
}
