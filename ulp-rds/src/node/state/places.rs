//! Which connections have a place in the node's table: who gets one, and who gives way.
//!
//! A link is made when a socket sends there, or when a connection that a peer asked for is established. It stays while
//! its connection is there or a socket has something queued. When it is lost it remembers what has come and what was
//! acknowledged, so that nothing comes twice; some time later it is forgotten, or sooner if its place is wanted: the one
//! that was lost first goes first.

use std::net::{IpAddr, Ipv4Addr};
use std::task::Poll;

use verbs_core::time::Instant;

use super::{State, arming};
use crate::machine::{ACK_INTERVAL_MAX, Asked, Machine, Terms};
use crate::node::half_open::Arrived;
use crate::node::id::{Key, LinkId};
use crate::node::link::Link;

/// Of no link.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// From a number of links that were forgotten to one that is added to that of the node's life: odd, so that all are different, and
/// far from small ones.
const SPREAD: u32 = 0x9e37_79b9;

impl State {
    /// The connection that a socket sends over, made if there is none. `None` at the limit.
    pub(crate) fn link(&mut self, key: Key) -> Option<LinkId> {
        if let Some(id) = self.links.find(key) {
            return Some(id);
        }
        if self.links.len() >= self.config.connections_max {
            let first = self.lost_first(|_| true)?;
            self.forget(first);
        }
        Some(self.make(key))
    }

    /// A peer asks, or somebody in its name: a number for the request, which gets a place among those that are not
    /// established, and what is answered. `None`: it is refused.
    pub(in crate::node) fn asked(&mut self, key: Key) -> Option<(u64, Asked)> {
        if self.closed {
            return None;
        }
        let asked = match self.links.find(key) {
            Some(id) => self.links.get_mut(id)?.machine.asked(),
            None if self.is_full(key.1) && self.gives_way(key.1).is_none() => return None,
            None => Machine::new(self.terms(key)).asked(),
        };
        let (max, of_address_max) = (
            self.config.half_open_max,
            self.config.half_open_per_address_max,
        );
        let asked = asked.ok()?;
        let (number, out) = self.half_open.enter(key, max, of_address_max);
        self.due.wakes.extend(out);
        Some((number, asked))
    }

    /// A connection that a peer asked for is established: its link takes it, and what was there ends.
    ///
    /// # Errors
    /// The connection that has no place: this one, or one that waited to be taken.
    pub(in crate::node) fn arrived(
        &mut self,
        arrived: Box<Arrived>,
        now: Instant,
    ) -> Result<(), Box<Arrived>> {
        self.sweep(now);
        let id = match self.links.find(arrived.key) {
            _ if self.closed => None,
            Some(id) => Some(id),
            None => self.link_of_peer(arrived.key),
        };
        let link = id.and_then(|id| self.links.get_mut(id));
        let Some(link) = link else {
            return Err(arrived);
        };
        let is_older = |waits: &Arrived| waits.number > arrived.number;
        if link.arrived.as_deref().is_some_and(is_older)
            || link.machine.supersede(&arrived.asked).is_err()
        {
            return Err(arrived);
        }
        let before = link.arrived.replace(arrived);
        self.due.wakes.extend(link.driver.clone());
        before.map_or(Ok(()), Err)
    }

    /// Ready when a connection that the peer asked for waits to be taken, or the node is closed.
    pub(in crate::node) fn has_arrived(&mut self, id: LinkId) -> Poll<()> {
        let link = self.links.get_mut(id);
        match self.closed || link.is_none_or(|link| link.arrived.is_some()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// A new link of a peer that has shown itself. `None` if none gives way to it.
    fn link_of_peer(&mut self, key: Key) -> Option<LinkId> {
        if self.is_full(key.1) {
            let out = self.gives_way(key.1)?;
            self.forget(out);
        }
        Some(self.make(key))
    }

    /// Whether another link of a peer needs the place of one.
    fn is_full(&self, remote: IpAddr) -> bool {
        self.links.len() >= self.config.connections_max || self.has_its_part(remote)
    }

    fn has_its_part(&self, remote: IpAddr) -> bool {
        let of_it = self.links.iter().filter(|link| link.key.1 == remote);
        of_it.count() >= self.config.connections_per_address_max
    }

    /// The link that makes way for another one of a peer: one of the same peer, if that has its part.
    fn gives_way(&self, remote: IpAddr) -> Option<LinkId> {
        let has_its_part = self.has_its_part(remote);
        self.lost_first(|link| !has_its_part || link.key.1 == remote)
    }

    /// Of those that may be forgotten, the one that was lost first.
    fn lost_first(&self, of: impl Fn(&Link) -> bool) -> Option<LinkId> {
        let lost = self.links.with_ids();
        let lost = lost.filter(|(_, link)| link.is_forgettable() && of(link));
        lost.min_by_key(|(_, link)| link.lost_at).map(|(id, _)| id)
    }

    /// Forgets what was lost long ago.
    pub(in crate::node) fn sweep(&mut self, now: Instant) {
        let links = self.links.with_ids();
        let is_old = |link: &Link| now.since(link.lost_at) >= self.config.forget_after;
        let old = links.filter(|(_, link)| link.is_forgettable() && is_old(link));
        let old: Vec<LinkId> = old.map(|(id, _)| id).collect();
        for id in old {
            self.forget(id);
        }
    }

    fn make(&mut self, key: Key) -> LinkId {
        let link = Link::new(key, Machine::new(self.terms(key)));
        let (id, number) = self.links.insert(link);
        self.due.newborn.push((id, number));
        id
    }

    /// Nothing is left of a link; its driver ends.
    fn forget(&mut self, id: LinkId) {
        let nowhere = (NOWHERE, NOWHERE, 0);
        let vacant = Link::new(nowhere, Machine::new(self.terms(nowhere)));
        arming::is_armed(self, id);
        let Some(link) = self.links.remove(id, vacant) else {
            return;
        };
        self.due.wakes.extend(link.driver);
        self.forgotten += 1;
        for socket in self.sockets.iter_mut() {
            socket.near = socket.near.filter(|near| *near != id);
            socket.route = socket.route.filter(|(_, route)| *route != id);
        }
    }

    /// A link whose peer knows an earlier one, which was forgotten, begins another life.
    fn terms(&self, (local, remote, tos): Key) -> Terms {
        let lives = (self.forgotten as u32).wrapping_mul(SPREAD);
        Terms {
            local,
            remote,
            tos,
            receives: self.config.receives,
            ack_interval: (self.config.sends / 2).clamp(1, ACK_INTERVAL_MAX),
            generation: self.generation.wrapping_add(lives).max(1),
            seed: u64::from(self.generation) << 32 | self.links.made(),
        }
    }
}
