//! What a node knows: sockets, connections, congestion. All of it is under one lock.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::task::Waker;

use oorandom::Rand32;
use verbs_cm::ConnectRequest;
use verbs_core::Mr;
use verbs_core::mad::Time;
use verbs_core::sync::{Arc, AtomicWaker};

use crate::config::{Config, DATAGRAM_CHARGE, SEND_MESSAGES_MAX};
use crate::error::SendError;
use crate::machine::{Event, Machine, Outgoing, State as Stage, Terms};
use crate::node::operations::{Key, Operations};
use crate::rdma::{Mapped, Notification, RdmaStatus, SendOptions};
use crate::socket::{Counters, Datagram};
use crate::wire::{
    CongestionMap, Cookie, Extension, Extensions, Handshake, MESSAGE_LEN_MAX, PING_PORT,
};

/// A connection, and what its driver is told.
pub(crate) struct Link {
    pub(crate) machine: Machine,
    /// Wakes the driver.
    pub(crate) waker: Arc<AtomicWaker>,
    /// A request of the peer that was accepted: with what it says, and what is answered.
    pub(crate) request: Option<(ConnectRequest, Handshake, Handshake)>,
}

/// A socket.
#[derive(Default)]
pub(crate) struct Socket {
    pub(crate) queue: VecDeque<Datagram>,
    /// Bytes in the queue, with the charge for each datagram.
    queued: usize,
    /// Bytes and messages that wait for acknowledgement.
    unacked: (usize, usize),
    pub(crate) readers: Vec<Waker>,
    pub(crate) writers: Vec<Waker>,
    /// Groups of ports that are monitored, and those that became free.
    pub(crate) monitored: u64,
    pub(crate) freed: u64,
    pub(crate) counters: Counters,
    /// The type of service of what it sends.
    pub(crate) tos: u8,
    /// Ends of operations that the program has not asked for yet, and operations that have not ended.
    notifications: VecDeque<Notification>,
    operations: usize,
    /// Mappings that end when a peer has used them.
    pub(crate) once: Vec<Arc<Mapped>>,
}

impl Socket {
    /// Whether there is something for the program to take.
    pub(crate) fn has_news(&self) -> bool {
        !self.queue.is_empty() || !self.notifications.is_empty() || self.freed != 0
    }
}

pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) generation: u32,
    pub(crate) closed: bool,
    pub(crate) sockets: BTreeMap<SocketAddr, Socket>,
    pub(crate) links: BTreeMap<Key, Link>,
    /// For each address of the node, its congested ports.
    pub(crate) maps: BTreeMap<IpAddr, CongestionMap>,
    /// Connections whose drivers are to be started when the lock is free.
    pub(crate) newborn: Vec<Key>,
    /// Who is to be woken when the lock is free.
    pub(crate) wakes: Vec<Waker>,
    /// Operations that have not ended.
    pub(crate) operations: Operations,
    /// Keys that are taken away, which happens when the lock is free.
    pub(crate) released: Vec<Mr>,
    random: Rand32,
}

impl State {
    pub(crate) fn new(config: Config, generation: u32) -> Self {
        let addresses = config.addresses.iter();
        Self {
            maps: addresses
                .map(|addr| (*addr, CongestionMap::default()))
                .collect(),
            config,
            generation,
            closed: false,
            sockets: BTreeMap::new(),
            links: BTreeMap::new(),
            newborn: Vec::new(),
            wakes: Vec::new(),
            operations: Operations::default(),
            released: Vec::new(),
            random: Rand32::new(generation.into()),
        }
    }

    /// A port of those.
    pub(crate) fn draw_port(&mut self, ports: RangeInclusive<u16>) -> u16 {
        let (first, last) = (u32::from(*ports.start()), u32::from(*ports.end()));
        let drawn = self.random.rand_range(first..last + 1);
        // It is one of them.
        u16::try_from(drawn).unwrap_or(*ports.start())
    }

    /// The connection, made if there is none. `None` at the limit.
    pub(crate) fn link(&mut self, key: Key) -> Option<&mut Link> {
        if !self.links.contains_key(&key) {
            if self.links.len() >= self.config.connections_max {
                return None;
            }
            let terms = Terms {
                local: key.0,
                remote: key.1,
                tos: key.2,
                receives: self.config.receives,
                generation: self.generation,
                seed: u64::from(self.generation) << 32 | self.links.len() as u64,
            };
            let link = Link {
                machine: Machine::new(terms),
                waker: Arc::new(AtomicWaker::new()),
                request: None,
            };
            self.links.insert(key, link);
            self.newborn.push(key);
        }
        self.links.get_mut(&key)
    }

