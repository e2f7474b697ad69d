//! Commands that show devices, connections and counters.

pub(crate) mod connections;
pub(crate) mod devinfo;
pub(crate) mod programs;
pub(crate) mod stats;
pub(crate) mod top;
