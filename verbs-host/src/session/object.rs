//! The objects of a client.

use verbs_core::object::Refused;
use verbs_core::sync::Arc;
use verbs_core::verb::VerbError;
use verbs_core::{
    Ah, Cq, Device, Error, FastMr, FmrPool, Mcast, Mr, Mw, ObjectKind, Origin, Pd, Qp, Request,
    Srq, Verb, Xrcd,
};

/// An object that a client has made.
#[derive(Debug)]
pub(super) enum Object {
    Pd(Pd),
    Cq(Cq),
    Srq(Srq),
    Qp(Qp),
    Mr(Mr),
    FastMr(FastMr),
    Mw(Mw),
    Ah(Ah),
    Xrcd(Xrcd),
    Mcast(Mcast),
    FmrPool(FmrPool),
}

impl Object {
    pub(super) fn kind(&self) -> ObjectKind {
        match self {
            Self::Pd(_) => ObjectKind::Pd,
            Self::Cq(_) => ObjectKind::Cq,
            Self::Srq(_) => ObjectKind::Srq,
            Self::Qp(_) => ObjectKind::Qp,
            Self::Mr(_) | Self::FastMr(_) => ObjectKind::Mr,
            Self::Mw(_) => ObjectKind::Mw,
            Self::Ah(_) => ObjectKind::Ah,
            Self::Xrcd(_) => ObjectKind::Xrcd,
            Self::Mcast(_) => ObjectKind::Mcast,
            Self::FmrPool(_) => ObjectKind::FmrPool,
        }
    }

    /// The number by which peers or work requests know it.
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Qp(qp) => qp.qpn().value(),
            Self::Srq(srq) => srq.srqn().value(),
            Self::Mr(mr) => mr.lkey().value(),
            Self::FastMr(mr) => mr.lkey().value(),
            Self::Mw(mw) => mw.rkey().value(),
            _ => 0,
        }
    }

    /// Bytes that were allocated for it.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Mr(mr) => mr.len() as u64,
            _ => 0,
        }
    }

    /// Its place in the order of destroys: an object that uses another comes first.
    fn rank(&self) -> u8 {
        match self {
            Self::Mcast(_) => 0,
            Self::Qp(_) => 1,
            Self::Mw(_) | Self::Ah(_) | Self::FastMr(_) | Self::FmrPool(_) => 2,
            Self::Mr(_) | Self::Srq(_) => 3,
            Self::Cq(_) | Self::Xrcd(_) => 4,
            Self::Pd(_) => 5,
        }
    }

    /// Destroys it when it is no longer used.
    fn end(self, origin: Origin, report: &Report) {
        let kind = self.kind();
        match self {
            Self::Pd(pd) => issue(pd.dealloc_when_idle(), origin, kind, report),
            Self::Cq(cq) => issue(cq.destroy_when_idle(), origin, kind, report),
            Self::Srq(srq) => issue(srq.destroy_when_idle(), origin, kind, report),
            Self::Qp(qp) => issue(qp.destroy_when_idle(), origin, kind, report),
            Self::Mr(mr) => issue(mr.dereg_when_idle(), origin, kind, report),
            Self::FastMr(mr) => issue(mr.free(), origin, kind, report),
            Self::Mw(mw) => issue(mw.dealloc(), origin, kind, report),
            Self::Ah(ah) => issue(ah.destroy(), origin, kind, report),
            Self::Xrcd(xrcd) => issue(xrcd.dealloc_when_idle(), origin, kind, report),
            Self::Mcast(mcast) => issue(mcast.detach(), origin, kind, report),
            Self::FmrPool(pool) => issue(pool.destroy_when_idle(), origin, kind, report),
        }
    }
}

/// Gets the result of each destroy of a client that has ended.
pub type Report = Arc<dyn Fn(ObjectKind, Result<(), Error>) + Send + Sync>;

fn issue<H: Send + 'static, V>(
    request: Request<'static, V>,
    origin: Origin,
    kind: ObjectKind,
    report: &Report,
) where
    V: Verb<Output = (), Error = Refused<H>>,
{
    let report = Arc::clone(report);
    request.on_behalf_of(origin).issue(move |result| {
        report(kind, result.map_err(|refused| refused.reason()));
    });
}

/// Destroys all objects of a client, and closes its device: ordinary destroys, users before the objects that they use.
/// An object that is still in use waits until it no longer is.
pub(super) fn end_all(
    mut objects: Vec<Object>,
    device: Option<Device>,
    origin: Origin,
    report: &Report,
) {
    objects.sort_by_key(Object::rank);
    for object in objects {
        object.end(origin, report);
    }
    if let Some(device) = device {
        issue(device.close_when_idle(), origin, ObjectKind::Device, report);
    }
}