    /// Sends a datagram, or says why not.
    pub(crate) fn send(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
        options: &SendOptions,
    ) -> Result<(), SendError> {
        self.check_destination(from, to, options)?;
        let extensions = extensions_of(options);
        let (len, buffer) = (payload.len(), self.config.send_buffer);
        let max = buffer.min(MESSAGE_LEN_MAX);
        if len > max {
            return Err(SendError::TooLong { len, max });
        }
        let socket = self.sockets.get(&from).ok_or(SendError::Closed)?;
        let (tos, (bytes, messages)) = (socket.tos, socket.unacked);
        let told = socket.notifications.len() + socket.operations;
        let has_room = options.rdma.is_none() || told < SEND_MESSAGES_MAX;
        if bytes + len > buffer || messages >= SEND_MESSAGES_MAX || !has_room {
            return Err(SendError::WouldBlock);
        }
        let ack_required = bytes + len > buffer / 2 || messages > SEND_MESSAGES_MAX / 2;
        if let Some(map) = self.maps.get(&to.ip()) {
            if map.is_congested(to.port()) {
                return Err(SendError::Congested(to));
            }
            self.loop_back(from, to, payload, extensions);
        } else {
            let connections = self.config.connections_max;
            let key = (from.ip(), to.ip(), tos);
            let operation = options.rdma.as_ref();
            let operation = operation.map(|rdma| (self.operations.next_id(), rdma));
            let link = self.link(key);
            let link = link.ok_or(SendError::Connections(connections))?;
            if link.machine.is_congested(to.port()) {
                return Err(SendError::Congested(to));
            }
            link.machine.send(Outgoing {
                source: from.port(),
                destination: to.port(),
                payload: Arc::from(payload),
                ack_required,
                extensions,
                rdma: operation.map(|(id, rdma)| rdma.work(id)),
            });
            let waker = link.waker.take();
            self.wakes.extend(waker);
            if let Some(socket) = self.sockets.get_mut(&from) {
                socket.unacked = (bytes + len, messages + 1);
                socket.operations += usize::from(operation.is_some());
            }
            if let Some((id, rdma)) = operation {
                self.operations.queue(id, rdma, (from, to), key);
            }
        }
        if let Some(socket) = self.sockets.get_mut(&from) {
            socket.counters.sent += 1;
            socket.counters.bytes_sent += len as u64;
        }
        Ok(())
    }

    /// Whether the socket may send there, and carry that out before.
    fn check_destination(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        options: &SendOptions,
    ) -> Result<(), SendError> {
        let is_destination =
            !to.ip().is_unspecified() && !to.ip().is_multicast() && to.is_ipv4() == from.is_ipv4();
        if !is_destination {
            return Err(SendError::Destination(to));
        }
        if let Some(rdma) = &options.rdma {
            if self.maps.contains_key(&to.ip()) {
                return Err(SendError::RdmaWithinNode(to));
            }
            rdma.check()?;
        }
        Ok(())
    }

    /// From one socket of the node to another one, without a connection.
    fn loop_back(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
        extensions: Extensions,
    ) {
        match to.port() {
            PING_PORT => self.deliver(from, to, Vec::new(), Extensions::default()),
            _ => self.deliver(to, from, payload.to_vec(), extensions),
        }
    }

    /// A datagram has come for `to`. Where there is no socket it is discarded.
    fn deliver(
        &mut self,
        to: SocketAddr,
        from: SocketAddr,
        payload: Vec<u8>,
        extensions: Extensions,
    ) {
        let Some(socket) = self.sockets.get_mut(&to) else {
            return;
        };
        // The operation has been carried out, whatever becomes of its datagram.
        for extension in extensions.iter() {
            if let Extension::Rdma(rkey) = extension {
                let used = socket
                    .once
                    .extract_if(.., |mapped| mapped.cookie.rkey == rkey);
                self.released
                    .extend(used.filter_map(|mapped| mapped.release()));
            }
        }
        let charge = payload.len() + DATAGRAM_CHARGE;
        if socket.queued + charge > self.config.receive_max {
            socket.counters.discarded += 1;
            return;
        }
        let cookie = extensions.iter().find_map(|extension| match extension {
            Extension::Destination(cookie) => Some(cookie),
            _ => None,
        });
        socket.counters.received += 1;
        socket.counters.bytes_received += payload.len() as u64;
        socket.queued += charge;
        socket.queue.push_back(Datagram {
            from,
            payload,
            cookie: cookie.map(Cookie::value),
        });
        self.wakes.append(&mut socket.readers);
        if socket.queued > self.config.receive_buffer {
            self.congest(to, true);
        }
    }

    /// The next datagram of a socket.
    pub(crate) fn take(&mut self, at: SocketAddr) -> Option<Datagram> {
        let socket = self.sockets.get_mut(&at)?;
        let datagram = socket.queue.pop_front()?;
        socket.queued -= datagram.payload.len() + DATAGRAM_CHARGE;
        if socket.queued <= self.config.receive_buffer / 2 {
            self.congest(at, false);
        }
        Some(datagram)
    }

    /// The end of an operation that was to be told.
    pub(crate) fn take_notification(&mut self, at: SocketAddr) -> Option<Notification> {
        self.sockets.get_mut(&at)?.notifications.pop_front()
    }

