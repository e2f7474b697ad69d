//! The counters of a port.

use verbs_core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters of a port. A message that is placed directly and succeeds is not counted, so that counting costs it
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) rnr_naks: Count,
    pub(crate) timeouts: Count,
    /// Answers that were missed before the local ACK timeout, because others took less time.
    pub(crate) probes: Count,
    /// Requests and answers that arrived before the ones they follow, and were kept.
    pub(crate) kept_early: Count,
    /// Requests that had arrived before.
    pub(crate) duplicates: Count,
    /// Requests that arrived after a gap.
    pub(crate) out_of_sequence: Count,
    /// Answers that report a gap, or show one.
    pub(crate) sequence_naks: Count,
    pub(crate) remote_errors: Count,
    pub(crate) local_errors: Count,
    pub(crate) overruns: Count,
    pub(crate) link_downed: Count,
    /// For links that carry packets: packets received, packets sent, and packets received that were for no queue pair
    /// here.
    pub(crate) packets_received: Count,
    pub(crate) packets_sent: Count,
    pub(crate) malformed: Count,
    pub(crate) bad_icrcs: Count,
    /// Accepted, although the identification that the ICRC implies is unexpected.
    pub(crate) weak_icrcs: Count,
    pub(crate) bad_pkeys: Count,
    pub(crate) bad_qkeys: Count,
    /// Messages of unreliable services that were dropped here: no receive, or one that is too short.
    pub(crate) dropped: Count,
    pub(crate) cnps_received: Count,
    pub(crate) cnps_sent: Count,
    /// Congestion notifications that slowed a queue pair down, and the rate that the last one set, in bytes per second.
    pub(crate) rate_cuts: Count,
    pub(crate) rate: Count,
    /// For no queue pair, or from a sender that the queue pair is not connected to.
    pub(crate) strangers: Count,
}

/// A number that only grows, unless it is set.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
