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

use crate::addr::{Gid, Guid, PKey};
use crate::caps::{DeviceAttr, PortAttr};
use crate::command::{AnyCommand, Command, Kind};
use crate::error::Error;
use crate::mem::Access;
use crate::object::header::IfBusy;
use crate::object::{destroy, handle};
use crate::provider::{Provider, Vouch};
use crate::provider_attr::ProviderAttr;
use crate::request::Request;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;
use crate::verb::{Verb, verb};

mod core;
mod in_flight;

pub use self::core::DeviceCore;
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

handle!(Device, DeviceCore, CloseDevice);

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
        let core = Arc::new(DeviceCore::new(provider, max_pending));
        Request::<OpenDevice>::owned(
            Arc::clone(&core),
            OpenDevice {
                device: Self { core },
            },
        )
    }

    /// Closes the device: Busy while it has objects (K10). When it has completed, nothing of this
    /// device is called any longer.
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back.
    pub fn close(self) -> Request<'static, CloseDevice> {
        destroy(self, IfBusy::Refuse)
    }

    /// As [`Device::close`], but waits for the last object instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn close_when_idle(self) -> Request<'static, CloseDevice> {
        destroy(self, IfBusy::Wait)
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

    /// Whether its provider, with all filters, keeps the rules of registered memory by its own word: [`Vouch`]. Then the
    /// memory can be lent as slices.
    ///
    /// [`Vouch`]: crate::provider::Vouch
    pub fn is_vouched(&self) -> bool {
        Vouch::is_given(&*self.core.provider)
    }

    /// What is pending, and what threads are issuing at this moment (K15). Takes no lock that a
    /// verb takes.
    pub fn in_flight(&self) -> Vec<InFlight> {
        self.core.in_flight()
    }

    /// Objects on the device that are not destroyed.
    pub fn objects(&self) -> u32 {
        self.core.objects()
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

    /// These rights, and with them those that memory needs to be the sink of a READ on this device
    /// ([`TransportType::read_sink`](crate::TransportType::read_sink)). A direct call.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use verbs_core::testing::Null;
    /// use verbs_core::{Access, Device};
    ///
    /// let device = Device::open(Arc::new(Null::default())).wait()?;
    /// let rights = device.read_sink(Access::REMOTE_READ);
    /// // Over TCP also REMOTE_WRITE.
    /// assert_eq!(rights, Access::REMOTE_READ | Access::LOCAL_WRITE);
    /// # Ok::<(), verbs_core::Error>(())
    /// ```
    pub fn read_sink(&self, access: Access) -> Access {
        access | self.query_provider(1).transport.read_sink()
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
}

/// The GUID of a node by number: for providers that make devices up.
pub const fn local_guid(number: u64) -> Guid {
    // Locally administered, as EUI-64 wants it of numbers that were not assigned.
    Guid(0x0200_0000_0000_0000 | number & 0x00ff_ffff_ffff_ffff)
}
