//! What the ends of a connection say to each other, and how a connect ends.

/// What both ends have to agree on, and how the queue pair is set up for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmParam {
    /// READs and atomics that the queue pair serves at a time (IRD).
    pub responder_resources: u8,
    /// READs and atomics that may be outstanding (ORD).
    pub initiator_depth: u8,
    /// Transport retries, 7 at most. RDMA over TCP has none of its own.
    pub retry_count: u8,
    /// Retries after receiver-not-ready; 7 means for ever. Nothing to RDMA over TCP.
    pub rnr_retry_count: u8,
    /// Delay that the queue pair asks for when it is not ready, by its code (IBTA vol. 1, table 45). Nothing to
    /// RDMA over TCP.
    pub min_rnr_timer: u8,
    /// Type of service of the connection's packets.
    pub tos: u8,
}

impl Default for CmParam {
    /// No READs and atomics; 7 retries of either kind, and a delay of 0.64 ms.
    fn default() -> Self {
        Self {
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
            tos: 0,
        }
    }
}

/// How a connect ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmReply {
    /// The connection is there; the queue pair is in RTS.
    Established(Box<[u8]>),
    /// The peer's service rejected it, and says so.
    Rejected(Box<[u8]>),
    /// There is no listener there.
    Refused,
    /// The peer's connection manager rejected it by itself, for that reason (IBTA vol. 1, 12.6.7.2).
    ManagerRejected(u16),
    /// The peer cannot be reached.
    Unreachable,
    /// The peer did not answer.
    TimedOut,
}
