//! The daemon of a host, sans-IO: several processes share its addresses, queue pair numbers and ports.
//!
//! The HCA stays in each process: it posts, polls and copies there. The daemon has what processes need to share:
//!
//! * [`Daemon`]: the clients, and what each of them has. Its inputs are datagrams of clients, packets of the network
//!   and the time; its outputs are datagrams, packets and reports. It uses no socket, no clock and no lock;
//!   `verbs host` moves the bytes.
//! * Queue pair numbers are leased to clients in blocks, so that a packet's number shows which client it is for.
//! * Packets of clients are sent in deficit round robin. Packets between two clients pass through the daemon's memory
//!   only until the two have a *channel*, memory of their own, which the daemon makes for them.
//! * Packets of other hosts pass through the daemon unless its caller [gives](Daemon::give_socket) a client sockets of its
//!   own, and has the system steer them there by the client's blocks.
//! * Messages of the connection manager are for queue pair 1, which all clients have: requests for a service are
//!   delivered to the client that listens for it, the others to the client that has the connection.
//! * The numbers of clients outlive the daemon: the next one learns of them by [`Record`]s, and clients claim them.
//! * A client that ends, for whatever reason, loses what it had: its peers are informed, its numbers rest.
//! * [`Session`]: verbs that a client sends as bytes, carried out on a device with the client as their
//!   [origin](verbs_core::Origin).
//!
//! If a client breaks the rules of the line, only its own line is closed, and no other client notices.
#![forbid(unsafe_code)]

mod channel;
mod client;
mod connection;
mod daemon;
mod outbox;
mod outward;
mod packet;
mod service;
mod session;
mod stray;

pub use channel::{ChannelEnd, NewChannel};
pub use client::{ClientId, ClientInfo, User};
pub use daemon::{Counters, Daemon, Ended, GroupChange, Mad, Record};
pub use outbox::Files;
pub use session::{Reply, Report, Session};
