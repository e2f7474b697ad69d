//! A link within one process: every port attached to it reaches every other.
//!
//! Messages do not pass through it; a sender places them itself, as long as the link is bare. An observer that has to
//! see messages in transit, such as an injected fault, closes the senders' direct doors.

use std::fmt;

use verbs_core::sync::Arc;
use verbs_core::{Psn, Seed};

use crate::link::Directory;
use crate::qp::QueuePair;

/// A loopback link. Clones are the same link.
///
/// ```
/// # use hca_sim::{Hca, Loopback};
/// let link = Loopback::with_seed(7);
/// let (a, b) = (Hca::on(&link).build(), Hca::on(&link).build());
/// assert_ne!(a.lid(), b.lid());
/// ```
#[derive(Clone)]
pub struct Loopback {
    pub(crate) directory: Arc<Directory<QueuePair>>,
}

impl Default for Loopback {
    fn default() -> Self {
        Self::with_seed(0)
    }
}

impl Loopback {
    /// A link whose numbers are drawn from the seed: GUIDs, queue pair numbers, packet sequence numbers. They repeat,
    /// and are no secret.
    pub fn with_seed(seed: u64) -> Self {
        Self::seeded(Seed::from(seed))
    }

    pub(crate) fn seeded(seed: Seed) -> Self {
        Self {
            directory: Arc::new(Directory::seeded(seed)),
        }
    }

    /// Inverts one bit of the payload of one message: the `nth` of those that carry data, counted from 0 over the whole
    /// link from now on. Nothing on the path notices, as if a switch had bad memory.
    ///
    /// From now on senders cannot place their messages themselves, which makes them slower.
    pub fn flip_bit(&self, nth: u64) {
        self.directory.flip_bit(nth);
        let links = self.directory.lock();
        for qp in links.queue_pairs() {
            // A poster that is inside places that one message unseen, as if it had been posted before.
            let _ = qp.repair(&links);
        }
    }

    /// A first packet sequence number that is hard to guess.
    pub fn draw_psn(&self) -> Psn {
        self.directory.draw_psn()
    }
}

impl fmt::Debug for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let links = self.directory.lock();
        f.debug_struct("Loopback")
            .field("ports", &links.ports())
            .field("queue_pairs", &links.queue_pairs().count())
            .finish()
    }
}
