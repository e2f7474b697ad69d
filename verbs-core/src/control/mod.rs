//! The control path: requests, the commands that they become, and the routines that finish them.

pub mod client_queue;
pub mod command;
pub mod compat;
pub mod object;
pub(crate) mod panics;
pub mod request;
pub(crate) mod routine;
pub mod task;
pub mod verb;
pub(crate) mod watch;
