//! `librdmacm.so.1`: connections by IP address, as `rdma_cm` programs make them. It is this same library under its
//! second name, so that a program that is linked against both has one device.
//!
//! - `manager` is the connection manager of the process: the state machine of `verbs-cm`, which uses the messages that
//!   Linux uses. `manager::endpoint` is what it knows of an id.
//! - `id` is the object that programs hold, with the calls of `life`, `options` and `ep`.
//! - `channel` has what the events of ids wait in. `channel::arrival` makes them of the manager's, `channel::taken` is what
//!   happens when they are taken.
//! - `address` binds and resolves: `address::ports` knows which ids of the process have which port numbers, and
//!   `address::sockaddr` the addresses of C.
//! - `connect` makes and ends connections; `connect::streams` those that the device makes itself, over TCP.
//! - `qp` and `multicast` are further calls; `multicast::group` is a group that ids have joined.
//!
//! As in librdmacm, queue pairs change their states in the program's own calls: a client's goes to RTS when the program
//! takes the event that the peer has replied, a server's in `rdma_accept`, and either goes to ERR in `rdma_disconnect`.

pub(crate) mod address;
mod channel;
mod connect;
#[cfg(test)]
mod death_tests;
#[cfg(test)]
mod extended_tests;
mod id;
#[cfg(test)]
mod listener_tests;
mod manager;
mod multicast;
mod qp;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use self::address::{
    address_for, bind_addr, datagram_max, datagram_way, get_dst_port, get_src_port, own_address,
    resolve_addr, resolve_route,
};
pub(crate) use self::channel::taken::get_cm_event;
pub(crate) use self::channel::{
    ack_cm_event, create_event_channel, destroy_event_channel, has_event,
};
pub(crate) use self::connect::{
    accept, connect, disconnect, establish, get_request, listen, notify, reject, reject_ece,
};
pub(crate) use self::id::ep::{create_ep, freeaddrinfo, getaddrinfo};
pub(crate) use self::id::life::{
    create_id, destroy_ep, destroy_id, free_devices, get_devices, migrate_id,
};
pub(crate) use self::id::options::set_option;
pub(crate) use self::manager::{after_fork_in_child, after_fork_in_parent, before_fork, publish};
pub(crate) use self::multicast::{join_multicast, join_multicast_ex, leave_multicast};
pub(crate) use self::qp::{
    create_qp, create_qp_ex, create_srq, create_srq_ex, destroy_qp, destroy_srq, get_remote_ece,
    init_qp_attr, set_local_ece,
};
pub(crate) use self::text::event_str;
