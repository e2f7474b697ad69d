//! Shared receive queues.

use crate::addr::Srqn;
use crate::command::{AnyCommand, Command, Kind};
use crate::cq::{CqCore, CqRef};
use crate::error::{Attr, Error, Why};
use crate::object::header::IfBusy;
use crate::object::{Base, Child, ObjectKind, Private, Target, core, destroy, handle};
use crate::pd::{Pd, PdCore};
use crate::queue::{BatchError, PostError, RawRecvQueue, post_recv_shortest};
use crate::request::Request;
use crate::sync::Arc;
use crate::verb::{Admit, Verb, verb};
use crate::wr::Recv;
use crate::xrcd::{Xrcd, XrcdCore};

/// Sizes and limit of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives that it holds.
    pub max_wr: u32,
    /// Scatter/gather elements of one receive.
    pub max_sge: u32,
    /// When fewer receives than this are left, the limit event is raised, once; 0 for never.
    pub srq_limit: u32,
}

/// A shared receive queue: several queue pairs take their receives from it
/// (IBTA vol. 1, 10.2.9). Posting takes `&mut self`, which is its lock.
///
/// Dropping it destroys it when no queue pair uses it any longer (K12).
pub struct Srq {
    core: Arc<SrqCore>,
    raw: Box<dyn RawRecvQueue>,
}

/// What a shared receive queue's requests act on.
#[derive(Debug)]
pub struct SrqCore {
    base: Base,
    pd: Child<PdCore>,
    /// Of one for extended reliable connections.
    xrcd: Option<Child<XrcdCore>>,
    cq: Option<Child<CqCore>>,
}

core!(SrqCore { pd, xrcd, cq });
handle!(Srq, SrqCore, DestroySrq);

/// Creates a shared receive queue; arguments of the verb.
#[derive(Debug)]
pub struct CreateSrq {
    pd: Child<PdCore>,
    xrcd: Option<Child<XrcdCore>>,
    cq: Option<Child<CqCore>>,
    /// Sizes wanted, at least. The limit is set by a later modify.
    pub attr: SrqAttr,
}

/// Changes depth or limit; arguments of the verb.
#[derive(Debug)]
pub struct ModifySrq {
    /// Receives that it is to hold, at least.
    pub max_wr: Option<u32>,
    /// The new limit.
    pub srq_limit: Option<u32>,
}

/// Asks for sizes and limit; arguments of the verb.
#[derive(Debug)]
pub struct QuerySrq(());

verb!(ModifySrq, SrqCore => ());
verb!(QuerySrq, SrqCore => SrqAttr);

impl ModifySrq {
    /// Of a queue that may be shared.
    pub(crate) fn request(
        srq: &Arc<SrqCore>,
        max_wr: Option<u32>,
        srq_limit: Option<u32>,
    ) -> Request<'_, Self> {
        Request::new(srq, Self { max_wr, srq_limit })
    }
}

impl QuerySrq {
    /// Of a queue that may be shared.
    pub(crate) fn request(srq: &Arc<SrqCore>) -> Request<'_, Self> {
        Request::new(srq, Self(()))
    }
}

impl Verb for CreateSrq {
    type Target = PdCore;
    type Output = Srq;
    type Error = Error;
    const KIND: Kind = Kind::CreateSrq;

    fn command(command: Command<'_, Self>) -> AnyCommand<'_> {
        AnyCommand::CreateSrq(command)
    }

    fn admit(&mut self, pd: &PdCore) -> Admit<Error> {
        let device = pd.base().device();
        let foreign = |attr| {
            Admit::Refuse(Error::Mismatch {
                attr,
                why: Why::OtherDevice,
            })
        };
        if let Some(xrcd) = &self.xrcd
            && !Arc::ptr_eq(device, xrcd.get().base().device())
        {
            return foreign(Attr::Xrcd);
        }
        match &self.cq {
            Some(cq) if !Arc::ptr_eq(device, cq.get().base().device()) => foreign(Attr::Cq),
            _ => Admit::Go,
        }
    }

    fn created(srq: &Srq) -> Option<Arc<dyn Target>> {
        Some(Arc::<SrqCore>::clone(&srq.core))
    }
}

impl CreateSrq {
    /// The domain and the completion queue of one for extended reliable connections.
    pub fn xrc(&self) -> Option<(&Arc<XrcdCore>, &Arc<CqCore>)> {
        self.xrcd
            .as_ref()
            .zip(self.cq.as_ref())
            .map(|(xrcd, cq)| (xrcd.get(), cq.get()))
    }

