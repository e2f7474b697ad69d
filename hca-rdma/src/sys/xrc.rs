//! Domains of extended reliable connections, the shared receive queues in them, and their target queue pairs.

use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::sync::Arc;

use super::qp::Uses;
use super::table::entry;
use super::{Context, Cq, Pd, Qp, Srq, check, destroyed, errno};

/// `IBV_QPT_XRC_RECV`.
const XRC_RECV: u32 = 10;

/// A domain. Closed when it is dropped.
pub(crate) struct Xrcd {
    pub(super) context: Arc<Context>,
    raw: NonNull<abi::Xrcd>,
}

// SAFETY: libibverbs locks inside, and a domain is closed by its last owner.
unsafe impl Send for Xrcd {}
// SAFETY: as above.
unsafe impl Sync for Xrcd {}

impl Xrcd {
    /// A domain that no other process can open.
    pub(crate) fn open(context: &Arc<Context>) -> Result<Self, Errno> {
        /// A descriptor and flags are named.
        const BOTH: u32 = 0b11;
        let attr = abi::XrcdInitAttr {
            comp_mask: BOTH,
            fd: -1,
            oflags: libc::O_CREAT,
        };
        let open = entry!(context, open_xrcd).ok_or(Errno::OPNOTSUPP)?;
        // SAFETY: the context is open, the attributes are read during the call.
        let raw = unsafe { open(context.raw.as_ptr(), &attr) };
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        let context = Arc::clone(context);
        Ok(Self { context, raw })
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        if let Some(close) = entry!(self.context, close_xrcd) {
            // SAFETY: the domain has no other owner: what is in it holds it.
            let _ = destroyed("XRC domain", unsafe { close(self.raw.as_ptr()) });
        }
    }
}

/// A queue for extended reliable connections whose receives complete on `cq`; returns its actual sizes and its
/// number.
pub(crate) fn create_srq(
    (pd, xrcd, cq): (&Arc<Pd>, &Arc<Xrcd>, &Arc<Cq>),
    attr: abi::SrqAttr,
) -> Result<(Srq, abi::SrqAttr, u32), Errno> {
    /// The type, the protection domain, the domain and the completion queue are named.
    const NAMED: u32 = 0b1111;
    /// `IBV_SRQT_XRC`.
    const XRC: u32 = 1;
    let context = &pd.context;
    let create = entry!(context, create_srq_ex).ok_or(Errno::OPNOTSUPP)?;
    let number_of = entry!(context, get_srq_num).ok_or(Errno::OPNOTSUPP)?;
    let mut init = abi::SrqInitAttrEx {
        srq_context: null_mut(),
        attr,
        comp_mask: NAMED,
        srq_type: XRC,
        pd: pd.raw.as_ptr(),
        xrcd: xrcd.raw.as_ptr(),
        cq: cq.raw.as_ptr(),
        tm_cap: [0; 2],
    };
    // SAFETY: all objects that it is made from exist, the attributes are read and written during the call.
    let raw = unsafe { create(context.raw.as_ptr(), &mut init) };
    let raw = NonNull::new(raw).ok_or_else(errno)?;
    let srq = Srq::of(pd, raw, Some((Arc::clone(xrcd), Arc::clone(cq))))?;
    let mut number = 0;
    // SAFETY: the queue exists, the number is written during the call.
    check(unsafe { number_of(raw.as_ptr(), &mut number) })?;
    Ok((srq, init.attr, number))
}

/// A target in that domain.
pub(crate) fn create_target(xrcd: &Arc<Xrcd>) -> Result<Qp, Errno> {
    /// The domain is named.
    const XRCD: u32 = 1 << 1;
    let context = &xrcd.context;
    let create = entry!(context, create_qp_ex).ok_or(Errno::OPNOTSUPP)?;
    let mut init = abi::QpInitAttrEx {
        qp_context: null_mut(),
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        cap: abi::QpCap::default(),
        qp_type: XRC_RECV,
        sq_sig_all: 0,
        comp_mask: XRCD,
        pd: null_mut(),
        xrcd: xrcd.raw.as_ptr(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: null_mut(),
        rx_hash_conf: [0; 3],
        source_qpn: 0,
        send_ops_flags: 0,
    };
    // SAFETY: the domain exists, the attributes are read and written during the call.
    let raw = unsafe { create(context.raw.as_ptr(), &mut init) };
    target(xrcd, raw)
}

/// Another handle of a target in that domain.
pub(crate) fn open_target(xrcd: &Arc<Xrcd>, qpn: u32) -> Result<Qp, Errno> {
    /// The number, the domain and the type are named.
    const NAMED: u32 = 0b1011;
    let context = &xrcd.context;
    let open = entry!(context, open_qp).ok_or(Errno::OPNOTSUPP)?;
    let attr = abi::QpOpenAttr {
        comp_mask: NAMED,
        qp_num: qpn,
        xrcd: xrcd.raw.as_ptr(),
        qp_context: null_mut(),
        qp_type: XRC_RECV,
    };
    // SAFETY: the domain exists, the attributes are read during the call.
    let raw = unsafe { open(context.raw.as_ptr(), &attr) };
    target(xrcd, raw)
}

fn target(xrcd: &Arc<Xrcd>, raw: *mut abi::Qp) -> Result<Qp, Errno> {
    let raw = NonNull::new(raw).ok_or_else(errno)?;
    Qp::of(&xrcd.context, raw, Uses::Domain(Arc::clone(xrcd)))
}
