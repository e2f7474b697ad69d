//! A target at its home: where it is, and what waits until it is back.

use std::ops::Range;
use std::time::Duration;

use verbs_core::host::Block;
use verbs_core::mem::pin;
use verbs_core::sync::Arc;
use verbs_core::xrcd::XrcdName;
use verbs_core::{EventType, Gid, QpType, Qpn};

use super::guest;
use super::handles::{is_shared, share};
use super::state::{Ends, Home, Out, Place, SharedTarget, Stay, program_of};
use crate::clock::Instant;
use crate::effects::{Effect, Effects};
use crate::link::{Route, door_of};
use crate::qp::QueuePair;
use crate::qp::worker::packet_qp::PacketQp;
use crate::queue::srq::SharedReceives;
use crate::transport::rc::Elsewhere;
use crate::transport::{Events, Incoming, Path};
use crate::wire::Role;
use crate::wire::target::{About, Again, Begin, Phase, Recall, Standing, TargetMessage};

/// How long a program may take to answer the announcement of a visit. Then requests for it are refused.
const PATIENCE: Duration = Duration::from_secs(1);

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::qp::worker) enum Taken {
    /// It is to be executed here.
    Here,
    /// It is another program's, waits, or was answered.
    Elsewhere,
}

/// A recall because of that request.
fn recall_for(packet: &Incoming<'_>) -> Recall {
    Recall {
        psn: packet.head.bth().psn,
        again: Again::of(packet.head.opcode().facts().message),
    }
}

/// A request has arrived at a target of a domain with a name, or names a queue that is not here. `named`: the queue, if it
/// is here.
#[cold]
pub(in crate::qp::worker) fn hand_on(
    qp: &Arc<QueuePair>,
    exchange: &mut PacketQp,
    packet: &Incoming<'_>,
    named: Option<&Arc<SharedReceives>>,
    now: Instant,
    effects: &mut Effects,
) -> Taken {
    let facts = packet.head.opcode().facts();
    let (Some(eth), Role::Request, QpType::XrcRecv) =
        (packet.head.ext().xrceth, facts.role, qp.qp_type)
    else {
        return Taken::Here;
    };
    if exchange.shared.is_none() {
        let has_name = || qp.port.xrc.name_of(qp.pd).is_some();
        if named.is_some() || !is_shared(&qp.port) || !has_name() {
            return Taken::Here;
        }
        let first = qp.port.link.draw_psn().value();
        share(qp, exchange, Place::Home(Home::new(first)));
    }
    let PacketQp {
        shared: Some(shared),
        path,
        route,
        ..
    } = &mut *exchange
    else {
        return Taken::Here;
    };
    let Some((home, out)) = shared.at_home() else {
        return Taken::Here;
    };
    let program = program_of(eth.srqn.value());
    let at = (qp.qpn, home.visits);
    if let Some(stay) = &mut home.stay {
        let is_same = path
            .zip(*route)
            .is_some_and(|(path, route)| stay.is_for(&path, &route));
        if stay.recalled.is_none() && program == Some(stay.program) && is_same {
            stay.repeat(at, now, out);
            SharedTarget::hand_on(out, packet);
        } else {
            match stay.recalled {
                Some(_) => stay.repeat(at, now, out),
                None => stay.recall(at, recall_for(packet), now, out),
            }
            home.hold(packet);
        }
        let is_deaf = |stay: &mut Stay| !stay.confirmed && now > stay.began + PATIENCE;
        if let Some(stay) = home.stay.take_if(is_deaf) {
            home.refused = Some(stay.program);
        }
        return Taken::Elsewhere;
    }
    if !home.held.is_empty() {
        home.hold(packet);
        return Taken::Elsewhere;
    }
    let elsewhere = program.filter(|program| named.is_none() && home.refused != Some(*program));
    match elsewhere {
        Some(program) => go(qp, exchange, (packet, program), now, effects),
        None => Taken::Here,
    }
}

