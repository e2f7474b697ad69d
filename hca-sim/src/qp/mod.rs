//! Queue pairs: their state, and the control verbs that change it.
//!
//! The state is part of the queue pair's touch word, so that posts see it under their pin and control
//! verbs know whom to wait for. It changes under the lock of the link, on which the fit of two queue
//! pairs is decided ([`crate::direct::path`]).
//!
//! A verb that takes something away from posters (to ERR, RESET or SQD, fewer rights, destroy) changes
//! the word, kills the direct paths, and completes when the grace period is over and the rings are flushed
//! (K11).

pub(crate) mod check;
mod control;
pub(crate) mod cq_resize;
pub(crate) mod effects;
mod event;
pub(crate) mod finish;
#[cfg(all(test, verbs_loom))]
pub(crate) mod models;
pub(crate) mod pairing;
mod recall;
pub(crate) mod worker;

use std::fmt;

use verbs_core::mem::{Pin, TouchWord, Who};
use verbs_core::qp::QpCore;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32,
    Ordering::{Acquire, Relaxed},
};
use verbs_core::sync::{Arc, Mutex, OnceLock, Weak};
use verbs_core::yard::Common;
use verbs_core::{PostError, QpAttr, QpCap, QpState, QpType, Qpn};

use crate::direct::path::DirectPath;
use crate::port::{Driver, Port};
use crate::qp::finish::Finish;
use crate::qp::worker::Worker;
use crate::queue::base::events::QpEvents;
use crate::queue::base::word::{QpWord, flag};
use crate::queue::cq::CqRing;

use crate::queue::recv::RecvRing;
use crate::queue::send::SendRing;
use crate::queue::srq::SharedReceives;
use crate::wire::Service;

/// What all parts of a queue pair share.
pub(crate) struct QueuePair {
    pub(crate) gate: Common<QpWord>,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    /// The protection domain. Of a target of extended reliable connections, the domain of those: memory is
    /// checked against the queue that a request names.
    pub(crate) pd: u32,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) blocks_own_multicast: bool,
    pub(crate) port: Arc<Port>,
    pub(crate) send_cq: Arc<CqRing>,
    pub(crate) recv_cq: Arc<CqRing>,
    /// Where its receives come from, if not from its own queue.
    pub(crate) srq: Option<Arc<SharedReceives>>,
    pub(crate) worker: Worker,
    pub(crate) control: Mutex<Control>,
    pub(crate) me: Weak<Self>,
    /// Allocated by the first transition to INIT.
    sends: OnceLock<Common<SendRing>>,
    recvs: OnceLock<Common<RecvRing>>,
    /// How often it was reset.
    resets: AtomicU32,
    /// How often its attributes changed.
    changes: AtomicU32,
    /// A message came since it was in RESET.
    pub(crate) contacted: AtomicBool,
    /// Whom its events are about; set before the handle is given out.
    pub(crate) core: OnceLock<Weak<QpCore>>,
}

/// What control verbs change. Taken under the lock of the link, or alone; never while anything else is
/// waited for.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// `None` as long as it has none, which is all that is in RESET.
    attr: Option<Box<QpAttr>>,
    /// The way into the peer.
    pub(crate) out: Option<Common<DirectPath>>,
    /// Verbs that complete when the grace period is over and the rings are flushed.
    pub(crate) finish: Vec<Finish>,
    /// SQD was entered, and the client wants to hear when the send queue has drained.
    pub(crate) tell_drained: bool,
    /// ERR was entered on a shared receive queue, and the client has not heard yet that no more
    /// receives are taken.
    pub(crate) tell_last_wqe: bool,
}

impl Control {
    /// The attributes, those that were set.
    pub(crate) fn attr(&self) -> QpAttr {
        self.attr.as_deref().copied().unwrap_or_default()
    }
}

/// What a new queue pair is made from.
pub(crate) struct Init {
    pub(crate) port: Arc<Port>,
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    pub(crate) blocks_own_multicast: bool,
    pub(crate) send_cq: Arc<CqRing>,
    pub(crate) recv_cq: Arc<CqRing>,
    pub(crate) srq: Option<Arc<SharedReceives>>,
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

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.recv_cq.count_receiver(false);
    }
}

impl QueuePair {
    /// A queue pair in RESET.
    pub(crate) fn new(qpn: Qpn, init: Init) -> Arc<Self> {
        let Init {
            port,
            qp_type,
            pd,
            cap,
            sq_sig_all,
            blocks_own_multicast,
            send_cq,
            recv_cq,
            srq,
        } = init;
        recv_cq.count_receiver(true);
        Arc::new_cyclic(|me| Self {
            gate: port.yard.common_or_abort(QpWord {
                word: TouchWord::new(tag_of(QpState::Reset)),
                asked: AtomicU8::new(0),
            }),
            qpn,
            qp_type,
            pd,
            cap,
            sq_sig_all,
            blocks_own_multicast,
            port,
            send_cq,
            recv_cq,
            srq,
            worker: Worker::default(),
            control: Mutex::new(Control::default()),
            me: Weak::clone(me),
            sends: OnceLock::new(),
            recvs: OnceLock::new(),
            resets: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            contacted: AtomicBool::new(false),
            core: OnceLock::new(),
        })
    }

    /// This queue pair, for those who know it by nothing else.
    pub(crate) fn events(self: &Arc<Self>) -> Arc<dyn QpEvents> {
        Arc::clone(self) as Arc<dyn QpEvents>
    }

    /// This queue pair, for looks at memory.
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

    /// Whether its messages go as packets, and are never placed directly.
    pub(crate) fn goes_as_packets(&self) -> bool {
        self.port.is_wire() || self.qp_type != QpType::Rc
    }

    /// What drives its machine, if its messages go as packets.
    pub(crate) fn driver(&self) -> Option<&Driver> {
        self.port.driver().filter(|_| self.goes_as_packets())
    }

    pub(crate) fn state(&self) -> QpState {
        state_of(self.gate.word.tag())
    }

    pub(crate) fn send_ring(&self) -> Option<&Common<SendRing>> {
        self.sends.get()
    }

    pub(crate) fn recv_ring(&self) -> Option<&Common<RecvRing>> {
        self.recvs.get()
    }

    pub(crate) fn resets(&self) -> u32 {
        self.resets.load(Acquire)
    }

    /// How often its attributes changed.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Acquire)
    }

    /// The way into the peer, if both fit.
    pub(crate) fn direct_path(&self) -> Option<Common<DirectPath>> {
        self.control
            .lock()
            .out
            .clone()
            .filter(|land| land.is_alive())
    }

    /// A receive was posted that the peer's machine waits for.
    #[cold]
    pub(crate) fn call_sender(&self) {
        let attr = self.control.lock().attr();
        let peer = self.named_peer(&self.port.link.lock(), &attr).cloned();
        if let Some(peer) = peer {
            peer.kick();
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

    /// As [`QueuePair::check_post_send`], valid until the pin is left.
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

    /// As [`QueuePair::check_post_recv`], valid until the pin is left.
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

    /// The state, if packets may come and go in it; it stays that until the pin is left.
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

/// Whether packets may come in that state, or go.
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
