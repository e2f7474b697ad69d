//! Ids: a program's names for a connection, a listener or a group's member.

pub(in crate::rdmacm) mod ep;
pub(in crate::rdmacm) mod life;
pub(in crate::rdmacm) mod options;

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use parking_lot::Mutex;
use verbs_abi::rdmacm::{CmEvent, CmId, EventChannel, PathRec};
use verbs_cm::wire::PortSpace;
use verbs_core::Psn;

use crate::call::Errno;
use crate::call::live::{Kind, Lent, Object, Users, lend, look, publish, room};
use crate::qp::Qp;
use crate::rdmacm::address::sockaddr::{path_of, storage};
use crate::rdmacm::channel::{self, acknowledge, inbox_of};
use crate::rdmacm::manager::endpoint::{Endpoint, port_space};
use crate::rdmacm::manager::{Manager, manager};
use crate::rdmacm::multicast::group::Groups;

/// Types of queue pair, as `ibv_qp_type`.
pub(in crate::rdmacm) const RC: u32 = 2;
pub(in crate::rdmacm) const UD: u32 = 4;
pub(in crate::rdmacm) const XRC_SEND: u32 = 9;
pub(in crate::rdmacm) const XRC_RECV: u32 = 10;

/// An id.
#[repr(C)]
pub(crate) struct Id {
    shown: UnsafeCell<CmId>,
    /// The path that `path_rec` points to.
    path: UnsafeCell<PathRec>,
    pub(in crate::rdmacm) endpoint: Arc<Endpoint>,
    pub(in crate::rdmacm) space: PortSpace,
    /// It has a channel of its own, and calls wait for their events.
    pub(in crate::rdmacm) is_synchronous: AtomicBool,
    /// How queue pairs of its requests are made; see `rdma_create_ep`.
    pub(in crate::rdmacm) template: Mutex<Option<verbs_abi::QpInitAttr>>,
    pub(in crate::rdmacm) groups: Groups,
    /// Held from looking at its queue pair to lending that, and while it loses it: the next one may be at the same address.
    qp_turn: Mutex<()>,
    users: Users,
}

