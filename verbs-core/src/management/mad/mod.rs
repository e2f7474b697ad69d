//! Management datagrams: their formats, and the bookkeeping of a port's service for them.
//!
//! Every management datagram has 256 bytes and begins with a [`MadHeader`]. Subnet management ([`sm`]),
//! subnet administration ([`sa`]), performance management ([`pm`]) and transfers of several datagrams
//! ([`rmpp`]) add headers of their own; formats that one protocol alone uses live with that protocol.
//!
//! [`Agents`] is what a port's service keeps: which client registered for which class and method, which
//! requests wait for a response, and what has to be sent again when. It is sans-IO, as is everything
//! here but the service: no clock, no queue pair, no lock. Time comes in as an [`Instant`](crate::time::Instant),
//! datagrams come in and go out as bytes with an [`Address`]. All of it may be called from a routine, and nothing blocks.
//!
//! [`MadService`] attaches it to a port: it alone opens queue pairs 0 and 1, gives each datagram to the
//! device first ([`process`]) and then to its agent, and asks the provider's timer to be woken.
//!
//! Not here: whatever answers the requests.

pub mod agent;
mod format;
#[doc(hidden)]
pub mod fuzz;
pub mod pm;
pub mod process;
pub mod rmpp;
pub mod sa;
pub mod service;
pub mod sm;

pub(crate) use format::class_port_info;
#[doc(hidden)]
pub use format::field;
pub use format::{header, time_code};

pub use agent::{AgentConfig, AgentCounters, AgentError, AgentId, Agents, Delivery, Retry};
pub use class_port_info::{ClassPortInfo, ClassPortInfoView};
pub use field::{Bits, Blob, TooLong};
pub use header::{
    AttributeId, Class, MAD_LEN, MadBytes, MadHeader, MadHeaderView, Method, Status, TransactionId,
};
pub use process::{LATER_MAX, Later, MadArrival, MadReply, MadVerdict};
pub use service::{MadAgent, MadClient, MadService, PortInfo};
pub use time_code::TimeCode;

use crate::addr::{QKey, Qpn};
use crate::qp_attr::Av;

/// The Q_Key of queue pair 1 at every port.
pub const GSI_QKEY: QKey = QKey(0x8001_0000);

/// Where a datagram goes, or came from: the other side's queue pair at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The way to the port; of a received datagram, the way back.
    pub av: Av,
    /// The queue pair there; 1 for all classes but subnet management.
    pub qpn: Qpn,
    /// Index of the partition in this port's table.
    pub pkey_index: u16,
}

impl Address {
    /// The general services queue pair of the port at the end of that way, in the first partition.
    pub const fn gsi(av: Av) -> Self {
        Self {
            av,
            qpn: Qpn::new(1),
            pkey_index: 0,
        }
    }

    /// Whether both name the same port, as far as the addresses tell: by GID where both have one,
    /// otherwise by LID.
    pub fn is_same_port(&self, other: &Self) -> bool {
        self.is_same_port_of(other, 0)
    }

    /// The same where ports have 2^`lmc` LIDs each, as a manager gives all of a subnet: a peer may answer from another
    /// of its LIDs than was asked, as OpenSM does.
    pub fn is_same_port_of(&self, other: &Self, lmc: u8) -> bool {
        match (self.av.global, other.av.global) {
            (Some(one), Some(another)) => one.dgid == another.dgid,
            _ => {
                let [one, another] = [self, other].map(|it| it.av.dlid.0 >> lmc.min(7));
                one == another
            }
        }
    }
}
