//! A visit of a thread to the driver, and its time.

use crate::clock::Instant;
use crate::engine::Engine;

/// The first step of the holder of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    /// Sends what was posted.
    Send,
    /// Receives packets, after the answers to earlier ones have been sent.
    Receive,
    /// Receives packets and sends.
    Both,
    /// As the engine's thread: it receives packets and sends, and clients that reply at once send their
    /// acknowledgements.
    Attend,
}

/// The time of a turn: read once, and only if it is asked for, since most looks for packets find none.
pub(in crate::port) struct TurnTime<'p> {
    engine: &'p Engine,
    read: Option<Instant>,
}

impl<'p> TurnTime<'p> {
    /// `read`: the time, if it was read just now.
    pub(super) fn new(engine: &'p Engine, read: Option<Instant>) -> Self {
        Self { engine, read }
    }

    #[inline]
    pub(in crate::port) fn now(&mut self) -> Instant {
        *self.read.get_or_insert_with(|| self.engine.now())
    }
}
