//! IP over InfiniBand (RFC 4391, RFC 4755): an IP interface on a queue pair.
//!
//! - [`Interface`]: packets of IP in, by a direct call; it finds neighbours, paths and groups itself.
//! - [`Face`]: who gets the packets that come. `embedded` (feature `smoltcp`) is one for a stack in this
//!   process; `verbs ipoib up` has one for the system's.
//! - [`Administration`]: who knows paths and groups; the client of the subnet administrator is one.
//! - [`wire`]: the formats.
//!
//! There is no thread: control is requests that go on in their completions, packets are posted and polled
//! directly. All memory is registered when an interface is made; a packet allocates nothing.
//!
//! Not here: the subnet's manager, IP itself, unreliable connections.

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
