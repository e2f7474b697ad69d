//! A cable: two ends in one process, without sockets and without time of its own.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use verbs_core::sync::Arc;
use verbs_core::sync::plain::Mutex;
use verbs_core::{Mtu, Seed};

use crate::rng::Rng;
use crate::{
    Arrival, Burst, Change, Feedback, Ident, LinkCounters, PacketLink, Route, Sent, Waiter,
};
use verbs_wire::ROCE_PORT;

/// A cable to be plugged in: what both ends have in common.
///
/// It carries packets in order and loses none, except packets to addresses that neither end has. What is sent can be
/// received at once. Nothing here looks at a clock or waits, so a simulation of time decides when an end is asked to
/// receive.
///
/// ```
/// use verbs_link::{Burst, Cable, PacketLink, Route};
///
/// let (here, there) = ("10.0.0.1".parse()?, "10.0.0.2".parse()?);
/// let (mut a, mut b) = Cable::new().plug(&[here], &[there]);
/// let route = Route { src: here, dst: there, tclass: 0, hop_limit: 64, local: None, };
/// a.transmit(&Burst { route, segment: 4, bytes: b"onetwo" });
/// let mut got = Vec::new();
/// assert_eq!(b.receive(&mut |arrival| got.push(arrival.bytes.to_vec())), 2);
/// assert_eq!(got, [&b"onet"[..], b"wo"]);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Cable {
    mtu: Mtu,
    burst_limit: usize,
    room: usize,
    is_hiding: bool,
    seed: u64,
}

impl Default for Cable {
    fn default() -> Self {
        Self::new()
    }
}

impl Cable {
    /// A cable for packets of 4096 bytes in bursts of up to 128, with room for 4096 packets in each direction.
    pub fn new() -> Self {
        Self {
            mtu: Mtu::ALL[4],
            burst_limit: 128,
            room: 4096,
            is_hiding: false,
            seed: 0,
        }
    }

    /// The largest path MTU that fits.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = mtu;
        self
    }

    /// Packets that a burst may have; at least 1.
    pub fn burst_limit(mut self, packets: usize) -> Self {
        self.burst_limit = packets.max(1);
        self
    }

    /// Packets that may be on their way to each end; a burst that does not fit is
    /// [`Sent::Blocked`]. At least as many as a burst may have.
    pub fn room(mut self, packets: usize) -> Self {
        self.room = packets;
        self
    }

    /// Hides the identifications of packets over IPv4, as sockets do.
    pub fn hide_identifications(mut self) -> Self {
        self.is_hiding = true;
        self
    }

    /// Seeds the entropy of its ends; 0 if it is not set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The two ends, with the addresses of each.
    pub fn plug(self, a: &[IpAddr], b: &[IpAddr]) -> (CableEnd, CableEnd) {
        let side = |addresses: &[IpAddr]| Side {
            addresses: addresses.into(),
            coming: VecDeque::new(),
            groups: Vec::new(),
            changes: VecDeque::new(),
        };
        let shared = Arc::new(Mutex::new(Shared {
            sides: [side(a), side(b)],
            is_up: true,
        }));
        let end = |number, addresses: &[IpAddr]| CableEnd {
            cable: Self {
                room: self.room.max(self.burst_limit),
                ..self
            },
            number,
            rng: Rng::new(self.seed.wrapping_mul(2).wrapping_add(number as u64)),
            addresses: addresses.into(),
            shared: Arc::clone(&shared),
            counters: LinkCounters::default(),
        };
        (end(0, a), end(1, b))
    }
}

/// One end of a [`Cable`]. The other may be in another thread.
#[derive(Debug)]
pub struct CableEnd {
    cable: Cable,
    number: usize,
    rng: Rng,
    addresses: Box<[IpAddr]>,
    shared: Arc<Mutex<Shared>>,
    counters: LinkCounters,
}

#[derive(Debug)]
struct Shared {
    sides: [Side; 2],
    is_up: bool,
}

