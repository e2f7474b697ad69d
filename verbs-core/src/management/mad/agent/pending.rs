//! Requests that wait for their responses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::mad::Address;
use crate::mad::agent::AgentId;
use crate::mad::header::{Class, MadBytes, TransactionId, header_of};
use crate::time::Instant;

/// How long a response is waited for, and how often the request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Time for each attempt.
    pub timeout: Duration,
    /// Attempts after the first.
    pub retries: u32,
}

impl Retry {
    /// No time at all.
    pub(super) const NONE: Self = Self {
        timeout: Duration::ZERO,
        retries: 0,
    };
}

impl Default for Retry {
    /// Three retries, 2 s each: what subnet managers' clients are used to.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            retries: 3,
        }
    }
}

#[derive(Debug)]
struct Request {
    agent: AgentId,
    to: Address,
    mad: Box<MadBytes>,
    retry: Retry,
    /// `None` while a transfer brings the response.
    deadline: Option<Instant>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Pending {
    requests: BTreeMap<TransactionId, Request>,
    deadlines: BTreeSet<(Instant, TransactionId)>,
}

impl Pending {
    pub(super) fn insert(
        &mut self,
        now: Instant,
        tid: TransactionId,
        agent: AgentId,
        to: Address,
        mad: MadBytes,
        retry: Retry,
    ) {
        let deadline = now + retry.timeout;
        self.deadlines.insert((deadline, tid));
        let deadline = Some(deadline);
        let mad = Box::new(mad);
        self.requests.insert(
            tid,
            Request {
                agent,
                to,
                mad,
                retry,
                deadline,
            },
        );
    }

    /// Ends the request that a response from `from` belongs to.
    pub(super) fn take(
        &mut self,
        tid: TransactionId,
        class: Class,
        from: &Address,
        lmc: u8,
    ) -> Option<AgentId> {
        if !self.is_waiting(tid, class, from, lmc) {
            return None;
        }
        let agent = self.agent(tid);
        self.remove(tid);
        agent
    }

    /// Ends all of them.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (TransactionId, AgentId)> {
        self.deadlines.clear();
        let all = std::mem::take(&mut self.requests).into_iter();
        all.map(|(tid, request)| (tid, request.agent))
    }

    /// IBTA vol. 1, 13.4.6.4: a response has the request's transaction id, class and peer.
    pub(super) fn is_waiting(
        &self,
        tid: TransactionId,
        class: Class,
        from: &Address,
        lmc: u8,
    ) -> bool {
        self.requests.get(&tid).is_some_and(|request| {
            header_of(&request.mad).class() == class && request.to.is_same_port_of(from, lmc)
        })
    }

    /// Stops the clock of a request whose response has begun to arrive.
    pub(super) fn hold(&mut self, tid: TransactionId) {
        if let Some(request) = self.requests.get_mut(&tid)
            && let Some(deadline) = request.deadline.take()
        {
            self.deadlines.remove(&(deadline, tid));
        }
    }

    pub(super) fn remove(&mut self, tid: TransactionId) -> bool {
        self.hold(tid);
        self.requests.remove(&tid).is_some()
    }

    /// Sends again what is due; returns those that were sent often enough.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        transmits: &mut VecDeque<(Address, MadBytes)>,
    ) -> Vec<(TransactionId, AgentId)> {
        let mut ended = Vec::new();
        while let Some(&(deadline, tid)) = self.deadlines.first().filter(|first| first.0 <= now) {
            self.deadlines.remove(&(deadline, tid));
            let Some(request) = self.requests.get_mut(&tid) else {
                continue;
            };
            if request.retry.retries == 0 {
                ended.push((tid, request.agent));
                self.requests.remove(&tid);
                continue;
            }
            request.retry.retries -= 1;
            // A timeout of zero must not come round again at once.
            let next = now + request.retry.timeout.max(Duration::from_nanos(1));
            request.deadline = Some(next);
            transmits.push_back((request.to, *request.mad));
            self.deadlines.insert((next, tid));
        }
        ended
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    pub(super) fn agent(&self, tid: TransactionId) -> Option<AgentId> {
        self.requests.get(&tid).map(|request| request.agent)
    }

    pub(super) fn of(&self, agent: AgentId) -> Vec<TransactionId> {
        let all = self.requests.iter();
        all.filter(|(_, request)| request.agent == agent)
            .map(|(&tid, _)| tid)
            .collect()
    }

    pub(super) fn contains(&self, tid: TransactionId) -> bool {
        self.requests.contains_key(&tid)
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }
}
