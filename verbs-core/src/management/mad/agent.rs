//! Which client gets which datagram: registrations, requests that wait for responses, transfers.

mod api;
mod pending;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::mad::Address;
use crate::mad::header::{
    Class, MadBytes, MadHeader, Method, TransactionId, emit_header, header_of,
};
use crate::mad::rmpp::{Kind, Layout, Received, Receiver, RmppHeader, Sender};
use crate::time::Instant;

pub use api::{AgentConfig, AgentCounters, AgentError, AgentId, Delivery};
use pending::Pending;
pub use pending::Retry;

#[derive(Debug)]
struct Agent {
    class: Class,
    version: u8,
    methods: Vec<Method>,
    next_request: u32,
}

/// A transfer to a peer.
#[derive(Debug)]
struct Outgoing {
    agent: AgentId,
    to: Address,
    class: Class,
    sender: Sender,
}

/// A transfer from a peer.
#[derive(Debug)]
struct Incoming {
    from: Address,
    class: Class,
    first: Box<MadBytes>,
    receiver: Receiver,
}

/// The clients of a port's service for management datagrams, and what they wait for.
///
/// - Commands: [`register`](Self::register), [`unregister`](Self::unregister),
///   [`request`](Self::request), [`cancel`](Self::cancel), [`respond`](Self::respond). A datagram
///   in answer, or one that no answer belongs to, goes to the wire without passing here.
/// - Inputs: [`handle`](Self::handle), [`handle_timeout`](Self::handle_timeout).
/// - Outputs: after each call drain [`poll_transmit`](Self::poll_transmit) and
///   [`poll_delivery`](Self::poll_delivery), then look at [`poll_timeout`](Self::poll_timeout).
///
/// Each request has exactly one of [`Delivery::Response`], [`Delivery::TimedOut`] and
/// [`Delivery::TransferFailed`], unless it is cancelled, which leaves none. No input blocks or
/// panics, whatever a peer sends.
#[derive(Debug)]
pub struct Agents {
    config: AgentConfig,
    next_agent: u32,
    agents: BTreeMap<AgentId, Agent>,
    routes: BTreeMap<(Class, u8, Method), AgentId>,
    pending: Pending,
    outgoing: BTreeMap<TransactionId, Outgoing>,
    incoming: BTreeMap<TransactionId, Incoming>,
    transmits: VecDeque<(Address, MadBytes)>,
    deliveries: VecDeque<Delivery>,
    /// Requests of peers among the deliveries.
    inbox: usize,
    counters: AgentCounters,
    lmc: u8,
    /// There will be no answer.
    is_over: bool,
}

impl Agents {
    /// No agents yet. `first_agent` becomes the upper half of the first one's transaction ids: a
    /// number that differs from run to run keeps late responses of an earlier run apart.
    pub fn new(config: AgentConfig, first_agent: u32) -> Self {
        Self {
            config,
            next_agent: first_agent,
            agents: BTreeMap::new(),
            routes: BTreeMap::new(),
            pending: Pending::default(),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            transmits: VecDeque::new(),
            deliveries: VecDeque::new(),
            inbox: 0,
            counters: AgentCounters::default(),
            lmc: 0,
            is_over: false,
        }
    }

    /// Ports have 2^`lmc` LIDs each from now on, as the port here has: an answer may come from another of its sender's
    /// than was asked. One LID each before.
    pub fn set_lmc(&mut self, lmc: u8) {
        self.lmc = lmc;
    }

    /// Registers a client of a class, which gets the requests of peers that have these methods; none,
    /// for a client that only asks.
    ///
    /// # Errors
    /// [`AgentError::Taken`] when another has one of the methods, [`AgentError::Limit`].
    pub fn register(
        &mut self,
        class: Class,
        version: u8,
        methods: &[Method],
    ) -> Result<AgentId, AgentError> {
        let max = self.config.agents_max;
        if self.agents.len() >= max {
            return Err(AgentError::Limit {
                what: "agents_max",
                max,
            });
        }
        let taken = |method| self.routes.contains_key(&(class, version, method));
        if let Some(&method) = methods.iter().find(|&&method| taken(method)) {
            return Err(AgentError::Taken {
                class,
                version,
                method,
            });
        }
        let id = self.free_id();
        self.routes
            .extend(methods.iter().map(|&method| ((class, version, method), id)));
        let methods = methods.to_vec();
        self.agents.insert(
            id,
            Agent {
                class,
                version,
                methods,
                next_request: 1,
            },
        );
        Ok(id)
    }

