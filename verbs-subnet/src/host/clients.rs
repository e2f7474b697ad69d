//! The clients of a host: their roles, and their limits.

use std::collections::{BTreeMap, VecDeque};

use crate::ipc::message::Refusal;
use crate::topology::PortRef;

/// What the clients of a [`Host`](super::Host) may use at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Clients at a time, including sessions; each of them is a connection. 4096 by default: a few for each
    /// adapter of the largest fat tree.
    pub clients_max: usize,
    /// Operators at a time, in addition to the clients. 16 by default: commands that last a moment.
    pub operators_max: usize,
    /// Ports that one client has open. 64 by default: the ports of 32 adapters, of which libibumad shows no more.
    pub sessions_of_client_max: usize,
    /// Nodes that make up one host, and so adapters in one answer. 64 by default.
    pub nodes_of_host_max: usize,
    /// Requests of one session that wait for a response. 4096 by default: a subnet manager has a few dozen.
    pub requests_of_session_max: usize,
    /// Transfers that one session sends, each of 1 MiB at most. 16 by default.
    pub transfers_of_session_max: usize,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            clients_max: 4096,
            operators_max: 16,
            sessions_of_client_max: 64,
            nodes_of_host_max: 64,
            requests_of_session_max: 4096,
            transfers_of_session_max: 16,
        }
    }
}

/// The role of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Requests; sessions and HCAs start from this role.
    New,
    /// Datagrams of a port's service, for the client that has opened it.
    Session { at: PortRef, owner: u32 },
    /// An HCA at a port.
    Attached(PortRef),
    /// Pulls cables.
    Operator,
}

/// The table of clients.
#[derive(Debug)]
pub(super) struct Clients {
    limits: HostLimits,
    roles: BTreeMap<u32, Role>,
    /// By the client that has opened the session, and the session's number.
    sessions: BTreeMap<(u32, u32), PortRef>,
    operators: usize,
    next: u32,
    closed: VecDeque<u32>,
}

impl Clients {
    pub(super) const fn new(limits: HostLimits) -> Self {
        Self {
            limits,
            roles: BTreeMap::new(),
            sessions: BTreeMap::new(),
            operators: 0,
            next: 1,
            closed: VecDeque::new(),
        }
    }

    pub(super) const fn limits(&self) -> HostLimits {
        self.limits
    }

    pub(super) fn role(&self, client: u32) -> Option<Role> {
        self.roles.get(&client).copied()
    }

    /// Adds a client. `None` if there are too many.
    pub(super) fn connect(&mut self, role: Role) -> Option<u32> {
        let is_operator = role == Role::Operator;
        let others = self.roles.len() - self.operators;
        let is_full = match is_operator {
            true => self.operators >= self.limits.operators_max,
            false => others >= self.limits.clients_max,
        };
        if is_full {
            return None;
        }
        self.operators += usize::from(is_operator);
        while self.roles.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        // A number that was just freed is not reused next.
        self.next = self.next.wrapping_add(1);
        self.roles.insert(number, role);
        Some(number)
    }

    /// Removes a client; returns its role.
    pub(super) fn remove(&mut self, client: u32) -> Option<Role> {
        let role = self.roles.remove(&client)?;
        match role {
            Role::Operator => self.operators -= 1,
            Role::Session { owner, .. } => {
                self.sessions.remove(&(owner, client));
            }
            Role::New | Role::Attached(_) => {}
        }
        Some(role)
    }

    /// The client opens a port. Returns the session's number.
    pub(super) fn open(&mut self, client: u32, at: PortRef) -> Result<u32, Refusal> {
        if self.role(client) != Some(Role::New) {
            return Err(Refusal::Invalid);
        }
        let own = self.sessions_of(client).count();
        if own >= self.limits.sessions_of_client_max {
            return Err(Refusal::Full);
        }
        let owner = client;
        let session = self.connect(Role::Session { at, owner });
        let session = session.ok_or(Refusal::Full)?;
        self.sessions.insert((client, session), at);
        Ok(session)
    }

    /// A client without sessions attaches an HCA.
    pub(super) fn attach(&mut self, client: u32, at: PortRef) -> Result<(), Refusal> {
        let has_sessions = self.sessions_of(client).next().is_some();
        match self.roles.get_mut(&client) {
            Some(role @ Role::New) if !has_sessions => {
                *role = Role::Attached(at);
                Ok(())
            }
            _ => Err(Refusal::Invalid),
        }
    }

    /// A client's HCA detaches.
    pub(super) fn leave(&mut self, client: u32) {
        self.roles.insert(client, Role::New);
    }

    /// A client has disconnected: returns its sessions, which end.
    pub(super) fn end_sessions(&mut self, client: u32) -> Vec<(u32, PortRef)> {
        let ended: Vec<_> = self.sessions_of(client).collect();
        for &(session, _) in &ended {
            self.remove(session);
            self.closed.push_back(session);
        }
        ended
    }

    pub(super) fn poll_closed(&mut self) -> Option<u32> {
        self.closed.pop_front()
    }

    fn sessions_of(&self, client: u32) -> impl Iterator<Item = (u32, PortRef)> {
        let own = self.sessions.range((client, 0)..=(client, u32::MAX));
        own.map(|(&(_, session), &at)| (session, at))
    }
}
