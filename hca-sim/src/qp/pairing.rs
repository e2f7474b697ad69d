//! Whether two queue pairs fit, and the direct paths between those that do ([`crate::direct::path`]).
//!
//! Decided under the lock of the link, by whoever changes one of the two.

use verbs_core::mem::Touched;
use verbs_core::sync::atomic::Ordering::Acquire;
use verbs_core::sync::{Arc, Weak};
use verbs_core::yard::Common;
use verbs_core::{Access, QpAttr, QpState};

use crate::direct::message::{Requester, Tamper};
use crate::direct::path::{DirectPath, Granted, Responder};
use crate::link::{self, Directory};
use crate::qp::{Control, QueuePair};
use crate::queue::base::events::QpEvents;
use crate::queue::cq::CqRing;
use crate::queue::recv::RecvRing;

/// Who is on the link of a queue pair.
pub(crate) type Links = link::Links<QueuePair>;

impl QueuePair {
    pub(crate) fn named_peer<'l>(&self, links: &'l Links, attr: &QpAttr) -> Option<&'l Arc<Self>> {
        links.find(attr.av.as_ref()?, attr.dest_qpn?)
    }

    /// Makes the direct paths between this queue pair and its peer what they must be.
    pub(crate) fn repair(self: &Arc<Self>, links: &Links) -> Touched {
        let attr = self.control.lock().attr();
        let peer = self.named_peer(links, &attr);
        let out = self.repair_out(peer, links);
        peer.map_or(out, |peer| out.and(peer.repair_out(Some(self), links)))
    }

    /// As [`QueuePair::repair`], for a change after which the peer may have another name.
    pub(crate) fn repair_after(self: &Arc<Self>, links: &Links, before: &QpAttr) -> Touched {
        let now = self.repair(links);
        match self.named_peer(links, before) {
            Some(former) => now.and(former.repair_out(Some(self), links)),
            None => now,
        }
    }

    /// Makes the way from here into `peer` what it must be.
    fn repair_out(self: &Arc<Self>, peer: Option<&Arc<Self>>, links: &Links) -> Touched {
        let mut control = self.control.lock();
        if let Some(peer) = peer
            && !self.leads_to(&control, peer)
        {
            // The peer is not whom this queue pair names: its direct path, if any, leads elsewhere.
            return Touched::NOBODY;
        }
        let attr = control.attr();
        // A queue pair can be its own peer; its attributes are locked already then.
        let theirs = match peer {
            Some(peer) if Arc::ptr_eq(peer, self) => Some(attr),
            Some(peer) => Some(peer.control.lock().attr()),
            None => None,
        };
        let alive = control.out.as_ref().filter(|land| land.is_alive());
        let fits = peer.zip(theirs).filter(|(peer, theirs)| {
            // A living direct path keeps the numbers in step, while messages move both on.
            (alive.is_some() || self.may_land_in(peer)) && self.fits(&attr, peer, theirs, links)
        });
        match (fits, alive) {
            (None, None) => Touched::NOBODY,
            (None, Some(land)) => land.kill(),
            (Some((peer, theirs)), Some(land)) => land.change(granted(&theirs), peer.door()),
            (Some((peer, theirs)), None) => {
                if let Some(recvs) = peer.recv_ring() {
                    let (granted, door) = (granted(&theirs), peer.door());
                    let mtu = attr.path_mtu.unwrap_or(verbs_core::Mtu::B256);
                    let land = DirectPath::new(peer.as_responder(recvs), granted, mtu, door);
                    control.out = Some(self.port.yard.common_or_abort(land));
                }
                Touched::NOBODY
            }
        }
    }

    /// What messages must know of their sender.
    #[inline]
    pub(crate) fn requester(&self) -> Requester<'_> {
        let link = &*self.port.link;
        Requester {
            who: self.who(),
            mrs: &self.port.mrs,
            send_cq: &self.send_cq,
            tamper: (!link.is_bare()).then_some(link as &dyn Tamper),
        }
    }

    /// What a sender must know of it.
    fn as_responder(self: &Arc<Self>, ring: &Common<RecvRing>) -> Responder {
        let me = Arc::downgrade(self) as Weak<dyn QpEvents>;
        Responder {
            qp: me,
            gate: self.gate.clone(),
            ring: ring.clone(),
            srq: self.srq.clone(),
            cq: Arc::clone(&self.recv_cq),
            mrs: Arc::clone(&self.port.mrs),
            pd: self.pd,
            qpn: self.qpn,
        }
    }

    /// Makes the way from here into `peer` anew, if there is one: whom to wait for until nobody is in
    /// the old one. Both may be used meanwhile, as only the poster can be in the old one, and only the
    /// poster or the machine, which it has nothing for, in the new one.
    fn renew_out(&self, peer: &Arc<Self>) -> Option<Touched> {
        let mut control = self.control.lock();
        let old = control.out.take_if(|land| land.leads_into(peer))?;
        control.out = Some(self.port.yard.common_or_abort(old.renewed()));
        Some(old.kill())
    }

    /// Whether the way out of here, or the name it has of its peer, is this peer's.
    fn leads_to(&self, control: &Control, peer: &Arc<Self>) -> bool {
        let landed = control.out.as_ref();
        landed.is_some_and(|land| land.leads_into(peer))
            || control.attr().dest_qpn == Some(peer.qpn)
    }

    /// Whether messages can go from here into `peer` (module [`crate::direct::path`]).
    fn fits(
        self: &Arc<Self>,
        mine: &QpAttr,
        peer: &Arc<Self>,
        theirs: &QpAttr,
        links: &Links,
    ) -> bool {
        let names = |attr: &QpAttr, whom: &Arc<Self>, by: &Self| {
            by.named_peer(links, attr)
                .is_some_and(|named| Arc::ptr_eq(named, whom))
        };
        // Where packets go, they go between neighbours too.
        !self.goes_as_packets()
            && self.state() == QpState::Rts
            && matches!(peer.state(), QpState::Rtr | QpState::Rts | QpState::Sqd)
            && names(mine, peer, self)
            && names(theirs, self, peer)
            && mine.path_mtu == theirs.path_mtu
            && self.port.reaches(&peer.port)
    }

    /// Whether a direct path can be made: nobody is inside an earlier one, and the next packet from here is
    /// the one that the peer expects.
    fn may_land_in(&self, peer: &Self) -> bool {
        let closing = |qp: &Self| qp.worker.closing.load(Acquire) != 0;
        let numbers = self.send_ring().zip(peer.recv_ring());
        !closing(self)
            && !closing(peer)
            && numbers.is_some_and(|(sends, recvs)| (sends.psn() ^ recvs.epsn()) & 0xff_ffff == 0)
    }
}