    /// Ends a registration: what the agent waits for is forgotten, what has arrived for it stays to
    /// be fetched.
    ///
    /// # Errors
    /// [`AgentError::NoAgent`].
    pub fn unregister(&mut self, id: AgentId) -> Result<(), AgentError> {
        let agent = self.agents.remove(&id).ok_or(AgentError::NoAgent)?;
        for method in agent.methods {
            self.routes.remove(&(agent.class, agent.version, method));
        }
        for tid in self.pending.of(id) {
            self.incoming.remove(&tid);
            self.pending.remove(tid);
        }
        self.outgoing.retain(|_, transfer| transfer.agent != id);
        Ok(())
    }

    /// Sends a request, again when no response comes in time, and finds the response. The
    /// transaction id and the class of `mad`'s header are written over.
    ///
    /// # Errors
    /// [`AgentError::NoAgent`], [`AgentError::WrongClass`], [`AgentError::Limit`].
    pub fn request(
        &mut self,
        now: Instant,
        id: AgentId,
        to: Address,
        mad: &MadBytes,
        retry: Retry,
    ) -> Result<TransactionId, AgentError> {
        let max = self.config.requests_max;
        let agent = self.agents.get_mut(&id).ok_or(AgentError::NoAgent)?;
        let header = MadHeader::parse(header_of(mad));
        if header.class != agent.class {
            return Err(AgentError::WrongClass {
                expected: agent.class,
                got: header.class,
            });
        }
        if self.pending.len() >= max {
            return Err(AgentError::Limit {
                what: "requests_max",
                max,
            });
        }
        // Transfers linger, so that an id is free only when neither table has it. One of fewer than
        // 2^32 entries ends the search.
        let tid = loop {
            let tid = TransactionId::new(id.0, agent.next_request);
            agent.next_request = agent.next_request.wrapping_add(1);
            if !self.pending.contains(tid) && !self.incoming.contains_key(&tid) {
                break tid;
            }
        };
        let mut mad = *mad;
        emit_header(&MadHeader { tid, ..header }, &mut mad);
        let retry = if self.is_over { Retry::NONE } else { retry };
        self.transmits.push_back((to, mad));
        self.pending.insert(now, tid, id, to, mad, retry);
        Ok(tid)
    }

    /// The device is gone and there will be no answer: all requests have timed out, and those that are still made
    /// time out at once.
    pub fn give_up(&mut self) {
        self.is_over = true;
        for (tid, agent) in self.pending.take_all() {
            self.incoming.remove(&tid);
            self.deliveries.push_back(Delivery::TimedOut { agent, tid });
        }
    }

    /// Forgets a request: its response, should it come, is counted as unmatched. Returns whether
    /// it was waiting.
    pub fn cancel(&mut self, tid: TransactionId) -> bool {
        self.incoming.remove(&tid);
        self.pending.remove(tid)
    }

