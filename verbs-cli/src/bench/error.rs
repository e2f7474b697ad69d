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
    /// A work request was not accepted.
    #[error("cannot post: {0}")]
    Post(#[from] PostError),
    /// A batch of work requests was not accepted whole.
    #[error("cannot post a batch: {0}")]
    Batch(#[from] BatchError),
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

impl BenchError {
    /// For `map_err`: a verb failed while doing this.
    pub(crate) fn verb(doing: &'static str) -> impl Fn(Error) -> Self {
        move |error| Self::Verb { doing, error }
    }
}
