//! Reliable Datagram Sockets (RDS) 3.1: datagrams between sockets, exactly once and in order for each pair of
//! sockets, whatever happens to the connections that carry them.
//!
//! - [`wire`]: header, extensions, congestion map, private data.
//! - [`machine`]: one connection, sans-IO.
#![forbid(unsafe_code)]

pub mod machine;
pub mod wire;
