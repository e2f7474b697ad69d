//! Why a benchmark could not be run.

use verbs_core::{BatchError, Error, PostError, WcStatus};

/// Why a benchmark could not be run. Each is one sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// A verb failed.
    #[error("cannot {doing}: {error}")]
    Verb { doing: &'static str, error: Error },
    /// There is no link.
    #[error("{0}")]
    Link(hca_sim::link::LinkError),
    /// There is no daemon to join.
    #[error("cannot use a `verbs host`: {0}")]
    Host(String),
    /// A connection manager could not be used.
    #[error("cannot use the connection manager: {0}")]
    Cm(verbs_cm::Error),
    /// A node of reliable datagrams could not be made.
    #[error("cannot open a node of RDS: {0}")]
    Rds(ulp_rds::Error),
    /// A datagram was not accepted.
    #[error("cannot send a datagram: {0}")]
    Datagram(ulp_rds::SendError),
    /// The system's TCP failed.
    #[error("TCP over the loopback interface: {0}")]
    Tcp(std::io::Error),
    /// A work request was not accepted.
    #[error("cannot post: {0}")]
    Post(PostError),
    /// A batch of work requests was not accepted whole.
    #[error("cannot post a batch: {0}")]
    Batch(BatchError),
    /// A work request ended badly.
    #[error("work request {wr_id} ended with \"{status}\" ({} in ibv_wc_status)", *status as u8)]
    Completion { wr_id: u64, status: WcStatus },
    /// What arrived is not what was sent.
    #[error("message {expected} carried the number {got} (a defect of the device)")]
    Payload { expected: u64, got: u64 },
    /// Nothing came for a long time.
    #[error("waited {seconds} s for {what} (a defect of the program or the device)")]
    Stalled { what: &'static str, seconds: u64 },
    /// The other thread ended early; its own error is worth more than this one.
    #[error("the other thread has ended")]
    PeerGone,
}

impl From<verbs_cm::Error> for BenchError {
    fn from(error: verbs_cm::Error) -> Self {
        Self::Cm(error)
    }
}

impl From<ulp_rds::Error> for BenchError {
    fn from(error: ulp_rds::Error) -> Self {
        Self::Rds(error)
    }
}

impl From<ulp_rds::SendError> for BenchError {
    fn from(error: ulp_rds::SendError) -> Self {
        Self::Datagram(error)
    }
}

impl From<PostError> for BenchError {
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}

impl From<BatchError> for BenchError {
    fn from(error: BatchError) -> Self {
        Self::Batch(error)
    }
}

impl BenchError {
    /// For `map_err`: a verb failed while doing this.
    pub(crate) fn verb(doing: &'static str) -> impl Fn(Error) -> Self {
        move |error| Self::Verb { doing, error }
    }
}
