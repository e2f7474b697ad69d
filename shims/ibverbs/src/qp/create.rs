//! Creating queue pairs.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use parking_lot::Mutex;
use verbs_abi::{self as abi, QpEx, QpExOps, QpInitAttr, QpInitAttrEx, QpOpenAttr};
use verbs_core::{QpAttr, QpInit, QpState, QpType, Qpn, Shared, Target};

use super::building::Building;
use super::pair::{Parents, Qp};
use super::wr;
use crate::call::live::{Ending, Held, Users, close, look, publish, room};
use crate::call::{Errno, code, pointer};
use crate::cq::Cq;
use crate::device::Context;
use crate::memory::Pd;
use crate::srq::Srq;
use crate::srq::xrcd::Xrcd;

/// The bits of `comp_mask` of `ibv_qp_init_attr_ex`.
mod mask {
    pub(super) const PD: u32 = 1;
    pub(super) const XRCD: u32 = 1 << 1;
    pub(super) const CREATE_FLAGS: u32 = 1 << 2;
    pub(super) const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`.
const BLOCK_SELF_MCAST_LB: u32 = 1 << 1;

/// Types of queue pair, as `ibv_qp_type`.
const TYPES: [(u32, QpType); 5] = [
    (2, QpType::Rc),
    (3, QpType::Uc),
    (4, QpType::Ud),
    (9, QpType::XrcSend),
    (10, QpType::XrcRecv),
];

/// The type of that number.
fn type_of(number: u32) -> Result<QpType, Errno> {
    let found = TYPES.iter().find(|(other, _)| *other == number);
    found.map(|(_, qp_type)| *qp_type).ok_or(Errno::NOTSUP)
}

/// `ibv_create_qp`. The actual sizes of the queues are written back.
pub(crate) unsafe extern "C" fn create_qp(pd: *mut abi::Pd, attr: *mut QpInitAttr) -> *mut abi::Qp {
    pointer(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (owner, attr) = unsafe { (look::<Pd, _>(pd)?, attr.as_mut().ok_or(Errno::INVAL)?) };
        let mut extended = QpInitAttrEx {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
            comp_mask: mask::PD,
            pd,
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: null_mut(),
            rx_hash_conf: [0; 3],
            source_qpn: 0,
            send_ops_flags: 0,
        };
        // SAFETY: as above.
        let qp = unsafe { create(&owner.context, &mut extended) }?;
        attr.cap = extended.cap;
        Ok(qp)
    })
}

/// `create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut abi::Context,
    attr: *mut QpInitAttrEx,
) -> *mut abi::Qp {
    pointer(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        unsafe {
            let owner = look::<Context, _>(context)?;
            create(owner, attr.as_mut().ok_or(Errno::INVAL)?)
        }
    })
}

/// # Safety
/// No named object is destroyed during the call.
unsafe fn create(context: &Context, attr: &mut QpInitAttrEx) -> Result<*mut abi::Qp, Errno> {
    const KNOWN: u32 = mask::PD | mask::XRCD | mask::CREATE_FLAGS | mask::SEND_OPS_FLAGS;
    if attr.comp_mask & !KNOWN != 0 {
        // Segmentation, indirection tables and hashes are for raw packets.
        return Err(Errno::NOTSUP);
    }
    let flags = match attr.comp_mask & mask::CREATE_FLAGS {
        0 => 0,
        _ => attr.create_flags,
    };
    if flags & !BLOCK_SELF_MCAST_LB != 0 {
        return Err(Errno::NOTSUP);
    }
    let ops = match attr.comp_mask & mask::SEND_OPS_FLAGS {
        0 => None,
        _ => Some(attr.send_ops_flags),
    };
    let qp_type = type_of(attr.qp_type)?;
    if qp_type == QpType::XrcRecv {
        // SAFETY: guaranteed by the caller.
        return unsafe { create_target(context, attr) };
    }
    if attr.comp_mask & mask::PD == 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: guaranteed by the caller.
    let parents = unsafe { parents_of(attr, qp_type) }?;
    let (Some(pd), Some(send_cq)) = (&parents.pd, &parents.send_cq) else {
        return Err(Errno::INVAL);
    };
    let recv_cq = parents.recv_cq.as_ref().unwrap_or(send_cq);
    let mut cap = cap_of(attr, qp_type, context.max_inline);
    if ops.is_some_and(|ops| ops & wr::send_ops::ATOMIC_WRITE != 0) {
        // The 8 bytes are in the work request.
        cap.max_inline_data = cap.max_inline_data.max(8);
    }
    let mut init = QpInit::of(qp_type, send_cq.queue(), recv_cq.queue()).cap(cap);
    if let Some(srq) = &parents.srq {
        init = init.srq(srq.queue());
    }
    if attr.sq_sig_all != 0 {
        init = init.signal_all();
    }
    if flags & BLOCK_SELF_MCAST_LB != 0 {
        init = init.block_multicast_loopback();
    }
    let ex_ops = ops.map(|flags| wr::ops(qp_type, flags)).transpose()?;
    let qp = pd.create_qp(init).wait()?;
    attr.cap = shown_cap(qp.cap(), &parents);
    finish(context, qp, attr, parents, ex_ops)
}

