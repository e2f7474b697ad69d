//! Streams: what carries iWARP. [`StreamLink`] is the trait of what they are made on, [`Stream`] that of a connection;
//! [`Tcp`] is the TCP of this host. [`Mpa`] is the machine that starts an MPA connection on a stream, whichever
//! provider has it.

mod link;
mod mpa;
mod offloaded;
mod tcp;
#[cfg(all(test, not(verbs_loom)))]
mod tests;

pub use link::{Bound, Interest, Stream, StreamLink, Token};
pub use mpa::{Agreed, Mpa, MpaConfig, MpaError, MpaEvent};
pub use offloaded::Offloaded;
pub use tcp::Tcp;
