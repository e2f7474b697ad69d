//! IP over InfiniBand (RFC 4391, RFC 4755): an IP interface on a queue pair.
//!
//! - [`Interface`]: takes IP packets by a direct call; it finds neighbours, paths and groups itself.
//! - [`Face`]: the receiver of packets. `embedded` (feature `smoltcp`) is one for a stack in this process;
//!   `verbs ipoib up` has one for the system's.
//! - [`Administration`]: the source of paths and groups; the client of the subnet administrator is one.
//! - [`wire`]: the formats; [`offload`]: several packets as one, for a face that is a device of the system.
//!
//! There is no thread: control consists of requests that make progress in their completions, packets are posted
//! and polled directly. All memory is registered when an interface is created; a packet allocates nothing.
//!
//! Not here: the subnet's manager, IP itself, unreliable connections.

#![forbid(unsafe_code)]

mod admin;
pub mod config;
mod counters;
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
#[cfg(feature = "smoltcp")]
pub use face::embedded;
pub use face::{Face, LinkInfo, offload};
pub use interface::{Batch, Interface};
