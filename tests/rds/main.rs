//! Reliable datagram sockets: what programs see of them, and a mesh of nodes whose connections are killed.

#![deny(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod allocations;
#[expect(
    unsafe_code,
    reason = "GlobalAlloc is an unsafe trait; argued in the file"
)]
#[expect(dead_code, reason = "no steps are counted here")]
#[path = "../exact/allocator.rs"]
mod allocator;
mod checker;
mod forged;
mod hostile;
mod iwarp;
mod lab;
mod limits;
mod lives;
mod mesh;
mod polled;
mod rdma;
mod restarts;
mod sockets;
