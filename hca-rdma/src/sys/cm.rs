//! Ids of librdmacm, by which connections are made, and the channel of their events.
//!
//! An id never owns a queue pair here; queue pairs are named by their numbers: librdmacm opens devices of its own, and
//! objects of two open devices do not mix.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null, null_mut, without_provenance_mut};

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_abi::rdmacm::{self as raw, Storage, event};
use verbs_core::sync::Arc;
use verbs_core::{QpAttrMask, QpState, Qpn};

use super::context::unblock;
use super::library::{Cm, Library};
use super::{check, errno};
use crate::convert::text;
use crate::error::OpenError;

/// `RDMA_PS_TCP`: connections.
const PS_TCP: u32 = 0x0106;

/// `RDMA_OPTION_ID` and `RDMA_OPTION_ID_TOS`.
const OPTION_TOS: [c_int; 2] = [0, 0];

/// A channel for the events of ids. Destroyed when it is dropped.
pub(crate) struct CmChannel {
    cm: &'static Cm,
    raw: NonNull<raw::EventChannel>,
}

// SAFETY: librdmacm locks inside; a channel may be read by any thread, and it is destroyed by its last owner.
unsafe impl Send for CmChannel {}
// SAFETY: as above.
unsafe impl Sync for CmChannel {}

/// An event of an id, acknowledged.
pub(crate) struct Arrival {
    /// The number of the id; for a request, that of the listener.
    pub(crate) number: u64,
    /// As `rdma_cm_event_type`.
    pub(crate) kind: u32,
    /// 0, an error number below it, or a reason.
    pub(crate) status: i32,
    /// READs and atomics that this end has to serve, and may have outstanding.
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) private_data: Vec<u8>,
    /// The id of a request, with its number.
    pub(crate) request: Option<(u64, CmId)>,
}

impl CmChannel {
    /// `None` if the system has no connection manager for programs: no librdmacm, or no `rdma_cm` in the kernel.
    pub(crate) fn create(library: &'static Library) -> Option<Arc<Self>> {
        let why = |why: &dyn std::fmt::Display| {
            tracing::debug!(%why, "connections cannot be made by address");
        };
        let cm = library.cm.as_ref().map_err(|error: &OpenError| why(error));
        let cm = cm.ok()?;
        // SAFETY: there are no arguments.
        let raw = unsafe { (cm.create_event_channel)() };
        let Some(raw) = NonNull::new(raw) else {
            why(&errno());
            return None;
        };
        let channel = Self { cm, raw };
        let unblocked = unblock(channel.fd()).map_err(|errno| why(&errno));
        unblocked.ok()?;
        Some(Arc::new(channel))
    }

    /// Becomes readable when there is an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel exists, and the field does not change.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// The next event, if there is one. It is acknowledged, so that the id's destroy does not wait until it has been
    /// handled. The id of a request gets `number`. For one thread alone.
    pub(crate) fn next(self: &Arc<Self>, number: impl FnOnce() -> u64) -> Option<Arrival> {
        let mut event = null_mut();
        // SAFETY: the channel exists, the pointer is written during the call, which does not wait: the descriptor is
        // non-blocking.
        let code = unsafe { (self.cm.get_cm_event)(self.raw.as_ptr(), &mut event) };
        if code != 0 {
            return None;
        }
        // SAFETY: the event exists until it is acknowledged, which is below, and its ids as long: their destroy waits
        // for that.
        let arrival = unsafe { self.read(&*event, number) };
        // SAFETY: the event was just taken, and is acknowledged this once.
        unsafe { (self.cm.ack_cm_event)(event) };
        Some(arrival)
    }

