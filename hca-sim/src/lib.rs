//! A software HCA.

pub mod clock;
pub mod engine;
