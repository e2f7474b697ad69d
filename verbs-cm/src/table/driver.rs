//! The state machine at work: attached to a port's service for management datagrams and to its timer. Whoever calls it, be it a
//! user, the service with a datagram, or the timer, also sees to what follows: messages are sent, and its owner is told. No
//! thread takes part.
//!
//! Two managers stand on it: that of this crate, whose connections have handles and whose queue pairs it modifies, and that of
//! programs of librdmacm, which change their queue pairs by themselves.

use std::fmt;
use std::task::{Wake, Waker};

use verbs_core::device::DeviceCore;
use verbs_core::event::{EventWatcher, Undelivered};
use verbs_core::mad::{
    Address, AgentError, Class, Delivery, MadAgent, MadBytes, MadClient, MadService, Method,
    PortInfo, TimeCode,
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::time::Instant;
use verbs_core::{AsyncEvent, DeviceCap, Seed, Timer, collect, defer};

use super::Cm;
use crate::config::Config;
use crate::params::Port;
use crate::wire::CLASS_VERSION;

/// What has a driver.
pub trait Owner: Send + Sync + Sized + 'static {
    /// What the driver's lock guards beside the machine.
    type Kept: Send;
    /// What the machine has said, for somebody who is told of it under no lock.
    type Output: Send;

    /// Its driver.
    fn driver(&self) -> &Driver<Self>;

    /// Takes what the machine says beside messages ([`Cm::poll_qp_change`], [`Cm::poll_event`]), until it says nothing. Called
    /// under the lock.
    fn take(inner: &mut Inner<Self>, now: Instant, outputs: &mut Vec<Self::Output>);

    /// Tells whom an output is for. Called under no lock, in the order of the outputs, by one thread at a time, and under NoBlock.
    fn tell(self: &Arc<Self>, output: Self::Output);

    /// The device has told of something. Called under no lock.
    fn event(self: &Arc<Self>, _event: AsyncEvent) {}
}

/// See the module's documentation.
pub struct Driver<O: Owner> {
    attached: Attached<O>,
    /// Never held while foreign code runs (K4).
    inner: Mutex<Inner<O>>,
}

/// The machine, and what its owner keeps beside it.
pub struct Inner<O: Owner> {
    /// The state machine.
    pub cm: Cm,
    /// What the owner keeps.
    pub kept: O::Kept,
    /// The port as the machine knows it.
    port: Arc<PortInfo>,
    /// A thread handles the outputs, also those that other threads cause.
    busy: bool,
    /// The memory of the last outputs, for the next ones.
    spare: Batch<O::Output>,
    /// When the timer wakes us next.
    alarm: Option<Instant>,
}

/// What the machine has said.
struct Batch<T> {
    mads: Vec<(Address, MadBytes)>,
    outputs: Vec<T>,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self {
            mads: Vec::new(),
            outputs: Vec::new(),
        }
    }
}

/// A port, to which no machine is attached yet.
pub struct Attached<O: Owner> {
    /// What the service and the device refer to. Goes first, so that they see that it is gone.
    _below: Arc<Below<O>>,
    carrier: Carrier,
}

/// What carries the machine's messages.
enum Carrier {
    /// Management datagrams.
    Mads {
        service: MadService,
        agent: Result<MadAgent, AgentError>,
    },
    /// Nothing: the device makes connections by its own verbs, and the machine has nothing to do.
    Nothing {
        port: Arc<PortInfo>,
        now: Box<dyn Fn() -> Instant + Send + Sync>,
    },
}

impl<O: Owner> Attached<O> {
    /// To a port's service: datagrams of the connection manager come to the owner's machine from now on, unless another manager of
    /// the port has them ([`Attached::refused`]).
    pub fn to(service: MadService, device: &Arc<DeviceCore>, owner: Weak<O>) -> Self {
        let below = Below::watching(device, owner);
        let client: Arc<dyn MadClient> = Arc::<Below<O>>::clone(&below);
        let client = Arc::downgrade(&client);
        let agent = service.register(Class::CM, CLASS_VERSION, &[Method::SEND], client);
        Self {
            _below: below,
            carrier: Carrier::Mads { service, agent },
        }
    }

