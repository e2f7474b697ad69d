//! Making connections: asking for them, and listening.

use std::fmt;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};
use verbs_cm::Manager;
use verbs_cm::resolver::Address;
use verbs_core::timer::Sleep;

use crate::connection::Connection;
use crate::core::Handle;
use crate::error::Error;

mod half_open;
pub(crate) mod listen;
pub(crate) mod name;
pub(crate) mod place;

use place::Place;

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
        let place = Place::take(self.core.clone()).await?;
        let qp = place::queue_pair(&self.core).await?;
        let qp = place.prepare(qp).await?;
        let connecting = self.manager.connect(addr, qp);
        let mut connecting = connecting.private_data(&self.private_data);
        if let Some(timeout) = self.timeout {
            connecting = connecting.timeout(timeout);
        }
        match connecting.await {
            Ok(made) => Ok(place.open(made, None)),
            Err(failed) => Err(place::not_connected(failed).await),
        }
    }
}

impl IntoFuture for Connecting {
    type Output = Result<Connection, Error>;
    type IntoFuture = BoxFuture<'static, Result<Connection, Error>>;

    fn into_future(self) -> Self::IntoFuture {
        self.run().boxed()
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}
