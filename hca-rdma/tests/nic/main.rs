//! The provider on a device of libibverbs: that of this workspace's own C library, which is a software HCA, or that of
//! the rdma-core in the folder that `VERBS_RDMA_CORE` names.
#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod conformance;
mod connections;
mod data;
mod events;
mod list;
mod pair;
#[expect(unsafe_code, reason = "libraries are loaded: argued in the file")]
mod rdma_core;
mod stamps;
mod windows;
mod xrc;
