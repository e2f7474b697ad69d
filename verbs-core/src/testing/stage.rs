//! The table of verbs for tests: what each needs, and how it is asked for.
//!
//! A test that speaks of every verb walks through [`Kind::ALL`], sets a [`Stage`] for each, and
//! takes the request from it. A verb without a row here fails such a test.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use crate::addr::{Gid, Lid};
use crate::ah::Ah;
use crate::caps::LinkLayer;
use crate::cm::{CmEndpoint, CmEvent, CmParam, CmSink};
use crate::command::{Kind, Origin};
use crate::cq::Cq;
use crate::device::{Device, ModifyDevice};
use crate::error::Error;
use crate::event::{EventType, Subject as EventSubject};
use crate::extension::Extension;
use crate::fast_reg::FastMr;
use crate::fmr::{FmrPool, FmrPoolAttr};
use crate::mcast::Mcast;
use crate::mem::{Access, Extent, Layout, Memory};
use crate::mr::Mr;
use crate::mw::{Mw, WindowType};
use crate::object::{Handle, ObjectKind, Target};
use crate::pd::Pd;
use crate::qp::{Qp, QpInit};
use crate::qp_attr::{Av, QpAttr};
use crate::qp_state::QpType;
use crate::request::Request;
use crate::srq::Srq;
use crate::sync::Arc;
use crate::testing::any_request::AnyRequest;
use crate::testing::subject::Subject;
use crate::verb::{Verb, VerbError};
use crate::xrcd::Xrcd;

/// The multicast group that queue pairs are attached to: one that also a port with IPv4 addresses only can join.
pub const GROUP: Gid = Gid(Ipv4Addr::new(239, 192, 94, 237).to_ipv6_mapped().octets());

/// An extension that no provider has.
#[derive(Debug)]
pub struct Nowhere;

impl Extension for Nowhere {
    const NAME: &'static str = "verbs.testing.nowhere";
    type Input = ();
    type Output = ();
}

/// An open device with the objects that one verb needs. Fields are taken by the verbs that destroy
/// them; the rest goes by itself when the stage is dropped.
#[derive(Default)]
pub struct Stage {
    /// Endpoint of the provider's connection manager.
    pub cm: Option<CmEndpoint>,
    /// Attached to [`GROUP`].
    pub mcast: Option<Mcast>,
    /// Address handle.
    pub ah: Option<Ah>,
    /// A region of 64 bytes.
    pub mr: Option<Mr>,
    /// For 4 pages.
    pub fast: Option<FastMr>,
    /// Of type 2B.
    pub mw: Option<Mw>,
    /// Of 2 keys.
    pub fmr_pool: Option<FmrPool>,
    /// In RESET.
    pub qp: Option<Qp>,
    /// For 4 receives.
    pub srq: Option<Srq>,
    /// XRC domain.
    pub xrcd: Option<Xrcd>,
    /// For 4 completions.
    pub cq: Option<Cq>,
    /// Protection domain.
    pub pd: Option<Pd>,
    /// An address that the device has a way to; with the device.
    pub av: Option<Av>,
    /// The device; no object can be there without it.
    pub device: Option<Arc<Device>>,
    open: Option<Subject>,
    /// The origin that objects are made for, and the one kind that is made for another.
    owners: (Origin, Option<(ObjectKind, Origin)>),
}

/// Why a stage could not be set: an object that it needs could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotOffered {
    /// The verb that makes the object.
    pub verb: Kind,
    /// Why it failed.
    pub error: Error,
}

impl fmt::Display for NotOffered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verb, self.error)
    }
}

/// Makes happen what a request waits for; see [`Stage::nudge`]. Keeps the device open.
#[derive(Debug)]
pub struct Nudge(Option<Arc<Device>>);

impl Nudge {
    /// Once.
    pub fn give(&self) {
        if let Some(device) = &self.0 {
            let core = device.core();
            core.raise(EventType::PortActive, EventSubject::Port(1));
        }
    }
}

type AnyStageRequest<'s> = Box<dyn AnyRequest<'s> + 's>;

