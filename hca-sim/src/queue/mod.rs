//! What queues are made of: sizes, counters, entries in memory. It names nothing above it.

pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod removed;
