//! Queue pairs: control verbs on the handle, direct calls on its queues.

use crate::addr::{Psn, QKey, Qpn};
use crate::cq::CqCore;
use crate::error::{Attr, Error, Why};
use crate::mem::Access;
use crate::object::header::IfBusy;
use crate::object::{Base, Child, ObjectKind, Private, Target, core, destroy, handle};
use crate::pd::{Pd, PdCore};
use crate::provider_attr::NodeType;
use crate::qp_attr::{LiveCap, Path, QpAttr, QpInfo};
use crate::qp_state::{QpState, QpType};
use crate::queue::{PostError, RawRecvQueue, RawSendQueue};
use crate::request::Request;
use crate::srq::SrqCore;
use crate::sync::Arc;
use crate::sync::slot::slab_alloc::SlabBox;
use crate::verb::{Admit, Verb, verb};
use crate::wr::{Recv, SendWr};
use crate::xrcd::XrcdCore;

mod init;
mod queues;

use queues::NoQueue;

pub use crate::qp_attr::QpCap;
pub use init::QpInit;
pub use queues::{RecvQueue, SendQueue};

/// A queue pair: two queues and their state. Post with [`Qp::send_queue`] and [`Qp::recv_queue`], or
/// [split](Qp::split) the queues off and hand them to other threads.
///
/// Dropping the handle destroys the queue pair (K12), unless something is attached to it.
pub struct Qp {
    core: Arc<QpCore>,
    /// `None` when they were split off.
    queues: Option<(SendQueue, RecvQueue)>,
}

/// What a queue pair's requests act on.
#[derive(Debug)]
pub struct QpCore {
    base: Base,
    /// A target of extended reliable connections has neither domain nor completion queues.
    pd: Option<Child<PdCore>>,
    send_cq: Option<Child<CqCore>>,
    recv_cq: Option<Child<CqCore>>,
    srq: Option<Child<SrqCore>>,
    xrcd: Option<Child<XrcdCore>>,
    qp_type: QpType,
    cap: LiveCap,
}

core!(QpCore {
    pd,
    send_cq,
    recv_cq,
    srq,
    xrcd
});
handle!(Qp, QpCore, DestroyQp);

impl QpCore {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        Qpn::new(self.base.id().number)
    }

    /// Its service type.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Its sizes.
    pub fn cap(&self) -> QpCap {
        self.cap.get()
    }

    /// Takes over new depths, for a provider that has resized the queues.
    pub fn resized(&self, cap: &QpCap) {
        self.cap.resize(cap);
    }
}

/// Creates a queue pair; arguments of the verb.
#[derive(Debug)]
pub struct CreateQp {
    pd: Child<PdCore>,
    send_cq: Child<CqCore>,
    recv_cq: Child<CqCore>,
    srq: Option<Child<SrqCore>>,
    /// Service type.
    pub qp_type: QpType,
    /// Sizes wanted, at least.
    pub cap: QpCap,
    /// Whether every send makes a completion.
    pub sq_sig_all: bool,
    /// Whether the shortest latency is wanted.
    pub low_latency: bool,
    /// Whether its own multicast is kept from it.
    pub block_multicast_loopback: bool,
}

impl Verb for CreateQp {
    type Target = PdCore;
    type Output = Qp;
    type Error = Error;
    const KIND: crate::command::Kind = crate::command::Kind::CreateQp;

