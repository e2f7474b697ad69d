//! Awaitable operations.
//!
//! Goal: what programs see of them is right over the loopback link, over UDP and over TCP: results, order, buffers that are
//! returned whatever is dropped, ends that state their cause. Method: two HCAs on one link, each with an endpoint.

#![deny(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod basics;
#[path = "../../verbs-cli/tests/child/mod.rs"]
mod child;
mod crowded;
mod domain;
mod dropped;
mod ends;
mod immediate;
mod keepalive;
mod over;
mod pair;
mod refused;
mod shared;
mod simulated;
mod strangers;
mod streams;
mod threads;
mod vouched;
mod wakes;
mod within;
