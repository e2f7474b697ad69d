//! Ids: what programs name a connection, a listener or a group's member by.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use verbs_cm::wire::PortSpace;

use super::abi::{CmEvent, CmId, EventChannel, PathRec};
use super::channel::{self, Channel, acknowledge};
use super::endpoint::{Endpoint, Role, port_space};
use super::manager::{self, Manager, manager};
use super::{address, qp};
use crate::call::{Errno, number};
use crate::live::{Ending, Kind, Object, Users, end, look, publish, room};

/// Types of queue pair, as `ibv_qp_type`.
pub(super) const RC: u32 = 2;
pub(super) const UD: u32 = 4;

/// An id.
#[repr(C)]
pub(crate) struct Id {
    shown: UnsafeCell<CmId>,
    /// What `path_rec` points to.
    path: UnsafeCell<PathRec>,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) space: PortSpace,
    /// It has a channel of its own, and calls wait for their events.
    is_synchronous: AtomicBool,
    /// How queue pairs of its requests are made; see `rdma_create_ep`.
    pub(super) template: Mutex<Option<crate::abi::QpInitAttr>>,
    pub(super) groups: super::multicast::Groups,
    users: Users,
}

// SAFETY: the C structure is read and written in calls about the id, which a program makes one by one.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

// SAFETY: the C part is at the front.
unsafe impl Object for Id {
    const KIND: Kind = Kind::CmId;

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Id {
    /// The C structure.
    #[expect(
        clippy::mut_from_ref,
        reason = "programs make calls about an id one by one, and use it in between"
    )]
    pub(super) fn shown(&self) -> &mut CmId {
        // SAFETY: as said.
        unsafe { &mut *self.shown.get() }
    }

    pub(super) fn is_synchronous(&self) -> bool {
        self.is_synchronous.load(Ordering::Relaxed)
    }

    pub(super) fn channel(&self) -> *mut EventChannel {
        self.shown().channel
    }

    /// The queue pair of an id.
    pub(super) fn qp(id: *mut CmId) -> Result<*mut crate::abi::Qp, Errno> {
        // SAFETY: the program does not destroy it now.
        Ok(unsafe { look::<Self, _>(id) }?.shown().qp)
    }

    /// The event of a synchronous call goes.
    pub(super) fn drop_event(&self) {
        let event = std::mem::replace(&mut self.shown().event, null_mut());
        if !event.is_null() {
            // The program may have acknowledged it itself.
            let _ = acknowledge(event);
        }
    }

    pub(super) fn keep_event(&self, event: *mut CmEvent) {
        self.shown().event = event;
    }

    /// The id is on the device now.
    pub(super) fn on_device(&self, manager: &Manager) {
        let shown = self.shown();
        shown.verbs = manager.verbs();
        shown.port_num = crate::device::PORT;
        if shown.pd.is_null() {
            shown.pd = manager.pd();
        }
    }

    /// What it shows of its addresses is what is known now.
    pub(super) fn show_addresses(&self) {
        let state = self.endpoint.state.lock();
        let shown = &mut self.shown().route;
        if let Some(local) = state.local {
            shown.addr.src = address::storage(local);
        }
        if let Some(remote) = state.remote {
            shown.addr.dst = address::storage(remote);
        }
        if let Some(route) = &state.route {
            shown.addr.sgid = crate::device::gid_words(route.local_gid);
            shown.addr.dgid = crate::device::gid_words(route.remote_gid);
            shown.addr.pkey = route.pkey.0.0.to_be();
        }
    }

    /// The path to the peer is known.
    pub(super) fn show_path(&self, path: PathRec) {
        // SAFETY: as for the C structure.
        unsafe { *self.path.get() = path };
        let route = &mut self.shown().route;
        (route.path_rec, route.num_paths) = (self.path.get(), 1);
    }
}

fn make(shown: CmId, endpoint: Arc<Endpoint>, space: PortSpace, is_synchronous: bool) -> *mut CmId {
    let id = Id {
        shown: UnsafeCell::new(shown),
        path: UnsafeCell::default(),
        endpoint: Arc::clone(&endpoint),
        space,
        is_synchronous: AtomicBool::new(is_synchronous),
        template: Mutex::new(None),
        groups: Default::default(),
        users: Users::default(),
    };
    let at: *mut CmId = publish(room(), id);
    endpoint.has_got(at);
    at
}

/// `rdma_create_id`. Without a channel the id gets one of its own, and calls wait.
pub(crate) unsafe extern "C" fn create_id(
    channel: *mut EventChannel,
    to: *mut *mut CmId,
    context: *mut c_void,
    ps: c_uint,
) -> c_int {
    number(|| {
        // SAFETY: where the program wants it.
        let to = unsafe { to.as_mut() }.ok_or(Errno::INVAL)?;
        *to = create(channel, context, ps, None)?;
        Ok(0)
    })
}

pub(super) fn create(
    channel: *mut EventChannel,
    context: *mut c_void,
    ps: u32,
    qp_type: Option<u32>,
) -> Result<*mut CmId, Errno> {
    let space = port_space(ps).ok_or(Errno::INVAL)?;
    let usual = match space {
        PortSpace::Tcp | PortSpace::Ib => RC,
        PortSpace::Udp | PortSpace::Ipoib => UD,
    };
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous {
        channel::create()?
    } else {
        channel
    };
    // SAFETY: the program does not destroy it now.
    let inbox = Arc::clone(&unsafe { look::<Channel, _>(channel) }?.inbox);
    let shown = CmId::new(channel, context, ps, qp_type.unwrap_or(usual));
    Ok(make(shown, Endpoint::new(inbox), space, is_synchronous))
}

