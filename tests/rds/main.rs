//! Reliable datagram sockets: what programs see of them, and a mesh of nodes whose connections are killed.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

mod checker;
mod hostile;
mod lab;
mod mesh;
mod rdma;
mod sockets;
