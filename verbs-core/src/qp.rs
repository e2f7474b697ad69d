//! Queue pairs: control verbs on the handle, direct calls on its queues.

use crate::addr::{Psn, QKey, Qpn};
use crate::cq::CqCore;
use crate::device::verb;
use crate::error::{Attr, Error, Why};
use crate::mem::Access;
use crate::object::{Base, Child, ObjectKind, Private, Target, core, destroy, handle};
use crate::pd::{Pd, PdCore};
use crate::qp_attr::{Path, QpAttr, QpInfo};
use crate::qp_state::{QpState, QpType};
use crate::queue::{PostError, RawRecvQueue, RawSendQueue};
use crate::request::Request;
use crate::shared::{CqRef, SrqRef};
use crate::slot::yard::Lone;
use crate::srq::SrqCore;
use crate::sync::Arc;
use crate::verb::{Admit, Verb};
use crate::wr::{Recv, SendWr};
use crate::xrcd::XrcdCore;

mod queues;

use queues::NoQueue;

pub use crate::qp_attr::QpCap;
pub use queues::{RecvQueue, SendQueue};

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
#[must_use = "this only describes a queue pair"]
pub struct QpInit<'a> {
    qp_type: QpType,
    send_cq: &'a Arc<CqCore>,
    recv_cq: &'a Arc<CqCore>,
    cap: QpCap,
    srq: Option<&'a Arc<SrqCore>>,
    sq_sig_all: bool,
    low_latency: bool,
    block_multicast_loopback: bool,
}

impl<'a> QpInit<'a> {
    /// A reliable connection whose sends and receives complete on these queues.
    pub fn rc(send_cq: &'a impl CqRef, recv_cq: &'a impl CqRef) -> Self {
        Self::of(QpType::Rc, send_cq, recv_cq)
    }

    /// An unreliable connection whose sends and receives complete on these queues.
    pub fn uc(send_cq: &'a impl CqRef, recv_cq: &'a impl CqRef) -> Self {
        Self::of(QpType::Uc, send_cq, recv_cq)
    }

    /// A queue pair for unreliable datagrams whose sends and receives complete on these queues.
    pub fn ud(send_cq: &'a impl CqRef, recv_cq: &'a impl CqRef) -> Self {
        Self::of(QpType::Ud, send_cq, recv_cq)
    }

    /// The initiator of an extended reliable connection, whose sends complete on that queue; it has no
    /// receives. Its targets are made in a [domain](crate::Xrcd).
    pub fn xrc(send_cq: &'a impl CqRef) -> Self {
        Self::of(QpType::XrcSend, send_cq, send_cq)
    }

    /// A queue pair of that type.
    pub fn of(qp_type: QpType, send_cq: &'a impl CqRef, recv_cq: &'a impl CqRef) -> Self {
        Self {
            qp_type,
            send_cq: send_cq.cq_core(),
            recv_cq: recv_cq.cq_core(),
            cap: QpCap::default(),
            srq: None,
            sq_sig_all: false,
            low_latency: false,
            block_multicast_loopback: false,
        }
    }

    /// All sizes at once.
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.cap = cap;
        self
    }

    /// Work requests on the send and on the receive queue.
    pub fn depth(mut self, send: u32, recv: u32) -> Self {
        (self.cap.max_send_wr, self.cap.max_recv_wr) = (send, recv);
        self
    }

    /// Scatter/gather elements of one send and of one receive.
    pub fn sges(mut self, send: u32, recv: u32) -> Self {
        (self.cap.max_send_sge, self.cap.max_recv_sge) = (send, recv);
        self
    }

    /// Inline bytes of one send.
    pub fn inline(mut self, bytes: u32) -> Self {
        self.cap.max_inline_data = bytes;
        self
    }

    /// Receives are taken from this queue instead of one of its own.
    pub fn srq(mut self, srq: &'a impl SrqRef) -> Self {
        self.srq = Some(srq.srq_core());
        self
    }

    /// Every send makes a completion, whatever its flags say.
    pub fn signal_all(mut self) -> Self {
        self.sq_sig_all = true;
        self
    }

    /// What it sends to a multicast group that it is attached to itself does not come back to it
    /// (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`).
    pub fn block_multicast_loopback(mut self) -> Self {
        self.block_multicast_loopback = true;
        self
    }

    /// Asks for the shortest latency at the price of throughput, where the device can.
    pub fn low_latency(mut self) -> Self {
        self.low_latency = true;
        self
    }
}

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
    cap: QpCap,
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
        self.cap
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
        match &self.srq {
            Some(srq) if !Arc::ptr_eq(device, srq.get().base().device()) => refuse(Attr::Srq),
            _ => Admit::Go,
        }
    }

    fn created(qp: &Qp) -> Option<Arc<dyn Target>> {
        Some(Arc::<QpCore>::clone(&qp.core))
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
        send: impl Into<Lone<dyn RawSendQueue>>,
        recv: impl Into<Lone<dyn RawRecvQueue>>,
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
            cap,
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
pub struct QueryQp(());

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
            cap,
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
        self.core.cap
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
        Request::new(&self.core, QueryQp(()))
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

    /// INIT to RTR of a queue pair for datagrams, which needs to know nobody.
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
        destroy(self, false)
    }

    /// As [`Qp::destroy`], but waits for the last attachment instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn destroy_when_idle(self) -> Request<'static, DestroyQp> {
        destroy(self, true)
    }
}
