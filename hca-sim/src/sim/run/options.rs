//! What a run is asked for.

use std::fmt;
use std::time::Duration;

use crate::sim::Plant;

/// What a run is asked for. Everything that is not said here, the seed decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Decides everything else.
    pub seed: u64,
    /// For how long faults happen and work is begun, in virtual time; then all of it has to end.
    /// 20 ms by default.
    pub time: Duration,
    /// How many nodes there are, 2 to 16; drawn if `None`.
    pub nodes: Option<usize>,
    /// How messages travel; drawn if `None`.
    pub mode: Option<Mode>,
    /// Work requests posted at most; `None` for no bound.
    pub operations: Option<u64>,
    /// A defect to find.
    pub plant: Option<Plant>,
}

impl Options {
    /// A run of that seed with nothing else said.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            time: Duration::from_millis(20),
            nodes: None,
            mode: None,
            operations: None,
            plant: None,
        }
    }
}

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As packets over a [`Network`](crate::sim::Network).
    Packets,
    /// Placed by the sender itself, on a [`Loopback`](crate::Loopback).
    Direct,
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
            None => {}
        }
        if let Some(operations) = self.operations {
            write!(f, " --operations {operations}")?;
        }
        if let Some(plant) = self.plant {
            write!(f, " --plant {plant}")?;
        }
        Ok(())
    }
}
