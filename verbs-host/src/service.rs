//! The port space of a host: which client listens where.

use std::collections::BTreeMap;
use std::net::IpAddr;

use verbs_core::host::message::Service;

use crate::client::ClientId;

/// The listening clients.
#[derive(Debug, Default)]
pub(crate) struct Services {
    /// By service id: the addresses, and the clients.
    listeners: BTreeMap<u64, Vec<(Service, ClientId)>>,
}

impl Services {
    /// The client listens there; false if another client does already. Addresses conflict like those of sockets: the
    /// wildcard address with every single one.
    pub(crate) fn listen(&mut self, service: Service, client: ClientId) -> bool {
        let known = self.listeners.entry(service.id).or_default();
        let is_free = !known.iter().any(|(other, _)| other.overlaps(&service));
        if is_free {
            known.push((service, client));
        }
        is_free
    }

    /// The client no longer listens there; false if it did not.
    pub(crate) fn unlisten(&mut self, service: Service, client: ClientId) -> bool {
        let Some(known) = self.listeners.get_mut(&service.id) else {
            return false;
        };
        let before = known.len();
        known.retain(|&listener| listener != (service, client));
        let was_there = known.len() < before;
        if known.is_empty() {
            self.listeners.remove(&service.id);
        }
        was_there
    }

    /// The client has ended.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.listeners.retain(|_, known| {
            known.retain(|&(_, whose)| whose != client);
            !known.is_empty()
        });
    }

    /// What a client listens for.
    pub(crate) fn of(&self, client: ClientId) -> impl Iterator<Item = Service> {
        let all = self.listeners.values().flatten();
        all.filter_map(move |&(service, whose)| (whose == client).then_some(service))
    }

    /// The client that listens for requests to that address.
    pub(crate) fn find(&self, id: u64, at: IpAddr) -> Option<ClientId> {
        let known = self.listeners.get(&id)?;
        let fits = |service: &Service| service.addr.is_none_or(|addr| addr == at);
        known
            .iter()
            .find(|(service, _)| fits(service))
            .map(|&(_, client)| client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_clients_at_an_address() {
        let [one, other] = [1, 2].map(|number| ClientId::new(number).expect("not 0"));
        let [here, there] = ["127.0.0.1", "::1"].map(|text| text.parse::<IpAddr>().expect("one"));
        let at = |addr| Service { id: 7, addr };
        let mut services = Services::default();
        assert!(services.listen(at(Some(here)), one));
        assert!(!services.listen(at(Some(here)), other) && !services.listen(at(None), other));
        assert!(services.listen(at(Some(there)), other));
        assert_eq!(services.find(7, here), Some(one));
        assert_eq!(services.find(7, there), Some(other));
        assert_eq!(services.find(8, here), None);
        assert!(!services.unlisten(at(Some(here)), other), "another's");
        assert!(services.unlisten(at(Some(here)), one));
        services.forget(other);
        assert!(services.listeners.is_empty() && services.listen(at(None), other));
    }
}
