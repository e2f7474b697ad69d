//! Services for datagrams: which queue pair serves them, by service id resolution (SIDR).

pub(crate) mod question;

use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use verbs_core::sync::{Arc, AtomicWaker, Mutex};
use verbs_core::wr::Datagram;
use verbs_core::{Av, Device, QKey, Qpn, task};

use crate::address::pair;
use crate::endpoint::Data;
use crate::error::Error;
use crate::event::{Event, ResolveId};
use crate::hub::Hub;
use crate::hub::handler::Handler;
use crate::limit::Limit;
use crate::listen::backlog::Waiting;
use crate::listen::{Bound, Inner};
use crate::manager::Manager;
use crate::options::blob;
use crate::params::Resolve;
use crate::resolver::{Address, Query};
use crate::step::{CancelStep, Step, StepFuture};
use crate::wire::{IpHeader, PortSpace, ServiceId, SidrStatus};

pub use question::Question;

/// The Q_Key of services for datagrams, as `rdma_cm` has it.
pub const UDP_QKEY: QKey = QKey(0x0123_4567);

/// Asks which queue pair serves datagrams at an address, with private data for the service (180 bytes
/// at most).
///
/// A service that does not answer within [`CONNECT_TIMEOUT`](crate::CONNECT_TIMEOUT), 5 s, is given up;
/// [`Resolving::timeout`] chooses another time.
///
/// ```no_run
/// # async fn example(dev: &verbs_core::Device) -> Result<(), verbs_cm::Error> {
/// let service = verbs_cm::resolve_service(dev, "10.0.0.2:7174", b"who?").await?;
/// println!("{:?} serves it", service.qpn);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::NoAddress`], [`Error::NoRoute`], [`Error::NoService`], [`Error::NoAnswer`],
/// [`Error::PortUnreachable`], [`Error::PrivateData`].
pub fn resolve_service(
    device: &Device,
    addr: impl Into<Address>,
    private_data: &[u8],
) -> Resolving {
    Resolving {
        manager: Manager::of(device),
        addr: addr.into(),
        private_data: private_data.to_vec(),
        timeout: None,
    }
}

/// A question about a service that is to be put; issue it, await it or wait for it.
#[must_use = "nothing is asked until issued, awaited or waited for"]
pub struct Resolving {
    manager: Manager,
    addr: Address,
    private_data: Data,
    timeout: Option<Duration>,
}

impl Resolving {
    /// How long all of it may take: the address, the route, and the answer. After that the step fails with
    /// [`Error::NoAnswer`]. The question is repeated at least four times within it.
    /// [`CONNECT_TIMEOUT`](crate::CONNECT_TIMEOUT) by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Begins; `routine` runs exactly once, under NoBlock, here or later. Never blocks.
    pub fn issue(
        self,
        routine: impl FnOnce(Result<Service, Error>) + Send + 'static,
    ) -> CancelStep {
        self.step().issue(routine)
    }

    /// Begins and blocks the thread until the service is known, or will not be.
    ///
    /// # Errors
    /// As [`resolve_service`]; and [`Error::WouldBlock`] under NoBlock, at once (K3).
    pub fn wait(self) -> Result<Service, Error> {
        self.step().wait()
    }

    /// All that is left, as a step.
    pub fn step(self) -> Step<Service> {
        Step::new(self.run())
    }

    async fn run(self) -> Result<Service, Error> {
        let hub = self.manager.by_messages().await?;
        let limit = Limit::begin(hub.timer(), self.timeout);
        let addr = self.addr.lookup(&*hub.resolver())?;
        match limit.answered(self.ask(&hub, addr, &limit)).await {
            Some(Err(Error::TimedOut(_))) | None => Err(limit.late(addr)),
            Some(ended) => ended,
        }
    }

