//! Whether two queue pairs fit, and the direct paths between those that do ([`crate::direct::path`]).
//!
//! Decided under the lock of the link, by the thread that changes one of the two.

use verbs_core::mem::Touched;
use verbs_core::slab_alloc::SlabArc;
use verbs_core::sync::atomic::Ordering::Acquire;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{Access, QpAttr, QpState};

use crate::direct::message::{DirectSender, Tamper};
use crate::direct::path::{DirectPath, DirectReceiver, Granted};
use crate::link::Directory;
use crate::qp::{Links, QueuePair};
use crate::queue::base::events::QpEvents;
use crate::queue::cq::CqRing;
use crate::queue::recv::RecvRing;

/// The queue pair that those attributes name.
pub(crate) fn named_peer<'l>(links: &'l Links, attr: &QpAttr) -> Option<&'l Arc<QueuePair>> {
    links.find(attr.av.as_ref()?, attr.dest_qpn?)
}

/// As [`QueuePair::repair`], for a change after which the peer may have another name.
pub(crate) fn repair_after(qp: &Arc<QueuePair>, links: &Links, before: &QpAttr) -> Touched {
    let now = qp.repair(links);
    match named_peer(links, before) {
        Some(former) => now.and(repair_out(former, Some(qp), links)),
        None => now,
    }
}

/// Brings the direct paths from here to `peer`, which it names, and back up to date.
pub(super) fn repair_both(
    qp: &Arc<QueuePair>,
    peer: Option<&Arc<QueuePair>>,
    links: &Links,
) -> Touched {
    let out = repair_out(qp, peer, links);
    peer.map_or(out, |peer| out.and(repair_out(peer, Some(qp), links)))
}

/// Brings the direct path from here to `peer` up to date.
fn repair_out(qp: &Arc<QueuePair>, peer: Option<&Arc<QueuePair>>, links: &Links) -> Touched {
    let (attr, out) = {
        let control = qp.control.lock();
        (control.attr(), control.out.clone())
    };
    if let Some(peer) = peer
        && !leads_to(out.as_deref(), &attr, peer)
    {
        // This queue pair names another peer: its direct path, if any, does not end here.
        return Touched::NOBODY;
    }
    let theirs = peer.map(|peer| peer.control.lock().attr());
    let alive = out.filter(|direct| direct.is_alive());
    let fits = peer.zip(theirs).filter(|(peer, theirs)| {
        // A living direct path keeps the numbers in step, as messages advance both.
        (alive.is_some() || may_land_in(qp, peer)) && fits(qp, &attr, peer, theirs, links)
    });
    match (fits, alive) {
        (None, None) => Touched::NOBODY,
        (None, Some(direct)) => direct.kill(),
        (Some((peer, theirs)), Some(direct)) => direct.change(granted(&theirs), peer.door()),
        (Some((peer, theirs)), None) => {
            if let Some(recvs) = peer.recv_ring() {
                let (granted, door) = (granted(&theirs), peer.door());
                let mtu = attr.path_mtu.unwrap_or(verbs_core::Mtu::B256);
                let direct = DirectPath::new(as_responder(peer, recvs), granted, mtu, door);
                replace_out(qp, direct);
            }
            Touched::NOBODY
        }
    }
}

/// Gives a queue pair another direct path, under the lock of the link.
fn replace_out(qp: &QueuePair, direct: DirectPath) {
    let direct = qp.port.slabs.arc_or_abort(direct);
    let before = qp.control.lock().out.replace(direct);
    drop(before);
}

/// The part of this queue pair that its messages need.
#[inline]
pub(crate) fn requester(qp: &QueuePair) -> DirectSender<'_> {
    let link = &*qp.port.link;
    DirectSender {
        who: qp.who(),
        mrs: &qp.port.mrs,
        send_cq: &qp.send_cq,
        tamper: (!link.is_bare()).then_some(link as &dyn Tamper),
    }
}

/// The part of this queue pair that a sender needs.
fn as_responder(qp: &Arc<QueuePair>, ring: &SlabArc<RecvRing>) -> DirectReceiver {
    let me = Arc::downgrade(qp) as Weak<dyn QpEvents>;
    DirectReceiver {
        qp: me,
        gate: qp.gate.clone(),
        ring: ring.clone(),
        srq: qp.srq.clone(),
        cq: Arc::clone(&qp.recv_cq),
        mrs: Arc::clone(&qp.port.mrs),
        pd: qp.pd,
        qpn: qp.qpn,
    }
}

