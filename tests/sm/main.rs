//! The built-in subnet manager and its administrator.
//!
//! Goal: subnets come up, stay up, and their administrator answers. Method: the machine on simulated subnets without
//! any clock, step by step ([`lab`]); and managers on HCAs, with the clients that programs use.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod elections;
mod groups;
mod lab;
mod served;
mod sweeps;
mod trace;