    /// To a port without datagrams, whose device makes connections itself.
    pub fn to_none(
        port: Arc<PortInfo>,
        now: impl Fn() -> Instant + Send + Sync + 'static,
        device: &Arc<DeviceCore>,
        owner: Weak<O>,
    ) -> Self {
        let now = Box::new(now);
        Self {
            _below: Below::watching(device, owner),
            carrier: Carrier::Nothing { port, now },
        }
    }

    /// Why no datagrams come.
    pub fn refused(&self) -> Option<AgentError> {
        match &self.carrier {
            Carrier::Mads { agent, .. } => agent.as_ref().err().copied(),
            Carrier::Nothing { .. } => None,
        }
    }

    /// The number of the client of the service, by which managers of one port differ.
    pub fn number(&self) -> u32 {
        match &self.carrier {
            Carrier::Mads { agent, .. } => agent.as_ref().map_or(0, |agent| agent.id().number()),
            Carrier::Nothing { .. } => 0,
        }
    }

    /// The time of the port.
    pub fn now(&self) -> Instant {
        match &self.carrier {
            Carrier::Mads { service, .. } => service.now(),
            Carrier::Nothing { now, .. } => now(),
        }
    }

    /// What is known of the port.
    pub fn port(&self) -> Arc<PortInfo> {
        match &self.carrier {
            Carrier::Mads { service, .. } => service.port(),
            Carrier::Nothing { port, .. } => Arc::clone(port),
        }
    }

    /// The device's timer, if it has one.
    pub fn timer(&self) -> Option<&Arc<dyn Timer>> {
        match &self.carrier {
            Carrier::Mads { service, .. } => service.timer(),
            Carrier::Nothing { .. } => None,
        }
    }

    /// Attaches a machine.
    pub fn drive(self, config: Config, seed: Seed, kept: O::Kept) -> Driver<O> {
        let info = self.port();
        let cm = Cm::new(config, port_of(&info), self.number(), seed);
        Driver {
            attached: self,
            inner: Mutex::new(Inner {
                cm,
                kept,
                port: info,
                busy: false,
                spare: Batch::default(),
                alarm: None,
            }),
        }
    }

    fn send(&self, mads: &mut Vec<(Address, MadBytes)>) {
        if let Carrier::Mads {
            agent: Ok(agent), ..
        } = &self.carrier
            && !mads.is_empty()
        {
            tracing::trace!(target: "verbs::cm", count = mads.len(), "messages to send");
            agent.send(mads.drain(..));
        }
        // Without an agent nothing is sent.
        mads.clear();
    }
}

impl<O: Owner> Driver<O> {
    /// The port that it is attached to.
    pub fn attached(&self) -> &Attached<O> {
        &self.attached
    }

    /// Ends when the messages so far have left.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<O> {
        let leaves = match &self.attached.carrier {
            Carrier::Mads { service, .. } => Some(service.drained()),
            Carrier::Nothing { .. } => None,
        };
        async move {
            if let Some(leaves) = leaves {
                leaves.await;
            }
        }
    }

    /// Whether a thread is handling outputs.
    pub fn is_busy(&self) -> bool {
        self.inner.lock().busy
    }

    /// Looks at the machine, and has nothing follow. Legal where a routine runs.
    pub fn look<R>(&self, look: impl FnOnce(&Inner<O>) -> R) -> R {
        look(&self.inner.lock())
    }

    /// Takes what waits; `None` when there is nothing. The memory of a batch that was given back is used again.
    fn outputs(&self, inner: &mut Inner<O>) -> Option<Batch<O::Output>> {
        let mut batch = std::mem::take(&mut inner.spare);
        O::take(inner, self.attached.now(), &mut batch.outputs);
        let mads = std::iter::from_fn(|| inner.cm.poll_transmit());
        batch.mads.extend(mads);
        if batch.mads.is_empty() && batch.outputs.is_empty() {
            inner.spare = batch;
            return None;
        }
        Some(batch)
    }
}

/// Calls the machine of that owner, and handles what follows.
pub fn with<O: Owner, R>(owner: &Arc<O>, call: impl FnOnce(&mut Inner<O>, Instant) -> R) -> R {
    let driver = owner.driver();
    collect(|| {
        let result = {
            let mut inner = driver.inner.lock();
            // Under the lock, so that the machine's time does not go back.
            let now = driver.attached.now();
            let port = driver.attached.port();
            if !Arc::ptr_eq(&port, &inner.port) {
                inner.cm.port_changed(port_of(&port));
                inner.port = port;
            }
            call(&mut inner, now)
        };
        pump(owner);
        result
    })
}

