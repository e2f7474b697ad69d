//! Commands that serve other processes: a host's daemon, a subnet, and programs under a library of ours.

mod door;
pub(crate) mod host;
pub(crate) mod run;
pub(crate) mod subnet;
