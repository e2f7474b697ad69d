//! Why something could not be done.

use verbs_core::PKey;

use crate::wire::IpError;

/// Why an interface could not be made, or a step of it not be done.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // --- the caller ---
    /// An address that is no group's cannot be subscribed to.
    #[error("{0} is not the address of a group")]
    NotGroup(std::net::IpAddr),
    /// More groups than the interface joins.
    #[error("the interface is in {max} groups, which is all it may be in")]
    Groups {
        /// Groups that it may be in.
        max: usize,
    },
    /// The interface is being closed.
    #[error("the interface is closed")]
    Closed,

    // --- the device ---
    /// The device lacks what interfaces are made of.
    #[error("the device has no {0}")]
    Unsupported(&'static str),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs_core::Error),
    /// The connection manager or the subnet administrator did not do what it was asked for.
    #[error(transparent)]
    Manager(#[from] verbs_cm::Error),

    // --- the subnet ---
    /// The port has not become a member of the partition yet.
    #[error("the port is no member of partition {0}")]
    Partition(PKey),
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No buffer is free; [`Face::writable`](crate::Face::writable) says when one is.
    #[error("no buffer is free")]
    Full,
    /// The link is down.
    #[error("the link is down")]
    Down,
    /// The bytes are no packet.
    #[error(transparent)]
    NotIp(#[from] IpError),
}
