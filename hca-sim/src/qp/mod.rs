//! Queue pairs: their state, and the control verbs that change it.
//!
//! The state is part of the queue pair's touch word, so that posts see it under their pin and control verbs know which
//! threads to wait for. It changes under the lock of the link, on which the fit of two queue pairs is decided
//! ([`crate::direct::path`]).
//!
//! A verb that takes something away from posters (to ERR, RESET or SQD, fewer rights, destroy) changes
//! the word, kills the direct paths, and completes when the grace period is over and the rings are flushed
//! (K11).

pub(crate) mod check;
mod control;
pub(crate) mod cq_resize;
mod event;
#[cfg(all(test, verbs_loom))]
pub(crate) mod models;
pub(crate) mod pairing;
mod recall;
pub(crate) mod stats;
pub(crate) mod worker;

use std::fmt;
use std::ops::Deref;

use verbs_core::mem::{Pin, TouchWord, Touched, Who};
use verbs_core::qp::QpCore;
use verbs_core::slab_alloc::SlabArc;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32,
    Ordering::{Acquire, Relaxed},
};
use verbs_core::sync::{Arc, Mutex, OnceLock, Weak};
use verbs_core::{LiveCap, PostError, QpAttr, QpCap, QpState, QpType, Qpn};

use crate::direct::path::{DirectPath, Door};
use crate::effects::Finish;
use crate::link;
use crate::port::xrc::{Domain, NO_QUEUES};
use crate::port::{Driver, Port};
use crate::qp::worker::Worker;
use crate::queue::base::events::QpEvents;
use crate::queue::base::word::{QpWord, flag};
use crate::queue::cq::CqRing;
use crate::queue::cqe_inline::Scatter;

use crate::queue::recv::RecvRing;
use crate::queue::send::SendRing;
use crate::queue::srq::SharedReceives;
use crate::wire::Service;

/// The ports and queue pairs on the link of a queue pair.
pub(crate) type Links = link::Links<QueuePair>;

/// The part of a queue pair that all its users share.
pub(crate) struct QueuePair {
    record: Record,
    pub(crate) worker: Worker,
    pub(crate) control: Mutex<Control>,
    pub(crate) me: Weak<Self>,
}

/// Users of a queue pair read its record through it.
impl Deref for QueuePair {
    type Target = Record;

    #[inline]
    fn deref(&self) -> &Record {
        &self.record
    }
}

/// What posters, pollers and the peer read of a queue pair, without a lock. Control verbs change its words, under the lock of the
/// link.
pub(crate) struct Record {
    pub(crate) gate: SlabArc<QpWord>,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    /// The protection domain. For a target of extended reliable connections, their domain: memory is checked against
    /// the queue that a request names.
    pub(crate) pd: u32,
    pub(crate) cap: LiveCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) blocks_own_multicast: bool,
    pub(crate) port: Arc<Port>,
    pub(crate) send_cq: Arc<CqRing>,
    pub(crate) recv_cq: Arc<CqRing>,
    /// Where its receives come from, if not from its own queue.
    pub(crate) srq: Option<Arc<SharedReceives>>,
    counts: stats::QpCounts,
    /// Allocated by the first transition to INIT.
    sends: OnceLock<SlabArc<SendRing>>,
    recvs: OnceLock<SlabArc<RecvRing>>,
    /// How often it was reset.
    resets: AtomicU32,
    /// How often its attributes changed.
    changes: AtomicU32,
    /// A message has arrived since it was in RESET.
    pub(crate) contacted: AtomicBool,
    /// The object that its events concern; set before the handle is given out.
    pub(crate) core: OnceLock<Weak<QpCore>>,
}

/// The state that control verbs change, under the lock of the link. Its own lock is held only while a part of it is copied
/// or replaced, and its holder takes no other lock: so posts may take it.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// `None` as long as none was ever set. In RESET they are the default.
    pub(crate) attr: Option<Box<QpAttr>>,
    /// The direct path to the peer.
    pub(crate) out: Option<SlabArc<DirectPath>>,
    /// Verbs that complete when the grace period is over and the rings are flushed.
    pub(crate) finish: Vec<Finish>,
    /// SQD was entered, and the client waits for the event that the send queue has drained.
    pub(crate) tell_drained: bool,
    /// A modify has moved it to its alternate path.
    pub(crate) tell_migrated: bool,
    /// ERR was entered on a shared receive queue, and the client has not been informed yet that no further receives are
    /// taken.
    pub(crate) tell_last_wqe: bool,
    /// It counts among its port's queue pairs for low latency.
    low_latency: bool,
}

