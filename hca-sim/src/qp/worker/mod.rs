//! The machine of a queue pair: carries out what its posters could not, waits, flushes.
//!
//! Work requests wait in the send ring. Any thread that has a reason calls [`QueuePair::turn`]: the poster that put one
//! there, the poster of the receive that was missing, a timer, the end of a grace period, a control verb. One thread at
//! a time is *the holder* and does the work; others only leave a mark, and the holder then makes another round. So no
//! thread waits, and no reason is lost.
//!
//! The effects of the work on other objects are collected and carried out after the holder has released the machine:
//! events are delivered, verbs completed, queue pairs taken to ERR.

mod flush;
mod loopback;
pub(in crate::qp) mod migration;
mod owes;
pub(crate) mod packet_qp;
mod packets;
mod stream;
pub(crate) mod target;
mod timer;
mod turn;

use verbs_core::WcStatus;
use verbs_core::combiner::Combiner;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire},
};
use verbs_core::sync::{Mutex, OnceLock};

use crate::clock::Instant;
use crate::port::ready::Mark;
use crate::qp::worker::owes::Owes;
use crate::qp::worker::packet_qp::PacketQp;
use crate::qp::worker::timer::RoundTimer;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// The holder of the machine. If packets carry its messages, the holder of the port's driver holds it.
    turns: Combiner,
    /// There is a reason to try again before the deadline.
    kicked: AtomicBool,
    /// The control state has a verb to complete, or an event to report.
    pub(in crate::qp) owes: Owes,
    /// Grace periods that must be over before the rings may be flushed; and [`Worker::SHARES`].
    pub(crate) closing: AtomicU32,
    /// Uncontended: only the holder locks it.
    pub(crate) machine: Mutex<WorkerState>,
    /// The connection over packets, from the first transition to INIT on; most have none. Uncontended as
    /// well.
    exchange: OnceLock<Box<Mutex<PacketQp>>>,
    /// The engine's call at its deadline.
    timer: RoundTimer,
    /// It is on the driver's list already.
    pub(crate) listed: Mark,
}

/// The holder's state from one turn to the next.
#[derive(Debug, Default)]
pub(crate) struct WorkerState {
    /// The end of the oldest work request's wait.
    wait: Option<Instant>,
    /// What is left of the retries of the oldest work request; `None` before the first.
    rnr_left: Option<u8>,
    retries_left: Option<u8>,
    oldest: Oldest,
}

/// How far an error of the oldest work request is.
// As small as that: each queue pair has room for it.
#[derive(Clone, Copy, Debug, Default)]
enum Oldest {
    /// There is none.
    #[default]
    Open,
    /// It is to end like that when the completion queue has changed hands. The responder was told already, if it saw it, so
    /// the work request cannot be tried again.
    Ends {
        status: WcStatus,
        at_responder: bool,
        why: u32,
    },
    /// The work request at that position has ended in error; the queue pair is about to go to ERR. The request stays in
    /// the ring until then, so that the poster does not take the ring for empty.
    Failed(u32),
}

impl Worker {
    /// The queue pair has to do with other programs (`target`), in the same word so that a round looks at one.
    const SHARES: u32 = 1 << 31;

    /// The connection over packets, if there is one.
    pub(crate) fn exchange(&self) -> Option<&Mutex<PacketQp>> {
        self.exchange.get().map(|exchange| &**exchange)
    }

    /// Gives the queue pair a connection over packets.
    pub(crate) fn set_exchange(&self, exchange: PacketQp) {
        // Under the lock of the link no other thread does this.
        let _ = self.exchange.set(Box::new(Mutex::new(exchange)));
    }

    /// Whether the rings wait for a grace period to be flushed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Acquire) & !Self::SHARES != 0
    }

    /// It has to do with other programs from now on.
    fn share(&self) {
        self.closing.fetch_or(Self::SHARES, AcqRel);
    }

    /// It has nothing to do with them, for its holder.
    fn keep_to_itself(&self) {
        self.closing.fetch_and(!Self::SHARES, AcqRel);
    }
}
