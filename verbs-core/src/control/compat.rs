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
//! Every entry of such a layer's table has a call here, but for these: posting and polling are the direct calls of the
//! handles ([`Qp::post_send`], [`Srq::post_recv`], [`Cq::poll`], [`SendQueue::bind`](crate::SendQueue::bind)); a region
//! of pages is changed by registering other pages and destroying it; and what a user-mode half of the layer passes to
//! its kernel half has no counterpart.
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

use crate::addr::{Gid, Lid, PKey};
use crate::ah::Ah;
use crate::caps::{DeviceAttr, PortAttr};
use crate::cq::{Cq, CqInfo};
use crate::device::{Device, ModifyDevice};
use crate::error::Error;
use crate::event::AsyncEvent;
use crate::extension::Extension;
use crate::fast_reg::FastMr;
use crate::fmr::{FmrPool, FmrPoolAttr};
use crate::mad::{MadArrival, MadBytes, MadVerdict};
use crate::mcast::Mcast;
use crate::mem::{Access, Extent, Layout, Memory};
use crate::mr::{Mr, MrInfo};
use crate::mw::{Mw, MwInfo, WindowType};
use crate::object::header::IfBusy;
use crate::object::{Handle, Refused, destroy};
use crate::pd::Pd;
use crate::provider::Provider;
use crate::qp::{Qp, QpInit};
use crate::qp_attr::{Av, QpAttr, QpCap, QpInfo};
use crate::queue::{Arm, Armed};
use crate::srq::{Srq, SrqAttr};
use crate::sync::Arc;
use crate::xrcd::Xrcd;

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

/// Calls that wait for one request.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $Type:ty),*) -> $Output:ty, as $like:literal: $request:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        #[doc = concat!("As [`", $like, "`].")]
        #[track_caller]
        pub fn $name($($arg: $Type),*) -> Result<$Output, Error> {
            $request.wait()
        }
    )*};
}

