//! A target of another program that visits this one.

use verbs_core::mem::pin;
use verbs_core::sync::Arc;
use verbs_core::{Av, EventType, GlobalRoute, QpAttr, QpState, Qpn};

use super::handles::{messenger, share};
use super::state::{Ends, Guest, Place, SharedTarget, exchanged, report_now};
use crate::clock::Instant;
use crate::effects::{Effect, Effects};
use crate::link::door_of;
use crate::port::Port;
use crate::qp::control::{retire, visited};
use crate::qp::worker::packet_qp::PacketQp;
use crate::qp::{Init, QueuePair};
use crate::queue::base::limits::PORT;
use crate::transport::rc::Elsewhere;
use crate::transport::{Events, Incoming};
use crate::wire::target::{About, Begin, Phase, Recall, TargetMessage};

/// The visitor with that number.
fn visitor(port: &Port, target: Qpn) -> Option<Arc<QueuePair>> {
    let is_one = port.xrc.is_visitor(target);
    is_one.then(|| port.link.lock().of(port.lid, target))?
}

/// A visit begins, or is announced again. Returns the visitor.
pub(super) fn begin(
    port: &Arc<Port>,
    (target, visit, ends): (Qpn, u32, Ends),
    begin: &Begin,
    effects: &mut Effects,
) -> Option<Arc<QueuePair>> {
    if door_of(target) != Some(ends.to) {
        return None;
    }
    let known = visitor(port, target);
    if let Some(qp) = known {
        match welcome(&qp, (visit, ends), begin) {
            true => return Some(qp),
            // It is another connection, or has failed.
            false => dismiss(port, &qp, effects),
        }
    }
    let Some(qp) = new_visitor(port, target, begin) else {
        let standing = Box::new(begin.standing.clone());
        let message = TargetMessage {
            target,
            visit,
            about: About::Report(Phase::Refused, standing),
        };
        port.xrc.opened.say(ends.to, message);
        return messenger(port);
    };
    let guest = Guest {
        target,
        ends,
        visit,
        is_here: true,
        recalled: None,
        told: begin.standing.clone(),
        event: None,
    };
    let mut exchange = qp.open_exchange()?;
    exchange.transport.rc()?.go_on_from(&begin.standing);
    share(&qp, &mut exchange, Place::Guest(guest));
    report_now(exchange.shared.as_deref_mut()?, Phase::There);
    drop(exchange);
    Some(qp)
}

/// A visitor that has been here comes again, or for the same visit. False if the queue pair cannot be used for it.
fn welcome(qp: &Arc<QueuePair>, (visit, ends): (u32, Ends), begin: &Begin) -> bool {
    let domain = qp.port.xrc.named(begin.domain);
    let is_same = domain.is_some_and(|domain| domain.number == qp.pd)
        && attr_of(&qp.port, begin).as_ref() == Some(&attributes(qp));
    if qp.state() != QpState::Rts || !is_same {
        return false;
    }
    let Some(mut exchange) = qp.open_exchange() else {
        return false;
    };
    let PacketQp {
        shared: Some(shared),
        transport,
        ..
    } = &mut *exchange
    else {
        return false;
    };
    let Some(guest) = shared.guest() else {
        return false;
    };
    // The program may have several doors.
    guest.ends = ends;
    if guest.visit == visit {
        // The answer was lost.
        let phase = match guest.is_here {
            true => Phase::There,
            false => Phase::Over,
        };
        report_now(shared, phase);
        return true;
    }
    if visit.wrapping_sub(guest.visit).cast_signed() < 0 {
        // An old announcement was overtaken.
        return true;
    }
    let Some(rc) = transport.rc() else {
        return false;
    };
    rc.go_on_from(&begin.standing);
    (guest.visit, guest.is_here, guest.recalled) = (visit, true, None);
    guest.told = begin.standing.clone();
    report_now(shared, Phase::There);
    true
}

/// The attributes that it was made with.
fn attributes(qp: &QueuePair) -> QpAttr {
    QpAttr {
        state: None,
        rq_psn: None,
        ..qp.control.lock().attr()
    }
}

/// The attributes of a visitor. `None` if the port does not have that address or partition.
fn attr_of(port: &Port, begin: &Begin) -> Option<QpAttr> {
    let settings = port.settings();
    let sgid_index = settings.gids.iter().position(|gid| *gid == begin.sgid)?;
    let global = GlobalRoute {
        dgid: begin.dgid,
        sgid_index: u16::try_from(sgid_index).ok()?,
        flow_label: 0,
        hop_limit: begin.hop_limit,
        traffic_class: begin.traffic_class,
    };
    let av = Av {
        global: Some(global),
        port: PORT,
        ..Av::default()
    };
    Some(QpAttr {
        access: Some(begin.access),
        pkey_index: Some(port.pkey_index(begin.pkey)?),
        port: Some(PORT),
        av: Some(av),
        path_mtu: Some(begin.mtu),
        dest_qpn: Some(begin.dest_qpn),
        min_rnr_timer: Some(begin.min_rnr_timer),
        max_dest_rd_atomic: Some(begin.max_dest_rd_atomic),
        ..QpAttr::default()
    })
}