/// Handles the outputs until there are none. A thread that comes in the meantime leaves them to that one. Runs under NoBlock.
fn pump<O: Owner>(owner: &Arc<O>) {
    let driver = owner.driver();
    loop {
        let mut batch = {
            let mut inner = driver.inner.lock();
            if inner.busy {
                return;
            }
            let Some(batch) = driver.outputs(&mut inner) else {
                return set_alarm(owner, &mut inner);
            };
            inner.busy = true;
            batch
        };
        driver.attached.send(&mut batch.mads);
        for output in batch.outputs.drain(..) {
            owner.tell(output);
        }
        let mut inner = driver.inner.lock();
        (inner.busy, inner.spare) = (false, batch);
    }
}

/// Has the timer wake us when the next thing is due.
fn set_alarm<O: Owner>(owner: &Arc<O>, inner: &mut Inner<O>) {
    let timer = owner.driver().attached.timer();
    let (Some(due), Some(timer)) = (inner.cm.poll_timeout(), timer) else {
        return;
    };
    if inner.alarm.is_some_and(|alarm| alarm <= due) {
        return;
    }
    inner.alarm = Some(due);
    let alarm = Alarm(Arc::downgrade(owner), due);
    timer.wake_at(due, Waker::from(Arc::new(alarm)));
}

/// Wakes the machine; keeps its owner from nothing.
struct Alarm<O>(Weak<O>, Instant);

impl<O: Owner> Wake for Alarm<O> {
    fn wake(self: Arc<Self>) {
        if let Some(owner) = self.0.upgrade() {
            let set = self.1;
            defer(move || {
                with(&owner, |inner, now| {
                    if inner.alarm == Some(set) {
                        inner.alarm = None;
                    }
                    inner.cm.handle_timeout(now);
                });
            });
        }
    }
}

/// What comes from below: datagrams of peers, those of ours that were refused, and events of the device.
struct Below<O>(Weak<O>);

impl<O: Owner> Below<O> {
    fn watching(device: &Arc<DeviceCore>, owner: Weak<O>) -> Arc<Self> {
        let below = Arc::new(Self(owner));
        let watcher: Arc<dyn EventWatcher> = Arc::<Self>::clone(&below);
        device.watch_events(&watcher);
        below
    }
}

impl<O: Owner> MadClient for Below<O> {
    fn deliver(&self, delivery: Delivery) {
        // The manager only sends datagrams that no response belongs to.
        if let (Some(owner), Delivery::Request { from, mad, .. }) = (self.0.upgrade(), delivery) {
            with(&owner, |inner, now| inner.cm.handle(now, from, &mad));
        }
    }
}

impl<O: Owner> EventWatcher for Below<O> {
    fn event(&self, event: AsyncEvent) {
        if let Some(owner) = self.0.upgrade() {
            owner.event(event);
        }
    }

    fn undelivered(&self, mad: Undelivered) {
        if let Some(owner) = self.0.upgrade()
            && owner.driver().attached.port().number == mad.port
        {
            with(&owner, |inner, now| {
                inner.cm.undelivered(now, mad.dgid, mad.tid);
            });
        }
    }
}

/// The port as the state machine sees it.
pub fn port_of(info: &PortInfo) -> Port {
    Port {
        number: info.number,
        ca_guid: info.device.node_guid,
        link_layer: info.port.link_layer,
        lid: info.port.lid,
        gids: info.gids.clone(),
        mtu: info.port.active_mtu,
        ack_delay: TimeCode::new(info.device.local_ca_ack_delay),
        migrates: info.device.caps.contains(DeviceCap::AUTO_PATH_MIG),
    }
}

impl<O: Owner> fmt::Debug for Driver<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("port", &self.attached.port().number)
            .finish_non_exhaustive()
    }
}

impl<O: Owner> fmt::Debug for Attached<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached")
            .field("port", &self.port().number)
            .finish_non_exhaustive()
    }
}