    /// Says whether a port is congested; peers are told of changes.
    fn congest(&mut self, at: SocketAddr, congested: bool) {
        let Some(map) = self.maps.get_mut(&at.ip()) else {
            return;
        };
        if !map.set(at.port(), congested) {
            return;
        }
        for (key, link) in &mut self.links {
            if key.0 == at.ip() {
                link.machine.congestion_changed(map);
                self.wakes.extend(link.waker.take());
            }
        }
        if !congested {
            self.freed(1 << (at.port() % 64), None);
        }
    }

    /// Ports became free, at a peer of the address `at` or in this node.
    fn freed(&mut self, groups: u64, at: Option<IpAddr>) {
        for (local, socket) in &mut self.sockets {
            if at.is_some_and(|at| at != local.ip()) {
                continue;
            }
            self.wakes.append(&mut socket.writers);
            let news = groups & socket.monitored;
            if news != 0 {
                socket.freed |= news;
                self.wakes.append(&mut socket.readers);
            }
        }
    }

    /// Hands on what a connection says.
    pub(crate) fn dispatch(&mut self, key: Key) {
        let (local, remote, _) = key;
        while let Some(link) = self.links.get_mut(&key)
            && let Some(event) = link.machine.poll_event()
        {
            match event {
                Event::Datagram(incoming) => {
                    let to = SocketAddr::new(local, incoming.destination);
                    let from = SocketAddr::new(remote, incoming.source);
                    self.deliver(to, from, incoming.payload, incoming.extensions);
                }
                Event::Acked { source, len } => self.settle(SocketAddr::new(local, source), 1, len),
                Event::Congestion(groups) => self.freed(groups, Some(local)),
            }
        }
    }

    /// Messages of a socket no longer wait for acknowledgement.
    fn settle(&mut self, at: SocketAddr, messages: usize, bytes: usize) {
        if let Some(socket) = self.sockets.get_mut(&at) {
            let (unacked, count) = socket.unacked;
            socket.unacked = (
                unacked.saturating_sub(bytes),
                count.saturating_sub(messages),
            );
            self.wakes.append(&mut socket.writers);
        }
    }

    /// Takes back what was not acknowledged, to one destination or to all.
    pub(crate) fn cancel(&mut self, from: SocketAddr, to: Option<SocketAddr>) -> usize {
        let mut total = (0, 0);
        for (key, link) in &mut self.links {
            let is_meant = key.0 == from.ip() && to.is_none_or(|to| to.ip() == key.1);
            if is_meant {
                let port = to.map(|to| to.port());
                let (count, bytes) = link.machine.cancel(from.port(), port);
                total = (total.0 + count, total.1 + bytes);
            }
        }
        self.settle(from, total.0, total.1);
        for end in self.operations.cancel(from, to) {
            self.notify(from, end);
        }
        total.0
    }

    /// An operation has ended.
    pub(crate) fn rdma_ended(&mut self, id: u64, status: RdmaStatus) {
        if let Some((from, end)) = self.operations.ended(id, status) {
            self.notify(from, end);
        }
    }

    /// Tells a socket of the end of an operation, if it wants to hear of it.
    fn notify(&mut self, at: SocketAddr, end: Option<Notification>) {
        if let Some(socket) = self.sockets.get_mut(&at) {
            socket.operations = socket.operations.saturating_sub(1);
            socket.notifications.extend(end);
            self.wakes.append(&mut socket.readers);
            self.wakes.append(&mut socket.writers);
        }
    }

    /// A socket is closed: what it has not sent is cancelled, what it has not read is gone.
    pub(crate) fn close(&mut self, at: SocketAddr) -> Option<Socket> {
        self.cancel(at, None);
        self.congest(at, false);
        let mut socket = self.sockets.remove(&at)?;
        self.wakes.append(&mut socket.readers);
        self.wakes.append(&mut socket.writers);
        Some(socket)
    }

    /// The driver of a connection lost its queue pair, or did not get one.
    pub(crate) fn lost(&mut self, key: Key, now: Time) {
        if let Some(link) = self.links.get_mut(&key) {
            link.machine.lost(now);
            self.wakes.extend(link.waker.take());
        }
        for (from, end) in self.operations.lost(key) {
            self.notify(from, end);
        }
        self.dispatch(key);
    }

    /// Bytes and messages of a socket that wait for acknowledgement.
    pub(crate) fn unacked(&self, at: SocketAddr) -> (usize, usize) {
        self.sockets
            .get(&at)
            .map_or((0, 0), |socket| socket.unacked)
    }

    /// Whether the connection is up.
    pub(crate) fn is_up(&self, key: Key) -> bool {
        let link = self.links.get(&key);
        link.is_some_and(|link| link.machine.state() == Stage::Up)
    }
}

/// What a datagram says beside its payload: a place in memory, and the key that is used by the operation before it.
fn extensions_of(options: &SendOptions) -> Extensions {
    let mut extensions = Extensions::default();
    let used = options
        .rdma
        .as_ref()
        .map(|rdma| Extension::Rdma(rdma.cookie.rkey));
    let place = options.cookie.map(Extension::Destination);
    for extension in used.into_iter().chain(place) {
        // Both take 14 bytes of 16.
        let _fits = extensions.push(extension);
    }
    extensions
}
