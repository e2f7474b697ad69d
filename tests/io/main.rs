//! Awaitable operations.
//!
//! Goal: what programs see of them is right over the loopback link and over UDP: results, order, buffers that come back
//! whatever is dropped, ends that say why. Method: two HCAs on one link, each with an endpoint.

#![deny(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod basics;
mod dropped;
mod ends;
mod over;
mod pair;
mod streams;
mod threads;
