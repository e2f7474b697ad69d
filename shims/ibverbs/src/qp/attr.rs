//! Modifying and asking queue pairs.

use std::ffi::c_int;

use verbs_abi::{self as abi, AhAttr, Ece, QpAttr, QpInitAttr};
use verbs_core::{Access, Mtu, Psn, QKey, QpState, QpType, Qpn};

use super::pair::Qp;
use crate::ah::{av_of, shown_av};
use crate::call::{Errno, code};
use crate::live::look;

/// `ibv_qp_attr_mask`.
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const CUR_STATE: u32 = 1 << 1;
    pub(super) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(super) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(super) const ALT_PATH: u32 = 1 << 14;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(super) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(super) const CAP: u32 = 1 << 19;
    pub(super) const DEST_QPN: u32 = 1 << 20;
    pub(super) const RATE_LIMIT: u32 = 1 << 25;
}

/// `IBV_MIG_MIGRATED`: the only path is the one in use.
const MIG_MIGRATED: u32 = 0;

/// States, as `ibv_qp_state` numbers them.
const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];

pub(crate) fn state_of(number: u32) -> Result<QpState, Errno> {
    STATES.get(number as usize).copied().ok_or(Errno::INVAL)
}

fn number_of(state: QpState) -> u32 {
    STATES.iter().position(|other| *other == state).unwrap_or(6) as u32
}

/// What the program's structure changes.
fn change_of(attr: &QpAttr, named: u32) -> Result<verbs_core::QpAttr, Errno> {
    const REFUSED: u32 = mask::ALT_PATH | mask::CAP | mask::RATE_LIMIT;
    if named & (REFUSED | (!0 << 21)) != 0 {
        return Err(Errno::INVAL);
    }
    if named & mask::PATH_MIG_STATE != 0 && attr.path_mig_state != MIG_MIGRATED {
        return Err(Errno::INVAL);
    }
    let has = |bit| named & bit != 0;
    let state = has(mask::STATE)
        .then(|| state_of(attr.qp_state))
        .transpose()?;
    let cur_state = has(mask::CUR_STATE)
        .then(|| state_of(attr.cur_qp_state))
        .transpose()?;
    let path_mtu = match has(mask::PATH_MTU) {
        true => Some(Mtu::from_code(attr.path_mtu).ok_or(Errno::INVAL)?),
        false => None,
    };
    let rights = Access::from_bits_retain(attr.qp_access_flags).difference(Access::ON_DEMAND);
    Ok(verbs_core::QpAttr {
        state,
        cur_state,
        en_sqd_async_notify: has(mask::EN_SQD_ASYNC_NOTIFY)
            .then_some(attr.en_sqd_async_notify != 0),
        access: has(mask::ACCESS_FLAGS).then_some(rights),
        pkey_index: has(mask::PKEY_INDEX).then_some(attr.pkey_index),
        port: has(mask::PORT).then_some(attr.port_num),
        qkey: has(mask::QKEY).then_some(QKey(attr.qkey)),
        av: has(mask::AV).then(|| av_of(&attr.ah_attr)),
        path_mtu,
        timeout: has(mask::TIMEOUT).then_some(attr.timeout),
        retry_cnt: has(mask::RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(mask::RNR_RETRY).then_some(attr.rnr_retry),
        rq_psn: has(mask::RQ_PSN).then_some(Psn::new(attr.rq_psn)),
        sq_psn: has(mask::SQ_PSN).then_some(Psn::new(attr.sq_psn)),
        max_rd_atomic: has(mask::MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        max_dest_rd_atomic: has(mask::MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        min_rnr_timer: has(mask::MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        dest_qpn: has(mask::DEST_QPN).then_some(Qpn::new(attr.dest_qp_num)),
        alt_path: None,
    })
}

/// `ibv_modify_qp`.
pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut abi::Qp,
    attr: *const QpAttr,
    named: c_int,
) -> c_int {
    code(|| {
        // SAFETY: what the program gives, not destroyed now.
        let (owner, attr) = unsafe { (look::<Qp, _>(qp)?, attr.as_ref().ok_or(Errno::INVAL)?) };
        let mut named = named.cast_unsigned();
        // One end of an extended connection asks, the other answers; perftest tells both how to do both.
        named &= match owner.qp_type() {
            QpType::XrcSend => !(mask::MIN_RNR_TIMER | mask::MAX_DEST_RD_ATOMIC),
            QpType::XrcRecv => !(mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC),
            _ => !0,
        };
        // SAFETY: a program makes these calls one by one.
        unsafe { apply(owner, change_of(attr, named)?) }
    })
}

/// Modifies a queue pair.
///
/// # Safety
/// The program does not destroy it now, and makes no other call that changes it.
pub(crate) unsafe fn modify(qp: *mut abi::Qp, change: verbs_core::QpAttr) -> Result<(), Errno> {
    // SAFETY: the caller's.
    unsafe { apply(look::<Qp, _>(qp)?, change) }
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
        unsafe { (*owner.shown.get()).qp.state = number_of(state) }
    }
    Ok(())
}

/// Writes what a modify changes into the program's structure, and tells which fields these are.
pub(crate) fn write_change(change: &verbs_core::QpAttr, attr: &mut QpAttr) -> u32 {
    let mut named = 0;
    macro_rules! put {
        ($($value:expr => $field:ident, $bit:ident;)*) => { $(
            if let Some(value) = $value {
                attr.$field = value;
                named |= mask::$bit;
            }
        )* };
    }
    put! {
        change.state.map(number_of) => qp_state, STATE;
        change.access.map(|access| access.bits()) => qp_access_flags, ACCESS_FLAGS;
        change.pkey_index => pkey_index, PKEY_INDEX;
        change.port => port_num, PORT;
        change.qkey.map(|qkey| qkey.0) => qkey, QKEY;
        change.av.as_ref().map(shown_av) => ah_attr, AV;
        change.path_mtu.map(|mtu| mtu as u32) => path_mtu, PATH_MTU;
        change.timeout => timeout, TIMEOUT;
        change.retry_cnt => retry_cnt, RETRY_CNT;
        change.rnr_retry => rnr_retry, RNR_RETRY;
        change.rq_psn.map(Psn::value) => rq_psn, RQ_PSN;
        change.sq_psn.map(Psn::value) => sq_psn, SQ_PSN;
        change.max_rd_atomic => max_rd_atomic, MAX_QP_RD_ATOMIC;
        change.max_dest_rd_atomic => max_dest_rd_atomic, MAX_DEST_RD_ATOMIC;
        change.min_rnr_timer => min_rnr_timer, MIN_RNR_TIMER;
        change.dest_qpn.map(Qpn::value) => dest_qp_num, DEST_QPN;
    }
    named
}

/// `ibv_query_qp`. All attributes are told, whatever is asked for.
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
        // SAFETY: a program makes these calls one by one; where it wants the answers.
        unsafe {
            let shown = &mut (*owner.shown.get()).qp;
            shown.state = number_of(info.state);
            attr.write(shown_attr(&info));
            if let Some(init) = init.as_mut() {
                *init = QpInitAttr {
                    qp_context: shown.qp_context,
                    send_cq: shown.send_cq,
                    recv_cq: shown.recv_cq,
                    srq: shown.srq,
                    cap: shown_cap(&info),
                    qp_type: shown.qp_type,
                    sq_sig_all: c_int::from(owner.sq_sig_all),
                };
            }
        }
        Ok(())
    })
}

