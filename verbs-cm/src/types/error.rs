//! Why a connection, a listener or a resolution could not be had.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use verbs_core::host::message::NotListening;
use verbs_core::mad::AgentError;
use verbs_core::{Mtu, Qp, QpState};

use crate::event::{CmError, Failure, PathError};
use crate::sa::SaError;
use crate::wire::{RejectReason, SidrStatus};

/// Why a step of connection management failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // --- the caller ---
    /// The text is no address. Names are looked up by a [`Resolver`](crate::Resolver) that has some.
    #[error("'{0}' is not an IP address with a port, like 10.0.0.2:7174 or [fd00::2]:7174")]
    NoAddress(String),
    /// The device's port has no such address.
    #[error("the device has no address {0} on this port")]
    AddressNotAvailable(IpAddr),
    /// The port number is taken, or has a listener.
    #[error("{0} is in use")]
    AddressInUse(SocketAddr),
    /// More private data than the message carries.
    #[error("{got} bytes of private data; this message carries {max}")]
    PrivateData {
        /// Bytes that were passed.
        got: usize,
        /// Bytes that there is room for.
        max: usize,
    },
    /// The step does not come next.
    #[error("this step does not come next: {0}")]
    OutOfOrder(&'static str),
    /// Only datagram queue pairs serve datagrams, and only connected ones are connected.
    #[error("a queue pair of this type cannot be used for that")]
    QpType,
    /// The queue pair is in another state than INIT, to which it is brought from RESET.
    #[error("the queue pair is in {0}; it has to be in RESET or INIT")]
    QpState(QpState),
    /// A blocking call under NoBlock; nothing was done (K3).
    #[error("this call may wait, and the caller is in a context that must not")]
    WouldBlock,
    /// Cancelled by the caller.
    #[error("the step was cancelled")]
    Cancelled,

    // --- the network and the peer ---
    /// There is no way from this port to that address.
    #[error("no route from the device to {0}")]
    NoRoute(IpAddr),
    /// The peer rejected the connection.
    #[error("{0}")]
    Rejected(Box<Rejection>),
    /// The peer did not answer, or its answer got lost, in spite of all retries.
    #[error("{0} does not answer")]
    TimedOut(SocketAddr),
    /// The connection was not there in time: no answer came, or the peer took too long to accept.
    #[error(
        "{peer} did not answer within {timeout:?}: see that a program listens there and that packets get \
         there and back, or allow it more time"
    )]
    NoAnswer {
        /// The node that was asked.
        peer: SocketAddr,
        /// The time that it had.
        timeout: Duration,
    },
    /// The peer's host refused the request (ICMP port unreachable), and did so again half a second later.
    #[error(
        "nobody is at {}: UDP port 4791 there refuses packets (start the peer, or check the address)", .0.ip()
    )]
    PortUnreachable(SocketAddr),
    /// The connection failed on its way.
    #[error("{0}")]
    Failed(Failure),
    /// The service for datagrams is not there.
    #[error("{peer} has no such service: {status}")]
    NoService {
        /// The node that was asked.
        peer: SocketAddr,
        /// Its answer.
        status: SidrStatus,
    },
    /// The connection is over.
    #[error("the connection is over")]
    Disconnected,
    /// The subnet administrator did not do what it was asked for.
    #[error(transparent)]
    Sa(#[from] SaError),

    /// An alternate path was not loaded.
    #[error(transparent)]
    Path(PathError),

    // --- the device ---
    /// The port cannot be reached by the connection manager: the provider neither sends management
    /// datagrams nor makes connections itself.
    #[error("the device has no connection manager on port {0}")]
    NoManager(u8),
    /// The user wants an adapter to carry the connection ([`Offload::Only`](crate::resolver::Offload::Only)), and there is none.
    #[error("no device carries connections past the host's network stack: all are software")]
    NoAdapter,
    /// The user wants software to carry the connection ([`Offload::Never`](crate::resolver::Offload::Never)), and there is none.
    #[error("no device carries connections in software: all are adapters")]
    NoSoftware,
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs_core::Error),
    /// The port's service for management datagrams refused.
    #[error("the port's service for management datagrams: {0}")]
    Service(AgentError),

    /// The daemon of the host, whose addresses the port has, does not let this process listen.
    #[error(transparent)]
    Host(#[from] NotListening),

    // --- a limit, or a state ---
    /// The state machine refused.
    #[error(transparent)]
    Machine(#[from] CmError),
}

impl From<AgentError> for Error {
    fn from(error: AgentError) -> Self {
        Self::Service(error)
    }
}

/// A peer's refusal of a connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The side that refused.
    pub peer: SocketAddr,
    /// Why.
    pub reason: RejectReason,
    /// What the peer's service says: 148 bytes, padded with zeros, as there is no length on the wire.
    pub private_data: Vec<u8>,
    /// With [`RejectReason::InvalidMtu`]: the largest path MTU that the peer takes, if it says so.
    pub path_mtu: Option<Mtu>,
}

