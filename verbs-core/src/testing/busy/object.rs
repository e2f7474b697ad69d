//! Objects of any kind, made and destroyed by one check for all kinds.

use crate::object::Handle;
use crate::sync::Arc;
use crate::testing::stage::{Deaf, way_to_itself};
use crate::testing::{GROUP, Subject};
use crate::{
    Access, Ah, Busy, CmEndpoint, Cq, Device, Error, FastMr, FmrPool, FmrPoolAttr, Lid, Mcast,
    Memory, Mr, Mw, ObjectKind, Pd, Qp, QpInit, QpType, Refused, Request, Srq, Target, Verb,
    WindowType, Xrcd,
};

/// Any object. Dropping it destroys it too.
#[derive(Debug)]
pub enum Object {
    /// A device.
    Device(Device),
    /// A protection domain.
    Pd(Pd),
    /// A completion queue.
    Cq(Cq),
    /// A queue pair.
    Qp(Qp),
    /// A shared receive queue.
    Srq(Srq),
    /// A memory region.
    Mr(Mr),
    /// An address handle.
    Ah(Ah),
    /// A multicast attachment.
    Mcast(Mcast),
    /// An XRC domain.
    Xrcd(Xrcd),
    /// A region for fast registration.
    FastMr(FastMr),
    /// A memory window.
    Mw(Mw),
    /// A pool of FMRs.
    FmrPool(FmrPool),
    /// An endpoint of connections.
    CmEndpoint(CmEndpoint),
}

/// A destroy that was refused.
#[derive(Debug)]
pub struct Kept {
    /// Why.
    pub error: Error,
    /// Its holders, if it is Busy.
    pub busy: Option<Busy>,
    /// The handle, if it came back.
    pub object: Option<Object>,
}

macro_rules! objects {
    ($($Kind:ident $destroy:ident;)*) => {
        impl Object {
            /// Destroys it; a refusal returns it.
            pub fn destroy(self, subject: &Subject) -> Result<(), Kept> {
                match self {
                    $(Self::$Kind(object) => subject.finish(object.$destroy()).map_err(kept)),*
                }
            }
        }

        $(impl From<$Kind> for Object {
            fn from(object: $Kind) -> Self {
                Self::$Kind(object)
            }
        })*
    };
}

objects! {
    Device close;
    Pd dealloc;
    Cq destroy;
    Qp destroy;
    Srq destroy;
    Mr dereg;
    Ah destroy;
    Mcast detach;
    Xrcd dealloc;
    FastMr free;
    Mw dealloc;
    FmrPool destroy;
    CmEndpoint unbind;
}

/// The refusal of one kind as that of any.
pub fn kept<H: Handle + Into<Object>>(refused: Refused<H>) -> Kept {
    Kept {
        error: refused.error,
        busy: refused.busy,
        object: refused.handle.map(Into::into),
    }
}

/// Memory for a region of these tests.
///
/// # Panics
/// If there is no memory.
pub fn memory() -> Memory {
    Memory::alloc(64).expect("64 bytes can be had")
}

/// The parents of objects: one of each kind that others need.
#[derive(Debug, Default)]
pub struct Parents {
    /// One for datagrams, which joins groups.
    pub mcast_qp: Option<Qp>,
    /// A shared receive queue.
    pub srq: Option<Srq>,
    /// An XRC domain.
    pub xrcd: Option<Xrcd>,
    /// A completion queue.
    pub cq: Option<Cq>,
    /// The protection domain of all.
    pub pd: Option<Pd>,
    /// The device of all.
    pub device: Option<Device>,
}

fn must<T>(made: Option<&T>) -> &T {
    made.expect("parents are made before children")
}

impl Parents {
    /// Everything that a child of any kind may need, as far as the provider has it.
    pub fn of(subject: &Subject) -> Self {
        let device = subject.device();
        let pd = subject.must(device.alloc_pd());
        let cq = subject.must(device.create_cq(4));
        let srq = supported(subject, pd.create_srq(4, 1));
        let xrcd = supported(subject, device.alloc_xrcd());
        let ud = QpInit::of(QpType::Ud, &cq, &cq);
        let mcast_qp = supported(subject, pd.create_qp(ud));
        Self {
            mcast_qp,
            srq,
            xrcd,
            cq: Some(cq),
            pd: Some(pd),
            device: Some(device),
        }
    }

