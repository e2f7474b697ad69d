//! Target queue pairs that several programs of a host share: requests of one connection for shared receive queues of
//! several programs.
//!
//! Each program has opened the domain, and has queues in it whose numbers are its own. The program that has created a
//! target is its *home*: packets of the initiator arrive there. At any time one responder executes them. If the next request is for
//! a queue of another program, the target *visits* that program: a queue pair of the same number is there, and goes on
//! where the one at home stands. The home hands packets on, and the visitor answers the initiator itself. When a request is
//! for a queue of a third program, or of the home, the target is recalled first. So requests are executed in their order,
//! each once, as the transport demands, and each in the memory of the program that it is for.
//!
//! * [`home`]: where the target is, and what waits until it is back; [`guest`]: the visitor; [`state`] of both.
//! * [`handles`]: a target that is open in several programs.
//!
//! Packets between the two are packets between programs of a host: those handed on have the numbers of target and shared receive
//! queue exchanged, so that they go to a number of the visited program; messages ([`crate::wire::target`]) are datagrams. They may be
//! lost as on any network. Then the initiator sends its request again, and the home repeats its message with it.
//!
//! The home knows how the connection stood when the visited program last said so. If that program dies, the target is
//! home again, and only requests for that program's queues fail.

mod guest;
mod handles;
mod home;
pub(super) mod state;

use std::net::IpAddr;
use std::ops::Range;

use verbs_core::sync::Arc;

use self::handles::{about_handle, collect_messages, end_orphan, is_shared};
use self::state::Ends;
use crate::clock::Instant;
use crate::effects::{Effect, Effects};
use crate::port::Port;
use crate::port::arrivals::Visits;
use crate::qp::worker::packet_qp::PacketQp;
use crate::qp::{QueuePair, takes_packets};
use crate::transport::{Incoming, TxContext};
use crate::wire::Service;
use crate::wire::target::{About, TargetMessage};

pub(super) use self::guest::note_event;
pub(crate) use self::handles::{may_be_elsewhere, send_messages, share_targets, tell_holders};
pub(super) use self::home::{Taken, hand_on, program_gone, release_held};

/// A round of a queue pair that has to do with other programs.
#[cold]
pub(super) fn round(qp: &Arc<QueuePair>, mail: Option<&mut TxContext<'_>>, effects: &mut Effects) {
    let (Some(mail), Some(exchange)) = (mail, qp.worker.exchange()) else {
        return;
    };
    if takes_packets(qp.state()) {
        release_held(qp, mail.now, effects);
    } else {
        leave(qp, &mut exchange.lock(), mail, effects);
    }
    // A round as any other.
    qp.worker.keep_to_itself();
    qp.round(Some(&mut *mail), effects);
    qp.worker.share();
    let mut exchange = exchange.lock();
    let exchange = &mut *exchange;
    guest::report(exchange, exchange.failing);
    home::go_on(qp, exchange, effects);
    collect_messages(qp, exchange, mail.now, effects);
    send(qp, exchange, mail, effects);
}

/// The target has left the states in which it takes requests.
fn leave(
    qp: &Arc<QueuePair>,
    exchange: &mut PacketQp,
    mail: &mut TxContext<'_>,
    effects: &mut Effects,
) {
    home::end(qp, exchange);
    guest::report(exchange, true);
    send(qp, exchange, mail, effects);
}

/// Sends what waits for other programs.
fn send(
    qp: &Arc<QueuePair>,
    exchange: &mut PacketQp,
    mail: &mut TxContext<'_>,
    effects: &mut Effects,
) {
    let Some(shared) = exchange.shared.as_deref_mut() else {
        return;
    };
    if shared.out.is_empty() {
        return;
    }
    match qp.port.gid(0) {
        Some(here) if shared.send(qp.qpn, IpAddr::from(here), mail) => {
            effects.add(Effect::Stalled(qp.events()));
        }
        Some(_) => {}
        // The port has no address any longer.
        None => shared.out.clear(),
    }
}

impl Visits for QueuePair {
    fn arrived_for_target(
        port: &Arc<Port>,
        packet: &Incoming<'_>,
        now: Instant,
        effects: &mut Effects,
    ) -> Option<Arc<Self>> {
        // Other programs of the host send from its own addresses, and nobody else does.
        if !port.has_address(packet.src) || !is_shared(port) {
            return None;
        }
        let head = packet.head;
        match (head.opcode().service(), head.ext().deth) {
            (Service::Xrc | Service::OwnXrc, _) => guest::request(port, packet, now, effects),
            (Service::Ud, Some(deth)) if deth.qkey == TargetMessage::QKEY => {
                let message = TargetMessage::parse(packet.payload).ok()?;
                let TargetMessage {
                    target,
                    visit,
                    about,
                } = message;
                match about {
                    About::Begin(begin) => {
                        let ends = Ends {
                            from: head.bth().dest_qpn,
                            to: deth.src_qpn,
                        };
                        guest::begin(port, (target, visit, ends), &begin, effects)
                    }
                    About::Recall(recall) => {
                        guest::recall(port, (target, visit), recall, now, effects)
                    }
                    About::End => guest::end(port, (target, visit), effects),
                    About::Report(phase, standing) => {
                        let qp = port.link.lock().of(port.lid, target)?;
                        home::reported(&qp, visit, (phase, *standing), effects);
                        Some(qp)
                    }
                    other => {
                        let about = (target, visit, deth.src_qpn);
                        about_handle(port, about, &other, effects)
                    }
                }
            }
            _ => None,
        }
    }

    fn programs_gone(port: &Arc<Port>, qpns: &Range<u32>, effects: &mut Effects) {
        let (orphans, ended) = port.xrc.opened.gone(qpns);
        for orphan in orphans {
            end_orphan(port, orphan, effects);
        }
        if !ended.is_empty() {
            effects.add_all(ended.into_iter().map(Effect::Run));
        }
    }
}
