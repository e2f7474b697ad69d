//! What a port's service says to its users: limits, refusals, deliveries, counters.

use crate::mad::Address;
use crate::mad::header::{Class, MadBytes, Method, TransactionId};
use crate::mad::rmpp::{RmppConfig, RmppStatus, Sent};

/// A registered client of a port's service. The number is the upper half of its transaction ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AgentId(pub(super) u32);

impl AgentId {
    /// The number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Limits of [`Agents`](crate::mad::Agents).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// Agents at a time. 64 by default: there are about ten classes.
    pub agents_max: usize,
    /// Requests that wait for a response, of all agents. 1024 by default.
    pub requests_max: usize,
    /// Transfers of several datagrams, in both directions. 32 by default: each may hold
    /// [`RmppConfig::transfer_bytes_max`].
    pub transfers_max: usize,
    /// Requests of peers that were not fetched yet; more are dropped and counted. 1024 by default:
    /// more than a receive queue holds.
    pub inbox_max: usize,
    /// Limits of each transfer.
    pub rmpp: RmppConfig,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            agents_max: 64,
            requests_max: 1024,
            transfers_max: 32,
            inbox_max: 1024,
            rmpp: RmppConfig::default(),
        }
    }
}

/// Why a call was refused; nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    // --- the caller ---
    /// Another agent has that method of that class.
    #[error("{method:?} of class {class:?} version {version} is registered already")]
    Taken {
        /// The class.
        class: Class,
        /// Its version.
        version: u8,
        /// The method.
        method: Method,
    },
    /// There is no such agent, or there is no longer one.
    #[error("no such agent")]
    NoAgent,
    /// The datagram belongs to another class than the agent.
    #[error("a datagram of class {got:?} from an agent of class {expected:?}")]
    WrongClass {
        /// The agent's.
        expected: Class,
        /// The datagram's.
        got: Class,
    },
    /// A transfer in this class is not defined, or is longer than can be numbered.
    #[error("class {0:?} has no transfers of that length")]
    NoTransfers(Class),
    /// The same response is being sent already.
    #[error("{0:?} is being answered already")]
    InProgress(TransactionId),

    // --- a limit ---
    /// Too many of something; the text says which field of [`AgentConfig`].
    #[error("{what} is at its limit of {max}")]
    Limit {
        /// The field.
        what: &'static str,
        /// Its value.
        max: usize,
    },
}

/// What has arrived for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A datagram that asks for something, or that no answer belongs to.
    Request {
        /// The agent that it is for.
        agent: AgentId,
        /// From where, and the way back.
        from: Address,
        /// The datagram.
        mad: MadBytes,
    },
    /// The answer to a request.
    Response {
        /// The agent that it is for.
        agent: AgentId,
        /// Which request.
        tid: TransactionId,
        /// The datagram; of several, the first.
        mad: MadBytes,
        /// What several carried, without their headers; `None` for an answer in one datagram.
        payload: Option<Vec<u8>>,
    },
    /// There was no answer in time, after all retries; or there will be none, as the device is gone.
    TimedOut {
        /// The agent that it is for.
        agent: AgentId,
        /// Which request.
        tid: TransactionId,
    },
    /// The answer began, but its transfer failed.
    TransferFailed {
        /// The agent that it is for.
        agent: AgentId,
        /// Which request.
        tid: TransactionId,
        /// Why.
        status: RmppStatus,
    },
    /// What [`Agents::respond`](crate::mad::Agents::respond) was given has arrived, or has not.
    Responded {
        /// The agent that it is for.
        agent: AgentId,
        /// Which request of the peer was answered.
        tid: TransactionId,
        /// How it went.
        outcome: Sent,
    },
}

/// What was dropped, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AgentCounters {
    /// Responses that no request waits for: late, repeated or forged.
    pub unmatched: u64,
    /// Requests that no client registered for.
    pub unclaimed: u64,
    /// Datagrams whose base version is unknown.
    pub bad_version: u64,
    /// Requests dropped because the inbox was full.
    pub inbox_full: u64,
    /// Transfers dropped because there were too many.
    pub transfers_full: u64,
}
