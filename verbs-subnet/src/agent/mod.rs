//! The agents of a node: its answers to its subnet manager and its performance manager.
//!
//! They are plain functions over bytes: the receiver of a datagram calls them, and has the answer.

pub mod pma;
pub mod sma;

use verbs_core::Lid;
use verbs_core::mad::MadBytes;
use verbs_core::time::Instant;

/// How a datagram arrived at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The port of arrival; 0 for a datagram that a switch has sent to itself.
    pub port: u8,
    /// The sender; the permissive LID for directed routes.
    pub slid: Lid,
    /// The time of arrival.
    pub now: Instant,
}

/// The result of offering a datagram to a port's agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processed {
    /// This is its answer, which returns by the same route.
    Reply(Box<MadBytes>),
    /// It was for this agent, and has no answer.
    Consumed,
    /// It is for another receiver: a manager or another client of the port.
    NotMine,
}
