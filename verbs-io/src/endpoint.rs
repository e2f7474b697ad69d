//! Endpoints: where connections are made, and whose buffers they use.

#[expect(
    unsafe_code,
    reason = "the owner's word in place of a provider's: argued by its caller"
)]
mod trust;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use verbs_cm::Manager;
use verbs_cm::resolver::{Address, Resolver};
use verbs_core::sync::{Arc, OnceLock, Weak};
use verbs_core::{Access, Device, Memory};

use crate::buf::{Buf, Lender, Loans};
use crate::connect::Connecting;
use crate::connect::listen::Listening;
use crate::connect::place::PORT;
use crate::core::{Closes, Core, Handle};
use crate::error::Error;
use crate::lane::{Lane, POOL, Side, Sizes};
use crate::lane::{reap, sleep};
use crate::link::keepalive::{KEEPALIVE, KEEPALIVE_MIN};
use crate::op;
use crate::region::Region;

/// One of the device's ports with buffers and completion queues: makes connections, and is used by all of them.
///
/// Clones are the same endpoint. Connections and buffers keep what they need of it.
///
/// ```no_run
/// # async fn example(device: verbs_core::Device) -> Result<(), verbs_io::Error> {
/// use verbs_io::Endpoint;
///
/// let net = Endpoint::on(device).message_size(16 << 10).open().await?;
/// let conn = net.connect("10.0.0.2:7471").await?;
/// let mut buf = conn.buf().await;
/// buf.fill_from(b"hello");
/// conn.send(buf).await?;
/// conn.close().await
/// # }
/// ```
#[derive(Clone)]
pub struct Endpoint {
    core: Handle,
    manager: Manager,
}

/// What takes completions while all tasks sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Driver {
    /// The event handlers of the completion queues. No task, thread or runtime takes part.
    #[default]
    Events,
    /// Nothing but [`Endpoint::turn`]: for simulations, which decide when something happens.
    Manual,
}

/// An endpoint that is to be opened: [`Endpoint::on`].
#[must_use = "there is no endpoint until it is opened"]
pub struct Opening {
    device: BoxFuture<'static, Result<Device, Error>>,
    sizes: Sizes,
    buffers: u32,
    driver: Driver,
    keepalive: Option<Duration>,
    resolver: Option<Arc<dyn Resolver>>,
    /// The device need not vouch for itself.
    trusted: bool,
}

impl Endpoint {
    /// An endpoint on the first port of that device, to be opened.
    pub fn on(device: Device) -> Opening {
        Self::opening(async { Ok(device) })
    }

    /// An endpoint on a device that is to be opened.
    pub fn opening(
        device: impl Future<Output = Result<Device, Error>> + Send + 'static,
    ) -> Opening {
        Opening {
            device: device.boxed(),
            sizes: Sizes {
                message: 4096,
                window: 16,
                depth: 128,
                connections: 64,
            },
            buffers: 256,
            driver: Driver::default(),
            keepalive: Some(KEEPALIVE),
            resolver: None,
            trusted: false,
        }
    }