/// Replaces the direct path from here to `peer`, if there is one: returns which threads to wait for until none is
/// inside the old one. Both may be used in the meantime: only the poster can be inside the old one, and only the
/// poster, or the machine, which has no work for it, inside the new one.
fn renew_out(qp: &QueuePair, peer: &Arc<QueuePair>) -> Option<Touched> {
    let old = qp.control.lock().out.clone();
    let old = old.filter(|direct| direct.leads_into(peer))?;
    replace_out(qp, old.renewed());
    Some(old.kill())
}

/// Whether the direct path from here, or the peer's name in the attributes, is this peer's.
fn leads_to(out: Option<&DirectPath>, attr: &QpAttr, peer: &Arc<QueuePair>) -> bool {
    out.is_some_and(|direct| direct.leads_into(peer)) || attr.dest_qpn == Some(peer.qpn)
}

/// Whether messages can go from here into `peer` (module [`crate::direct::path`]).
fn fits(
    qp: &Arc<QueuePair>,
    mine: &QpAttr,
    peer: &Arc<QueuePair>,
    theirs: &QpAttr,
    links: &Links,
) -> bool {
    let names = |attr: &QpAttr, whom: &Arc<QueuePair>| {
        named_peer(links, attr).is_some_and(|named| Arc::ptr_eq(named, whom))
    };
    // Where messages are sent as packets, that holds between neighbours too.
    !qp.goes_as_packets()
        && qp.state() == QpState::Rts
        && matches!(peer.state(), QpState::Rtr | QpState::Rts | QpState::Sqd)
        && names(mine, peer)
        && names(theirs, qp)
        && mine.path_mtu == theirs.path_mtu
        && qp.port.reaches(&peer.port)
}

/// Whether a direct path can be made: no thread is inside an earlier one, and the next packet from here is the one
/// that the peer expects.
fn may_land_in(qp: &QueuePair, peer: &QueuePair) -> bool {
    let closing = |qp: &QueuePair| qp.worker.closing.load(Acquire) != 0;
    let numbers = qp.send_ring().zip(peer.recv_ring());
    !closing(qp)
        && !closing(peer)
        && numbers.is_some_and(|(sends, recvs)| (sends.psn() ^ recvs.epsn()) & 0xff_ffff == 0)
}

/// Connects and disconnects queue pairs according to the state of their ports, and wakes those that can continue.
pub(crate) fn rearrange(directory: &Directory<QueuePair>) {
    let (queue_pairs, touched) = {
        let links = directory.lock();
        let repaired = links.queue_pairs().map(|qp| qp.repair(&links));
        let touched = repaired.fold(Touched::NOBODY, Touched::and);
        links.queue_pairs().for_each(|qp| qp.begin_close(&links));
        (links.queue_pairs().cloned().collect::<Vec<_>>(), touched)
    };
    for qp in &queue_pairs {
        // A poster that is inside places that one message, as if it had been posted before; until it has, no machine
        // may touch the receives that it takes.
        qp.end_close(touched);
    }
    for qp in &queue_pairs {
        qp.wake();
    }
}

/// The queue pairs of the link whose completions are pushed to `cq`.
pub(super) fn queue_pairs_on(
    directory: &Directory<QueuePair>,
    cq: &Arc<CqRing>,
) -> Vec<Arc<QueuePair>> {
    let links = directory.lock();
    let on = |qp: &&Arc<QueuePair>| Arc::ptr_eq(&qp.send_cq, cq) || Arc::ptr_eq(&qp.recv_cq, cq);
    links.queue_pairs().filter(on).cloned().collect()
}

/// Makes the direct paths of receives that complete on `cq` again, so that they know its lane. Called outside of locks.
pub(crate) fn renew_direct_paths(directory: &Directory<QueuePair>, cq: &Arc<CqRing>) {
    let queue_pairs = queue_pairs_on(directory, cq);
    let mut renewed = Vec::new();
    let links = directory.lock();
    for qp in &queue_pairs {
        let attr = qp.control.lock().attr();
        if let Some(sender) = named_peer(&links, &attr)
            && let Some(touched) = renew_out(sender, qp)
        {
            // The change that takes the new path away waits for threads inside the old one.
            for end in [sender, qp] {
                end.begin_close(&links);
                renewed.push((Arc::clone(end), touched));
            }
        }
    }
    drop(links);
    for (qp, touched) in renewed {
        qp.end_close(touched);
    }
}

/// The operations that a queue pair permits its peer.
fn granted(attr: &QpAttr) -> Granted {
    let access = attr.access.unwrap_or(Access::empty());
    if attr.max_dest_rd_atomic == Some(0) {
        // There is no room to remember a READ or an atomic.
        return Granted {
            access: access.difference(Access::REMOTE_READ | Access::REMOTE_ATOMIC),
            remembers: false,
        };
    }
    Granted {
        access,
        remembers: true,
    }
}