/// Bytes that may be inline in place of one element of a list, as with every driver: programs such as rdma_xclient post
/// them without having requested any.
const INLINE_PER_SGE: u32 = 16;

/// The requested sizes. A queue that is never used may be requested with sizes of 0.
fn cap_of(attr: &QpInitAttrEx, qp_type: QpType, max_inline: u32) -> verbs_core::QpCap {
    let given = attr
        .cap
        .max_send_sge
        .saturating_mul(INLINE_PER_SGE)
        .min(max_inline);
    let has_receives = attr.srq.is_null() && qp_type != QpType::XrcSend;
    verbs_core::QpCap {
        max_send_wr: attr.cap.max_send_wr,
        max_recv_wr: if has_receives {
            attr.cap.max_recv_wr
        } else {
            0
        },
        max_send_sge: attr.cap.max_send_sge,
        max_recv_sge: if has_receives {
            attr.cap.max_recv_sge
        } else {
            0
        },
        max_inline_data: attr.cap.max_inline_data.max(given),
    }
}

fn shown_cap(cap: verbs_core::QpCap, parents: &Parents) -> abi::QpCap {
    let own = u32::from(parents.srq.is_none());
    abi::QpCap {
        max_recv_wr: cap.max_recv_wr * own,
        max_recv_sge: cap.max_recv_sge * own,
        ..cap.into()
    }
}

/// # Safety
/// As [`create`].
unsafe fn parents_of(attr: &QpInitAttrEx, qp_type: QpType) -> Result<Parents, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let cq = |cq: *mut abi::Cq| look::<Cq, _>(cq).map(Held::new);
        let recv_cq = match qp_type {
            QpType::XrcSend => None,
            _ => Some(cq(attr.recv_cq)?),
        };
        let srq = match attr.srq.is_null() || qp_type == QpType::XrcSend {
            true => None,
            false => Some(Held::new(look::<Srq, _>(attr.srq)?)),
        };
        Ok(Parents {
            pd: Some(Held::new(look::<Pd, _>(attr.pd)?)),
            send_cq: Some(cq(attr.send_cq)?),
            recv_cq,
            srq,
            _xrcd: None,
        })
    }
}

/// A target of extended reliable connections, which belongs only to a domain.
///
/// # Safety
/// As [`create`].
unsafe fn create_target(context: &Context, attr: &mut QpInitAttrEx) -> Result<*mut abi::Qp, Errno> {
    if attr.comp_mask & mask::XRCD == 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: guaranteed by the caller.
    let xrcd = Held::new(unsafe { look::<Xrcd, _>(attr.xrcd) }?);
    let qp = xrcd.domain().create_target_qp().wait()?;
    let parents = Parents {
        _xrcd: Some(xrcd),
        ..Parents::default()
    };
    finish(context, qp, attr, parents, None)
}

