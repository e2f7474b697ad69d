//! The machine that a queue pair's type calls for.

use verbs_core::{Error, QpCap, QpType, Srqn};

use crate::clock::Instant;
use crate::transport::rc::Rc;
use crate::transport::uc::Uc;
use crate::transport::ud::{self, Post, Ud};
use crate::transport::{Ends, Incoming, Notes, Outlet};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) enum Machine {
    /// Reliable, extended or not.
    Rc(Rc),
    Uc(Uc),
    Ud(Ud),
}

impl Machine {
    /// The machine of a queue pair of that type and those sizes, as in RESET, with all that it will ever
    /// allocate.
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

    /// Back to how it was made.
    pub(crate) fn reset(&mut self) {
        match self {
            Self::Rc(rc) => rc.reset(),
            Self::Uc(uc) => uc.reset(),
            Self::Ud(ud) => *ud = Ud::default(),
        }
    }

    /// The queue pair is in RTS again after SQE.
    pub(crate) fn resume(&mut self) {
        match self {
            Self::Rc(_) => {}
            Self::Uc(uc) => uc.resume(),
            Self::Ud(ud) => ud.resume(),
        }
    }

    /// See [`Rc::abandon`].
    pub(crate) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        match self {
            Self::Rc(rc) => rc.abandon(),
            Self::Uc(uc) => uc.abandon(),
            Self::Ud(_) => None,
        }
    }

    /// Whether every message that was begun has ended.
    pub(crate) fn is_drained(&self) -> bool {
        match self {
            Self::Rc(rc) => rc.is_drained(),
            Self::Uc(uc) => uc.is_drained(),
            Self::Ud(_) => true,
        }
    }

    /// Whether answers wait for the outlet.
    pub(crate) fn is_answering(&mut self) -> bool {
        match self {
            Self::Rc(rc) => rc.is_answering(),
            Self::Uc(_) | Self::Ud(_) => false,
        }
    }

    /// When time alone changes something.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Rc(rc) => rc.deadline(),
            Self::Uc(_) | Self::Ud(_) => None,
        }
    }

    /// It is later than before.
    pub(crate) fn expire(&mut self, ends: &Ends<'_>, notes: &mut Notes) {
        if let Self::Rc(rc) = self {
            rc.expire(ends, notes);
        }
    }

    /// Takes a packet whose ICRC, addresses, partition and destination are in order, and whose service is
    /// the queue pair's.
    pub(crate) fn receive(&mut self, ends: &Ends<'_>, packet: &Incoming<'_>, notes: &mut Notes) {
        match self {
            Self::Rc(rc) => rc.receive(ends, &packet.head, packet.payload, notes),
            Self::Uc(uc) => uc.receive(ends, &packet.head, packet.payload, notes),
            Self::Ud(_) => ud::receive(ends, packet, notes),
        }
    }

    /// Puts out what is to be sent to the peer of a connection; whether more would be, had the outlet
    /// room.
    pub(crate) fn transmit(
        &mut self,
        ends: &Ends<'_>,
        outlet: &mut dyn Outlet,
        notes: &mut Notes,
    ) -> bool {
        match self {
            Self::Rc(rc) => rc.transmit(ends, outlet, notes),
            Self::Uc(uc) => uc.transmit(ends, outlet, notes),
            Self::Ud(_) => false,
        }
    }

    /// Puts out the datagrams that are to be sent; whether more would be, had the link room.
    pub(crate) fn post(&mut self, ends: &Ends<'_>, post: &mut dyn Post, notes: &mut Notes) -> bool {
        match self {
            Self::Ud(ud) => ud.transmit(ends, post, notes),
            Self::Rc(_) | Self::Uc(_) => false,
        }
    }
}