    fn command(command: crate::command::Command<'_, Self>) -> crate::command::AnyCommand<'_> {
        crate::command::AnyCommand::CreateQp(command)
    }

    fn admit(&mut self, pd: &PdCore) -> Admit<Error> {
        let device = pd.base().device();
        let same = |cq: &Child<CqCore>| Arc::ptr_eq(device, cq.get().base().device());
        let refuse = |attr| {
            Admit::Refuse(Error::Mismatch {
                attr,
                why: Why::OtherDevice,
            })
        };
        if !(same(&self.send_cq) && same(&self.recv_cq)) {
            return refuse(Attr::Cq);
        }
        if matches!(self.qp_type, QpType::Smi | QpType::Gsi)
            && device.provider.query_provider(1).node == NodeType::Rnic
        {
            // RDMA over TCP has no management datagrams.
            return Admit::Refuse(Error::Unsupported(Attr::QpType));
        }
        match &self.srq {
            Some(srq) if !Arc::ptr_eq(device, srq.get().base().device()) => refuse(Attr::Srq),
            _ => Admit::Go,
        }
    }

    fn created(qp: &Qp) -> Option<Arc<dyn Target>> {
        Some(Arc::<QpCore>::clone(&qp.core))
    }
}

impl Pd {
    /// Creates a queue pair, in state RESET.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes beyond the device's, [`Error::Mismatch`] for a completion queue
    /// of another device, [`Error::Exhausted`] at the device's `max_qp`,
    /// [`Error::Unsupported`] or [`Error::NoCapability`] for a type or flag that the device does not have.
    pub fn create_qp(&self, init: QpInit<'_>) -> Request<'_, CreateQp> {
        CreateQp::request(self, &init)
    }
}

impl CreateQp {
    pub(crate) fn request<'a>(pd: &'a Pd, init: &QpInit<'_>) -> Request<'a, Self> {
        let args = Self {
            pd: Child::new(pd.core(), ObjectKind::Qp),
            send_cq: Child::new(init.send_cq, ObjectKind::Qp),
            recv_cq: Child::new(init.recv_cq, ObjectKind::Qp),
            srq: init.srq.map(|srq| Child::new(srq, ObjectKind::Qp)),
            qp_type: init.qp_type,
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
            low_latency: init.low_latency,
            block_multicast_loopback: init.block_multicast_loopback,
        };
        Request::new(pd.core(), args)
    }

    /// The completion queue of the send queue.
    pub fn send_cq(&self) -> &Arc<CqCore> {
        self.send_cq.get()
    }

    /// The completion queue of the receive queue.
    pub fn recv_cq(&self) -> &Arc<CqCore> {
        self.recv_cq.get()
    }

    /// The shared receive queue, if it is to have one.
    pub fn srq(&self) -> Option<&Arc<SrqCore>> {
        self.srq.as_ref().map(Child::get)
    }

    /// The queue pair, for a provider that has created it under that number with these sizes.
    pub fn build(
        self,
        qpn: Qpn,
        cap: QpCap,
        private: Private,
        send: impl Into<SlabBox<dyn RawSendQueue>>,
        recv: impl Into<SlabBox<dyn RawRecvQueue>>,
    ) -> Qp {
        let Self {
            pd,
            send_cq,
            recv_cq,
            srq,
            qp_type,
            ..
        } = self;
        let base = Base::new(
            Target::device(pd.get()),
            ObjectKind::Qp,
            qpn.value(),
            private,
        );
        let core = Arc::new(QpCore {
            base,
            pd: Some(pd),
            send_cq: Some(send_cq),
            recv_cq: Some(recv_cq),
            srq,
            xrcd: None,
            qp_type,
            cap: LiveCap::new(&cap),
        });
        Qp {
            core,
            queues: Some((SendQueue(send.into()), RecvQueue(recv.into()))),
        }
    }
}

/// Changes a queue pair; arguments of the verb.
#[derive(Debug)]
pub struct ModifyQp {
    /// What changes, the state among it.
    pub attr: QpAttr,
}

/// Asks for a queue pair's attributes; arguments of the verb.
#[derive(Debug)]
pub struct QueryQp {
    storage: Option<Box<QpInfo>>,
}

impl QueryQp {
    /// The answer, in the caller's storage if the request brought some. For providers.
    pub fn answer(self, info: QpInfo) -> Box<QpInfo> {
        let Some(mut storage) = self.storage else {
            return Box::new(info);
        };
        *storage = info;
        storage
    }
}

verb!(ModifyQp, QpCore => ());
verb!(QueryQp, QpCore => Box<QpInfo>);

impl Qp {
    /// A target in that domain.
    pub(crate) fn target_of(xrcd: Child<XrcdCore>, qpn: Qpn, cap: QpCap, private: Private) -> Self {
        let device = Target::device(xrcd.get());
        let base = Base::new(device, ObjectKind::Qp, qpn.value(), private);
        let core = Arc::new(QpCore {
            base,
            pd: None,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: Some(xrcd),
            qp_type: QpType::XrcRecv,
            cap: LiveCap::new(&cap),
        });
        Self {
            core,
            queues: Some((
                SendQueue(Box::new(NoQueue).into()),
                RecvQueue(Box::new(NoQueue).into()),
            )),
        }
    }

