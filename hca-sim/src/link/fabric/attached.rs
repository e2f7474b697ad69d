//! Ports of a subnet as links: HCAs of this process talk across its switches.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use verbs_core::mad::Time;
use verbs_core::mad::sm::LinkState;
use verbs_core::sync::Arc;
use verbs_core::sync::plain::Mutex;
use verbs_core::{Gid, Lid, Mtu};

use super::packet::{Body, Packet};
use super::subnet::Subnet;
use super::topology::PortRef;
use crate::link::{
    Arrival, Burst, Change, Feedback, Ident, LinkCounters, PacketLink, Route, Sent, Waiter,
};
use crate::port::sma::SmaChange;
use crate::rng::Rng;
use crate::wire::ROCE_PORT;

/// Packets that wait at a port to be received; what comes then is dropped, as by any receiver without
/// buffers.
const ROOM: usize = 4096;
/// Packets that one call of `receive` hands up at most.
const RECEIVE_MAX: usize = 128;
/// Packets of a burst at most.
const BURST: usize = 64;
/// Changes that a port is still to be told; of more, the oldest are forgotten in pairs.
const CHANGES_MAX: usize = 64;

/// A subnet that HCAs of this process are attached to.
///
/// A packet of an HCA is what it is on other links, from its BTH to its ICRC. Here it goes by LIDs: the
/// port's GIDs are IPv6 addresses in form, the LID that a GID has is looked up when the packet leaves, and
/// from there on switches forward it by the tables that the subnet's manager has written. So nothing
/// passes before a manager has brought the ports up; [`with`](Self::with) lets one at it. No time passes in
/// the subnet by itself: links without delay need none, for others call
/// [`Subnet::handle_timeout`] through [`with`](Self::with).
#[derive(Clone, Debug)]
pub struct SharedSubnet {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    subnet: Subnet,
    /// The latest time that the subnet was told.
    now: Time,
    /// Ports that are attached.
    ports: BTreeMap<PortRef, Coming>,
    /// Where GIDs were found.
    gids: BTreeMap<Gid, PortRef>,
}

#[derive(Debug, Default)]
struct Coming {
    packets: VecDeque<Packet>,
    changes: VecDeque<Change>,
}

impl SharedSubnet {
    /// Lets HCAs be attached to a subnet.
    pub fn new(subnet: Subnet) -> Self {
        let shared = Shared {
            subnet,
            now: Time::ZERO,
            ports: BTreeMap::new(),
            gids: BTreeMap::new(),
        };
        Self {
            shared: Arc::new(Mutex::new(shared)),
        }
    }

    /// Does something to the subnet, at that time. What it delivers to attached ports reaches them.
    pub fn with<T>(&self, now: Time, act: impl FnOnce(&mut Subnet) -> T) -> T {
        let mut shared = self.shared.lock();
        shared.now = shared.now.max(now);
        let done = act(&mut shared.subnet);
        shared.gids.clear();
        shared.hand_out();
        done
    }

    /// The link of a port: of an adapter, and of nobody else. `None` when there is no such port, or
    /// it is taken.
    pub fn attach(&self, at: PortRef, seed: u64) -> Option<SubnetPort> {
        let mut shared = self.shared.lock();
        let node = shared
            .subnet
            .node(at.node)
            .filter(|node| !node.is_switch())?;
        let gid = node.port(at.port)?.gid(0)?;
        let mtu = node.port(at.port)?.info().neighbor_mtu.value();
        let mtu = usize::try_from(mtu)
            .ok()
            .and_then(|code| code.checked_sub(1));
        let mtu = mtu.and_then(|index| Mtu::ALL.get(index).copied())?;
        if shared.ports.contains_key(&at) {
            return None;
        }
        shared.ports.insert(at, Coming::default());
        drop(shared);
        Some(SubnetPort {
            shared: Arc::clone(&self.shared),
            at,
            addresses: [Ipv6Addr::from(gid).into()],
            mtu,
            rng: Rng::new(seed),
            counters: LinkCounters::default(),
        })
    }
}

