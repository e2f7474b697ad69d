//! The service for management datagrams of a port: queue pairs 0 and 1, and which client gets what.
//!
//! There is one for each port of a device, shared by all callers that [ask](MadService::of) for it, and it goes
//! with the last of them. It has no thread: datagrams are taken in the handler of its completion queue,
//! on whatever thread they came; what is due is woken for by the provider's [`Timer`].
//!
//! ```text
//!  queue pairs 0, 1 ──▶ process_mad ──▶ Reply    ──▶ back to the sender
//!                           │           Consumed
//!                           └─ NotMine ──▶ Agents ──▶ the agent's MadClient
//! ```

mod agent;
mod reverse;
mod turn;
mod wire;

use std::fmt;
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

use crate::addr::{Gid, Qpn};
use crate::caps::{DeviceAttr, PortAttr};
use crate::cq::{Cq, CreateCq};
use crate::device::{Device, DeviceCore};
use crate::error::Error;
use crate::event::{AsyncEvent, EventType, EventWatcher, Subject};
use crate::mad::agent::{AgentConfig, AgentCounters, Agents};
use crate::object::{Child, ObjectKind, Target};
use crate::pd::{AllocPd, Pd};
use crate::provider_attr::PortCaps;
use crate::qp_state::QpType;
use crate::sync::{Arc, Mutex, Weak};
use crate::task::{self, OwnWaker};
use crate::time::Instant;
use crate::timer::Timer;

pub use agent::{MadAgent, MadClient};
use turn::State;
use wire::Wire;

/// What the service knows of its port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Number of the port, from 1.
    pub number: u8,
    /// The device's attributes.
    pub device: Arc<DeviceAttr>,
    /// The port's attributes, as they were when the service was opened.
    pub port: PortAttr,
    /// The GID table: index and GID, without empty entries. Renewed when it changes.
    pub gids: Vec<(u16, Gid)>,
}

impl PortInfo {
    /// Asks a device for them, for services that have no management datagrams.
    ///
    /// # Errors
    /// The provider's.
    pub async fn read(device: &Arc<DeviceCore>, number: u8) -> Result<Self, Error> {
        let attr = device.query().await?;
        let port = device.query_port(number).await?;
        let gids = wire::gids(device, number, port.gid_tbl_len).await?;
        Ok(Self {
            number,
            device: attr,
            port,
            gids,
        })
    }
}

/// The service for management datagrams of one port. Clones are the same service.
#[derive(Clone)]
pub struct MadService {
    core: Arc<Core>,
}

struct Core {
    device: Child<DeviceCore>,
    port: u8,
    timer: Option<Arc<dyn Timer>>,
    phase: Mutex<Phase>,
    /// `None` until it is open. Never held while foreign code runs (K4).
    state: Mutex<Option<State>>,
    /// Kept alive here, as the device only refers to it.
    watcher: Mutex<Option<Arc<dyn EventWatcher>>>,
}

/// How far the opening is.
enum Phase {
    New,
    Opening(Vec<Waker>),
    Open(Arc<PortInfo>),
    Failed(Error),
}

impl MadService {
    /// The service of that port: the one that is there, or a new one, whose queue pairs are made now.
    ///
    /// # Completion
    /// The future needs no executor of a particular kind. The service is opened by requests, one after
    /// the other; dropping the future leaves that to go on.
    ///
    /// # Errors
    /// The provider's; [`Error::Exhausted`] when another program has the port's queue pair 1.
    pub fn of(
        device: &Device,
        port: u8,
    ) -> impl Future<Output = Result<Self, Error>> + Send + use<> {
        let target = device.target();
        let core = target.service(
            |core: &Core| core.port == port,
            || {
                Arc::new(Core {
                    device: Child::new(target, ObjectKind::Pd),
                    port,
                    timer: target.provider_of().timer(),
                    phase: Mutex::new(Phase::New),
                    state: Mutex::new(None),
                    watcher: Mutex::new(None),
                })
            },
        );
        let mut is_first = true;
        poll_fn(move |cx| {
            let begins = std::mem::take(&mut is_first);
            core.poll_open(cx.waker(), begins).map_ok(|()| Self {
                core: Arc::clone(&core),
            })
        })
    }

    /// The time of the device's timer; the start, always, if it has none.
    pub fn now(&self) -> Instant {
        self.core.now()
    }

    /// The device's timer.
    pub fn timer(&self) -> Option<&Arc<dyn Timer>> {
        self.core.timer.as_ref()
    }

    /// What is known of the port.
    pub fn port(&self) -> Arc<PortInfo> {
        self.core.info()
    }

    /// The device.
    pub fn device(&self) -> &Arc<DeviceCore> {
        self.core.device.get()
    }

    /// What was dropped of what came, and why.
    pub fn counters(&self) -> AgentCounters {
        let state = self.core.state.lock();
        state.as_ref().map(State::counters).unwrap_or_default()
    }

    /// Ends when the datagrams that were sent before this call have left their queue pair, or never will
    /// because the device is gone. A process that ends earlier takes them with it.
    ///
    /// # Cancel safety
    /// The datagrams leave whether or not a task waits for it.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        let core = Arc::clone(&self.core);
        let mark = core.state.lock().as_ref().map(State::mark);
        poll_fn(move |cx| match &mark {
            Some(mark) => core.poll_drained(mark, cx.waker()),
            None => Poll::Ready(()),
        })
    }

    /// Requests of agents that wait for a response.
    pub fn pending(&self) -> usize {
        let state = self.core.state.lock();
        state.as_ref().map_or(0, State::pending)
    }
}

