//! IP over InfiniBand, as its users see it.
//!
//! Goal: packets of IP get to their neighbours as datagrams and over connections, whatever becomes of the
//! link meanwhile, and cost no allocation. Method: nodes with the embedded face and the stack of smoltcp,
//! over a simulated network with an
//! administrator of the test's own, and over a subnet with switches and a real one; in virtual time.

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
#[path = "../exact/allocator.rs"]
mod allocator;
mod connected;
mod datagrams;
mod late;
mod limits;
mod neighbours;
mod node;
mod pauses;
mod peer;
mod resolver;
mod subnet;
