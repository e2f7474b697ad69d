//! The transport machine of a queue pair, by its type.

use std::time::Duration;

use verbs_core::mem::Window;
use verbs_core::{Error, QpCap, QpType, Srqn};

use crate::clock::Instant;
use crate::transport::congestion::Dcqcn;
use crate::transport::iwarp::Iwarp;
use crate::transport::rc::Rc;
use crate::transport::uc::Uc;
use crate::transport::ud::{self, Post, Ud};
use crate::transport::{Ends, Events, Incoming, Outlet, Path};
use crate::wire::Head;

/// See the module's documentation.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most machines are reliable, and each lies in an allocation of its own already"
)]
pub(crate) enum Machine {
    /// Reliable, extended or not.
    Rc(Rc),
    Uc(Uc),
    Ud(Ud),
    /// Reliable, over a stream.
    Iwarp(Iwarp),
}

impl Machine {
    /// The machine of a queue pair on a port with streams.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn over_stream() -> Result<Self, Error> {
        Iwarp::new().map(Self::Iwarp)
    }

    /// The machine of a connection over a stream, if it is one.
    pub(crate) fn iwarp(&mut self) -> Option<&mut Iwarp> {
        match self {
            Self::Iwarp(iwarp) => Some(iwarp),
            _ => None,
        }
    }

    /// The machine of a reliable connection, extended or not, if it is one.
    pub(crate) fn rc(&mut self) -> Option<&mut Rc> {
        match self {
            Self::Rc(rc) => Some(rc),
            _ => None,
        }
    }

    /// The machine of a queue pair of that type and those sizes, as in RESET, with all memory that it will ever need.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(qp_type: QpType, cap: &QpCap) -> Result<Self, Error> {
        Ok(match qp_type {
            QpType::Uc => Self::Uc(Uc::new()?),
            QpType::Ud | QpType::Gsi | QpType::Smi => Self::Ud(Ud::default()),
            _ => Self::Rc(Rc::new(cap)?),
        })
    }

    /// Returns it to its initial state.
    pub(crate) fn reset(&mut self) {
        match self {
            Self::Rc(rc) => rc.reset(),
            Self::Uc(uc) => uc.reset(),
            Self::Ud(ud) => *ud = Ud::default(),
            Self::Iwarp(iwarp) => iwarp.reset(),
        }
    }

    /// The queue pair is in RTS again after SQE.
    pub(crate) fn resume(&mut self) {
        match self {
            Self::Rc(_) | Self::Iwarp(_) => {}
            Self::Uc(uc) => uc.resume(),
            Self::Ud(ud) => ud.resume(),
        }
    }

    /// See [`Rc::abandon`].
    pub(crate) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        match self {
            Self::Rc(rc) => rc.abandon(),
            Self::Uc(uc) => uc.abandon(),
            Self::Iwarp(iwarp) => iwarp.abandon(),
            Self::Ud(_) => None,
        }
    }

    /// Whether every message that was begun has ended.
    pub(crate) fn is_drained(&self) -> bool {
        match self {
            Self::Rc(rc) => rc.is_drained(),
            Self::Uc(uc) => uc.is_drained(),
            Self::Iwarp(iwarp) => iwarp.is_drained(),
            Self::Ud(_) => true,
        }
    }

    /// Whether answers wait for the outlet.
    pub(crate) fn is_answering(&mut self) -> bool {
        match self {
            Self::Rc(rc) => rc.is_answering(),
            Self::Iwarp(iwarp) => iwarp.is_answering(),
            Self::Uc(_) | Self::Ud(_) => false,
        }
    }

    /// See [`Rc::congested`]. Unreliable connections are not slowed down, and on streams TCP handles congestion.
    pub(crate) fn congested(&mut self, config: &Dcqcn, now: Instant) -> Option<u64> {
        match self {
            Self::Rc(rc) => rc.congested(config, now),
            Self::Uc(_) | Self::Ud(_) | Self::Iwarp(_) => None,
        }
    }

    /// The smoothed round trip, of those that measure it.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        match self {
            Self::Rc(rc) => rc.round_trip(),
            Self::Uc(_) | Self::Ud(_) | Self::Iwarp(_) => None,
        }
    }

    /// See [`Rc::rate`].
    pub(crate) fn rate(&self) -> Option<u64> {
        match self {
            Self::Rc(rc) => rc.rate(),
            Self::Uc(_) | Self::Ud(_) | Self::Iwarp(_) => None,
        }
    }

    /// When time alone changes something.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Rc(rc) => rc.deadline(),
            Self::Iwarp(iwarp) => iwarp.deadline(),
            Self::Uc(_) | Self::Ud(_) => None,
        }
    }

    /// It is later than before.
    pub(crate) fn expire(&mut self, ends: &Ends<'_>, events: &mut Events) {
        match self {
            Self::Rc(rc) => rc.expire(ends, events),
            Self::Iwarp(iwarp) => iwarp.expire(ends.now),
            Self::Uc(_) | Self::Ud(_) => {}
        }
    }

    /// The peer no longer exists: a reliable connection ends. An unreliable one notices nothing.
    pub(crate) fn peer_gone(&mut self, ends: &Ends<'_>, events: &mut Events) {
        if let Self::Rc(rc) = self {
            rc.peer_gone(ends, events);
        }
    }

    /// The connection goes by another path from now on. An unreliable one does not notice.
    pub(crate) fn moved(&mut self) {
        if let Self::Rc(rc) = self {
            rc.moved();
        }
    }

    /// Takes a packet whose ICRC, addresses, partition and destination are in order, and whose service is
    /// the queue pair's.
    pub(crate) fn receive(&mut self, ends: &Ends<'_>, packet: &Incoming<'_>, events: &mut Events) {
        if let Some(payload) = packet.long {
            return self.receive_long(ends, packet.head, payload, events);
        }
        match self {
            Self::Rc(rc) => rc.receive(ends, packet.head, packet.payload, events),
            Self::Uc(uc) => uc.receive(ends, packet.head, packet.payload, events),
            Self::Ud(_) => ud::receive(ends, packet, events),
            Self::Iwarp(_) => {}
        }
    }

    #[cold]
    fn receive_long(
        &mut self,
        ends: &Ends<'_>,
        head: &Head,
        payload: Window<'_>,
        events: &mut Events,
    ) {
        match self {
            Self::Rc(rc) => rc.receive(ends, head, payload, events),
            Self::Uc(uc) => uc.receive(ends, head, payload, events),
            Self::Ud(_) | Self::Iwarp(_) => {}
        }
    }

    /// Puts out what there is to send to the peer of a connection. Returns whether there is more to send when the
    /// outlet has room.
    pub(crate) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        events: &mut Events,
    ) -> bool {
        match self {
            Self::Rc(rc) => rc.transmit(ends, outlet, events),
            Self::Uc(uc) => uc.transmit(ends, outlet, events),
            Self::Ud(_) | Self::Iwarp(_) => false,
        }
    }

    /// See [`Rc::transmit_last`]. The others owe no acknowledgement.
    pub(crate) fn transmit_last(&mut self, path: &Path, outlet: &mut dyn Outlet) -> bool {
        match self {
            Self::Rc(rc) => rc.transmit_last(path, outlet),
            Self::Uc(_) | Self::Ud(_) | Self::Iwarp(_) => false,
        }
    }

    /// Puts out the datagrams that there are to send. Returns whether there are more to send when the link has room.
    pub(crate) fn post(
        &mut self,
        ends: &Ends<'_>,
        post: &mut dyn Post,
        events: &mut Events,
    ) -> bool {
        match self {
            Self::Ud(ud) => ud.transmit(ends, post, events),
            Self::Rc(_) | Self::Uc(_) | Self::Iwarp(_) => false,
        }
    }
}
