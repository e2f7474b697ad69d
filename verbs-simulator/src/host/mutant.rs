//! Defects of a host, injected on purpose: none of them is in the code that ships.

use std::fmt;
use std::str::FromStr;

use crate::NoSuchMutant;

/// A defect of the host's daemon or of its programs' links; the command line uses its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HostMutant {
    /// A writer publishes a message before its bytes are there.
    TailFirst,
    /// A program hears that a neighbour is gone before it has read what that one had written.
    GoneFirst,
    /// Blocks of queue pair numbers are leased again at once.
    Unrested,
    /// What a neighbour writes for the queue pairs of others is taken.
    ForeignBlock,
    /// Peers of a program that has ended get no DREQ.
    ForgottenDreq,
    /// A target that comes home from another program takes the next request for one that it has executed.
    SkippedRequest,
}

impl HostMutant {
    /// Every defect.
    pub const ALL: &'static [Self] = &[
        Self::TailFirst,
        Self::GoneFirst,
        Self::Unrested,
        Self::ForeignBlock,
        Self::ForgottenDreq,
        Self::SkippedRequest,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TailFirst => "tail-first",
            Self::GoneFirst => "gone-first",
            Self::Unrested => "unrested-block",
            Self::ForeignBlock => "foreign-block",
            Self::ForgottenDreq => "forgotten-dreq",
            Self::SkippedRequest => "skipped-request",
        }
    }
}

impl fmt::Display for HostMutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for HostMutant {
    type Err = NoSuchMutant;

    fn from_str(name: &str) -> Result<Self, NoSuchMutant> {
        let found = Self::ALL.iter().find(|mutant| mutant.name() == name);
        found.copied().ok_or_else(|| NoSuchMutant::of(name))
    }
}