    async fn ask(&self, hub: &Arc<Hub>, addr: SocketAddr, limit: &Limit) -> Result<Service, Error> {
        let query = Query {
            remote: addr.ip(),
            local: None,
            port: hub.port(),
        };
        let hop = hub.resolver().resolve(query).await?;
        let route = hub.route(addr.ip(), &hop).await?;
        let data = blob::<180>(&self.private_data)?;
        let addresses = pair(hop.local, addr.ip())?;
        let port = hub.with(|inner, _| inner.kept.ports.any(PortSpace::Udp));
        let source_port = port.ok_or(Error::AddressInUse(SocketAddr::new(hop.local, 0)))?;
        let header = IpHeader {
            source_port,
            addresses,
        };
        let service = ServiceId::rdma_cm(PortSpace::Udp, addr.port());
        let mut resolve = Resolve::new(service, route).ip(&header, data);
        resolve.timeout = Some(limit.for_answer());
        let asking = Asking::begin(hub, source_port, &resolve)?;
        let (status, service) = poll_fn(|cx| asking.answer.poll(cx))
            .await
            .map_err(|silence| silence(addr))?;
        match status {
            SidrStatus::Valid => Ok(Service {
                av: route.av,
                hub: Arc::clone(hub),
                ..service
            }),
            status => Err(Error::NoService { peer: addr, status }),
        }
    }
}

impl IntoFuture for Resolving {
    type Output = Result<Service, Error>;
    type IntoFuture = StepFuture<Service, Error>;

    fn into_future(self) -> Self::IntoFuture {
        self.step().into_future()
    }
}

impl fmt::Debug for Resolving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolving")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

/// A question under way; dropping it gives it up.
struct Asking {
    hub: Arc<Hub>,
    id: ResolveId,
    source_port: u16,
    answer: Arc<Answer>,
}

impl Asking {
    fn begin(hub: &Arc<Hub>, source_port: u16, resolve: &Resolve) -> Result<Self, Error> {
        let answer = Arc::new(Answer {
            hub: Arc::downgrade(hub),
            said: Mutex::new(None),
            waker: AtomicWaker::new(),
        });
        let id = hub.with(|inner, now| {
            let id = inner.cm.resolve(now, resolve);
            match id {
                Ok(id) => drop(
                    inner
                        .kept
                        .resolutions
                        .insert(id, Arc::clone(&answer) as Arc<dyn Handler>),
                ),
                Err(_) => inner.kept.ports.give_back(PortSpace::Udp, source_port),
            }
            id
        })?;
        Ok(Self {
            hub: Arc::clone(hub),
            id,
            source_port,
            answer,
        })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.hub.with(|inner, _| {
            // It may have been answered.
            let _gone = inner.cm.forget(self.id);
            inner.kept.resolutions.remove(&self.id);
            inner.kept.ports.give_back(PortSpace::Udp, self.source_port);
        });
    }
}

/// An answer, or why there is none.
type Said = Result<(SidrStatus, Service), fn(SocketAddr) -> Error>;

/// Where the answer to a question arrives.
pub(crate) struct Answer {
    hub: verbs_core::sync::Weak<Hub>,
    said: Mutex<Option<Said>>,
    waker: AtomicWaker,
}

impl Answer {
    fn poll(&self, cx: &Context<'_>) -> Poll<Said> {
        self.waker.register(cx.waker());
        match self.said.lock().take() {
            Some(said) => Poll::Ready(said),
            None => Poll::Pending,
        }
    }
}

impl Handler for Answer {
    fn event(&self, event: Event) {
        let said = match (&event, self.hub.upgrade()) {
            (
                &Event::Resolved {
                    status,
                    qpn,
                    qkey,
                    private_data,
                    ..
                },
                Some(hub),
            ) => {
                let service = Service {
                    hub,
                    av: Av::default(),
                    qpn,
                    qkey,
                    private_data: private_data.0.to_vec(),
                };
                Ok((status, service))
            }
            (Event::ResolveError { .. }, _) => Err(Error::PortUnreachable as fn(_) -> _),
            _ => Err(Error::TimedOut as fn(_) -> _),
        };
        *self.said.lock() = Some(said);
        if let Some(waker) = self.waker.take() {
            task::wake(waker);
        }
    }
}