    pub(crate) fn core(&self) -> &Arc<QpCore> {
        &self.core
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.qpn()
    }

    /// What requests act on, as providers see it.
    pub fn target(&self) -> &Arc<QpCore> {
        &self.core
    }

    /// Its service type.
    pub fn qp_type(&self) -> QpType {
        self.core.qp_type
    }

    /// Its sizes, at least what was asked for.
    pub fn cap(&self) -> QpCap {
        self.core.cap()
    }

    /// What the provider keeps with the queue pair, if it is of that type.
    pub fn private<T: 'static>(&self) -> Option<&T> {
        self.core.base.private()
    }

    /// Changes attributes, usually the state among them (IBTA vol. 1, 11.2.5.2). All or nothing.
    ///
    /// # Errors
    /// [`Error::Transition`] says what the change of state lacks or forbids, [`Error::Invalid`] and
    /// [`Error::Mismatch`] which attribute is wrong.
    #[inline]
    pub fn modify(&self, attr: QpAttr) -> Request<'_, ModifyQp> {
        Request::new(&self.core, ModifyQp { attr })
    }

    /// Its attributes as they are now.
    ///
    /// # Errors
    /// The provider's.
    pub fn query(&self) -> Request<'_, QueryQp> {
        Request::new(&self.core, QueryQp { storage: None })
    }

    /// As [`Qp::query`], with the answer in memory that an earlier one returned, so that none is allocated:
    /// `info = qp.query_into(info).await?`. A query that fails frees the memory.
    ///
    /// # Errors
    /// As [`Qp::query`].
    pub fn query_into(&self, info: Box<QpInfo>) -> Request<'_, QueryQp> {
        let storage = Some(info);
        Request::new(&self.core, QueryQp { storage })
    }

    /// RESET to INIT: receives can be posted afterwards. `access` is what the peer may do through
    /// this queue pair.
    ///
    /// # Errors
    /// As [`Qp::modify`]; [`Error::NoMemory`] when the queues cannot be allocated.
    pub fn init(&self, port: u8, access: Access) -> Request<'_, ModifyQp> {
        self.modify(QpAttr::init(port, access))
    }

    /// RESET to INIT of a queue pair for datagrams: it takes those that come with that Q_Key.
    ///
    /// # Errors
    /// As [`Qp::init`].
    pub fn init_datagram(&self, port: u8, qkey: QKey) -> Request<'_, ModifyQp> {
        self.modify(QpAttr::init_datagram(port, qkey))
    }

    /// INIT to RTR of a queue pair for datagrams, which has no peer to know.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn ready_to_receive_datagrams(&self) -> Request<'_, ModifyQp> {
        self.modify(QpAttr::to(QpState::Rtr))
    }

    /// INIT to RTR: connects to the peer's queue pair and accepts what it sends.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn ready_to_receive(&self, peer: &Path) -> Request<'_, ModifyQp> {
        self.modify(QpAttr::rtr_of(self.core.qp_type, peer))
    }

    /// RTR to RTS: starts sending, with `psn` as the first packet's number.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn ready_to_send(&self, psn: Psn) -> Request<'_, ModifyQp> {
        self.modify(QpAttr::rts_of(self.core.qp_type, psn))
    }

    /// To ERR: everything posted completes with
    /// [`WcStatus::WrFlushErr`](crate::WcStatus::WrFlushErr).
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn to_error(&self) -> Request<'_, ModifyQp> {
        self.modify(QpAttr::to(QpState::Err))
    }

    /// The send queue, unless it was split off.
    ///
    /// # Errors
    /// [`PostError::Split`].
    #[inline]
    pub fn send_queue(&mut self) -> Result<&mut SendQueue, PostError> {
        self.queues
            .as_mut()
            .map(|(send, _)| send)
            .ok_or(PostError::Split)
    }

    /// The receive queue, unless it was split off.
    ///
    /// # Errors
    /// [`PostError::Split`].
    #[inline]
    pub fn recv_queue(&mut self) -> Result<&mut RecvQueue, PostError> {
        self.queues
            .as_mut()
            .map(|(_, recv)| recv)
            .ok_or(PostError::Split)
    }

    /// Posts to the send queue; see [`SendQueue::post`].
    ///
    /// # Errors
    /// [`PostError`].
    #[inline(always)]
    pub fn post_send<'w>(&mut self, wr: impl Into<SendWr<'w>>) -> Result<(), PostError> {
        self.send_queue()?.post(wr)
    }

    /// Posts to the receive queue; see [`RecvQueue::post`].
    ///
    /// # Errors
    /// [`PostError`].
    #[inline]
    pub fn post_recv(&mut self, wr: Recv<'_>) -> Result<(), PostError> {
        self.recv_queue()?.post(wr)
    }

    /// Takes the queues off the handle, so that other threads can post while this one controls.
    /// They work until the queue pair is destroyed and then answer [`PostError::Destroyed`].
    ///
    /// # Errors
    /// The handle, if the queues were split off before.
    pub fn split(mut self) -> Result<(Self, SendQueue, RecvQueue), Self> {
        match self.queues.take() {
            Some((send, recv)) => Ok((self, send, recv)),
            None => Err(self),
        }
    }

    /// Destroys the queue pair: Busy while something is attached to it (K10). What is posted is
    /// flushed first; those completions can still be polled.
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back.
    pub fn destroy(self) -> Request<'static, DestroyQp> {
        destroy(self, IfBusy::Refuse)
    }

    /// As [`Qp::destroy`], but waits for the last attachment instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn destroy_when_idle(self) -> Request<'static, DestroyQp> {
        destroy(self, IfBusy::Wait)
    }
}