    /// Connects to a listener, by address and port number as `"10.0.0.2:7471"`, `"[fd00::2]:7471"`, `"host:7471"`, a
    /// [`SocketAddr`](std::net::SocketAddr), or a pair of address and number.
    ///
    /// A name that the endpoint's resolver does not have is looked up by the system (`/etc/hosts`, DNS), on a thread that
    /// ends with the lookup, so that a poll of the future never blocks. Its addresses are tried in the system's order.
    ///
    /// A peer that does not show that it is there within 5 s is given up; see [`Connecting::timeout`].
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Address`] for a name that has no address, [`Error::TooManyConnections`],
    /// [`Error::Removed`], [`Error::Verb`].
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up, and the peer is told.
    pub fn connect(&self, addr: impl Into<Address>) -> Connecting {
        Connecting::new(self.core.clone(), self.manager.clone(), addr.into())
    }

    /// Listens for connections. The unspecified address stands for all of the device's; port number 0 for any that
    /// is free. The [`Listener`](crate::Listener) yields connections that are established.
    ///
    /// ```no_run
    /// # async fn serve(client: verbs_io::Connection) {}
    /// # fn spawn(task: impl Future<Output = ()>) {}
    /// # async fn example(net: verbs_io::Endpoint) -> Result<(), verbs_io::Error> {
    /// let mut clients = net.listen("0.0.0.0:7471").await?;
    /// loop {
    ///     let client = clients.accept().await;
    ///     spawn(serve(client));
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Connect`].
    ///
    /// # Cancel safety
    /// Dropping the future gives the address back.
    pub fn listen(&self, addr: impl Into<Address>) -> Listening {
        Listening::new(self.core.clone(), self.manager.clone(), addr.into())
    }

    /// A buffer of the pool, with its length set to all of its room; waits until there is one. Tasks get buffers in
    /// the order in which they came to wait.
    ///
    /// # Cancel safety
    /// A buffer that had been given to a future that is dropped goes back.
    pub fn buf(&self) -> op::TakeBuf<'_> {
        op::TakeBuf::new(&self.core, POOL)
    }

    /// A buffer of the pool, if there is one now.
    pub fn try_buf(&self) -> Option<Buf> {
        self.core.with(|lane| {
            reap::all(lane);
            lane.take_full(POOL)
        })
    }

    /// Adds a pool of `count` buffers of `size` bytes, for READs and WRITEs longer than messages. Its buffers are used on
    /// all connections of the endpoint, and stay with the endpoint until that is gone.
    ///
    /// # Errors
    /// [`Error::Verb`] when memory cannot be had; [`Error::Removed`].
    pub async fn pool(&self, size: u32, count: u32) -> Result<Pool, Error> {
        let memory = Memory::alloc(size as usize * count as usize)?;
        let mr = self.core.buffers(memory).await?;
        let core = self.core.clone();
        let pool = core.with(|lane| lane.add_pool(mr, count, size));
        Ok(Pool { core, pool })
    }

    /// Exposes `len` zeroed bytes to peers that get a [token](Region::token) of them. `rights` are of
    /// [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`] and [`Access::REMOTE_ATOMIC`]; others are ignored.
    ///
    /// # Errors
    /// [`Error::Verb`] when memory, or regions, cannot be had; [`Error::Removed`].
    pub async fn region(&self, len: usize, rights: Access) -> Result<Region, Error> {
        let access = Access::LOCAL_WRITE | rights & Access::REMOTE;
        let mr = self.core.pd.register(Memory::alloc(len)?, access).await?;
        Ok(Region::new(mr))
    }

    /// The address by which peers reach the endpoint: the first one of its device's port, from its GID table.
    ///
    /// # Errors
    /// [`Error::Verb`], [`Error::Removed`].
    pub async fn local_ip(&self) -> Result<IpAddr, Error> {
        let port = self.core.device.query_port(PORT).await?;
        Ok(port.gid.into())
    }

    /// Takes what has completed and wakes the tasks that wait for it; says how many completions that were. For
    /// [`Driver::Manual`]; legal with others too.
    pub fn turn(&self) -> usize {
        self.core.with(sleep::turn)
    }

    /// The device: for what the endpoint does not do. Its own objects are not reached through it.
    pub fn device(&self) -> &Device {
        &self.core.device
    }

    /// The connection manager of the port. A program that ends right after it has dropped a connection awaits
    /// [`Manager::drained`], so that the peer hears of it.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Ends all connections, at once and each as [`Connection::close`](crate::Connection::close) does: what was posted on it
    /// completes first. Completes when they are over and their peers are told, so that the program may end.
    ///
    /// Connections that are made meanwhile are not among them: drop the [`Listener`](crate::Listener)s before.
    ///
    /// ```no_run
    /// # async fn example(net: verbs_io::Endpoint, listener: verbs_io::Listener) -> Result<(), verbs_io::Error> {
    /// drop(listener); // nobody is accepted any longer
    /// net.close().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Connect`] if the connection manager cannot be asked. A connection that breaks instead of ending is over too.
    ///
    /// # Cancel safety
    /// Dropped before the operations under way have completed, some connections live on; those that were ended end all the same.
    pub async fn close(&self) -> Result<(), Error> {
        let closing = self.core.connections().into_iter().map(Closes::close);
        closing
            .collect::<FuturesUnordered<_>>()
            .collect::<()>()
            .await;
        Ok(self.manager.drained().await?)
    }

    /// Numbers for tests and statistics.
    pub fn usage(&self) -> Usage {
        self.core.with(|lane| Usage {
            buffers: lane.loans.count(),
            lent: lane.loans.out(),
            connections: lane.connections(),
            late: lane.late,
        })
    }
}

/// Buffers of one size: [`Endpoint::pool`]. Clones are the same pool.
#[derive(Clone)]
pub struct Pool {
    core: Handle,
    pool: u32,
}

impl Pool {
    /// A buffer, with its length set to all of its room; waits until there is one, as [`Endpoint::buf`].
    ///
    /// # Cancel safety
    /// A buffer that had been given to a future that is dropped goes back.
    pub fn buf(&self) -> op::TakeBuf<'_> {
        op::TakeBuf::new(&self.core, self.pool)
    }

    /// A buffer, if there is one now.
    pub fn try_buf(&self) -> Option<Buf> {
        self.core.with(|lane| {
            reap::all(lane);
            lane.take_full(self.pool)
        })
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.pool & !POOL)
    }
}

/// What an endpoint's buffers do: [`Endpoint::usage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Usage {
    /// Buffers, those of connections among them.
    pub buffers: u32,
    /// Buffers in the program's hands.
    pub lent: u32,
    /// Connections, with those that this side asks for, and those that were dropped and are still being closed. Half-open
    /// ones of [listeners](crate::Listener::stats) are not among them.
    pub connections: u32,
    /// Completions that came for an operation that was over.
    pub late: u64,
}

impl Opening {
    /// Bytes that a buffer, and so a message, has room for; 4,096 by default. Both ends should say the same: a
    /// message that is longer than the peer's buffers breaks the connection.
    ///
    /// Zero counts as 1.
    pub fn message_size(mut self, bytes: u32) -> Self {
        self.sizes.message = bytes.max(1);
        self
    }

