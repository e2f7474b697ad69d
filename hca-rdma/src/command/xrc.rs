//! Domains of extended reliable connections, and the target queue pairs in them.

use verbs_core::sync::Arc;
use verbs_core::xrcd::{AllocXrcd, CreateTargetQp, OpenTargetQp, XrcdCore};
use verbs_core::{Attr, DeviceCap, Error, Qp, QpCap, Qpn, Target, Why, Xrcd};

use super::limit::require;
use super::pair::QpState;
use crate::convert::error;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::sys;

/// The state kept with a domain.
type XrcdState = Slot<sys::Xrcd>;

/// Whether the device has such connections.
pub(super) fn check(nic: &Shared) -> Result<(), Error> {
    require(nic, DeviceCap::XRC, Attr::Xrcd)
}

/// The C library's domain behind one of these.
pub(super) fn raw_xrcd(xrcd: &XrcdCore) -> Result<Arc<sys::Xrcd>, Error> {
    xrcd.private::<XrcdState>().ok_or(Error::Closing)?.get()
}

pub(super) fn alloc(nic: &Shared, args: AllocXrcd) -> Result<Xrcd, Error> {
    if args.name.is_some() {
        // The library wants the file itself.
        return Err(Error::Unsupported(Attr::Xrcd));
    }
    let domain = sys::Xrcd::open(&nic.context).map_err(error)?;
    nic.counts.xrcds.up();
    Ok(args.build(nic.number() as u32, Box::new(Slot::new(domain))))
}

pub(super) fn dealloc(nic: &Shared, core: &XrcdCore) {
    if let Some(domain) = core.private::<XrcdState>() {
        domain.destroy();
    }
    nic.counts.xrcds.down();
}

pub(super) fn create_target(
    nic: &Shared,
    args: CreateTargetQp,
    xrcd: &XrcdCore,
) -> Result<Qp, Error> {
    let made = sys::xrc::create_target(&raw_xrcd(xrcd)?);
    let qp = made.map_err(|errno| {
        let counts = &nic.counts.qps;
        counts.explain(error(errno), Attr::MaxQp, nic.attr.max_qp)
    })?;
    let qpn = Qpn::new(qp.number());
    Ok(finish(nic, qp, |state| args.build(qpn, NO_QUEUES, state)))
}

/// Another handle of a target: an object of its own to the library.
pub(super) fn open_target(nic: &Shared, args: OpenTargetQp, xrcd: &XrcdCore) -> Result<Qp, Error> {
    let opened = sys::xrc::open_target(&raw_xrcd(xrcd)?, args.qpn.value());
    let qp = opened.map_err(|errno| match error(errno) {
        Error::Os { .. } => Error::Mismatch {
            attr: Attr::TargetQpn,
            why: Why::Missing,
        },
        other => other,
    })?;
    Ok(finish(nic, qp, |state| args.build(NO_QUEUES, state)))
}

/// A target has no queues.
const NO_QUEUES: QpCap = QpCap {
    max_send_wr: 0,
    max_recv_wr: 0,
    max_send_sge: 0,
    max_recv_sge: 0,
    max_inline_data: 0,
};

fn finish(nic: &Shared, qp: sys::Qp, build: impl FnOnce(verbs_core::object::Private) -> Qp) -> Qp {
    nic.counts.qps.up();
    let address = qp.address();
    let state = QpState::new(Arc::new(Slot::new(qp)), address, false);
    let handle = build(Box::new(state));
    nic.name(address, handle.target());
    handle
}