calls! {
    /// Changes what the adapter says of itself.
    modify_ca(ca: &Device, change: ModifyDevice) -> (), as "Device::modify": ca.modify(change);
    /// Sets and clears capabilities of a port, whose other managers see them.
    modify_port(ca: &Device, port: u8, set: u32, clear: u32) -> (), as "Device::modify_port":
        ca.modify_port(port).set_caps(set).clear_caps(clear);
    /// An entry of a port's P_Key table.
    query_pkey(ca: &Device, port: u8, index: u16) -> PKey, as "Device::query_pkey": ca.query_pkey(port, index);
    /// An entry of a port's GID table.
    query_gid(ca: &Device, port: u8, index: u16) -> Gid, as "Device::query_gid": ca.query_gid(port, index);
    /// Changes a completion queue's depth; yields the new one.
    resize_cq(cq: &mut Cq, cqe: u32) -> u32, as "Cq::resize": cq.resize(cqe);
    /// A completion queue's attributes.
    query_cq(cq: &Cq) -> CqInfo, as "Cq::query": cq.query();
    /// Changes the depth of a queue pair's queues; yields its sizes.
    resize_qp(qp: &Qp, send: u32, recv: u32) -> QpCap, as "Qp::resize": qp.resize().send(send).recv(recv);
    /// Changes a shared receive queue's depth.
    resize_srq(srq: &Srq, max_wr: u32) -> (), as "Srq::resize": srq.resize(max_wr);
    /// Arms a shared receive queue's limit.
    arm_srq_limit(srq: &Srq, limit: u32) -> (), as "Srq::arm_limit": srq.arm_limit(limit);
    /// A shared receive queue's sizes and limit.
    query_srq(srq: &Srq) -> SrqAttr, as "Srq::query": srq.query();
    /// Changes the address of an address vector.
    modify_av(ah: &Ah, av: Av) -> (), as "Ah::modify": ah.modify(av);
    /// The address of an address vector.
    query_av(ah: &Ah) -> Av, as "Ah::query": ah.query();
    /// Registers pieces of memory as one region, which is valid when this returns.
    reg_pages(pd: &Pd, layout: Layout, pieces: &[Extent<'_>], access: Access) -> FastMr, as "Pd::register_pages":
        pd.register_pages(layout, pieces.iter().copied(), access);
    /// Registers the memory of a region once more.
    reg_shared(mr: &Mr, pd: &Pd, access: Access) -> Mr, as "Mr::register_shared": mr.register_shared(pd, access);
    /// A region's attributes.
    query_mr(mr: &Mr) -> MrInfo, as "Mr::query": mr.query();
    /// Allocates a region for fast registration.
    alloc_fast_mr(pd: &Pd, max_pages: u32) -> FastMr, as "Pd::alloc_mr": pd.alloc_mr(max_pages);
    /// Creates a memory window.
    create_mw(pd: &Pd, window_type: WindowType) -> Mw, as "Pd::alloc_mw": pd.alloc_mw(window_type);
    /// What a memory window shows.
    query_mw(mw: &Mw) -> MwInfo, as "Mw::query": mw.query();
    /// Creates a pool of regions that are mapped by direct calls.
    create_fmr_pool(pd: &Pd, attr: FmrPoolAttr) -> FmrPool, as "Pd::create_fmr_pool": pd.create_fmr_pool(attr);
    /// Makes the unused keys of a pool invalid.
    flush_fmr_pool(pool: &FmrPool) -> (), as "FmrPool::flush": pool.flush();
    /// Allocates an XRC domain.
    alloc_xrcd(ca: &Device) -> Xrcd, as "Device::alloc_xrcd": ca.alloc_xrcd();
    /// The next asynchronous event.
    next_event(ca: &Device) -> AsyncEvent, as "Device::next_event": ca.next_event();
}

/// Registers a region again, with other rights and under other keys.
///
/// # Errors
/// As [`Mr::rereg`]; the handle comes back.
#[track_caller]
pub fn modify_mr(mr: Mr, access: Access) -> Result<Mr, Refused<Mr>> {
    mr.rereg().access(access).wait()
}

/// Calls an extension of the adapter, which the old layers name a vendor call.
///
/// # Errors
/// As [`Device::call`].
#[track_caller]
pub fn vendor_call<E: Extension>(ca: &Device, input: E::Input) -> Result<E::Output, Error> {
    ca.call::<E>(input).wait()
}

/// Has the adapter's asynchronous events call `raised`, from now on.
pub fn on_event(ca: &Device, raised: impl FnMut(AsyncEvent) + Send + 'static) {
    ca.on_event(raised);
}

/// Arms a completion queue: for the next completion, or for the next that is solicited.
pub fn rearm_cq(cq: &mut Cq, solicited: bool) -> Armed {
    cq.arm(if solicited { Arm::Solicited } else { Arm::Next })
}

/// Arms a completion queue for a number of completions.
pub fn rearm_n_cq(cq: &mut Cq, count: u32) -> Armed {
    cq.arm(Arm::Count(count))
}

/// How many completions wait, as far as the adapter can tell.
pub fn peek_cq(cq: &mut Cq) -> Option<u32> {
    cq.peek(u32::MAX)
}

/// Has the adapter itself answer a management datagram that came for it, as the old layers do for local ones.
pub fn local_mad(ca: &Device, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict {
    ca.target().provider_of().process_mad(incoming, reply)
}

/// Destroys an object, waits until it is gone, and gives it back if that is refused.
///
/// # Errors
/// [`Error::Busy`] while others use it; [`Error::WouldBlock`] under NoBlock, where the calls with a
/// callback are what is wanted.
#[track_caller]
pub fn sync_destroy<H: Handle>(handle: H) -> Result<(), Refused<H>> {
    destroy(handle, IfBusy::Refuse).wait().map(drop)
}

/// Destroys any object; the calls below are this one by their old names.
///
/// `gone` runs once, when nothing is called for the object any longer: after its last callback has
/// returned, the last request on it has completed, and what used it was destroyed. It runs also when
/// the device went first, since the object is gone then as well.
#[track_caller]
pub fn destroy_with<H: Handle>(handle: H, gone: impl FnOnce() + Send + 'static) {
    let _ = destroy(handle, IfBusy::Wait).issue(move |_| gone());
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
    /// Destroys a completion queue when no queue pair uses it any longer; see [`destroy_with`].
    destroy_cq(Cq);
    /// Destroys a queue pair; see [`destroy_with`].
    destroy_qp(Qp);
    /// Deregisters memory; see [`destroy_with`].
    dereg_mr(Mr);
    /// Destroys a shared receive queue when no queue pair uses it any longer; see [`destroy_with`].
    destroy_srq(Srq);
    /// Destroys an address handle; see [`destroy_with`].
    destroy_av(Ah);
    /// Detaches a queue pair from a multicast group; see [`destroy_with`].
    detach_mcast(Mcast);
    /// Gives a region for fast registration back; see [`destroy_with`].
    free_fast_mr(FastMr);
    /// Destroys a memory window; see [`destroy_with`].
    destroy_mw(Mw);
    /// Destroys a pool of regions; see [`destroy_with`].
    destroy_fmr_pool(FmrPool);
    /// Deallocates an XRC domain when nothing uses it any longer; see [`destroy_with`].
    dealloc_xrcd(Xrcd);
}
