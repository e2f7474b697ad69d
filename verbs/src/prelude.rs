//! What most programs name. Nothing in it shadows a name of the standard library's prelude.
//!
//! ```
//! use verbs::prelude::*;
//!
//! fn _with_those_of_the_standard_library(error: Box<dyn std::error::Error + Send + Sync>) -> String {
//!     error.to_string()
//! }
//! ```

pub use verbs_core::{Access, Device};
pub use verbs_io::{Buf, Connection, Endpoint, Listener, Pool, Region, Token, Word};

#[cfg(feature = "iwarp")]
pub use crate::iwarp::IwarpEndpoint;
#[cfg(feature = "rdma")]
pub use crate::rdma::RdmaEndpoint;
#[cfg(feature = "udp")]
pub use crate::udp::UdpEndpoint;
