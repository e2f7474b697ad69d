//! A software HCA.

pub mod link;
pub mod wire;
