//! A device: the root of its objects, and the list of what is pending on it.

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::time::{Duration, Instant};

use crate::addr::{Gid, Guid, PKey};
use crate::caps::{DeviceAttr, PortAttr};
use crate::command::{AnyCommand, Body, Command, Kind, Origin, RequestId, SlotRef};
use crate::error::Error;
use crate::event::EventHub;
use crate::object::{Base, ObjectId, ObjectKind, Target, destroy, handle};
use crate::panics::FirstPanic;
use crate::provider::Provider;
use crate::provider_attr::ProviderAttr;
use crate::request::Request;
use crate::slot::Slab;
use crate::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use crate::sync::plain::{AtomicU64, Mutex};
use crate::sync::{Arc, Weak};
use crate::verb::Verb;
use crate::watch;

/// Ordinary requests that may be pending on one device at once, unless its opener says otherwise.
/// More are refused with [`Error::TooManyRequests`]; destroys do not count.
pub const MAX_PENDING: u32 = 4096;

/// An open device. Not `Clone`: share it by reference or in an `Arc`.
///
/// Dropping it closes the device when its last object has gone (K12).
pub struct Device {
    core: Arc<DeviceCore>,
}

/// What a device's requests act on.
pub struct DeviceCore {
    base: Base,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) slots: Slab<Body>,
    epoch: Instant,
    pub(crate) removed: AtomicBool,
    /// Completions that came after somebody else's (K8, K13).
    pub(crate) late: AtomicU64,
    implicit_failures: AtomicU64,
    pub(crate) number: u64,
    pub(crate) events: EventHub,
    services: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
}

handle!(Device, DeviceCore, CloseDevice);

impl fmt::Debug for DeviceCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.number)
    }
}

impl Target for DeviceCore {
    fn base(&self) -> &Base {
        &self.base
    }

    #[inline]
    fn device(this: &Arc<Self>) -> &Arc<Self> {
        this
    }

    fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    fn release(&self) {}

    fn closing(&self) {
        self.events.close(Error::Closing);
    }
}

/// Opens a device; arguments of the verb.
pub struct OpenDevice {
    device: Device,
}

impl OpenDevice {
    /// The device, for a provider that has opened it.
    pub fn build(self) -> Device {
        self.device
    }
}

/// Asks for a device's attributes; arguments of the verb.
#[derive(Debug)]
pub struct QueryDevice(());

/// Asks for a port's attributes; arguments of the verb.
#[derive(Debug)]
pub struct QueryPort {
    /// Port number, from 1.
    pub port: u8,
}

/// Asks for an entry of a port's P_Key table; arguments of the verb.
#[derive(Debug)]
pub struct QueryPkey {
    /// Port number, from 1.
    pub port: u8,
    /// Index, from 0.
    pub index: u16,
}

/// Asks for an entry of a port's GID table; arguments of the verb.
#[derive(Debug)]
pub struct QueryGid {
    /// Port number, from 1.
    pub port: u8,
    /// Index, from 0.
    pub index: u16,
}

/// Changes a device; arguments of the verb.
#[derive(Debug, Default)]
pub struct ModifyDevice {
    /// What people call the node: at most 64 bytes, as the NodeDescription attribute holds.
    pub node_desc: Option<String>,
    /// Identifies the system the node is part of.
    pub sys_image_guid: Option<Guid>,
}

/// Changes a port; arguments of the verb.
#[derive(Debug)]
pub struct ModifyPort {
    /// Port number, from 1.
    pub port: u8,
    /// Sets the counter of Q_Key violations to zero.
    pub reset_qkey_viol_cntr: bool,
    /// Capability bits to set (`PortInfo.CapabilityMask`).
    pub set_caps: u32,
    /// Capability bits to clear.
    pub clear_caps: u32,
}

