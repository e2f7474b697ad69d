//! The machine on a device's port: a client of the port's service for management datagrams.
//!
//! It has no thread. The thread that delivers a datagram, or a wake-up of the device's timer, also carries out
//! the actions that follow.

use std::fmt;
use std::future::{Future, poll_fn};
use std::task::{Poll, Wake, Waker};

use verbs_core::mad::header::header_of;
use verbs_core::mad::sm::{CapabilityMask, SmState};
use verbs_core::mad::{
    Address, AgentError, Delivery, MadAgent, MadBytes, MadClient, MadService, Retry, TransactionId,
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::time::Instant;
use verbs_core::{Device, collect, defer, task};

use crate::config::Config;
use crate::manager::{Counters, SubnetManager};
use crate::seat::{CLASSES, Port, Seat};

/// Why a manager could not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A verb failed: the port has no queue pair 0, or the device is being removed.
    #[error(transparent)]
    Verb(#[from] verbs_core::Error),
    /// There is already a manager at this port.
    #[error("the port's service for management datagrams: {0}")]
    Service(AgentError),
}

impl From<AgentError> for StartError {
    fn from(error: AgentError) -> Self {
        Self::Service(error)
    }
}

/// A subnet manager and administrator at a port of a device. Dropping it ends it: the port no longer announces a
/// manager, and the manager's settings stay until another one arrives.
///
/// # Context
/// Everything here is legal in routines and handlers, and never blocks.
pub struct Manager {
    core: Arc<Core>,
}

struct Core {
    /// The service holds a weak reference to it. Dropped first, so the service sees that it no longer exists.
    _below: Arc<dyn MadClient>,
    service: MadService,
    agents: Vec<MadAgent>,
    /// Never held while foreign code runs (K4).
    inner: Mutex<Inner>,
}

struct Inner {
    seat: Seat,
    /// When the timer wakes the manager next.
    alarm: Option<Instant>,
    /// Tasks that wait until the subnet is up.
    waiting: Vec<Waker>,
}

impl Manager {
    /// Starts to manage the subnet at that port, unless another manager does.
    ///
    /// # Completion
    /// The future completes when the manager has started; it needs no particular executor, and opens the port's
    /// service if it is not open yet. [`Manager::up`] waits until the subnet is in service.
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

    /// Completes when the subnet, as far as it was found, is in service: this manager is the master and has
    /// configured everything.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
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

    /// Starts a full sweep.
    pub fn sweep(&self) {
        self.core
            .with(|inner, wire, now| inner.seat.with(now, wire, |manager| manager.sweep(now)));
    }

    /// Its state: master, standby, discovering.
    pub fn state(&self) -> SmState {
        self.core.inner.lock().seat.manager().state()
    }

    /// Whether it is the master and has configured everything.
    pub fn is_up(&self) -> bool {
        self.core.inner.lock().seat.manager().is_up()
    }

    /// Nodes that the last sweep has found.
    pub fn nodes(&self) -> usize {
        self.core.inner.lock().seat.manager().nodes()
    }

    /// Its counters.
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
    /// Calls the machine, and carries out its outputs.
    fn with(self: &Arc<Self>, call: impl FnOnce(&mut Inner, &mut Wire<'_>, Instant)) {
        // Under NoBlock: completions of these sends are handled after the lock is released.
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

    /// Sets whether the port announces a manager. A port that cannot announce it is managed all the same.
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

    /// Sets the timer for the next deadline.
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

    fn timeout(self: &Arc<Self>, set: Instant) {
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

/// Receives datagrams from the service.
struct Below(Weak<Core>);

impl MadClient for Below {
    fn deliver(&self, delivery: Delivery) {
        if let Some(core) = self.0.upgrade() {
            core.with(|inner, wire, now| inner.seat.deliver(now, wire, &delivery));
        }
    }
}

/// Wakes the manager, without keeping it alive.
struct Alarm(Weak<Core>, Instant);

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
            // The requester repeats its request.
            let _full = agent.respond(to, template, payload);
        }
    }

    fn is_sm(&mut self, is_here: bool) {
        self.is_sm = Some(is_here);
    }
}
