//! A command, from its receipt to its answer: task, buffers, transfers, and the work of the logical unit.

pub(crate) mod carry;
pub(crate) mod pool;
pub(crate) mod server;
pub(crate) mod task;
pub(crate) mod transfer;
pub(crate) mod work;
