//! Why a host is not shared.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use hca_sim::link::LinkError;
use hca_sim::link::fabric::place::PlaceError;

use crate::exit;

/// One sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("another program shares this host at {} already", .0.display())]
    Running(PathBuf),
    #[error("cannot listen at {}: {error}", path.display())]
    Listen { path: PathBuf, error: io::Error },
    #[error("cannot start the daemon: {0}")]
    Daemon(io::Error),
    #[error(
        "the daemon crashes as soon as it is started ({0}); `verbs host --verbose` and `--log debug` tell more"
    )]
    Crashes(ExitStatus),
    #[error("this is no child of the keeper that --kept-by names: {0}")]
    Keeper(io::Error),
    #[error("cannot wait for programs: {0}")]
    Wait(io::Error),
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    #[error("cannot write to stdout: {0}")]
    Output(io::Error),
}

impl HostError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Running(_) => exit::RUNNING,
            _ => exit::FILES,
        }
    }
}
