//! Queue pairs and shared receive queues.

use std::ffi::{c_int, c_uint};
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::sync::Arc;
use verbs_core::{Gid, Lid, QpAttrMask, QpCap};

use super::post::{PostRecv, PostSend};
use super::{Context, Cq, Pd, Xrcd, check, destroyed, errno};

/// A shared receive queue. Destroyed when it is dropped.
pub(crate) struct Srq {
    pd: Arc<Pd>,
    pub(super) raw: NonNull<abi::Srq>,
    pub(super) post: PostRecv<abi::Srq>,
    /// Keeps the domain and the completion queue of an extended reliable connection's queue alive.
    _xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
}

// SAFETY: libibverbs locks inside, and a queue is destroyed by its last owner.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// A queue of at least those sizes; returns the sizes that it has.
    pub(crate) fn create(pd: &Arc<Pd>, attr: abi::SrqAttr) -> Result<(Self, abi::SrqAttr), Errno> {
        let verbs = &pd.context.library.verbs;
        let mut init = abi::SrqInitAttr {
            srq_context: null_mut(),
            attr,
        };
        // SAFETY: the domain exists, the attributes are read and written during the call.
        let raw = unsafe { (verbs.create_srq)(pd.raw.as_ptr(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        Ok((Self::of(pd, raw, None)?, init.attr))
    }

    /// The queue that the library has just made. A driver without a function to post to it has no such queues.
    pub(super) fn of(
        pd: &Arc<Pd>,
        raw: NonNull<abi::Srq>,
        xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
    ) -> Result<Self, Errno> {
        // SAFETY: the context is open, its table does not change.
        let Some(post) = (unsafe { (*pd.context.raw.as_ptr()).ops.post_srq_recv }) else {
            // SAFETY: it was just made, and no other code knows it.
            unsafe { (pd.context.library.verbs.destroy_srq)(raw.as_ptr()) };
            return Err(Errno::OPNOTSUPP);
        };
        Ok(Self {
            pd: Arc::clone(pd),
            raw,
            post,
            _xrc: xrc,
        })
    }

    /// Its address, by which asynchronous events name it.
    pub(crate) fn address(&self) -> usize {
        self.raw.as_ptr().expose_provenance()
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
        // SAFETY: the queue exists, the attributes are read during the call.
        check(unsafe { (verbs.modify_srq)(self.raw.as_ptr(), &mut attr, mask) })
    }

    pub(crate) fn query(&self) -> Result<abi::SrqAttr, Errno> {
        let mut attr = abi::SrqAttr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: 0,
        };
        let verbs = &self.pd.context.library.verbs;
        // SAFETY: the queue exists, the attributes are written during the call.
        check(unsafe { (verbs.query_srq)(self.raw.as_ptr(), &mut attr) })?;
        Ok(attr)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: the queue has no other owner: queue pairs hold theirs.
        let _ = destroyed("shared receive queue", unsafe {
            (self.pd.context.library.verbs.destroy_srq)(self.raw.as_ptr())
        });
    }
}

/// The parameters of a new queue pair.
pub(crate) struct QpConfig {
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) cap: QpCap,
    /// As `ibv_qp_type`.
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: bool,
}

/// The objects that a queue pair keeps alive.
#[expect(dead_code, reason = "held, not read")]
pub(super) enum Uses {
    Queues(Arc<Pd>, [Arc<Cq>; 2], Option<Arc<Srq>>),
    /// Of a target of extended reliable connections.
    Domain(Arc<Xrcd>),
}

/// A queue pair. Destroyed when it is dropped.
pub(crate) struct Qp {
    pub(super) context: Arc<Context>,
    pub(super) raw: NonNull<abi::Qp>,
    pub(super) post_send: PostSend,
    pub(super) post_recv: PostRecv<abi::Qp>,
    _uses: Uses,
}

// SAFETY: libibverbs locks inside, and a queue pair is destroyed by its last owner.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    /// A queue pair of at least those sizes; returns the sizes that it has.
    pub(crate) fn create(pd: &Arc<Pd>, config: QpConfig) -> Result<(Self, QpCap), Errno> {
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
        // SAFETY: all objects that it is made from exist, the attributes are read and written during the call.
        let raw = unsafe { create(pd.raw.as_ptr(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        let uses = Uses::Queues(Arc::clone(pd), [send_cq, recv_cq], srq);
        let qp = Self::of(&pd.context, raw, uses)?;
        Ok((qp, init.cap.into()))
    }

    /// The queue pair that the library has just made.
    pub(super) fn of(
        context: &Arc<Context>,
        raw: NonNull<abi::Qp>,
        uses: Uses,
    ) -> Result<Self, Errno> {
        // SAFETY: the context is open, its table does not change.
        let ops = unsafe { &(*context.raw.as_ptr()).ops };
        let Some((post_send, post_recv)) = ops.post_send.zip(ops.post_recv) else {
            // SAFETY: it was just made, and no other code knows it.
            unsafe { (context.library.verbs.destroy_qp)(raw.as_ptr()) };
            return Err(Errno::OPNOTSUPP);
        };
        Ok(Self {
            context: Arc::clone(context),
            raw,
            post_send,
            post_recv,
            _uses: uses,
        })
    }

    /// Its address, by which asynchronous events name it.
    pub(crate) fn address(&self) -> usize {
        self.raw.as_ptr().expose_provenance()
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair exists; its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    pub(crate) fn modify(&self, mut attr: abi::QpAttr, mask: QpAttrMask) -> Result<(), Errno> {
        let mask = mask.bits().cast_signed();
        let modify = self.context.library.verbs.modify_qp;
        // SAFETY: the queue pair exists, the attributes are read during the call.
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
        // Not every device has a rate limit, and querying it fails on a device without one.
        let mask = QpAttrMask::all() - QpAttrMask::RATE_LIMIT;
        let mask = mask.bits().cast_signed();
        let query = self.context.library.verbs.query_qp;
        // SAFETY: the queue pair exists, both structures are written during the call.
        check(unsafe { query(self.raw.as_ptr(), &mut attr, mask, &mut init) })?;
        Ok((attr, init.sq_sig_all != 0))
    }

    pub(crate) fn attach(&self, group: Gid, lid: Lid) -> Result<(), Errno> {
        let attach = self.context.library.verbs.attach_mcast;
        // SAFETY: the queue pair exists, the group is read during the call.
        check(unsafe { attach(self.raw.as_ptr(), &group.0, lid.0) })
    }

    pub(crate) fn detach(&self, group: Gid, lid: Lid) -> Result<(), Errno> {
        let detach = self.context.library.verbs.detach_mcast;
        // SAFETY: the queue pair exists, the group is read during the call.
        check(unsafe { detach(self.raw.as_ptr(), &group.0, lid.0) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the queue pair has no other owner. Waits until its asynchronous events are acknowledged, which the
        // thread that takes one does at once.
        let _ = destroyed("queue pair", unsafe {
            (self.context.library.verbs.destroy_qp)(self.raw.as_ptr())
        });
    }
}