impl Rejection {
    /// Whether there is no listener.
    pub fn is_no_listener(&self) -> bool {
        self.reason == RejectReason::InvalidServiceId
    }

    /// What the service says, without the zeros at its end.
    pub fn message(&self) -> &[u8] {
        let end = self.private_data.iter().rposition(|&byte| byte != 0);
        &self.private_data[..end.map_or(0, |end| end + 1)]
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, reason, .. } = self;
        if self.is_no_listener() {
            return write!(f, "nobody listens at {peer}");
        }
        write!(f, "{peer} refused: {reason}")?;
        match std::str::from_utf8(self.message()) {
            Ok("") => Ok(()),
            Ok(text) if !text.contains(char::is_control) => write!(f, " (\"{text}\")"),
            _ => write!(f, " ({} bytes of private data)", self.message().len()),
        }
    }
}

impl fmt::Debug for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejection")
            .field("peer", &self.peer)
            .field("reason", &self.reason)
            .field("message", &self.message())
            .finish()
    }
}

/// A connection that did not come to be, with the queue pair back.
pub struct NotConnected {
    /// Why.
    pub error: Error,
    /// The queue pair. In INIT or RESET it can be used for another attempt, else it has to go to RESET
    /// first. `None` when the step was cancelled, which destroys it.
    pub qp: Option<Qp>,
}

impl NotConnected {
    /// The path MTU to ask for next, after a request with `asked` that was too large for the peer.
    pub(crate) fn smaller_mtu(&self, asked: Mtu) -> Option<Mtu> {
        match &self.error {
            Error::Rejected(rejection) => rejection.path_mtu.filter(|&mtu| mtu < asked),
            _ => None,
        }
    }

    pub(crate) fn new(error: Error, qp: Qp) -> Self {
        Self {
            error,
            qp: Some(qp),
        }
    }
}

impl From<Error> for NotConnected {
    fn from(error: Error) -> Self {
        Self { error, qp: None }
    }
}

impl From<NotConnected> for Error {
    /// Forgets the queue pair, which destroys it (K12).
    fn from(refused: NotConnected) -> Self {
        refused.error
    }
}

impl fmt::Debug for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotConnected {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_refuses_reads_well() {
        let peer = SocketAddr::from(([127, 0, 0, 3], 7174));
        assert_eq!(
            Error::PortUnreachable(peer).to_string(),
            "nobody is at 127.0.0.3: UDP port 4791 there refuses packets (start the peer, or check the \
             address)"
        );
    }

    #[test]
    fn refusals_read_well() {
        let peer = SocketAddr::from(([10, 0, 0, 2], 7174));
        let refused = |reason, data: &[u8]| {
            let mut private_data = data.to_vec();
            private_data.resize(148, 0);
            Error::Rejected(Box::new(Rejection {
                peer,
                reason,
                private_data,
                path_mtu: None,
            }))
            .to_string()
        };
        assert_eq!(
            refused(RejectReason::InvalidServiceId, b""),
            "nobody listens at 10.0.0.2:7174"
        );
        assert_eq!(
            refused(RejectReason::Consumer, b"full"),
            "10.0.0.2:7174 refused: the service rejected the connection (\"full\")"
        );
        assert_eq!(
            refused(RejectReason::Consumer, &[0, 1, 2]),
            "10.0.0.2:7174 refused: the service rejected the connection (3 bytes of private data)"
        );
    }
}
