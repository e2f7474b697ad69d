//! Sessions on reliable connections: what is posted, what completes, and the memory between.

pub(crate) mod area;
pub(crate) mod conn;
pub(crate) mod listener;
pub(crate) mod post;
pub(crate) mod posted;
pub(crate) mod reap;
pub(crate) mod session;
pub(crate) mod state;
pub(crate) mod streams;
pub(crate) mod wr_builder;
