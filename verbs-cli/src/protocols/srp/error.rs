//! Why a command about disks failed, each with the exit code it ends in.

use std::io;
use std::path::PathBuf;

use crate::exit;
use crate::wire::WireError;

/// Why a command failed. Each is one sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SrpError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("cannot {doing} {}: {error}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    #[error("cannot {doing}: {error}")]
    System {
        doing: &'static str,
        error: io::Error,
    },
    #[error("cannot write the result to stdout: {0}")]
    Stdout(io::Error),
    /// A verb failed.
    #[error("cannot {doing}: {error}")]
    Verb {
        doing: &'static str,
        error: verbs_core::Error,
    },
    /// The target could not be set up.
    #[error(transparent)]
    Target(#[from] ulp_srp::target::TargetError),
    /// No target lets us log in, or the session is lost.
    #[error(transparent)]
    Session(#[from] ulp_srp::initiator::Error),
    /// The disk does not do what it was asked for.
    #[error(transparent)]
    Disk(#[from] ulp_srp::initiator::ScsiError),
    /// The target is one of several at its address, or wants to be called by its name.
    #[error(
        "{error}; a target that has a name is logged in to by id_ext=...,ioc_guid=...,dest={at}"
    )]
    Unnamed {
        at: String,
        error: ulp_srp::initiator::Error,
    },
    /// What was logged in cannot go on.
    #[error("{0}")]
    Over(ulp_srp::initiator::Error),
    /// A file is larger than it is to be.
    #[error("cannot offer {}: {error} (--shrink if that is meant)", path.display())]
    Shrinks { path: PathBuf, error: io::Error },
    /// Arguments that do not go together, or not with the disk.
    #[error("{0}")]
    Arguments(&'static str),
}

impl SrpError {
    /// What the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Wire(_)
            | Self::File { .. }
            | Self::System { .. }
            | Self::Stdout(_)
            | Self::Shrinks { .. }
            | Self::Unnamed { .. }
            | Self::Session(_) => exit::FILES,
            Self::Arguments(_) => exit::USAGE,
            Self::Verb { .. } | Self::Target(_) | Self::Disk(_) | Self::Over(_) => exit::DEVICE,
        }
    }

    /// For the result of a step of connection management.
    pub(crate) fn connect(error: verbs_cm::Error) -> Self {
        Self::Session(error.into())
    }

    /// For the result of a call of the system.
    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { doing, error }
    }

    /// For the result of a verb.
    pub(crate) fn verb(doing: &'static str) -> impl FnOnce(verbs_core::Error) -> Self {
        move |error| Self::Verb { doing, error }
    }
}