impl Core {
    fn now(&self) -> Instant {
        self.timer
            .as_ref()
            .map_or(Instant::ZERO, |timer| timer.now())
    }

    fn info(&self) -> Arc<PortInfo> {
        match &*self.phase.lock() {
            Phase::Open(info) => Arc::clone(info),
            _ => unreachable!("a service is handed out when it is open"),
        }
    }

    /// Whether it is open; `begins`: an earlier failure is not the caller's.
    fn poll_open(self: &Arc<Self>, waker: &Waker, begins: bool) -> Poll<Result<(), Error>> {
        let mut waker = OwnWaker::of(waker);
        let mut phase = self.phase.lock();
        match &mut *phase {
            Phase::Open(_) => return Poll::Ready(Ok(())),
            Phase::Failed(error) if !begins => return Poll::Ready(Err(*error)),
            Phase::Opening(waiting) => {
                waker.join(waiting);
                return Poll::Pending;
            }
            Phase::New | Phase::Failed(_) => {
                let mut waiting = Vec::new();
                waker.join(&mut waiting);
                *phase = Phase::Opening(waiting);
            }
        }
        drop(phase);
        let core = Arc::clone(self);
        task::detach(async move {
            let result = open(&core).await;
            let ended = match result {
                Ok(info) => Phase::Open(Arc::new(info)),
                Err(error) => Phase::Failed(error),
            };
            let before = std::mem::replace(&mut *core.phase.lock(), ended);
            if let Phase::Opening(waiting) = before {
                waiting.into_iter().for_each(task::wake);
            }
            // Arms the completion queue; what has come by now is taken.
            core.turn();
        });
        // It may have been opened by now; the waker that was left has said so.
        match &*self.phase.lock() {
            Phase::Open(_) => Poll::Ready(Ok(())),
            Phase::Failed(error) => Poll::Ready(Err(*error)),
            Phase::New | Phase::Opening(_) => Poll::Pending,
        }
    }

    /// The port's tables have changed.
    fn refresh(self: Arc<Self>) {
        task::detach(async move {
            let device = self.device.get();
            let Ok(port) = device.query_port(self.port).await else {
                return;
            };
            let Ok(gids) = wire::gids(device, self.port, port.gid_tbl_len).await else {
                return;
            };
            self.with(|state, _| state.agents.set_lmc(port.lmc));
            let mut phase = self.phase.lock();
            if let Phase::Open(info) = &*phase {
                let number = self.port;
                let device = Arc::clone(&info.device);
                *phase = Phase::Open(Arc::new(PortInfo {
                    number,
                    device,
                    port,
                    gids,
                }));
            }
        });
    }
}

/// Makes the queue pairs and what they need.
async fn open(core: &Arc<Core>) -> Result<PortInfo, Error> {
    let device = core.device.get();
    let info = PortInfo::read(device, core.port).await?;
    let caps = device.provider_of().query_provider(core.port).caps;
    let types: &[QpType] = if caps.contains(PortCaps::SMI) {
        &[QpType::Smi, QpType::Gsi]
    } else {
        &[QpType::Gsi]
    };
    let pd: Pd = AllocPd::request(device).await?;
    let handler = Arc::downgrade(core);
    let depth = (wire::RECVS + wire::SENDS) * types.len() as u32;
    let cq: Cq = CreateCq::request(device, depth)
        .handler(move || {
            if let Some(core) = handler.upgrade() {
                core.turn();
            }
        })
        .await?;
    let mut wires = Vec::with_capacity(types.len());
    for &qp_type in types {
        wires.push(Wire::open(&pd, &cq, qp_type).await?);
    }
    // Transaction ids that differ from those of a service that was here before.
    let first_agent = (core.now().as_nanos() >> 10) as u32;
    let mut agents = Agents::new(AgentConfig::default(), first_agent);
    agents.set_lmc(info.port.lmc);
    *core.state.lock() = Some(State::new(agents, wires, cq, pd));
    let watcher: Arc<dyn EventWatcher> = Arc::new(Watcher(Arc::downgrade(core)));
    device.watch_events(&watcher);
    *core.watcher.lock() = Some(watcher);
    Ok(info)
}

/// Keeps what is known of the port up to date.
struct Watcher(Weak<Core>);

impl EventWatcher for Watcher {
    fn event(&self, event: AsyncEvent) {
        if event.event == EventType::DeviceFatal {
            return self.removed();
        }
        let renews = matches!(
            event.event,
            EventType::GidChange
                | EventType::LidChange
                | EventType::PortActive
                | EventType::PortErr
                | EventType::SmChange
        );
        if let Some(core) = self.0.upgrade()
            && renews
            && event.subject == Subject::Port(core.port)
        {
            core.refresh();
        }
    }

    fn removed(&self) {
        if let Some(core) = self.0.upgrade() {
            core.give_up();
        }
    }
}

impl fmt::Debug for MadService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadService")
            .field("device", &self.core.device.get().id())
            .field("port", &self.core.port)
            .finish_non_exhaustive()
    }
}

/// The queue pair of a port that a class's datagrams use (IBTA vol. 1, 13.5.1).
fn queue_pair_of(class: crate::mad::Class) -> Qpn {
    use crate::mad::Class;
    match class {
        Class::SUBN_LID | Class::SUBN_DIRECTED => Qpn::new(0),
        _ => Qpn::new(1),
    }
}
