//! The options of a run.

use std::fmt;
use std::time::Duration;

use crate::Mutant;

/// The options of a run. The seed determines everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Determines everything else.
    pub seed: u64,
    /// For how long faults happen and work is begun, in virtual time; then everything has to end. 20 ms by default.
    pub time: Duration,
    /// How many nodes there are, 2 to 16; drawn if `None`.
    pub nodes: Option<usize>,
    /// How messages are carried; drawn if `None`, of packets and direct placement.
    pub mode: Option<Mode>,
    /// The most work requests that are posted; `None` for no bound.
    pub operations: Option<u64>,
    /// The defect that is injected, for the checkers to find; none by default.
    pub mutant: Option<Mutant>,
}

impl Options {
    /// A run of that seed with no other options.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            time: Duration::from_millis(20),
            nodes: None,
            mode: None,
            operations: None,
            mutant: None,
        }
    }
}

/// How messages are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As packets over a [`Network`](crate::Network).
    Packets,
    /// Placed by the sender directly, on a [`Loopback`](hca_sim::Loopback).
    Direct,
    /// As streams over a [`StreamNetwork`](crate::StreamNetwork), which is iWARP.
    Streams,
}

/// The arguments of `verbs sim` that repeat the run.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--seed {}", self.seed)?;
        if self.time != Self::new(0).time {
            write!(f, " --time {}us", self.time.as_micros())?;
        }
        if let Some(nodes) = self.nodes {
            write!(f, " --nodes {nodes}")?;
        }
        match self.mode {
            Some(Mode::Packets) => write!(f, " --mode packets")?,
            Some(Mode::Direct) => write!(f, " --mode direct")?,
            Some(Mode::Streams) => write!(f, " --mode streams")?,
            None => {}
        }
        if let Some(operations) = self.operations {
            write!(f, " --operations {operations}")?;
        }
        if let Some(mutant) = self.mutant {
            write!(f, " --mutant {mutant}")?;
        }
        Ok(())
    }
}
