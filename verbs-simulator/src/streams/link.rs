//! A host of the network, as an RNIC sees it: what makes sockets, and the sockets.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use verbs_core::Seed;
use verbs_core::sync::{Arc, Weak};
use verbs_link::Waiter;
use verbs_link::port_space::{PortError, PortUser};
use verbs_link::stream::{Bound, Interest, Stream, StreamLink, Token};
use verbs_link::time::Due;

use super::conn::{Conn, Found, Item};
use super::{Core, Listens, SOON, State, Taken};

/// A link attached to a host of a [`StreamNetwork`](crate::StreamNetwork): an RNIC is made
/// [over](hca_sim::Hca::over_streams) it.
pub struct StreamPort {
    core: Arc<Core>,
    host: usize,
    owner: u64,
    addresses: Vec<IpAddr>,
}

impl StreamPort {
    pub(super) fn new(core: Arc<Core>, host: usize, owner: u64, addresses: &[IpAddr]) -> Self {
        Self {
            core,
            host,
            owner,
            addresses: addresses.to_vec(),
        }
    }
}

impl StreamLink for StreamPort {
    fn addresses(&self) -> Vec<IpAddr> {
        self.addresses.clone()
    }

    /// Wildcards are nobody's addresses here.
    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        if !self.addresses.contains(&local.ip()) {
            return Err(PortError::AddrNotAvailable { addr: local });
        }
        let mut state = self.core.state.lock();
        let mut addr = local;
        while addr.port() == 0 || local.port() == 0 && state.ports.contains_key(&addr) {
            addr.set_port(state.free_port());
        }
        if state.ports.contains_key(&addr) {
            let by = PortUser::Endpoint;
            return Err(PortError::AddrInUse { addr, by });
        }
        let taken = Taken {
            host: self.host,
            owner: self.owner,
            listens: None,
        };
        state.ports.insert(addr, taken);
        let core = Arc::clone(&self.core);
        Ok(Box::new(Port { core, addr }))
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        let state = self.core.state.lock();
        let window = state.config.window;
        for taken in state.ports.values() {
            let is_mine = taken.host == self.host && taken.owner == self.owner;
            if let (true, Some(listens)) = (is_mine, &taken.listens)
                && !listens.waiting.is_empty()
            {
                tokens.push(listens.token);
            }
        }
        for (_, conn) in &state.conns {
            let mine = [0, 1].into_iter().filter_map(|end| {
                let is_mine = conn.hosts[end].is_some_and(|(host, _)| host == self.host);
                is_mine.then(|| conn.ready(end, self.owner, window))?
            });
            tokens.extend(mine);
        }
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        None
    }

    fn attach(&self, listener: Weak<dyn Due>) {
        let mut state = self.core.state.lock();
        let host = &mut state.hosts[self.host];
        if host.owner == self.owner {
            host.listener = Some(listener);
        }
    }

    fn seed(&self) -> Seed {
        Seed::from(self.core.state.lock().draw.number())
    }
}

impl fmt::Debug for StreamPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamPort")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// An address that is taken, until this is dropped.
struct Port {
    core: Arc<Core>,
    addr: SocketAddr,
}

impl Bound for Port {
    fn local(&self) -> SocketAddr {
        self.addr
    }

