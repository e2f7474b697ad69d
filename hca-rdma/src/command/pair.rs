//! Queue pairs and their attachments to groups.

use rustix::io::Errno;
use verbs_core::mcast::{AttachMcast, McastCore};
use verbs_core::pd::PdCore;
use verbs_core::qp::{CreateQp, ModifyQp, QpCore};
use verbs_core::qp_state::check;
use verbs_core::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Release},
};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{
    Attr, Error, Mcast, Qp, QpAttr, QpAttrMask, QpInfo, QpState as State, QpType, Qpn, Target, Why,
};

use super::{at_most, device, memory, queue};
use crate::convert::{self, error};
use crate::queue::{Limits, ReceiveQueue, SendQueue};
use crate::shared::Shared;
use crate::slot::Slot;
use crate::sys;

/// What is kept with a queue pair.
pub(crate) struct QpState {
    pub(crate) qp: Arc<Slot<sys::Qp>>,
    /// Names it in asynchronous events.
    address: usize,
    /// The state that it was last known to be in: posting looks here.
    state: Arc<AtomicU8>,
    /// The attributes that have been set since it was in RESET.
    set: Mutex<QpAttrMask>,
}

impl QpState {
    fn state(&self) -> State {
        convert::qp_state(self.state.load(Acquire).into())
    }

    fn is_now(&self, state: State) {
        self.state.store(state as u8, Release);
    }

    /// Asks in which state it is: errors change that unasked.
    fn ask(&self, qp: &sys::Qp) -> Result<State, Error> {
        let (attr, _) = qp.query().map_err(error)?;
        let state = convert::qp_state(attr.qp_state);
        self.is_now(state);
        Ok(state)
    }
}

fn state(qp: &QpCore) -> Result<&QpState, Error> {
    qp.private::<QpState>().ok_or(Error::Closing)
}

pub(super) fn check_create(nic: &Shared, args: &CreateQp) -> Result<(), Error> {
    let attr = &nic.attr;
    if !attr.qp_types.contains(&args.qp_type) {
        return Err(Error::Unsupported(Attr::QpType));
    }
    if args.low_latency {
        return Err(Error::Unsupported(Attr::LowLatency));
    }
    if args.block_multicast_loopback {
        return Err(Error::Unsupported(Attr::Verb));
    }
    let cap = &args.cap;
    at_most(Attr::MaxSendWr, cap.max_send_wr, attr.max_qp_wr)?;
    at_most(Attr::MaxSendSge, cap.max_send_sge, attr.max_sge)?;
    at_most(
        Attr::MaxInlineData,
        cap.max_inline_data,
        attr.max_inline_data,
    )?;
    if args.srq().is_some() {
        return Ok(());
    }
    at_most(Attr::MaxRecvWr, cap.max_recv_wr, attr.max_qp_wr)?;
    at_most(Attr::MaxRecvSge, cap.max_recv_sge, attr.max_sge)
}