// SAFETY: the C structure is read and written in calls that concern the id, which a program makes one at a time.
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
    /// The current C structure.
    pub(in crate::rdmacm) fn shown(&self) -> CmId {
        // SAFETY: programs make calls that concern an id one at a time, and change it only in between.
        unsafe { *self.shown.get() }
    }

    /// Changes it. `change` reads nothing else of the id.
    pub(in crate::rdmacm) fn change<R>(&self, change: impl FnOnce(&mut CmId) -> R) -> R {
        // SAFETY: as above; no other reference to it exists during the call.
        change(unsafe { &mut *self.shown.get() })
    }

    /// Its address in the program.
    pub(in crate::rdmacm) fn at(&self) -> *mut CmId {
        self.shown.get()
    }

    pub(in crate::rdmacm) fn is_synchronous(&self) -> bool {
        self.is_synchronous.load(Ordering::Relaxed)
    }

    pub(in crate::rdmacm) fn channel(&self) -> *mut EventChannel {
        self.shown().channel
    }

    /// Its queue pair, or NULL. The program reads it as a plain pointer, and some write their own there.
    fn qp_place(&self) -> &AtomicPtr<verbs_abi::Qp> {
        // SAFETY: an aligned pointer of the id's, which this library changes only here.
        unsafe { AtomicPtr::from_ptr(&raw mut (*self.shown.get()).qp) }
    }

    /// Its queue pair, or NULL, in a call of the program that names the id.
    pub(in crate::rdmacm) fn qp(&self) -> *mut verbs_abi::Qp {
        self.qp_place().load(Ordering::Acquire)
    }

    /// Its queue pair, if it has one, for the thread that takes an event of the id: another thread may be about to destroy
    /// it, which a program cannot know to be too early.
    pub(in crate::rdmacm) fn lend_qp(&self) -> Option<Lent<Qp>> {
        let _turn = self.qp_turn.lock();
        let qp = self.qp();
        // A pointer that is no queue pair any longer, because the program has destroyed it otherwise, is none.
        (!qp.is_null()).then(|| lend(qp).ok()).flatten()
    }

    /// The id has that queue pair from now on.
    pub(in crate::rdmacm) fn give_qp(&self, qp: *mut verbs_abi::Qp) {
        self.qp_place().store(qp, Ordering::Release);
    }

    /// The id has no queue pair from now on. Returns the one that it had, which has been lent for the last time.
    pub(in crate::rdmacm) fn take_qp(&self) -> *mut verbs_abi::Qp {
        let _turn = self.qp_turn.lock();
        self.qp_place().swap(null_mut(), Ordering::AcqRel)
    }

    /// Drops the event of a synchronous call.
    pub(in crate::rdmacm) fn drop_event(&self) {
        let event = self.change(|shown| std::mem::replace(&mut shown.event, null_mut()));
        if !event.is_null() {
            // The program may have acknowledged it itself.
            let _ = acknowledge(event);
        }
    }

    pub(in crate::rdmacm) fn keep_event(&self, event: *mut CmEvent) {
        self.change(|shown| shown.event = event);
    }

    /// The id is on the device now.
    pub(in crate::rdmacm) fn on_device(&self, manager: &Manager) {
        self.change(|shown| {
            shown.verbs = manager.verbs();
            shown.port_num = crate::device::PORT;
            if shown.pd.is_null() {
                shown.pd = manager.pd();
            }
        });
    }

    /// Updates the addresses that it shows.
    pub(in crate::rdmacm) fn show_addresses(&self) {
        let state = self.endpoint.state.lock();
        self.change(|shown| {
            let addr = &mut shown.route.addr;
            if let Some(local) = state.local {
                addr.src = storage(local);
            }
            if let Some(remote) = state.remote {
                addr.dst = storage(remote);
            }
            if let Some(route) = &state.route {
                addr.sgid = verbs_abi::gid_words(route.local_gid);
                addr.dgid = verbs_abi::gid_words(route.remote_gid);
                addr.pkey = route.pkey.0.0.to_be();
            }
        });
    }

    /// The number of the first packet that the peer of the id will send.
    pub(in crate::rdmacm) fn psn(&self, manager: &Arc<Manager>) -> Psn {
        manager.with(|inner, _| {
            let mut state = self.endpoint.state.lock();
            *state.psn.get_or_insert_with(|| inner.cm.draw_psn())
        })
    }

    /// The path to the peer is known.
    pub(in crate::rdmacm) fn show_path(&self, path: PathRec) {
        // SAFETY: as for the C structure.
        unsafe { *self.path.get() = path };
        let at = self.path.get();
        self.change(|shown| (shown.route.path_rec, shown.route.num_paths) = (at, 1));
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
        qp_turn: Mutex::default(),
        users: Users::default(),
    };
    let at: *mut CmId = publish(room(), id);
    endpoint.has_got(at);
    at
}

pub(in crate::rdmacm) fn create(
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
    let inbox = inbox_of(channel)?;
    let shown = CmId::new(channel, context, ps, qp_type.unwrap_or(usual));
    Ok(make(shown, Endpoint::new(inbox), space, is_synchronous))
}

/// The id for a request that a listener's program takes: on the listener's channel, with its context.
pub(in crate::rdmacm) fn of_request(
    listener: &Endpoint,
    child: &Arc<Endpoint>,
) -> Result<*mut CmId, Errno> {
    let manager = manager()?;
    // SAFETY: the program does not destroy the listener in its call for events.
    let listening = unsafe { look::<Id, _>(listener.shown()) }?;
    let from = listening.shown();
    let channel = match listening.is_synchronous() {
        true => channel::create()?,
        false => from.channel,
    };
    if listening.is_synchronous() {
        child.move_to(&inbox_of(channel)?);
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
        id.show_path(path_of(&route, manager.port().lid));
    }
    Ok(at)
}
