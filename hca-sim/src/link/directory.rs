//! The ports of a link with their addresses, and its queue pairs with their numbers.
//!
//! It hands out what makes ports and queue pairs known to each other, and does not look into what it lists: `Q` is a queue
//! pair. The lock on the lists is the one under which the fit of two queue pairs is decided.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use verbs_core::device::local_guid;
use verbs_core::host::Block;
use verbs_core::mem::Span;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Relaxed, Release},
};
use verbs_core::sync::{Arc, Mutex, MutexGuard};
use verbs_core::{Av, Gid, Guid, Lid, Psn, Qpn, Seed};

use crate::direct::message::Tamper;
use crate::link::hub::Hub;
use crate::rng::Rng;

/// Largest unicast LID (IBTA vol. 1, 4.1.3).
pub(crate) const LID_MAX: u16 = 0xbfff;
/// Queue pair numbers below this have a meaning of their own.
const QPN_MIN: u32 = 0x10;
const QPN_END: u32 = Qpn::MULTICAST.value();

/// The number at which other programs of the host reach the one that a number belongs to: the last of its block. No queue pair
/// has it. `None` for numbers that belong to no program.
pub(crate) fn door_of(number: Qpn) -> Option<Qpn> {
    let block = Block::of(number).filter(|block| *block != Block::DAEMON)?;
    Some(Qpn::new(block.qpns().end - 1))
}

/// See the module's documentation.
pub(crate) struct Directory<Q> {
    links: Mutex<Links<Q>>,
    /// An observer on the link has to see every message.
    watched: AtomicBool,
    /// Messages with data that have passed since then.
    passed: AtomicU64,
    /// Which of them has a bit inverted; `u64::MAX` for none.
    flip: AtomicU64,
    /// Carries the messages that are not placed directly.
    pub(super) hub: Hub,
}

/// The ports and queue pairs of the link. A thread that changes the state of a queue pair or its connection holds the
/// lock on this; that is bounded work and runs no foreign code.
pub(crate) struct Links<Q> {
    rng: Rng,
    ports: BTreeMap<Lid, Gid>,
    queue_pairs: BTreeMap<(Lid, Qpn), Arc<Q>>,
    /// Numbers that stand for something else than queue pairs.
    reserved: BTreeSet<(Lid, Qpn)>,
    next_lid: u16,
}

impl<Q> Directory<Q> {
    /// A link without ports, whose numbers are drawn from the seed.
    pub(crate) fn seeded(seed: Seed) -> Self {
        let links = Links {
            rng: Rng::new(seed),
            ports: BTreeMap::new(),
            queue_pairs: BTreeMap::new(),
            reserved: BTreeSet::new(),
            next_lid: 1,
        };
        Self {
            links: Mutex::new(links),
            watched: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            flip: AtomicU64::new(u64::MAX),
            hub: Hub::default(),
        }
    }

    /// The `nth` message with data from now on has a bit inverted; all messages have to be seen from now on.
    pub(crate) fn flip_bit(&self, nth: u64) {
        self.passed.store(0, Relaxed);
        self.flip.store(nth, Relaxed);
        self.watched.store(true, Release);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Links<Q>> {
        self.links.lock()
    }

    /// Whether senders may place messages themselves.
    pub(crate) fn is_bare(&self) -> bool {
        !self.watched.load(Relaxed)
    }

    pub(crate) fn draw_psn(&self) -> Psn {
        Psn::new(self.lock().rng.within(0..1 << 24))
    }
}

impl<Q: Send + Sync> Tamper for Directory<Q> {
    fn tamper(&self, target: &[Span<'_>]) {
        let number = self.passed.fetch_add(1, AcqRel);
        if number != self.flip.load(Relaxed) {
            return;
        }
        if let Some(window) = target.iter().find_map(|span| span.windows().next()) {
            let mut byte = [0];
            // What lies there was just written; if it is gone now, there is nothing to change.
            if window.read_into(&mut byte).is_ok() {
                byte[0] ^= 1;
                let _ = window.write_from(&byte);
            }
        }
    }
}

impl<Q> Links<Q> {
    /// The queue pairs of all ports.
    pub(crate) fn queue_pairs(&self) -> impl Iterator<Item = &Arc<Q>> {
        self.queue_pairs.values()
    }

    /// The queue pairs of a port, by their numbers.
    pub(crate) fn at(&self, lid: Lid) -> impl Iterator<Item = &Arc<Q>> {
        let range = (lid, Qpn::new(0))..=(lid, Qpn::MULTICAST);
        self.queue_pairs.range(range).map(|(_, qp)| qp)
    }

