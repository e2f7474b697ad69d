//! Links: what ports are attached to.

mod loopback;

pub use loopback::Loopback;
pub(crate) use loopback::{LID_MAX, Links, Port};
