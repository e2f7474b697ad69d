//! What comes out of a table of connections.

use std::collections::VecDeque;
use std::net::IpAddr;

use verbs_core::addr::{QKey, Qpn};
use verbs_core::mad::{Address, Blob, MadBytes};
use verbs_core::{Error, QpAttr};

use crate::wire::{AprStatus, IpHeader, RejectReason, Req, SidrReq, SidrStatus};

/// A connection at this port. A stale one misses: numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    pub(crate) index: usize,
    pub(crate) serial: u64,
}

/// A listener at this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenId(pub(crate) u64);

/// A resolution of a service id, asked or to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResolveId(pub(crate) u64);

/// Tells the user of what has happened.
///
/// A connection that was asked for has `Established` or exactly one of `Rejected`, `Unreachable` and
/// `ConnectError`, which is then its last event. An established one has `Disconnected` and then, as
/// its last event, `TimewaitExit`. After `reject` and `destroy` there are no events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection: accept, reject or destroy it.
    ConnectRequest {
        /// The connection.
        conn: ConnId,
        /// The listener for it.
        listener: ListenId,
        /// From where, and the way back.
        from: Address,
        /// All that the peer said.
        req: Req,
        /// The header of the RDMA IP connection manager, where the private data begin with one.
        ip: Option<IpHeader>,
    },
    /// The connection is there, and the queue pair in RTS.
    Established {
        /// The connection.
        conn: ConnId,
        /// What came with the REP or RTU; nothing when data overtook a lost RTU.
        private_data: Blob<224>,
    },
    /// The peer does not want it.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: RejectReason,
        /// What belongs to the reason.
        info: Blob<72>,
        /// What the peer's service says.
        private_data: Blob<148>,
    },
    /// The peer did not answer.
    Unreachable {
        /// The connection.
        conn: ConnId,
    },
    /// It failed on the way.
    ConnectError {
        /// The connection.
        conn: ConnId,
        /// Why.
        why: Failure,
    },
    /// The connection is over.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// Which side has ended it.
        by: Ended,
    },
    /// Both queue pairs have an alternate path, which this end or the peer has offered. Each is armed when it has heard
    /// from the other.
    PathLoaded {
        /// The connection.
        conn: ConnId,
    },
    /// The alternate path that this end has offered is not loaded. The connection goes on as before.
    PathRefused {
        /// The connection.
        conn: ConnId,
        /// Why.
        why: PathError,
    },
    /// The queue pair's number may be used again for this peer.
    TimewaitExit {
        /// The connection.
        conn: ConnId,
    },
    /// A peer asks which queue pair serves datagrams.
    ResolveRequest {
        /// The question.
        resolution: ResolveId,
        /// The listener for it.
        listener: ListenId,
        /// From where, and the way back.
        from: Address,
        /// All that the peer said.
        req: SidrReq,
        /// The header of the RDMA IP connection manager, where the private data begin with one.
        ip: Option<IpHeader>,
    },
    /// The answer to a question.
    Resolved {
        /// The question.
        resolution: ResolveId,
        /// How it went; queue pair and Q_Key count only when it is [`SidrStatus::Valid`].
        status: SidrStatus,
        /// The service's queue pair.
        qpn: Qpn,
        /// The Q_Key to send with.
        qkey: QKey,
        /// What the service says.
        private_data: Blob<136>,
    },
    /// A question that was not answered.
    Unresolved {
        /// The question.
        resolution: ResolveId,
    },
    /// A question failed on its way.
    ResolveError {
        /// The question.
        resolution: ResolveId,
        /// Why.
        why: Failure,
    },
}

impl Event {
    /// The connection that it is about, if it is about one.
    pub const fn conn(&self) -> Option<ConnId> {
        match *self {
            Self::ConnectRequest { conn, .. }
            | Self::Established { conn, .. }
            | Self::Rejected { conn, .. }
            | Self::Unreachable { conn }
            | Self::ConnectError { conn, .. }
            | Self::Disconnected { conn, .. }
            | Self::PathLoaded { conn }
            | Self::PathRefused { conn, .. }
            | Self::TimewaitExit { conn } => Some(conn),
            _ => None,
        }
    }
}

/// Which side has ended an established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// This one, by a disconnect.
    Here,
    /// The peer, by a disconnect: it was closed in order.
    Peer,
    /// Neither: it broke, the peer has forgotten it, or the device that it was on is gone.
    Failed,
}

/// Why a connection failed on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    // --- the caller ---
    /// All connections were ended here; see [`Manager::disconnect_all`](crate::Manager::disconnect_all).
    #[error("all connections were ended here")]
    Ended,

    // --- the network ---
    /// The peer's host refused the request twice in a row (ICMP port unreachable).
    #[error("the peer's host refuses packets: no program has the port there")]
    PortUnreachable,

    // --- the peer ---
    /// The peer did not confirm the REP in time.
    #[error("the peer did not confirm the connection in time")]
    NoConfirmation,
    /// The peer disconnected before the connection was there.
    #[error("the peer disconnected before the connection was there")]
    PeerDisconnected,
    /// The peer's queue pair is known here as part of another connection.
    #[error("the peer's queue pair is part of another connection here")]
    Stale,

    // --- a limit ---
    /// The peer has not confirmed the connection yet, and it gave way to newer requests; see
    /// [`Config::half_open_max`](crate::Config::half_open_max).
    #[error("the peer has not confirmed the connection, which gave way to newer requests")]
    GaveWay,

    // --- the device ---
    /// The queue pair could not be brought where it had to be.
    #[error("the queue pair could not be modified: {0}")]
    QueuePair(Error),
}

