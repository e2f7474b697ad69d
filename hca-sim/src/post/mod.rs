//! The posters' ends of queues, which clients hold. Each has one owner, so that posting takes no lock.

pub(crate) mod recv;
pub(crate) mod send;
