//! Sockets and connections of a node, found by number where datagrams go.
//!
//! A socket and a driver know their numbers. A datagram that comes for a socket is looked up by address, but for the one that
//! the connection has found last.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use slab::Slab;

use super::id::{Key, LinkId, SocketId};
use super::link::Link;
use super::socket::Socket;

#[derive(Default)]
pub(crate) struct Sockets {
    all: Slab<Socket>,
    by_addr: BTreeMap<SocketAddr, SocketId>,
}

impl Sockets {
    /// A new one, at an address that is free.
    pub(crate) fn insert(&mut self, socket: Socket) -> SocketId {
        let addr = socket.addr;
        let id = SocketId(self.all.insert(socket));
        self.by_addr.insert(addr, id);
        id
    }

    pub(crate) fn remove(&mut self, id: SocketId) -> Option<Socket> {
        let socket = self.all.try_remove(id.0)?;
        self.by_addr.remove(&socket.addr);
        Some(socket)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: SocketId) -> Option<&mut Socket> {
        self.all.get_mut(id.0)
    }

    /// The socket at an address. It is `near` if it is the same as last time.
    #[inline]
    pub(crate) fn at(&mut self, addr: SocketAddr, near: &mut Option<SocketId>) -> Option<SocketId> {
        if let Some(id) = *near
            && let Some(socket) = self.all.get(id.0)
            && socket.addr == addr
        {
            return Some(id);
        }
        *near = self.find(addr);
        *near
    }

    pub(crate) fn find(&self, addr: SocketAddr) -> Option<SocketId> {
        self.by_addr.get(&addr).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_addr.len()
    }

    /// Their addresses, in order.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.by_addr.keys().copied()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Socket> + '_ {
        self.all.iter_mut().map(|(_, socket)| socket)
    }
}

#[derive(Default)]
pub(crate) struct Links {
    /// Those at `free` are vacant, and no key is theirs.
    all: Vec<Link>,
    free: Vec<LinkId>,
    by_key: BTreeMap<Key, LinkId>,
    /// Links that were made.
    last: u64,
}

impl Links {
    /// A new one, which gets a number; there is none with its key.
    pub(crate) fn insert(&mut self, mut link: Link) -> (LinkId, u64) {
        self.last += 1;
        link.number = self.last;
        let free = self.free.pop();
        let id = free.unwrap_or(LinkId(self.all.len()));
        self.by_key.insert(link.key, id);
        match self.all.get_mut(id.0) {
            Some(vacant) => *vacant = link,
            None => self.all.push(link),
        }
        (id, self.last)
    }

    /// Takes one out; `vacant`, which has no number, is in its place.
    pub(crate) fn remove(&mut self, id: LinkId, vacant: Link) -> Option<Link> {
        let link = self.all.get_mut(id.0)?;
        if self.by_key.get(&link.key) != Some(&id) {
            return None;
        }
        self.by_key.remove(&link.key);
        self.free.push(id);
        Some(std::mem::replace(link, vacant))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.all.get_mut(id.0)
    }

    pub(crate) fn find(&self, key: Key) -> Option<LinkId> {
        self.by_key.get(&key).copied()
    }

    /// Those between two addresses, one for each type of service.
    pub(crate) fn between(&self, local: IpAddr, remote: IpAddr) -> Vec<LinkId> {
        let of_peer: RangeInclusive<Key> = (local, remote, 0)..=(local, remote, u8::MAX);
        self.by_key.range(of_peer).map(|(_, id)| *id).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Links that were made, those that were forgotten among them.
    pub(crate) fn made(&self) -> u64 {
        self.last
    }

    /// In the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Link> + '_ {
        self.with_ids().map(|(_, link)| link)
    }

    /// The same, with their numbers.
    pub(crate) fn with_ids(&self) -> impl Iterator<Item = (LinkId, &Link)> + '_ {
        let ids = self.by_key.values();
        ids.filter_map(|id| Some((*id, self.all.get(id.0)?)))
    }

    /// Vacant places are among them, whose addresses are unspecified.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> + '_ {
        self.all.iter_mut()
    }
}
