//! rsockets: streams and datagrams over RDMA with the calls of sockets, by the protocol of Debian's librdmacm.
//!
//! - `stream` is a connection, with the messages between its ends; `datagram` is a socket for datagrams. `queue` is the
//!   queue pair of either, `memory` its buffers.
//! - `socket` is a stream's socket from its creation to its close, and the table of all sockets. `options` are their options.
//! - `wait` is how threads wait for a socket.
//! - `calls`, `data`, `stream::maps` and `poll` are the functions.

mod calls;
mod data;
mod datagram;
mod memory;
mod options;
mod poll;
mod queue;
#[cfg(test)]
mod service_tests;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod wait;

pub(crate) use self::calls::{
    raccept, rbind, rclose, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt, rlisten,
    rsetsockopt, rshutdown, rsocket,
};
pub(crate) use self::data::{
    rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rwrite, rwritev,
};
pub(crate) use self::poll::{rpoll, rselect};
pub(crate) use self::socket::{after_fork_in_child, after_fork_in_parent, before_fork};
pub(crate) use self::stream::{riomap, riounmap, riowrite};
