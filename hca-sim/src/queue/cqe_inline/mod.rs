//! Riders: short SENDs whose bytes ride in the completion of the receive.
//!
//! Between two threads a message costs as many transfers of cache lines as its sender touches lines that
//! the receiver has written: the receive, the memory, and the entry of the completion queue. A rider
//! needs the last one only. The sender writes which receive it takes and the bytes, at most 32, into the
//! entry; whoever polls it reads the receive, checks its key and *unloads* the bytes into the memory. In
//! one thread that is slower, so there no message rides.
//!
//! # When
//!
//! The poster decides, when it looks for credits: the receives were last posted by another thread, and it
//! has not had to call riders back lately. It asks the producer of receives which ones will do
//! ([`crate::queue::recv`], berths), and sets LENDS in the direct path's word, so that the short ways no
//! longer apply. A SEND rides if it has at most 32 bytes, the next receive is a berth (one piece with room
//! for them, under a key that was in order when it was posted), and this thread alone pushes to the
//! completion queue, which was never armed, and has no more queue pairs than its consumer can know.
//! Everything else is placed as ever, but not while riders are under way: what is sent later must not be in
//! memory earlier.
//!
//! # Who unloads
//!
//! ```text
//!   the ring's door is open                            the poller, under a pin
//!   it was shut, and the grace period is over          who has shut it
//! ```
//!
//! It is shut by whoever cannot leave riders to the next poll: a change of state of the receiving queue
//! pair, so that nothing is written for it when that is over (K11); and a later message that is to be
//! placed, which goes to the machine and *calls riders back* ([`QueuePair::recall`](crate::qp::QueuePair::recall)). Both unload what
//! waits and set aside what its completions say ([`CqRing::unload`](crate::queue::cq::CqRing::unload)), until they
//! are polled. A poller who comes to a rider while the door is shut finds nothing more to poll: nobody
//! waits, and who has shut it needs nobody's poll.
//!
//! *The race that looks bad*: riders are unloaded by somebody else while the consumer polls, gets the
//! completion, and fills the buffer anew, which would be overwritten. A poller is inside a pin that the
//! door has admitted from the look at the rider until the queue's head is past it; so after the grace
//! period those that wait are those that nobody has polled.
//!
//! # What differs
//!
//! The sender is told of success when the completion is written. If the region of the receive is
//! deregistered before that is polled, the receive completes with a local protection error and its queue
//! pair goes to ERR, where a message that is placed, or goes as packets, either was there before or fails
//! at both ends. A receive that a rider has taken counts as posted until it is polled.

use std::fmt;

use verbs_core::mem::{MrTable, Pin, Who};
use verbs_core::sync::{Arc, Weak};
use verbs_core::yard::Common;
use verbs_core::{Access, Piece, Qpn};

use crate::queue::base::events::QpEvents;
use crate::queue::base::memory::reason;
use crate::queue::recv::{Entries, RecvRing};

#[cfg(all(test, verbs_loom))]
mod models;

/// Queue pairs whose riders a consumer unloads without looking them up, which takes a lock. To those of queues of
/// more queue pairs nobody rides.
pub(crate) const KNOWN: usize = 4;

/// Bytes that can ride.
pub(crate) const BYTES_MAX: u32 = 32;

/// A message in the entry of a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rider {
    /// The queue pair that it was sent to.
    pub(crate) qpn: Qpn,
    /// The position of the receive that it takes.
    pub(crate) receive: u32,
    pub(crate) len: u32,
    /// What is beyond `len` means nothing.
    pub(crate) bytes: [u64; 4],
}

/// What became of a rider when it was unloaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unloaded {
    /// Of the receive.
    pub(crate) wr_id: u64,
    /// Why it could not be placed.
    pub(crate) fault: Option<u32>,
}

/// What the completion of a rider says that was unloaded before it was polled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aside {
    pub(crate) qpn: Qpn,
    pub(crate) receive: u32,
    pub(crate) unloaded: Unloaded,
}

impl Aside {
    /// Whether it is of that rider. A queue pair may have the number of one that is gone, but that one's
    /// come first.
    pub(crate) fn is_of(&self, rider: &Rider) -> bool {
        (self.qpn, self.receive) == (rider.qpn, rider.receive)
    }
}

/// What it takes to unload the riders of a queue pair.
pub(crate) struct Berths {
    pub(crate) qpn: Qpn,
    pub(crate) pd: u32,
    pub(crate) entries: Entries,
    pub(crate) ring: Common<RecvRing>,
    pub(crate) mrs: Arc<MrTable>,
    pub(crate) qp: Weak<dyn QpEvents>,
}

impl Berths {
    /// Places the bytes of a rider. For the poller whom the door has admitted under this pin, and for who
    /// has shut it.
    #[inline(always)]
    pub(crate) fn unload(&self, pin: &Pin, rider: &Rider) -> Unloaded {
        let (wr_id, piece) = self.entries.taken(rider.receive);
        let (key, right) = (piece.key(), Access::LOCAL_WRITE);
        let window = self
            .mrs
            .check_at_once(pin, key, piece.addr, rider.len, &self.pd, right);
        let fault = match window {
            Some(window) => {
                let bytes = rider.bytes.map(u64::to_ne_bytes);
                window.write_short_from(bytes.as_flattened());
                None
            }
            None => self.unload_slow(pin, rider, piece),
        };
        self.ring.unloaded(rider.receive);
        Unloaded { wr_id, fault }
    }

    /// When the window takes more than a look, or there is none: why.
    #[cold]
    #[inline(never)]
    fn unload_slow(&self, pin: &Pin, rider: &Rider, piece: Piece) -> Option<u32> {
        let qpn = self.qpn.value();
        let (who, right) = (Who { pd: self.pd, qpn }, Access::LOCAL_WRITE);
        let span = self
            .mrs
            .find(pin, piece.key(), piece.addr, rider.len, who, right);
        let Some(span) = span else {
            return Some(reason(&self.mrs, pin));
        };
        span.write_from(rider.bytes.map(u64::to_ne_bytes).as_flattened());
        None
    }
}

impl fmt::Debug for Berths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Berths")
            .field("qpn", &self.qpn)
            .finish_non_exhaustive()
    }
}
