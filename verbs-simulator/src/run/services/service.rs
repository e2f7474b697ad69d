//! What sessions of the services other than reliable connections have in common.

use std::collections::VecDeque;
use std::time::Duration;

use verbs_core::{Wc, WcStatus};
use verbs_link::time::Instant;

use crate::check::{Deliveries, Laws, Rule, Tag};
use crate::coverage::{Cell, Operation};
use crate::run::Mode;
use crate::run::conn::Seen;
use crate::run::endpoint::Endpoint;
use crate::run::machine::addresses;
use crate::run::world::World;
use crate::{Draw, Hits};

/// How long faults on the path count as having met a message without an answer.
const FLIGHT: Duration = Duration::from_micros(100);
/// Virtual time within which a message gets through, if one is sent repeatedly.
pub(crate) const PROBE_MAX: Duration = Duration::from_secs(1);
/// The pause between two of those.
pub(crate) const PROBE_PAUSE: Duration = Duration::from_micros(500);

/// Endpoints on drawn nodes; `None` if one of these is removed.
pub(crate) fn endpoints<const N: usize>(
    world: &World,
    draw: &mut Draw,
    nodes: [usize; N],
) -> Option<[Endpoint; N]> {
    let mut all = Vec::new();
    for node in nodes {
        all.push(Endpoint::new(world, world.lease(node)?, draw)?);
    }
    all.try_into().ok()
}

/// What the network of a run may do to messages without answers.
pub(crate) fn laws(world: &World) -> Laws {
    let (plan, is_network) = (&world.plan, world.plan.mode == Mode::Packets);
    let repeats = plan.link_faults.duplication.0 != 0 || plan.hostile;
    Laws {
        repeats: is_network && repeats,
        overtakes: is_network && (plan.link_faults.reordering.0 != 0 || plan.hostile),
    }
}

/// Whether a device that one of them uses was removed.
pub(crate) fn is_orphaned(endpoints: &[Endpoint]) -> bool {
    endpoints
        .iter()
        .any(|endpoint| endpoint.lease.removed.get())
}

/// The faults that have occurred so far between those endpoints; `answers` says whether a missing receive is reported.
pub(crate) fn seen(world: &World, endpoints: &[Endpoint], answers: bool) -> Seen {
    let mut nodes: Vec<usize> = endpoints
        .iter()
        .map(|endpoint| endpoint.lease.node)
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    let network = world.sim.network();
    let mut hits = Hits::default();
    for (place, &a) in nodes.iter().enumerate() {
        for &b in &nodes[place..] {
            hits = hits + network.hits(addresses(a)[0], addresses(b)[0]);
        }
    }
    let refused = |endpoint: &Endpoint| match answers {
        true => endpoint.lease.hca.rnr_naks(),
        false => endpoint.lease.hca.dropped(),
    };
    Seen {
        hits,
        flaps: endpoints
            .iter()
            .map(|endpoint| endpoint.lease.flaps.get())
            .sum(),
        rnr_naks: endpoints.iter().map(refused).sum(),
    }
}

/// Messages whose faults have not been entered into the table yet.
#[derive(Default)]
pub(crate) struct Flying(VecDeque<(Instant, Operation, Seen)>);

impl Flying {
    /// A message was posted.
    pub(crate) fn post(&mut self, world: &World, operation: Operation, seen: Seen) {
        self.0.push_back((world.sim.now(), operation, seen));
    }

    /// Enters into the table the messages that can meet no further faults, or all of them.
    pub(crate) fn land(&mut self, world: &World, endpoints: &[Endpoint], all: bool) {
        let now = world.sim.now();
        let over = |&(at, ..): &(Instant, Operation, Seen)| all || now - at > FLIGHT;
        if !self.0.front().is_some_and(over) {
            return;
        }
        let met = seen(world, endpoints, false);
        let (orphaned, mut coverage) = (is_orphaned(endpoints), world.coverage.borrow_mut());
        while let Some((_, operation, was)) = self.0.pop_front_if(|flying| over(flying)) {
            let rows = std::iter::once(operation);
            met.note(&mut coverage, rows, was, false, orphaned);
        }
    }
}

/// Enters into the table a work request that ended in error.
pub(crate) fn failed(world: &World, row: Operation, orphaned: bool) {
    let cell = if orphaned {
        Cell::Removal
    } else {
        Cell::QpError
    };
    world.coverage.borrow_mut().hit(row, cell);
}

/// Work requests that are flushed behind a failed one were never sent (IBTA vol. 1, 10.3.1.7).
pub(crate) fn recall<T>(
    world: &World,
    endpoint: &Endpoint,
    messages: &mut Deliveries<T>,
    wc: &Wc,
    seq: u64,
) {
    let whole = !endpoint.broken && !endpoint.lease.removed.get();
    if wc.status != WcStatus::WrFlushErr || !whole {
        return;
    }
    let Ok(seq) = u16::try_from(seq) else { return };
    let sender = endpoint.id;
    if let Err(what) = messages.recall(Tag { sender, seq }) {
        world.violated(Rule::Delivery, what);
    }
}
