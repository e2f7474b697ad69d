//! Why a pingpong failed, each with the exit code it ends in.

use std::io;
use std::net::{IpAddr, SocketAddr};

use verbs_core::{Error, Gid, Mtu, PostError, WcStatus};

use crate::exit;
use crate::net::NetError;
use crate::wire::WireError;

/// Why a pingpong failed. Each is one sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PingpongError {
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
    /// There are fewer GIDs.
    #[error("--gid-idx {got} is more than the device has; at most {max} would be right")]
    GidIndex { got: u16, max: usize },
    /// The path MTU is larger than the port's.
    #[error("--mtu {} is more than the port can do; at most {} would be right", got.bytes(), max.bytes())]
    Mtu { got: Mtu, max: Mtu },
    /// A datagram is one packet.
    #[error("-s {got} does not fit one datagram; at most {max} would be right")]
    Datagram { got: u32, max: u32 },
    /// Receives are shared, and each connection needs one.
    #[error("-r {depth} receives are too few for -q {connections} queue pairs")]
    Receives { depth: u32, connections: u32 },
    /// The peer has fewer connections.
    #[error("the peer has only {got} queue pairs; run both ends with the same -q")]
    Connections { got: usize },
    /// The peer speaks InfiniBand.
    #[error("the peer has no GID; run it with -g and the index of a RoCE v2 one")]
    NoGid,
    /// One end has IPv4, the other IPv6.
    #[error(
        "no packet goes from {} to {}; --gid-idx or --bind choose another GID",
        IpAddr::from(*ours), IpAddr::from(*theirs)
    )]
    Families { ours: Gid, theirs: Gid },
    /// The kind needs what RDMA over TCP does not have.
    #[error(
        "--transport iwarp has reliable connections only; {0} needs packets, and rc and srq would be right"
    )]
    NeedsPackets(&'static str),
    /// The server's queue pairs cannot be connected to.
    #[error("cannot listen for queue pairs at {at}: {error}")]
    Listen { at: SocketAddr, error: Error },
    /// The client's could not be connected.
    #[error("no connection of a queue pair with {peer}: {why}")]
    NotConnected { peer: SocketAddr, why: &'static str },
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
    /// All messages have come, and a last answer was repeated in vain.
    #[error(
        "the last answer was not acknowledged, however often it was repeated: the peer has ended, with the answer or without; what it printed says which"
    )]
    LastUnacknowledged,
    /// Nothing came for long.
    #[error("the peer sent nothing for {seconds} s after message {received} of {iters}")]
    Silent {
        seconds: u64,
        received: u32,
        iters: u32,
    },
    /// What arrived is not what was sent.
    #[error("byte {at} of the last message is {got:#04x} and should be {expected:#04x}")]
    Content { at: usize, got: u8, expected: u8 },
}

impl PingpongError {
    /// What the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Net(_)
            | Self::Wire(_)
            | Self::System { .. }
            | Self::Stdout(_)
            | Self::Listen { .. }
            | Self::NotConnected { .. } => exit::FILES,
            Self::GidIndex { .. }
            | Self::Mtu { .. }
            | Self::Datagram { .. }
            | Self::Receives { .. }
            | Self::Connections { .. }
            | Self::NoGid
            | Self::Families { .. }
            | Self::NeedsPackets(_) => exit::USAGE,
            Self::Content { .. } => exit::DIGEST,
            Self::Verb { .. }
            | Self::Post { .. }
            | Self::Completion { .. }
            | Self::LastUnacknowledged
            | Self::Silent { .. } => exit::DEVICE,
        }
    }

    /// For the result of a verb.
    pub(crate) fn verb(doing: &'static str) -> impl FnOnce(Error) -> Self {
        move |error| Self::Verb { doing, error }
    }
}