/// One verb: the objects that it needs, and its request.
struct Row {
    kind: Kind,
    needs: &'static [ObjectKind],
    request: for<'s> fn(&'s mut Stage) -> Option<AnyStageRequest<'s>>,
}

macro_rules! rows {
    ($($kind:ident [$($need:ident),*] |$stage:ident| $request:expr;)*) => {
        const ROWS: &[Row] = &[$(Row {
            kind: Kind::$kind,
            needs: &[$(ObjectKind::$need),*],
            request: |$stage| Some(Box::new($request)),
        }),*];
    };
}

rows! {
    OpenDevice [] |s| s.open.as_ref()?.open();
    CloseDevice [Device] |s| Arc::into_inner(s.device.take()?)?.close();
    QueryDevice [Device] |s| s.device.as_ref()?.query();
    QueryPort [Device] |s| s.device.as_ref()?.query_port(1);
    QueryPkey [Device] |s| s.device.as_ref()?.query_pkey(1, 0);
    QueryGid [Device] |s| s.device.as_ref()?.query_gid(1, 0);
    ModifyDevice [Device] |s| s.device.as_ref()?.modify(ModifyDevice::default());
    ModifyPort [Device] |s| s.device.as_ref()?.modify_port(1).reset_qkey_violations();
    NextEvent [Device] |s| s.device.as_ref()?.next_event();
    CallExtension [Device] |s| s.device.as_ref()?.call::<Nowhere>(());
    AllocPd [Device] |s| s.device.as_ref()?.alloc_pd();
    DeallocPd [Device, Pd] |s| s.pd.take()?.dealloc();
    AllocXrcd [Device] |s| s.device.as_ref()?.alloc_xrcd();
    DeallocXrcd [Device, Xrcd] |s| s.xrcd.take()?.dealloc();
    CreateCq [Device] |s| s.device.as_ref()?.create_cq(4);
    QueryCq [Device, Cq] |s| s.cq.as_ref()?.query();
    ResizeCq [Device, Cq] |s| s.cq.as_mut()?.resize(8);
    ModifyCq [Device, Cq] |s| s.cq.as_ref()?.moderate(1, std::time::Duration::ZERO);
    DestroyCq [Device, Cq] |s| s.cq.take()?.destroy();
    CreateSrq [Device, Pd] |s| s.pd.as_ref()?.create_srq(4, 1);
    ModifySrq [Device, Pd, Srq] |s| s.srq.as_ref()?.arm_limit(1);
    QuerySrq [Device, Pd, Srq] |s| s.srq.as_ref()?.query();
    DestroySrq [Device, Pd, Srq] |s| s.srq.take()?.destroy();
    CreateQp [Device, Pd, Cq] |s| {
        let cq = s.cq.as_ref()?;
        s.pd.as_ref()?.create_qp(QpInit::rc(cq, cq))
    };
    CreateTargetQp [Device, Xrcd] |s| s.xrcd.as_ref()?.create_target_qp();
    OpenTargetQp [Device, Xrcd, Qp] |s| {
        let qpn = s.qp.as_ref()?.qpn();
        s.xrcd.as_ref()?.open_target_qp(qpn)
    };
    ModifyQp [Device, Pd, Cq, Qp] |s| s.qp.as_ref()?.modify(QpAttr::init(1, Access::empty()));
    ResizeQp [Device, Pd, Cq, Qp] |s| s.qp.as_ref()?.resize().send(8);
    QueryQp [Device, Pd, Cq, Qp] |s| s.qp.as_ref()?.query();
    DestroyQp [Device, Pd, Cq, Qp] |s| s.qp.take()?.destroy();
    AttachMcast [Device, Pd, Cq, Qp] |s| s.qp.as_ref()?.attach_mcast(GROUP, Lid(0xc000));
    DetachMcast [Device, Pd, Cq, Qp, Mcast] |s| s.mcast.take()?.detach();
    CreateAh [Device, Pd] |s| s.pd.as_ref()?.create_ah(s.av?);
    ModifyAh [Device, Pd, Ah] |s| s.ah.as_ref()?.modify(Av { sl: 1, ..s.av? });
    QueryAh [Device, Pd, Ah] |s| s.ah.as_ref()?.query();
    DestroyAh [Device, Pd, Ah] |s| s.ah.take()?.destroy();
    RegMr [Device, Pd] |s| s.pd.as_ref()?.register(memory()?, Access::LOCAL_WRITE);
    RegSharedMr [Device, Pd, Mr] |s| {
        let pd = s.pd.as_ref()?;
        s.mr.as_ref()?.register_shared(pd, Access::REMOTE_READ)
    };
    QueryMr [Device, Pd, Mr] |s| s.mr.as_ref()?.query();
    ReregMr [Device, Pd, Mr] |s| s.mr.take()?.rereg().access(Access::empty());
    DeregMr [Device, Pd, Mr] |s| s.mr.take()?.dereg();
    AllocMr [Device, Pd] |s| s.pd.as_ref()?.alloc_mr(4);
    RegPages [Device, Pd] |s| {
        let memory = &Arc::new(memory()?);
        let (offset, len) = (0, 64);
        let piece = Extent { memory, offset, len };
        let layout = Layout::Pages(Layout::PAGE);
        s.pd.as_ref()?.register_pages(layout, [piece], Access::LOCAL_WRITE)
    };
    FreeMr [Device, Pd] |s| s.fast.take()?.free();
    AllocMw [Device, Pd] |s| s.pd.as_ref()?.alloc_mw(WindowType::TwoB);
    QueryMw [Device, Pd, Mw] |s| s.mw.as_ref()?.query();
    DeallocMw [Device, Pd, Mw] |s| s.mw.take()?.dealloc();
    CreateFmrPool [Device, Pd] |s| s.pd.as_ref()?.create_fmr_pool(pool());
    FlushFmrPool [Device, Pd, FmrPool] |s| s.fmr_pool.as_ref()?.flush();
    DestroyFmrPool [Device, Pd, FmrPool] |s| s.fmr_pool.take()?.destroy();
    BindCm [Device] |s| s.device.as_ref()?.bind_cm(s.local()?, Arc::new(Deaf));
    UnbindCm [Device, CmEndpoint] |s| s.cm.take()?.unbind();
    ListenCm [Device, CmEndpoint] |s| s.cm.as_ref()?.listen(1);
    ConnectCm [Device, Pd, Cq, Qp, CmEndpoint] |s| {
        let (qp, to) = (s.qp.as_ref()?, s.local()?);
        s.cm.as_ref()?.connect(qp, to, CmParam::default(), Vec::new())
    };
    AcceptCm [Device, Pd, Cq, Qp, CmEndpoint] |s| {
        let qp = s.qp.as_ref()?;
        s.cm.as_ref()?.accept(qp, CmParam::default(), Vec::new())
    };
    RejectCm [Device, CmEndpoint] |s| s.cm.as_ref()?.reject(Vec::new());
}

