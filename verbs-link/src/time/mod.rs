//! Time: points in time, the clocks, and the engine that calls what is due.
//!
//! Everything gets the time from a [`Clock`], so that a simulation decides what time it is. From below: [`Instant`] and
//! the wall clock, deadlines in order, the agenda of what is due and the thread that sleeps until then, clocks,
//! engines.

mod agenda;
mod attend;
mod clock;
mod due;
mod engine;
mod timers;
mod wakes;
mod wall;

pub(crate) use attend::ALSO_MAX;
pub use attend::{Attend, Waiter};
pub use clock::{Clock, VirtualClock};
pub use due::Due;
pub use engine::Engine;
pub use timers::Timer;
pub use verbs_core::time::Instant;
pub use wakes::Wakes;
pub use wall::WallClock;
