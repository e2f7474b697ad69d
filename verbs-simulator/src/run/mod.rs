//! One run: from a seed to a verdict.

mod control;
mod director;
mod failing;
mod keys;
mod migration;
mod rc;
mod services;
mod setup;
mod verdict;
mod world;

pub(crate) use rc::{area, conn, listener, posted, session, wr_builder};
pub(crate) use services::{endpoint, pending_wr, service, uc, ud, unreliable, xrc};
pub(crate) use setup::{faults, machine, options, plan};
pub(crate) use verdict::{compare, report, shrink, transcript};

pub use compare::{Disagreement, compare};
pub use director::{run, run_with};
pub use options::{Mode, Options};
pub use plan::Plan;
pub use report::Report;
pub use shrink::shrink;
