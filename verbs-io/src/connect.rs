//! Making connections: asking for them, and listening.

use std::fmt;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, Either, select};
use futures::{FutureExt, Stream, StreamExt};
use verbs_cm::resolver::Address;
use verbs_cm::{ConnectRequest, Manager, NotConnected};
use verbs_core::timer::Sleep;
use verbs_core::{Access, Memory, Qp};

use crate::connection::Connection;
use crate::core::{Core, Handle};
use crate::error::Error;
use crate::link::Link;

pub(crate) mod name;

/// What the peer may do by its requests; each region says what may be done to it.
const ACCESS: Access = Access::REMOTE.union(Access::LOCAL_WRITE);
/// The port that endpoints are on.
const PORT: u8 = 1;
/// How long a name may be looked up, unless the program says otherwise.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection that is to be made: [`Endpoint::connect`](crate::Endpoint::connect).
#[must_use = "a connection is not asked for until awaited"]
pub struct Connecting {
    core: Handle,
    manager: Manager,
    addr: Address,
    timeout: Option<Duration>,
    private_data: Vec<u8>,
}

impl Connecting {
    pub(crate) fn new(core: Handle, manager: Manager, addr: Address) -> Self {
        Self {
            core,
            manager,
            addr,
            timeout: None,
            private_data: Vec::new(),
        }
    }

    /// How long all of it may take, instead of 5 s for a first answer. Of a name, its lookup and each of its addresses may
    /// take that long.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// What the peer gets to see before it accepts; 56 bytes at most.
    pub fn private_data(mut self, data: &[u8]) -> Self {
        self.private_data = data.to_vec();
        self
    }

    async fn run(self) -> Result<Connection, Error> {
        let failed = match self.attempt(self.addr.clone()).await {
            Err(Error::Connect(failed)) => failed,
            other => return other,
        };
        // The endpoint's resolver has names of its own, in simulations for instance; the others are the system's.
        let (verbs_cm::Error::NoAddress(_), Address::Text(name)) = (&*failed, &self.addr) else {
            return Err(Error::Connect(failed));
        };
        let mut result = Err(Error::Connect(failed));
        for addr in self.lookup(name).await? {
            result = self.attempt(addr.into()).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// The addresses of a name, unless that takes too long by the device's clock.
    async fn lookup(&self, name: &str) -> Result<Vec<SocketAddr>, Error> {
        let found = self.core.lookups.addresses(name);
        let Some(timer) = self.core.device.target().provider_of().timer() else {
            return found.await;
        };
        let patience = Sleep::new(&timer, self.timeout.unwrap_or(PATIENCE));
        match select(pin!(found), patience).await {
            Either::Left((found, _)) => found,
            Either::Right(_) => Err(Error::address(name, "the name server does not answer")),
        }
    }

    async fn attempt(&self, addr: Address) -> Result<Connection, Error> {
        let (claim, qp) = Claim::new(self.core.clone()).await?;
        let connecting = self.manager.connect(addr, qp);
        let mut connecting = connecting.private_data(&self.private_data);
        if let Some(timeout) = self.timeout {
            connecting = connecting.timeout(timeout);
        }
        claim.settle(connecting.await).await
    }
}

impl IntoFuture for Connecting {
    type Output = Result<Connection, Error>;
    type IntoFuture = BoxFuture<'static, Result<Connection, Error>>;

    fn into_future(self) -> Self::IntoFuture {
        self.run().boxed()
    }
}

/// An end of the lane for a connection that is being made. Dropping it makes the end free again.
struct Claim {
    core: Handle,
    conn: u32,
    serial: u32,
    is_used: bool,
}

impl Claim {
    /// An end, and a queue pair with its receives posted.
    async fn new(core: Handle) -> Result<(Self, Qp), Error> {
        let conn = match core.with(|lane| lane.vacant()) {
            Some(conn) => conn,
            None => Self::add(&core).await?,
        };
        let mut claim = Self {
            core,
            conn,
            serial: 0,
            is_used: false,
        };
        let core = &claim.core;
        let request = core.with(|lane| core.pd.create_qp(lane.queue_pair()));
        let mut qp = request.await?;
        qp.init(PORT, ACCESS).await?;
        claim.serial = core.with(|lane| lane.prepare(conn, &mut qp))?;
        Ok((claim, qp))
    }

    /// A new end, with buffers.
    async fn add(core: &Core) -> Result<u32, Error> {
        let max = |core: &Core| core.with(|lane| lane.sizes().connections);
        let bytes = core.with(|lane| lane.has_room().then(|| lane.sizes().bytes().1));
        let too_many = || Error::TooManyConnections { max: max(core) };
        let bytes = bytes.ok_or_else(too_many)?;
        let mr = core.buffers(Memory::alloc(bytes)?);
        let mr = mr.await?;
        core.with(|lane| lane.add_end(mr)).ok_or_else(too_many)
    }

    /// What became of the attempt.
    async fn settle(
        mut self,
        made: Result<verbs_cm::Connection, NotConnected>,
    ) -> Result<Connection, Error> {
        match made {
            Ok(link) => {
                self.is_used = true;
                let core = self.core.clone();
                let link = Link::new(core, self.conn, self.serial, link);
                Ok(Connection::of(link))
            }
            Err(NotConnected { error, qp }) => {
                if let Some(qp) = qp {
                    // Its receives are flushed by this; nothing else is attached to it.
                    let _gone = qp.destroy().await;
                }
                Err(error.into())
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_used {
            let none = self.core.with(|lane| lane.retire(self.conn));
            drop(none);
        }
    }
}

/// Listens at an address: a [`Stream`] of requests for connections. Dropping it ends that.
#[derive(Debug)]
pub struct Listener {
    core: Handle,
    inner: verbs_cm::Listener,
}

impl Listener {
    pub(crate) fn new(core: Handle, inner: verbs_cm::Listener) -> Self {
        Self { core, inner }
    }

    /// Where it listens, with the port number that was given to it.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }
}

impl Stream for Listener {
    type Item = Incoming;

    /// Never ends.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Incoming>> {
        let request = self.inner.poll_next_unpin(cx);
        request.map(|request| {
            Some(Incoming {
                core: self.core.clone(),
                request: request?,
            })
        })
    }
}

/// A peer asks for a connection. Dropping it refuses.
pub struct Incoming {
    core: Handle,
    request: ConnectRequest,
}

impl Incoming {
    /// The address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.request.peer_addr()
    }

    /// What the peer says along, padded with zeros by networks that do not tell its length.
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// Accepts.
    ///
    /// # Errors
    /// [`Error::Connect`] when the peer has given up; [`Error::TooManyConnections`]; [`Error::Removed`];
    /// [`Error::Verb`].
    ///
    /// # Cancel safety
    /// Dropping the future refuses.
    pub async fn accept(self) -> Result<Connection, Error> {
        self.accept_with(&[]).await
    }

    /// As [`accept`](Incoming::accept); the peer gets to see `private_data`, 196 bytes at most.
    ///
    /// # Errors
    /// As there.
    pub async fn accept_with(self, private_data: &[u8]) -> Result<Connection, Error> {
        let Self { core, request } = self;
        let (claim, qp) = Claim::new(core).await?;
        let accepted = request.accept(qp).private_data(private_data).await;
        claim.settle(accepted).await
    }

    /// Refuses; the peer gets to see `why`, 148 bytes at most.
    ///
    /// # Errors
    /// [`Error::Connect`] when the peer has given up, or `why` is too long.
    pub fn refuse(self, why: &[u8]) -> Result<(), Error> {
        Ok(self.request.reject(why)?)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}
