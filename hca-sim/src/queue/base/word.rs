//! The part of a queue pair that its posters read.

use verbs_core::mem::TouchWord;
use verbs_core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// Parts of a queue pair's word.
pub(crate) mod flag {
    /// The state's number.
    pub(crate) const STATE: u32 = 0b111;
    /// Receives can be posted and need no flush.
    pub(crate) const TAKES_RECVS: u32 = 1 << 3;
    /// Destroyed.
    pub(crate) const GONE: u32 = 1 << 4;
    /// The device was removed.
    pub(crate) const REMOVED: u32 = 1 << 5;
}

/// What posters of receives read each time, and a fact for the poster of sends: one line.
#[derive(Debug)]
pub(crate) struct QpWord {
    /// The state, and the other parts that [`flag`] names.
    pub(crate) word: TouchWord,
    /// What the sender asks of the poster: [`CALL`](Self::CALL), [`INLINE_CREDITS`](Self::INLINE_CREDITS).
    pub(crate) asked: AtomicU8,
    /// The send queue was made smaller, and may hold more finished work requests than it has places.
    pub(crate) shrunk: AtomicBool,
}

impl QpWord {
    /// It waits for a receive and wants to be called.
    pub(crate) const CALL: u8 = 1;
    /// It wants to know which receives inline CQEs may take.
    pub(crate) const INLINE_CREDITS: u8 = 1 << 1;

    /// Asks, or stops asking. For the sender alone.
    pub(crate) fn ask(&self, what: u8, wanted: bool) {
        let before = self.asked.load(Relaxed);
        let now = before & !what | if wanted { what } else { 0 };
        self.asked.store(now, Relaxed);
    }
}
