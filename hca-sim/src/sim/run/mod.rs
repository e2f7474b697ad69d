//! One run: from a seed to a verdict.

mod area;
mod compare;
mod conn;
mod control;
mod draft;
mod evil;
mod keys;
mod listener;
mod machine;
mod parcel;
mod plan;
mod post;
mod reap;
mod service;
mod session;
mod shrink;
mod stand;
mod storm;
mod uc;
mod ud;
mod unreliable;
mod world;
mod xrc;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::clock::Instant;
use crate::sim::check::{Rule, Violation};
use crate::sim::{Counts, Coverage, Digest, Plant, Sink};

pub use compare::{Disagreement, compare};
pub use plan::Plan;
pub use shrink::shrink;
use world::World;

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

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was asked for.
    pub options: Options,
    /// What the seed decided.
    pub plan: Plan,
    /// Of all that happened.
    pub digest: Digest,
    /// How much that was.
    pub counts: Counts,
    /// Work requests posted.
    pub operations: u64,
    /// The virtual time at the end.
    pub end: Instant,
    /// What met what.
    pub coverage: Coverage,
    /// What was broken, if anything was.
    pub violation: Option<Violation>,
}

/// Runs a seed and says what it came to. Uses virtual time only, and no thread.
pub fn run(options: &Options) -> Report {
    run_with(options, None)
}

/// As [`run`], and writes every packet to a capture. Errors of the sink are not told: a capture is for
/// looking at, and the run's result does not depend on it.
pub fn run_with(options: &Options, capture: Option<Sink>) -> Report {
    let world = World::new(options, capture);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run())).err();
    if let Some(panic) = panicked {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        world.accuse(Rule::Panic, text.unwrap_or("something panicked"));
    }
    let _ = world.sim.finish_capture();
    let report = world.report();
    world.end();
    report
}
