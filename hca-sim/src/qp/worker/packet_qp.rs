//! What a queue pair whose messages go as packets has besides: the sans-IO machine, and what it needs around it.

use std::fmt;

use verbs_core::{Error, QpCap, QpType, Srqn};

use crate::clock::Instant;
use crate::link::Route;
use crate::transport::{self, Path};

/// See the module's documentation.
pub(crate) struct PacketQp {
    pub(super) transport: transport::Machine,
    /// What the attributes say.
    pub(super) path: Option<Path>,
    /// Where packets to the peer go; `None` as long as the queue pair names nobody, or no address of the
    /// port. Datagrams have ways of their own.
    pub(super) route: Option<Route>,
    /// The changes that `path` knows of: the queue pair's and the port's.
    pub(super) followed: Option<(u32, u32)>,
    /// The deadline that the engine was given.
    pub(super) timer: Option<Instant>,
    /// The queue pair goes to ERR as soon as its last answer has left.
    pub(super) failing: bool,
    /// A packet came that a switch had marked: the peer is to hear of it.
    pub(super) marked: bool,
    /// No notification leaves before.
    pub(super) quiet_until: Instant,
}

impl PacketQp {
    /// A machine for a queue pair of that type and those sizes, with all that it will ever allocate.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(qp_type: QpType, cap: &QpCap) -> Result<Self, Error> {
        Ok(Self {
            transport: transport::Machine::new(qp_type, cap)?,
            path: None,
            route: None,
            followed: None,
            timer: None,
            failing: false,
            marked: false,
            quiet_until: Instant::ZERO,
        })
    }

    /// Back to how it was made.
    pub(crate) fn reset(&mut self) {
        self.transport.reset();
        (self.path, self.route, self.followed) = (None, None, None);
        (self.marked, self.failing) = (false, false);
    }

    /// The queue pair is in RTS again after SQE.
    pub(crate) fn resume(&mut self) {
        self.transport.resume();
    }

    /// See [`Rc::abandon`](transport::rc::Rc::abandon).
    pub(crate) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        self.transport.abandon()
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
            .field("timer", &self.timer)
            .finish_non_exhaustive()
    }
}
