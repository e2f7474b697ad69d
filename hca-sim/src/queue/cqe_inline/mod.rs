//! Inline CQEs: short SENDs whose bytes are carried in the completion of the receive, as mlx5's scatter-to-CQE does.
//!
//! Between two threads a message costs as many transfers of cache lines as its sender touches lines that the receiver
//! has written: the receive, the memory, and the entry of the completion queue. An inline CQE needs only the last one.
//! The sender writes the position of the receive that it takes, and the bytes, at most 32, into the entry; the polling
//! thread reads the receive, checks its key and *scatters* the bytes into the memory. Within one thread that is slower,
//! so no inline CQE is sent there.
//!
//! # When
//!
//! The poster decides, when it looks for credits: the receives were last posted by another thread, and it has not had
//! to recall inline CQEs recently. It asks the producer of receives which ones are suitable (*inline credits*,
//! [`crate::queue::recv`]), and sets INLINE_CQES in the direct path's word, so that the short paths no longer apply. A
//! SEND becomes an inline CQE if it has at most 32 bytes, the next receive has an inline credit (one piece with room
//! for them, under a key that was in order when it was posted), and this thread alone pushes to the completion queue,
//! which was never armed, and has no more queue pairs than its consumer can know. Everything else is placed as before,
//! but not while inline CQEs are under way: what is sent later must not be in memory earlier.
//!
//! # Which thread scatters
//!
//! ```text
//!   the ring's door is open                            the poller, under a pin
//!   it was shut, and the grace period is over          the thread that shut it
//! ```
//!
//! It is shut by a thread that cannot leave inline CQEs to the next poll: one that changes the state of the receiving
//! queue pair, so that nothing is written for it after the change (K11); and one with a later message that is to be
//! placed, which is given to the machine and *recalls inline CQEs*
//! ([`recall`](mod@crate::qp::recall)). Both scatter what waits and set aside the content of its
//! completions ([`CqRing::scatter`](crate::queue::cq::CqRing::scatter)) until they are polled. A poller that reaches an
//! inline CQE while the door is shut finds nothing more to poll: no thread waits, and the thread that shut the door
//! depends on no poll.
//!
//! *The race that looks bad*: inline CQEs are scattered by another thread while the consumer polls, gets the
//! completion, and fills the buffer again, which would be overwritten. A poller is inside a pin that the door has
//! admitted from the look at the inline CQE until the queue's head is past it; so the inline CQEs that wait after the
//! grace period are exactly those that were not polled.
//!
//! # What differs
//!
//! The sender sees success when the completion is written. If the region of the receive is deregistered before that is
//! polled, the receive completes with a local protection error and its queue pair goes to ERR, where a message that is
//! placed, or sent as packets, either was complete before or fails at both ends. A receive that an inline CQE has taken
//! counts as posted until it is polled.

use std::fmt;

use verbs_core::mem::{MrTable, Pin, Who};
use verbs_core::slab_alloc::SlabArc;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{Access, Piece, Qpn, WcCause};

use crate::queue::base::events::QpEvents;
use crate::queue::base::memory::reason;
use crate::queue::recv::{Entries, RecvRing};

#[cfg(all(test, verbs_loom))]
mod models;

/// Queue pairs whose inline CQEs a consumer scatters without looking them up, which takes a lock. If a completion queue
/// has more queue pairs, they get no inline CQEs.
pub(crate) const KNOWN: usize = 4;

/// Bytes that an inline CQE can carry.
pub(crate) const BYTES_MAX: u32 = 32;

/// A message in the entry of a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineCqe {
    /// The queue pair that it was sent to.
    pub(crate) qpn: Qpn,
    /// The position of the receive that it takes.
    pub(crate) receive: u32,
    pub(crate) len: u32,
    /// Bytes beyond `len` have no meaning.
    pub(crate) bytes: [u64; 4],
}

/// The outcome of scattering an inline CQE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scattered {
    /// The `wr_id` of the receive.
    pub(crate) wr_id: u64,
    /// Why it could not be placed.
    pub(crate) fault: Option<u32>,
}

/// The content of the completion of an inline CQE that was scattered before it was polled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aside {
    pub(crate) qpn: Qpn,
    pub(crate) receive: u32,
    pub(crate) scattered: Scattered,
}

impl Aside {
    /// Whether it belongs to that inline CQE. A new queue pair may have the number of one that no longer exists, but
    /// the inline CQEs of the earlier one come first.
    pub(crate) fn is_of(&self, inline_cqe: &InlineCqe) -> bool {
        (self.qpn, self.receive) == (inline_cqe.qpn, inline_cqe.receive)
    }
}

/// The objects that are needed to scatter the inline CQEs of a queue pair.
pub(crate) struct Scatter {
    pub(crate) qpn: Qpn,
    pub(crate) pd: u32,
    pub(crate) entries: Entries,
    pub(crate) ring: SlabArc<RecvRing>,
    pub(crate) mrs: Arc<MrTable>,
    pub(crate) qp: Weak<dyn QpEvents>,
}

impl Scatter {
    /// Places the bytes of an inline CQE. Called by a poller that the door has admitted under this pin, and by the
    /// thread that shut the door.
    #[inline(always)]
    pub(crate) fn place(&self, pin: &Pin, inline_cqe: &InlineCqe) -> Scattered {
        let (wr_id, piece) = self.entries.taken(inline_cqe.receive);
        let (key, right) = (piece.key(), Access::LOCAL_WRITE);
        let window = self
            .mrs
            .check_at_once(pin, key, piece.addr, inline_cqe.len, &self.pd, right);
        let fault = match window {
            Some(window) => {
                let bytes = inline_cqe.bytes.map(u64::to_ne_bytes);
                let written = window.write_short_from(bytes.as_flattened());
                written.err().map(|_| WcCause::Unmapped.code())
            }
            None => self.place_slow(pin, inline_cqe, piece),
        };
        self.ring.scattered(inline_cqe.receive);
        Scattered { wr_id, fault }
    }

    /// When checking the window takes more than one look, or there is no window: returns the reason.
    #[cold]
    #[inline(never)]
    fn place_slow(&self, pin: &Pin, inline_cqe: &InlineCqe, piece: Piece) -> Option<u32> {
        let qpn = self.qpn.value();
        let (who, right) = (Who { pd: self.pd, qpn }, Access::LOCAL_WRITE);
        let span = self
            .mrs
            .find(pin, piece.key(), piece.addr, inline_cqe.len, who, right);
        let Some(span) = span else {
            return Some(reason(&self.mrs, pin));
        };
        let written = span.write_from(inline_cqe.bytes.map(u64::to_ne_bytes).as_flattened());
        written.err().map(|_| WcCause::Unmapped.code())
    }
}

impl fmt::Debug for Scatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scatter")
            .field("qpn", &self.qpn)
            .finish_non_exhaustive()
    }
}