macro_rules! verb {
    ($Verb:ident, $Target:ty => $Output:ty) => {
        $crate::device::verb!($Verb, $Target => $Output, |_output| None);
    };
    ($Verb:ident, $Target:ty => $Output:ty, |$output:ident| $created:expr) => {
        impl $crate::verb::Verb for $Verb {
            type Target = $Target;
            type Output = $Output;
            type Error = $crate::error::Error;
            const KIND: $crate::command::Kind = $crate::command::Kind::$Verb;

            #[inline]
            fn command(
                command: $crate::command::Command<'_, Self>,
            ) -> $crate::command::AnyCommand<'_> {
                $crate::command::AnyCommand::$Verb(command)
            }

            #[inline(always)]
            fn created($output: &$Output) -> Option<$crate::sync::Arc<dyn $crate::object::Target>> {
                $created
            }
        }
    };
}
pub(crate) use verb;

verb!(QueryDevice, DeviceCore => Arc<DeviceAttr>);
verb!(QueryPort, DeviceCore => PortAttr);
verb!(QueryPkey, DeviceCore => PKey);
verb!(QueryGid, DeviceCore => Gid);
verb!(ModifyDevice, DeviceCore => ());
verb!(ModifyPort, DeviceCore => ());

impl Verb for OpenDevice {
    type Target = DeviceCore;
    type Output = Device;
    type Error = Error;
    const KIND: Kind = Kind::OpenDevice;

    fn command(command: Command<'_, Self>) -> AnyCommand<'_> {
        AnyCommand::OpenDevice(command)
    }
}

/// Devices are numbered for the list of what threads are issuing.
static NUMBER: AtomicU64 = AtomicU64::new(1);

impl Device {
    /// Opens the device that `provider` implements.
    ///
    /// # Errors
    /// The provider's.
    pub fn open(provider: Arc<dyn Provider>) -> Request<'static, OpenDevice> {
        Self::open_with(provider, MAX_PENDING)
    }

    /// As [`Device::open`], with another limit of pending requests.
    ///
    /// # Errors
    /// The provider's.
    pub fn open_with(
        provider: Arc<dyn Provider>,
        max_pending: u32,
    ) -> Request<'static, OpenDevice> {
        let number = NUMBER.fetch_add(1, Relaxed);
        let core = Arc::new(DeviceCore {
            base: Base::root(ObjectKind::Device, (number & 0xffff_ffff) as u32),
            provider,
            slots: Slab::new(max_pending),
            epoch: Instant::now(),
            removed: AtomicBool::new(false),
            late: AtomicU64::new(0),
            implicit_failures: AtomicU64::new(0),
            number,
            events: EventHub::default(),
            services: Mutex::new(Vec::new()),
        });
        Request::<OpenDevice>::owned(
            Arc::clone(&core),
            OpenDevice {
                device: Self { core },
            },
        )
    }

    /// Closes the device: Busy while it has objects (K10). When it has completed, nothing of this
    /// device is called any more.
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back.
    pub fn close(self) -> Request<'static, CloseDevice> {
        destroy(self, false)
    }

    /// As [`Device::close`], but waits for the last object instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn close_when_idle(self) -> Request<'static, CloseDevice> {
        destroy(self, true)
    }

    /// The device's attributes, which do not change while it is open.
    ///
    /// # Errors
    /// The provider's.
    #[inline]
    pub fn query(&self) -> Request<'_, QueryDevice> {
        self.core.query()
    }

    /// The attributes of a port, numbered from 1.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port that the device does not have.
    #[inline]
    pub fn query_port(&self, port: u8) -> Request<'_, QueryPort> {
        self.core.query_port(port)
    }

    /// The P_Key at `index` of the port's table.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port or index that the device does not have.
    #[inline]
    pub fn query_pkey(&self, port: u8, index: u16) -> Request<'_, QueryPkey> {
        Request::new(&self.core, QueryPkey { port, index })
    }

    /// The GID at `index` of the port's table.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port or index that the device does not have.
    #[inline]
    pub fn query_gid(&self, port: u8, index: u16) -> Request<'_, QueryGid> {
        self.core.query_gid(port, index)
    }

    /// Changes what the device says of itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a node description of more than 64 bytes.
    pub fn modify(&self, change: ModifyDevice) -> Request<'_, ModifyDevice> {
        Request::new(&self.core, change)
    }

    /// Changes a port; see [`Request::set_caps`] and its neighbours.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port that the device does not have.
    pub fn modify_port(&self, port: u8) -> Request<'_, ModifyPort> {
        self.core.modify_port(port)
    }

    /// What is pending, and what threads are issuing at this moment (K15). Takes no lock that a
    /// verb takes.
    pub fn in_flight(&self) -> Vec<InFlight> {
        self.core.in_flight()
    }

    /// Objects on the device that are not destroyed.
    pub fn objects(&self) -> u32 {
        self.core.base.header.children()
    }

    /// Completions that came too late because the device's removal was faster (K8).
    pub fn late_completions(&self) -> u64 {
        self.core.late.load(Relaxed)
    }

    /// Implicit destroys (of dropped handles) that failed; each was traced.
    pub fn implicit_destroy_failures(&self) -> u64 {
        self.core.implicit_failures.load(Relaxed)
    }

    /// What requests act on, as providers and services see it.
    pub fn target(&self) -> &Arc<DeviceCore> {
        &self.core
    }

    /// What the device and that port are, and how connections are made there; see
    /// [`Provider::query_provider`]. A direct call.
    pub fn query_provider(&self, port: u8) -> ProviderAttr {
        self.core.provider.query_provider(port)
    }

    pub(crate) fn core(&self) -> &Arc<DeviceCore> {
        &self.core
    }
}

