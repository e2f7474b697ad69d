//! The listeners, and what they listen for.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::event::{CmError, ListenId};
use crate::params::Listen;
use crate::wire::ServiceId;

#[derive(Debug)]
struct Listener {
    listen: Listen,
    /// Requests that wait for the user.
    waiting: u32,
}

/// The listeners of a port.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    next: u64,
    listeners: BTreeMap<ListenId, Listener>,
    /// The wildcard address has the key `None`.
    by_service: BTreeMap<(ServiceId, Option<IpAddr>), ListenId>,
}

impl Listeners {
    pub(super) fn add(&mut self, listen: Listen, max: usize) -> Result<ListenId, CmError> {
        let key = (listen.service_id, listen.addr);
        if self.by_service.contains_key(&key) {
            return Err(CmError::InUse { addr: listen.addr });
        }
        if self.listeners.len() >= max {
            return Err(CmError::Limit {
                what: "listeners_max",
                max,
            });
        }
        let id = ListenId(self.next);
        self.next += 1;
        self.by_service.insert(key, id);
        self.listeners.insert(id, Listener { listen, waiting: 0 });
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: ListenId) -> Result<(), CmError> {
        let listener = self.listeners.remove(&id).ok_or(CmError::Stale)?;
        let Listen {
            service_id, addr, ..
        } = listener.listen;
        self.by_service.remove(&(service_id, addr));
        Ok(())
    }

    /// The listener for a service at an address; one at that very address comes first.
    pub(super) fn find(&self, service: ServiceId, addr: Option<IpAddr>) -> Option<ListenId> {
        let exact = addr.and_then(|addr| self.by_service.get(&(service, Some(addr))));
        exact
            .or_else(|| self.by_service.get(&(service, None)))
            .copied()
    }

    /// Whether it takes requests for extended reliable connections.
    pub(super) fn is_extended(&self, id: ListenId) -> bool {
        let listener = self.listeners.get(&id);
        listener.is_some_and(|listener| listener.listen.extended)
    }

    /// Whether another request may wait for the user.
    pub(super) fn has_room(&self, id: ListenId) -> bool {
        let listener = self.listeners.get(&id);
        listener.is_some_and(|listener| listener.waiting < listener.listen.backlog)
    }

    /// A request came to wait, or no longer waits. The listener may have gone in between.
    pub(super) fn move_backlog(&mut self, from: Option<ListenId>, to: Option<ListenId>) {
        if let Some(listener) = from.and_then(|id| self.listeners.get_mut(&id)) {
            listener.waiting -= 1;
        }
        if let Some(listener) = to.and_then(|id| self.listeners.get_mut(&id)) {
            listener.waiting += 1;
        }
    }
}
