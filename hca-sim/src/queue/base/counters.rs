//! What a port counts.

use verbs_core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a port counts. A message that is placed directly and goes through as it should is not counted, so
/// that counting costs it nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) rnr_naks: Count,
    pub(crate) timeouts: Count,
    /// Requests that had come before.
    pub(crate) duplicates: Count,
    /// Requests before which something is missing.
    pub(crate) out_of_sequence: Count,
    /// Answers that say so, or that show it.
    pub(crate) sequence_naks: Count,
    pub(crate) remote_errors: Count,
    pub(crate) local_errors: Count,
    pub(crate) overruns: Count,
    pub(crate) link_downed: Count,
    /// Of links that carry packets: what came, what was sent, and what came and was not for anybody.
    pub(crate) packets_received: Count,
    pub(crate) packets_sent: Count,
    pub(crate) malformed: Count,
    pub(crate) bad_icrcs: Count,
    /// Accepted, although the identification that the ICRC tells is not one to be expected.
    pub(crate) weak_icrcs: Count,
    pub(crate) bad_pkeys: Count,
    pub(crate) bad_qkeys: Count,
    /// Messages of unreliable services that were dropped here: no receive, or one that is too short.
    pub(crate) dropped: Count,
    pub(crate) cnps_received: Count,
    /// For no queue pair, or from somebody it is not connected to.
    pub(crate) strangers: Count,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
