//! The service at work: from completions to deliveries.

use std::collections::BTreeMap;
use std::task::{Poll, Wake, Waker};

use crate::addr::Qpn;
use crate::cq::Cq;
use crate::mad::agent::{AgentCounters, AgentError, AgentId, Agents, Delivery};
use crate::mad::header::header_of;
use crate::mad::process::{LATER_MAX, Later, MadArrival, MadReply, MadVerdict, ReplySink};
use crate::mad::service::wire::{Arrival, Wire};
use crate::mad::service::{Core, MadClient, queue_pair_of, reverse};
use crate::mad::{Address, Class, MAD_LEN, MadBytes, Method};
use crate::pd::Pd;
use crate::queue::{Arm, Armed};
use crate::routine;
use crate::sync::{Arc, Weak};
use crate::task::OwnWaker;
use crate::time::Instant;
use crate::wc::{Wc, WcFlags};

/// Completions taken in one turn. Between two turns the lock is free, and other handlers that wait on the thread run: of
/// a burst, no more datagrams than this are answered in a row.
pub(super) const TURN: usize = 16;
/// Deliveries to clients in one turn: more than the datagrams of a turn bring, so that requests that time out together
/// are told in a few turns.
const DELIVERIES: usize = 2 * TURN;

/// What the lock guards.
pub(super) struct State {
    pub(super) agents: Agents,
    clients: BTreeMap<AgentId, Weak<dyn MadClient>>,
    // Dropped in this order: queue pairs and their memory, the queue, the domain.
    wires: Vec<Wire>,
    cq: Cq,
    _pd: Pd,
    /// A thread takes its turn, and handles what other threads bring.
    busy: bool,
    again: bool,
    /// When the timer wakes us next.
    alarm: Option<Instant>,
    /// The tasks that wait until what was sent has left.
    draining: Vec<Waker>,
    /// The device is gone, and nothing is sent any longer.
    is_gone: bool,
    /// Datagrams that the device answers later.
    later: usize,
    /// The memory of the last arrivals, for the next ones.
    spare: Vec<Arrival>,
}

/// What one look at the completions brought.
#[derive(Default)]
struct Lot {
    arrivals: Vec<Arrival>,
    /// The wakers of tasks whose datagrams may have left. To be woken under no lock.
    wakers: Vec<Waker>,
}

/// How many datagrams of each queue pair were sent at some time.
pub(super) struct Mark(Vec<u64>);

impl State {
    pub(super) fn new(agents: Agents, wires: Vec<Wire>, cq: Cq, pd: Pd) -> Self {
        Self {
            agents,
            clients: BTreeMap::new(),
            wires,
            cq,
            _pd: pd,
            busy: false,
            again: false,
            alarm: None,
            draining: Vec::new(),
            is_gone: false,
            later: 0,
            spare: Vec::new(),
        }
    }

    pub(super) fn register(
        &mut self,
        class: Class,
        version: u8,
        methods: &[Method],
        client: Weak<dyn MadClient>,
    ) -> Result<AgentId, AgentError> {
        // A client that has gone may not have got to its unregistering yet.
        let gone = self
            .clients
            .iter()
            .filter(|(_, client)| client.strong_count() == 0);
        let gone: Vec<_> = gone.map(|(&id, _)| id).collect();
        for id in gone {
            self.unregister(id);
        }
        let id = self.agents.register(class, version, methods)?;
        self.clients.insert(id, client);
        Ok(id)
    }

    pub(super) fn unregister(&mut self, id: AgentId) -> Option<Weak<dyn MadClient>> {
        // It was registered, and an agent is dropped once.
        let _ = self.agents.unregister(id);
        self.clients.remove(&id)
    }

    pub(super) fn counters(&self) -> AgentCounters {
        self.agents.counters()
    }

    pub(super) fn pending(&self) -> usize {
        self.agents.pending()
    }

