//! Whether messages placed directly and messages sent as packets give the same results.

use std::fmt;

use crate::check::Violation;
use crate::run::director::direct;
use crate::run::world::World;
use crate::run::{Mode, Options};

/// A difference between the two modes of carrying messages, or a rule that one of them broke.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disagreement {
    /// One of them broke a rule by itself.
    Broken(Violation),
    /// Their results differ.
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

/// Does the same work twice, once over packets and once by direct placement, without faults and one step after the
/// other. Returns how many completions agreed.
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
        direct(&world);
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