impl Shared {
    /// Gives attached ports what has come for them. What is for management is not: no HCA manages.
    fn hand_out(&mut self) {
        while let Some((at, packet)) = self.subnet.poll_delivery() {
            if let Some(coming) = self.ports.get_mut(&at)
                && matches!(packet.body, Body::Transport(_))
                && coming.packets.len() < ROOM
            {
                coming.packets.push_back(packet);
            }
        }
        while let Some(event) = self.subnet.poll_event() {
            let change = match event.change {
                SmaChange::State(LinkState::ACTIVE) => Change::Up,
                SmaChange::State(_) => Change::Down,
                _ => continue,
            };
            if let Some(coming) = self.ports.get_mut(&event.at) {
                if coming.changes.len() >= CHANGES_MAX {
                    coming.changes.drain(..2);
                }
                coming.changes.push_back(change);
            }
        }
    }

    /// The LID of the port with that GID; `None` where there is none, or it has no LID yet.
    fn lid_of(&mut self, gid: Gid) -> Option<Lid> {
        let known = self.gids.get(&gid).copied();
        let at = known.or_else(|| self.subnet.find_gid(gid))?;
        self.gids.insert(gid, at);
        Some(self.subnet.lid(at)).filter(|&lid| lid != Lid(0))
    }
}

/// A port of a [`SharedSubnet`], as a link. When it goes, somebody else can attach to the port.
#[derive(Debug)]
pub struct SubnetPort {
    shared: Arc<Mutex<Shared>>,
    at: PortRef,
    addresses: [IpAddr; 1],
    mtu: Mtu,
    rng: Rng,
    counters: LinkCounters,
}

impl Drop for SubnetPort {
    fn drop(&mut self) {
        self.shared.lock().ports.remove(&self.at);
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
        let mut shared = self.shared.lock();
        let (sgid, dgid) = (Gid::from(burst.route.src), Gid::from(burst.route.dst));
        let count = burst.packets().len();
        self.counters.packets_sent += count as u64;
        self.counters.gso_bursts += u64::from(count > 1);
        // Packets to nobody are lost on the way.
        let Some(dlid) = shared.lid_of(dgid) else {
            return Sent::Gone;
        };
        let now = shared.now;
        for bytes in burst.packets() {
            let mut packet = Packet::new(Lid(0), dlid, 0, Body::Transport(bytes.to_vec()));
            packet.gids = Some((sgid, dgid));
            shared.subnet.send(now, self.at, packet);
        }
        shared.hand_out();
        Sent::Gone
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let mut handed_up = 0;
        while handed_up < RECEIVE_MAX {
            // The lock is not held while foreign code runs.
            let mut shared = self.shared.lock();
            let coming = shared.ports.get_mut(&self.at);
            let packet = coming.and_then(|coming| coming.packets.pop_front());
            drop(shared);
            let Some(packet) = packet else { break };
            handed_up += 1;
            if let (Body::Transport(bytes), Some((sgid, dgid))) = (&packet.body, packet.gids) {
                sink(&Arrival {
                    src: Ipv6Addr::from(sgid).into(),
                    dst: Ipv6Addr::from(dgid).into(),
                    sport: ROCE_PORT,
                    tclass: 0,
                    ident: Ident::Known(0),
                    bytes,
                    local: None,
                });
            }
        }
        self.counters.packets_received += handed_up as u64;
        handed_up
    }

    fn feedback(&mut self, _route: &Route, _news: Feedback) {}

    fn entropy(&mut self) -> u64 {
        self.rng.draw()
    }

    fn change(&mut self) -> Option<Change> {
        let mut shared = self.shared.lock();
        shared.ports.get_mut(&self.at)?.changes.pop_front()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        None
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