    fn listen(&mut self, backlog: u32, token: Token) -> Result<(), PortError> {
        let mut state = self.core.state.lock();
        if let Some(taken) = state.ports.get_mut(&self.addr) {
            taken.listens = Some(Listens {
                token,
                backlog: backlog.max(1) as usize,
                waiting: Vec::new(),
            });
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let mut state = self.core.state.lock();
        let taken = state.ports.get_mut(&self.addr);
        let listens = taken.and_then(|taken| taken.listens.as_mut());
        let listens = listens.filter(|listens| !listens.waiting.is_empty());
        let key = listens.ok_or(io::ErrorKind::WouldBlock)?.waiting.remove(0);
        let Some(conn) = state.conns.get(key) else {
            return Err(io::ErrorKind::ConnectionAborted.into());
        };
        Ok(Box::new(Socket {
            core: Arc::clone(&self.core),
            key,
            end: 1,
            addresses: conn.addresses,
            segment: state.config.segment,
            port: None,
        }))
    }

    fn connect(self: Box<Self>, remote: SocketAddr, token: Token) -> io::Result<Box<dyn Stream>> {
        let mut state = self.core.state.lock();
        let taken = state.ports.get(&self.addr);
        let host = taken.map(|taken| (taken.host, taken.owner));
        let key = self.core.connect(&mut state, host, self.addr, remote);
        let key = key.ok_or(io::ErrorKind::HostUnreachable)?;
        let segment = state.config.segment;
        drop(state);
        let mut socket = Socket {
            core: Arc::clone(&self.core),
            key,
            end: 0,
            addresses: [self.addr, remote],
            segment,
            port: Some(*self),
        };
        socket.watch(token, Interest::Both)?;
        Ok(Box::new(socket))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        let taken = state.ports.remove(&self.addr);
        let waiting = taken.and_then(|taken| taken.listens);
        // Nobody accepts them any longer.
        for key in waiting.into_iter().flat_map(|listens| listens.waiting) {
            if let Some(conn) = state.conns.get_mut(key) {
                let _ = conn.close(1);
                self.core.push(&mut state, key, 1, Item::Reset);
            }
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({})", self.addr)
    }
}

/// One end of a connection.
struct Socket {
    core: Arc<Core>,
    key: usize,
    end: usize,
    addresses: [SocketAddr; 2],
    segment: usize,
    /// The number of a connection that was made from here is held as long as it.
    port: Option<Port>,
}

impl Socket {
    fn with<T>(&self, with: impl FnOnce(&mut State, usize) -> T) -> T {
        with(&mut self.core.state.lock(), self.key)
    }

    fn on_conn<T>(&self, with: impl FnOnce(&mut Conn) -> T) -> io::Result<T> {
        self.with(|state, key| {
            let conn = state.conns.get_mut(key);
            conn.map(with).ok_or(io::ErrorKind::ConnectionReset.into())
        })
    }
}

impl Stream for Socket {
    /// Reads all that has come, or a drawn part of it; then the host is called again.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (end, core) = (self.end, &self.core);
        self.with(|state, key| {
            let State {
                conns,
                draw,
                config,
                ..
            } = state;
            let conn = conns.get_mut(key).ok_or(io::ErrorKind::ConnectionReset)?;
            let mut max = into.len();
            if config.splits && draw.below(4) == 0 {
                max = draw.within(1..=max.max(1) as u64) as usize;
            }
            let max = max.min(into.len());
            match conn.read(end, &mut into[..max]) {
                Found::Bytes(count) => {
                    // The sender has room again.
                    core.wake(conn.hosts[1 - end], config.latency);
                    if conn.has_bytes(end) {
                        core.wake(conn.hosts[end], SOON);
                    }
                    Ok(count)
                }
                Found::End => Ok(0),
                Found::Nothing => Err(io::ErrorKind::WouldBlock.into()),
                Found::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            }
        })
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (end, core) = (self.end, &self.core);
        let direction = [self.addresses[end], self.addresses[1 - end]];
        self.with(|state, key| {
            let State {
                conns,
                draw,
                config,
                mutator,
                ..
            } = state;
            let conn = conns.get_mut(key).ok_or(io::ErrorKind::ConnectionReset)?;
            let mut count = conn.room(end, config.window)?.min(bytes.len());
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if config.splits && draw.below(4) == 0 {
                count = draw.within(1..=count as u64) as usize;
            }
            let passed = mutator.pass(direction, &bytes[..count]);
            conn.sent(end, passed.bytes.len());
            if passed.is_cut {
                for end in [0, 1] {
                    core.push(state, key, end, Item::Reset);
                }
            } else {
                core.push(state, key, end, Item::Bytes(passed.bytes));
            }
            Ok(count)
        })
    }

    fn finish(&mut self) {
        let (end, core) = (self.end, &self.core);
        self.with(|state, key| {
            let conn = state.conns.get_mut(key);
            if conn.is_some_and(|conn| !conn.finish(end)) {
                core.push(state, key, end, Item::End);
            }
        });
    }

    fn connected(&mut self) -> io::Result<bool> {
        Ok(self.on_conn(|conn| conn.is_connected(self.end))??)
    }

    fn watch(&mut self, token: Token, interest: Interest) -> io::Result<()> {
        let host = self.on_conn(|conn| {
            let is_new = conn.watch(self.end, token, interest);
            conn.hosts[self.end].filter(|_| is_new)
        })?;
        // It may have already what it is waited for from now on.
        self.core.wake(host, SOON);
        Ok(())
    }

    fn segment_max(&self) -> usize {
        self.segment
    }

    fn local(&self) -> SocketAddr {
        self.addresses[self.end]
    }

    fn peer(&self) -> SocketAddr {
        self.addresses[1 - self.end]
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let (end, core) = (self.end, &self.core);
        self.with(|state, key| {
            let item = state.conns.get_mut(key).and_then(|conn| conn.close(end));
            if let Some(item) = item {
                core.push(state, key, end, item);
            }
            state.sweep(key);
        });
        // The number is free again, under a lock of its own.
        drop(self.port.take());
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({} to {})", self.local(), self.peer())
    }
}
