//! A software HCA.

pub mod wire;