/// Connects and disconnects queue pairs as their ports now say, and has those go on that can.
pub(crate) fn rearrange(directory: &Directory<QueuePair>) {
    let (queue_pairs, touched) = {
        let links = directory.lock();
        let repaired = links.queue_pairs().map(|qp| qp.repair(&links));
        let touched = repaired.fold(Touched::NOBODY, Touched::and);
        links.queue_pairs().for_each(|qp| qp.begin_close(&links));
        (links.queue_pairs().cloned().collect::<Vec<_>>(), touched)
    };
    for qp in &queue_pairs {
        // Who is inside lands that one message, as if it had been posted before; until it has, no
        // machine may touch the receives that it takes.
        qp.end_close(touched);
    }
    for qp in &queue_pairs {
        qp.wake();
    }
}

/// The queue pairs of the link whose completions go there.
pub(super) fn queue_pairs_on(
    directory: &Directory<QueuePair>,
    cq: &Arc<CqRing>,
) -> Vec<Arc<QueuePair>> {
    let links = directory.lock();
    let on = |qp: &&Arc<QueuePair>| Arc::ptr_eq(&qp.send_cq, cq) || Arc::ptr_eq(&qp.recv_cq, cq);
    links.queue_pairs().filter(on).cloned().collect()
}

/// Makes the direct paths of receives that complete on `cq` anew, so that they know its lane. Outside of locks.
pub(crate) fn renew_landings(directory: &Directory<QueuePair>, cq: &Arc<CqRing>) {
    let queue_pairs = queue_pairs_on(directory, cq);
    let mut renewed = Vec::new();
    let links = directory.lock();
    for qp in &queue_pairs {
        let attr = qp.control.lock().attr();
        if let Some(sender) = qp.named_peer(&links, &attr)
            && let Some(touched) = sender.renew_out(qp)
        {
            // Who is inside the old one is waited for by what takes the new one away.
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

/// What a queue pair lets its peer do.
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
