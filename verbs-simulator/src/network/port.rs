//! A port of the network, as an HCA sees it.

use std::fmt;
use std::io;
use std::net::IpAddr;

use verbs_core::sync::{Arc, Weak};
use verbs_core::{Mtu, Seed};
use verbs_link::time::Due;
use verbs_link::{Arrival, Burst, Change, Feedback, Ident, PacketLink, Route, Sent, Waiter};
use verbs_wire::ROCE_PORT;

use crate::network::Core;

/// The most packets handed up at once.
const RECEIVED_MAX: usize = 64;
/// The most packets of a burst.
const BURST_MAX: usize = 16;

/// A link attached to a port of a [`Network`](crate::Network): an HCA is made [over](hca_sim::Hca::over) it. Dropping
/// it leaves the port empty; packets for it are lost.
pub struct NetworkPort {
    core: Arc<Core>,
    index: usize,
    owner: u64,
    addresses: Vec<IpAddr>,
    mtu: Mtu,
}

impl NetworkPort {
    pub(super) fn new(core: Arc<Core>, index: usize, owner: u64, addresses: &[IpAddr]) -> Self {
        Self {
            core,
            index,
            owner,
            addresses: addresses.to_vec(),
            mtu: Mtu::B4096,
        }
    }

    /// With that MTU, instead of 4096 bytes: peers that ask for a larger path MTU are told so.
    #[must_use]
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = mtu;
        self
    }
}

impl PacketLink for NetworkPort {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn mtu(&self) -> Mtu {
        self.mtu
    }

    fn burst_limit(&self, _route: &Route) -> usize {
        BURST_MAX
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        self.core.transmit(self.index, self.owner, burst)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let mut count = 0;
        while count < RECEIVED_MAX {
            let packet = {
                let mut state = self.core.state.lock();
                let port = &mut state.ports[self.index];
                if port.owner != Some(self.owner) {
                    break;
                }
                port.inbox.pop_front()
            };
            let Some(packet) = packet else { break };
            count += 1;
            sink(&Arrival {
                src: packet.src,
                dst: packet.dst,
                sport: ROCE_PORT,
                tclass: packet.tclass,
                ident: Ident::Known(packet.ident),
                bytes: &packet.bytes,
                long: None,
                local: None,
            });
        }
        count
    }

    fn feedback(&mut self, _route: &Route, _news: Feedback) {}

    fn entropy(&mut self) -> u64 {
        self.core.state.lock().draw.number()
    }

    fn seed(&mut self) -> Seed {
        Seed::from(self.entropy())
    }

    fn change(&mut self) -> Option<Change> {
        let mut state = self.core.state.lock();
        let port = &mut state.ports[self.index];
        (port.owner == Some(self.owner)).then(|| port.changes.pop_front())?
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        None
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let mut state = self.core.state.lock();
        let port = &mut state.ports[self.index];
        if port.owner == Some(self.owner) {
            port.groups.push(group);
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        let mut state = self.core.state.lock();
        let port = &mut state.ports[self.index];
        let joined = port.groups.iter().position(|&joined| joined == group);
        if let (Some(joined), true) = (joined, port.owner == Some(self.owner)) {
            port.groups.swap_remove(joined);
        }
    }

    fn attach(&mut self, listener: Weak<dyn Due>) {
        let mut state = self.core.state.lock();
        let port = &mut state.ports[self.index];
        if port.owner == Some(self.owner) {
            port.listener = Some(listener);
        }
    }
}

impl Drop for NetworkPort {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        let port = &mut state.ports[self.index];
        if port.owner == Some(self.owner) {
            port.owner = None;
            port.listener = None;
            port.inbox.clear();
            port.groups.clear();
        }
    }
}

impl fmt::Debug for NetworkPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkPort")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}
