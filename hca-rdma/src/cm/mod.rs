//! Connections by address, which the system's connection manager makes.
//!
//! The command thread does all work on an endpoint: the verbs, and what follows from librdmacm's events. The thread
//! that waits for events only reads them, and hands them over ([`table::Step`]). So calls of an id are made one at a
//! time, as librdmacm requires, and nothing here waits for anything but the kernel.
//!
//! - [`table`] has the endpoints, [`machine`] is the table of their states, [`endpoint`] carries out what it says.
//! - [`verbs`] are the verbs, and the steps.
//! - [`moves`] changes the state of the connection's queue pair: librdmacm does not own it, and says which attributes
//!   it gets.

mod address;
mod endpoint;
mod machine;
mod moves;
pub(crate) mod table;
pub(crate) mod verbs;
