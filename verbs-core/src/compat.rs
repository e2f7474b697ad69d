//! The old style over the new core: synchronous creates, destroys with a callback.
//!
//! For programs written to access layers of that kind (IBAL, for one): flat calls that return when
//! the device has answered, and a destroy that returns at once and calls back when the object is
//! gone, which means *no more callbacks for this object*. Everything here is an ordinary request, so
//! old and new clients share one device.
//!
//! What differs from those layers, on purpose: nothing cascades and nothing is forced (K12). A
//! destroy of an object that others still use waits, visible in
//! [`in_flight`](crate::Device::in_flight), until their owners have destroyed those.
//!
//! ```
//! # use std::sync::Arc;
//! # use verbs_core::{compat, testing::Null};
//! let ca = compat::open_ca(Arc::new(Null::default()))?;
//! let pd = compat::alloc_pd(&ca)?;
//! let cq = compat::create_cq(&ca, 16, || println!("completions"))?;
//! compat::destroy_cq(cq, || println!("no more callbacks of this queue"));
//! compat::dealloc_pd(pd, || ());
//! compat::close_ca(ca, || println!("closed"));
//! # Ok::<(), verbs_core::Error>(())
//! ```
//!
//! # Context
//! Calls that return a result block, and refuse with [`Error::WouldBlock`] under NoBlock (K3).
//! Destroys never block and are legal everywhere, also in callbacks of the very object (K11).
//! Callbacks run under NoBlock.

use crate::addr::{Gid, Lid};
use crate::ah::Ah;
use crate::caps::{DeviceAttr, PortAttr};
use crate::cq::Cq;
use crate::device::Device;
use crate::error::Error;
use crate::mcast::Mcast;
use crate::mem::{Access, Memory};
use crate::mr::Mr;
use crate::object::{Handle, Refused, destroy};
use crate::pd::Pd;
use crate::provider::Provider;
use crate::qp::{Qp, QpInit};
use crate::qp_attr::{Av, QpAttr, QpInfo};
use crate::srq::Srq;
use crate::sync::Arc;

/// Opens the channel adapter that `provider` implements.
///
/// # Errors
/// As [`Device::open`].
#[track_caller]
pub fn open_ca(provider: Arc<dyn Provider>) -> Result<Device, Error> {
    Device::open(provider).wait()
}

/// The adapter's attributes.
///
/// # Errors
/// As [`Device::query`].
#[track_caller]
pub fn query_ca(ca: &Device) -> Result<Arc<DeviceAttr>, Error> {
    ca.query().wait()
}

/// The attributes of a port, numbered from 1.
///
/// # Errors
/// As [`Device::query_port`].
#[track_caller]
pub fn query_port(ca: &Device, port: u8) -> Result<PortAttr, Error> {
    ca.query_port(port).wait()
}

/// Allocates a protection domain.
///
/// # Errors
/// As [`Device::alloc_pd`].
#[track_caller]
pub fn alloc_pd(ca: &Device) -> Result<Pd, Error> {
    ca.alloc_pd().wait()
}

/// Creates a completion queue that calls `completed` once per arm.
///
/// # Errors
/// As [`Device::create_cq`].
#[track_caller]
pub fn create_cq(
    ca: &Device,
    cqe: u32,
    completed: impl FnMut() + Send + 'static,
) -> Result<Cq, Error> {
    ca.create_cq(cqe).handler(completed).wait()
}

/// Creates a queue pair.
///
/// # Errors
/// As [`Pd::create_qp`].
#[track_caller]
pub fn create_qp(pd: &Pd, init: QpInit<'_>) -> Result<Qp, Error> {
    pd.create_qp(init).wait()
}

/// Changes a queue pair's attributes and state.
///
/// # Errors
/// As [`Qp::modify`].
#[track_caller]
pub fn modify_qp(qp: &Qp, attr: QpAttr) -> Result<(), Error> {
    qp.modify(attr).wait()
}

/// A queue pair's attributes.
///
/// # Errors
/// As [`Qp::query`].
#[track_caller]
pub fn query_qp(qp: &Qp) -> Result<Box<QpInfo>, Error> {
    qp.query().wait()
}

/// Registers memory.
///
/// # Errors
/// As [`Pd::register`].
#[track_caller]
pub fn reg_mem(pd: &Pd, memory: impl Into<Arc<Memory>>, access: Access) -> Result<Mr, Error> {
    pd.register(memory, access).wait()
}

/// Creates a shared receive queue.
///
/// # Errors
/// As [`Pd::create_srq`].
#[track_caller]
pub fn create_srq(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Srq, Error> {
    pd.create_srq(max_wr, max_sge).wait()
}

/// Creates an address handle, which the old layers call an address vector.
///
/// # Errors
/// As [`Pd::create_ah`].
#[track_caller]
pub fn create_av(pd: &Pd, av: Av) -> Result<Ah, Error> {
    pd.create_ah(av).wait()
}

/// Attaches a queue pair to a multicast group.
///
/// # Errors
/// As [`Qp::attach_mcast`].
#[track_caller]
pub fn attach_mcast(qp: &Qp, mgid: Gid, mlid: Lid) -> Result<Mcast, Error> {
    qp.attach_mcast(mgid, mlid).wait()
}

/// Destroys an object, waits until it is gone, and gives it back if that is refused.
///
/// # Errors
/// [`Error::Busy`] while others use it; [`Error::WouldBlock`] under NoBlock, where the calls with a
/// callback are what is wanted.
#[track_caller]
pub fn sync_destroy<H: Handle>(handle: H) -> Result<(), Refused<H>> {
    destroy(handle, false).wait().map(drop)
}

/// Destroys any object; the calls below are this one by their old names.
///
/// `gone` runs once, when nothing is called for the object any more: after its last callback has
/// returned, the last request on it has completed, and what used it was destroyed. It runs also when
/// the device went first, since the object is gone then as well.
#[track_caller]
pub fn destroy_with<H: Handle>(handle: H, gone: impl FnOnce() + Send + 'static) {
    let _ = destroy(handle, true).issue(move |_| gone());
}

macro_rules! destroys {
    ($($(#[$doc:meta])* $name:ident($Handle:ty);)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(handle: $Handle, gone: impl FnOnce() + Send + 'static) {
            destroy_with(handle, gone);
        }
    )*};
}

destroys! {
    /// Closes the adapter when its last object has gone; see [`destroy_with`].
    close_ca(Device);
    /// Deallocates a protection domain when nothing is left in it; see [`destroy_with`].
    dealloc_pd(Pd);
    /// Destroys a completion queue when no queue pair uses it any more; see [`destroy_with`].
    destroy_cq(Cq);
    /// Destroys a queue pair; see [`destroy_with`].
    destroy_qp(Qp);
    /// Deregisters memory; see [`destroy_with`].
    dereg_mr(Mr);
    /// Destroys a shared receive queue when no queue pair uses it any more; see [`destroy_with`].
    destroy_srq(Srq);
    /// Destroys an address handle; see [`destroy_with`].
    destroy_av(Ah);
    /// Detaches a queue pair from a multicast group; see [`destroy_with`].
    detach_mcast(Mcast);
}