fn pool() -> FmrPoolAttr {
    FmrPoolAttr::new(2, 4, Access::LOCAL_WRITE)
}

/// Does not care what happens to an endpoint.
pub(super) struct Deaf;

impl CmSink for Deaf {
    fn event(&self, _event: CmEvent) {}
}

fn memory() -> Option<Memory> {
    Memory::alloc(64).ok()
}

fn row(kind: Kind) -> &'static Row {
    let row = ROWS.iter().find(|row| row.kind == kind);
    row.unwrap_or_else(|| panic!("{kind} has no row in the table of verbs for tests"))
}

/// The way to an address: on Ethernet to the port's own, as others may lead nowhere.
pub(super) fn way_to_itself(subject: &Subject, device: &Device) -> Av {
    let port = subject.must(device.query_port(1));
    if port.link_layer == LinkLayer::InfiniBand {
        return Av::to_lid(1, Lid(1));
    }
    let has_it = |index: &u16| subject.finish(device.query_gid(1, *index)) == Ok(port.gid);
    let index = (0..port.gid_tbl_len).find(has_it).unwrap_or(0);
    Av::to_gid(1, index, port.gid)
}

/// Queue pairs that are attached to groups are for datagrams, and those that are opened are targets.
fn qp_type(kind: Kind) -> QpType {
    match kind {
        Kind::AttachMcast | Kind::DetachMcast => QpType::Ud,
        Kind::OpenTargetQp => QpType::XrcRecv,
        _ => QpType::Rc,
    }
}

