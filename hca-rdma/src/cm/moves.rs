//! State changes of a connection's queue pair, by the attributes that librdmacm names.

use verbs_core::qp::QpCore;
use verbs_core::{Access, Attr, CmParam, Error, QpAttr, QpAttrMask, QpState, Why};

use crate::command::pair;
use crate::convert::error;
use crate::sys::CmId;

/// The end that the queue pair is at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The peer has set how many READs and atomics there can be.
    Active,
    /// This end sets it.
    Passive,
}

/// Takes the queue pair to INIT, on the port that the id is on. One that is in INIT already keeps its access flags.
pub(super) fn to_init(qp: &QpCore, id: &CmId) -> Result<(), Error> {
    let (c, mask) = id.init_qp_attr(QpState::Init).map_err(error)?;
    let access = match pair::state_now(qp)? {
        QpState::Reset => Some(Access::REMOTE | Access::LOCAL_WRITE),
        QpState::Init => None,
        _ => {
            let (attr, why) = (Attr::Qp, Why::State);
            return Err(Error::Mismatch { attr, why });
        }
    };
    let named = |bit, value| if mask.contains(bit) { value } else { 0 };
    let attr = QpAttr {
        access,
        port: Some(named(QpAttrMask::PORT, c.port_num.into()).max(1) as u8),
        pkey_index: Some(named(QpAttrMask::PKEY_INDEX, c.pkey_index)),
        ..QpAttr::to(QpState::Init)
    };
    pair::modify(&attr, qp)
}

/// Takes the queue pair to RTR and RTS.
///
/// librdmacm sets the longest RNR delay that exists, 655 ms; the caller's is used instead.
pub(super) fn to_rts(qp: &QpCore, id: &CmId, param: &CmParam, side: Side) -> Result<(), Error> {
    let most = |told: &mut u8, wanted: u8| {
        *told = match side {
            Side::Active => wanted.min(*told),
            Side::Passive => wanted,
        };
    };
    for state in [QpState::Rtr, QpState::Rts] {
        let (mut c, mask) = id.init_qp_attr(state).map_err(error)?;
        most(&mut c.max_dest_rd_atomic, param.responder_resources);
        most(&mut c.max_rd_atomic, param.initiator_depth);
        c.min_rnr_timer = param.min_rnr_timer;
        pair::modify_as(&verbs_abi::attr_of(&c, mask), c, qp)?;
    }
    Ok(())
}

/// The connection has ended: posted work is flushed. A queue pair that has been destroyed, or is in ERR already, is not
/// an error.
pub(super) fn to_error(qp: &QpCore) {
    if let Err(error) = pair::modify(&QpAttr::to(QpState::Err), qp) {
        tracing::debug!(%error, "the queue pair of a connection that is over was not moved to ERR");
    }
}
