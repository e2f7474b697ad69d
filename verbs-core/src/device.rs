//! A device: the root of its objects, and the list of what is pending on it.
//!
//! # Surprise removal
//!
//! A device can be pulled under its clients ([`DeviceCore::remove`], which a provider calls), or fail by
//! itself. Clients hear of it in this order:
//!
//! 1. What was posted completes as flushed ([`WrFlushErr`](crate::WcStatus::WrFlushErr)), as far as the
//!    provider still can; these completions can be polled. Later posts are refused with
//!    [`PostError::DeviceRemoved`](crate::PostError::DeviceRemoved); on a device that has failed they
//!    complete as flushed.
//! 2. Requests that are pending complete with [`Error::DeviceRemoved`], parked
//!    [`next_event`](Device::next_event) requests among them (K15). Requests issued later end so too.
//!    After a failure, the provider ends them with [`Error::DeviceFailed`], and `next_event` gives the
//!    event below.
//! 3. The handler of the device's events, or its [`EventChannel`](crate::EventChannel), hears
//!    [`DeviceFatal`](crate::EventType::DeviceFatal) about the device (IBTA vol. 1, 11.6.3, local
//!    catastrophic error): once, after every event that was raised before, even if it is set later.
//! 4. [`Device::fatal`] completes. Every completion queue fires once, armed or not: its handler is called,
//!    its channel gets an event, and [`Cq::ready`](crate::Cq::ready) ends with the error when there is
//!    nothing to poll. So a driver whose queues are idle finds out as well.
//!
//! The steps are told by the thread that removes the device; where routines are put off (NoBlock), so are
//! they, in this order. A client may be told of a later step while it still handles an earlier one on
//! another thread.
//!
//! What is left to do is to let go: objects can be read from and destroyed as before, in the same order
//! and with the same Busy (K10, K12), and none of the destroys fails. Memory stays the client's. A device
//! that comes back is another device, to be opened and set up again.
//!
//! ```
//! # use std::sync::{Arc, Mutex};
//! # use futures::executor::block_on;
//! use verbs_core::testing::Null;
//! use verbs_core::{Device, Error, EventType};
//!
//! let device = Device::open(Arc::new(Null::default())).wait()?;
//! let mut cq = device.create_cq(16).wait()?;
//! let heard = Arc::new(Mutex::new(Vec::new()));
//! let log = Arc::clone(&heard);
//! device.on_event(move |event| log.lock().unwrap().push(event.event));
//! device.target().remove(); // what a provider does whose hardware is pulled
//! assert_eq!(*heard.lock().unwrap(), [EventType::DeviceFatal]);
//! assert_eq!(block_on(cq.ready()), Err(Error::DeviceRemoved));
//! assert_eq!(device.alloc_pd().wait().unwrap_err(), Error::DeviceRemoved);
//! drop(cq);
//! device.close().wait()?;
//! # Ok::<(), Error>(())
//! ```

use std::any::Any;
use std::fmt;
use std::time::{Duration, Instant};

use crate::addr::{Gid, Guid, PKey};
use crate::caps::{DeviceAttr, PortAttr};
use crate::command::{AnyCommand, Body, Command, Kind, RequestId, SlotRef};
use crate::error::Error;
use crate::event::EventHub;
use crate::fatal::FatalState;
use crate::object::{Base, ObjectId, ObjectKind, Target, destroy, handle};
use crate::provider::Provider;
use crate::provider_attr::ProviderAttr;
use crate::request::Request;
use crate::routine;
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

mod in_flight;

pub use in_flight::InFlight;

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
    pub(crate) fatal: FatalState,
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
        self.fatal.close();
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
            fatal: FatalState::default(),
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
    /// The device has gone: completes everything pending with [`Error::DeviceRemoved`], lets nothing new
    /// in but destroys (K15), and tells the clients; see [the module](crate::device#surprise-removal).
    /// For providers, who hold no lock then; says how many requests it completed. A second call tells
    /// nobody.
    pub fn remove(self: &Arc<Self>) -> usize {
        self.removed.store(true, Relaxed);
        // With the fence in `pend`: one of the two sees the other.
        fence(SeqCst);
        let fail = |(index, generation)| {
            SlotRef::new(self, RequestId { index, generation }).fail(Error::DeviceRemoved)
        };
        // Foreign code runs at the end: one routine that panics keeps nobody else from hearing of it.
        routine::collect(|| {
            self.events.close(Error::DeviceRemoved);
            let pending = self
                .slots
                .iter()
                .filter_map(|(index, slot)| Some((index, slot.inspect()?.generation)));
            let count = pending.filter(|&id| fail(id)).count();
            self.end(Error::DeviceRemoved);
            self.events.tell_removed();
            count
        })
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

/// The GUID of a node by number: for providers that make devices up.
pub const fn local_guid(number: u64) -> Guid {
    // Locally administered, as EUI-64 wants it of numbers that nobody assigned.
    Guid(0x0200_0000_0000_0000 | number & 0x00ff_ffff_ffff_ffff)
}