    /// The queue, for a provider that has created it under that number.
    pub fn build(self, number: u32, private: Private, raw: Box<dyn RawRecvQueue>) -> Srq {
        let base = Base::new(
            Target::device(self.pd.get()),
            ObjectKind::Srq,
            number,
            private,
        );
        Srq {
            core: Arc::new(SrqCore {
                base,
                pd: self.pd,
                xrcd: self.xrcd,
                cq: self.cq,
            }),
            raw,
        }
    }
}

impl SrqCore {
    /// The protection domain that its receives are checked against.
    pub fn pd(&self) -> &Arc<PdCore> {
        self.pd.get()
    }
}

impl Pd {
    /// Creates a shared receive queue with room for `max_wr` receives of `max_sge` elements.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes beyond the device's, [`Error::Exhausted`] at its `max_srq`.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Request<'_, CreateSrq> {
        let attr = SrqAttr {
            max_wr,
            max_sge,
            srq_limit: 0,
        };
        Request::new(
            self.core(),
            CreateSrq {
                pd: Child::new(self.core(), ObjectKind::Srq),
                xrcd: None,
                cq: None,
                attr,
            },
        )
    }

    /// Creates a shared receive queue for extended reliable connections: requests of targets in that
    /// domain name it, and its receives complete on that queue.
    ///
    /// # Errors
    /// As [`Pd::create_srq`]; [`Error::Mismatch`] for a domain or queue of another device.
    pub fn create_xrc_srq(
        &self,
        xrcd: &Xrcd,
        cq: &impl CqRef,
        max_wr: u32,
        max_sge: u32,
    ) -> Request<'_, CreateSrq> {
        let attr = SrqAttr {
            max_wr,
            max_sge,
            srq_limit: 0,
        };
        let args = CreateSrq {
            pd: Child::new(self.core(), ObjectKind::Srq),
            xrcd: Some(Child::new(xrcd.core(), ObjectKind::Srq)),
            cq: Some(Child::new(cq.cq_core(), ObjectKind::Srq)),
            attr,
        };
        Request::new(self.core(), args)
    }
}

pub(crate) mod sealed {
    use super::{Arc, SrqCore};

    /// Names a shared receive queue.
    pub trait NamesSrq {
        fn srq_core(&self) -> &Arc<SrqCore>;
    }
}

/// What names a shared receive queue when a queue pair is created: an [`Srq`], or a [shared](crate::Shared) one.
pub trait SrqRef: sealed::NamesSrq {}

impl SrqRef for Srq {}

impl sealed::NamesSrq for Srq {
    fn srq_core(&self) -> &Arc<SrqCore> {
        self.core()
    }
}

impl Srq {
    /// Its number, by which requests on extended reliable connections name it.
    pub fn srqn(&self) -> Srqn {
        Srqn::new(self.core.base.id().number)
    }

    /// Posts a receive. A direct call: no control lock, no allocation, no system call, never blocks.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_recv(&mut self, wr: Recv<'_>) -> Result<(), PostError> {
        post_recv_shortest(&mut *self.raw, &wr)
    }

    /// Posts several receives. Stops at the first that is not accepted.
    ///
    /// # Errors
    /// [`BatchError`] says how many were accepted; those wait for messages.
    pub fn post_batch(&mut self, wrs: &[Recv<'_>]) -> Result<(), BatchError> {
        self.raw.post_batch(wrs)
    }

    /// Arms the limit event: it is raised once, when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit beyond the queue's depth.
    pub fn arm_limit(&self, limit: u32) -> Request<'_, ModifySrq> {
        ModifySrq::request(&self.core, None, Some(limit))
    }

    /// Changes the depth. Receives that are posted are kept, and posting and taking go on in the meantime.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than the device's `max_srq_wr`, [`Error::Mismatch`] for a depth of 0
    /// or less than what is posted, [`Error::NoCapability`] where queues cannot be resized.
    pub fn resize(&self, max_wr: u32) -> Request<'_, ModifySrq> {
        ModifySrq::request(&self.core, Some(max_wr), None)
    }

    /// Changes the depth and the limit, each if it is named, in one request: both or none.
    ///
    /// # Errors
    /// As [`Srq::resize`] and [`Srq::arm_limit`].
    pub fn modify(&self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Request<'_, ModifySrq> {
        ModifySrq::request(&self.core, max_wr, srq_limit)
    }

    /// Sizes and limit as they are now; a limit of 0 says that the event is not armed.
    ///
    /// # Errors
    /// The provider's.
    pub fn query(&self) -> Request<'_, QuerySrq> {
        QuerySrq::request(&self.core)
    }

    /// Destroys the queue: Busy while queue pairs use it (K10). What is posted goes with it.
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back.
    pub fn destroy(self) -> Request<'static, DestroySrq> {
        destroy(self, IfBusy::Refuse)
    }

    /// As [`Srq::destroy`], but waits for the last queue pair instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn destroy_when_idle(self) -> Request<'static, DestroySrq> {
        destroy(self, IfBusy::Wait)
    }

    /// What requests act on, as providers see it.
    pub fn target(&self) -> &Arc<SrqCore> {
        &self.core
    }

    pub(crate) fn core(&self) -> &Arc<SrqCore> {
        &self.core
    }
}
