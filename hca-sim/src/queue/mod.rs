//! Queues in memory: what posters, pollers, the peer and the transport share of them. It names nothing above it.

pub(crate) mod base;
pub(crate) mod cq;
pub(crate) mod cqe_inline;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod srq;
