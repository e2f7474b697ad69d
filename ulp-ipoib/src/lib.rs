//! IP over InfiniBand (RFC 4391, RFC 4755): an IP interface on a queue pair.

#![forbid(unsafe_code)]

mod admin;
pub mod config;
mod counters;
#[cfg(feature = "smoltcp")]
pub mod embedded;
mod error;
mod face;
mod interface;
mod link;
mod resolver;
pub mod wire;

pub use admin::{Administration, Membership};
pub use config::{Config, Mode};
pub use counters::Counters;
pub use error::{Error, SendError};
pub use face::{Face, LinkInfo};
pub use interface::Interface;
