//! Errors of interfaces.

use verbs_core::PKey;

use crate::wire::IpError;

/// Why an interface could not be created, or a step of it failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // --- the caller ---
    /// Only the address of a group can be subscribed to.
    #[error("{0} is not the address of a group")]
    NotGroup(std::net::IpAddr),
    /// More groups than the interface joins.
    #[error("the interface is in {max} groups, which is all it may be in")]
    Groups {
        /// Groups that it may join.
        max: usize,
    },
    /// The interface is being closed.
    #[error("the interface is closed")]
    Closed,

    // --- the device ---
    /// The device lacks a feature that interfaces need.
    #[error("the device has no {0}")]
    Unsupported(&'static str),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs_core::Error),
    /// The connection manager or the subnet administrator refused or failed.
    #[error(transparent)]
    Manager(#[from] verbs_cm::Error),

    // --- the subnet ---
    /// The port is not yet a member of the partition.
    #[error("the port is no member of partition {0}")]
    Partition(PKey),
}

/// Why a packet was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No buffer is free; [`Face::writable`](crate::Face::writable) is called when one is.
    #[error("no buffer is free")]
    Full,
    /// The link is down.
    #[error("the link is down")]
    Down,
    /// The bytes are not a packet.
    #[error(transparent)]
    NotIp(#[from] IpError),
}
