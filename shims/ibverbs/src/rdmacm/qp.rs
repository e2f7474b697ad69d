//! Queue pairs and shared receive queues of ids.

use std::ffi::c_int;
use std::ptr::null_mut;

use verbs_abi::rdmacm::CmId;
use verbs_abi::{self as abi, QpInitAttr, QpInitAttrEx, SrqInitAttr, SrqInitAttrEx};
use verbs_cm::{Accept, UDP_QKEY};
use verbs_core::{Access, Psn, QpAttr, QpState};

use super::id::{Id, UD, XRC_RECV, XRC_SEND};
use super::manager::endpoint::Role;
use super::manager::manager;
use crate::call::live::look;
use crate::call::{Errno, number};
use crate::device::PORT;
use crate::qp::modify;
use crate::{cq, srq};

/// `IBV_QP_INIT_ATTR_PD`, `IBV_QP_INIT_ATTR_XRCD`.
const PD: u32 = 1;
const XRCD: u32 = 1 << 1;

/// The rights of a peer on a queue pair that is connected by address: the same as in Linux.
const ACCESS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// `rdma_create_qp`. Without a domain it is in the device's own; completion queues that are not named are made, each
/// with a channel.
pub(crate) unsafe extern "C" fn create_qp(
    id: *mut CmId,
    pd: *mut abi::Pd,
    init: *mut QpInitAttr,
) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (id, init) = unsafe { (look::<Id, _>(id)?, init.as_mut().ok_or(Errno::INVAL)?) };
        let mut extended = QpInitAttrEx {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            comp_mask: PD,
            pd: if pd.is_null() { id.shown().pd } else { pd },
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: null_mut(),
            rx_hash_conf: [0; 3],
            source_qpn: 0,
            send_ops_flags: 0,
        };
        // SAFETY: as above.
        unsafe { create(id, &mut extended) }?;
        (init.cap, init.send_cq, init.recv_cq) = (extended.cap, extended.send_cq, extended.recv_cq);
        Ok(0)
    })
}

/// `rdma_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(id: *mut CmId, init: *mut QpInitAttrEx) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        unsafe { create(look::<Id, _>(id)?, init.as_mut().ok_or(Errno::INVAL)?) }?;
        Ok(0)
    })
}

/// # Safety
/// No named object is destroyed now.
unsafe fn create(id: &Id, init: &mut QpInitAttrEx) -> Result<(), Errno> {
    let shown = id.shown();
    if !shown.qp.is_null() || shown.verbs.is_null() {
        // It has one already, or the id is on no device yet.
        return Err(Errno::INVAL);
    }
    if init.comp_mask & PD == 0 {
        (init.comp_mask, init.pd) = (init.comp_mask | PD, shown.pd);
    }
    if init.qp_type == XRC_RECV && init.comp_mask & XRCD == 0 {
        (init.comp_mask, init.xrcd) = (init.comp_mask | XRCD, manager()?.xrcd()?);
    }
    // SAFETY: NULL, or a domain of the program.
    match unsafe { init.pd.as_ref() } {
        Some(pd) if pd.context == shown.verbs => {}
        _ => return Err(Errno::INVAL),
    }
    let clashes =
        |own: *mut abi::Cq, named: *mut abi::Cq| !own.is_null() && !named.is_null() && own != named;
    if clashes(shown.recv_cq, init.recv_cq) || clashes(shown.send_cq, init.send_cq) {
        return Err(Errno::INVAL);
    }
    if init.srq.is_null() {
        init.srq = shown.srq;
    }
    // SAFETY: guaranteed by the caller.
    let made = unsafe { make(id, init) };
    if made.is_err() {
        destroy_cqs(id);
    }
    made
}

