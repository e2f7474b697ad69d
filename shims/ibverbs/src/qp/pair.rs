//! A queue pair.

use std::cell::UnsafeCell;
use std::sync::Arc;

use parking_lot::Mutex;
use verbs_abi::QpEx;
use verbs_core::{Gid, Mcast, QpType, RecvQueue, SendQueue, Shared};

use super::building::Building;
use super::stream::Stream;
use crate::call::live::{Held, Kind, Object, Users};
use crate::cq::Cq;
use crate::device::Context;
use crate::inbox::event::Watched;
use crate::memory::Pd;
use crate::srq::Srq;
use crate::srq::xrcd::Xrcd;

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    pub(super) shown: UnsafeCell<QpEx>,
    pub(super) send: Shared<SendQueue>,
    pub(super) recv: Shared<RecvQueue>,
    /// Work requests between `wr_start` and `wr_complete`; `None` if the program did not request these calls.
    pub(super) building: Option<Box<Building>>,
    pub(super) control: verbs_core::Qp,
    pub(super) context: Held<Context>,
    /// Asynchronous events.
    pub(super) watched: Watched,
    pub(super) attachments: Mutex<Vec<Attachment>>,
    /// Its connection, if the device has made it itself.
    pub(super) stream: Mutex<Option<Arc<Stream>>>,
    pub(super) sq_sig_all: bool,
    pub(super) parents: Parents,
    pub(super) users: Users,
}

/// The objects that a queue pair is made from.
#[derive(Default)]
pub(super) struct Parents {
    pub(super) pd: Option<Held<Pd>>,
    pub(super) send_cq: Option<Held<Cq>>,
    pub(super) recv_cq: Option<Held<Cq>>,
    pub(super) srq: Option<Held<Srq>>,
    /// The domain of a target.
    pub(super) _xrcd: Option<Held<Xrcd>>,
}

// SAFETY: in the C structure, the state changes in calls that concern it, which a program makes one at a time; the
// builder of work requests is locked from `wr_start` to `wr_complete`.
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

/// An attachment.
pub(super) struct Attachment {
    pub(super) mgid: Gid,
    pub(super) mlid: u16,
    pub(super) mcast: Mcast,
}

impl Qp {
    /// Drops its completions that were not polled.
    pub(super) fn forget_completions(&self) {
        for cq in [&self.parents.send_cq, &self.parents.recv_cq]
            .into_iter()
            .flatten()
        {
            cq.forget(self.control.qpn());
        }
    }

    pub(super) fn qp_type(&self) -> QpType {
        self.control.qp_type()
    }
}
