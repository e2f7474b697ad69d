//! The simulator: that it repeats, that it detects defects, that both modes of carrying messages agree, and that no
//! attacker on the network can do harm.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

mod agree;
mod bottleneck;
mod flows;
mod host;
mod hostile;
mod migration;
mod multicast;
mod mutants;
mod repeat;
mod streams;
