//! What can go wrong with an operation.

use std::fmt;
use std::time::Duration;

use verbs_cm::Ended;
use verbs_core::{Access, Busy, PostError, Qpn, Refused, WcCause, WcStatus};

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
    /// The operation had not completed when the time was over that it was given
    /// ([`Send::within`](crate::op::Send::within)). The connection is as before. If the operation was posted, it may still
    /// be carried out; its buffer goes back by itself.
    #[error("it had not completed after {after:?}, and may still be carried out")]
    TimedOut {
        /// The time that it was given.
        after: Duration,
    },

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
    #[error("{0}")]
    Address(Box<BadAddress>),

    /// The device's provider, or a filter in front of it, does not vouch for what it does with registered memory
    /// ([`Vouch`](verbs_core::provider::Vouch)), so none of it is lent as slices.
    #[error(
        "the device's provider, or a filter in front of it, does not vouch for registered memory (Provider::vouch); \
         Opening::trust opens it all the same, and is unsafe"
    )]
    NotVouched,

    // --- below ---
    /// The queue pair refused to take the operation.
    #[error("the operation was not accepted: {0}")]
    Post(PostError),
    /// An object that was to be destroyed is in use by others, which this counts. Nothing was done to it; `?` drops the
    /// handle that came back, and the object is destroyed when it is idle (K12).
    #[error("the object is in use by other objects, and is {0}; destroy those first")]
    Busy(Box<Busy>),
    /// A verb failed.
    #[error("{0}")]
    Verb(verbs_core::Error),
    /// No connection could be made.
    #[error("{0}")]
    Connect(Box<verbs_cm::Error>),
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}

/// An address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{addr}' cannot be used: {why}")]
pub struct BadAddress {
    /// What was passed.
    pub addr: String,
    /// What is wrong with it.
    pub why: String,
}

impl Error {
    /// That address cannot be used.
    pub fn address(addr: impl fmt::Display, why: impl fmt::Display) -> Self {
        let (addr, why) = (addr.to_string(), why.to_string());
        Self::Address(Box::new(BadAddress { addr, why }))
    }
}

impl From<verbs_cm::Error> for Error {
    fn from(error: verbs_cm::Error) -> Self {
        Self::Connect(Box::new(error))
    }
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

impl<H> From<Refused<H>> for Error {
    fn from(refused: Refused<H>) -> Self {
        match refused.busy {
            Some(busy) => Self::Busy(Box::new(busy)),
            None => refused.error.into(),
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
            Error::TimedOut { .. } => ErrorKind::TimedOut,
            Error::OutOfRange { .. }
            | Error::Misaligned { .. }
            | Error::OtherEndpoint
            | Error::NotVouched
            | Error::Address(_) => ErrorKind::InvalidInput,
            Error::NoRight { .. } => ErrorKind::PermissionDenied,
            Error::NoToken(_) => ErrorKind::InvalidData,
            Error::Busy(_) => ErrorKind::ResourceBusy,
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

impl Cause {
    /// What the device found wrong, as far as it says: a key that is gone, a range, a right.
    pub fn why(&self) -> Option<WcCause> {
        WcCause::of(self.status, self.vendor_err)
    }
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
        match self.why() {
            Some(why) => write!(f, ": {why}"),
            None if *vendor_err == 0 => Ok(()),
            None => write!(f, " (vendor_err {vendor_err:#x})"),
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
    /// A probe of a peer from which nothing came: [`Opening::keepalive`](crate::Opening::keepalive).
    Keepalive,
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
            Self::Keepalive => "keepalive",
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
    /// The buffer. `None` if the device may still reach it: it went away with operations under way, or the operation was
    /// given up.
    pub buf: Option<Buf>,
}

impl From<Error> for Failed {
    /// Without a buffer.
    fn from(error: Error) -> Self {
        Self { error, buf: None }
    }
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
    /// The cause of its error, which it prints as its own.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::sync::Arc;
    use verbs_core::testing::Null;
    use verbs_core::{Device, Memory, ObjectKind};

    use super::*;

    /// Goal: what holds an object is still said when `?` has made the refusal an error of this crate. Method: a
    /// protection domain with two regions.
    #[test]
    fn busy_keeps_its_counts_through_the_question_mark() {
        fn destroy(pd: verbs_core::Pd) -> Result<(), Error> {
            Ok(pd.dealloc().wait()?)
        }
        let device = Device::open(Arc::new(Null::default())).wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let register = || pd.register(Memory::alloc(8).unwrap(), Access::LOCAL_WRITE);
        let _held = [register().wait().unwrap(), register().wait().unwrap()];
        let error = destroy(pd).unwrap_err();
        let Error::Busy(busy) = &error else {
            panic!("{error}");
        };
        assert_eq!((busy.total, busy.of(ObjectKind::Mr)), (2, 2));
        assert!(error.to_string().contains("held by 2: 2 "), "{error}");
        let io = std::io::Error::from(error);
        assert_eq!(io.kind(), std::io::ErrorKind::ResourceBusy);
    }

    /// Goal: an error and its causes, one after the other as programs print them, say each thing once.
    #[test]
    fn a_failure_says_its_cause_once() {
        fn said(error: &dyn std::error::Error) -> Vec<String> {
            let all = std::iter::successors(Some(error), |error| error.source());
            all.map(ToString::to_string).collect()
        }
        let closed = || Error::Closed { by: Ended::Peer };
        let post = PostError::State(verbs_core::QpState::Err);
        for error in [
            closed(),
            Error::Post(post),
            Error::from(verbs_cm::Error::from(verbs_core::Error::NoMemory)),
            Error::Verb(verbs_core::Error::NoMemory),
        ] {
            let failed = Failed {
                error: error.clone(),
                buf: None,
            };
            assert_eq!(said(&failed), said(&error));
            let said = said(&error);
            let is_repeated = |n: usize| said[..n].iter().any(|before| before.contains(&said[n]));
            assert!(!(1..said.len()).any(is_repeated), "{said:?}");
        }
        assert_eq!(said(&closed()), ["the connection was closed by the peer"]);
    }

    /// Goal: a device that is gone is told as that whatever the reason, and a range keeps its numbers; other errors of
    /// verbs stay what they are.
    #[test]
    fn errors_of_verbs_say_what_they_mean_here() {
        use verbs_core::Error as Verb;
        for gone in [Verb::DeviceRemoved, Verb::DeviceFailed] {
            assert_eq!(Error::from(gone), Error::Removed);
        }
        for other in [Verb::NoMemory, Verb::Cancelled, Verb::AccessDenied] {
            assert_eq!(Error::from(other), Error::Verb(other));
        }
    }
}
