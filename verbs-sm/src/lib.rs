//! A small built-in subnet manager and administrator for InfiniBand subnets.
//!
//! Until a manager has configured it, a subnet carries only subnet management datagrams. The manager queries
//! every node by directed routes, assigns LIDs, computes routes and writes them into switches, brings links into
//! service, and answers queries about all of it as the administrator: paths, multicast groups, services, nodes,
//! events (IBTA vol. 1, chapters 14 and 15).
//!
//! - [`SubnetManager`]: the machine. Datagrams and the time go in, datagrams come out; it owns no queue
//!   pair, clock or lock.
//! - [`Manager`]: the machine on a device's port, a client of the port's service for management
//!   datagrams like any other.
//!
//! It hands over to another manager with a higher priority, takes over from one that dies, and keeps LIDs that
//! were assigned before. Not here: LMC other than 0, several subnets and routers, quality of service by
//! partition, congestion control, alias GUIDs, multipath records, a database that outlives the process. Routes
//! are free of deadlocks in every topology; see [`Counters::unordered_routes`] for the one exception, routes
//! between switches' own ports.

#![forbid(unsafe_code)]

mod config;
mod driver;
mod elect;
#[doc(hidden)]
pub mod fuzz;
mod manager;
mod routing;
mod sa;
mod seat;
mod sweep;
#[cfg(test)]
mod testing;

pub(crate) use routing::{lids, route, tables};
pub(crate) use sweep::{fabric, smp};

pub use config::{Config, Partition};
pub use driver::{Manager, StartError};
pub use manager::{Counters, Output, SubnetManager};
pub use seat::{CLASSES, Port, Seat};