impl Control {
    /// The attributes that were set.
    pub(crate) fn attr(&self) -> QpAttr {
        self.attr.as_deref().copied().unwrap_or_default()
    }
}

/// The parameters of a new queue pair.
pub(crate) struct Init {
    pub(crate) port: Arc<Port>,
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) blocks_own_multicast: bool,
    /// While it exists, the thread that receives its packets polls before it sleeps.
    pub(crate) low_latency: bool,
    pub(crate) send_cq: Arc<CqRing>,
    pub(crate) recv_cq: Arc<CqRing>,
    pub(crate) srq: Option<Arc<SharedReceives>>,
}

impl Init {
    /// Those of a target, here or as a visitor: it has no queues of its own.
    pub(crate) fn target(port: &Arc<Port>, domain: &Domain) -> Self {
        Self {
            port: Arc::clone(port),
            qp_type: QpType::XrcRecv,
            pd: domain.number,
            cap: NO_QUEUES,
            sq_sig_all: false,
            blocks_own_multicast: false,
            low_latency: false,
            send_cq: Arc::clone(&domain.ring),
            recv_cq: Arc::clone(&domain.ring),
            srq: None,
        }
    }
}

const fn tag_of(state: QpState) -> u32 {
    let takes = matches!(
        state,
        QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    );
    state as u32 | if takes { flag::TAKES_RECVS } else { 0 }
}

fn state_of(tag: u32) -> QpState {
    let number = (tag & flag::STATE) as usize;
    QpState::ALL.get(number).copied().unwrap_or(QpState::Err)
}

impl Record {
    /// That of a queue pair in RESET.
    fn new(qpn: Qpn, init: Init) -> Self {
        Self {
            gate: init.port.slabs.arc_or_abort(QpWord {
                word: TouchWord::new(tag_of(QpState::Reset)),
                asked: AtomicU8::new(0),
                shrunk: AtomicBool::new(false),
            }),
            qpn,
            qp_type: init.qp_type,
            pd: init.pd,
            cap: LiveCap::new(&init.cap),
            sq_sig_all: init.sq_sig_all,
            blocks_own_multicast: init.blocks_own_multicast,
            port: init.port,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            counts: stats::QpCounts::default(),
            sends: OnceLock::new(),
            recvs: OnceLock::new(),
            resets: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            contacted: AtomicBool::new(false),
            core: OnceLock::new(),
        }
    }

    pub(crate) fn set_core(&self, core: &Arc<QpCore>) {
        // The queue pair is new, so this has not been set before.
        let _ = self.core.set(Arc::downgrade(core));
    }

    /// This queue pair, for checks of memory.
    pub(crate) fn who(&self) -> Who {
        Who {
            pd: self.pd,
            qpn: self.qpn.value(),
        }
    }

    /// The service that its packets belong to.
    pub(crate) fn service(&self) -> Service {
        match self.qp_type {
            QpType::Uc => Service::Uc,
            QpType::Ud | QpType::Gsi | QpType::Smi => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
            _ => Service::Rc,
        }
    }

    /// Whether it is queue pair 0 or 1.
    pub(crate) fn is_special(&self) -> bool {
        matches!(self.qp_type, QpType::Smi | QpType::Gsi)
    }

    /// Whether its messages are sent as packets, and never placed directly.
    pub(crate) fn goes_as_packets(&self) -> bool {
        self.port.is_wire() || self.qp_type != QpType::Rc
    }

    /// The driver of its machine, if its messages are sent as packets.
    pub(crate) fn driver(&self) -> Option<&Driver> {
        self.port.driver().filter(|_| self.goes_as_packets())
    }

    pub(crate) fn state(&self) -> QpState {
        state_of(self.gate.word.tag())
    }

    pub(crate) fn send_ring(&self) -> Option<&SlabArc<SendRing>> {
        self.sends.get()
    }

    pub(crate) fn recv_ring(&self) -> Option<&SlabArc<RecvRing>> {
        self.recvs.get()
    }

    pub(crate) fn resets(&self) -> u32 {
        self.resets.load(Acquire)
    }

