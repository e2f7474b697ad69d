//! The provider on a device of libibverbs: our own C library's, which is a software HCA, or that of the rdma-core in the
//! folder that `VERBS_RDMA_CORE` names.
#![allow(clippy::unwrap_used, reason = "tests")]

mod conformance;
mod data;
mod events;
mod pair;
mod rdma_core;
