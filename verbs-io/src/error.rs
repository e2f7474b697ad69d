//! What can go wrong with an operation.

use std::fmt;

use verbs_cm::Ended;
use verbs_core::{Access, PostError, Qpn, WcStatus};

use crate::buf::Buf;

/// Why an operation, a connection or an endpoint failed. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // --- the connection ---
    /// The connection was closed in order, by this side or by the peer.
    #[error("the connection was closed by {}", match .by { Ended::Here => "this side", _ => "the peer" })]
    Closed {
        /// Which side has closed it.
        by: Ended,
    },
    /// The connection broke. Every later operation on it fails with the same cause.
    #[error("the connection broke: {0}")]
    Broken(Cause),
    /// The device was removed, or has failed.
    #[error("the device was removed or has failed")]
    Removed,

    // --- the caller ---
    /// The range leaves the memory that the token, or the region, is about. Nothing was posted.
    #[error("the range ends at byte {end} of memory that has {size}")]
    OutOfRange {
        /// One past the last byte that was asked for.
        end: u64,
        /// The bytes that there are.
        size: u64,
    },
    /// A word for an atomic is at an address that is not a multiple of 8.
    #[error("an atomic needs an address that is a multiple of 8, not {addr:#x}")]
    Misaligned {
        /// That address.
        addr: u64,
    },
    /// The token does not grant that. Nothing was posted.
    #[error("the token grants {granted:?}, and this operation needs {needed:?}")]
    NoRight {
        /// What the operation needs.
        needed: Access,
        /// What the token grants.
        granted: Access,
    },
    /// The buffer is of another endpoint than the connection, whose memory the connection does not reach. Nothing was
    /// posted.
    #[error("the buffer is of another endpoint; take one with the connection's own buf()")]
    OtherEndpoint,
    /// The bytes are no token.
    #[error("these bytes are no token: {0}")]
    NoToken(&'static str),
    /// A limit that the endpoint was opened with.
    #[error(
        "the endpoint was opened for {max} connections, and has them; open it with .connections(n) for more"
    )]
    TooManyConnections {
        /// That limit.
        max: u32,
    },
    /// The address is none that can be used: the text, and why.
    #[error("'{addr}' cannot be used: {why}")]
    Address {
        /// What was passed.
        addr: String,
        /// What is wrong with it.
        why: String,
    },

    // --- below ---
    /// The queue pair refused to take the operation.
    #[error("the operation was not accepted: {0}")]
    Post(#[from] PostError),
    /// A verb failed.
    #[error("{0}")]
    Verb(verbs_core::Error),
    /// No connection could be made.
    #[error("{0}")]
    Connect(#[from] verbs_cm::Error),
}

impl From<verbs_core::Error> for Error {
    fn from(error: verbs_core::Error) -> Self {
        match error {
            verbs_core::Error::DeviceRemoved | verbs_core::Error::DeviceFailed => Self::Removed,
            verbs_core::Error::OutOfRange { end, size } => Self::OutOfRange {
                end: end.value(),
                size: size.value(),
            },
            other => Self::Verb(other),
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind;
        let kind = match &error {
            Error::Closed { by: Ended::Here } => ErrorKind::NotConnected,
            Error::Closed { .. } => ErrorKind::BrokenPipe,
            Error::Broken(_) => ErrorKind::ConnectionReset,
            Error::Removed => ErrorKind::ConnectionAborted,
            Error::OutOfRange { .. }
            | Error::Misaligned { .. }
            | Error::OtherEndpoint
            | Error::Address { .. } => ErrorKind::InvalidInput,
            Error::NoRight { .. } => ErrorKind::PermissionDenied,
            Error::NoToken(_) => ErrorKind::InvalidData,
            Error::TooManyConnections { .. } | Error::Verb(_) => ErrorKind::Other,
            Error::Post(_) | Error::Connect(_) => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// The completion that ended a connection: the first one that was not just a consequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The status of the completion.
    pub status: WcStatus,
    /// What completed with it.
    pub operation: Operation,
    /// The queue pair of this side.
    pub qpn: Qpn,
    /// The device's own reason; 0 if there is none.
    pub vendor_err: u32,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            status,
            operation,
            qpn,
            vendor_err,
        } = self;
        write!(f, "{operation} on queue pair {:#x}: {status}", qpn.value())?;
        match vendor_err {
            0 => Ok(()),
            reason => write!(f, " (the device's reason {reason:#x})"),
        }
    }
}

/// What an operation is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// A message sent.
    Send,
    /// A message received.
    Recv,
    /// An RDMA WRITE.
    Write,
    /// An RDMA READ.
    Read,
    /// A compare and swap.
    CompareSwap,
    /// A fetch and add.
    FetchAdd,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Recv => "receive",
            Self::Write => "write",
            Self::Read => "read",
            Self::CompareSwap => "compare and swap",
            Self::FetchAdd => "fetch and add",
        })
    }
}

/// An operation that failed, with its buffer.
///
/// `?` in a function that returns [`Error`] takes the error and drops the buffer.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// The buffer. `None` if the device may still reach it: it went away with operations under way.
    pub buf: Option<Buf>,
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
