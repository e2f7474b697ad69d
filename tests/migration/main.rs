//! Connections that move to their alternate paths.
//!
//! Goal: a path that is cut, in one direction or both, moves the connection; a client moves it; nothing is lost or done
//! twice on the way, and what cannot be moved says so. Method: two HCAs with two LIDs each on a subnet with two cables
//! between its switches, one for each pair of LIDs, by modifies and by the connection manager; and two HCAs with two
//! addresses each on a simulated network that loses, doubles and reorders.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod bed;
mod connected;
mod moves;
mod refused;
mod simulated;