    /// Sends a datagram from the queue pair of its class.
    pub(super) fn send(&mut self, to: Address, mad: &MadBytes) {
        let qpn = queue_pair_of(header_of(mad).class());
        if let Some(wire) = self.wires.iter_mut().find(|wire| wire.qpn() == qpn) {
            wire.send(to, mad);
        }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.wires.iter().map(Wire::taken).collect())
    }

    fn has_drained(&self, mark: &Mark) -> bool {
        let mut wires = self.wires.iter().zip(&mark.0);
        self.is_gone || wires.all(|(wire, &taken)| wire.has_left(taken))
    }

    /// Takes what has come, as much as a turn has at most.
    fn poll(&mut self, lot: &mut Lot) {
        let mut wcs = [Wc::default(); TURN];
        for wc in self.cq.poll(&mut wcs).iter() {
            let wire = self.wires.iter_mut().find(|wire| wire.qpn() == wc.qpn);
            if let Some(arrival) = wire.and_then(|wire| wire.completed(wc)) {
                lot.arrivals.push(arrival);
            }
        }
        self.wires.iter_mut().for_each(Wire::flush);
        lot.wakers.append(&mut self.draining);
    }

    fn transmit(&mut self) {
        while let Some((to, mad)) = self.agents.poll_transmit() {
            self.send(to, &mad);
        }
    }
}

impl Core {
    /// Changes what the lock guards, and handles what follows. `None`: the service is not open.
    pub(super) fn with<R>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> Option<R> {
        let now = self.now();
        // Under NoBlock: posting may result in a turn here, which comes when the lock is free.
        routine::collect(|| {
            let mut state = self.state.lock();
            let state = state.as_mut()?;
            let result = change(state, now);
            state.transmit();
            self.set_alarm(state);
            Some(result)
        })
    }

    /// Takes completions, as many as a turn has, and delivers what they brought; further turns follow behind the
    /// handlers that wait on this thread, until nothing is left. A caller that comes while another thread does this
    /// leaves it to that one.
    pub(super) fn turn(self: &Arc<Self>) {
        routine::collect(|| {
            let mut lot = Lot::default();
            let has_begun = self.begin_lot(&mut lot);
            lot.wakers.drain(..).for_each(routine::wake);
            if has_begun {
                let info = match &*self.phase.lock() {
                    crate::mad::service::Phase::Open(info) => Some(Arc::clone(info)),
                    _ => None,
                };
                let gids = info.as_ref().map_or(&[][..], |info| &info.gids);
                for arrival in &lot.arrivals {
                    let from = reverse::source(&arrival.wc, &arrival.grh, self.port, gids);
                    if let Some(from) = from {
                        self.handle(arrival, from);
                    }
                }
                lot.arrivals.clear();
                self.deliver(lot.arrivals);
                let core = Arc::clone(self);
                routine::defer(move || core.turn());
            }
        });
    }

    /// Whether there is something to be done, which is then the caller's.
    fn begin_lot(&self, lot: &mut Lot) -> bool {
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut() else {
            return false;
        };
        // The caller that comes back for its next lot has nothing in it, as every other caller.
        if state.busy {
            state.again = true;
            return false;
        }
        lot.arrivals = std::mem::take(&mut state.spare);
        state.poll(lot);
        if lot.arrivals.is_empty() && !std::mem::take(&mut state.again) {
            match state.cq.arm(Arm::Next) {
                Armed::Empty => {
                    state.spare = std::mem::take(&mut lot.arrivals);
                    return false;
                }
                Armed::Waiting => state.poll(lot),
            }
        }
        state.busy = true;
        true
    }

    /// One datagram: the device's, or an agent's.
    fn handle(self: &Arc<Self>, arrival: &Arrival, from: Address) {
        let mut reply = [0; MAD_LEN];
        let later = || self.later(from);
        let incoming = MadArrival {
            qpn: arrival.wc.qpn,
            port: self.port,
            slid: arrival.wc.slid,
            sl: arrival.wc.sl,
            src_qpn: arrival.wc.src_qpn,
            pkey_index: arrival.wc.pkey_index,
            grh: arrival
                .wc
                .flags
                .contains(WcFlags::GRH)
                .then_some(&arrival.grh),
            mad: &arrival.mad,
            later: Later::new(&later),
        };
        let provider = self.device.get().provider_of();
        let verdict = provider.process_mad(&incoming, &mut reply);
        let now = self.now();
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut() else {
            return;
        };
        match verdict {
            MadVerdict::Reply => state.send(from, &reply),
            MadVerdict::Consumed | MadVerdict::Later => {}
            MadVerdict::NotMine if from_stranger(&arrival.wc, &arrival.mad) => {}
            MadVerdict::NotMine => state.agents.handle(now, from, &arrival.mad),
        }
    }

