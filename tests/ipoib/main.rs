//! IP over InfiniBand, as its users see it.
//!
//! Goal: IP packets reach their neighbours as datagrams and over connections, whatever happens to the link in the
//! meantime, and cost no allocation. Method: nodes with the embedded face and the stack of smoltcp, over a simulated
//! network with an administrator of the test's own, and over a subnet with switches and a real one; in virtual time.

#![deny(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod admin;
mod allocations;
#[expect(
    unsafe_code,
    reason = "GlobalAlloc is an unsafe trait; argued in the file"
)]
#[expect(dead_code, reason = "no steps are counted here")]
#[path = "../exact/allocator.rs"]
mod allocator;
mod connected;
mod datagrams;
mod groups;
mod late;
mod limits;
mod neighbours;
mod node;
mod pauses;
mod peer;
mod pressure;
mod resolver;
mod subnet;
