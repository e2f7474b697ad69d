//! Packets that come: they are checked, and brought to the queue pairs that they are for.

use verbs_core::sync::atomic::Ordering::{AcqRel, Acquire};
use verbs_core::sync::{Arc, Weak};
use verbs_core::{Gid, Psn, Qpn};

use crate::clock::Instant;
use crate::link::{Arrival, Verdict, Verifier};
use crate::port::Port;
use crate::port::driver::{Driver, Work};
use crate::qp::QueuePair;
use crate::qp::effects::Effects;
use crate::transport::Incoming;
use crate::wire::{Bth, Head, PacketView, Role, Syndrome};

impl Driver {
    /// Takes in what has come; whom it was for is busy then. Whether anything came.
    pub(super) fn receive(&self, port: &Port, work: &mut Work, effects: &mut Effects) -> bool {
        let now = port.engine.now();
        let down = self.down.load(Acquire);
        let Work {
            link,
            tx_queue,
            verifier,
            busy,
            last,
            ..
        } = work;
        let mut answer = None;
        let came = link.receive(&mut |arrival| {
            if !down {
                let head = Self::arrived(port, arrival, now, verifier, last, busy, effects);
                answer = head.as_ref().and_then(acknowledged).or(answer);
            }
        });
        if let Some((qpn, psn)) = answer {
            tx_queue.answered(&mut **link, qpn, psn);
        }
        while let Some(refusal) = link.refusal() {
            if let Some(hca) = self.hca.get().cloned() {
                effects.after.push(Box::new(move || {
                    if let Some(hca) = hca.upgrade() {
                        hca.refused(&refusal);
                    }
                }));
            }
        }
        // Asking the system costs a call, and the thread that waits is woken by news.
        if self.waiter.is_none() || self.news.swap(false, AcqRel) {
            effects.news.extend(std::iter::from_fn(|| link.change()));
        }
        came != 0
    }

    /// A packet has come. Its headers, if it was for a queue pair and from its peer.
    fn arrived(
        port: &Port,
        arrival: &Arrival<'_>,
        now: Instant,
        verifier: &mut Verifier,
        last: &mut (Qpn, Weak<QueuePair>),
        busy: &mut Vec<Arc<QueuePair>>,
        effects: &mut Effects,
    ) -> Option<Head> {
        let counters = &port.counters;
        counters.packets_received.up();
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
        let parsed = Head::parse(view.covered()).ok().and_then(|(head, body)| {
            let len = body.len().checked_sub(usize::from(view.bth().pad()))?;
            Some((head, &body[..len]))
        });
        let Some((head, payload)) = parsed else {
            counters.malformed.up();
            return None;
        };
        let packet = Incoming {
            src: arrival.src,
            dst: arrival.dst,
            tclass: arrival.tclass,
            local: arrival.local,
            pkey_index: 0,
            head,
            payload,
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
            counters.strangers.up();
            return None;
        };
        if last.0 != qpn {
            *last = (qpn, Arc::downgrade(&qp));
        }
        if !qp.take_packet(&packet, now, effects) {
            return None;
        }
        if !qp.worker.listed.swap(true, AcqRel) {
            busy.push(qp);
        }
        Some(head)
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

/// Of an answer: whose request it answers, and the last one that it says has arrived.
fn acknowledged(head: &Head) -> Option<(Qpn, Psn)> {
    if head.opcode().facts().role != Role::Response {
        return None;
    }
    let Bth { dest_qpn, psn, .. } = *head.bth();
    match head.ext().aeth.map(|aeth| aeth.syndrome) {
        None | Some(Syndrome::Ack(_)) => Some((dest_qpn, psn)),
        // What is refused here may be what is missing.
        Some(_) => Some((dest_qpn, psn.add(u32::MAX))),
    }
}
