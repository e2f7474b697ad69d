//! A link within one process: every port attached to it reaches every other.
//!
//! It hands out what makes ports and queue pairs known to each other: LIDs, GUIDs, queue pair numbers.
//! Messages do not pass through it; a sender lands them itself, as long as the link is bare. Something
//! that has to see messages on their way, such as an injected fault, closes the senders' direct doors.

use std::collections::BTreeMap;
use std::fmt;

use verbs_core::device::local_guid;
use verbs_core::mem::{Span, Touched};
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Relaxed, Release},
};
use verbs_core::sync::{Arc, Mutex, MutexGuard};
use verbs_core::{Av, Gid, Guid, Lid, Psn, Qpn, Seed};

use crate::direct::message::Tamper;
use crate::link::hub::Hub;
use crate::qp::QueuePair;
use crate::queue::cq::CqRing;
use crate::rng::Rng;

/// Largest unicast LID (IBTA vol. 1, 4.1.3).
pub(crate) const LID_MAX: u16 = 0xbfff;
/// Queue pair numbers below this have a meaning of their own.
const QPN_MIN: u32 = 0x10;
const QPN_END: u32 = Qpn::MULTICAST.value();

/// A loopback link. Clones are the same link.
///
/// ```
/// # use hca_sim::{Hca, Loopback};
/// let link = Loopback::with_seed(7);
/// let (a, b) = (Hca::on(&link).build(), Hca::on(&link).build());
/// assert_ne!(a.lid(), b.lid());
/// ```
#[derive(Clone)]
pub struct Loopback {
    pub(crate) fabric: Arc<Fabric>,
}

/// The link itself.
pub(crate) struct Fabric {
    links: Mutex<Links>,
    /// Something on the link has to see every message.
    watched: AtomicBool,
    /// Messages with data that have passed since it has.
    passed: AtomicU64,
    /// Which of them loses a bit; `u64::MAX` for none.
    flip: AtomicU64,
    /// What carries the messages that are not placed directly.
    pub(super) hub: Hub,
}

/// Who is on the link. Whoever changes the state of a queue pair or what it is connected to holds the
/// lock on this; that is bounded work and no foreign code.
pub(crate) struct Links {
    rng: Rng,
    ports: BTreeMap<Lid, Gid>,
    queue_pairs: BTreeMap<(Lid, Qpn), Arc<QueuePair>>,
    next_lid: u16,
}

impl Default for Loopback {
    fn default() -> Self {
        Self::with_seed(0)
    }
}

impl Loopback {
    /// A link whose numbers the seed decides: GUIDs, queue pair numbers, packet sequence numbers. They repeat,
    /// and are no secret.
    pub fn with_seed(seed: u64) -> Self {
        Self::seeded(Seed::from(seed))
    }

    pub(crate) fn seeded(seed: Seed) -> Self {
        let links = Links {
            rng: Rng::new(seed),
            ports: BTreeMap::new(),
            queue_pairs: BTreeMap::new(),
            next_lid: 1,
        };
        let fabric = Fabric {
            links: Mutex::new(links),
            watched: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            flip: AtomicU64::new(u64::MAX),
            hub: Hub::default(),
        };
        Self {
            fabric: Arc::new(fabric),
        }
    }

    /// Inverts one bit of the payload of one message: the `nth` of those that carry data, counted from
    /// 0 over the whole link from now on. Nobody on the way notices, as if a switch had bad memory.
    ///
    /// From now on senders cannot land their messages themselves, which makes them slower.
    pub fn flip_bit(&self, nth: u64) {
        let fabric = &self.fabric;
        fabric.passed.store(0, Relaxed);
        fabric.flip.store(nth, Relaxed);
        fabric.watched.store(true, Release);
        let links = fabric.lock();
        for qp in links.queue_pairs.values() {
            // Who is inside lands that one message unseen, as if it had been posted before.
            let _ = qp.repair(&links);
        }
    }

    /// A first packet sequence number that is hard to guess.
    pub fn draw_psn(&self) -> Psn {
        self.fabric.draw_psn()
    }
}

impl fmt::Debug for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let links = self.fabric.lock();
        f.debug_struct("Loopback")
            .field("ports", &links.ports.len())
            .field("queue_pairs", &links.queue_pairs.len())
            .finish()
    }
}

