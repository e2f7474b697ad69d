//! What a queue pair shows those who post to it.

use verbs_core::mem::TouchWord;
use verbs_core::sync::atomic::AtomicBool;

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
pub(crate) struct Gate {
    /// The state, and what else [`flag`] names.
    pub(crate) word: TouchWord,
    /// A sender waits for a receive.
    pub(crate) wanted: AtomicBool,
}
