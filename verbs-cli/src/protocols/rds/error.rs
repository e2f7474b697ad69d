//! Why `verbs rds` failed, each with the exit code it ends in.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ulp_rds::SendError;
use verbs_core::Error;

use super::message::Wrong;
use crate::exit;
use crate::wire::WireError;

/// Why it failed. Each is one sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RdsError {
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The node could not be opened, or a socket not be bound.
    #[error(transparent)]
    Rds(#[from] ulp_rds::Error),
    #[error("cannot send: {0}")]
    Send(SendError),
    #[error("cannot {doing}: {error}")]
    System {
        doing: &'static str,
        error: io::Error,
    },
    #[error("cannot write the result to stdout: {0}")]
    Stdout(io::Error),
    /// A verb failed.
    #[error("cannot {doing}: {error}")]
    Verb { doing: &'static str, error: Error },
    /// The interface on a hosted subnet could not be made.
    #[error("cannot find peers on the subnet: {0}")]
    Interface(ulp_ipoib::Error),
    #[error("cannot make connections on the subnet: {0}")]
    Manager(verbs_cm::Error),
    #[error(
        "the port of the subnet is not in service after {0:?}: does a subnet manager run? (`verbs subnet --sm` has one)"
    )]
    NoLink(Duration),
    /// This end has no address of the peer's family.
    #[error("no address of this end is of the family of {0}: name one with -I, -r or --bind")]
    NoAddress(IpAddr),
    #[error("{peer} has not answered within {timeout:?}: {done} answers came before")]
    Silent {
        peer: SocketAddr,
        timeout: Duration,
        done: u64,
    },
    /// The peer's host refuses packets.
    #[error("{0}")]
    Nobody(verbs_cm::Error),
    /// What came is not what was sent.
    #[error("from {from}: {wrong}")]
    Wrong { from: SocketAddr, wrong: Wrong },
}

impl From<SendError> for RdsError {
    fn from(error: SendError) -> Self {
        Self::Send(error)
    }
}

impl From<ulp_ipoib::Error> for RdsError {
    fn from(error: ulp_ipoib::Error) -> Self {
        Self::Interface(error)
    }
}

impl From<verbs_cm::Error> for RdsError {
    fn from(error: verbs_cm::Error) -> Self {
        Self::Manager(error)
    }
}

impl RdsError {
    /// What the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Wire(_)
            | Self::Rds(_)
            | Self::System { .. }
            | Self::Stdout(_)
            | Self::NoAddress(_) => exit::FILES,
            Self::Wrong { .. } => exit::DIGEST,
            Self::Send(_)
            | Self::Verb { .. }
            | Self::Interface(_)
            | Self::Manager(_)
            | Self::NoLink(_)
            | Self::Silent { .. }
            | Self::Nobody(_) => exit::DEVICE,
        }
    }

    /// For the result of a verb.
    pub(super) fn verb(doing: &'static str) -> impl FnOnce(Error) -> Self {
        move |error| Self::Verb { doing, error }
    }

    /// For what the system says.
    pub(super) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { doing, error }
    }
}
