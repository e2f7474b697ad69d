//! Bounds of queues, messages and ports, with their reasons.

/// The only port.
pub(crate) const PORT: u8 = 1;

/// Scatter-gather elements of one work request. Work requests of that many are gathered and checked on the
/// stack.
pub(crate) const MAX_SGE: usize = 16;

/// Inline bytes of one work request.
pub(crate) const MAX_INLINE: usize = 256;

/// Largest message in bytes (IBTA vol. 1, 9.7.7).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// READs and atomics outstanding on one connection, as requester and as responder: the responder remembers this many,
/// in memory that is allocated with the queue pair.
pub(crate) const RD_ATOMIC: u32 = 128;

/// Work requests on one queue: positions of completions are compared by half-circle, and a queue of
/// this depth takes some megabytes.
pub(crate) const QP_WR: u32 = 1 << 15;

/// Receives on one shared receive queue.
pub(crate) const SRQ_WR: u32 = QP_WR;

/// Entries of one completion queue, 64 bytes each.
pub(crate) const CQE: u32 = 1 << 22;

/// Multicast groups that a port can be in: each packet is looked up among them.
pub(crate) const MCAST_GROUPS: u32 = verbs_link::GROUPS_MAX;

/// Queue pairs attached to one multicast group: each packet is copied to all of them.
pub(crate) const MCAST_QPS: u32 = 64;
