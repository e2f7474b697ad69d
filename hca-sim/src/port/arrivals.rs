//! Packets that arrive: they are checked, and delivered to their queue pairs.

use std::ops::Range;

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::Ordering::{AcqRel, Acquire};
use verbs_core::{Gid, Psn, Qpn};

use crate::clock::Instant;
use crate::effects::{Effect, Effects};
use crate::link::{Arrival, Verdict, Verifier};
use crate::port::Port;
use crate::port::driver::{Driver, Reception, TurnTime, Work};
use crate::qp::QueuePair;
use crate::queue::base::counters::Counters;
use crate::transport::Incoming;
use crate::wire::{Bth, Head, PacketView, Role, Syndrome};

/// What a queue pair does about targets that visit other programs. It is a trait because a port knows nothing else of queue pairs.
pub(crate) trait Visits: Sized {
    /// A packet has arrived that no queue pair has the number of. Returns the queue pair that takes it after all.
    fn arrived_for_target(
        port: &Arc<Port>,
        packet: &Incoming<'_>,
        now: Instant,
        effects: &mut Effects,
    ) -> Option<Arc<Self>>;

    /// Programs with these numbers have ended.
    fn programs_gone(port: &Arc<Port>, qpns: &Range<u32>, effects: &mut Effects);
}

impl Driver {
    /// Takes in what has arrived; the queue pairs that it was for are busy then. Returns whether anything arrived.
    pub(super) fn receive(
        &self,
        port: &Port,
        work: &mut Work,
        time: &mut TurnTime<'_>,
        effects: &mut Effects,
    ) -> bool {
        let down = self.down.load(Acquire);
        let Work {
            link,
            tx_queue,
            reception,
            busy,
            ..
        } = work;
        let mut answer = None;
        let came = link.receive(&mut |arrival| {
            if !down {
                let now = time.now();
                let answered = Self::arrived(port, arrival, now, reception, busy, effects);
                reception.requests |= answered.is_none();
                answer = answered.or(answer);
            }
        });
        let mut came_by_stream = false;
        if let Some(streams) = &port.streams {
            // In virtual time no thread looks at all of them later.
            let all = self.news.load(Acquire) || !self.has_thread();
            came_by_stream = streams.receive(all, busy, effects);
            reception.requests |= came_by_stream;
        }
        if let Some((qpn, psn)) = answer {
            tx_queue.answered(&mut **link, qpn, psn);
        }
        while let Some(refusal) = link.refusal() {
            if let Some(hca) = self.hca.get().cloned() {
                effects.add(Effect::Run(Box::new(move || {
                    if let Some(hca) = hca.upgrade() {
                        hca.refused(&refusal);
                    }
                })));
            }
        }
        while let Some(qpns) = link.gone() {
            if let Some(me) = self.port() {
                QueuePair::programs_gone(&me, &qpns, effects);
            }
            let (all, now) = (port.link.lock().of_port(port.lid), time.now());
            busy.extend(
                all.into_iter()
                    .filter(|qp| qp.peer_gone(&qpns, now, effects)),
            );
        }
        // Asking the system costs a call, and the waiting thread is woken by changes.
        if self.waiter.is_none() || self.news.swap(false, AcqRel) {
            while let Some(change) = link.change() {
                effects.add(Effect::Link(change));
            }
        }
        came != 0 || came_by_stream
    }