    /// Answers a peer's request with more than one datagram holds: `template` has the headers, the
    /// response's method and the request's transaction id.
    ///
    /// # Errors
    /// [`AgentError::NoAgent`], [`AgentError::NoTransfers`], [`AgentError::InProgress`],
    /// [`AgentError::Limit`].
    pub fn respond(
        &mut self,
        now: Instant,
        id: AgentId,
        to: Address,
        template: &MadBytes,
        payload: Vec<u8>,
    ) -> Result<(), AgentError> {
        let class = self.agents.get(&id).ok_or(AgentError::NoAgent)?.class;
        let header = MadHeader::parse(header_of(template));
        if self.outgoing.contains_key(&header.tid) {
            return Err(AgentError::InProgress(header.tid));
        }
        let max = self.config.transfers_max;
        if self.outgoing.len() + self.incoming.len() >= max {
            return Err(AgentError::Limit {
                what: "transfers_max",
                max,
            });
        }
        let layout = Layout::of(class).filter(|_| header.class == class);
        let sender = layout
            .and_then(|layout| Sender::new(template, layout, payload, self.config.rmpp))
            .ok_or(AgentError::NoTransfers(header.class))?;
        self.outgoing.insert(
            header.tid,
            Outgoing {
                agent: id,
                to,
                class,
                sender,
            },
        );
        self.advance_outgoing(now, header.tid);
        Ok(())
    }

    /// Takes a received datagram.
    pub fn handle(&mut self, now: Instant, from: Address, mad: &MadBytes) {
        let header = MadHeader::parse(header_of(mad));
        if header.base_version != MadHeader::BASE_VERSION {
            self.counters.bad_version += 1;
            return;
        }
        if Layout::of(header.class).is_some() {
            let rmpp = RmppHeader::of(mad);
            if rmpp.is_active() && rmpp.kind != Kind::DATA {
                return self.handle_control(now, from, &header, &rmpp, mad);
            }
            if rmpp.is_active() {
                return self.handle_segment(now, from, &header, mad);
            }
        }
        if header.method.is_response() || header.method == Method::TRAP_REPRESS {
            match self.pending.take(header.tid, header.class, &from, self.lmc) {
                Some(agent) => self.deliver(agent, header.tid, mad, None),
                None => self.counters.unmatched += 1,
            }
        } else {
            self.handle_request(from, &header, mad);
        }
    }

    /// Sends again what was not answered in time, and gives up on what was sent often enough.
    pub fn handle_timeout(&mut self, now: Instant) {
        for (tid, agent) in self.pending.expire(now, &mut self.transmits) {
            self.incoming.remove(&tid);
            self.deliveries.push_back(Delivery::TimedOut { agent, tid });
        }
        let senders: Vec<_> = self.outgoing.keys().copied().collect();
        for tid in senders {
            if let Some(transfer) = self.outgoing.get_mut(&tid) {
                transfer.sender.handle_timeout(now);
            }
            self.advance_outgoing(now, tid);
        }
        let receivers: Vec<_> = self.incoming.keys().copied().collect();
        for tid in receivers {
            if let Some(transfer) = self.incoming.get_mut(&tid) {
                transfer.receiver.handle_timeout(now);
            }
            self.advance_incoming(tid);
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<(Address, MadBytes)> {
        self.transmits.pop_front()
    }

    /// What has arrived.
    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        let delivery = self.deliveries.pop_front()?;
        self.inbox -= usize::from(matches!(delivery, Delivery::Request { .. }));
        Some(delivery)
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; `None` for no time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let senders = self
            .outgoing
            .values()
            .filter_map(|transfer| transfer.sender.poll_timeout());
        let receivers = self
            .incoming
            .values()
            .filter_map(|transfer| transfer.receiver.poll_timeout());
        self.pending
            .deadline()
            .into_iter()
            .chain(senders)
            .chain(receivers)
            .min()
    }

    /// What was dropped.
    pub fn counters(&self) -> AgentCounters {
        self.counters
    }

    /// Requests that wait for a response.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn handle_request(&mut self, from: Address, header: &MadHeader, mad: &MadBytes) {
        let route = (header.class, header.class_version, header.method);
        let Some(&agent) = self.routes.get(&route) else {
            self.counters.unclaimed += 1;
            return;
        };
        if self.inbox >= self.config.inbox_max {
            self.counters.inbox_full += 1;
            return;
        }
        self.inbox += 1;
        self.deliveries.push_back(Delivery::Request {
            agent,
            from,
            mad: *mad,
        });
    }

