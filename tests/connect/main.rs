//! Connections that the connection manager makes on software HCAs.
//!
//! Goal: what users see of connections is right over every link: they are established with their private data and carry
//! messages; refusals, silence and ends are reported; nothing is left behind. Method: two HCAs on one link, each with
//! programs as users would write them.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod absent;
mod ends;
mod numbers;
mod over_tcp;
mod service;
mod storms;
mod ways;
mod xrc;
