//! Listening: requests come from strangers, whose addresses may be forged; programs get connections.

use std::collections::VecDeque;
use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::{FutureExt, Stream, StreamExt};
use verbs_cm::resolver::Address;
use verbs_cm::{ConnectRequest, Failure, Manager};
use verbs_core::sync::{Arc, AtomicWaker, Mutex, Weak};
use verbs_core::{TransportType, task};

use super::half_open::{HalfOpen, ROOM, ROOM_MAX};
use super::place::{self, Place};
use crate::connection::Connection;
use crate::core::Handle;
use crate::error::Error;

/// What a listener is to do with a request, by what it says.
type Screen = Box<dyn FnMut(&Incoming) -> Answer + Send>;

/// A listener that is to be made: [`Endpoint::listen`](crate::Endpoint::listen).
#[must_use = "nothing listens until awaited"]
pub struct Listening {
    core: Handle,
    manager: Manager,
    addr: Address,
    half_open: u32,
    screen: Option<Screen>,
}

impl Listening {
    pub(crate) fn new(core: Handle, manager: Manager, addr: Address) -> Self {
        let connections = core.with(|lane| lane.sizes().connections);
        Self {
            core,
            manager,
            addr,
            half_open: connections.clamp(ROOM, ROOM_MAX),
            screen: None,
        }
    }

    /// Looks at each request before it is answered: at the peer's private data, say. Without it all are accepted.
    ///
    /// `screen` decides at once, by calls of [`Incoming::accept`], [`Incoming::accept_with`] or [`Incoming::refuse`]. A
    /// decision that takes longer is made about the [`Connection`], which has the request's private data too. The
    /// address of a request may be forged, and `screen` may be called for any number of them.
    ///
    /// ```no_run
    /// # async fn example(net: &verbs_io::Endpoint) -> Result<(), verbs_io::Error> {
    /// let clients = net.listen("0.0.0.0:7471").screen(|request| {
    ///     match request.private_data().starts_with(b"v2") {
    ///         true => request.accept_with(b"welcome"),
    ///         false => request.refuse(b"version 2 is spoken here"),
    ///     }
    /// });
    /// let mut clients = clients.await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Context
    /// It is called where routines run, under no lock: it must not wait. If it panics, no more requests are answered.
    pub fn screen(mut self, screen: impl FnMut(&Incoming) -> Answer + Send + 'static) -> Self {
        self.screen = Some(Box::new(screen));
        self
    }

    /// Half-open connections at a time: those that a peer has asked for without having confirmed the answer. 256 by
    /// default, or as many as the endpoint has [connections](crate::Opening::connections) if that is more; from 1 to
    /// 1,024. Each takes a queue pair, no buffers, and none of the endpoint's connections. When so many are there, or
    /// half of them from one address, the oldest gives way to the next request.
    pub fn half_open(mut self, max: u32) -> Self {
        self.half_open = max;
        self
    }

    async fn run(self) -> Result<Listener, Error> {
        let Self {
            core,
            manager,
            addr,
            half_open,
            screen,
        } = self;
        let inner = manager.listen(addr).await?;
        let local = inner.local_addr();
        let door = Arc::new(Door {
            core,
            inner: Mutex::new(Some(inner)),
            state: Mutex::new(State {
                half_open: HalfOpen::new(half_open),
                established: VecDeque::new(),
                stats: ListenerStats::default(),
                is_closed: false,
            }),
            waker: AtomicWaker::new(),
        });
        // It ends with the listener, whose wakers are gone then.
        task::detach(attend(Arc::downgrade(&door), screen));
        Ok(Listener { local, door })
    }
}

impl IntoFuture for Listening {
    type Output = Result<Listener, Error>;
    type IntoFuture = BoxFuture<'static, Result<Listener, Error>>;

    fn into_future(self) -> Self::IntoFuture {
        self.run().boxed()
    }
}

/// Listens at an address: a [`Stream`] of connections, which are established. Dropping it ends that, and the connections
/// that were not taken.
///
/// Requests are answered by themselves, also while the program does something else. A connection that fails before
/// the peer has confirmed it is not seen here: it is counted ([`Listener::stats`]) and traced. A request that comes when
/// the endpoint has as many [connections](crate::Opening::connections) as it was opened for is refused.
#[derive(Debug)]
pub struct Listener {
    local: SocketAddr,
    door: Arc<Door>,
}

