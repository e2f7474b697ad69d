//! A software HCA.

pub mod clock;
pub mod command;
pub mod engine;