#[derive(Debug)]
struct Side {
    addresses: Box<[IpAddr]>,
    coming: VecDeque<Packet>,
    /// The multicast groups that it has joined, as often as it has.
    groups: Vec<IpAddr>,
    changes: VecDeque<Change>,
}

#[derive(Debug)]
struct Packet {
    route: Route,
    ident: u16,
    bytes: Box<[u8]>,
}

impl Side {
    fn takes(&self, dst: IpAddr) -> bool {
        self.addresses.contains(&dst) || self.groups.contains(&dst)
    }
}

/// The most packets that one call of `receive` hands up.
const RECEIVE_MAX: usize = 128;
/// Changes of state that an end has not fetched yet; beyond that, the oldest are forgotten in pairs.
const CHANGES_MAX: usize = 64;

impl CableEnd {
    /// Pulls the cable out, or plugs it in again. Both ends notice; what was on its way is lost.
    pub fn plugged(&self, is_up: bool) {
        let mut shared = self.shared.lock();
        if shared.is_up == is_up {
            return;
        }
        shared.is_up = is_up;
        for side in &mut shared.sides {
            side.coming.clear();
            if side.changes.len() == CHANGES_MAX {
                side.changes.drain(..2);
            }
            let change = if is_up { Change::Up } else { Change::Down };
            side.changes.push_back(change);
        }
    }

    /// Packets that this end could receive now.
    pub fn pending(&self) -> usize {
        self.shared.lock().sides[self.number].coming.len()
    }
}

impl PacketLink for CableEnd {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn mtu(&self) -> Mtu {
        self.cable.mtu
    }

    fn burst_limit(&self, _route: &Route) -> usize {
        self.cable.burst_limit
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        let mut shared = self.shared.lock();
        let count = burst.packets().len();
        // The ends that have the address, this one included: packets to itself come back.
        let (dst, is_up, room) = (burst.route.dst, shared.is_up, self.cable.room);
        let to = shared.sides.iter_mut();
        let to = to.filter(|side| is_up && side.takes(dst));
        let to: ArrayVec<&mut Side, 2> = to.collect();
        if to.iter().any(|side| side.coming.len() + count > room) {
            self.counters.blocked += 1;
            return Sent::Blocked;
        }
        for side in to {
            for (ident, bytes) in (0..).zip(burst.packets()) {
                side.coming.push_back(Packet {
                    route: burst.route,
                    ident,
                    bytes: bytes.into(),
                });
            }
        }
        self.counters.packets_sent += count as u64;
        self.counters.gso_bursts += u64::from(count > 1);
        Sent::Gone
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let mut handed_up = 0;
        while handed_up < RECEIVE_MAX {
            // The lock is not held while foreign code runs.
            let Some(packet) = self.shared.lock().sides[self.number].coming.pop_front() else {
                break;
            };
            handed_up += 1;
            let Route {
                src, dst, tclass, ..
            } = packet.route;
            sink(&Arrival {
                src,
                dst,
                sport: ROCE_PORT,
                tclass,
                ident: match dst {
                    IpAddr::V6(_) => Ident::Known(0),
                    IpAddr::V4(_) if self.cable.is_hiding => Ident::Hidden,
                    IpAddr::V4(_) => Ident::Known(packet.ident),
                },
                bytes: &packet.bytes,
                long: None,
                local: None,
            });
        }
        self.counters.packets_received += handed_up as u64;
        handed_up
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.shared.lock().sides[self.number].groups.push(group);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        let mut shared = self.shared.lock();
        let groups = &mut shared.sides[self.number].groups;
        if let Some(at) = groups.iter().position(|&joined| joined == group) {
            groups.swap_remove(at);
        }
    }

    fn feedback(&mut self, _route: &Route, _news: Feedback) {}

    fn entropy(&mut self) -> u64 {
        self.rng.draw()
    }

    fn seed(&mut self) -> Seed {
        Seed::from(self.entropy())
    }

    fn change(&mut self) -> Option<Change> {
        self.shared.lock().sides[self.number].changes.pop_front()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        None
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
