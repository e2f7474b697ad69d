//! Goal: an RNIC in software: connections by its own verbs, and all operations that iWARP has over real TCP streams.
//! Method: two HCAs of this process on loopback addresses.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod adopting;
mod connecting;
mod mapped;
mod offloaded;
mod operations;
mod port_space;
mod reads;
mod resting;
mod support;
