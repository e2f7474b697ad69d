//! Sockets for datagrams: a socket of UDP, and a queue pair for datagrams at the same address.
//!
//! `wire` has the messages, `pair` the queue pair, `udp` the socket of UDP. A peer's queue pair is known from its first
//! message over UDP. There is no thread: a socket answers such messages in the calls of its program, which wait for
//! both, UDP and the queue pair.

mod pair;
#[cfg(test)]
mod tests;
mod udp;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use self::pair::{Pair, Place, Remote, SLOT};
use self::udp::Udp;
use self::wire::{NOTE_MAX, Note};
use super::options::Options;
use super::socket::{self, Any};
use super::wait::{Awaited, Progress};
use crate::call::Errno;
use crate::rdmacm;

/// Peers whose queue pairs a socket remembers. It forgets one to learn another, and learns it again by UDP.
const PEERS_MAX: usize = 4096;
/// Datagrams that came over UDP and wait to be read. More wait in the kernel.
const UDP_MAX: usize = 64;
/// So many times the queue pair is looked at for each time that UDP is, while datagrams keep arriving there.
const UDP_EVERY: u8 = 16;

/// A socket for datagrams.
pub(super) struct Datagrams {
    pub(super) inner: Awaited<Inner>,
}

/// The variable state. `peers` and `arrived` refer to objects of `pair`.
pub(super) struct Inner {
    peers: BTreeMap<SocketAddr, Remote>,
    arrived: VecDeque<Arrived>,
    udp: Udp,
    pair: Option<Pair>,
    pub(super) connected: Option<SocketAddr>,
    pub(super) options: Options,
    pub(super) is_nonblocking: bool,
    /// Turns since UDP was looked at.
    turns: u8,
}

// SAFETY: the pointers are to objects of this library, which lives as long as the process.
unsafe impl Send for Inner {}

/// A datagram that was not read yet.
enum Arrived {
    InPlace(Place),
    OverUdp(SocketAddr, Vec<u8>),
}

/// A new socket's descriptor: that of its socket of UDP.
pub(super) fn create(domain: c_int, is_nonblocking: bool) -> Result<c_int, Errno> {
    let udp = Udp::new(domain)?;
    let fd = udp.fd();
    let inner = Inner {
        peers: BTreeMap::new(),
        arrived: VecDeque::new(),
        udp,
        pair: None,
        connected: None,
        options: Options::default(),
        is_nonblocking,
        turns: 0,
    };
    let inner = Awaited::new(inner);
    socket::add(fd, Any::Datagrams(Arc::new(Datagrams { inner })));
    Ok(fd)
}

impl Inner {
    /// Binds it: to the address of the device if that one is a wildcard.
    pub(super) fn bind(&mut self, addr: SocketAddr) -> Result<(), Errno> {
        if self.pair.is_some() {
            return Err(Errno::INVAL);
        }
        let ip = rdmacm::own_address(addr.ip().to_canonical())?;
        self.bind_own(SocketAddr::new(ip, addr.port()))
    }

    fn bind_own(&mut self, addr: SocketAddr) -> Result<(), Errno> {
        self.udp.bind(addr, &self.options)?;
        let pair = Pair::new(self.udp.local()?, &self.options);
        if pair.is_err() {
            // Its descriptor stays the same, and can be bound again.
            self.udp.renew()?;
        }
        self.pair = Some(pair?);
        Ok(())
    }

    /// Binds it, if it is not bound, to where that peer is reached from.
    fn bind_for(&mut self, peer: SocketAddr) -> Result<(), Errno> {
        if self.pair.is_some() {
            return Ok(());
        }
        self.bind_own(SocketAddr::new(rdmacm::address_for(peer.ip())?, 0))
    }

    /// Sets the peer of [`Datagrams::send`].
    pub(super) fn connect(&mut self, peer: SocketAddr) -> Result<(), Errno> {
        let peer = canonical(peer);
        self.bind_for(peer)?;
        self.udp.connect(peer)?;
        self.connected = Some(peer);
        Ok(())
    }

