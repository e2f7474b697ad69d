//! Numbers of the protocols, each with a type; errors; times, seeds and statistics.

pub mod addr;
pub mod error;
pub mod seed;
pub mod stats;
pub mod time;
