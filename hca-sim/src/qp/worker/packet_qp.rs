//! The additional state of a queue pair whose messages are sent as packets: the sans-IO machine, and what it needs
//! around it.

use std::net::SocketAddr;

use std::fmt;
use std::time::Duration;

use verbs_core::{Error, QpCap, QpType, Srqn};

use crate::clock::{Instant, Timer};
use crate::link::Route;
use crate::qp::worker::stream::connected::Connected;
use crate::qp::worker::target::state::SharedTarget;
use crate::transport::{self, Path};

/// See the module's documentation.
pub(crate) struct PacketQp {
    pub(super) transport: transport::Machine,
    /// The connection's parameters, from the attributes.
    pub(super) path: Option<Path>,
    /// The route of packets to the peer; `None` as long as the queue pair names no peer, or no address of the port.
    /// Datagrams have routes of their own.
    pub(super) route: Option<Route>,
    /// The destination of the alternate path, if one is loaded.
    pub(super) alt_route: Option<Route>,
    /// The client was told of a peer that has moved when this end could not.
    pub(super) refused_migration: bool,
    /// The changes that `path` knows of: the queue pair's and the port's.
    pub(super) followed: Option<(u32, u32)>,
    /// When the engine's call is to come, if one is.
    pub(super) calls_at: Instant,
    /// The engine's call that was asked for last.
    pub(super) call: Option<Timer>,
    /// The queue pair goes to ERR as soon as its last answer has been sent.
    pub(super) failing: bool,
    /// A packet arrived that a switch had marked: the peer is to be notified.
    pub(super) marked: bool,
    /// No notification is sent before this time.
    pub(super) quiet_until: Instant,
    /// The stream that carries its messages, where streams do.
    pub(super) stream: Option<Box<Connected>>,
    /// What it has to do with other programs, if it is a target that several share.
    pub(super) shared: Option<Box<SharedTarget>>,
}

impl PacketQp {
    /// A machine for a queue pair of that type and those sizes, with all that it will ever allocate.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(qp_type: QpType, cap: &QpCap) -> Result<Self, Error> {
        transport::Machine::new(qp_type, cap).map(Self::of)
    }

    /// Both ends of the stream that carries its messages.
    pub(crate) fn stream_ends(&self) -> Option<[SocketAddr; 2]> {
        let stream = &self.stream.as_ref()?.stream;
        Some([stream.local(), stream.peer()])
    }

    /// A machine for a queue pair whose messages a stream will carry.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn over_stream() -> Result<Self, Error> {
        transport::Machine::over_stream().map(Self::of)
    }

    fn of(transport: transport::Machine) -> Self {
        Self {
            transport,
            path: None,
            route: None,
            alt_route: None,
            refused_migration: false,
            followed: None,
            calls_at: Instant::ZERO,
            call: None,
            failing: false,
            marked: false,
            quiet_until: Instant::ZERO,
            stream: None,
            shared: None,
        }
    }

    /// Returns it to its initial state.
    pub(crate) fn reset(&mut self) {
        self.transport.reset();
        (self.path, self.route, self.alt_route, self.followed) = (None, None, None, None);
        (self.marked, self.failing) = (false, false);
        if let Some(shared) = &mut self.shared {
            shared.reset();
        }
    }

    /// The queue pair is in RTS again after SQE.
    pub(crate) fn resume(&mut self) {
        self.transport.resume();
    }

    /// See [`Rc::abandon`](transport::rc::Rc::abandon).
    pub(crate) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        self.transport.abandon()
    }

    /// The smoothed round trip to the peer, if the transport has measured one.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.transport.round_trip()
    }

    /// The rate that congestion notifications limit it to, in bytes per second, if they do.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.transport.rate()
    }

    /// Whether every message that was begun has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.transport.is_drained()
    }
}

impl fmt::Debug for PacketQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketQp")
            .field("path", &self.path)
            .field("calls_at", &self.calls_at)
            .finish_non_exhaustive()
    }
}