impl Stage {
    /// Opens a device of `subject` and makes what `kind` needs.
    ///
    /// # Errors
    /// [`NotOffered`] if one of those is not to be had.
    ///
    /// # Panics
    /// If the verb has no row, or the provider does not answer.
    pub fn set(subject: &Subject, kind: Kind) -> Result<Self, NotOffered> {
        Self::set_for(subject, kind, Origin::Trusted, None)
    }

    /// As [`Stage::set`], for a client; if there is a `stranger`, the objects of that kind are another's.
    ///
    /// # Errors
    /// As [`Stage::set`].
    ///
    /// # Panics
    /// As [`Stage::set`].
    pub fn set_for(
        subject: &Subject,
        kind: Kind,
        origin: Origin,
        stranger: Option<(ObjectKind, Origin)>,
    ) -> Result<Self, NotOffered> {
        let mut stage = Self {
            open: Some(subject.clone()),
            owners: (origin, stranger),
            ..Self::default()
        };
        for &need in row(kind).needs {
            stage.make(subject, need, qp_type(kind))?;
        }
        if kind == Kind::FreeMr {
            // Its kind is that of all regions, so that no row can ask for it.
            let pd = stage.pd.as_ref().expect("the row has a protection domain");
            let owner = stage.owner_of(ObjectKind::Mr);
            stage.fast = Some(owned(owner, made(subject, pd.alloc_mr(4))?));
        }
        Ok(stage)
    }

