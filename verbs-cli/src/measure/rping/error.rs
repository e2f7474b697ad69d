//! Why pinging failed, each with the exit code it ends in.

use std::io;

use verbs_core::{Error, PostError, WcStatus};

use crate::exit;
use crate::places::Full;
use crate::wire::WireError;

/// Why pinging failed. Each is one sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RpingError {
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The connection could not be made, or there could be no listener.
    #[error(transparent)]
    Connection(#[from] verbs_cm::Error),
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
    /// A work request was not accepted.
    #[error("cannot post {doing}: {error}")]
    Post {
        doing: &'static str,
        error: PostError,
    },
    /// A work request ended badly.
    #[error("{what} ended with \"{status}\" ({} in ibv_wc_status)", *status as u8)]
    Completion {
        what: &'static str,
        status: WcStatus,
    },
    /// The peer ended the connection before it was time.
    #[error("the peer has ended the connection after {0} pings")]
    Ended(u64),
    /// Too many others are being served.
    #[error(transparent)]
    Full(#[from] Full),
    /// The peer announces a buffer that does not fit.
    #[error("the peer announces {got} bytes; -S has room for {max}")]
    Size { got: u32, max: u32 },
    /// What came is no announcement.
    #[error("the peer speaks another protocol: a message of {0} bytes in place of 16")]
    Foreign(u32),
    /// What came back is not what was sent.
    #[error("ping {ping} came back damaged: byte {at} is {got:#04x} and should be {expected:#04x}")]
    Content {
        ping: u64,
        at: usize,
        got: u8,
        expected: u8,
    },
}

impl RpingError {
    /// What the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Wire(_)
            | Self::Connection(_)
            | Self::System { .. }
            | Self::Stdout(_)
            | Self::Full(_) => exit::FILES,
            Self::Content { .. } => exit::DIGEST,
            Self::Verb { .. }
            | Self::Post { .. }
            | Self::Completion { .. }
            | Self::Ended(_)
            | Self::Size { .. }
            | Self::Foreign(_) => exit::DEVICE,
        }
    }

    /// For the result of a verb.
    pub(crate) fn verb(doing: &'static str) -> impl FnOnce(Error) -> Self {
        move |error| Self::Verb { doing, error }
    }
}
