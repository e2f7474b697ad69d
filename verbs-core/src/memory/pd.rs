//! Protection domains.

use crate::device::{Device, DeviceCore};
#[cfg(doc)]
use crate::error::Error;
use crate::object::header::IfBusy;
use crate::object::{Base, Child, ObjectKind, Private, core, destroy, handle};
use crate::request::Request;
use crate::sync::Arc;
use crate::verb::verb;

/// A protection domain: queue pairs reach the memory regions of their own domain only
/// (IBTA vol. 1, 10.2.3).
///
/// Dropping it deallocates it when nothing is left in it (K12).
pub struct Pd {
    core: Arc<PdCore>,
}

/// What a protection domain's requests act on.
#[derive(Debug)]
pub struct PdCore {
    base: Base,
    device: Child<DeviceCore>,
}

core!(PdCore { device });
handle!(Pd, PdCore, DeallocPd);

/// Allocates a protection domain; arguments of the verb.
#[derive(Debug)]
pub struct AllocPd {
    device: Child<DeviceCore>,
}

verb!(AllocPd, DeviceCore => Pd);

impl AllocPd {
    /// Of a device that the caller keeps from closing.
    pub(crate) fn request(device: &Arc<DeviceCore>) -> Request<'_, Self> {
        let child = Child::new(device, ObjectKind::Pd);
        Request::new(device, Self { device: child })
    }

    /// The domain, for a provider that has allocated it under that number.
    pub fn build(self, number: u32, private: Private) -> Pd {
        let base = Base::new(self.device.get(), ObjectKind::Pd, number, private);
        Pd {
            core: Arc::new(PdCore {
                base,
                device: self.device,
            }),
        }
    }
}

impl Device {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the device's `max_pd`.
    pub fn alloc_pd(&self) -> Request<'_, AllocPd> {
        AllocPd::request(self.core())
    }
}

impl Pd {
    /// Deallocates the domain: Busy while it holds anything (K10).
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back.
    pub fn dealloc(self) -> Request<'static, DeallocPd> {
        destroy(self, IfBusy::Refuse)
    }

    /// As [`Pd::dealloc`], but waits until the domain is empty instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn dealloc_when_idle(self) -> Request<'static, DeallocPd> {
        destroy(self, IfBusy::Wait)
    }

    pub(crate) fn core(&self) -> &Arc<PdCore> {
        &self.core
    }
}
