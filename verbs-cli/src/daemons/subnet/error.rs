//! Why a subnet cannot be hosted or changed.

use std::io;
use std::path::PathBuf;

use hca_sim::link::fabric::TopologyError;
use hca_sim::link::fabric::message::{MessageError, Refusal};
use hca_sim::link::fabric::place::PlaceError;

use crate::capture::CaptureError;
use crate::exit;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubnetError {
    #[error("there is no fat tree with {0} adapters, only with 64, 256 and 1024")]
    NoTree(usize),
    #[error("no topology was given")]
    NoTopology,
    #[error("the topology has no adapter, so that nobody could manage the subnet")]
    NoAdapter,
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot listen at {}: {error}", path.display())]
    Listen { path: PathBuf, error: io::Error },
    #[error("cannot use {}: {error}", path.display())]
    Files { path: PathBuf, error: io::Error },
    #[error("another program hosts a subnet at {}; `verbs subnet --status` asks it", .0.display())]
    Hosted(PathBuf),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("cannot be told to end: {0}")]
    Signals(io::Error),
    #[error("the subnet has no node {0:?}")]
    NoNode(String),
    #[error("there is no cable at port {port} of {node}")]
    NoCable { node: String, port: u8 },
    #[error("cannot wait for clients: {0}")]
    Wait(io::Error),
    #[error("no subnet at {}: {error}", path.display())]
    Reach { path: PathBuf, error: io::Error },
    #[error("the subnet says: {0}")]
    Refused(Refusal),
    #[error("the subnet says what is no answer: {0}")]
    Message(MessageError),
    #[error("the subnet gives another answer than was asked for")]
    NoAnswer,
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error("cannot write the result to stdout: {0}")]
    Output(io::Error),
}

impl From<MessageError> for SubnetError {
    fn from(error: MessageError) -> Self {
        Self::Message(error)
    }
}

impl SubnetError {
    /// As `--help` lists them.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NoTree(_) | Self::NoTopology | Self::NoAdapter | Self::Topology(_) => exit::USAGE,
            Self::Read { .. }
            | Self::Listen { .. }
            | Self::Files { .. }
            | Self::Capture(_)
            | Self::Wait(_)
            | Self::Hosted(_)
            | Self::Place(_)
            | Self::Signals(_)
            | Self::Output(_) => exit::FILES,
            Self::Reach { .. }
            | Self::Refused(_)
            | Self::NoNode(_)
            | Self::NoCable { .. }
            | Self::Message(_)
            | Self::NoAnswer => exit::DEVICE,
        }
    }
}