impl Listener {
    /// Where it listens, with the port number that was given to it.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next connection that a peer has asked for. Listeners do not end.
    ///
    /// ```no_run
    /// # async fn example(net: &verbs_io::Endpoint) -> Result<(), verbs_io::Error> {
    /// let mut listener = net.listen("0.0.0.0:7471").await?;
    /// loop {
    ///     let conn = listener.accept().await;
    ///     println!("{} is here", conn.peer_addr());
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropped, no connection is lost.
    pub fn accept(&mut self) -> Accept<'_> {
        Accept(self)
    }

    fn poll_accept(&self, cx: &Context<'_>) -> Poll<Connection> {
        self.door.waker.register(cx.waker());
        match self.door.state.lock().established.pop_front() {
            Some(connection) => Poll::Ready(connection),
            None => Poll::Pending,
        }
    }

    /// What has become of the requests so far.
    pub fn stats(&self) -> ListenerStats {
        let state = self.door.state.lock();
        ListenerStats {
            half_open: state.half_open.len(),
            ..state.stats
        }
    }
}

impl Stream for Listener {
    type Item = Connection;

    /// Never ends.
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Connection>> {
        self.poll_accept(cx).map(Some)
    }
}

/// Takes the next connection of a listener: [`Listener::accept`].
#[must_use = "no connection is taken until it is awaited"]
#[derive(Debug)]
pub struct Accept<'a>(&'a mut Listener);

impl Future for Accept<'_> {
    type Output = Connection;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Connection> {
        self.0.poll_accept(cx)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // No request comes from here on.
        let inner = self.door.inner.lock().take();
        drop(inner);
        let (half_open, established) = {
            let mut state = self.door.state.lock();
            state.is_closed = true;
            let established = std::mem::take(&mut state.established);
            (state.half_open.clear(), established)
        };
        half_open.for_each(|attempt| attempt.abort());
        drop(established);
    }
}

/// What has become of the requests of a listener: [`Listener::stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ListenerStats {
    /// Connections that were established.
    pub established: u64,
    /// Connections that are half open now: the peer has asked, and has not confirmed the answer.
    pub half_open: u32,
    /// Half-open connections that gave way to newer requests.
    pub gave_way: u64,
    /// Half-open connections that failed: the peer has not confirmed in time, or has given up.
    pub failed: u64,
    /// Requests that the [screen](Listening::screen) has refused.
    pub refused: u64,
    /// Requests that were refused, and connections that were closed at once, because the endpoint has as many
    /// connections as it was opened for.
    pub no_place: u64,
}

/// A peer asks for a connection, as a [screen](Listening::screen) sees it.
pub struct Incoming {
    request: ConnectRequest,
}

impl Incoming {
    /// The address of the peer, as it says. It may be forged.
    pub fn peer_addr(&self) -> SocketAddr {
        self.request.peer_addr()
    }

    /// What the peer says along, padded with zeros by networks that do not tell its length.
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// Accepts.
    pub fn accept(&self) -> Answer {
        self.accept_with(&[])
    }

    /// Accepts; the peer gets to see `private_data`. With more than 196 bytes the connection fails.
    pub fn accept_with(&self, private_data: &[u8]) -> Answer {
        Answer(Verdict::Accept(private_data.to_vec()))
    }

    /// Refuses; the peer gets to see the first 148 bytes of `why`.
    pub fn refuse(&self, why: &[u8]) -> Answer {
        Answer(Verdict::Refuse(why[..why.len().min(WHY_MAX)].to_vec()))
    }
}

/// What becomes of a request: made by [`Incoming`].
#[derive(Debug)]
#[must_use = "it is to be returned by the screen"]
pub struct Answer(Verdict);

#[derive(Debug)]
enum Verdict {
    Accept(Vec<u8>),
    Refuse(Vec<u8>),
}

/// Private data that a refusal has room for.
const WHY_MAX: usize = 148;

/// What a listener shares with the attempts to make its connections.
struct Door {
    core: Handle,
    /// `None` when nothing listens any more.
    inner: Mutex<Option<verbs_cm::Listener>>,
    state: Mutex<State>,
    /// Of the task that waits for a connection.
    waker: AtomicWaker,
}

struct State {
    half_open: HalfOpen,
    /// For the program to take.
    established: VecDeque<Connection>,
    stats: ListenerStats,
    is_closed: bool,
}