    /// The right to answer a datagram from there later, if there may be one more.
    fn later(self: &Arc<Self>, from: Address) -> Option<MadReply> {
        let mut guard = self.state.lock();
        let state = guard.as_mut().filter(|state| state.later < LATER_MAX)?;
        state.later += 1;
        Some(MadReply::new(Arc::clone(self) as Arc<dyn ReplySink>, from))
    }

    /// Hands out what has arrived for agents, as much as a turn has, and ends the turn; gives back the memory of its
    /// arrivals.
    fn deliver(self: &Arc<Self>, mut spare: Vec<Arrival>) {
        let mut delivered = 0;
        loop {
            let next = {
                let mut guard = self.state.lock();
                let Some(state) = guard.as_mut() else {
                    return;
                };
                state.transmit();
                let is_over = delivered == DELIVERIES;
                let delivery = match is_over {
                    true => None,
                    false => state.agents.poll_delivery(),
                };
                if delivery.is_none() {
                    state.busy = false;
                    state.spare = std::mem::take(&mut spare);
                    // What is left is the next turn's, although nothing may have come by then.
                    state.again |= is_over;
                    self.set_alarm(state);
                }
                delivery.map(|delivery| {
                    let client = state.clients.get(&agent_of(&delivery)).cloned();
                    (client, delivery)
                })
            };
            let Some((client, delivery)) = next else {
                return;
            };
            delivered += 1;
            if let Some(client) = client.and_then(|client| client.upgrade()) {
                client.deliver(delivery);
            }
        }
    }

    /// Whether what had been sent at that mark has left, or never will.
    pub(super) fn poll_drained(&self, mark: &Mark, waker: &Waker) -> Poll<()> {
        let mut waker = OwnWaker::of(waker);
        let mut guard = self.state.lock();
        match guard.as_mut() {
            Some(state) if !state.has_drained(mark) => {
                waker.join(&mut state.draining);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// The device is gone: no request waits any longer for an answer.
    pub(super) fn give_up(self: &Arc<Self>) {
        {
            let mut guard = self.state.lock();
            let Some(state) = guard.as_mut() else {
                return;
            };
            state.agents.give_up();
            state.is_gone = true;
            state.again = true;
        }
        self.turn();
    }

    /// What was set for now is due.
    fn timeout(self: &Arc<Self>) {
        let now = self.now();
        {
            let mut guard = self.state.lock();
            let Some(state) = guard.as_mut() else {
                return;
            };
            state.alarm = None;
            state.agents.handle_timeout(now);
            state.again = true;
        }
        self.turn();
    }

    /// Has the timer wake us when the next thing is due. A wake that was asked for earlier than that
    /// cannot be taken back, and finds nothing to do.
    fn set_alarm(self: &Arc<Self>, state: &mut State) {
        let (Some(due), Some(timer)) = (state.agents.poll_timeout(), &self.timer) else {
            return;
        };
        if state.alarm.is_some_and(|alarm| alarm <= due) {
            return;
        }
        state.alarm = Some(due);
        timer.wake_at(due, Waker::from(Arc::new(Alarm(Arc::downgrade(self)))));
    }
}

impl ReplySink for Core {
    fn settle(&self, to: Address, reply: Option<&MadBytes>) {
        // Under NoBlock: sending may result in a turn here, which comes when the lock is free.
        routine::collect(|| {
            let mut guard = self.state.lock();
            if let Some(state) = guard.as_mut() {
                state.later -= 1;
                if let Some(reply) = reply.filter(|_| !state.is_gone) {
                    state.send(to, reply);
                }
            }
        });
    }
}

/// Wakes the service; keeps it from nothing.
struct Alarm(Weak<Core>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(core) = self.0.upgrade() {
            routine::defer(move || core.timeout());
        }
    }
}

/// General services come from any queue pair, subnet management from queue pair 0 only
/// (IBTA vol. 1, 13.5.3.3).
fn from_stranger(wc: &Wc, mad: &MadBytes) -> bool {
    let is_subnet = queue_pair_of(header_of(mad).class()) == Qpn::new(0);
    is_subnet != (wc.qpn == Qpn::new(0)) || is_subnet && wc.src_qpn != Qpn::new(0)
}

fn agent_of(delivery: &Delivery) -> AgentId {
    match *delivery {
        Delivery::Request { agent, .. }
        | Delivery::Response { agent, .. }
        | Delivery::TimedOut { agent, .. }
        | Delivery::TransferFailed { agent, .. }
        | Delivery::Responded { agent, .. } => agent,
    }
}