    /// An ACK, STOP or ABORT: about a transfer of ours, or a peer's end of its own.
    fn handle_control(
        &mut self,
        now: Instant,
        from: Address,
        header: &MadHeader,
        rmpp: &RmppHeader,
        mad: &MadBytes,
    ) {
        if header.method.is_response() {
            return self.handle_segment(now, from, header, mad);
        }
        let tid = header.tid;
        match self.outgoing.get_mut(&tid) {
            Some(transfer)
                if transfer.class == header.class
                    && transfer.to.is_same_port_of(&from, self.lmc) =>
            {
                transfer.sender.handle(now, rmpp);
                self.advance_outgoing(now, tid);
            }
            _ => self.counters.unmatched += 1,
        }
    }

    /// A segment of a response; transfers in requests are in no class that is served here.
    fn handle_segment(&mut self, now: Instant, from: Address, header: &MadHeader, mad: &MadBytes) {
        let tid = header.tid;
        if !self.incoming.contains_key(&tid) {
            let waits = self.pending.is_waiting(tid, header.class, &from, self.lmc);
            let layout = Layout::of(header.class).filter(|_| waits && header.method.is_response());
            let Some(layout) = layout else {
                self.counters.unmatched += 1;
                return;
            };
            if self.outgoing.len() + self.incoming.len() >= self.config.transfers_max {
                self.counters.transfers_full += 1;
                return;
            }
            let receiver = Receiver::new(now, mad, layout, self.config.rmpp);
            let (class, first) = (header.class, Box::new(*mad));
            self.incoming.insert(
                tid,
                Incoming {
                    from,
                    class,
                    first,
                    receiver,
                },
            );
        }
        let Some(transfer) = self.incoming.get_mut(&tid) else {
            return;
        };
        if transfer.class != header.class || !transfer.from.is_same_port_of(&from, self.lmc) {
            self.counters.unmatched += 1;
            return;
        }
        transfer.receiver.handle(now, mad);
        // From now on the transfer's own timer decides.
        self.pending.hold(tid);
        self.advance_incoming(tid);
    }

    fn advance_incoming(&mut self, tid: TransactionId) {
        let Some(transfer) = self.incoming.get_mut(&tid) else {
            return;
        };
        if let Some(answer) = transfer.receiver.poll_transmit() {
            self.transmits.push_back((transfer.from, answer));
        }
        let received = transfer.receiver.poll_received();
        let first = *transfer.first;
        if transfer.receiver.is_over() {
            self.incoming.remove(&tid);
        }
        let agent = received.as_ref().and_then(|_| self.pending.agent(tid));
        let (Some(received), Some(agent)) = (received, agent) else {
            return;
        };
        self.pending.remove(tid);
        match received {
            Received::Done(payload) => self.deliver(agent, tid, &first, Some(payload)),
            Received::Failed(status) => {
                self.deliveries
                    .push_back(Delivery::TransferFailed { agent, tid, status });
            }
        }
    }

    fn advance_outgoing(&mut self, now: Instant, tid: TransactionId) {
        let Some(transfer) = self.outgoing.get_mut(&tid) else {
            return;
        };
        while let Some(mad) = transfer.sender.poll_transmit(now) {
            self.transmits.push_back((transfer.to, mad));
        }
        if let Some(outcome) = transfer.sender.outcome() {
            let agent = transfer.agent;
            self.outgoing.remove(&tid);
            self.deliveries.push_back(Delivery::Responded {
                agent,
                tid,
                outcome,
            });
        }
    }

    fn deliver(
        &mut self,
        agent: AgentId,
        tid: TransactionId,
        mad: &MadBytes,
        payload: Option<Vec<u8>>,
    ) {
        self.deliveries.push_back(Delivery::Response {
            agent,
            tid,
            mad: *mad,
            payload,
        });
    }

    /// The next number that no agent has. One of fewer than 2^32 agents ends the search.
    fn free_id(&mut self) -> AgentId {
        loop {
            let id = AgentId(self.next_agent);
            self.next_agent = self.next_agent.wrapping_add(1);
            if !self.agents.contains_key(&id) {
                return id;
            }
        }
    }
}
