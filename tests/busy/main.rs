//! Destroy answers Busy, on every edge, and changes nothing (K10, K12): a table of all edges, many
//! destroys at once, and random programs against a model.
#![allow(clippy::unwrap_used, reason = "tests")]

mod edges;
mod model;
mod order;
mod program;
