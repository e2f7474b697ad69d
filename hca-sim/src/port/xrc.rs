//! A port's tables for extended reliable connections: the shared receive queues that requests name, and the handles of
//! each target queue pair.

use std::collections::BTreeMap;
use std::fmt;

use verbs_core::qp::QpCore;
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{Qpn, Srqn};

use crate::queue::srq::SharedReceives;

/// See the module's documentation. The lock is taken for a look or a change and nothing else.
#[derive(Default)]
pub(crate) struct Xrc(Mutex<State>);

#[derive(Default)]
struct State {
    queues: BTreeMap<Srqn, Arc<SharedReceives>>,
    targets: BTreeMap<Qpn, Vec<Weak<QpCore>>>,
}

impl Xrc {
    /// Requests can name that queue from now on.
    pub(crate) fn enter(&self, number: Srqn, srq: &Arc<SharedReceives>) {
        self.0.lock().queues.insert(number, Arc::clone(srq));
    }

    /// Requests can no longer name it.
    pub(crate) fn leave(&self, number: Srqn) {
        self.0.lock().queues.remove(&number);
    }

    /// The queue of that number in that domain.
    pub(crate) fn find(&self, number: Srqn, xrcd: u32) -> Option<Arc<SharedReceives>> {
        let state = self.0.lock();
        let found = state.queues.get(&number)?;
        let is_in = found.xrc.as_ref().is_some_and(|own| own.xrcd == xrcd);
        is_in.then(|| Arc::clone(found))
    }

    /// There is one more handle of that target.
    pub(crate) fn opened(&self, qpn: Qpn, handle: &Arc<QpCore>) {
        let mut state = self.0.lock();
        let handles = state.targets.entry(qpn).or_default();
        handles.push(Arc::downgrade(handle));
    }

    /// That handle is closed. Returns whether it was the last.
    pub(crate) fn closed(&self, qpn: Qpn, handle: &QpCore) -> bool {
        let mut state = self.0.lock();
        let Some(handles) = state.targets.get_mut(&qpn) else {
            return true;
        };
        handles.retain(|own| !std::ptr::eq(own.as_ptr(), handle));
        let last = handles.is_empty();
        if last {
            state.targets.remove(&qpn);
        }
        last
    }

    /// All handles of that target.
    pub(crate) fn owners(&self, qpn: Qpn) -> Vec<Arc<QpCore>> {
        let state = self.0.lock();
        let handles = state.targets.get(&qpn);
        handles
            .into_iter()
            .flatten()
            .filter_map(Weak::upgrade)
            .collect()
    }
}

impl fmt::Debug for Xrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("Xrc")
            .field("queues", &state.queues.len())
            .field("targets", &state.targets.len())
            .finish()
    }
}
