//! A software HCA.

#![deny(unsafe_code)]

pub mod clock;
pub mod command;
pub mod engine;
pub mod link;
pub mod wire;
