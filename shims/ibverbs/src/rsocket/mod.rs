//! rsockets: streams over RDMA with the calls of sockets, by the protocol of Debian's librdmacm.
//!
//! - `wire` is what the ends say to each other. `stream` is a connection, `memory` its buffers.
//! - `socket` is a socket from its creation to its close, and how threads wait for it. `options` is what programs set.
//! - `calls`, `data`, `maps` and `poll` are the functions.
//!
//! Sockets for datagrams are refused: their protocol works on InfiniBand only.

mod calls;
mod data;
mod maps;
mod memory;
mod options;
mod poll;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use self::calls::{
    raccept, rbind, rclose, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt, rlisten,
    rsetsockopt, rshutdown, rsocket,
};
pub(crate) use self::data::{
    rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rwrite, rwritev,
};
pub(crate) use self::maps::{riomap, riounmap, riowrite};
pub(crate) use self::poll::{rpoll, rselect};
pub(crate) use self::socket::after_fork_in_child;
