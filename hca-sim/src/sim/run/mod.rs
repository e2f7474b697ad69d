//! One run: from a seed to a verdict.

mod area;
mod compare;
mod conn;
mod control;
mod director;
mod draft;
mod evil;
mod keys;
mod listener;
mod machine;
mod options;
mod parcel;
mod plan;
mod post;
mod posted;
mod reap;
mod report;
mod service;
mod session;
mod shrink;
mod stand;
mod storm;
mod transcript;
mod uc;
mod ud;
mod unreliable;
mod world;
mod xrc;

pub use compare::{Disagreement, compare};
pub use director::{run, run_with};
pub use options::{Mode, Options};
pub use plan::Plan;
pub use report::Report;
pub use shrink::shrink;
