//! The threads of a NIC: commands, events, the timer, and what wakes them.

pub(crate) mod bell;
pub(crate) mod event;
pub(crate) mod lane;
pub(crate) mod timer;