/// Answers the requests of a listener, until that is dropped.
async fn attend(door: Weak<Door>, mut screen: Option<Screen>) {
    loop {
        let request = poll_fn(|cx| match door.upgrade() {
            Some(door) => door.poll_request(cx),
            None => Poll::Ready(None),
        });
        let (Some(request), Some(door)) = (request.await, door.upgrade()) else {
            return;
        };
        let incoming = Incoming { request };
        let answer = match &mut screen {
            Some(screen) => screen(&incoming).0,
            None => Verdict::Accept(Vec::new()),
        };
        match answer {
            Verdict::Accept(data) => door.accept(incoming.request, data),
            Verdict::Refuse(why) => door.refuse(incoming.request, &why),
        }
    }
}

impl Door {
    /// The next request; `None` when nothing listens any more.
    fn poll_request(&self, cx: &mut Context<'_>) -> Poll<Option<ConnectRequest>> {
        match &mut *self.inner.lock() {
            Some(inner) => inner.poll_next_unpin(cx),
            None => Poll::Ready(None),
        }
    }

    fn refuse(&self, request: ConnectRequest, why: &[u8]) {
        self.state.lock().stats.refused += 1;
        if let Err(error) = request.reject(why) {
            tracing::debug!(%error, "a request is refused, and its peer has given up");
        }
    }

    /// Answers the request, in the background.
    fn accept(self: &Arc<Self>, request: ConnectRequest, data: Vec<u8>) {
        let peer = request.peer_addr();
        if !self.core.with(|lane| lane.has_place()) {
            self.state.lock().stats.no_place += 1;
            tracing::warn!(%peer, "no connection is left for a peer that asks for one; .connections(n) has more");
            // Refuses.
            return drop(request);
        }
        // On Ethernet packets go to where the request came from; what the peer says of itself may be anything.
        let source = request.peer_gid().map_or(peer.ip(), IpAddr::from);
        let (abort, registration) = AbortHandle::new_pair();
        let (number, oldest) = self.state.lock().half_open.enter(source, abort);
        if let Some(oldest) = oldest {
            oldest.abort();
        }
        let (door, core) = (Arc::downgrade(self), self.core.clone());
        task::detach(async move {
            let attempt = Abortable::new(establish(core, request, data), registration);
            let made = attempt.await.ok();
            if let Some(door) = door.upgrade() {
                door.ended(number, peer, made);
            }
        });
    }

    /// An attempt has ended; `None` if it had to give way.
    fn ended(&self, number: u64, peer: SocketAddr, made: Option<Result<Connection, Error>>) {
        let error = match made {
            Some(Ok(connection)) => return self.established(number, connection),
            Some(Err(error)) => error,
            None => GAVE_WAY.into(),
        };
        {
            let mut state = self.state.lock();
            state.half_open.leave(number);
            let stats = &mut state.stats;
            match &error {
                Error::TooManyConnections { .. } => stats.no_place += 1,
                Error::Connect(why) if **why == GAVE_WAY => stats.gave_way += 1,
                _ => stats.failed += 1,
            }
        }
        tracing::debug!(%peer, %error, "a connection that a peer has asked for is not made");
    }

    fn established(&self, number: u64, connection: Connection) {
        let unwanted = {
            let mut state = self.state.lock();
            state.half_open.leave(number);
            state.stats.established += 1;
            match state.is_closed {
                true => Some(connection),
                false => {
                    state.established.push_back(connection);
                    None
                }
            }
        };
        // Closed under no lock.
        drop(unwanted);
        if let Some(waker) = self.waker.take() {
            task::wake(waker);
        }
    }
}

/// Why a half-open connection fails that gives way to a newer one.
const GAVE_WAY: verbs_cm::Error = verbs_cm::Error::Failed(Failure::GaveWay);

/// Accepts a request; ends when the peer has confirmed that, and has a place then.
async fn establish(
    core: Handle,
    request: ConnectRequest,
    data: Vec<u8>,
) -> Result<Connection, Error> {
    let asked = request.private_data().to_vec();
    let mut qp = place::queue_pair(&core).await?;
    let mut place = None;
    // A peer over TCP is who it says, and its first message finds no receiver not ready: RNICs end the connection.
    if is_over_tcp(&core) {
        let taken = Place::take(core.clone()).await?;
        qp = taken.prepare(qp).await?;
        place = Some(taken);
    }
    let accepting = request.accept(qp).private_data(&data);
    match accepting.await {
        Err(failed) => Err(place::not_connected(failed).await),
        Ok(made) => {
            let place = match place {
                Some(place) => place,
                // Without one the connection is dropped, which closes it.
                None => Place::take(core).await?,
            };
            Ok(place.open(made, Some(asked)))
        }
    }
}

fn is_over_tcp(core: &Handle) -> bool {
    let attr = core.device.target().provider_of().query_provider(1);
    attr.transport == TransportType::Iwarp
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}
