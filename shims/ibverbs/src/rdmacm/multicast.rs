//! Multicast groups of ids. Over RoCE a group's GID is its address, and the device tells the network.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use parking_lot::Mutex;
use verbs_cm::UDP_QKEY;
use verbs_core::{Av, Gid, Qpn};

use super::abi::{CmId, JoinMcAttrEx, event};
use super::address::from_c;
use super::endpoint::{Endpoint, Param, Told, UdFields, What};
use super::id::Id;
use super::manager::manager;
use crate::call::{Errno, number};
use crate::device::{PORT, gid_words};
use crate::live::look;
use crate::qp::{attach_mcast, detach_mcast};

/// Groups that an id is in.
#[derive(Default)]
pub(super) struct Groups(Mutex<Vec<Group>>);

struct Group {
    mgid: Gid,
    /// The queue pair was attached, and is detached when the id leaves.
    is_attached: bool,
    /// It sends to the group and gets nothing of it.
    sends_only: bool,
}

/// A group that an id has joined.
pub(super) struct Joined {
    mgid: Gid,
    av: Av,
    /// What the program called it with.
    context: usize,
}

impl Groups {
    /// Leaves all groups; `qp` is the id's queue pair, or NULL.
    pub(super) fn leave_all(&self, qp: *mut crate::abi::Qp) {
        for group in std::mem::take(&mut *self.0.lock()) {
            group.leave(qp);
        }
    }
}

impl Group {
    fn leave(&self, qp: *mut crate::abi::Qp) {
        if self.is_attached && !qp.is_null() {
            // SAFETY: the id's own; the program may have detached it itself.
            unsafe { detach_mcast(qp, &gid_words(self.mgid), 0) };
        }
    }
}

/// `rdma_join_multicast`.
pub(crate) unsafe extern "C" fn join_multicast(
    id: *mut CmId,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: what the program gives.
    number(|| unsafe { join(id, addr, context, false) })
}

/// `rdma_join_multicast_ex`.
pub(crate) unsafe extern "C" fn join_multicast_ex(
    id: *mut CmId,
    attr: *const JoinMcAttrEx,
    context: *mut c_void,
) -> c_int {
    /// `RDMA_CM_JOIN_MC_ATTR_ADDRESS` and `_JOIN_FLAGS`.
    const KNOWN: u32 = 0b11;
    const FLAGS: u32 = 1 << 1;
    /// `RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER`.
    const SEND_ONLY: u32 = 1;
    number(|| {
        // SAFETY: what the program gives.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        if attr.comp_mask & !KNOWN != 0 || attr.comp_mask & 1 == 0 {
            return Err(Errno::INVAL);
        }
        let flags = if attr.comp_mask & FLAGS != 0 {
            attr.join_flags
        } else {
            0
        };
        if flags & !SEND_ONLY != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: as above.
        unsafe { join(id, attr.addr, context, flags == SEND_ONLY) }
    })
}

/// # Safety
/// What the program gives; it does not destroy the id now.
unsafe fn join(
    id: *mut CmId,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
    sends_only: bool,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's.
    let (id, group) = unsafe { (look::<Id, _>(id)?, from_c(addr)?.ip()) };
    if id.shown().verbs.is_null() || !group.is_multicast() {
        return Err(Errno::INVAL);
    }
    let (port, own) = (manager()?.port(), manager()?.addresses());
    let from = own.into_iter().find(|ip| ip.is_ipv4() == group.is_ipv4());
    let from = Gid::from(from.ok_or(Errno(libc::ENETUNREACH))?);
    let index = port.gid_index(from).ok_or(Errno(libc::ENODEV))?;
    let mgid = Gid::from(group);
    let mut groups = id.groups.0.lock();
    if groups.iter().any(|known| known.mgid == mgid) {
        return Err(Errno(libc::EADDRINUSE));
    }
    groups.push(Group {
        mgid,
        is_attached: false,
        sends_only,
    });
    drop(groups);
    let av = Av::to_gid(PORT, index, mgid);
    let context = context.expose_provenance();
    id.endpoint.tell(What::Joined(Joined { mgid, av, context }));
    super::channel::complete(id)
}

/// The program takes the news: its queue pair gets what is sent to the group from now on.
pub(super) fn told(endpoint: &Arc<Endpoint>, joined: Joined) -> Told {
    /// `RDMA_CM_EVENT_MULTICAST_ERROR`.
    const ERROR: u32 = 13;
    // SAFETY: the program does not destroy it in its call for events.
    let Ok(id) = (unsafe { look::<Id, _>(endpoint.shown()) }) else {
        return Told::of(ERROR, -libc::EINVAL);
    };
    let (mut groups, qp) = (id.groups.0.lock(), id.shown().qp);
    let group = groups.iter_mut().find(|group| group.mgid == joined.mgid);
    if let Some(group) = group.filter(|group| !group.sends_only && !qp.is_null()) {
        // SAFETY: the id's own, which the program does not destroy now.
        let code = unsafe { attach_mcast(qp, &gid_words(joined.mgid), 0) };
        if code != 0 {
            return Told::of(ERROR, -code);
        }
        group.is_attached = true;
    }
    let fields = UdFields {
        private_data: Vec::new(),
        av: Some(joined.av),
        qp_num: Qpn::MULTICAST.value(),
        qkey: UDP_QKEY.0,
        context: joined.context,
    };
    Told {
        param: Param::Ud(fields),
        ..Told::of(event::MULTICAST_JOIN, 0)
    }
}

/// `rdma_leave_multicast`.
pub(crate) unsafe extern "C" fn leave_multicast(id: *mut CmId, addr: *mut libc::sockaddr) -> c_int {
    number(|| {
        // SAFETY: what the program gives; it does not destroy the id now.
        let (id, group) = unsafe { (look::<Id, _>(id)?, from_c(addr)?.ip()) };
        let mut groups = id.groups.0.lock();
        let place = groups
            .iter()
            .position(|known| known.mgid == Gid::from(group));
        let left = groups.swap_remove(place.ok_or(Errno(libc::EADDRNOTAVAIL))?);
        drop(groups);
        left.leave(id.shown().qp);
        Ok(0)
    })
}