/// # Safety
/// As [`create`].
unsafe fn make(id: &Id, init: &mut QpInitAttrEx) -> Result<(), Errno> {
    if init.recv_cq.is_null() && init.qp_type != XRC_SEND {
        init.recv_cq = own_cq(id, init.cap.max_recv_wr, |shown| {
            (&mut shown.recv_cq_channel, &mut shown.recv_cq)
        })?;
    }
    if init.send_cq.is_null() && init.qp_type != XRC_RECV {
        init.send_cq = own_cq(id, init.cap.max_send_wr, |shown| {
            (&mut shown.send_cq_channel, &mut shown.send_cq)
        })?;
    }
    // SAFETY: guaranteed by the caller.
    let qp = unsafe { crate::qp::create_qp_ex(id.shown().verbs, init) };
    if qp.is_null() {
        return Err(Errno::last());
    }
    for change in first_changes(id, init.qp_type) {
        // SAFETY: it was made just now.
        if let Err(errno) = unsafe { modify(qp, change) } {
            // SAFETY: as above.
            unsafe { crate::qp::destroy_qp(qp) };
            return Err(errno);
        }
    }
    id.change(|shown| shown.pd = init.pd);
    id.give_qp(qp);
    Ok(())
}

/// A queue of an id, with its channel.
type Place = fn(&mut CmId) -> (&mut *mut abi::CompChannel, &mut *mut abi::Cq);

/// A completion queue of the id's own, unless it has one.
fn own_cq(id: &Id, depth: u32, place: Place) -> Result<*mut abi::Cq, Errno> {
    let known = id.change(|shown| *place(shown).1);
    if !known.is_null() {
        return Ok(known);
    }
    let verbs = id.shown().verbs;
    let depth = c_int::try_from(depth.max(1)).map_err(|_| Errno::INVAL)?;
    // SAFETY: the open device of the id.
    let channel = unsafe { cq::create_comp_channel(verbs) };
    if channel.is_null() {
        return Err(Errno::last());
    }
    // SAFETY: as above, and the channel was made just now.
    let queue = unsafe { cq::create_cq(verbs, depth, id.at().cast(), channel, 0) };
    let failed = queue.is_null().then(Errno::last);
    id.change(|shown| {
        let (its_channel, its_queue) = place(shown);
        (*its_channel, *its_queue) = (channel, queue);
    });
    failed.map_or(Ok(queue), Err)
}

/// Destroys completion queues that were made for the id. The shared receive queue of a target uses its own.
fn destroy_cqs(id: &Id) {
    let shown = id.shown();
    if shown.qp_type == XRC_RECV && !shown.srq.is_null() {
        return;
    }
    let places: [Place; 2] = [
        |shown| (&mut shown.recv_cq_channel, &mut shown.recv_cq),
        |shown| (&mut shown.send_cq_channel, &mut shown.send_cq),
    ];
    for place in places {
        let (channel, queue) = id.change(|shown| {
            let (channel, queue) = place(shown);
            match channel.is_null() {
                // It belongs to the program.
                true => (null_mut(), null_mut()),
                false => (
                    std::mem::replace(channel, null_mut()),
                    std::mem::replace(queue, null_mut()),
                ),
            }
        });
        // SAFETY: the id's own.
        unsafe {
            if !queue.is_null() {
                cq::destroy_cq(queue);
            }
            if !channel.is_null() {
                cq::destroy_comp_channel(channel);
            }
        }
    }
}

/// Connected queue pairs go to INIT, those for datagrams to RTS.
fn first_changes(id: &Id, qp_type: u32) -> Vec<QpAttr> {
    if qp_type != UD && id.shown().qp_type != UD {
        return vec![QpAttr::init(PORT, ACCESS)];
    }
    let rts = QpAttr {
        sq_psn: Some(Psn::default()),
        ..QpAttr::to(QpState::Rts)
    };
    vec![
        QpAttr::init_datagram(PORT, UDP_QKEY),
        QpAttr::to(QpState::Rtr),
        rts,
    ]
}