/// Why an alternate path was not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    // --- the peer ---
    /// The peer does not take it.
    #[error("{0}")]
    Refused(AprStatus),
    /// The peer did not answer.
    #[error("the peer did not answer the offer of an alternate path")]
    NoAnswer,

    // --- the device ---
    /// The queue pair could not take it.
    #[error("the queue pair could not take the alternate path: {0}")]
    QueuePair(Error),
}

/// A modify that is to be issued on a queue pair; say how it ended with
/// [`Cm::qp_modified`](crate::Cm::qp_modified). At most one per connection is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpChange {
    /// The connection.
    pub conn: ConnId,
    /// The queue pair.
    pub qpn: Qpn,
    /// What is to be changed.
    pub attr: QpAttr,
}

/// What was dropped or refused, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages for connections that do not exist (any longer).
    pub unknown_conn: u64,
    /// Messages that the connection's state has no use for, such as repetitions.
    pub unexpected: u64,
    /// Datagrams that are no messages.
    pub malformed: u64,
    /// Messages dropped because too many waited to be fetched.
    pub transmits_full: u64,
    /// REQs rejected, and resolutions refused, for a limit of [`Config`](crate::Config).
    pub refused: u64,
    /// Connections that left timewait early.
    pub timewait_cut: u64,
    /// Half-open connections that gave way to newer requests.
    pub gave_way: u64,
    /// Reports of refused messages that meant nothing: for messages that this manager has not sent there or
    /// that were answered, or the second report of one message.
    pub idle_refusals: u64,
    /// Messages kept back because their receiver has not shown that it hears us; see
    /// [`Config::amplification_max`](crate::Config::amplification_max).
    pub unproven: u64,
    /// Connections whose peer was found to be gone; see [`Watch`](crate::Watch).
    pub lost: u64,
}

/// Why a call was refused; nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    // --- the caller ---
    /// There is no such connection, listener or resolution, or no longer one.
    #[error("it does not exist any more")]
    Stale,
    /// The connection is in another state than the call is for.
    #[error("the connection is in state {0}")]
    State(crate::machine::State),
    /// There is a listener already.
    #[error("there is a listener for this service and address ({addr:?}) already")]
    InUse {
        /// The address.
        addr: Option<IpAddr>,
    },
    /// Connections are made with RC, UC and XRC only.
    #[error("{0} connections are not supported")]
    Transport(crate::wire::Transport),
    /// Alternate paths are offered by the side that asked for the connection, on ports that have any.
    #[error(
        "alternate paths are for adapters that can migrate, on InfiniBand, and offered by the side that connected"
    )]
    NoAlternates,

    // --- a limit ---
    /// Too many of something; the text says which field of [`Config`](crate::Config).
    #[error("{what} is at its limit of {max}")]
    Limit {
        /// The field.
        what: &'static str,
        /// Its value.
        max: usize,
    },
}

/// What waits to be fetched.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) transmits: VecDeque<(Address, MadBytes)>,
    pub(crate) transmits_max: usize,
    pub(crate) events: VecDeque<Event>,
    pub(crate) changes: VecDeque<QpChange>,
    pub(crate) counters: Counters,
}

impl Outputs {
    /// Queues a message, or drops it: the sender has a timer, or answers a repetition.
    pub(crate) fn send(&mut self, to: Address, mad: MadBytes) {
        if self.transmits.len() >= self.transmits_max {
            self.counters.transmits_full += 1;
        } else {
            self.transmits.push_back((to, mad));
        }
    }

    /// Takes back what was not fetched of a connection.
    pub(crate) fn forget(&mut self, conn: ConnId) {
        self.events.retain(|event| event.conn() != Some(conn));
        self.changes.retain(|change| change.conn != conn);
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::{Av, Gid};

    use super::*;

    fn conn(index: usize) -> ConnId {
        ConnId { index, serial: 1 }
    }

    /// Goal: as many messages wait as may, and those beyond are counted.
    #[test]
    fn messages_beyond_the_limit_are_counted() {
        let mut out = Outputs {
            transmits_max: 3,
            ..Outputs::default()
        };
        let to = Address::gsi(Av::to_gid(1, 1, Gid([1; 16])));
        for _ in 0..5 {
            out.send(to, [0; 256]);
        }
        assert_eq!((out.transmits.len(), out.counters.transmits_full), (3, 2));
    }

    /// Goal: nothing of a connection that is forgotten comes out, neither events nor changes of its queue pair; what
    /// belongs to others stays.
    #[test]
    fn nothing_of_a_forgotten_connection_comes_out() {
        let mut out = Outputs::default();
        for conn in [1, 2, 1, 3].map(conn) {
            out.events.push_back(Event::TimewaitExit { conn });
            out.changes.push_back(QpChange {
                conn,
                qpn: Qpn::new(5),
                attr: QpAttr::default(),
            });
        }
        out.forget(conn(1));
        let of_events: Vec<_> = out.events.iter().map(Event::conn).collect();
        assert_eq!(of_events, [Some(conn(2)), Some(conn(3))]);
        let of_changes: Vec<_> = out.changes.iter().map(|change| change.conn).collect();
        assert_eq!(of_changes, [conn(2), conn(3)]);
    }
}
