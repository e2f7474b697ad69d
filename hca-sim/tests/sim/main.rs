//! The simulator: that it repeats, that it sees, that both ways of carrying messages agree, and that
//! nobody on the network can do harm.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

mod agree;
mod hostile;
mod multicast;
mod plants;
mod repeat;