    /// A packet has arrived. For an answer of a queue pair's peer, returns what it acknowledges.
    fn arrived(
        port: &Port,
        arrival: &Arrival<'_>,
        now: Instant,
        reception: &mut Reception,
        busy: &mut Vec<Arc<QueuePair>>,
        effects: &mut Effects,
    ) -> Option<(Qpn, Psn)> {
        let (verifier, head) = (&mut reception.verifier, &mut reception.head);
        let last = &mut reception.last;
        let counters = &port.counters;
        counters.packets_received.up();
        let payload = match arrival.long {
            None => read(verifier, head, arrival, now, counters)?,
            Some(_) if head.read(arrival.bytes).is_ok_and(<[u8]>::is_empty) => &[],
            Some(_) => {
                counters.malformed.up();
                return None;
            }
        };
        let packet = Incoming {
            src: arrival.src,
            dst: arrival.dst,
            tclass: arrival.tclass,
            local: arrival.local,
            pkey_index: 0,
            head,
            payload,
            long: arrival.long,
        };
        let qpn = head.bth().dest_qpn;
        if qpn == Qpn::MULTICAST {
            Self::arrived_for_group(port, &packet, now, effects);
            return None;
        }
        let known = if last.0 == qpn {
            last.1.upgrade()
        } else {
            None
        };
        let Some(qp) = known.or_else(|| port.link.lock().of(port.lid, qpn)) else {
            Self::arrived_for_nobody(port, &packet, now, busy, effects);
            return None;
        };
        if last.0 != qpn {
            *last = (qpn, Arc::downgrade(&qp));
        }
        if !qp.take_packet(&packet, now, effects) {
            return None;
        }
        if qp.worker.listed.set() {
            busy.push(qp);
        }
        acknowledged(packet.head)
    }

    /// A packet for a number that no queue pair has: of another program of the host, about a target, or a stray.
    #[cold]
    fn arrived_for_nobody(
        port: &Port,
        packet: &Incoming<'_>,
        now: Instant,
        busy: &mut Vec<Arc<QueuePair>>,
        effects: &mut Effects,
    ) {
        let me = port.driver().and_then(Driver::port);
        let qp = me.and_then(|me| QueuePair::arrived_for_target(&me, packet, now, effects));
        match qp {
            Some(qp) if qp.worker.listed.set() => busy.push(qp),
            Some(_) => {}
            None => port.counters.strangers.up(),
        }
    }

    /// A packet for a multicast group: every queue pair that is attached to it takes a copy.
    fn arrived_for_group(port: &Port, packet: &Incoming<'_>, now: Instant, effects: &mut Effects) {
        let Some(members) = port.groups.members(Gid::from(packet.dst)) else {
            port.counters.strangers.up();
            return;
        };
        for qp in members.iter() {
            let sender = packet.head.ext().deth.map(|deth| deth.src_qpn);
            let is_own = sender == Some(qp.qpn) && port.has_address(packet.src);
            if !(is_own && qp.blocks_own_multicast) {
                qp.take_packet(packet, now, effects);
            }
        }
    }
}

/// Reads the headers of a packet, and returns its payload. `None`, counted: something about it is wrong.
#[inline(always)]
fn read<'a>(
    verifier: &mut Verifier,
    head: &mut Head,
    arrival: &Arrival<'a>,
    now: Instant,
    counters: &Counters,
) -> Option<&'a [u8]> {
    let Ok(view) = PacketView::new(arrival.bytes) else {
        counters.malformed.up();
        return None;
    };
    match verifier.check(arrival, now) {
        Verdict::Bad => {
            counters.bad_icrcs.up();
            return None;
        }
        Verdict::Solved {
            plausible: false, ..
        } => counters.weak_icrcs.up(),
        Verdict::Exact | Verdict::Solved { .. } => {}
    }
    let Ok(body) = head.read(view.covered()) else {
        counters.malformed.up();
        return None;
    };
    let len = body.len().checked_sub(usize::from(view.bth().pad()));
    let payload = len.and_then(|len| body.get(..len));
    if payload.is_none() {
        counters.malformed.up();
    }
    payload
}

/// For an answer: the queue pair whose request it answers, and the last packet whose arrival it acknowledges.
fn acknowledged(head: &Head) -> Option<(Qpn, Psn)> {
    if head.opcode().facts().role != Role::Response {
        return None;
    }
    let Bth { dest_qpn, psn, .. } = *head.bth();
    match head.ext().aeth.map(|aeth| aeth.syndrome) {
        None | Some(Syndrome::Ack(_)) => Some((dest_qpn, psn)),
        // The refused packet may be the one that is missing.
        Some(_) => Some((dest_qpn, psn.add(u32::MAX))),
    }
}