/// A queue pair for a visitor. `None` if the program has not opened its domain, or the port has no room.
fn new_visitor(port: &Arc<Port>, target: Qpn, begin: &Begin) -> Option<Arc<QueuePair>> {
    let domain = port.xrc.named(begin.domain)?;
    let attr = attr_of(port, begin)?;
    if !port.xrc.visits(target) {
        return None;
    }
    let init = Init::target(port, &domain);
    // One of this program's own has that number, unless the home makes no sense.
    let make = || QueuePair::new(target, init);
    let qp = port.link.lock().enter_as(port.lid, target, make);
    let Some(qp) = qp else {
        port.xrc.forget(target);
        return None;
    };
    match visited(&qp, &attr) {
        Ok(()) => Some(qp),
        Err(_) => {
            port.link.lock().leave(port.lid, target);
            port.xrc.forget(target);
            None
        }
    }
}

/// The visitor does not come again.
pub(super) fn dismiss(port: &Arc<Port>, qp: &Arc<QueuePair>, effects: &mut Effects) {
    port.xrc.forget(qp.qpn);
    port.link.lock().leave(port.lid, qp.qpn);
    let qp = Arc::clone(qp);
    effects.add(Effect::Run(Box::new(move || retire(&qp))));
}

/// A request that the home has handed on. Returns the visitor if it has taken it.
pub(super) fn request(
    port: &Arc<Port>,
    packet: &Incoming<'_>,
    now: Instant,
    effects: &mut Effects,
) -> Option<Arc<QueuePair>> {
    let head = exchanged(packet.head)?;
    let qp = visitor(port, head.bth().dest_qpn)?;
    let route = {
        let mut exchange = qp.open_exchange()?;
        let guest = exchange.shared.as_deref_mut()?.guest()?;
        if !guest.is_here || guest.recalled.is_some() {
            return None;
        }
        exchange.route?
    };
    let packet = Incoming {
        src: route.dst,
        dst: route.src,
        head: &head,
        ..*packet
    };
    qp.take_packet(&packet, now, effects).then_some(qp)
}

/// The home recalls the target. Returns the visitor.
pub(super) fn recall(
    port: &Arc<Port>,
    (target, visit): (Qpn, u32),
    recall: Recall,
    now: Instant,
    effects: &mut Effects,
) -> Option<Arc<QueuePair>> {
    let qp = visitor(port, target)?;
    let mut open = qp.open_exchange()?;
    let exchange = &mut *open;
    let path = exchange.path?;
    let guest = exchange.shared.as_deref_mut()?.guest()?;
    if guest.visit != visit {
        return None;
    }
    if !guest.is_here {
        // The answer was lost.
        report_now(exchange.shared.as_deref_mut()?, Phase::Over);
        drop(open);
        return Some(qp);
    }
    let mut events = Events::default();
    let pin = pin();
    let ends = qp.ends(&pin, &path, now)?;
    let rc = exchange.transport.rc()?;
    let asked = rc.asked_elsewhere(&ends, recall, &mut events);
    drop(pin);
    let shared = exchange.shared.as_deref_mut()?;
    match asked {
        Elsewhere::Goes => {
            if let Some(guest) = shared.guest() {
                guest.recalled = Some(recall);
            }
        }
        Elsewhere::Stays => report_now(shared, Phase::Stays),
    }
    let mut machine = qp.worker.machine.lock();
    qp.handle_events(exchange, &mut machine, events, None, effects);
    drop(machine);
    drop(open);
    Some(qp)
}

/// The target takes no more requests: the visitor goes.
pub(super) fn end(
    port: &Arc<Port>,
    (target, visit): (Qpn, u32),
    effects: &mut Effects,
) -> Option<Arc<QueuePair>> {
    let qp = visitor(port, target)?;
    let is_it = {
        let mut exchange = qp.open_exchange()?;
        exchange.shared.as_deref_mut()?.guest()?.visit == visit
    };
    if is_it {
        dismiss(port, &qp, effects);
    }
    None
}

/// An event of a visitor, which only its home can raise.
pub(in crate::qp::worker) fn note_event(exchange: &mut PacketQp, event: Option<EventType>) {
    let guest = exchange.shared.as_deref_mut().and_then(SharedTarget::guest);
    if let Some(guest) = guest {
        guest.event = guest.event.or(event);
    }
}

/// In a round, after the answers: tells the home how the visit is going. `failing`: the visitor is in ERR, or about to be.
pub(super) fn report(exchange: &mut PacketQp, failing: bool) {
    let path = exchange.path;
    let PacketQp {
        shared: Some(shared),
        transport,
        ..
    } = exchange
    else {
        return;
    };
    let (Some(guest), Some(rc), Some(path)) = (shared.guest(), transport.rc(), path) else {
        return;
    };
    if !guest.is_here {
        return;
    }
    let phase = if failing {
        match guest.event {
            Some(EventType::QpReqErr) => Phase::Invalid,
            Some(EventType::QpAccessErr) => Phase::Denied,
            _ => Phase::Failed,
        }
    } else if guest.recalled.is_some() {
        Phase::Over
    } else if !rc.stands_at(&guest.told) {
        Phase::There
    } else {
        return;
    };
    match rc.standing(&path) {
        Some(standing) => guest.told = standing,
        None if failing => {}
        // A message is under way, or an answer.
        None => return,
    }
    if phase != Phase::There {
        (guest.is_here, guest.recalled) = (false, None);
    }
    report_now(shared, phase);
}
