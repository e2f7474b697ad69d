//! Queue pairs and shared receive queues.

use std::ffi::{c_int, c_uint};
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::sync::Arc;
use verbs_core::{Gid, Lid, QpAttrMask, QpCap};

use super::post::{PostRecv, PostSend};
use super::{Cq, Pd, check, destroyed, errno};

/// A shared receive queue. Destroyed when it is dropped.
pub(crate) struct Srq {
    pd: Arc<Pd>,
    pub(super) raw: NonNull<abi::Srq>,
    pub(super) post: PostRecv<abi::Srq>,
}

// SAFETY: libibverbs locks inside, and a queue is destroyed by its last owner.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// A queue of those sizes at least; yields the sizes that it has.
    pub(crate) fn create(pd: &Arc<Pd>, attr: abi::SrqAttr) -> Result<(Self, abi::SrqAttr), Errno> {
        let verbs = &pd.context.library.verbs;
        // SAFETY: the context is open, its table does not change.
        let post = unsafe { (*pd.context.raw.as_ptr()).ops.post_srq_recv };
        let post = post.ok_or(Errno::OPNOTSUPP)?;
        let mut init = abi::SrqInitAttr {
            srq_context: null_mut(),
            attr,
        };
        // SAFETY: the domain is there, the attributes are read and written during the call.
        let raw = unsafe { (verbs.create_srq)(pd.raw.as_ptr(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        let pd = Arc::clone(pd);
        Ok((Self { pd, raw, post }, init.attr))
    }

    /// Names it in asynchronous events.
    pub(crate) fn address(&self) -> usize {
        self.raw.addr().get()
    }

    /// Changes the depth or the limit.
    pub(crate) fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        let mut attr = abi::SrqAttr {
            max_wr: max_wr.unwrap_or(0),
            max_sge: 0,
            srq_limit: limit.unwrap_or(0),
        };
        let mask = c_int::from(max_wr.is_some()) | c_int::from(limit.is_some()) << 1;
        let verbs = &self.pd.context.library.verbs;
        // SAFETY: the queue is there, the attributes are read during the call.
        check(unsafe { (verbs.modify_srq)(self.raw.as_ptr(), &mut attr, mask) })
    }

    pub(crate) fn query(&self) -> Result<abi::SrqAttr, Errno> {
        let mut attr = abi::SrqAttr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: 0,
        };
        let verbs = &self.pd.context.library.verbs;
        // SAFETY: the queue is there, the attributes are written during the call.
        check(unsafe { (verbs.query_srq)(self.raw.as_ptr(), &mut attr) })?;
        Ok(attr)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: nobody has the queue any more: queue pairs hold theirs.
        let _ = destroyed("shared receive queue", unsafe {
            (self.pd.context.library.verbs.destroy_srq)(self.raw.as_ptr())
        });
    }
}

/// What a queue pair is created with.
pub(crate) struct QpConfig {
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) cap: QpCap,
    /// As `ibv_qp_type`.
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: bool,
}

/// A queue pair. Destroyed when it is dropped.
pub(crate) struct Qp {
    pd: Arc<Pd>,
    pub(super) raw: NonNull<abi::Qp>,
    pub(super) post_send: PostSend,
    pub(super) post_recv: PostRecv<abi::Qp>,
    /// What it uses is there as long as it is.
    _uses: (Arc<Cq>, Arc<Cq>, Option<Arc<Srq>>),
}

// SAFETY: libibverbs locks inside, and a queue pair is destroyed by its last owner.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    /// A queue pair of those sizes at least; yields the sizes that it has.
    pub(crate) fn create(pd: &Arc<Pd>, config: QpConfig) -> Result<(Self, QpCap), Errno> {
        // SAFETY: the context is open, its table does not change.
        let ops = unsafe { &(*pd.context.raw.as_ptr()).ops };
        let ops = ops.post_send.zip(ops.post_recv);
        let (post_send, post_recv) = ops.ok_or(Errno::OPNOTSUPP)?;
        let QpConfig {
            send_cq,
            recv_cq,
            srq,
            ..
        } = config;
        let mut init = abi::QpInitAttr {
            qp_context: null_mut(),
            send_cq: send_cq.raw.as_ptr(),
            recv_cq: recv_cq.raw.as_ptr(),
            srq: srq.as_ref().map_or(null_mut(), |srq| srq.raw.as_ptr()),
            cap: config.cap.into(),
            qp_type: config.qp_type,
            sq_sig_all: c_int::from(config.sq_sig_all),
        };
        let create = pd.context.library.verbs.create_qp;
        // SAFETY: all that it is made from is there, the attributes are read and written during the call.
        let raw = unsafe { create(pd.raw.as_ptr(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        let qp = Self {
            pd: Arc::clone(pd),
            raw,
            post_send,
            post_recv,
            _uses: (send_cq, recv_cq, srq),
        };
        Ok((qp, init.cap.into()))
    }

    /// Names it in asynchronous events.
    pub(crate) fn address(&self) -> usize {
        self.raw.addr().get()
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is there; its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    pub(crate) fn modify(&self, mut attr: abi::QpAttr, mask: QpAttrMask) -> Result<(), Errno> {
        let mask = mask.bits().cast_signed();
        let modify = self.pd.context.library.verbs.modify_qp;
        // SAFETY: the queue pair is there, the attributes are read during the call.
        check(unsafe { modify(self.raw.as_ptr(), &mut attr, mask) })
    }

    /// Its attributes, and whether every send makes a completion.
    pub(crate) fn query(&self) -> Result<(abi::QpAttr, bool), Errno> {
        let mut attr = abi::QpAttr::default();
        let mut init = abi::QpInitAttr {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap: abi::QpCap::default(),
            qp_type: 0 as c_uint,
            sq_sig_all: 0,
        };
        // A rate limit is no attribute of every device's, and asking for it fails where it is none.
        let mask = QpAttrMask::all() - QpAttrMask::RATE_LIMIT;
        let mask = mask.bits().cast_signed();
        let query = self.pd.context.library.verbs.query_qp;
        // SAFETY: the queue pair is there, both structures are written during the call.
        check(unsafe { query(self.raw.as_ptr(), &mut attr, mask, &mut init) })?;
        Ok((attr, init.sq_sig_all != 0))
    }

    pub(crate) fn attach(&self, group: Gid, lid: Lid) -> Result<(), Errno> {
        let attach = self.pd.context.library.verbs.attach_mcast;
        // SAFETY: the queue pair is there, the group is read during the call.
        check(unsafe { attach(self.raw.as_ptr(), &group.0, lid.0) })
    }

    pub(crate) fn detach(&self, group: Gid, lid: Lid) -> Result<(), Errno> {
        let detach = self.pd.context.library.verbs.detach_mcast;
        // SAFETY: the queue pair is there, the group is read during the call.
        check(unsafe { detach(self.raw.as_ptr(), &group.0, lid.0) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: nobody has the queue pair any more. Waits until its asynchronous events are acknowledged, which whoever
        // takes one does at once.
        let _ = destroyed("queue pair", unsafe {
            (self.pd.context.library.verbs.destroy_qp)(self.raw.as_ptr())
        });
    }
}
