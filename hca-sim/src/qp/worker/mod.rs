//! The machine of a queue pair: carries out what its posters could not, waits, flushes.
//!
//! Work requests wait in the send ring. Whoever has a reason calls [`QueuePair::turn`]: the poster who
//! put one there, who posts the receive that was missing, a timer, the end of a grace period, a control
//! verb. One thread at a time is *the holder* and does the work; others only leave a mark, and the
//! holder goes round again. So nobody waits, and no reason is lost.
//!
//! What the work leads to for others is collected and done when the holder has let go: events are
//! delivered, verbs completed, queue pairs taken to ERR.

mod flush;
mod loopback;
pub(crate) mod packet_qp;
mod packets;
mod turn;

use verbs_core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire};
use verbs_core::sync::{Mutex, OnceLock};

use crate::clock::Instant;
use crate::qp::worker::packet_qp::PacketQp;
use crate::queue::base::combiner::Combiner;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// Who holds the machine. If packets carry its messages, whoever holds the port's driver does.
    turns: Combiner,
    /// There is reason to try again before the deadline.
    kicked: AtomicBool,
    /// Grace periods that must be over before the rings may be flushed.
    pub(crate) closing: AtomicU32,
    /// Uncontended: only the holder locks it.
    pub(crate) machine: Mutex<Machine>,
    /// The connection over packets, from the first transition to INIT on; most have none. Uncontended as
    /// well.
    exchange: OnceLock<Box<Mutex<PacketQp>>>,
    /// It is on the driver's list already.
    pub(crate) listed: AtomicBool,
}

/// What the holder has to know from one turn to the next.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// Until when the oldest work request waits.
    wait: Option<Instant>,
    /// What is left of the retries of the oldest work request; `None` before the first.
    rnr_left: Option<u8>,
    retries_left: Option<u8>,
    /// The position of a work request that ended in error; the queue pair is on its way to ERR. It stays
    /// in the ring until then, so that the poster does not take the ring for drained.
    pub(crate) failed: Option<u32>,
}

impl Worker {
    /// The connection over packets, if there is one.
    pub(crate) fn exchange(&self) -> Option<&Mutex<PacketQp>> {
        self.exchange.get().map(|exchange| &**exchange)
    }

    /// Gives the queue pair a connection over packets.
    pub(crate) fn set_exchange(&self, exchange: PacketQp) {
        // Under the lock of the link nobody else does this.
        let _ = self.exchange.set(Box::new(Mutex::new(exchange)));
    }

    /// Whether the rings wait for a grace period to be flushed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Acquire) != 0
    }
}
