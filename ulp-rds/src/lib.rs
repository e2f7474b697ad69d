//! Reliable Datagram Sockets (RDS) 3.1: datagrams between sockets, exactly once and in order for each pair of
//! sockets, whatever happens to the connections that carry them.
//!
//! A [`Node`] has the addresses of a device. Between two addresses there is one reliable connection, made when it is
//! needed and made again when it is lost; it carries the datagrams of all [`RdsSocket`]s. Nothing has a thread.
//!
//! ```no_run
//! use ulp_rds::{Config, Node, RdsSocket};
//!
//! /// Answers every datagram with itself. `device` has the address 10.0.0.2.
//! async fn echo(device: &std::sync::Arc<verbs_core::Device>) -> Result<(), Box<dyn std::error::Error>> {
//!     let node = Node::open(device, Config::new(["10.0.0.2".parse()?])).await?;
//!     let socket = RdsSocket::bind(&node, "10.0.0.2:4000".parse()?)?;
//!     loop {
//!         let datagram = socket.recv().await;
//!         socket.send_to(&datagram.payload, datagram.from).await?;
//!     }
//! }
//! ```
//!
//! - [`wire`]: header, extensions, congestion map, private data.
//! - [`machine`]: one connection, sans-IO.
//! - [`Node`], [`RdsSocket`]: what programs use. [`Config`] has the limits.
//! - [`Rdma`], [`Mapping`]: RDMA and atomics with a datagram.
//! - [`Readiness`]: a descriptor to wait on, beside futures.
#![forbid(unsafe_code)]

mod config;
mod datagram;
mod error;
pub mod machine;
mod node;
mod payload;
mod rdma;
mod readiness;
mod socket;
pub mod wire;

pub use config::{Config, DATAGRAM_CHARGE, SEND_MESSAGES_MAX};
pub use datagram::{Counters, Datagram};
pub use error::{Error, SendError};
pub use node::{ConnectionInfo, Node};
pub use payload::Payload;
pub use rdma::{Local, Mapping, Notification, Rdma, RdmaStatus, SendOptions};
pub use readiness::Readiness;
pub use socket::{RdsSocket, Received};
