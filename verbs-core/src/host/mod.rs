//! What a host's daemon and its clients say to each other: several processes share one address.
//!
//! One daemon of a host and a user (`verbs host`) owns what processes have to share: addresses, queue pair numbers, port
//! numbers. The HCA stays in each process. Daemon and client talk over a *line*, a Unix socket of type seqpacket.
//! This module has what is said there, and nothing that waits, sends or receives:
//!
//! * [`message`]: the messages of the line.
//! * [`command`]: every verb as bytes, with its result. A number in the table of verbs names the verb for ever; what
//!   it acts on is a [`Handle`].
//! * [`handle`]: the names of a client's objects. They resolve in the table of that client only; one that was
//!   destroyed, belongs to another client or is of another kind misses.
//! * [`quota`]: what one client may have, and the error for more.
//! * [`number`]: queue pair numbers of a host, in blocks that clients lease.
//! * [`channel`]: memory that two clients share.
//! * [`list`]: what a daemon tells of its clients.
//! * [`ports`]: how a connection manager asks for a port number that no other process has.
//!
//! The format: integers are little-endian; a list has its length in front, an option a byte. A structure may grow in a
//! later version: bytes behind what is known are accepted if they are zero.

pub mod bytes;
pub mod channel;
pub mod command;
#[doc(hidden)]
pub mod fuzz;
pub mod handle;
pub mod list;
pub mod message;
pub mod number;
pub mod ports;
pub mod quota;

pub use bytes::{Encode, Malformed, Reader};
pub use channel::Channel;
pub use handle::{Handle, HandleTable};
pub use message::Message;
pub use number::{Block, Blocks};
pub use ports::HostPorts;
pub use quota::{Quota, QuotaError, Usage};
