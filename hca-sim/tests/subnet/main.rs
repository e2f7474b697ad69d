//! HCAs on a simulated subnet as InfiniBand devices: managed by a client of the service for management
//! datagrams, with LIDs, partitions and multicast groups.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bed;
mod capture;
mod datagrams;
mod lmc;
mod management;
mod manager;
mod partitions;
