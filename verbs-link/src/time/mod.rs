//! Time: points in it, the clocks that tell it, and the engine that calls what is due.
//!
//! Everything is handed the time by a [`Clock`], so that a simulation decides what time it is. From below:
//! [`Instant`] and the wall's clock, deadlines in order, the agenda of what is due and the thread that sleeps until
//! then, clocks, engines.

mod agenda;
mod attend;
mod clock;
mod due;
mod engine;
mod instant;
mod timers;
mod wall;

pub use attend::{Attend, Waiter};
pub use clock::{Clock, VirtualClock};
pub use due::Due;
pub use engine::Engine;
pub use instant::Instant;
pub use timers::Timer;
pub use wall::WallClock;