/// Changes how many work requests the queues of a queue pair hold (`IBV_QP_CAP` of `ibv_modify_qp`); arguments of the
/// verb.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResizeQp {
    /// Work requests on the send queue; `None` leaves it as it is.
    pub max_send_wr: Option<u32>,
    /// Work requests on the receive queue; `None` leaves it as it is.
    pub max_recv_wr: Option<u32>,
}

verb!(ResizeQp, QpCore => QpCap);

impl Qp {
    /// Changes how many work requests a queue holds; yields the sizes that the queue pair has then. What is posted
    /// stays, so a depth below what is outstanding is refused, and the queue pair continues as it was. Outstanding are
    /// the work requests from the oldest that is not finished to the newest: a receive that waits for a message, a send
    /// that is not carried out or whose completion was not polled. What other threads post or poll at this moment may be
    /// counted or not.
    ///
    /// # Errors
    /// [`Error::NoCapability`] without [`RESIZE_MAX_WR`](crate::DeviceCap::RESIZE_MAX_WR); [`Error::Invalid`] beyond
    /// the device's `max_qp_wr`; [`Error::Mismatch`] if the queue pair takes its receives from a shared queue;
    /// [`Error::Exhausted`] if a queue that is in use cannot grow that far, with the depth that it can have: providers
    /// allocate queues on the way to INIT; [`Error::Outstanding`] for a depth below what is outstanding. Nothing has
    /// changed then.
    ///
    /// # Examples
    /// ```
    /// # use verbs_core::testing::Null;
    /// use verbs_core::{Device, QpInit};
    ///
    /// # let device = Device::open(std::sync::Arc::new(Null::default())).wait()?;
    /// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
    /// let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait()?;
    /// let cap = qp.resize().send(64).wait()?;
    /// assert_eq!((cap.max_send_wr, qp.target().cap().max_send_wr), (64, 64));
    /// # Ok::<(), verbs_core::Error>(())
    /// ```
    pub fn resize(&self) -> Request<'_, ResizeQp> {
        Request::new(&self.core, ResizeQp::default())
    }
}

impl Request<'_, ResizeQp> {
    /// The depth of the send queue.
    pub fn send(mut self, depth: u32) -> Self {
        self.args.max_send_wr = Some(depth);
        self
    }

    /// The depth of the receive queue.
    pub fn recv(mut self, depth: u32) -> Self {
        self.args.max_recv_wr = Some(depth);
        self
    }
}
