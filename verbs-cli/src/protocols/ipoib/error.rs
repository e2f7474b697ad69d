//! Why an interface cannot be had.

use std::io;
use std::path::PathBuf;

use hca_sim::link::fabric::AttachError;

use crate::exit;
use crate::wire::WireError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IpoibError {
    #[error("no port of the subnet at {}: {error}", path.display())]
    Attach { path: PathBuf, error: AttachError },
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Verb(#[from] verbs_core::Error),
    #[error(transparent)]
    Manager(#[from] verbs_cm::Error),
    #[error(transparent)]
    Interface(#[from] ulp_ipoib::Error),
    #[error("cannot have the TUN device {name}: {error}")]
    Tun { name: String, error: io::Error },
    #[error("cannot wait for packets: {0}")]
    Wait(io::Error),
    #[error("cannot write to stdout: {0}")]
    Output(io::Error),
}

impl IpoibError {
    /// As `--help` lists them.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Output(_) | Self::Wire(WireError::Capture(_)) => exit::FILES,
            Self::Attach { .. }
            | Self::Wire(_)
            | Self::Verb(_)
            | Self::Manager(_)
            | Self::Interface(_)
            | Self::Tun { .. }
            | Self::Wait(_) => exit::DEVICE,
        }
    }
}
