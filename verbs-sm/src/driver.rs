//! The machine on a device's port: a client of the port's service for management datagrams.
//!
//! It has no thread. Who brings a datagram, or a wake of the device's timer, also sees to what follows.

use std::fmt;
use std::future::{Future, poll_fn};
use std::task::{Poll, Wake, Waker};

use verbs_core::mad::header::header_of;
use verbs_core::mad::sm::{CapabilityMask, SmState};
use verbs_core::mad::{
    Address, AgentError, Delivery, MadAgent, MadBytes, MadClient, MadService, Retry, Time,
    TransactionId,
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{Device, collect, defer, task};

use crate::config::Config;
use crate::manager::{Counters, SubnetManager};
use crate::seat::{CLASSES, Port, Seat};

/// Why a manager could not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A verb failed: the port has no queue pair 0, or the device is going.
    #[error("{0}")]
    Verb(#[from] verbs_core::Error),
    /// There is a manager at this port already.
    #[error("the port's service for management datagrams: {0}")]
    Service(#[from] AgentError),
}

/// A subnet manager and administrator at a port of a device. Dropping it ends it: the port says no more
/// that a manager is here, and what it has set stays until another one comes.
///
/// # Context
/// Everything here is legal in routines and handlers, and never blocks.
pub struct Manager {
    core: Arc<Core>,
}

struct Core {
    /// What the service refers to. Goes first, so that it sees that it is gone.
    _below: Arc<dyn MadClient>,
    service: MadService,
    agents: Vec<MadAgent>,
    /// Never held while foreign code runs (K4).
    inner: Mutex<Inner>,
}

struct Inner {
    seat: Seat,
    /// When the timer wakes us next.
    alarm: Option<Time>,
    /// Who waits until the subnet is up.
    waiting: Vec<Waker>,
}

impl Manager {
    /// Begins to manage the subnet at that port, unless somebody else does.
    ///
    /// # Completion
    /// The future is ready when the manager has begun, needs no executor of a particular kind, and opens
    /// the port's service if nobody has yet. When the subnet is in service, [`Manager::up`] says.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        device: &Device,
        port: u8,
        config: Config,
    ) -> impl Future<Output = Result<Self, StartError>> + Send + use<> {
        let service = MadService::of(device, port);
        async move {
            let service = service.await?;
            let mut failed = None;
            let core = Arc::new_cyclic(|weak: &Weak<Core>| {
                let below: Arc<dyn MadClient> = Arc::new(Below(Weak::clone(weak)));
                let client = Arc::downgrade(&below);
                let register = |(class, version, methods)| {
                    service.register(class, version, methods, Weak::clone(&client))
                };
                let agents: Result<Vec<_>, _> = CLASSES.into_iter().map(register).collect();
                Core {
                    _below: below,
                    service: service.clone(),
                    agents: agents.unwrap_or_else(|error| {
                        failed = Some(error);
                        Vec::new()
                    }),
                    inner: Mutex::new(Inner {
                        seat: Seat::new(SubnetManager::new(config, port)),
                        alarm: None,
                        waiting: Vec::new(),
                    }),
                }
            });
            if let Some(error) = failed {
                return Err(error.into());
            }
            core.with(|inner, wire, now| inner.seat.with(now, wire, |manager| manager.start(now)));
            Ok(Self { core })
        }
    }

    /// When the subnet is in service as far as it was found: this manager is the master and has seen to
    /// everything.
    ///
    /// # Cancel safety
    /// A future that is dropped does nothing.
    pub async fn up(&self) {
        poll_fn(|cx| {
            let mut inner = self.core.inner.lock();
            if inner.seat.manager().is_up() {
                return Poll::Ready(());
            }
            if !inner
                .waiting
                .iter()
                .any(|waker| waker.will_wake(cx.waker()))
            {
                inner.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Looks at everything again.
    pub fn sweep(&self) {
        self.core
            .with(|inner, wire, now| inner.seat.with(now, wire, |manager| manager.sweep(now)));
    }

    /// What it is: master, standby, looking around.
    pub fn state(&self) -> SmState {
        self.core.inner.lock().seat.manager().state()
    }

    /// Whether it is the master and has seen to everything.
    pub fn is_up(&self) -> bool {
        self.core.inner.lock().seat.manager().is_up()
    }

    /// Nodes that the last sweep has found.
    pub fn nodes(&self) -> usize {
        self.core.inner.lock().seat.manager().nodes()
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        self.core.inner.lock().seat.manager().counters()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.core.say(false);
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("state", &self.state())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl Core {
    /// Calls the machine, and sees to what follows.
    fn with(self: &Arc<Self>, call: impl FnOnce(&mut Inner, &mut Wire<'_>, Time)) {
        // Under NoBlock: what the sending leads to here comes when the lock is free.
        let (waiting, is_sm) = collect(|| {
            let mut inner = self.inner.lock();
            let now = self.service.now();
            let mut wire = Wire {
                agents: &self.agents,
                is_sm: None,
            };
            call(&mut inner, &mut wire, now);
            self.set_alarm(&mut inner);
            let is_sm = wire.is_sm;
            let waiting = match inner.seat.manager().is_up() {
                true => std::mem::take(&mut inner.waiting),
                false => Vec::new(),
            };
            (waiting, is_sm)
        });
        waiting.into_iter().for_each(task::wake);
        if let Some(is_here) = is_sm {
            self.say(is_here);
        }
    }

    /// Has the port say whether a manager is here. A port that cannot say it is managed all the same.
    fn say(&self, is_here: bool) {
        let device = self.service.device();
        let change = device.modify_port(self.service.port().number);
        let bit = CapabilityMask::IS_SM.bits();
        let change = match is_here {
            true => change.set_caps(bit),
            false => change.clear_caps(bit),
        };
        drop(change.issue(|_| ()));
    }

    /// Has the timer wake us when the next thing is due.
    fn set_alarm(self: &Arc<Self>, inner: &mut Inner) {
        let due = inner.seat.manager().poll_timeout();
        let (Some(due), Some(timer)) = (due, self.service.timer()) else {
            return;
        };
        if inner.alarm.is_some_and(|alarm| alarm <= due) {
            return;
        }
        inner.alarm = Some(due);
        timer.wake_at(due, Waker::from(Arc::new(Alarm(Arc::downgrade(self), due))));
    }

    fn timeout(self: &Arc<Self>, set: Time) {
        self.with(|inner, wire, now| {
            if inner.alarm == Some(set) {
                inner.alarm = None;
            }
            inner
                .seat
                .with(now, wire, |manager| manager.handle_timeout(now));
        });
    }
}

/// What comes from below.
struct Below(Weak<Core>);

impl MadClient for Below {
    fn deliver(&self, delivery: Delivery) {
        if let Some(core) = self.0.upgrade() {
            core.with(|inner, wire, now| inner.seat.deliver(now, wire, &delivery));
        }
    }
}

/// Wakes the manager; keeps it from nothing.
struct Alarm(Weak<Core>, Time);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(core) = self.0.upgrade() {
            let set = self.1;
            defer(move || core.timeout(set));
        }
    }
}

/// The port's service, for one call of the machine.
struct Wire<'a> {
    agents: &'a [MadAgent],
    is_sm: Option<bool>,
}

impl Wire<'_> {
    /// The agent of a datagram's class.
    fn agent(&self, mad: &MadBytes) -> Option<&MadAgent> {
        let class = header_of(mad).class();
        let at = CLASSES.iter().position(|&(own, ..)| own == class)?;
        self.agents.get(at)
    }
}

impl Port for Wire<'_> {
    fn request(&mut self, to: Address, mad: &MadBytes, retry: Retry) -> Option<TransactionId> {
        self.agent(mad)?.request(to, mad, retry).ok()
    }

    fn send(&mut self, to: Address, mad: &MadBytes) {
        if let Some(agent) = self.agent(mad) {
            agent.send([(to, *mad)]);
        }
    }

    fn respond(&mut self, to: Address, template: &MadBytes, payload: Vec<u8>) {
        if let Some(agent) = self.agent(template) {
            // Who asked asks again.
            let _full = agent.respond(to, template, payload);
        }
    }

    fn is_sm(&mut self, is_here: bool) {
        self.is_sm = Some(is_here);
    }
}
