//! What clients hold of queues: the posters' ends. Each has one owner, so that posting takes no lock.

pub(crate) mod recv;
pub(crate) mod send;
