//! What can go wrong in a demonstration.

use std::io;
use std::path::PathBuf;

use hca_sim::link::fabric::TopologyError;
use verbs_core::PostError;
use verbs_sm::StartError;

use crate::exit;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is empty: there is nothing to send", .0.display())]
    Empty(PathBuf),
    #[error("cannot write the result to stdout: {0}")]
    Output(io::Error),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error("the subnet manager: {0}")]
    Manager(#[from] StartError),
    #[error("a verb: {0}")]
    Verb(#[from] verbs_core::Error),
    #[error("a post: {0}")]
    Post(#[from] PostError),
    #[error("the interface: {0}")]
    Interface(#[from] ulp_ipoib::Error),
    #[error("the connection: {0}")]
    Connection(#[from] verbs_cm::Error),
    #[error("{0} does not come to pass")]
    TimedOut(&'static str),
    #[error("{0}: what arrived is not what was sent")]
    Digest(&'static str),
    #[error("a work request ended with {0}")]
    Completion(verbs_core::WcStatus),
}

impl DemoError {
    /// As `--help` lists them.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Read { .. } | Self::Empty(_) | Self::Output(_) => exit::FILES,
            Self::Digest(_) => exit::DIGEST,
            _ => exit::DEVICE,
        }
    }
}