/// `rdma_destroy_qp`.
pub(crate) unsafe extern "C" fn destroy_qp(id: *mut CmId) {
    // SAFETY: the program does not use it now.
    let Ok(id) = (unsafe { look::<Id, _>(id) }) else {
        return;
    };
    let qp = id.take_qp();
    if !qp.is_null() {
        id.groups.leave_all(qp);
        // SAFETY: as above.
        unsafe { crate::qp::destroy_qp(qp) };
    }
    destroy_cqs(id);
}

/// `rdma_create_srq`.
pub(crate) unsafe extern "C" fn create_srq(
    id: *mut CmId,
    pd: *mut abi::Pd,
    init: *mut SrqInitAttr,
) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let id = unsafe { look::<Id, _>(id) }?;
        let shown = id.shown();
        let pd = if pd.is_null() { shown.pd } else { pd };
        // SAFETY: as above.
        let attr = unsafe { init.as_mut() }.ok_or(Errno::INVAL)?;
        let mut extended = SrqInitAttrEx {
            srq_context: attr.srq_context,
            attr: attr.attr,
            comp_mask: SRQ_PD,
            srq_type: 0,
            pd,
            xrcd: null_mut(),
            cq: null_mut(),
            tm_cap: [0; 2],
        };
        // SAFETY: as above.
        unsafe { make_srq(id, &mut extended) }?;
        attr.attr = extended.attr;
        Ok(0)
    })
}

/// `IBV_SRQ_INIT_ATTR_TYPE`, `_PD`, `_XRCD` and `_CQ`; and `IBV_SRQT_XRC`.
const SRQ_TYPE: u32 = 1;
const SRQ_PD: u32 = 1 << 1;
const SRQ_XRCD: u32 = 1 << 2;
const SRQ_CQ: u32 = 1 << 3;
const SRQ_XRC: u32 = 1;

/// # Safety
/// The program passes valid arguments, and destroys none of them now.
unsafe fn make_srq(id: &Id, init: &mut SrqInitAttrEx) -> Result<(), Errno> {
    let shown = id.shown();
    if !shown.srq.is_null() || shown.verbs.is_null() {
        return Err(Errno::INVAL);
    }
    if init.comp_mask & SRQ_PD == 0 {
        (init.comp_mask, init.pd) = (init.comp_mask | SRQ_PD, shown.pd);
    }
    if shown.qp_type == XRC_RECV && init.comp_mask & SRQ_TYPE == 0 {
        (init.comp_mask, init.srq_type) = (init.comp_mask | SRQ_TYPE, SRQ_XRC);
    }
    if init.comp_mask & SRQ_TYPE != 0 && init.srq_type == SRQ_XRC {
        if init.comp_mask & SRQ_XRCD == 0 {
            (init.comp_mask, init.xrcd) = (init.comp_mask | SRQ_XRCD, manager()?.xrcd()?);
        }
        if init.comp_mask & SRQ_CQ == 0 {
            let own = own_cq(id, init.attr.max_wr, |shown| {
                (&mut shown.recv_cq_channel, &mut shown.recv_cq)
            })?;
            (init.comp_mask, init.cq) = (init.comp_mask | SRQ_CQ, own);
        }
    }
    // SAFETY: guaranteed by the caller.
    let made = unsafe { srq::create_srq_ex(shown.verbs, init) };
    if made.is_null() {
        return Err(Errno::last());
    }
    id.change(|shown| (shown.srq, shown.pd) = (made, init.pd));
    Ok(())
}

/// `rdma_create_srq_ex`. That of a target of extended connections is in the domain of all ids, with a completion queue of
/// the id, unless the program names others.
pub(crate) unsafe extern "C" fn create_srq_ex(id: *mut CmId, init: *mut SrqInitAttrEx) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        unsafe { make_srq(look::<Id, _>(id)?, init.as_mut().ok_or(Errno::INVAL)?) }?;
        Ok(0)
    })
}

/// `rdma_destroy_srq`.
pub(crate) unsafe extern "C" fn destroy_srq(id: *mut CmId) {
    // SAFETY: the program does not use it now.
    let Ok(id) = (unsafe { look::<Id, _>(id) }) else {
        return;
    };
    let made = id.change(|shown| std::mem::replace(&mut shown.srq, null_mut()));
    if !made.is_null() {
        // SAFETY: as above.
        unsafe { srq::destroy_srq(made) };
        if id.shown().qp_type == XRC_RECV {
            destroy_cqs(id);
        }
    }
}