impl Fabric {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock()
    }

    /// Whether senders may land messages themselves.
    pub(crate) fn is_bare(&self) -> bool {
        !self.watched.load(Relaxed)
    }

    pub(crate) fn draw_psn(&self) -> Psn {
        Psn::new(self.lock().rng.within(0..1 << 24))
    }

    /// Connects and disconnects queue pairs as their ports now say, and has those go on that can.
    pub(crate) fn rearrange(&self) {
        let (queue_pairs, touched) = {
            let links = self.lock();
            let repaired = links.queue_pairs.values().map(|qp| qp.repair(&links));
            let touched = repaired.fold(Touched::NOBODY, Touched::and);
            links
                .queue_pairs
                .values()
                .for_each(|qp| qp.begin_close(&links));
            (
                links.queue_pairs.values().cloned().collect::<Vec<_>>(),
                touched,
            )
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

    pub(crate) fn queue_pairs_on(&self, cq: &Arc<CqRing>) -> Vec<Arc<QueuePair>> {
        let links = self.lock();
        let on =
            |qp: &&Arc<QueuePair>| Arc::ptr_eq(&qp.send_cq, cq) || Arc::ptr_eq(&qp.recv_cq, cq);
        links.queue_pairs.values().filter(on).cloned().collect()
    }
}

impl Tamper for Fabric {
    fn tamper(&self, target: &[Span<'_>]) {
        let number = self.passed.fetch_add(1, AcqRel);
        if number != self.flip.load(Relaxed) {
            return;
        }
        if let Some(window) = target.iter().find_map(|span| span.windows().next()) {
            let mut byte = [0];
            window.read_into(&mut byte);
            byte[0] ^= 1;
            window.write_from(&byte);
        }
    }
}

impl Links {
    /// Addresses for a new port; the LID is 0 when there are none left.
    pub(crate) fn attach(&mut self) -> (Lid, Gid, Guid) {
        let free = |lid: &u16| !self.ports.contains_key(&Lid(*lid));
        let lid = (self.next_lid..=LID_MAX)
            .chain(1..self.next_lid)
            .find(free)
            .unwrap_or(0);
        let guid = local_guid(self.rng.draw());
        let gid = Gid::from_parts(Gid::LINK_LOCAL_PREFIX, guid);
        if lid != 0 {
            self.next_lid = if lid == LID_MAX { 1 } else { lid + 1 };
            self.ports.insert(Lid(lid), gid);
        }
        (Lid(lid), gid, guid)
    }

    /// The port has gone; its queue pairs are no longer found.
    pub(crate) fn detach(&mut self, lid: Lid) {
        self.ports.remove(&lid);
        self.queue_pairs.retain(|&(at, _), _| at != lid);
    }

    /// The port is found under another GID from now on.
    pub(crate) fn rename(&mut self, lid: Lid, gid: Gid) {
        if let Some(known) = self.ports.get_mut(&lid) {
            *known = gid;
        }
    }

    /// Enters a queue pair that is made with the number drawn for it; `None` if the port has gone.
    pub(crate) fn enter(
        &mut self,
        lid: Lid,
        make: impl FnOnce(Qpn) -> Arc<QueuePair>,
    ) -> Option<Arc<QueuePair>> {
        if !self.ports.contains_key(&lid) {
            return None;
        }
        let qpn = loop {
            let qpn = Qpn::new(self.rng.within(QPN_MIN..QPN_END));
            if !self.queue_pairs.contains_key(&(lid, qpn)) {
                break qpn;
            }
        };
        let qp = make(qpn);
        self.queue_pairs.insert((lid, qpn), Arc::clone(&qp));
        Some(qp)
    }

    pub(crate) fn leave(&mut self, lid: Lid, qpn: Qpn) {
        self.queue_pairs.remove(&(lid, qpn));
    }

    /// The queue pair of that number at the port that the address vector leads to.
    pub(crate) fn find(&self, av: &Av, qpn: Qpn) -> Option<&Arc<QueuePair>> {
        self.queue_pairs.get(&(self.resolve(av)?, qpn))
    }

    /// The queue pairs of one port.
    pub(crate) fn of_port(&self, lid: Lid) -> Vec<Arc<QueuePair>> {
        let range = (lid, Qpn::new(0))..=(lid, Qpn::MULTICAST);
        self.queue_pairs
            .range(range)
            .map(|(_, qp)| Arc::clone(qp))
            .collect()
    }

    /// The queue pair of that number at that port.
    pub(crate) fn of(&self, lid: Lid, qpn: Qpn) -> Option<Arc<QueuePair>> {
        self.queue_pairs.get(&(lid, qpn)).cloned()
    }

    fn resolve(&self, av: &Av) -> Option<Lid> {
        if av.dlid != Lid(0) {
            return self.ports.contains_key(&av.dlid).then_some(av.dlid);
        }
        self.port_of(av.global?.dgid)
    }

    /// The port with that GID.
    pub(super) fn port_of(&self, gid: Gid) -> Option<Lid> {
        let found = self.ports.iter().find(|&(_, &known)| known == gid);
        found.map(|(&lid, _)| lid)
    }

    /// The GID and the LID of the port that an address vector leads to.
    pub(crate) fn address_of(&self, av: &Av) -> Option<(Gid, Lid)> {
        let lid = self.resolve(av)?;
        Some((*self.ports.get(&lid)?, lid))
    }

    /// Enters a queue pair under the number that its type has; `None` if the port has gone or there is
    /// one already.
    pub(crate) fn enter_as(
        &mut self,
        lid: Lid,
        qpn: Qpn,
        make: impl FnOnce() -> Arc<QueuePair>,
    ) -> Option<Arc<QueuePair>> {
        let known = self.queue_pairs.contains_key(&(lid, qpn));
        if known || !self.ports.contains_key(&lid) {
            return None;
        }
        let qp = make();
        self.queue_pairs.insert((lid, qpn), Arc::clone(&qp));
        Some(qp)
    }
}