/// The target is at home, and a request is for another program.
fn go(
    qp: &Arc<QueuePair>,
    exchange: &mut PacketQp,
    (packet, program): (&Incoming<'_>, Block),
    now: Instant,
    effects: &mut Effects,
) -> Taken {
    let Some(path) = exchange.path else {
        return Taken::Here;
    };
    let recall = recall_for(packet);
    let pin = pin();
    let (Some(ends), Some(rc)) = (qp.ends(&pin, &path, now), exchange.transport.rc()) else {
        return Taken::Here;
    };
    let mut events = Events::default();
    let asked = rc.asked_elsewhere(&ends, recall, &mut events);
    let standing = match asked {
        Elsewhere::Goes => rc.standing(&path),
        Elsewhere::Stays => None,
    };
    drop(pin);
    if asked == Elsewhere::Stays {
        let mut machine = qp.worker.machine.lock();
        qp.handle_events(exchange, &mut machine, events, None, effects);
        return Taken::Elsewhere;
    }
    let PacketQp {
        shared: Some(shared),
        route: Some(route),
        ..
    } = &mut *exchange
    else {
        return Taken::Here;
    };
    let Some((home, out)) = shared.at_home() else {
        return Taken::Here;
    };
    let (Some(standing), Some(domain)) = (standing, qp.port.xrc.name_of(qp.pd)) else {
        // First, what is due is answered.
        home.hold(packet);
        return Taken::Elsewhere;
    };
    let doors = door_of(qp.qpn).zip(door_of(Qpn::new(program.qpns().start)));
    let Some((from, to)) = doors else {
        return Taken::Here;
    };
    let begin = begin_of(&path, route, domain, standing.clone());
    home.visits = home.visits.wrapping_add(1);
    home.been.insert(program, (Ends { from, to }, home.visits));
    let stay = home.stay.insert(Stay {
        program,
        ends: Ends { from, to },
        begin,
        standing,
        confirmed: false,
        recalled: None,
        began: now,
        said: now,
    });
    let announcement = TargetMessage {
        target: qp.qpn,
        visit: home.visits,
        about: About::Begin(stay.begin.clone()),
    };
    out.push_back(Out::Message(stay.ends, announcement));
    SharedTarget::hand_on(out, packet);
    Taken::Elsewhere
}

impl Stay {
    /// Whether the connection is still as it was announced: verbs change rights, and paths migrate.
    fn is_for(&self, path: &Path, route: &Route) -> bool {
        let begin = &*self.begin;
        (begin.dgid, begin.sgid) == (Gid::from(route.dst), Gid::from(route.src))
            && begin.access == path.access
            && begin.min_rnr_timer == path.min_rnr_timer
    }
}

/// What a visited program needs to know.
fn begin_of(path: &Path, route: &Route, domain: XrcdName, standing: Standing) -> Box<Begin> {
    Box::new(Begin {
        domain,
        dest_qpn: path.dest_qpn,
        sgid: Gid::from(route.src),
        dgid: Gid::from(route.dst),
        traffic_class: route.tclass,
        hop_limit: route.hop_limit,
        mtu: path.mtu,
        min_rnr_timer: path.min_rnr_timer,
        max_dest_rd_atomic: path.max_dest_rd_atomic,
        pkey: path.pkey,
        access: path.access,
        standing,
    })
}

/// The visited program says how the visit is going.
pub(super) fn reported(
    qp: &Arc<QueuePair>,
    visit: u32,
    (phase, standing): (Phase, Standing),
    effects: &mut Effects,
) {
    let Some(mut exchange) = qp.open_exchange() else {
        return;
    };
    let exchange = &mut *exchange;
    let home = exchange.shared.as_deref_mut().and_then(SharedTarget::home);
    let Some(home) = home.filter(|home| home.visits == visit) else {
        return;
    };
    let Some(stay) = &mut home.stay else {
        return;
    };
    stay.confirmed = true;
    // A report may have been overtaken.
    if standing.expected.since(stay.standing.expected) >= 0 {
        stay.standing = standing;
    }
    match phase {
        Phase::There => {}
        Phase::Stays => {
            if stay.recalled.take().is_some() {
                // It was answered there.
                home.held.pop_front();
            }
        }
        Phase::Over => come_home(exchange),
        Phase::Refused => home.refused = home.stay.take().map(|stay| stay.program),
        Phase::Failed => fail(qp, home, None, effects),
        Phase::Invalid => fail(qp, home, Some(EventType::QpReqErr), effects),
        Phase::Denied => fail(qp, home, Some(EventType::QpAccessErr), effects),
    }
}

/// The target has failed elsewhere.
fn fail(qp: &Arc<QueuePair>, home: &mut Home, event: Option<EventType>, effects: &mut Effects) {
    home.stay = None;
    home.held.clear();
    effects.add(Effect::Fail(qp.events()));
    effects.add_all(event.map(|event| Effect::Raise(qp.events(), event)));
}

/// The target is home again, and goes on where it stood elsewhere.
fn come_home(exchange: &mut PacketQp) {
    let home = exchange.shared.as_deref_mut().and_then(SharedTarget::home);
    let stay = home.and_then(|home| home.stay.take());
    if let (Some(stay), Some(rc)) = (stay, exchange.transport.rc()) {
        rc.go_on_from(&stay.standing);
    }
}

/// Before a round: takes the requests that have waited, if they need not wait any longer.
pub(in crate::qp::worker) fn release_held(
    qp: &Arc<QueuePair>,
    now: Instant,
    effects: &mut Effects,
) {
    let Some(mut exchange) = qp.open_exchange() else {
        return;
    };
    if !may_release(&mut exchange) {
        return;
    }
    let home = exchange.shared.as_deref_mut().and_then(SharedTarget::home);
    let held = home.map(|home| std::mem::take(&mut home.held));
    let route = exchange.route;
    drop(exchange);
    let (Some(held), Some(route)) = (held, route) else {
        return;
    };
    for kept in held {
        qp.take_packet(&kept.packet(&route), now, effects);
    }
}

/// Whether requests wait that need not.
fn may_release(exchange: &mut PacketQp) -> bool {
    let Some(path) = exchange.path else {
        return false;
    };
    let home = exchange.shared.as_deref_mut().and_then(SharedTarget::home);
    let waits = home.is_some_and(|home| {
        let is_on_its_way = |stay: &Stay| stay.recalled.is_some();
        !home.held.is_empty() && !home.stay.as_ref().is_some_and(is_on_its_way)
    });
    waits
        && exchange
            .transport
            .rc()
            .is_some_and(|rc| rc.stands_still(&path))
}

/// The end of a round: there is another one for what has waited.
pub(super) fn go_on(qp: &Arc<QueuePair>, exchange: &mut PacketQp, effects: &mut Effects) {
    if may_release(exchange) {
        effects.add(Effect::Again(qp.events()));
    }
}

/// The target takes no more requests.
pub(super) fn end(qp: &Arc<QueuePair>, exchange: &mut PacketQp) {
    let shared = exchange.shared.as_deref_mut();
    let Some((home, out)) = shared.and_then(SharedTarget::at_home) else {
        return;
    };
    home.held.clear();
    home.stay = None;
    for (ends, visit) in std::mem::take(&mut home.been).into_values() {
        let message = TargetMessage {
            target: qp.qpn,
            visit,
            about: About::End,
        };
        out.push_back(Out::Message(ends, message));
    }
}

/// Programs with these numbers have ended. Returns whether the target needs a round.
pub(in crate::qp::worker) fn program_gone(
    qp: &Arc<QueuePair>,
    exchange: &mut PacketQp,
    qpns: &Range<u32>,
    effects: &mut Effects,
) -> bool {
    let Some(shared) = exchange.shared.as_deref_mut() else {
        return false;
    };
    let is_one = |program: Block| {
        let numbers = program.qpns();
        qpns.start < numbers.end && numbers.start < qpns.end
    };
    match &mut shared.place {
        Place::Home(home) => {
            home.been.retain(|program, _| !is_one(*program));
            let program = home.stay.as_ref().map(|stay| stay.program);
            let Some(program) = program.filter(|program| is_one(*program)) else {
                return false;
            };
            home.refused = Some(program);
            come_home(exchange);
            true
        }
        Place::Messenger => false,
        Place::Guest(guest) => {
            if guest.is_of(is_one) {
                guest::dismiss(&qp.port, qp, effects);
            }
            false
        }
    }
}
