//! Ports of a subnet as links: HCAs of this process communicate across its switches.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use verbs_core::sync::{Arc, Weak};
use verbs_core::{Gid, Lid, Mtu, Seed};

use super::Shared;
use super::manager::Manager;
use crate::packet::Packet;
use verbs_link::rng::Rng;
use verbs_link::time::Due;
use verbs_link::{
    Arrival, Burst, Change, Feedback, Ident, LinkCounters, Managed, PacketLink, Route, Sent, Waiter,
};
use verbs_wire::ROCE_PORT;

/// Packets that one call of `receive` delivers at most.
const RECEIVE_MAX: usize = 128;
/// Packets of a burst at most.
const BURST: usize = 64;

/// A port of a [`SharedSubnet`](super::SharedSubnet), as a link. When it is dropped, another HCA can attach to
/// the port.
pub struct SubnetPort {
    manager: Manager,
    addresses: [IpAddr; 1],
    mtu: Mtu,
    rng: Rng,
    counters: LinkCounters,
    /// Listeners that have arrivals and have not been called yet.
    fed: VecDeque<Arc<dyn Due>>,
    /// The packet that is being delivered.
    bytes: Vec<u8>,
}

impl SubnetPort {
    pub(super) fn new(manager: Manager, gid: Gid, mtu: u32, seed: u64) -> Self {
        Self {
            manager,
            addresses: [Ipv6Addr::from(gid).into()],
            mtu: Mtu::from_code(mtu).unwrap_or(Mtu::B4096),
            rng: Rng::new(seed),
            counters: LinkCounters::default(),
            fed: VecDeque::new(),
            bytes: Vec::new(),
        }
    }
}

impl Drop for SubnetPort {
    fn drop(&mut self) {
        self.manager.inner.state.lock().detach(self.manager.at);
    }
}

impl Shared {
    /// The destination LID of packets by that route; `None` if no port has the address.
    fn dlid(&mut self, route: &Route) -> Option<Lid> {
        match route.local {
            Some(local) if local.dlid != Lid(0) => Some(local.dlid),
            Some(local) if !local.global => None,
            _ => self.lid_of(Gid::from(route.dst)),
        }
    }
}

impl PacketLink for SubnetPort {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn mtu(&self) -> Mtu {
        self.mtu
    }

    fn burst_limit(&self, _route: &Route) -> usize {
        BURST
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        let count = burst.packets().len();
        self.counters.packets_sent += count as u64;
        self.counters.gso_bursts += u64::from(count > 1);
        let at = self.manager.at;
        let ((), listeners) = self.manager.inner.act_and_tell(|shared, now| {
            // Packets to addresses that no port has are lost.
            let Some(dlid) = shared.dlid(&burst.route) else {
                return;
            };
            for bytes in burst.packets() {
                let packet = Packet::of_transport(&burst.route, dlid, bytes);
                shared.subnet.send(now, at, packet);
            }
        });
        self.fed.extend(listeners);
        Sent::Gone
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let mut handed_up = 0;
        while handed_up < RECEIVE_MAX {
            // The lock is not held while foreign code runs.
            let mut shared = self.manager.inner.state.lock();
            let coming = shared.ports.get_mut(&self.manager.at);
            let packet = coming.and_then(|coming| coming.packets.pop_front());
            drop(shared);
            let Some(packet) = packet else { break };
            handed_up += 1;
            let local = packet.local();
            let Some(bytes) = packet.transport(&mut self.bytes) else {
                continue;
            };
            let nowhere = Gid::from(Ipv6Addr::UNSPECIFIED);
            let [src, dst] = match &packet.grh {
                Some(grh) => [grh.sgid, grh.dgid],
                None => [nowhere; 2],
            };
            sink(&Arrival {
                src: src.into(),
                dst: dst.into(),
                sport: ROCE_PORT,
                tclass: packet.grh.map_or(0, |grh| grh.traffic_class),
                ident: Ident::Known(0),
                bytes,
                long: None,
                local: Some(local),
            });
        }
        self.counters.packets_received += handed_up as u64;
        handed_up
    }

    fn feedback(&mut self, _route: &Route, _news: Feedback) {}

    fn entropy(&mut self) -> u64 {
        self.rng.draw()
    }

    fn seed(&mut self) -> Seed {
        Seed::from(self.entropy())
    }

    fn change(&mut self) -> Option<Change> {
        let mut shared = self.manager.inner.state.lock();
        let coming = shared.ports.get_mut(&self.manager.at)?;
        coming.changes.pop_front()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        None
    }

    fn attach(&mut self, listener: Weak<dyn Due>) {
        let mut shared = self.manager.inner.state.lock();
        if let Some(coming) = shared.ports.get_mut(&self.manager.at) {
            coming.listener = Some(listener);
        }
    }

    /// The subnet administrator makes switches forward to the port; the port takes all packets that arrive.
    fn join(&mut self, _group: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn fed(&mut self) -> Option<Arc<dyn Due>> {
        self.fed.pop_front()
    }

    fn managed(&self) -> Option<Arc<dyn Managed>> {
        Some(Arc::new(self.manager.clone()))
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

impl fmt::Debug for SubnetPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubnetPort")
            .field("at", &self.manager.at)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
