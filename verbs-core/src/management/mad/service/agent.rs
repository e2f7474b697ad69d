//! Clients of the service.

use std::fmt;

use crate::mad::agent::{AgentError, AgentId, Delivery, Retry};
use crate::mad::service::{Core, MadService};
use crate::mad::{Address, Class, MadBytes, Method, TransactionId};
use crate::sync::{Arc, Weak};

/// Gets what arrives for an agent.
pub trait MadClient: Send + Sync {
    /// A datagram has arrived, or what was asked for has ended. Runs under NoBlock (K3), one call at a
    /// time for each port, in the order of arrival.
    fn deliver(&self, delivery: Delivery);
}

/// A registered client of a port's service. Dropping it ends the registration: what it waits for is
/// forgotten.
///
/// # Context
/// Everything here is legal in routines and handlers, and never blocks.
pub struct MadAgent {
    core: Arc<Core>,
    id: AgentId,
}

impl MadService {
    /// Registers a client of a class, which gets the requests of peers that have these methods; none,
    /// for one that only asks.
    ///
    /// # Errors
    /// [`AgentError::Taken`] when another has one of the methods, [`AgentError::Limit`].
    pub fn register(
        &self,
        class: Class,
        version: u8,
        methods: &[Method],
        client: Weak<dyn MadClient>,
    ) -> Result<MadAgent, AgentError> {
        let mut state = self.core.state.lock();
        let state = state.as_mut().ok_or(AgentError::NoAgent)?;
        let id = state.register(class, version, methods, client)?;
        Ok(MadAgent {
            core: Arc::clone(&self.core),
            id,
        })
    }
}

impl MadAgent {
    /// The service.
    pub fn service(&self) -> MadService {
        MadService {
            core: Arc::clone(&self.core),
        }
    }

    /// The upper half of the agent's transaction ids.
    pub fn id(&self) -> AgentId {
        self.id
    }

    /// Sends datagrams as they are: answers, or those that no answer belongs to. They may get lost.
    pub fn send(&self, mads: impl IntoIterator<Item = (Address, MadBytes)>) {
        self.core.with(|state, _| {
            for (to, mad) in mads {
                state.send(to, &mad);
            }
        });
    }

    /// Sends a request, again when no response comes in time, and finds the response.
    ///
    /// # Errors
    /// As [`Agents::request`](crate::mad::Agents::request).
    pub fn request(
        &self,
        to: Address,
        mad: &MadBytes,
        retry: Retry,
    ) -> Result<TransactionId, AgentError> {
        self.core
            .with(|state, now| state.agents.request(now, self.id, to, mad, retry))
            .ok_or(AgentError::NoAgent)?
    }

    /// Forgets a request; returns whether it was waiting.
    pub fn cancel(&self, tid: TransactionId) -> bool {
        let cancelled = self.core.with(|state, _| state.agents.cancel(tid));
        cancelled.unwrap_or(false)
    }

    /// Answers a peer's request with more than one datagram holds.
    ///
    /// # Errors
    /// As [`Agents::respond`](crate::mad::Agents::respond).
    pub fn respond(
        &self,
        to: Address,
        template: &MadBytes,
        payload: Vec<u8>,
    ) -> Result<(), AgentError> {
        self.core
            .with(|state, now| state.agents.respond(now, self.id, to, template, payload))
            .ok_or(AgentError::NoAgent)?
    }
}

impl Drop for MadAgent {
    fn drop(&mut self) {
        let gone = self.core.with(|state, _| state.unregister(self.id));
        // What refers to the client is let go of under no lock (K4).
        drop(gone);
    }
}

impl fmt::Debug for MadAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadAgent")
            .field("id", &self.id)
            .field("port", &self.core.port)
            .finish_non_exhaustive()
    }
}