/// A service for datagrams that was found.
#[derive(Clone)]
pub struct Service {
    /// Keeps the manager open, so that the next question finds it.
    hub: Arc<Hub>,
    /// The way to its port.
    pub av: Av,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The Q_Key to send with.
    pub qkey: QKey,
    /// What it says: 136 bytes, padded with zeros.
    pub private_data: Data,
}

impl Service {
    /// Where datagrams for it go: [`Send::to`](verbs_core::Send::to).
    pub fn datagram(&self) -> Datagram {
        Datagram::new(self.av, self.qpn, self.qkey)
    }

    /// The device's port that it is reached from.
    pub fn port(&self) -> u8 {
        self.hub.port().number
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("av", &self.av)
            .field("qpn", &self.qpn)
            .field("qkey", &self.qkey)
            .finish_non_exhaustive()
    }
}

/// Listens for questions which queue pair serves datagrams at an address: a stream of them. The
/// unspecified address stands for all of the device's.
///
/// # Errors
/// As [`listen`](crate::listen()).
pub fn listen_datagrams(device: &Device, addr: impl Into<Address>) -> Step<DatagramListener> {
    let (manager, addr) = (Manager::of(device), addr.into());
    Step::new(async move {
        let hub = manager.by_messages().await?;
        let addr = addr.lookup(&*hub.resolver())?;
        let inner = Bound::listen_at(&hub, PortSpace::Udp, addr, (128, false)).await?;
        Ok(DatagramListener { inner })
    })
}

/// Answers which queue pair serves datagrams. Dropping it ends that.
pub struct DatagramListener {
    inner: Inner,
}

impl DatagramListener {
    /// Where it listens, with the port number that was given to it.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// The next question.
    ///
    /// # Cancel safety
    /// A future that is dropped takes no question with it.
    pub async fn accept(&mut self) -> Question {
        poll_fn(|cx| self.poll_question(cx)).await
    }

    fn poll_question(&self, cx: &mut Context<'_>) -> Poll<Question> {
        loop {
            match self.inner.queue.poll_next(cx) {
                Poll::Ready(Waiting::Question(question)) => return Poll::Ready(question),
                // A connection is asked for in the port space of datagrams: it is rejected.
                Poll::Ready(Waiting::Request(request)) => drop(request),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Stream for DatagramListener {
    type Item = Question;

    /// Never ends.
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Question>> {
        self.poll_question(cx).map(Some)
    }
}

impl fmt::Debug for DatagramListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramListener")
            .field("addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Wake, Waker};

    use verbs_core::collect;
    use verbs_core::sync::Weak;

    use super::*;

    struct Returns(Arc<Answer>, Arc<Mutex<u32>>);

    impl Wake for Returns {
        fn wake(self: Arc<Self>) {
            *self.1.try_lock().expect("its caller has let go") += 1;
            let cx = &Context::from_waker(Waker::noop());
            assert!(matches!(self.0.poll(cx), Poll::Ready(Err(_))));
        }
    }

    /// Goal: a waker runs under no lock (K4). Method: a caller that has one and collects what becomes due; the
    /// waker takes it, and comes back to the answer.
    #[test]
    fn k4_a_waker_may_take_the_lock_of_its_caller() {
        let answer = Arc::new(Answer {
            hub: Weak::new(),
            said: Mutex::new(None),
            waker: AtomicWaker::new(),
        });
        let lock = Arc::new(Mutex::new(0));
        let returns = Returns(Arc::clone(&answer), Arc::clone(&lock));
        answer.waker.register(&Waker::from(Arc::new(returns)));
        collect(|| {
            let _held = lock.lock();
            let resolution = ResolveId(1);
            answer.event(Event::Unresolved { resolution });
        });
        assert_eq!(*lock.lock(), 1);
    }
}
