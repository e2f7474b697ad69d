//! Modifying and querying queue pairs.

use std::ffi::c_int;

use verbs_abi::{self as abi, Ece, QpAttr, QpInitAttr, attr_of, write_attr};
use verbs_core::{Access, QpAttrMask, QpState, QpType};

use super::pair::Qp;
use crate::call::live::{Lent, lend, look};
use crate::call::{Errno, code};

/// The changes in the program's structure.
fn change_of(attr: &QpAttr, named: QpAttrMask) -> Result<verbs_core::QpAttr, Errno> {
    const REFUSED: QpAttrMask = QpAttrMask::CAP.union(QpAttrMask::RATE_LIMIT);
    if named.intersects(REFUSED) || named.bits() >> 21 != 0 {
        return Err(Errno::INVAL);
    }
    let mut change = attr_of(attr, named);
    // Numbers without a meaning.
    let lost = [
        (QpAttrMask::STATE, change.state.is_none()),
        (QpAttrMask::CUR_STATE, change.cur_state.is_none()),
        (QpAttrMask::PATH_MTU, change.path_mtu.is_none()),
        (QpAttrMask::PATH_MIG_STATE, change.path_mig_state.is_none()),
    ];
    if lost
        .iter()
        .any(|&(bit, is_none)| is_none && named.contains(bit))
    {
        return Err(Errno::INVAL);
    }
    // Nothing is pinned, and nothing outlives power: as with other devices, a queue pair that lets its peers flush to
    // persistent memory lets them flush to no region, as none has that right.
    // Rights of regions alone, which many programs name here too, mean nothing for a queue pair. The kernel keeps them.
    const MEANT: Access = Access::REMOTE
        .union(Access::LOCAL_WRITE)
        .union(Access::FLUSH_GLOBAL);
    change.access = change.access.map(|access| access.intersection(MEANT));
    Ok(change)
}

/// `ibv_modify_qp`.
pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut abi::Qp,
    attr: *const QpAttr,
    named: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the program passes valid arguments, and destroys none of them now.
        let (owner, attr) = unsafe { (look::<Qp, _>(qp)?, attr.as_ref().ok_or(Errno::INVAL)?) };
        let mut named = QpAttrMask::from_bits_retain(named.cast_unsigned());
        // One end of an extended connection sends requests, the other answers; perftest configures both for both.
        named -= match owner.qp_type() {
            QpType::XrcSend => QpAttrMask::MIN_RNR_TIMER | QpAttrMask::MAX_DEST_RD_ATOMIC,
            QpType::XrcRecv => {
                QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC
            }
            _ => QpAttrMask::empty(),
        };
        if named == QpAttrMask::CAP {
            // A change of depth has to be the only one: it is made or refused as a whole.
            let (send, recv) = (attr.cap.max_send_wr, attr.cap.max_recv_wr);
            let resize = owner.control.resize().send(send);
            let has_receives = owner.control.target().cap().max_recv_wr != 0;
            let resize = if has_receives {
                resize.recv(recv)
            } else {
                resize
            };
            return Ok(resize.wait().map(drop)?);
        }
        // SAFETY: a program makes these calls one at a time.
        unsafe { apply(owner, change_of(attr, named)?) }
    })
}

/// Modifies a queue pair, which its owner may be about to destroy.
///
/// # Safety
/// No other call changes it now.
pub(crate) unsafe fn modify(qp: *mut abi::Qp, change: verbs_core::QpAttr) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { modify_lent(&lend(qp)?, change) }
}

/// Modifies a queue pair that is lent.
///
/// # Safety
/// As [`modify`].
pub(crate) unsafe fn modify_lent(qp: &Lent<Qp>, change: verbs_core::QpAttr) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { apply(qp, change) }
}

/// # Safety
/// As [`modify`].
unsafe fn apply(owner: &Qp, change: verbs_core::QpAttr) -> Result<(), Errno> {
    owner.control.modify(change).wait()?;
    if change.state == Some(QpState::Reset) {
        owner.forget_completions();
    }
    if let Some(state) = change.state {
        // SAFETY: nothing else reads or changes it now.
        unsafe { (*owner.shown.get()).qp.state = state as u32 }
    }
    Ok(())
}

/// `ibv_query_qp`. All attributes are reported, whatever is requested.
pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut abi::Qp,
    attr: *mut QpAttr,
    _named: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy it now.
        let owner = unsafe { look::<Qp, _>(qp) }?;
        let info = owner.control.query().wait()?;
        // SAFETY: a program makes these calls one at a time, and passes the places for the answers.
        unsafe {
            let shown = &mut (*owner.shown.get()).qp;
            shown.state = info.state as u32;
            attr.write(shown_attr(&info));
            if let Some(init) = init.as_mut() {
                *init = QpInitAttr {
                    qp_context: shown.qp_context,
                    send_cq: shown.send_cq,
                    recv_cq: shown.recv_cq,
                    srq: shown.srq,
                    cap: info.cap.into(),
                    qp_type: shown.qp_type,
                    sq_sig_all: c_int::from(owner.sq_sig_all),
                };
            }
        }
        Ok(())
    })
}

fn shown_attr(info: &verbs_core::QpInfo) -> QpAttr {
    let mut attr = QpAttr::default();
    write_attr(&info.attr, &mut attr);
    QpAttr {
        qp_state: info.state as u32,
        cur_qp_state: info.state as u32,
        cap: info.cap.into(),
        sq_draining: u8::from(info.sq_draining),
        ..attr
    }
}

/// `ibv_query_ece`: there are no enhancements to negotiate.
pub(crate) unsafe extern "C" fn query_ece(qp: *mut abi::Qp, ece: *mut Ece) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy it now, and passes the place for the answer.
        unsafe {
            look::<Qp, _>(qp)?;
            ece.write(Ece {
                vendor_id: 0,
                options: 0,
                comp_mask: 0,
            });
        }
        Ok(())
    })
}

/// `ibv_set_ece`: a peer's enhancements are refused, and none are agreed on.
pub(crate) unsafe extern "C" fn set_ece(qp: *mut abi::Qp, ece: *const Ece) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy it now, and passes valid enhancements.
        let ece = unsafe {
            look::<Qp, _>(qp)?;
            ece.as_ref().ok_or(Errno::INVAL)?
        };
        match ece {
            Ece { comp_mask: 1.., .. } => Err(Errno::INVAL),
            Ece { vendor_id: 0, .. } => Ok(()),
            _ => Err(Errno::NOTSUP),
        }
    })
}

/// `ibv_query_qp_data_in_order`: bytes of a message may become visible in any order before its completion.
pub(crate) unsafe extern "C" fn query_qp_data_in_order(
    _qp: *mut abi::Qp,
    _opcode: u32,
    _flags: u32,
) -> c_int {
    0
}