    /// # Safety
    /// The event and its ids exist.
    unsafe fn read(
        self: &Arc<Self>,
        event: &raw::CmEvent,
        number: impl FnOnce() -> u64,
    ) -> Arrival {
        // SAFETY: as promised by the caller. The field is written before the id has any event.
        let number_of = |id: *mut raw::CmId| unsafe { (*id).context }.addr() as u64;
        let (mut about, mut request) = (event.id, None);
        if event.event == event::CONNECT_REQUEST
            && let Some(raw) = NonNull::new(event.id)
        {
            about = event.listen_id;
            let (number, channel) = (number(), Arc::clone(self));
            let id = CmId { channel, raw };
            id.renumber(number);
            request = Some((number, id));
        }
        let mut arrival = Arrival {
            number: number_of(about),
            kind: event.event,
            status: event.status,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            private_data: Vec::new(),
            request,
        };
        if let event::CONNECT_REQUEST
        | event::CONNECT_RESPONSE
        | event::REJECTED
        | event::ESTABLISHED = event.event
        {
            // SAFETY: these events have this member of the union, for ids of connections.
            let conn = unsafe { event.param.conn };
            arrival.responder_resources = conn.responder_resources;
            arrival.initiator_depth = conn.initiator_depth;
            arrival.retry_count = conn.retry_count;
            arrival.rnr_retry_count = conn.rnr_retry_count;
            if !conn.private_data.is_null() {
                let length = usize::from(conn.private_data_len);
                // SAFETY: the event has that many bytes there.
                let data =
                    unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), length) };
                arrival.private_data = data.to_vec();
            }
        }
        arrival
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // SAFETY: the channel has no other owner: its ids hold it.
        unsafe { (self.cm.destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// The parameters with which a connection is requested or accepted.
pub(crate) struct Wishes<'a> {
    pub(crate) qpn: Qpn,
    pub(crate) srq: bool,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) private_data: &'a [u8],
}

impl Wishes<'_> {
    fn param(&self) -> Result<raw::ConnParam, Errno> {
        let length = u8::try_from(self.private_data.len()).map_err(|_| Errno::INVAL)?;
        Ok(raw::ConnParam {
            private_data: match length {
                0 => null(),
                _ => self.private_data.as_ptr().cast(),
            },
            private_data_len: length,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count.min(7),
            rnr_retry_count: self.rnr_retry_count.min(7),
            srq: self.srq.into(),
            qp_num: self.qpn.value(),
        })
    }
}

/// An id. One thread makes its calls; the resulting events arrive in the channel. Destroyed when it is dropped, which
/// ends its connection or listening, or rejects its request.
pub(crate) struct CmId {
    channel: Arc<CmChannel>,
    raw: NonNull<raw::CmId>,
}

// SAFETY: any thread may use an id, one at a time, which `&self` without `Sync` ensures.
unsafe impl Send for CmId {}

impl CmId {
    /// An id for connections, on no device yet. `number` is returned with its events.
    pub(crate) fn create(channel: &Arc<CmChannel>, number: u64) -> Result<Self, Errno> {
        let mut id = null_mut();
        let context = without_provenance_mut::<c_void>(number as usize);
        let create = channel.cm.create_id;
        // SAFETY: the channel exists, the pointer is written during the call.
        check(unsafe { create(channel.raw.as_ptr(), &mut id, context, PS_TCP) })?;
        let raw = NonNull::new(id).ok_or(Errno::IO)?;
        let channel = Arc::clone(channel);
        Ok(Self { channel, raw })
    }

    /// For the id of a request, before it has any event.
    fn renumber(&self, number: u64) {
        // SAFETY: the id exists, and no call on it is being made.
        unsafe { (*self.raw.as_ptr()).context = without_provenance_mut(number as usize) };
    }