/// `rdma_init_qp_attr`: the attributes that a queue pair of the program's own needs for the state that `attr` names.
pub(crate) unsafe extern "C" fn init_qp_attr(
    id: *mut CmId,
    attr: *mut abi::QpAttr,
    named: *mut c_int,
) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and does not destroy the id now.
        let (id, attr, named) = unsafe {
            let id = look::<Id, _>(id)?;
            (
                id,
                attr.as_mut().ok_or(Errno::INVAL)?,
                named.as_mut().ok_or(Errno::INVAL)?,
            )
        };
        let state = abi::state_of(attr.qp_state).ok_or(Errno::INVAL)?;
        let change = wanted(id, state)?;
        *named = abi::write_attr(&change, attr).bits().cast_signed();
        Ok(0)
    })
}

fn wanted(id: &Id, state: QpState) -> Result<QpAttr, Errno> {
    if id.shown().verbs.is_null() {
        return Err(Errno::INVAL);
    }
    if id.shown().qp_type == UD {
        return match state {
            QpState::Init => Ok(QpAttr::init_datagram(PORT, UDP_QKEY)),
            QpState::Rtr => Ok(QpAttr::to(state)),
            QpState::Rts => Ok(QpAttr {
                sq_psn: Some(Psn::default()),
                ..QpAttr::to(state)
            }),
            _ => Err(Errno::INVAL),
        };
    }
    let manager = manager()?;
    if manager.binder().is_some() {
        return match state {
            QpState::Init => Ok(QpAttr::init(PORT, ACCESS)),
            // The device moves it itself.
            QpState::Rtr | QpState::Rts => Ok(QpAttr::default()),
            _ => Err(Errno::INVAL),
        };
    }
    let attrs = || match id.endpoint.role() {
        Role::Passive {
            conn,
            responder_resources,
            initiator_depth,
        } => {
            let psn = id.psn(&manager);
            let accept = Accept {
                psn,
                responder_resources,
                initiator_depth,
                ..Accept::default()
            };
            manager.with(|inner, _| {
                inner
                    .cm
                    .qp_attrs(conn)
                    .or_else(|| inner.cm.qp_attrs_if(conn, &accept))
            })
        }
        Role::Active { conn, .. } => manager.with(|inner, _| inner.cm.qp_attrs(conn)),
        _ => None,
    };
    match state {
        QpState::Init => Ok(QpAttr::init(PORT, ACCESS)),
        QpState::Rtr => attrs().map(|[rtr, _]| rtr).ok_or(Errno::INVAL),
        QpState::Rts => attrs()
            .map(|[_, rts]| id.endpoint.with_options(rts))
            .ok_or(Errno::INVAL),
        _ => Err(Errno::INVAL),
    }
}

/// `rdma_get_remote_ece`: the peer's enhancements, of which there are none.
pub(crate) unsafe extern "C" fn get_remote_ece(id: *mut CmId, ece: *mut abi::Ece) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and does not destroy the id now.
        unsafe {
            look::<Id, _>(id)?;
            ece.as_mut().ok_or(Errno::INVAL)?;
            ece.write(abi::Ece {
                vendor_id: 0,
                options: 0,
                comp_mask: 0,
            });
        }
        Ok(0)
    })
}

/// `rdma_set_local_ece`: they are not sent, because no peer's are used.
pub(crate) unsafe extern "C" fn set_local_ece(id: *mut CmId, ece: *mut abi::Ece) -> c_int {
    number(|| {
        // SAFETY: the program passes valid arguments, and does not destroy the id now.
        unsafe {
            look::<Id, _>(id)?;
            ece.as_mut().ok_or(Errno::INVAL)?;
        }
        Ok(0)
    })
}
