//! Handles of targets in several programs: questions, answers, events, and the queue pair that sends them.

use std::ops::Range;

use verbs_core::sync::Arc;
use verbs_core::xrcd::XrcdName;
use verbs_core::{Error, EventType, QpAttr, QpType, Qpn};

use super::state::{Ends, Out, Place, SharedTarget, program_of};
use crate::clock::Instant;
use crate::effects::{Effect, Effects};
use crate::engine::Due;
use crate::link::door_of;
use crate::port::Port;
use crate::port::xrc::{NO_QUEUES, missing};
use crate::qp::control::{retire, visited};
use crate::qp::worker::packet_qp::PacketQp;
use crate::qp::{Init, QueuePair};
use crate::queue::base::limits::PORT;
use crate::queue::cq::CqRing;
use crate::wire::target::{About, TargetMessage};

/// The queue pair has to do with other programs from now on.
pub(super) fn share(qp: &QueuePair, exchange: &mut PacketQp, place: Place) {
    exchange.shared = Some(Box::new(SharedTarget::new(place)));
    qp.worker.share();
}

/// What the messenger has to send now.
pub(super) fn collect_messages(
    qp: &Arc<QueuePair>,
    exchange: &mut PacketQp,
    now: Instant,
    effects: &mut Effects,
) {
    let Some(shared) = exchange.shared.as_deref_mut() else {
        return;
    };
    if !matches!(shared.place, Place::Messenger) {
        return;
    }
    let due = qp.port.xrc.opened.due(now);
    let from = door_of(qp.qpn).unwrap_or(qp.qpn);
    let letters = due.letters.into_iter();
    shared
        .out
        .extend(letters.map(|(to, message)| Out::Message(Ends { from, to }, message)));
    if !due.ended.is_empty() {
        effects.add_all(due.ended.into_iter().map(Effect::Run));
    }
    if let Some(at) = due.call {
        let me = Arc::clone(qp) as Arc<dyn Due>;
        let _ = qp.port.engine.at(at, me, 0);
    }
}

/// The queue pair that sends messages about targets that are not here.
pub(super) fn messenger(port: &Port) -> Option<Arc<QueuePair>> {
    port.link.lock().of(port.lid, port.xrc.opened.messenger()?)
}

/// Sends the messages that wait. Called outside any pin.
pub(crate) fn send_messages(port: &Port) {
    if let Some(messenger) = messenger(port) {
        messenger.kick();
    }
}

/// Whether a number that no queue pair of the port has may be that of another program's target.
pub(crate) fn may_be_elsewhere(port: &Port, qpn: Qpn) -> bool {
    is_shared(port) && program_of(qpn.value()).is_some()
}

/// Whether other programs reach the port about targets.
pub(super) fn is_shared(port: &Port) -> bool {
    port.xrc.opened.messenger().is_some()
}

/// From now on, other programs reach the port about targets.
///
/// # Errors
/// [`Error::DeviceRemoved`], [`Error::NoMemory`].
pub(crate) fn share_targets(
    port: &Arc<Port>,
    numbers: &[Range<u32>],
    ring: &Arc<CqRing>,
) -> Result<(), Error> {
    let init = Init {
        port: Arc::clone(port),
        qp_type: QpType::Ud,
        blocks_own_multicast: false,
        low_latency: false,
        pd: 0,
        cap: NO_QUEUES,
        srq: None,
        sq_sig_all: false,
        send_cq: Arc::clone(ring),
        recv_cq: Arc::clone(ring),
    };
    let make = |qpn| QueuePair::new(qpn, init);
    let messenger = port.link.lock().enter(port.lid, numbers, make);
    let messenger = messenger.ok_or(Error::DeviceRemoved)?;
    let attr = QpAttr {
        qkey: Some(TargetMessage::QKEY),
        pkey_index: Some(0),
        port: Some(PORT),
        ..QpAttr::default()
    };
    visited(&messenger, &attr).inspect_err(|_| {
        port.link.lock().leave(port.lid, messenger.qpn);
    })?;
    if let Some(exchange) = messenger.worker.exchange() {
        share(&messenger, &mut exchange.lock(), Place::Messenger);
    }
    let first = port.link.draw_psn().value();
    if !port.xrc.opened.set_messenger(messenger.qpn, first) {
        // Another thread was faster.
        port.link.lock().leave(port.lid, messenger.qpn);
        retire(&messenger);
    }
    Ok(())
}

/// An event of a target is told to the programs that have opened it.
pub(crate) fn tell_holders(qp: &QueuePair, event: EventType) {
    let opened = &qp.port.xrc.opened;
    let holders = opened.holders(qp.qpn);
    if holders.is_empty() {
        return;
    }
    for (door, number) in holders {
        let message = TargetMessage {
            target: qp.qpn,
            visit: number,
            about: About::Event(event),
        };
        opened.say(door, message);
    }
    send_messages(&qp.port);
}

/// A message about a handle of a target. Returns the messenger if there is an answer.
pub(super) fn about_handle(
    port: &Arc<Port>,
    (target, number, from): (Qpn, u32, Qpn),
    about: &About,
    effects: &mut Effects,
) -> Option<Arc<QueuePair>> {
    let opened = &port.xrc.opened;
    let by = (from, number);
    let answer = match about {
        About::Open(name) => About::Opened(open(port, target, by, *name)),
        About::Close => {
            if let Some(orphan) = opened.release(target, by) {
                end_orphan(port, orphan, effects);
            }
            About::Closed
        }
        About::Opened(is_open) => {
            let (args, pending, remote) = opened.answered(target, number)?;
            let (home, is_open) = (Arc::clone(port), *is_open);
            effects.add(Effect::Run(Box::new(move || {
                if !is_open {
                    return pending.complete(Err(missing()));
                }
                home.xrc.opened.enter(&remote);
                let handle = args.build(NO_QUEUES, Box::new(remote));
                home.xrc.add_handle(target, handle.target());
                pending.complete(Ok(handle));
            })));
            return messenger(port);
        }
        About::Closed => {
            opened.closed(target, number);
            return messenger(port);
        }
        About::Event(event) => {
            if !opened.has_handle(target, number) {
                return None;
            }
            let (owners, event) = (port.xrc.owners(target), *event);
            let job = move || owners.iter().for_each(|core| event.raise_for(core));
            effects.add(Effect::Run(Box::new(job)));
            return messenger(port);
        }
        _ => return None,
    };
    let message = TargetMessage {
        target,
        visit: number,
        about: answer,
    };
    opened.say(from, message);
    messenger(port)
}

/// Another program opens the target. False if it is none of this port's in that domain.
pub(super) fn open(port: &Port, target: Qpn, by: (Qpn, u32), name: XrcdName) -> bool {
    let found = port.link.lock().of(port.lid, target);
    let found = found.filter(|qp| qp.qp_type == QpType::XrcRecv && !port.xrc.is_visitor(target));
    let domain = found.and_then(|qp| port.xrc.with_number(qp.pd));
    let domain = domain.filter(|domain| domain.name == Some(name));
    domain.is_some_and(|domain| port.xrc.opened.hold(target, by, &domain))
}

/// Nobody has the target open any longer.
pub(super) fn end_orphan(port: &Port, target: Qpn, effects: &mut Effects) {
    let mut links = port.link.lock();
    if let Some(qp) = links.of(port.lid, target) {
        links.leave(port.lid, target);
        effects.add(Effect::Run(Box::new(move || retire(&qp))));
    }
}
