//! Why a measurement failed, each with the exit code it ends in.

use std::io;
use std::net::IpAddr;

use verbs_core::{Error, Gid, Mtu, PostError, WcError};

use crate::exit;
use crate::net::NetError;
use crate::svg::SvgError;
use crate::wire::WireError;

/// Why a measurement failed. Each is one sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PerfError {
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The system refused something.
    #[error("cannot {doing}: {error}")]
    System {
        doing: &'static str,
        error: io::Error,
    },
    #[error("cannot write the result to stdout: {0}")]
    Stdout(io::Error),
    /// The picture cannot be written.
    #[error("cannot write {0}")]
    Plot(SvgError),
    /// The option is another test's.
    #[error("{option} is for {is_for}")]
    Option {
        option: &'static str,
        is_for: &'static str,
    },
    /// There are fewer GIDs.
    #[error("--gid-index {got} is more than the device has; at most {max} would be right")]
    GidIndex { got: u16, max: usize },
    /// The path MTU is larger than the port's.
    #[error("--mtu {} is more than the port can do; at most {} would be right", got.bytes(), max.bytes())]
    Mtu { got: Mtu, max: Mtu },
    /// The device copies fewer bytes at a post.
    #[error("--inline-size {got} is more than the device can; at most {max} would be right")]
    Inline { got: u32, max: u32 },
    /// The device has fewer.
    #[error("--outs {got} is more than the device can; at most {max} would be right")]
    Outs { got: u8, max: u8 },
    /// The peer is too old.
    #[error(
        "the peer is perftest of protocol {0}; perftest 4.5 (protocol 6.06) is the oldest that this can talk to"
    )]
    Version(String),
    /// One end has IPv4, the other IPv6.
    #[error(
        "no packet goes from {} to {}; --gid-index or --bind choose another GID",
        IpAddr::from(*ours), IpAddr::from(*theirs)
    )]
    Families { ours: Gid, theirs: Gid },
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
    #[error("{0}")]
    Completion(WcError),
    /// Nothing came for long.
    #[error(
        "nothing came from the peer for {seconds} s after message {done} of {of}; do both ends run the same test?"
    )]
    Silent { seconds: u64, done: u64, of: u64 },
}

impl PerfError {
    /// What the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Net(_)
            | Self::Wire(_)
            | Self::System { .. }
            | Self::Stdout(_)
            | Self::Plot(_) => exit::FILES,
            Self::Option { .. }
            | Self::GidIndex { .. }
            | Self::Mtu { .. }
            | Self::Inline { .. }
            | Self::Outs { .. }
            | Self::Version(_)
            | Self::Families { .. } => exit::USAGE,
            Self::Verb { .. } | Self::Post { .. } | Self::Completion(_) | Self::Silent { .. } => {
                exit::DEVICE
            }
        }
    }

    /// For the result of a verb.
    pub(super) fn verb(doing: &'static str) -> impl FnOnce(Error) -> Self {
        move |error| Self::Verb { doing, error }
    }

    /// For the result of a post.
    pub(super) fn post(doing: &'static str) -> impl FnOnce(PostError) -> Self {
        move |error| Self::Post { doing, error }
    }
}