/// `open_qp`: a target that was created elsewhere in the domain.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut abi::Context,
    attr: *const QpOpenAttr,
) -> *mut abi::Qp {
    /// The number, the domain and the type are required; a context is optional.
    const NEEDED: u32 = 0b1011;
    const KNOWN: u32 = 0b1111;
    const CONTEXT: u32 = 1 << 2;
    pointer(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (owner, attr) = unsafe {
            let owner = look::<Context, _>(context)?;
            (owner, attr.as_ref().ok_or(Errno::INVAL)?)
        };
        if attr.comp_mask & NEEDED != NEEDED || attr.comp_mask & !KNOWN != 0 {
            return Err(Errno::INVAL);
        }
        if type_of(attr.qp_type)? != QpType::XrcRecv {
            return Err(Errno::INVAL);
        }
        // SAFETY: as above.
        let xrcd = Held::new(unsafe { look::<Xrcd, _>(attr.xrcd) }?);
        let qpn = Qpn::new(attr.qp_num);
        let qp = xrcd.domain().open_target_qp(qpn).wait()?;
        let qp_context = match attr.comp_mask & CONTEXT {
            0 => null_mut(),
            _ => attr.qp_context,
        };
        let parents = Parents {
            _xrcd: Some(xrcd),
            ..Parents::default()
        };
        let shown = shown(owner, &qp, qp_context, attr.qp_type, &parents);
        publish_qp(owner, qp, shown, parents, false)
    })
}

fn finish(
    context: &Context,
    qp: verbs_core::Qp,
    attr: &QpInitAttrEx,
    parents: Parents,
    ops: Option<QpExOps>,
) -> Result<*mut abi::Qp, Errno> {
    let mut shown = shown(context, &qp, attr.qp_context, attr.qp_type, &parents);
    if let Some(ops) = ops {
        shown.ops = ops;
    }
    publish_qp(context, qp, shown, parents, attr.sq_sig_all != 0)
}

fn shown(
    context: &Context,
    qp: &verbs_core::Qp,
    qp_context: *mut c_void,
    qp_type: u32,
    parents: &Parents,
) -> QpEx {
    let mut shown = abi::Qp::new(Held::new(context).shown());
    shown.qp_context = qp_context;
    shown.pd = parents.pd.as_ref().map_or(null_mut(), Held::shown);
    shown.send_cq = parents.send_cq.as_ref().map_or(null_mut(), Held::shown);
    shown.recv_cq = parents.recv_cq.as_ref().map_or(null_mut(), Held::shown);
    shown.srq = parents.srq.as_ref().map_or(null_mut(), Held::shown);
    shown.qp_num = qp.qpn().value();
    shown.qp_type = qp_type;
    QpEx {
        qp: shown,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        ops: QpExOps::default(),
    }
}

fn publish_qp(
    context: &Context,
    qp: verbs_core::Qp,
    shown: QpEx,
    parents: Parents,
    sq_sig_all: bool,
) -> Result<*mut abi::Qp, Errno> {
    let inline = qp.cap().max_inline_data;
    let (control, send, recv) = qp.split().map_err(|_| Errno(libc::EIO))?;
    let place = room::<Qp>();
    let id = control.target().base().id();
    let building = shown
        .ops
        .wr_start
        .is_some()
        .then(|| Box::new(Building::new(inline)));
    let qp = Qp {
        shown: UnsafeCell::new(shown),
        send: Shared::new(send),
        recv: Shared::new(recv),
        building,
        control,
        context: Held::new(context),
        watched: context.events.watch(id, place.as_ptr().expose_provenance()),
        attachments: Mutex::default(),
        stream: Mutex::default(),
        sq_sig_all,
        parents,
        users: Users::default(),
    };
    Ok(publish(place, qp))
}

/// `ibv_destroy_qp`: `EBUSY` while it is in multicast groups. Waits until the program has acknowledged its events.
pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut abi::Qp) -> c_int {
    code(|| {
        // SAFETY: the program does not use it now, except to acknowledge events.
        unsafe {
            let ending = close::<Qp, _>(qp)?;
            if !ending.attachments.lock().is_empty() {
                return Err(Errno::BUSY);
            }
            ending.watched.end();
            ending.end(|qp| {
                let (control, parents, context) = (qp.control, qp.parents, qp.context);
                let qpn = control.qpn();
                if let Some(stream) = qp.stream.into_inner() {
                    stream.end();
                }
                if parents.send_cq.is_some() {
                    // A reset forgets what is posted. A destroy flushes it: an armed completion queue would raise an event,
                    // and have no completion. A device that has been removed has flushed it already.
                    let _ = control.modify(QpAttr::to(QpState::Reset)).wait();
                }
                // Without attachments it is refused only by a device that has been removed, which has no queue pairs.
                let _ = control.destroy().wait();
                for cq in [&parents.send_cq, &parents.recv_cq].into_iter().flatten() {
                    cq.forget(qpn);
                }
                drop((parents, context));
                Ending::Over
            })
        }
    })
}
