//! A port's tables for extended reliable connections: the domains, the shared receive queues that requests name, and the
//! handles of each target queue pair.
//!
//! A domain with a name is shared with other programs of the host. Their targets visit this port
//! ([`crate::wire::target`]), and are in a table of their own meanwhile; [`opened`] has the handles of other programs.

mod opened;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use verbs_core::qp::QpCore;
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::xrcd::XrcdName;
use verbs_core::{Qpn, Srqn};

pub(crate) use self::opened::{NO_QUEUES, Opened, RemoteTarget, missing};
use crate::queue::cq::CqRing;
use crate::queue::srq::SharedReceives;

/// Targets of other programs that a port has at most. One takes about 16 KiB.
const VISITORS_MAX: usize = 1024;

/// A domain, by all its handles.
pub(crate) struct Domain {
    /// What queues and targets in it are marked with.
    pub(crate) number: u32,
    pub(crate) name: Option<XrcdName>,
    /// Targets have no completions; a queue pair has a completion queue nevertheless.
    pub(crate) ring: Arc<CqRing>,
}

/// See the module's documentation. The lock is taken for a look or a change and nothing else.
#[derive(Default)]
pub(crate) struct Xrc {
    state: Mutex<State>,
    pub(crate) opened: Opened,
}

#[derive(Default)]
struct State {
    domains: BTreeMap<u32, Weak<Domain>>,
    /// Domains that there have been.
    count: u32,
    queues: BTreeMap<Srqn, Arc<SharedReceives>>,
    targets: BTreeMap<Qpn, Vec<Weak<QpCore>>>,
    /// The targets of other programs that have been here. The directory has their queue pairs.
    visitors: BTreeSet<Qpn>,
}

impl State {
    fn named(&self, name: XrcdName) -> Option<Arc<Domain>> {
        let mut all = self.domains.values().filter_map(Weak::upgrade);
        all.find(|domain| domain.name == Some(name))
    }
}

impl Xrc {
    /// A new domain; or one that exists, if it has that name.
    pub(crate) fn domain(&self, name: Option<XrcdName>, ring: Arc<CqRing>) -> Arc<Domain> {
        let mut state = self.state.lock();
        if let Some(known) = name.and_then(|name| state.named(name)) {
            return known;
        }
        state.domains.retain(|_, domain| domain.strong_count() > 0);
        let number = loop {
            state.count = state.count.wrapping_add(1);
            if !state.domains.contains_key(&state.count) {
                break state.count;
            }
        };
        let domain = Arc::new(Domain { number, name, ring });
        state.domains.insert(number, Arc::downgrade(&domain));
        domain
    }

    /// The domain of that name, if anybody here has opened it.
    pub(crate) fn named(&self, name: XrcdName) -> Option<Arc<Domain>> {
        self.state.lock().named(name)
    }

    /// The domain with that number.
    pub(crate) fn with_number(&self, number: u32) -> Option<Arc<Domain>> {
        self.state.lock().domains.get(&number)?.upgrade()
    }

    /// The name of that domain, if it has one.
    pub(crate) fn name_of(&self, number: u32) -> Option<XrcdName> {
        self.with_number(number)?.name
    }

    /// Requests can name that queue from now on.
    pub(crate) fn enter(&self, number: Srqn, srq: &Arc<SharedReceives>) {
        self.state.lock().queues.insert(number, Arc::clone(srq));
    }

    /// Requests can no longer name it.
    pub(crate) fn leave(&self, number: Srqn) {
        self.state.lock().queues.remove(&number);
    }

    /// The queue of that number in that domain.
    pub(crate) fn find(&self, number: Srqn, xrcd: u32) -> Option<Arc<SharedReceives>> {
        let state = self.state.lock();
        let found = state.queues.get(&number)?;
        let is_in = found.xrc.as_ref().is_some_and(|own| own.xrcd == xrcd);
        is_in.then(|| Arc::clone(found))
    }

    /// There is one more handle of that target.
    pub(crate) fn add_handle(&self, qpn: Qpn, handle: &Arc<QpCore>) {
        let mut state = self.state.lock();
        let handles = state.targets.entry(qpn).or_default();
        handles.push(Arc::downgrade(handle));
    }

    /// That handle is closed. Returns whether it was the last.
    pub(crate) fn drop_handle(&self, qpn: Qpn, handle: &QpCore) -> bool {
        let mut state = self.state.lock();
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
        let state = self.state.lock();
        let handles = state.targets.get(&qpn);
        handles
            .into_iter()
            .flatten()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// A target of another program has come. False if there are too many.
    pub(crate) fn visits(&self, qpn: Qpn) -> bool {
        let mut state = self.state.lock();
        let has_room = state.visitors.len() < VISITORS_MAX;
        has_room && state.visitors.insert(qpn) || state.visitors.contains(&qpn)
    }

    /// Whether that is a target of another program.
    pub(crate) fn is_visitor(&self, qpn: Qpn) -> bool {
        self.state.lock().visitors.contains(&qpn)
    }

    /// That target of another program does not come again.
    pub(crate) fn forget(&self, qpn: Qpn) {
        self.state.lock().visitors.remove(&qpn);
    }
}

impl fmt::Debug for Xrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Xrc")
            .field("queues", &state.queues.len())
            .field("targets", &state.targets.len())
            .field("visitors", &state.visitors.len())
            .finish()
    }
}