    /// Messages of a connection that may have come before the program takes them; 16 by default, at least 1. Each
    /// connection has one and a half times as many buffers. More messages wait with the sender. Over TCP the whole stream
    /// waits with them, answers to READs among it, and the connection ends after 10 s: a program that keeps messages while
    /// it reads from their sender has a window for all that may be on their way.
    pub fn window(mut self, messages: u32) -> Self {
        self.sizes.window = messages.max(1);
        self
    }

    /// Operations of a connection that may be with the device, 128 by default, at least 1; others wait.
    pub fn depth(mut self, operations: u32) -> Self {
        self.sizes.depth = operations.max(1);
        self
    }

    /// Connections at a time, 64 by default, at least 1. One that was dropped counts until it is closed. The completion queues have room for all operations of all
    /// of them, 64 bytes for each.
    pub fn connections(mut self, connections: u32) -> Self {
        self.sizes.connections = connections.max(1);
        self
    }

    /// Buffers of the pool, beside those of connections; 256 by default.
    pub fn buffers(mut self, buffers: u32) -> Self {
        self.buffers = buffers;
        self
    }

    /// What takes completions while all tasks sleep.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = driver;
        self
    }

    /// How long a connection may be silent, and then how long its peer may take to show that it is there; 5 s by default.
    /// When no message has come for half of it, the peer's device is asked, again and again until it answers. A peer that
    /// does not is gone: a task that waits for a message, and later operations, fail with [`Error::Broken`], whose cause is
    /// [`Operation::Keepalive`](crate::Operation::Keepalive). So a peer that was killed, or whose cable was pulled, is noticed
    /// within twice this time, which is at least 10 ms.
    ///
    /// `None` turns it off: then a peer that is gone is noticed by the next operation, when the device has given its
    /// retries up, and a task that only waits for messages waits for ever.
    ///
    /// Nothing is sent while operations are under way, which fail by the device's retries within 20 s, and hardly anything
    /// where messages come. On other connections an RDMA WRITE of no bytes is, which the peer's device answers and its program never
    /// sees; it needs no such setting. Peers that are not of this crate must permit RDMA WRITEs on the queue pair, as the
    /// connection manager sets it up. A device without a timer has no keepalive. Over TCP the stream tells of a peer that
    /// was killed, at once, and a cable that was pulled is noticed when TCP gives up.
    pub fn keepalive(mut self, silence: impl Into<Option<Duration>>) -> Self {
        self.keepalive = silence.into().map(|silence| silence.max(KEEPALIVE_MIN));
        self
    }

    /// Has addresses looked up by that instead of by the machine: where the port is not one of its network interfaces.
    pub fn resolver(mut self, resolver: Arc<dyn Resolver>) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// Opens it.
    ///
    /// # Errors
    /// Those of opening the device; [`Error::NotVouched`]; [`Error::Verb`] for sizes beyond the device's; [`Error::Removed`].
    pub async fn open(self) -> Result<Endpoint, Error> {
        let Self {
            device,
            sizes,
            buffers,
            driver,
            keepalive,
            resolver,
            trusted,
        } = self;
        let device = device.await?;
        if !(trusted || device.is_vouched()) {
            return Err(Error::NotVouched);
        }
        let pd = device.alloc_pd().await?;
        let place: Arc<OnceLock<Weak<Core>>> = Arc::default();
        let create = |entries: u32, side| {
            let request = device.create_cq(entries.saturating_mul(sizes.connections));
            match driver {
                Driver::Events => request.handler(handler(&place, side)),
                Driver::Manual => request,
            }
        };
        let send_cq = create(sizes.depth, Side::Send).await?;
        let recv_cq = create(sizes.buffers(), Side::Recv).await?;
        let bytes = buffers as usize * sizes.message as usize;
        let pool = pd.register(Memory::alloc(bytes)?, Core::BUFFERS);
        let pool = pool.await?;
        let manager = Manager::of(&device);
        if let Some(resolver) = resolver {
            manager.use_resolver(resolver).await?;
        }
        let core = Arc::new_cyclic(|core: &Weak<Core>| {
            let lender: Weak<dyn Lender> = core.clone();
            let has_events = driver == Driver::Events;
            let lane = Lane::new(send_cq, recv_cq, Loans::new(lender), sizes, has_events);
            Core::new(lane, pd, device, keepalive)
        });
        // Set once: the place is new.
        let _ = place.set(Arc::downgrade(&core));
        // The first one, which `POOL` names.
        core.with(|lane| lane.add_pool(pool, buffers, sizes.message));
        let core = Handle::new(core);
        Ok(Endpoint { core, manager })
    }
}

/// The handler of that completion queue.
fn handler(place: &Arc<OnceLock<Weak<Core>>>, side: Side) -> impl FnMut() + Send + 'static {
    let place = Arc::clone(place);
    move || {
        if let Some(core) = place.get().and_then(Weak::upgrade) {
            core.on_event(side);
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("device", &self.core.device)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening")
            .field("sizes", &self.sizes)
            .finish_non_exhaustive()
    }
}
