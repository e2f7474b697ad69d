//! What a queue pair shows those who post to it.

use verbs_core::mem::TouchWord;
use verbs_core::sync::atomic::{AtomicU8, Ordering::Relaxed};

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

/// What posters of receives look at each time: one line.
#[derive(Debug)]
pub(crate) struct QpWord {
    /// The state, and what else [`flag`] names.
    pub(crate) word: TouchWord,
    /// What the sender asks of who posts: [`CALL`](Self::CALL), [`BERTHS`](Self::BERTHS).
    pub(crate) asked: AtomicU8,
}

impl QpWord {
    /// It waits for a receive and wants to be called.
    pub(crate) const CALL: u8 = 1;
    /// It wants to know which receives riders may have.
    pub(crate) const BERTHS: u8 = 1 << 1;

    /// Asks, or asks no more. For the sender alone.
    pub(crate) fn ask(&self, what: u8, wanted: bool) {
        let before = self.asked.load(Relaxed);
        let now = before & !what | if wanted { what } else { 0 };
        self.asked.store(now, Relaxed);
    }
}
