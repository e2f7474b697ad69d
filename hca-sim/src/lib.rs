//! A software HCA.

#![deny(unsafe_code)]

pub mod link;
pub mod wire;
