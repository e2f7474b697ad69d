//! Queue pairs.

mod attr;
mod create;
mod mcast;
mod post;
mod wr;

use std::cell::UnsafeCell;
use std::ffi::c_int;

use parking_lot::Mutex;
use verbs_core::{ObjectKind, QpType, RecvQueue, SendQueue, Shared};

pub(crate) use self::attr::{
    av_of, modify_qp, query_ece, query_qp, query_qp_data_in_order, set_ece, shown_av,
};
pub(crate) use self::create::{create_qp, create_qp_ex, open_qp};
use self::mcast::Attachment;
pub(crate) use self::mcast::{attach_mcast, detach_mcast};
pub(crate) use self::post::{bind_mw, post_recv, post_send};
use self::wr::Building;
pub(crate) use self::wr::qp_to_qp_ex;
use crate::abi::{self, QpEx};
use crate::call::{Errno, code};
use crate::cq::Cq;
use crate::device::Context;
use crate::live::{Held, Kind, Object, Unacknowledged, Users, end, look};
use crate::memory::Pd;
use crate::srq::Srq;
use crate::xrcd::Xrcd;

pub(crate) use self::post::receives;

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    shown: UnsafeCell<QpEx>,
    send: Shared<SendQueue>,
    recv: Shared<RecvQueue>,
    /// Work requests between `wr_start` and `wr_complete`; `None` where the program did not ask for these calls.
    building: Option<Box<Building>>,
    control: verbs_core::Qp,
    context: Held<Context>,
    pub(crate) async_events: Unacknowledged,
    attachments: Mutex<Vec<Attachment>>,
    sq_sig_all: bool,
    parents: Parents,
    users: Users,
}

/// What a queue pair is made of.
#[derive(Default)]
struct Parents {
    pd: Option<Held<Pd>>,
    send_cq: Option<Held<Cq>>,
    recv_cq: Option<Held<Cq>>,
    srq: Option<Held<Srq>>,
    /// A target's.
    _xrcd: Option<Held<Xrcd>>,
}

// SAFETY: of the C structure, the state changes in calls about it that a program makes one by one; what builds work
// requests is locked from `wr_start` to `wr_complete`.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

// SAFETY: the C part is at the front.
unsafe impl Object for Qp {
    const KIND: Kind = Kind::Qp;

    fn users(&self) -> &Users {
        &self.users
    }
}

/// Types of queue pair, as `ibv_qp_type`.
const TYPES: [(u32, QpType); 5] = [
    (2, QpType::Rc),
    (3, QpType::Uc),
    (4, QpType::Ud),
    (9, QpType::XrcSend),
    (10, QpType::XrcRecv),
];

impl Qp {
    /// Its completions that were not polled are gone.
    fn forget_completions(&self) {
        for cq in [&self.parents.send_cq, &self.parents.recv_cq]
            .into_iter()
            .flatten()
        {
            cq.forget(self.control.qpn());
        }
    }

    fn qp_type(&self) -> QpType {
        self.control.qp_type()
    }
}

/// `ibv_destroy_qp`: `EBUSY` while it is in multicast groups. Waits until the program has acknowledged its events.
pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut abi::Qp) -> c_int {
    code(|| {
        // SAFETY: the program does not use it now, but to acknowledge events.
        unsafe {
            let ending = look::<Qp, _>(qp)?;
            if !ending.attachments.lock().is_empty() {
                return Err(Errno::BUSY);
            }
            let (at, number) = (qp.expose_provenance(), ending.control.qpn().value());
            ending
                .context
                .unwatch(ObjectKind::Qp, number, at, &ending.async_events);
            end::<Qp, _>(qp, |qp| {
                let (control, parents, context) = (qp.control, qp.parents, qp.context);
                let qpn = control.qpn();
                // Without attachments it is refused only by a device that is gone, which has no queue pairs.
                let _ = control.destroy().wait();
                for cq in [&parents.send_cq, &parents.recv_cq].into_iter().flatten() {
                    cq.forget(qpn);
                }
                drop((parents, context));
                Ok(())
            })
        }
    })
}
