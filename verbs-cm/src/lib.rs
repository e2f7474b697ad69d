//! Connection management: the InfiniBand connection manager and its messages.
#![forbid(unsafe_code)]

pub mod wire;
