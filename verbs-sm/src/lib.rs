//! A subnet manager and administrator for InfiniBand subnets, small and built in.
//!
//! Before a manager has been there, nothing passes in a subnet but its own datagrams. It looks at every
//! node by directed routes, gives LIDs, computes routes and writes them into switches, brings links into
//! service, and answers for all of it as the administrator: paths, multicast groups, services, nodes,
//! events (IBTA vol. 1, chapters 14 and 15).
//!
//! - [`SubnetManager`]: the machine. Datagrams and the time go in, datagrams come out; it owns no queue
//!   pair, clock or lock.
//! - [`Manager`]: the machine on a device's port, a client of the port's service for management
//!   datagrams like any other.
//!
//! It gives way to another manager with a higher priority, takes over from one that dies, and finds the
//! LIDs that were given before it. Not here: LMC other than 0, several subnets and routers, quality of
//! service by partition, congestion control, alias GUIDs, multipath records, a database that outlives the
//! process. Routes are free of deadlocks in every topology; see [`Counters::unordered_routes`] for the one
//! exception, routes between switches' own ports.

#![forbid(unsafe_code)]

mod config;
mod driver;
mod elect;
mod fabric;
mod forward;
#[doc(hidden)]
pub mod fuzz;
mod lids;
mod manager;
mod route;
mod sa;
mod seat;
mod smp;
mod sweep;
mod tables;
#[cfg(test)]
mod testing;

pub use config::{Config, Partition};
pub use driver::{Manager, StartError};
pub use manager::{Counters, Output, SubnetManager};
pub use seat::{CLASSES, Port, Seat};
