//! Whether messages placed directly and messages sent as packets come to the same.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip128::{Hasher128, SipHasher24};
use verbs_core::Wc;

use crate::sim::check::Violation;
use crate::sim::run::world::World;
use crate::sim::run::{Mode, Options};

/// How long everything is left to settle after each thing that is done: longer than any retry takes.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// Sessions that are compared, one after the other.
pub(super) const SESSIONS: u64 = 4;

/// A queue: the session, the end, the connection (none for shared receives), and whether of receives.
type Name = (u64, usize, Option<usize>, bool);

/// What happened, as far as two runs must agree on it: completions by queue, and bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Transcript {
    queues: BTreeMap<Name, Vec<String>>,
    memories: Vec<u128>,
    pub(super) session: u64,
}

impl Transcript {
    /// A completion. What only means something for a success is left out of others.
    pub(super) fn completion(&mut self, end: usize, conn: Option<usize>, receive: bool, wc: &Wc) {
        let name = (self.session, end, conn, receive);
        let (ok, id) = (wc.is_ok(), wc.wr_id);
        let line = match ok {
            true => format!("{id:#x} {} {} {:?}", wc.opcode, wc.byte_len, wc.immediate()),
            false => format!("{id:#x} {}", wc.status),
        };
        self.queues.entry(name).or_default().push(line);
    }

    /// All bytes of a region, in the end.
    pub(super) fn memory(&mut self, bytes: &[u8]) {
        let mut hasher = SipHasher24::new();
        hasher.write(bytes);
        self.memories.push(hasher.finish128().as_u128());
    }

    fn completions(&self) -> usize {
        self.queues.values().map(Vec::len).sum()
    }

    /// The first thing on which they differ.
    fn differs(&self, other: &Self) -> Option<String> {
        let names = self.queues.keys().chain(other.queues.keys());
        for name in names {
            let none = Vec::new();
            let mine = self.queues.get(name).unwrap_or(&none);
            let theirs = other.queues.get(name).unwrap_or(&none);
            let longer = mine.len().max(theirs.len());
            for at in 0..longer {
                let (mine, theirs) = (mine.get(at), theirs.get(at));
                if mine != theirs {
                    let (session, end, conn, receive) = name;
                    let kind = if *receive { "receives" } else { "sends" };
                    return Some(format!(
                        "session {session}, end {end}, connection {conn:?}, {kind}: completion {at} is {mine:?} as packets and {theirs:?} directly"
                    ));
                }
            }
        }
        let differ = self.memories != other.memories;
        differ.then(|| "the bytes in memory differ".to_owned())
    }
}

/// Where the two ways to carry messages differ, or what one of them broke.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disagreement {
    /// A rule was broken by itself.
    Broken(Violation),
    /// They came to different results.
    Differs(String),
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(violation) => violation.fmt(f),
            Self::Differs(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Disagreement {}

/// Does the same things twice, once over packets and once by direct placement, without faults and one
/// after the other; says how many completions agreed.
///
/// # Errors
/// [`Disagreement`], if a completion or a byte differs or a rule is broken.
pub fn compare(seed: u64) -> Result<usize, Disagreement> {
    let run = |mode| {
        let options = Options {
            mode: Some(mode),
            ..Options::new(seed)
        };
        let world = World::in_lockstep(&options);
        world.run();
        let violation = world.report().violation;
        world.end();
        match violation {
            Some(violation) => Err(Disagreement::Broken(violation)),
            None => Ok(world
                .transcript
                .as_ref()
                .map(|transcript| transcript.take())),
        }
    };
    let (packets, direct) = (run(Mode::Packets)?, run(Mode::Direct)?);
    let (packets, direct) = (packets.unwrap_or_default(), direct.unwrap_or_default());
    match packets.differs(&direct) {
        Some(what) => Err(Disagreement::Differs(what)),
        None => Ok(packets.completions()),
    }
}
