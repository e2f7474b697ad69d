//! Formats of RDS 3.1: plain values that are parsed and emitted.
//!
//! Parsers take any bytes and never panic; what they refuse they name.

mod congestion;
mod extension;
pub mod fuzz;
mod handshake;
mod header;

pub use congestion::{CongestionMap, MapLength};
pub use extension::{Cookie, Extension, Extensions, Full};
pub use handshake::{Handshake, HandshakeError, Version};
pub use header::{Header, HeaderError, HeaderFlags};

/// Payload bytes of one packet; longer messages are cut into fragments of this length.
pub const FRAGMENT_LEN: usize = 4096;

/// Payload bytes of a message at most.
pub const MESSAGE_LEN_MAX: usize = 1 << 20;

/// The port that answers pings.
pub const PING_PORT: u16 = 0;

/// The source port of a handshake probe, which goes to [`PING_PORT`].
pub const PROBE_PORT: u16 = 1;