    /// The kinds of object that a verb acts on or names, the device first.
    ///
    /// # Panics
    /// If the verb has no row.
    pub fn needs(kind: Kind) -> &'static [ObjectKind] {
        row(kind).needs
    }

    fn owner_of(&self, kind: ObjectKind) -> Origin {
        match self.owners {
            (_, Some((other, stranger))) if other == kind => stranger,
            (owner, _) => owner,
        }
    }

    /// The verb's request.
    ///
    /// # Panics
    /// If the stage was set for another verb, or its object has gone.
    pub fn request(&mut self, kind: Kind) -> AnyStageRequest<'_> {
        (row(kind).request)(self).unwrap_or_else(|| panic!("{kind}: the stage is not set for it"))
    }

    /// The device.
    ///
    /// # Panics
    /// If there is none: the verb opens or closes it.
    pub fn device(&self) -> &Arc<Device> {
        self.device
            .as_ref()
            .expect("the stage was set with a device")
    }

    /// What completes the verb's request from outside, if it waits for something to happen.
    pub fn nudge(&self, kind: Kind) -> Nudge {
        Nudge(match kind {
            Kind::NextEvent => self.device.clone(),
            _ => None,
        })
    }

    /// Drops the objects, lets their destroys complete, and closes the device.
    ///
    /// # Panics
    /// If something is left: in the core's counts, in the provider's, or pending.
    #[track_caller]
    pub fn clear(mut self, subject: &Subject) {
        let device = self.device.take();
        drop(self);
        let Some(device) = device else { return };
        subject.until("the objects of the stage go", || device.objects() == 0);
        subject.until("nothing is pending", || device.in_flight().is_empty());
        if let Some(holds) = subject.holds() {
            assert_eq!(holds, 0, "the provider still holds objects");
        }
        let failed = device.implicit_destroy_failures();
        assert_eq!(failed, 0, "destroys of dropped handles failed");
        assert_eq!(device.late_completions(), 0, "completions came twice (K6)");
        let device = Arc::into_inner(device).expect("nobody else kept the device");
        subject.must(device.close());
    }

    /// Where endpoints are bound.
    fn local(&self) -> Option<SocketAddr> {
        self.open.as_ref().map(Subject::local)
    }

    fn make(
        &mut self,
        subject: &Subject,
        need: ObjectKind,
        qp_type: QpType,
    ) -> Result<(), NotOffered> {
        const MADE: &str = "a row names parents before children";
        let owner = self.owner_of(need);
        match need {
            ObjectKind::Device => {
                let device = made(subject, subject.open())?;
                self.av = Some(way_to_itself(subject, &device));
                self.device = Some(Arc::new(device));
            }
            ObjectKind::Pd => {
                self.pd = Some(owned(owner, made(subject, self.device().alloc_pd())?));
            }
            ObjectKind::Cq => {
                self.cq = Some(owned(owner, made(subject, self.device().create_cq(4))?));
            }
            ObjectKind::Srq => {
                let pd = self.pd.as_ref().expect(MADE);
                self.srq = Some(owned(owner, made(subject, pd.create_srq(4, 1))?));
            }
            ObjectKind::Xrcd => {
                self.xrcd = Some(owned(owner, made(subject, self.device().alloc_xrcd())?));
            }
            ObjectKind::Qp if qp_type == QpType::XrcRecv => {
                let xrcd = self.xrcd.as_ref().expect(MADE);
                self.qp = Some(owned(owner, made(subject, xrcd.create_target_qp())?));
            }
            ObjectKind::Qp => {
                let (pd, cq) = (self.pd.as_ref().expect(MADE), self.cq.as_ref().expect(MADE));
                let init = QpInit::of(qp_type, cq, cq);
                self.qp = Some(owned(owner, made(subject, pd.create_qp(init))?));
            }
            ObjectKind::Mr | ObjectKind::Mw | ObjectKind::FmrPool => {
                self.make_key(subject, need)?;
            }
            ObjectKind::Ah => {
                let pd = self.pd.as_ref().expect(MADE);
                let av = self.av.expect(MADE);
                self.ah = Some(owned(owner, made(subject, pd.create_ah(av))?));
            }
            ObjectKind::Mcast => {
                let qp = self.qp.as_ref().expect(MADE);
                self.mcast = Some(owned(
                    owner,
                    made(subject, qp.attach_mcast(GROUP, Lid(0xc000)))?,
                ));
            }
            ObjectKind::CmEndpoint => {
                let sink = Arc::new(Deaf);
                self.cm = Some(owned(
                    owner,
                    made(subject, self.device().bind_cm(subject.local(), sink))?,
                ));
            }
        }
        Ok(())
    }

    /// A region, a window or a pool.
    fn make_key(&mut self, subject: &Subject, need: ObjectKind) -> Result<(), NotOffered> {
        const MADE: &str = "a row names parents before children";
        let owner = self.owner_of(need);
        match need {
            ObjectKind::Mr => {
                let pd = self.pd.as_ref().expect(MADE);
                let memory = memory().expect("64 bytes can be had");
                self.mr = Some(owned(
                    owner,
                    made(subject, pd.register(memory, Access::LOCAL_WRITE))?,
                ));
            }
            ObjectKind::Mw => {
                let pd = self.pd.as_ref().expect(MADE);
                self.mw = Some(owned(owner, made(subject, pd.alloc_mw(WindowType::TwoB))?));
            }
            ObjectKind::FmrPool => {
                let pd = self.pd.as_ref().expect(MADE);
                self.fmr_pool = Some(owned(owner, made(subject, pd.create_fmr_pool(pool()))?));
            }
            other => unreachable!("{other} has no key"),
        }
        Ok(())
    }
}

/// Says whose an object is. Of objects that are made one in another by strangers there are none otherwise.
fn owned<H: Handle>(owner: Origin, handle: H) -> H {
    handle.core().base().owner.set(owner.word());
    handle
}

fn made<V: Verb>(subject: &Subject, request: Request<'_, V>) -> Result<V::Output, NotOffered> {
    subject.finish(request).map_err(|error| NotOffered {
        verb: V::KIND,
        error: error.reason(),
    })
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_row() {
        let rows: Vec<Kind> = ROWS.iter().map(|row| row.kind).collect();
        assert_eq!(rows, Kind::ALL);
    }
}
