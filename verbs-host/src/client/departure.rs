//! Who hears when of a client's end.
//!
//! Neighbours, with which it has exchanged packets, hear of its end at once. The others hear of it together with the ends of
//! others, at most a thousand a second, so that programs of which many end do not wake all that are left for each: it
//! concerns one of them only if it has a queue pair that is connected by other means and has never said anything. One that
//! does so in the meantime is told then.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use verbs_core::host::Block;
use verbs_core::time::Instant;

use super::ClientId;

/// How long the others do not hear of an end, for each of them.
const DELAY: Duration = Duration::from_millis(1);

/// Blocks that no longer exist, of which not all clients have heard.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    all: VecDeque<Departure>,
    due: Option<Instant>,
}

#[derive(Debug)]
struct Departure {
    blocks: Vec<Block>,
    /// Clients that have heard of it, and their last owner.
    told: BTreeSet<ClientId>,
}

impl Departures {
    /// When the others are to hear of it.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// A client's blocks no longer exist; its neighbours have heard of it, and there are so many clients.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        clients: usize,
        blocks: Vec<Block>,
        owner: ClientId,
        neighbours: BTreeSet<ClientId>,
    ) {
        let delay = DELAY * u32::try_from(clients).unwrap_or(u32::MAX);
        self.due.get_or_insert(now + delay);
        let mut told = neighbours;
        told.insert(owner);
        self.all.push_back(Departure { blocks, told });
    }

    /// All of them, if they are due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Self> {
        self.due
            .is_some_and(|due| due <= now)
            .then(|| std::mem::take(self))
    }

    /// The blocks of whose end a client has not heard.
    pub(crate) fn news_for(&self, client: ClientId) -> Vec<u16> {
        let new = self.all.iter().filter(|it| !it.told.contains(&client));
        let blocks = new.flat_map(|it| it.blocks.iter().copied());
        blocks.map(Block::number).collect()
    }
}
