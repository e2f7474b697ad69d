//! The parts of queues: sizes, counters, state words, entries in memory, threads that poll.

pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod poller_thread;
pub(crate) mod removed;
pub(crate) mod word;
