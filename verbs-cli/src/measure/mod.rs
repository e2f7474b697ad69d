//! Commands that measure or test: benchmarks, pings, and the simulator.

pub(crate) mod bench;
pub(crate) mod connect_bench;
pub(crate) mod perf;
pub(crate) mod pingpong;
pub(crate) mod rping;
pub(crate) mod sim;
