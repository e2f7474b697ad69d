//! Protection domains.

use crate::device::{Device, DeviceCore, verb};
#[cfg(doc)]
use crate::error::Error;
use crate::mem::{Access, Memory};
use crate::mr::RegMr;
use crate::object::{Base, Child, ObjectKind, Private, core, destroy, handle};
use crate::qp::{CreateQp, QpInit};
use crate::request::Request;
use crate::sync::Arc;

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
    /// Registers memory: makes it reachable for work requests and, with remote access rights, for
    /// peers. The region is addressed by the memory's own virtual addresses.
    ///
    /// Takes constant time: nothing is pinned.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for remote write or atomic access without local write,
    /// [`Error::Exhausted`] at the device's `max_mr`.
    pub fn register(&self, memory: impl Into<Arc<Memory>>, access: Access) -> Request<'_, RegMr> {
        RegMr::request(self, memory.into(), access)
    }

    /// Creates a queue pair, in state RESET.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes beyond the device's, [`Error::Mismatch`] for a completion queue
    /// of another device, [`Error::Exhausted`] at the device's `max_qp`,
    /// [`Error::Unsupported`] for a type or flag that the device does not have.
    pub fn create_qp(&self, init: QpInit<'_>) -> Request<'_, CreateQp> {
        CreateQp::request(self, &init)
    }

    /// Deallocates the domain: Busy while it holds anything (K10).
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back.
    pub fn dealloc(self) -> Request<'static, DeallocPd> {
        destroy(self, false)
    }

    /// As [`Pd::dealloc`], but waits until the domain is empty instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn dealloc_when_idle(self) -> Request<'static, DeallocPd> {
        destroy(self, true)
    }

    pub(crate) fn core(&self) -> &Arc<PdCore> {
        &self.core
    }
}