    /// Binds it; port number 0 for any.
    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), Errno> {
        let mut storage = Storage::of(addr);
        let addr = (&raw mut storage).cast();
        // SAFETY: the id exists, the address is read during the call.
        check(unsafe { (self.channel.cm.bind_addr)(self.raw.as_ptr(), addr) })
    }

    /// Its own address.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: the id exists; the field changes only in calls on it and in taking its events, which have ended.
        unsafe { (*self.raw.as_ptr()).route.addr.src }.addr()
    }

    /// Its peer's.
    pub(crate) fn remote(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).route.addr.dst }.addr()
    }

    /// The name of the device that it is on, if any.
    pub(crate) fn device(&self) -> Option<String> {
        // SAFETY: as above; librdmacm keeps its devices open.
        unsafe {
            let verbs = (*self.raw.as_ptr()).verbs.as_ref()?;
            Some(text(&verbs.device.as_ref()?.name))
        }
    }

    /// Sets the type of service of what is sent from now on.
    pub(crate) fn set_tos(&self, mut tos: u8) -> Result<(), Errno> {
        let ([level, name], at) = (OPTION_TOS, (&raw mut tos).cast());
        // SAFETY: the id exists, one byte is read during the call.
        check(unsafe { (self.channel.cm.set_option)(self.raw.as_ptr(), level, name, at, 1) })
    }

    /// Resolves that address to the device that has a route to it.
    pub(crate) fn resolve_addr(&self, to: SocketAddr, timeout_ms: u16) -> Result<(), Errno> {
        let mut storage = Storage::of(to);
        let to = (&raw mut storage).cast();
        let resolve = self.channel.cm.resolve_addr;
        // SAFETY: the id exists, the address is read during the call.
        check(unsafe { resolve(self.raw.as_ptr(), null_mut(), to, timeout_ms.into()) })
    }

    /// Resolves the route.
    pub(crate) fn resolve_route(&self, timeout_ms: u16) -> Result<(), Errno> {
        // SAFETY: the id exists.
        check(unsafe { (self.channel.cm.resolve_route)(self.raw.as_ptr(), timeout_ms.into()) })
    }

    pub(crate) fn listen(&self, backlog: u32) -> Result<(), Errno> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: the id exists.
        check(unsafe { (self.channel.cm.listen)(self.raw.as_ptr(), backlog) })
    }

    /// The attributes that take the connection's queue pair to that state, and their mask.
    pub(crate) fn init_qp_attr(&self, to: QpState) -> Result<(abi::QpAttr, QpAttrMask), Errno> {
        let (mut attr, mut mask) = (abi::QpAttr::default(), 0);
        attr.qp_state = to as u32;
        let init = self.channel.cm.init_qp_attr;
        // SAFETY: the id exists, both are written during the call.
        check(unsafe { init(self.raw.as_ptr(), &mut attr, &mut mask) })?;
        Ok((attr, QpAttrMask::from_bits_retain(mask.cast_unsigned())))
    }

    pub(crate) fn connect(&self, wishes: &Wishes<'_>) -> Result<(), Errno> {
        let mut param = wishes.param()?;
        // SAFETY: the id exists, the parameters and private data are read during the call.
        check(unsafe { (self.channel.cm.connect)(self.raw.as_ptr(), &mut param) })
    }

    pub(crate) fn accept(&self, wishes: &Wishes<'_>) -> Result<(), Errno> {
        let mut param = wishes.param()?;
        // SAFETY: as above.
        check(unsafe { (self.channel.cm.accept)(self.raw.as_ptr(), &mut param) })
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), Errno> {
        let length = u8::try_from(private_data.len()).map_err(|_| Errno::INVAL)?;
        let data = private_data.as_ptr().cast();
        // SAFETY: the id exists, that many bytes are read during the call.
        check(unsafe { (self.channel.cm.reject)(self.raw.as_ptr(), data, length) })
    }

    /// Informs the peer that the queue pair is ready.
    pub(crate) fn establish(&self) -> Result<(), Errno> {
        // SAFETY: the id exists.
        check(unsafe { (self.channel.cm.establish)(self.raw.as_ptr()) })
    }

    pub(crate) fn disconnect(&self) -> Result<(), Errno> {
        // SAFETY: the id exists.
        check(unsafe { (self.channel.cm.disconnect)(self.raw.as_ptr()) })
    }

    /// Data has arrived before the peer's confirmation, as an asynchronous event reports.
    pub(crate) fn notify(&self, event: u32) -> Result<(), Errno> {
        // SAFETY: the id exists.
        check(unsafe { (self.channel.cm.notify)(self.raw.as_ptr(), event) })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: the id has no other owner. Waits until its events are acknowledged, which the thread that takes one
        // does at once.
        let _ = super::destroyed("connection id", unsafe {
            (self.channel.cm.destroy_id)(self.raw.as_ptr())
        });
    }
}
