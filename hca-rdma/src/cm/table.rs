//! The existing endpoints, and the pending work on them.

use std::collections::HashMap;

use verbs_core::RequestId;
use verbs_core::cm::CmCore;
use verbs_core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use verbs_core::sync::{Arc, Mutex, Weak};

use crate::sys::{Arrival, CmChannel};

/// The connections of a NIC.
pub(crate) struct Connections {
    pub(crate) channel: Arc<CmChannel>,
    /// By the number that events carry.
    endpoints: Mutex<HashMap<u64, Weak<CmCore>>>,
    /// Events that arrived too late to mean anything.
    late: AtomicU64,
}

/// Work of the command thread between verbs.
pub(crate) enum Step {
    Event(Arrival),
    /// A connect or an accept that has begun has to end early.
    Cancel(RequestId),
    /// Data has arrived at a queue pair before its peer's confirmation; it is named by its address, as in the event.
    DataCame(usize),
    /// The NIC has been removed.
    Removed,
}

impl Connections {
    pub(crate) fn new(channel: Arc<CmChannel>) -> Self {
        Self {
            channel,
            endpoints: Mutex::default(),
            late: AtomicU64::new(0),
        }
    }

    /// Events that arrived too late to mean anything: for endpoints that no longer existed, or after the fact that they
    /// report.
    pub(crate) fn late(&self) -> u64 {
        self.late.load(Relaxed)
    }

    pub(super) fn count_late(&self) {
        self.late.fetch_add(1, Relaxed);
    }

    pub(super) fn add(&self, number: u64, endpoint: &Arc<CmCore>) {
        let endpoint = Arc::downgrade(endpoint);
        self.endpoints.lock().insert(number, endpoint);
    }

    pub(super) fn remove(&self, number: u64) {
        let gone = self.endpoints.lock().remove(&number);
        drop(gone);
    }

    pub(super) fn find(&self, number: u64) -> Option<Arc<CmCore>> {
        self.endpoints.lock().get(&number).and_then(Weak::upgrade)
    }

    pub(super) fn all(&self) -> Vec<Arc<CmCore>> {
        let endpoints = self.endpoints.lock();
        endpoints.values().filter_map(Weak::upgrade).collect()
    }
}