fn shown_cap(info: &verbs_core::QpInfo) -> abi::QpCap {
    abi::QpCap {
        max_send_wr: info.cap.max_send_wr,
        max_recv_wr: info.cap.max_recv_wr,
        max_send_sge: info.cap.max_send_sge,
        max_recv_sge: info.cap.max_recv_sge,
        max_inline_data: info.cap.max_inline_data,
    }
}

fn shown_attr(info: &verbs_core::QpInfo) -> QpAttr {
    let attr = &info.attr;
    QpAttr {
        qp_state: number_of(info.state),
        cur_qp_state: number_of(info.state),
        path_mtu: attr.path_mtu.map_or(0, |mtu| mtu as u32),
        path_mig_state: MIG_MIGRATED,
        qkey: attr.qkey.unwrap_or_default().0,
        rq_psn: attr.rq_psn.unwrap_or_default().value(),
        sq_psn: attr.sq_psn.unwrap_or_default().value(),
        dest_qp_num: attr.dest_qpn.unwrap_or_default().value(),
        qp_access_flags: attr.access.unwrap_or_default().bits(),
        cap: shown_cap(info),
        ah_attr: attr.av.as_ref().map(shown_av).unwrap_or_default(),
        alt_ah_attr: AhAttr::default(),
        pkey_index: attr.pkey_index.unwrap_or_default(),
        alt_pkey_index: 0,
        en_sqd_async_notify: u8::from(attr.en_sqd_async_notify.unwrap_or_default()),
        sq_draining: u8::from(info.sq_draining),
        max_rd_atomic: attr.max_rd_atomic.unwrap_or_default(),
        max_dest_rd_atomic: attr.max_dest_rd_atomic.unwrap_or_default(),
        min_rnr_timer: attr.min_rnr_timer.unwrap_or_default(),
        port_num: attr.port.unwrap_or_default(),
        timeout: attr.timeout.unwrap_or_default(),
        retry_cnt: attr.retry_cnt.unwrap_or_default(),
        rnr_retry: attr.rnr_retry.unwrap_or_default(),
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}

/// `ibv_query_ece`: there are no enhancements to agree on.
pub(crate) unsafe extern "C" fn query_ece(qp: *mut abi::Qp, ece: *mut Ece) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy it now; where it wants the answer.
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

/// `ibv_set_ece`: a peer's enhancements are refused, and none agreed to.
pub(crate) unsafe extern "C" fn set_ece(qp: *mut abi::Qp, ece: *const Ece) -> c_int {
    code(|| {
        // SAFETY: the program does not destroy it now, and gives the other.
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

/// `ibv_query_qp_data_in_order`: bytes of a message may be seen in any order before its completion.
pub(crate) unsafe extern "C" fn query_qp_data_in_order(
    _qp: *mut abi::Qp,
    _opcode: u32,
    _flags: u32,
) -> c_int {
    0
}