impl Request<'_, ModifyPort> {
    /// Sets capability bits of the port (`PortInfo.CapabilityMask`).
    pub fn set_caps(mut self, bits: u32) -> Self {
        self.args.set_caps = bits;
        self
    }

    /// Clears capability bits of the port.
    pub fn clear_caps(mut self, bits: u32) -> Self {
        self.args.clear_caps = bits;
        self
    }

    /// Sets the counter of Q_Key violations to zero.
    pub fn reset_qkey_violations(mut self) -> Self {
        self.args.reset_qkey_viol_cntr = true;
        self
    }
}

impl DeviceCore {
    /// The device has gone: completes everything pending with [`Error::DeviceRemoved`] and lets
    /// nothing new in but destroys (K15). For providers; says how many it completed.
    pub fn remove(self: &Arc<Self>) -> usize {
        self.removed.store(true, Relaxed);
        // With the fence in `pend`: one of the two sees the other.
        fence(SeqCst);
        let mut panics = FirstPanic::default();
        panics.catch(|| self.events.close(Error::DeviceRemoved));
        let fail = |(index, generation)| {
            SlotRef::new(self, RequestId { index, generation }).fail(Error::DeviceRemoved)
        };
        let pending = self
            .slots
            .iter()
            .filter_map(|(index, slot)| Some((index, slot.inspect()?.generation)));
        // Of those that panic it was the routine: the request has completed.
        let count = pending
            .filter(|&id| panics.catch(|| fail(id)).unwrap_or(true))
            .count();
        panics.catch(|| self.events.tell_removed());
        panics.resume();
        count
    }

