//! What can go wrong in a demonstration.

use std::io;
use std::path::PathBuf;

use hca_sim::link::fabric::TopologyError;
use verbs_core::PostError;
use verbs_sm::StartError;

use crate::capture::CaptureError;
use crate::exit;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} is empty: there is nothing to send", .0.display())]
    Empty(PathBuf),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error("cannot write the result to stdout: {0}")]
    Output(io::Error),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error("the subnet manager: {0}")]
    Manager(StartError),
    #[error("a verb: {0}")]
    Verb(verbs_core::Error),
    #[error("a post: {0}")]
    Post(PostError),
    #[error("the interface: {0}")]
    Interface(ulp_ipoib::Error),
    #[error("the connection: {0}")]
    Connection(verbs_cm::Error),
    #[error("{0} does not come to pass")]
    TimedOut(&'static str),
    #[error("{0}: what arrived is not what was sent")]
    Digest(&'static str),
    #[error("a work request ended with {0}")]
    Completion(verbs_core::WcStatus),
}

impl From<StartError> for DemoError {
    fn from(error: StartError) -> Self {
        Self::Manager(error)
    }
}

impl From<verbs_core::Error> for DemoError {
    fn from(error: verbs_core::Error) -> Self {
        Self::Verb(error)
    }
}

impl From<PostError> for DemoError {
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}

impl From<ulp_ipoib::Error> for DemoError {
    fn from(error: ulp_ipoib::Error) -> Self {
        Self::Interface(error)
    }
}

impl From<verbs_cm::Error> for DemoError {
    fn from(error: verbs_cm::Error) -> Self {
        Self::Connection(error)
    }
}

impl DemoError {
    /// As `--help` lists them.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Read { .. } | Self::Empty(_) | Self::Capture(_) | Self::Output(_) => exit::FILES,
            Self::Digest(_) => exit::DIGEST,
            _ => exit::DEVICE,
        }
    }
}
