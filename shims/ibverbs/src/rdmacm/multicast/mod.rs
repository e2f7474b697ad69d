//! Multicast groups of ids. Over RoCE a group's GID is its address, and the device informs the network.

pub(in crate::rdmacm) mod group;

use std::ffi::{c_int, c_void};

use verbs_abi::rdmacm::{CmId, JoinMcAttrEx};
use verbs_core::{Av, Gid, LinkLayer};

use crate::call::live::look;
use crate::call::{Errno, number};
use crate::device::PORT;
use crate::rdmacm::address::sockaddr::from_c;
use crate::rdmacm::channel::taken::complete;
use crate::rdmacm::id::Id;
use crate::rdmacm::manager::endpoint::{Joined, What};
use crate::rdmacm::manager::manager;

/// `rdma_join_multicast`.
pub(crate) unsafe extern "C" fn join_multicast(
    id: *mut CmId,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program passes valid arguments.
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
        // SAFETY: the program passes valid arguments.
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
/// The program passes valid arguments, and does not destroy the id now.
unsafe fn join(
    id: *mut CmId,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
    sends_only: bool,
) -> Result<c_int, Errno> {
    // SAFETY: guaranteed by the caller.
    let (id, group) = unsafe { (look::<Id, _>(id)?, from_c(addr)?.ip()) };
    if id.shown().verbs.is_null() || !group.is_multicast() {
        return Err(Errno::INVAL);
    }
    let manager = manager()?;
    let has_lids = manager.port().link_layer == LinkLayer::InfiniBand;
    if manager.binder().is_some() || has_lids {
        // Streams have no groups, and those of a subnet are not joined by address.
        return Err(Errno(libc::ENOSYS));
    }
    let (port, own) = (manager.port(), manager.addresses());
    let from = own.into_iter().find(|ip| ip.is_ipv4() == group.is_ipv4());
    let from = Gid::from(from.ok_or(Errno(libc::ENETUNREACH))?);
    let index = port.gid_index(from).ok_or(Errno(libc::ENODEV))?;
    let mgid = Gid::from(group);
    id.groups.add(mgid, sends_only)?;
    let av = Av::to_gid(PORT, index, mgid);
    let context = context.expose_provenance();
    id.endpoint.tell(What::Joined(Joined { mgid, av, context }));
    complete(id)
}

/// `rdma_leave_multicast`.
pub(crate) unsafe extern "C" fn leave_multicast(id: *mut CmId, addr: *mut libc::sockaddr) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and does not destroy the id now.
        let (id, group) = unsafe { (look::<Id, _>(id)?, from_c(addr)?.ip()) };
        id.groups.leave(Gid::from(group), id.qp())?;
        Ok(0)
    })
}
