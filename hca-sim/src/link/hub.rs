//! The loopback link as a link that carries packets, for messages that are not placed directly.
//!
//! Every port has an inbox. No thread waits for packets here: the thread that sent them calls their receivers
//! ([`PacketLink::fed`]) after it has let go of its own port.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::IpAddr;

use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{Gid, Lid, Mtu, Seed};

use crate::engine::Due;
use crate::link::{
    Arrival, Burst, Change, Directory, Feedback, Ident, Local, PacketLink, Route, Sent, Waiter,
};
use crate::wire::ROCE_PORT;

/// The most packets that wait in one inbox.
const ROOM: usize = 1024;
/// The most packets that one call of `receive` hands up.
const RECEIVE_MAX: usize = 128;
/// The most packets of a burst: there is no system call to be saved.
const BURST_MAX: usize = 16;

/// The inboxes of a loopback link's ports. Its lock is taken alone.
#[derive(Default)]
pub(crate) struct Hub(Mutex<BTreeMap<Lid, Inbox>>);

#[derive(Default)]
struct Inbox {
    coming: VecDeque<Packet>,
    groups: Vec<IpAddr>,
    listener: Option<Weak<dyn Due>>,
    /// Buffers for packets that arrive later.
    spare: Vec<Vec<u8>>,
}

struct Packet {
    route: Route,
    /// The sender's port.
    from: Lid,
    ident: u16,
    bytes: Vec<u8>,
}

/// A port's connection to the hub.
pub(crate) struct HubPort<Q> {
    directory: Arc<Directory<Q>>,
    lid: Lid,
    /// Ports that packets have been brought to and that were not called yet.
    fed: VecDeque<Lid>,
    /// The ports that the burst in hand is for.
    receivers: Vec<Lid>,
}

impl<Q> HubPort<Q> {
    /// Gives the port an inbox.
    pub(crate) fn new(directory: Arc<Directory<Q>>, lid: Lid) -> Self {
        directory.hub.0.lock().insert(lid, Inbox::default());
        Self {
            directory,
            lid,
            fed: VecDeque::new(),
            receivers: Vec::new(),
        }
    }

    /// Finds the ports whose inboxes receive packets to that address.
    fn find_receivers(&mut self, dst: IpAddr) {
        self.receivers.clear();
        let gid = Gid::from(dst);
        if !gid.is_multicast() {
            self.receivers.extend(self.directory.lock().port_of(gid));
            return;
        }
        let inboxes = self.directory.hub.0.lock();
        let joined = inboxes
            .iter()
            .filter(|(_, inbox)| inbox.groups.contains(&dst));
        self.receivers.extend(joined.map(|(&lid, _)| lid));
    }
}

impl<Q> Drop for HubPort<Q> {
    fn drop(&mut self) {
        self.directory.hub.0.lock().remove(&self.lid);
    }
}

impl<Q: Send + Sync> PacketLink for HubPort<Q> {
    /// The port's own table has them.
    fn addresses(&self) -> &[IpAddr] {
        &[]
    }

    fn mtu(&self) -> Mtu {
        Mtu::B4096
    }

    fn burst_limit(&self, _route: &Route) -> usize {
        BURST_MAX
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        self.find_receivers(burst.route.dst);
        let mut inboxes = self.directory.hub.0.lock();
        let count = burst.packets().len();
        let full = |lid: &Lid| {
            let waiting = inboxes.get(lid).map_or(0, |inbox| inbox.coming.len());
            waiting + count > ROOM
        };
        // A member of a group that does not fetch its packets does not delay the other members.
        if let [only] = self.receivers[..]
            && full(&only)
        {
            self.fed.push_back(only);
            return Sent::Blocked;
        }
        for &lid in &self.receivers {
            let Some(inbox) = inboxes.get_mut(&lid) else {
                continue;
            };
            for (ident, packet) in (0..).zip(burst.packets()) {
                if inbox.coming.len() == ROOM {
                    break;
                }
                let mut bytes = inbox.spare.pop().unwrap_or_default();
                bytes.clear();
                bytes.extend_from_slice(packet);
                inbox.coming.push_back(Packet {
                    route: burst.route,
                    from: self.lid,
                    ident,
                    bytes,
                });
            }
            if !self.fed.contains(&lid) {
                self.fed.push_back(lid);
            }
        }
        Sent::Gone
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let mut count = 0;
        while count < RECEIVE_MAX {
            // The lock is not held while receivers run.
            let packet = {
                let mut inboxes = self.directory.hub.0.lock();
                let inbox = inboxes.get_mut(&self.lid);
                inbox.and_then(|inbox| inbox.coming.pop_front())
            };
            let Some(packet) = packet else { break };
            count += 1;
            let Route {
                src, dst, tclass, ..
            } = packet.route;
            let local = packet.route.local.map(|local| Local {
                slid: packet.from,
                ..local
            });
            sink(&Arrival {
                src,
                dst,
                sport: ROCE_PORT,
                tclass,
                ident: match dst {
                    IpAddr::V6(_) => Ident::Known(0),
                    IpAddr::V4(_) => Ident::Known(packet.ident),
                },
                bytes: &packet.bytes,
                long: None,
                local,
            });
            if let Some(inbox) = self.directory.hub.0.lock().get_mut(&self.lid) {
                inbox.spare.push(packet.bytes);
            }
        }
        count
    }

    fn feedback(&mut self, _route: &Route, _news: Feedback) {}

    fn entropy(&mut self) -> u64 {
        u64::from(self.directory.draw_psn().value())
    }

    fn seed(&mut self) -> Seed {
        Seed::from(self.entropy())
    }

    fn change(&mut self) -> Option<Change> {
        None
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        None
    }

    fn attach(&mut self, listener: Weak<dyn Due>) {
        if let Some(inbox) = self.directory.hub.0.lock().get_mut(&self.lid) {
            inbox.listener = Some(listener);
        }
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if let Some(inbox) = self.directory.hub.0.lock().get_mut(&self.lid) {
            inbox.groups.push(group);
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        let mut inboxes = self.directory.hub.0.lock();
        let Some(inbox) = inboxes.get_mut(&self.lid) else {
            return;
        };
        if let Some(at) = inbox.groups.iter().position(|&joined| joined == group) {
            inbox.groups.swap_remove(at);
        }
    }

    fn fed(&mut self) -> Option<Arc<dyn Due>> {
        loop {
            let lid = self.fed.pop_front()?;
            let inboxes = self.directory.hub.0.lock();
            let listener = inboxes.get(&lid).and_then(|inbox| inbox.listener.as_ref());
            if let Some(listener) = listener.and_then(Weak::upgrade) {
                return Some(listener);
            }
        }
    }
}

impl<Q> fmt::Debug for HubPort<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubPort")
            .field("lid", &self.lid)
            .finish_non_exhaustive()
    }
}