    /// How often its attributes changed.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Acquire)
    }

    /// Which threads may place messages on it.
    pub(crate) fn door(&self) -> Door {
        if self.state() == QpState::Rtr && !self.contacted.load(Acquire) {
            Door::First
        } else if self.port.link.is_bare() {
            Door::Direct
        } else {
            Door::Machine
        }
    }

    /// Whether sends can be posted, and the state.
    pub(crate) fn check_post_send(&self) -> Result<QpState, PostError> {
        let state = refusal(self.gate.word.tag())?;
        if state.refuses_sends() {
            Err(PostError::State(state))
        } else {
            Ok(state)
        }
    }

    /// Whether receives can be posted.
    pub(crate) fn check_post_recv(&self) -> Result<(), PostError> {
        match refusal(self.gate.word.tag())? {
            QpState::Reset => Err(PostError::State(QpState::Reset)),
            _ => Ok(()),
        }
    }

    /// As [`Record::check_post_send`], valid until the pin is left.
    pub(crate) fn enter_to_post_send(&self, pin: &Pin) -> Result<(), PostError> {
        loop {
            let tag = self.gate.word.tag();
            let state = refusal(tag)?;
            if state.refuses_sends() {
                return Err(PostError::State(state));
            }
            if self.gate.word.admits(pin, TouchWord::TAG, tag) {
                return Ok(());
            }
        }
    }

    /// As [`Record::check_post_recv`], valid until the pin is left.
    pub(crate) fn enter_to_post_recv(&self, pin: &Pin) -> Result<(), PostError> {
        loop {
            let tag = self.gate.word.tag();
            if refusal(tag)? == QpState::Reset {
                return Err(PostError::State(QpState::Reset));
            }
            if self.gate.word.admits(pin, TouchWord::TAG, tag) {
                return Ok(());
            }
        }
    }

    /// The state, if packets may be received and sent in it; it does not change until the pin is left.
    #[inline]
    pub(crate) fn enter_to_exchange(&self, pin: &Pin) -> Option<QpState> {
        loop {
            let tag = self.gate.word.tag();
            let state = refusal(tag).ok()?;
            if !takes_packets(state) {
                return None;
            }
            if self.gate.word.admits(pin, TouchWord::TAG, tag) {
                return Some(state);
            }
        }
    }
}

/// Whether packets may be received and sent in that state.
const fn takes_packets(state: QpState) -> bool {
    matches!(
        state,
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    )
}

/// The state, if anything can be posted at all.
fn refusal(tag: u32) -> Result<QpState, PostError> {
    if tag & flag::REMOVED != 0 {
        return Err(PostError::DeviceRemoved);
    }
    if tag & flag::GONE != 0 {
        return Err(PostError::Destroyed);
    }
    Ok(state_of(tag))
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.recv_cq.count_receiver(false);
        if self.control.lock().low_latency {
            self.port.low_latency.fetch_sub(1, Relaxed);
        }
    }
}

impl QueuePair {
    /// A queue pair in RESET.
    pub(crate) fn new(qpn: Qpn, init: Init) -> Arc<Self> {
        let control = Control {
            low_latency: init.low_latency,
            ..Control::default()
        };
        init.recv_cq.count_receiver(true);
        init.port
            .low_latency
            .fetch_add(u32::from(init.low_latency), Relaxed);
        Arc::new_cyclic(|me| Self {
            record: Record::new(qpn, init),
            worker: Worker::default(),
            control: Mutex::new(control),
            me: Weak::clone(me),
        })
    }

    /// This queue pair, for callers that know no more of it than this trait.
    pub(crate) fn events(self: &Arc<Self>) -> Arc<dyn QpEvents> {
        Arc::clone(self) as Arc<dyn QpEvents>
    }

    /// The direct path to the peer, if both fit.
    pub(crate) fn direct_path(&self) -> Option<SlabArc<DirectPath>> {
        self.control
            .lock()
            .out
            .clone()
            .filter(|direct| direct.is_alive())
    }

    /// Brings the direct paths between this queue pair and its peer up to date.
    pub(crate) fn repair(self: &Arc<Self>, links: &Links) -> Touched {
        let attr = self.control.lock().attr();
        let peer = pairing::named_peer(links, &attr);
        pairing::repair_both(self, peer, links)
    }

    /// What is needed to scatter its inline CQEs, once it has been in INIT.
    pub(crate) fn scatter(self: &Arc<Self>) -> Option<Scatter> {
        let ring = self.recv_ring()?;
        Some(Scatter {
            qpn: self.qpn,
            pd: self.pd,
            entries: ring.entries.clone(),
            ring: ring.clone(),
            mrs: Arc::clone(&self.port.mrs),
            qp: Arc::downgrade(self) as Weak<dyn QpEvents>,
        })
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let closing = self.worker.closing.load(Relaxed);
        f.debug_struct("QueuePair")
            .field("qpn", &self.qpn)
            .field("state", &self.state())
            .field("closing", &closing)
            .finish_non_exhaustive()
    }
}