    /// A child of that kind, using `parent` among others; `None` if the provider has none.
    pub fn child(&self, subject: &Subject, parent: ObjectKind, kind: ObjectKind) -> Option<Object> {
        let (device, pd, cq) = (
            || must(self.device.as_ref()),
            || must(self.pd.as_ref()),
            || must(self.cq.as_ref()),
        );
        Some(match kind {
            ObjectKind::Pd => subject.must(device().alloc_pd()).into(),
            ObjectKind::Cq => subject.must(device().create_cq(4)).into(),
            ObjectKind::Mr => {
                let access = Access::LOCAL_WRITE;
                subject.must(pd().register(memory(), access)).into()
            }
            ObjectKind::Mw => supported(subject, pd().alloc_mw(WindowType::One))?.into(),
            ObjectKind::FmrPool => {
                let attr = FmrPoolAttr::new(1, 1, Access::LOCAL_WRITE);
                supported(subject, pd().create_fmr_pool(attr))?.into()
            }
            ObjectKind::CmEndpoint => {
                let local = subject.local();
                supported(subject, device().bind_cm(local, Arc::new(Deaf)))?.into()
            }
            ObjectKind::Ah => {
                let av = way_to_itself(subject, device());
                supported(subject, pd().create_ah(av))?.into()
            }
            ObjectKind::Srq if matches!(parent, ObjectKind::Xrcd | ObjectKind::Cq) => {
                let xrcd = self.xrcd.as_ref()?;
                supported(subject, pd().create_xrc_srq(xrcd, cq(), 4, 1))?.into()
            }
            ObjectKind::Srq => supported(subject, pd().create_srq(4, 1))?.into(),
            ObjectKind::Xrcd => supported(subject, device().alloc_xrcd())?.into(),
            ObjectKind::Qp if parent == ObjectKind::Xrcd => {
                subject.must(self.xrcd.as_ref()?.create_target_qp()).into()
            }
            ObjectKind::Qp => {
                let init = QpInit::rc(cq(), cq());
                let init = match parent {
                    ObjectKind::Srq => init.srq(self.srq.as_ref()?),
                    _ => init,
                };
                subject.must(pd().create_qp(init)).into()
            }
            ObjectKind::Mcast => {
                let qp = self.mcast_qp.as_ref()?;
                supported(subject, qp.attach_mcast(GROUP, Lid(0xc000)))?.into()
            }
            other => panic!("nothing makes a {other}"),
        })
    }

    /// A region for fast registration, whose kind is that of all regions.
    pub fn fast_mr(&self, subject: &Subject) -> Option<Object> {
        let pd = must(self.pd.as_ref());
        Some(supported(subject, pd.alloc_mr(1))?.into())
    }

    /// Takes the parent of that kind out, to be destroyed; `None` if the provider has none.
    pub fn take(&mut self, kind: ObjectKind) -> Option<Object> {
        match kind {
            ObjectKind::Device => self.device.take().map(Into::into),
            ObjectKind::Pd => self.pd.take().map(Into::into),
            ObjectKind::Cq => self.cq.take().map(Into::into),
            ObjectKind::Srq => self.srq.take().map(Into::into),
            ObjectKind::Xrcd => self.xrcd.take().map(Into::into),
            ObjectKind::Qp => self.mcast_qp.take().map(Into::into),
            _ => None,
        }
    }

    /// Puts it back.
    pub fn put(&mut self, object: Object) {
        match object {
            Object::Device(device) => self.device = Some(device),
            Object::Pd(pd) => self.pd = Some(pd),
            Object::Cq(cq) => self.cq = Some(cq),
            Object::Srq(srq) => self.srq = Some(srq),
            Object::Xrcd(xrcd) => self.xrcd = Some(xrcd),
            Object::Qp(qp) => self.mcast_qp = Some(qp),
            other => panic!("{other:?} is nobody's parent"),
        }
    }
}

/// The object, or `None` if the provider does not support the kind.
fn supported<V: Verb<Error = Error>>(
    subject: &Subject,
    request: Request<'_, V>,
) -> Option<V::Output> {
    match subject.finish(request) {
        Ok(object) => Some(object),
        Err(error) if error.is_unsupported() => None,
        Err(error) => panic!("{}: {error}", V::KIND),
    }
}

/// Checks that the object works.
pub fn works(subject: &Subject, object: &Object) {
    match object {
        Object::Device(device) => drop(subject.must(device.query())),
        Object::Pd(pd) => {
            let mr = subject.must(pd.register(memory(), Access::empty()));
            subject.must(mr.dereg());
        }
        Object::Cq(cq) => assert!(cq.depth() >= 4),
        Object::Qp(qp) => drop(subject.must(qp.query())),
        Object::Srq(srq) => assert!(subject.must(srq.query()).max_wr >= 4),
        Object::Mr(mr) => {
            mr.write(3, b"still here").expect("in range");
            let mut bytes = [0; 10];
            mr.read(3, &mut bytes).expect("in range");
            assert_eq!(&bytes, b"still here");
        }
        Object::Xrcd(xrcd) => {
            let target = subject.must(xrcd.create_target_qp());
            subject.must(target.destroy());
        }
        Object::Ah(ah) => assert_eq!(subject.must(ah.query()), ah.av()),
        Object::Mcast(mcast) => assert_eq!(mcast.mgid(), GROUP),
        Object::FastMr(mr) => assert!(mr.is_empty()),
        Object::Mw(mw) => {
            let attr = supported(subject, mw.query());
            assert!(attr.is_none_or(|attr| attr.bound.is_none()));
        }
        Object::FmrPool(pool) => subject.must(pool.flush()),
        Object::CmEndpoint(endpoint) => assert_ne!(endpoint.target().id().number, 0),
    }
}