    /// Whether the device has gone.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// As [`Device::query`]: services have the core, not the handle.
    #[inline]
    pub(crate) fn query(self: &Arc<Self>) -> Request<'_, QueryDevice> {
        Request::new(self, QueryDevice(()))
    }

    /// As [`Device::query_port`], for services.
    #[inline]
    pub fn query_port(self: &Arc<Self>, port: u8) -> Request<'_, QueryPort> {
        Request::new(self, QueryPort { port })
    }

    /// As [`Device::modify_port`], for services.
    pub fn modify_port(self: &Arc<Self>, port: u8) -> Request<'_, ModifyPort> {
        let change = ModifyPort {
            port,
            reset_qkey_viol_cntr: false,
            set_caps: 0,
            clear_caps: 0,
        };
        Request::new(self, change)
    }

    /// As [`Device::query_gid`].
    #[inline]
    pub(crate) fn query_gid(self: &Arc<Self>, port: u8, index: u16) -> Request<'_, QueryGid> {
        Request::new(self, QueryGid { port, index })
    }

    /// The service of that type which somebody uses on this device and `is_it` knows, or the one that
    /// `make` makes: all who ask share it, and it goes with the last of them.
    pub fn service<T: Any + Send + Sync>(
        &self,
        is_it: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let mut services = self.services.lock();
        let alive: Vec<_> = services.iter().filter_map(Weak::upgrade).collect();
        services.retain(|service| service.strong_count() > 0);
        let mut ours = alive
            .iter()
            .filter_map(|any| Arc::clone(any).downcast::<T>().ok());
        if let Some(found) = ours.find(|service| is_it(service)) {
            // What is let go of here may be the last of its service (K4).
            drop(services);
            return found;
        }
        let made = make();
        let any: Arc<dyn Any + Send + Sync> = made.clone();
        services.push(Arc::downgrade(&any));
        drop(services);
        made
    }

    /// The provider, for services that call it directly.
    pub fn provider_of(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    pub(crate) fn implicit_destroy_failed(&self, id: ObjectId, error: Error) {
        self.implicit_failures.fetch_add(1, Relaxed);
        tracing::warn!(%id, %error, "the destroy of a dropped handle failed");
    }

    fn in_flight(&self) -> Vec<InFlight> {
        let now = self.now_ns();
        let pending = self.slots.iter().filter_map(|(index, slot)| {
            let seen = slot.inspect()?;
            let id = RequestId {
                index,
                generation: seen.generation,
            };
            let age = Duration::from_nanos(now.saturating_sub(seen.meta.since_ns));
            let current = watch::Current {
                verb: seen.meta.verb,
                origin: seen.meta.origin,
                target: seen.meta.target,
                location: seen.meta.location,
            };
            InFlight::new(&current, Some((id, age, seen.cancel_requested)))
        });
        let issuing = watch::current(self.number);
        pending
            .chain(
                issuing
                    .iter()
                    .filter_map(|current| InFlight::new(current, None)),
            )
            .collect()
    }
}

/// One request that has not completed, for people to read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InFlight {
    /// The verb.
    pub verb: Kind,
    /// What it acts on.
    pub target: ObjectId,
    /// Its name; `None` while a thread is still inside the provider's `issue` with it.
    pub id: Option<RequestId>,
    /// How long it has been pending; `None` while it has not pended.
    pub age: Option<Duration>,
    /// On whose behalf.
    pub origin: Origin,
    /// Where it was issued.
    pub location: &'static Location<'static>,
    /// Whether somebody asked for it to end early.
    pub cancel_requested: bool,
}

impl InFlight {
    fn new(current: &watch::Current, pended: Option<(RequestId, Duration, bool)>) -> Option<Self> {
        Some(Self {
            verb: *Kind::ALL.get(current.verb as usize)?,
            target: ObjectId::from_word(current.target),
            id: pended.map(|(id, ..)| id),
            age: pended.map(|(_, age, _)| age),
            origin: Origin::from_word(current.origin),
            location: current.location,
            cancel_requested: pended.is_some_and(|(.., cancel)| cancel),
        })
    }
}

impl fmt::Display for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.verb, self.target)?;
        match self.age {
            Some(age) => write!(f, ", pending for {age:.1?}")?,
            None => write!(f, ", inside the provider")?,
        }
        if let Origin::Client(n) = self.origin {
            write!(f, ", for client {n}")?;
        }
        if self.cancel_requested {
            write!(f, ", cancel requested")?;
        }
        write!(f, ", issued at {}", self.location)
    }
}

/// The GUID of a node by number: for providers that make devices up.
pub const fn local_guid(number: u64) -> Guid {
    // Locally administered, as EUI-64 wants it of numbers that nobody assigned.
    Guid(0x0200_0000_0000_0000 | number & 0x00ff_ffff_ffff_ffff)
}
