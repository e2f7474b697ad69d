//! What sessions of the services besides reliable connections have in common.

use std::collections::VecDeque;
use std::time::Duration;

use verbs_core::{Wc, WcStatus};

use crate::clock::Instant;
use crate::sim::check::{Deliveries, Laws, Rule, Tag};
use crate::sim::coverage::{Cell, Operation};
use crate::sim::run::Mode;
use crate::sim::run::conn::Seen;
use crate::sim::run::machine::addresses;
use crate::sim::run::stand::Stand;
use crate::sim::run::world::World;
use crate::sim::{Draw, Hits};

/// How long what happens on the way counts as having happened to a message that nobody answers.
const FLIGHT: Duration = Duration::from_micros(100);
/// Virtual time in which a message gets through, if one is sent again and again.
pub(super) const PROBE_MAX: Duration = Duration::from_secs(1);
/// Between two of those.
pub(super) const PROBE_PAUSE: Duration = Duration::from_micros(500);

/// Stands on nodes that are drawn; `None` if one of these is away.
pub(super) fn stands<const N: usize>(
    world: &World,
    draw: &mut Draw,
    nodes: [usize; N],
) -> Option<[Stand; N]> {
    let mut all = Vec::new();
    for node in nodes {
        all.push(Stand::new(world, world.lease(node)?, draw)?);
    }
    all.try_into().ok()
}

/// What the network of a run may do to messages that nobody answers.
pub(super) fn laws(world: &World) -> Laws {
    let (plan, is_network) = (&world.plan, world.plan.mode == Mode::Packets);
    let repeats = plan.weather.duplication.0 != 0 || plan.hostile;
    Laws {
        repeats: is_network && repeats,
        overtakes: is_network && (plan.weather.reordering.0 != 0 || plan.hostile),
    }
}

/// Whether a device has gone that one of them uses.
pub(super) fn is_orphaned(stands: &[Stand]) -> bool {
    stands.iter().any(|stand| stand.lease.removed.get())
}

/// What has gone wrong so far between those; `answers` says whether who has no receive says so.
pub(super) fn seen(world: &World, stands: &[Stand], answers: bool) -> Seen {
    let mut nodes: Vec<usize> = stands.iter().map(|stand| stand.lease.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let network = world.sim.network();
    let mut hits = Hits::default();
    for (place, &a) in nodes.iter().enumerate() {
        for &b in &nodes[place..] {
            hits = hits + network.hits(addresses(a)[0], addresses(b)[0]);
        }
    }
    let refused = |stand: &Stand| match answers {
        true => stand.lease.hca.rnr_naks(),
        false => stand.lease.hca.dropped(),
    };
    Seen {
        hits,
        flaps: stands.iter().map(|stand| stand.lease.flaps.get()).sum(),
        rnr_naks: stands.iter().map(refused).sum(),
    }
}

/// Messages of which the table has not been told what they met.
#[derive(Default)]
pub(super) struct Flying(VecDeque<(Instant, Operation, Seen)>);

impl Flying {
    /// One was posted.
    pub(super) fn post(&mut self, world: &World, operation: Operation, seen: Seen) {
        self.0.push_back((world.sim.now(), operation, seen));
    }

    /// Tells the table of those that have met all they will meet, or of all of them.
    pub(super) fn land(&mut self, world: &World, stands: &[Stand], all: bool) {
        let now = world.sim.now();
        let over = |&(at, ..): &(Instant, Operation, Seen)| all || now - at > FLIGHT;
        if !self.0.front().is_some_and(over) {
            return;
        }
        let met = seen(world, stands, false);
        let (orphaned, mut coverage) = (is_orphaned(stands), world.coverage.borrow_mut());
        while let Some((_, operation, was)) = self.0.pop_front_if(|flying| over(flying)) {
            let rows = std::iter::once(operation);
            met.note(&mut coverage, rows, was, false, orphaned);
        }
    }
}

/// Tells the table of a work request that ended in error.
pub(super) fn failed(world: &World, row: Operation, orphaned: bool) {
    let cell = if orphaned {
        Cell::Removal
    } else {
        Cell::QpError
    };
    world.coverage.borrow_mut().hit(row, cell);
}

/// What is flushed behind a work request that has failed was never sent (IBTA vol. 1, 10.3.1.7).
pub(super) fn recall<T>(
    world: &World,
    stand: &Stand,
    messages: &mut Deliveries<T>,
    wc: &Wc,
    seq: u64,
) {
    let whole = !stand.broken && !stand.lease.removed.get();
    if wc.status != WcStatus::WrFlushErr || !whole {
        return;
    }
    let Ok(seq) = u16::try_from(seq) else { return };
    let sender = stand.id;
    if let Err(what) = messages.recall(Tag { sender, seq }) {
        world.accuse(Rule::Delivery, what);
    }
}
