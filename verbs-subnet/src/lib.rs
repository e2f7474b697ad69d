//! A simulated InfiniBand subnet: switches, adapters, links, and the packets between them.
//!
//! [`Topology`] describes the nodes and links: built in code, read from the file format of ibsim and
//! ibnetdiscover ([`Topology::parse`]), or a [`FatTree`]. [`Subnet`] is the machine over it. Each node answers
//! its subnet manager and counts for its performance manager ([`sma`](agent::sma), [`pma`](agent::pma)); switches
//! forward by the tables that the manager writes; datagrams with a directed route travel hop by hop along it.
//! This crate has no manager: until one has set LIDs and tables and has brought the ports up, only directed
//! routes work.
//!
//! The machine is sans-IO and deterministic: time comes in, packets come in and go out, and a seed decides which
//! packets a bad link loses. [`Host`] lets programs take part: it has each port's service for management
//! datagrams, and speaks the protocol of [`message`](ipc::message) with its clients, over any transport that
//! carries datagrams in order; [`socket`](ipc::socket) is one for Unix. [`SharedSubnet`] attaches HCAs of this
//! process, whose queue pairs then communicate across the switches; [`RemotePort`] attaches one to a subnet that
//! another process hosts; their packets travel through [`rings`](verbs_link::ring) in shared memory.
//!
//! ```
//! use verbs_subnet::{FatTree, Subnet, SubnetConfig};
//!
//! // 64 adapters at 8 switches; no port is up until a subnet manager has configured it.
//! let topology = FatTree::SMALL.topology()?;
//! let subnet = Subnet::new(&topology, SubnetConfig::default());
//! assert_eq!(subnet.len(), 64 + 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod agent;
mod attached;
mod host;
pub mod ipc;
mod packet;
mod remote;
mod subnet;
mod topology;

pub use attached::{SharedSubnet, SubnetPort};
pub use host::{Host, HostCounters, HostLimits};
pub use packet::{Body, MadPacket, Packet};
pub use remote::{AttachError, RemotePort};
pub use subnet::{Bound, Carried, LinkFault, Record, Subnet, SubnetConfig, SubnetEvent};
pub use topology::fat_tree::FatTree;
pub use topology::{LinkSpec, NodeId, NodeSpec, PortRef, Topology, TopologyError};
