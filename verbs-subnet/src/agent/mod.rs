//! The agents of a node: what it answers its subnet manager and its performance manager.
//!
//! They are plain functions over bytes: what receives a datagram calls them, and has the answer.

pub mod pma;
pub mod sma;

use verbs_core::Lid;
use verbs_core::mad::{MadBytes, Time};

/// How a datagram came to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The port it came in through; 0 for one that a switch has sent to itself.
    pub port: u8,
    /// Who sent it; the permissive LID for directed routes.
    pub slid: Lid,
    /// When.
    pub now: Time,
}

/// What became of a datagram that was offered to a port's agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processed {
    /// It is answered with this one, back the way it came.
    Reply(Box<MadBytes>),
    /// It was for this agent, and there is no answer.
    Consumed,
    /// It is for somebody else: a manager or another client of the port.
    NotMine,
}