/// The id of a request that a listener's program takes: on the listener's channel, with its context.
pub(super) fn of_request(listener: &Endpoint, child: &Arc<Endpoint>) -> Result<*mut CmId, Errno> {
    let manager = manager()?;
    // SAFETY: the program does not destroy the listener in its call for events.
    let listening = unsafe { look::<Id, _>(listener.shown()) }?;
    let from = listening.shown();
    let channel = match listening.is_synchronous() {
        true => channel::create()?,
        false => from.channel,
    };
    if listening.is_synchronous() {
        // SAFETY: it was made just now.
        child.move_to(&unsafe { look::<Channel, _>(channel) }?.inbox);
    }
    let mut shown = CmId::new(channel, from.context, from.ps, from.qp_type);
    shown.pd = from.pd;
    let at = make(
        shown,
        Arc::clone(child),
        listening.space,
        listening.is_synchronous(),
    );
    // SAFETY: it was made just now.
    let id = unsafe { look::<Id, _>(at) }?;
    id.on_device(&manager);
    id.show_addresses();
    let route = child.state.lock().route;
    if let Some(route) = route {
        id.show_path(address::path_of(&route));
    }
    Ok(at)
}

/// `rdma_destroy_id`. Waits until the program has acknowledged its events.
pub(crate) unsafe extern "C" fn destroy_id(id: *mut CmId) -> c_int {
    number(|| destroy(id).map(|()| 0))
}

pub(super) fn destroy(at: *mut CmId) -> Result<(), Errno> {
    // SAFETY: the program does not use it now, but to acknowledge events.
    let id = unsafe { look::<Id, _>(at) }?;
    id.groups.leave_all(id.shown().qp);
    forget(&id.endpoint);
    id.drop_event();
    id.endpoint.unacknowledged.wait();
    let own_channel = id.is_synchronous().then(|| id.channel());
    // SAFETY: as above.
    unsafe { end::<Id, _>(at, |_| Ending::Over) }?;
    if let Some(channel) = own_channel {
        let _ = channel::destroy(channel);
    }
    Ok(())
}

/// The connection manager forgets an endpoint, and the requests that wait for it. Peers are told.
fn forget(endpoint: &Arc<Endpoint>) {
    let waiting = endpoint.silence();
    let Some(manager) = manager::existing() else {
        return;
    };
    manager.with(|inner, now| {
        for endpoint in waiting.iter().chain([endpoint]) {
            let (role, binding) = {
                let mut state = endpoint.state.lock();
                (
                    std::mem::replace(&mut state.role, Role::Over),
                    state.binding.take(),
                )
            };
            // They may have had their last events.
            match role {
                Role::Active { conn, .. } | Role::Passive { conn, .. } => {
                    let _ = inner.cm.destroy(now, conn);
                    inner.conns.remove(&conn);
                }
                Role::Listener(listener) => {
                    let _ = inner.cm.unlisten(listener);
                    inner.listeners.remove(&listener);
                }
                Role::Asking(question) | Role::Asked(question) => {
                    let _ = inner.cm.forget(question);
                    inner.questions.remove(&question);
                }
                Role::Idle | Role::Over => {}
            }
            if let Some(binding) = binding {
                inner.ports.give_back(binding);
            }
        }
    });
}

/// `rdma_migrate_id`: the id's events, also those that wait, go to another channel; to one of its own without one. Waits
/// until the program has acknowledged those that it has taken.
pub(crate) unsafe extern "C" fn migrate_id(at: *mut CmId, channel: *mut EventChannel) -> c_int {
    number(|| {
        // SAFETY: the program does not destroy it now.
        let id = unsafe { look::<Id, _>(at) }?;
        let is_synchronous = channel.is_null();
        if is_synchronous && id.is_synchronous() {
            return Err(Errno::INVAL);
        }
        let to = if is_synchronous {
            channel::create()?
        } else {
            channel
        };
        // SAFETY: the program does not destroy it now.
        id.endpoint
            .move_to(&unsafe { look::<Channel, _>(to) }?.inbox);
        id.drop_event();
        id.endpoint.unacknowledged.wait();
        if id.is_synchronous.swap(is_synchronous, Ordering::Relaxed) {
            let _ = channel::destroy(id.channel());
        }
        id.shown().channel = to;
        Ok(0)
    })
}

/// `rdma_get_devices`: the open devices, for as long as the process lives.
pub(crate) unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut crate::abi::Context {
    crate::call::pointer(|| {
        let verbs = manager()?.verbs();
        // SAFETY: NULL, or where the program wants the number.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = 1;
        }
        let list = [verbs, null_mut()];
        // SAFETY: of that many bytes; the program gives it back to free_devices.
        unsafe {
            let room = libc::malloc(size_of_val(&list)).cast::<*mut crate::abi::Context>();
            if room.is_null() {
                return Err(Errno::NOMEM);
            }
            room.copy_from_nonoverlapping(list.as_ptr(), list.len());
            Ok(room)
        }
    })
}

/// `rdma_free_devices`.
pub(crate) unsafe extern "C" fn free_devices(list: *mut *mut crate::abi::Context) {
    // SAFETY: from get_devices, or NULL.
    unsafe { libc::free(list.cast()) }
}

/// Destroys what `rdma_create_ep` has made.
pub(crate) unsafe extern "C" fn destroy_ep(at: *mut CmId) {
    // SAFETY: the program no longer uses it.
    unsafe {
        qp::destroy_qp(at);
        qp::destroy_srq(at);
        destroy_id(at);
    }
}