    /// How many ports there are.
    pub(super) fn ports(&self) -> usize {
        self.ports.len()
    }

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

    /// The port is removed; its queue pairs are no longer found.
    pub(crate) fn detach(&mut self, lid: Lid) {
        self.ports.remove(&lid);
        self.queue_pairs.retain(|&(at, _), _| at != lid);
        self.reserved.retain(|&(at, _)| at != lid);
    }

    /// The port is found by another GID from now on.
    pub(crate) fn rename(&mut self, lid: Lid, gid: Gid) {
        if let Some(known) = self.ports.get_mut(&lid) {
            *known = gid;
        }
    }

    /// Enters a queue pair that is made with the number drawn for it, from one of `ranges` if there are any; `None` if
    /// the port has been removed.
    pub(crate) fn enter(
        &mut self,
        lid: Lid,
        ranges: &[Range<u32>],
        make: impl FnOnce(Qpn) -> Arc<Q>,
    ) -> Option<Arc<Q>> {
        let qpn = self.draw(lid, ranges)?;
        let qp = make(qpn);
        self.queue_pairs.insert((lid, qpn), Arc::clone(&qp));
        Some(qp)
    }

    /// A number that nothing at the port has, from one of `ranges` if there are any; `None` if the port has been removed.
    fn draw(&mut self, lid: Lid, ranges: &[Range<u32>]) -> Option<Qpn> {
        if !self.ports.contains_key(&lid) {
            return None;
        }
        loop {
            let range = match ranges {
                [] => QPN_MIN..QPN_END,
                [only] => only.clone(),
                several => several[self.rng.within(0..several.len() as u32) as usize].clone(),
            };
            let at = (lid, Qpn::new(self.rng.within(range)));
            let is_taken = self.queue_pairs.contains_key(&at) || self.reserved.contains(&at);
            if !is_taken && (ranges.is_empty() || door_of(at.1) != Some(at.1)) {
                return Some(at.1);
            }
        }
    }

    /// A number that no queue pair gets; `None` if the port has been removed.
    pub(crate) fn reserve(&mut self, lid: Lid, ranges: &[Range<u32>]) -> Option<Qpn> {
        let qpn = self.draw(lid, ranges)?;
        self.reserved.insert((lid, qpn));
        Some(qpn)
    }

    /// How many numbers of the port are reserved.
    pub(crate) fn reserved(&self, lid: Lid) -> u32 {
        let range = (lid, Qpn::new(0))..=(lid, Qpn::MULTICAST);
        self.reserved.range(range).count() as u32
    }

    /// A queue pair may have that number again.
    pub(crate) fn release(&mut self, lid: Lid, qpn: Qpn) {
        self.reserved.remove(&(lid, qpn));
    }

    pub(crate) fn leave(&mut self, lid: Lid, qpn: Qpn) {
        self.queue_pairs.remove(&(lid, qpn));
    }

    /// The queue pair of that number at the port that the address vector names.
    pub(crate) fn find(&self, av: &Av, qpn: Qpn) -> Option<&Arc<Q>> {
        self.queue_pairs.get(&(self.resolve(av)?, qpn))
    }

    /// The queue pairs of one port.
    pub(crate) fn of_port(&self, lid: Lid) -> Vec<Arc<Q>> {
        let range = (lid, Qpn::new(0))..=(lid, Qpn::MULTICAST);
        self.queue_pairs
            .range(range)
            .map(|(_, qp)| Arc::clone(qp))
            .collect()
    }

    /// The queue pair of that number at that port.
    pub(crate) fn of(&self, lid: Lid, qpn: Qpn) -> Option<Arc<Q>> {
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

    /// The GID and the LID of the port that an address vector names.
    pub(crate) fn address_of(&self, av: &Av) -> Option<(Gid, Lid)> {
        let lid = self.resolve(av)?;
        Some((*self.ports.get(&lid)?, lid))
    }

    /// Enters a queue pair under the number that its type has; `None` if the port has been removed or the number is
    /// taken.
    pub(crate) fn enter_as(
        &mut self,
        lid: Lid,
        qpn: Qpn,
        make: impl FnOnce() -> Arc<Q>,
    ) -> Option<Arc<Q>> {
        let known = self.queue_pairs.contains_key(&(lid, qpn));
        if known || !self.ports.contains_key(&lid) {
            return None;
        }
        let qp = make();
        self.queue_pairs.insert((lid, qpn), Arc::clone(&qp));
        Some(qp)
    }
}