pub(super) fn create(nic: &Shared, args: CreateQp, pd: &PdCore) -> Result<Qp, Error> {
    let domain = Arc::clone(memory::domain(pd)?);
    let pd = domain.pd().get()?;
    let mut cap = args.cap;
    let srq = args.srq().map(|srq| queue::raw_srq(srq)).transpose()?;
    let uses_srq = srq.is_some();
    if uses_srq {
        // Its own receive queue has no use, so its sizes mean nothing.
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let config = sys::QpConfig {
        send_cq: queue::raw_cq(args.send_cq())?,
        recv_cq: queue::raw_cq(args.recv_cq())?,
        srq,
        cap,
        qp_type: args.qp_type as u32,
        sq_sig_all: args.sq_sig_all,
    };
    let (qp, granted) = sys::Qp::create(&pd, config).map_err(|errno| {
        nic.counts
            .qps
            .explain(error(errno), Attr::MaxQp, nic.attr.max_qp)
    })?;
    nic.counts.qps.up();
    let (number, address) = (Qpn::new(qp.number()), qp.address());
    let (qp, known) = (Arc::new(Slot::new(qp)), Arc::new(AtomicU8::new(0)));
    let limits = Limits {
        qp_type: args.qp_type,
        cap: granted,
        max_msg_sz: nic.max_msg_sz,
        removed: Arc::clone(&nic.removed),
        state: Arc::clone(&known),
    };
    let send = SendQueue::new(Arc::clone(&qp), limits.clone(), domain);
    let recv = ReceiveQueue::new(Arc::clone(&qp), limits, uses_srq);
    let state = QpState {
        qp,
        address,
        state: known,
        set: Mutex::new(QpAttrMask::empty()),
    };
    let handle = args.build(
        number,
        granted,
        Box::new(state),
        Box::new(send),
        Box::new(recv),
    );
    nic.name(address, handle.target());
    Ok(handle)
}

/// The values of the attributes, as far as they can be wrong for every queue pair.
pub(super) fn check_modify(nic: &Shared, args: &ModifyQp) -> Result<(), Error> {
    let attr = &args.attr;
    if let Some(port) = attr.port {
        device::check_port(nic, port)?;
    }
    for (name, value, max) in [
        (Attr::Timeout, attr.timeout, 31),
        (Attr::RetryCnt, attr.retry_cnt, 7),
        (Attr::RnrRetry, attr.rnr_retry, 7),
        (Attr::MinRnrTimer, attr.min_rnr_timer, 31),
    ] {
        at_most(name, value.unwrap_or(0).into(), max)?;
    }
    convert::qp_attr_out(attr).map(drop)
}

/// Changes attributes. What the table of transitions forbids is refused by its name and not by an error number.
pub(super) fn modify(attr: &QpAttr, core: &QpCore) -> Result<(), Error> {
    let state = state(core)?;
    let qp = state.qp.get()?;
    let mask = attr.mask();
    let legal = |from: State| {
        let to = attr.state.unwrap_or(from);
        check(from, to, core.qp_type(), mask).map_err(Error::Transition)
    };
    let mut from = state.state();
    if legal(from).is_err() {
        from = state.ask(&qp)?;
        legal(from)?;
    }
    let c = convert::qp_attr_out(attr)?;
    if let Err(errno) = qp.modify(c, mask) {
        if errno == Errno::INVAL {
            // The queue pair may have gone to ERR meanwhile.
            legal(state.ask(&qp)?)?;
        }
        return Err(error(errno));
    }
    let to = attr.state.unwrap_or(from);
    state.is_now(to);
    let mut set = state.set.lock();
    match to {
        State::Reset => *set = QpAttrMask::empty(),
        _ => *set |= mask,
    }
    Ok(())
}

pub(super) fn query(core: &QpCore) -> Result<Box<QpInfo>, Error> {
    let kept = state(core)?;
    let (attr, sq_sig_all) = kept.qp.get()?.query().map_err(error)?;
    let state = convert::qp_state(attr.qp_state);
    kept.is_now(state);
    let set = *kept.set.lock() - QpAttrMask::CUR_STATE;
    let shown = verbs_abi::attr_of(&attr, set);
    Ok(Box::new(QpInfo {
        state,
        attr: QpAttr {
            state: Some(state),
            ..shown
        },
        cap: core.cap(),
        sq_sig_all,
        sq_draining: attr.sq_draining != 0,
    }))
}

pub(super) fn destroy(nic: &Shared, core: &QpCore) {
    if let Ok(state) = state(core) {
        nic.forget(state.address);
        state.qp.destroy();
    }
    nic.counts.qps.down();
}

/// Only datagram queue pairs can be attached (IBTA vol. 1, 10.5.2.1).
pub(super) fn check_attach(
    nic: &Shared,
    command: &verbs_core::Command<'_, AttachMcast>,
) -> Result<(), Error> {
    if nic.attr.max_mcast_grp == 0 {
        return Err(Error::Unsupported(Attr::Verb));
    }
    match command.target().qp_type() {
        QpType::Ud => Ok(()),
        _ => Err(Error::Mismatch {
            attr: Attr::QpType,
            why: Why::NotDatagram,
        }),
    }
}

pub(super) fn attach(nic: &Shared, args: AttachMcast, core: &QpCore) -> Result<Mcast, Error> {
    let (counts, max) = (&nic.counts.mcasts, nic.attr.max_mcast_qp_attach);
    let qp = state(core)?.qp.get()?;
    qp.attach(args.mgid, args.mlid)
        .map_err(|errno| counts.explain(error(errno), Attr::MaxMcast, max))?;
    counts.up();
    Ok(args.build(nic.number() as u32, Box::new(())))
}

pub(super) fn detach(nic: &Shared, core: &McastCore) {
    let qp = state(core.qp()).and_then(|state| state.qp.get());
    if let Ok(Err(errno)) = qp.map(|qp| qp.detach(core.mgid(), core.mlid())) {
        tracing::warn!(%errno, "a queue pair could not be detached; its destroy does that");
    }
    nic.counts.mcasts.down();
}
