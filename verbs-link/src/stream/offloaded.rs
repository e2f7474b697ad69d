//! Streams that something with a TCP of its own carries, at port numbers of this host.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use verbs_core::Seed;
use verbs_core::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Release},
};
use verbs_core::sync::{Arc, Mutex, Weak};

use super::link::{Bound, Interest, Stream, StreamLink, Token};
use crate::port_space::{BoundPort, PortError, PortUse, ROUNDS_MAX, TcpPortSpace};
use crate::time::{Due, Waiter};

/// An engine that carries streams past the host's TCP, as the hardware of an RNIC does, and has its port numbers from the
/// host all the same: for each number that it uses a socket of the host is bound, and stays bound and unused
/// ([`PortUse::Reserve`]), so that ordinary sockets are refused that number, and the reverse.
///
/// The socket stays until nothing of the number is left: neither the endpoint nor a connection that came from it. A service
/// that begins again has its number although connections of before live on.
///
/// What the host's own stack does for its connections, it does not do for these: packet filters do not see them, nor do
/// queueing disciplines, and `ss` shows a bound socket alone.
///
/// ```
/// use verbs_link::port_space::TcpPortSpace;
/// use verbs_link::stream::{Offloaded, StreamLink, Tcp};
///
/// # fn example(engine: impl StreamLink + 'static) -> Result<(), Box<dyn std::error::Error>> {
/// // The numbers of software connections are those of the engine's: a program chooses by the device.
/// let software = Tcp::on(&engine.addresses())?;
/// let space = software.port_space().expect("it has the host's").clone();
/// let hardware = Offloaded::new(engine, space);
/// assert!(hardware.is_offloaded() && !software.is_offloaded());
/// # Ok(())
/// # }
/// ```
pub struct Offloaded {
    engine: Box<dyn StreamLink>,
    space: TcpPortSpace,
    /// Those that something has; by what was asked for, with the number.
    held: Arc<Mutex<BTreeMap<SocketAddr, Weak<Reserved>>>>,
}

/// A number of the host that the engine uses.
struct Reserved {
    port: BoundPort,
    /// An endpoint has it, or a connection that was made from it: not only connections that an endpoint has accepted.
    is_taken: AtomicBool,
    held: Weak<Mutex<BTreeMap<SocketAddr, Weak<Self>>>>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(held) = self.held.upgrade() {
            let mut held = held.lock();
            // A new one may stand there already.
            if held
                .get(&self.port.local())
                .is_some_and(|one| one.strong_count() == 0)
            {
                held.remove(&self.port.local());
            }
        }
    }
}

/// The use of a number by an endpoint, or by the connection that was made from it.
struct Taken(Arc<Reserved>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Release);
    }
}

impl Offloaded {
    /// The engine's streams at the addresses that both have. Port numbers are of that space, which other devices may share.
    pub fn new(engine: impl StreamLink + 'static, space: TcpPortSpace) -> Self {
        Self {
            engine: Box::new(engine),
            space,
            held: Arc::default(),
        }
    }

    /// The number at that address, from the host or from what is left of an endpoint that was there.
    fn take(&self, local: SocketAddr) -> Result<Taken, PortError> {
        let left = self.held.lock().get(&local).and_then(Weak::upgrade);
        if let Some(left) = left
            && !left.is_taken.swap(true, AcqRel)
        {
            return Ok(Taken(left));
        }
        let reserved = Arc::new(Reserved {
            port: self.space.bind(local, PortUse::Reserve)?,
            is_taken: AtomicBool::new(true),
            held: Arc::downgrade(&self.held),
        });
        let at = reserved.port.local();
        self.held.lock().insert(at, Arc::downgrade(&reserved));
        Ok(Taken(reserved))
    }
}

impl StreamLink for Offloaded {
    fn addresses(&self) -> Vec<IpAddr> {
        let own = self.engine.addresses().into_iter();
        own.filter(|&address| self.space.has(address)).collect()
    }

    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        // Numbers that the host has and the engine has not, which the host is not to pick again.
        let mut refused = Vec::new();
        loop {
            let taken = self.take(local)?;
            match self.engine.bind(taken.0.port.local()) {
                Ok(bound) => return Ok(Box::new(OffloadedPort { bound, taken })),
                Err(error @ PortError::AddrInUse { .. })
                    if local.port() == 0 && refused.len() + 1 < ROUNDS_MAX =>
                {
                    tracing::debug!(%error, "the engine uses a number that is free on the host");
                    refused.push(taken);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn port_space(&self) -> Option<&TcpPortSpace> {
        Some(&self.space)
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        self.engine.ready(tokens);
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        self.engine.waiter()
    }

    fn attach(&self, listener: Weak<dyn Due>) {
        self.engine.attach(listener);
    }

    fn seed(&self) -> Seed {
        self.engine.seed()
    }
}

/// A number of the host, and what the engine has bound to it.
struct OffloadedPort {
    // Dropped in this order: the engine is done with the number before the host has it again.
    bound: Box<dyn Bound>,
    taken: Taken,
}

impl Bound for OffloadedPort {
    fn local(&self) -> SocketAddr {
        self.taken.0.port.local()
    }

    fn listen(&mut self, backlog: u32, token: Token) -> Result<(), PortError> {
        self.bound.listen(backlog, token)
    }

    fn rest(&mut self, token: Token, rests: bool) -> io::Result<()> {
        self.bound.rest(token, rests)
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let stream = self.bound.accept()?;
        Ok(Box::new(OffloadedStream {
            stream,
            _number: Number::Shared(Arc::clone(&self.taken.0)),
        }))
    }

    fn connect(self: Box<Self>, remote: SocketAddr, token: Token) -> io::Result<Box<dyn Stream>> {
        let Self { bound, taken } = *self;
        Ok(Box::new(OffloadedStream {
            stream: bound.connect(remote, token)?,
            _number: Number::Own(taken),
        }))
    }
}

/// Keeps the number of a stream.
enum Number {
    /// That of the endpoint it was accepted by.
    Shared(#[expect(dead_code, reason = "it is kept")] Arc<Reserved>),
    Own(#[expect(dead_code, reason = "it is kept")] Taken),
}

/// A stream of the engine.
struct OffloadedStream {
    // Dropped in this order, as a port.
    stream: Box<dyn Stream>,
    _number: Number,
}

impl Stream for OffloadedStream {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.receive(into)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.send(bytes)
    }

    fn finish(&mut self) {
        self.stream.finish();
    }

    fn connected(&mut self) -> io::Result<bool> {
        self.stream.connected()
    }

    fn watch(&mut self, token: Token, interest: Interest) -> io::Result<()> {
        self.stream.watch(token, interest)
    }

    fn segment_max(&self) -> usize {
        self.stream.segment_max()
    }

    fn local(&self) -> SocketAddr {
        self.stream.local()
    }

    fn peer(&self) -> SocketAddr {
        self.stream.peer()
    }
}

impl fmt::Debug for Offloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offloaded")
            .field("engine", &self.engine)
            .field("space", &self.space)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for OffloadedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.bound, f)
    }
}

impl fmt::Debug for OffloadedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.stream, f)
    }
}