    /// The address that it is bound to; a wildcard before.
    pub(super) fn local(&self) -> SocketAddr {
        match &self.pair {
            Some(pair) => self.udp.shown(pair.local()),
            None if self.udp.is_v6() => (Ipv6Addr::UNSPECIFIED, 0).into(),
            None => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    /// The peer that it is connected to.
    pub(super) fn remote(&self) -> Option<SocketAddr> {
        self.connected.map(|peer| self.udp.shown(peer))
    }

    pub(super) fn is_bound(&self) -> bool {
        self.pair.is_some()
    }

    pub(super) fn may_receive(&self) -> bool {
        !self.arrived.is_empty()
    }

    pub(super) fn may_send(&self) -> bool {
        self.pair.as_ref().is_none_or(Pair::may_send)
    }

    fn all_sent(&self) -> bool {
        self.pair.as_ref().is_none_or(Pair::all_sent)
    }

    /// Takes the messages of UDP.
    fn advance_udp(&mut self) {
        self.turns = 0;
        let mut room = [0; NOTE_MAX + SLOT];
        for _ in 0..UDP_MAX {
            if self.arrived.len() >= UDP_MAX {
                return;
            }
            let Some((length, from)) = self.udp.receive(&mut room) else {
                return;
            };
            self.hear(&room[..length], canonical(from));
        }
    }

    fn hear(&mut self, bytes: &[u8], from: SocketAddr) {
        let Some((note, length)) = Note::parse(bytes) else {
            return;
        };
        let Some(pair) = &self.pair else {
            return;
        };
        if note.ip.is_ipv4() != from.is_ipv4() {
            return;
        }
        if note.has_data {
            // If it is lost, the peer's next datagram asks again.
            let _ = self.udp.send(&own_note(pair, false), &[], from);
        }
        let is_known = self
            .peers
            .get(&from)
            .is_some_and(|known| known.qpn == note.qpn);
        if !is_known && let Ok(remote) = pair.remote(from, note.qpn) {
            if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&from) {
                self.peers.pop_first();
            }
            self.peers.insert(from, remote);
        }
        if note.has_data {
            let data = bytes[length..].to_vec();
            self.arrived.push_back(Arrived::OverUdp(from, data));
        }
    }

    fn read(&self, which: &Arrived, into: &mut [u8]) -> (usize, SocketAddr) {
        let (length, from) = match (which, &self.pair) {
            (Arrived::InPlace(place), Some(pair)) => (pair.read(place, into), place.from),
            (Arrived::InPlace(place), None) => (0, place.from),
            (Arrived::OverUdp(from, data), _) => {
                let length = data.len().min(into.len());
                into[..length].copy_from_slice(&data[..length]);
                (length, *from)
            }
        };
        (length, self.udp.shown(from))
    }
}

impl Progress for Inner {
    fn advance(&mut self) {
        let Some(pair) = &mut self.pair else {
            return;
        };
        pair.advance(|place| self.arrived.push_back(Arrived::InPlace(place)));
        self.turns += 1;
        if self.arrived.is_empty() || self.turns >= UDP_EVERY {
            self.advance_udp();
        }
    }

    fn arm(&mut self) {
        if let Some(pair) = &self.pair {
            pair.queue().arm();
        }
    }

    fn descriptors(&self) -> Vec<c_int> {
        let pair = self.pair.iter().map(|pair| pair.queue().fd());
        std::iter::once(self.udp.fd()).chain(pair).collect()
    }
}

impl Datagrams {
    /// Sends a datagram to that peer, or to the one that it is connected to.
    pub(super) fn send(
        &self,
        data: &[u8],
        flags: c_int,
        to: Option<SocketAddr>,
    ) -> Result<usize, Errno> {
        let mut inner = self.inner.lock();
        let waits = !inner.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
        let to = to.map(canonical).or(inner.connected);
        let to = to.ok_or(Errno(libc::EDESTADDRREQ))?;
        inner.bind_for(to)?;
        if !inner.peers.contains_key(&to) {
            // It may have answered since.
            inner.advance_udp();
        }
        if inner.peers.contains_key(&to) {
            self.inner
                .wait(&mut inner, waits, |inner| inner.may_send())?;
        }
        let Inner {
            pair: Some(pair),
            peers,
            udp,
            ..
        } = &mut *inner
        else {
            return Err(Errno(libc::EIO));
        };
        match peers.get(&to) {
            Some(remote) => pair.send(data, remote)?,
            None => {
                let note = own_note(pair, true);
                if note.len() + data.len() > SLOT {
                    return Err(Errno(libc::EMSGSIZE));
                }
                udp.send(&note, data, to)?;
            }
        }
        Ok(data.len())
    }

    /// Reads a datagram, or as much of it as there is room for. Returns how many bytes, and who sent it.
    pub(super) fn receive(
        &self,
        into: &mut [u8],
        flags: c_int,
    ) -> Result<(usize, SocketAddr), Errno> {
        let mut inner = self.inner.lock();
        if !inner.is_bound() {
            return Err(Errno::INVAL);
        }
        let waits = !inner.is_nonblocking && flags & libc::MSG_DONTWAIT == 0;
        self.inner
            .wait(&mut inner, waits, |inner| inner.may_receive())?;
        let Some(first) = inner.arrived.pop_front() else {
            return Err(Errno(libc::EAGAIN));
        };
        let read = inner.read(&first, into);
        match (first, &inner.pair) {
            (first, _) if flags & libc::MSG_PEEK != 0 => inner.arrived.push_front(first),
            (Arrived::InPlace(place), Some(pair)) => pair.give_back(place),
            _ => {}
        }
        Ok(read)
    }

    /// Waits until all datagrams have left.
    pub(super) fn flush(&self) -> Result<(), Errno> {
        let mut inner = self.inner.lock();
        self.inner.wait(&mut inner, true, |inner| inner.all_sent())
    }

    pub(super) fn close(&self) -> Result<(), Errno> {
        let flushed = self.flush();
        let mut inner = self.inner.lock();
        inner.peers.clear();
        inner.arrived.clear();
        inner.pair = None;
        inner.udp.close();
        flushed
    }
}

/// What this socket tells a peer over UDP.
fn own_note(pair: &Pair, has_data: bool) -> arrayvec::ArrayVec<u8, NOTE_MAX> {
    let note = Note {
        has_data,
        qpn: pair.qpn(),
        ip: pair.local().ip(),
    };
    let mut room = [0; NOTE_MAX];
    let length = note.emit(&mut room);
    room[..length].iter().copied().collect()
}

fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
