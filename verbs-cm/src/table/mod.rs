//! Many connections behind one port.

mod dispatch;
pub mod driver;
mod index;
mod listen;
mod resolve;
#[cfg(test)]
mod tests;
mod watch;

use slab::Slab;
use verbs_core::addr::{Gid, Psn};
use verbs_core::mad::{Address, Blob, MadBytes, TimeCode, TransactionId};
use verbs_core::seed::Draws;
use verbs_core::time::Instant;
use verbs_core::{Error, QpAttr, Qpn, Seed};

use crate::config::Config;
use crate::event::{
    CmError, ConnId, Counters, Ended, Event, ListenId, Outputs, QpChange, ResolveId,
};
use crate::machine::{Connection, Ctx, State};
use crate::machine::{active, closing, passive, paths, question};
use crate::params::{Accept, Connect, Listen, Port, Resolve, Resolved, Route};
use crate::table::index::Index;
use crate::table::listen::Listeners;
use crate::table::resolve::Resolutions;
use crate::table::watch::Neighbours;
use crate::wire::{CommId, RejectReason, Transport};

/// The connection manager of one port, sans-IO.
///
/// - Commands: [`listen`](Self::listen), [`connect`](Self::connect), [`accept`](Self::accept),
///   [`reject`](Self::reject), [`delay`](Self::delay), [`disconnect`](Self::disconnect),
///   [`destroy`](Self::destroy), [`resolve`](Self::resolve), [`answer`](Self::answer).
/// - Inputs: [`handle`](Self::handle) for received datagrams,
///   [`handle_timeout`](Self::handle_timeout), [`qp_modified`](Self::qp_modified) when a modify has
///   ended, [`communication_established`](Self::communication_established) for the event of that
///   name, [`undelivered`](Self::undelivered) for what the network refuses.
/// - Outputs: after each call drain [`poll_transmit`](Self::poll_transmit),
///   [`poll_qp_change`](Self::poll_qp_change) and [`poll_event`](Self::poll_event), then look at
///   [`poll_timeout`](Self::poll_timeout).
///
/// Nothing blocks, so that all of it may be called from a routine. No datagram makes it panic or
/// grow beyond the limits of its [`Config`], as long as the outputs are drained.
#[derive(Debug)]
pub struct Cm {
    config: Config,
    port: Port,
    /// Upper half of transaction ids.
    client: u32,
    draws: Draws,
    conns: Slab<Connection>,
    next_serial: u64,
    index: Index,
    listeners: Listeners,
    resolutions: Resolutions,
    watched: Neighbours,
    out: Outputs,
}

impl Cm {
    /// No connections yet. `client` becomes the upper half of transaction ids (see
    /// [`Agents`](verbs_core::mad::Agents)); `seed` decides which communication ids and packet numbers are
    /// drawn. Where peers are not trusted it is a secret one: then a peer that sees some of them cannot tell the
    /// others.
    pub fn new(config: Config, port: Port, client: u32, seed: impl Into<Seed>) -> Self {
        Self {
            port,
            client,
            draws: Draws::new(seed),
            conns: Slab::new(),
            next_serial: 1,
            index: Index::default(),
            listeners: Listeners::default(),
            resolutions: Resolutions::default(),
            watched: Neighbours::default(),
            out: Outputs {
                transmits_max: config.transmits_max,
                ..Outputs::default()
            },
            config,
        }
    }

    /// The port has changed, in its GIDs for instance. Connections stay as they are.
    pub fn port_changed(&mut self, port: Port) {
        self.port = port;
    }

    /// Listens for connections and resolutions of a service.
    ///
    /// # Errors
    /// [`CmError::InUse`], [`CmError::Limit`].
    pub fn listen(&mut self, listen: Listen) -> Result<ListenId, CmError> {
        self.listeners.add(listen, self.config.listeners_max)
    }

    /// Ends listening. Requests that the user has already been told of stay to be answered.
    ///
    /// # Errors
    /// [`CmError::Stale`].
    pub fn unlisten(&mut self, listener: ListenId) -> Result<(), CmError> {
        self.listeners.remove(listener)
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// [`CmError::Transport`] unless it is RC, UC or extended; [`CmError::NoAlternates`] for an alternate path where the port has
    /// none; [`CmError::Limit`].
    pub fn connect(&mut self, now: Instant, connect: Connect) -> Result<ConnId, CmError> {
        if !matches!(
            connect.transport,
            Transport::Rc | Transport::Uc | Transport::Extended
        ) {
            return Err(CmError::Transport(connect.transport));
        }
        if connect.alternate.is_some() && !self.port.has_alternates() {
            return Err(CmError::NoAlternates);
        }
        self.check_room()?;
        let local_id = self.fresh_comm_id();
        let tid = TransactionId::new(self.client, local_id.0);
        let id = self.next_id();
        self.reserve();
        let mut ctx = ctx(now, &self.port, &self.config, &mut self.out);
        let conn = active::connect(&mut ctx, id, local_id, tid, connect);
        self.insert(now, conn);
        Ok(id)
    }

    /// Accepts a connection that [`Event::ConnectRequest`] told of.
    ///
    /// # Errors
    /// [`CmError::Stale`], [`CmError::State`] when it was answered already.
    pub fn accept(&mut self, now: Instant, conn: ConnId, accept: &Accept) -> Result<(), CmError> {
        self.command(now, conn, |conn, ctx| passive::accept(conn, ctx, accept))
    }

    /// Rejects a connection that [`Event::ConnectRequest`] told of; there are no further events.
    /// Of `info` 72 bytes at most are sent.
    ///
    /// # Errors
    /// [`CmError::Stale`], [`CmError::State`] when it was answered already.
    pub fn reject(
        &mut self,
        now: Instant,
        conn: ConnId,
        reason: RejectReason,
        info: &[u8],
        private_data: Blob<148>,
    ) -> Result<(), CmError> {
        self.command(now, conn, |conn, ctx| {
            passive::reject(conn, ctx, reason, info, private_data)
        })
    }

    /// Tells the peer that the answer takes longer (an MRA): the user's to a request, or the queue
    /// pair's way to RTS.
    ///
    /// # Errors
    /// [`CmError::Stale`], [`CmError::State`] when no answer is due.
    pub fn delay(&mut self, now: Instant, conn: ConnId, longer: TimeCode) -> Result<(), CmError> {
        self.command(now, conn, |conn, ctx| conn.delay(ctx, longer))
    }

    /// Ends an established connection: the queue pair goes to ERR, the peer is told.
    ///
    /// # Errors
    /// [`CmError::Stale`], [`CmError::State`] when it is not established.
    pub fn disconnect(
        &mut self,
        now: Instant,
        conn: ConnId,
        private_data: Blob<220>,
    ) -> Result<(), CmError> {
        self.command(now, conn, |conn, ctx| {
            closing::disconnect(conn, ctx, private_data)
        })
    }

    /// Offers the peer an alternate path, for both queue pairs to load. What comes of it is told by
    /// [`Event::PathLoaded`] or [`Event::PathRefused`]. One at a time.
    ///
    /// # Errors
    /// [`CmError::Stale`], [`CmError::NoAlternates`] where the port has none or the peer has asked for the connection,
    /// [`CmError::State`] when it is not established, or another path is on its way.
    pub fn load_path(&mut self, now: Instant, conn: ConnId, route: &Route) -> Result<(), CmError> {
        let known = self.known(conn).ok_or(CmError::Stale)?;
        if !self.port.has_alternates() || known.route().is_none() {
            return Err(CmError::NoAlternates);
        }
        self.command(now, conn, |conn, ctx| paths::load_path(conn, ctx, route))
    }

    /// Ends interest in a connection, whatever its state: the peer is told, the queue pair is left
    /// alone, and there is no further event, not even one that waits to be fetched.
    ///
    /// # Errors
    /// [`CmError::Stale`].
    pub fn destroy(&mut self, now: Instant, conn: ConnId) -> Result<(), CmError> {
        self.command(now, conn, |conn, ctx| {
            closing::abort(conn, ctx);
            true
        })
    }

    /// Ends all connections: the peers are told, and queue pairs go to ERR. Those on their way have the event
    /// [`Event::ConnectError`], established ones those of [`disconnect`](Self::disconnect).
    pub fn disconnect_all(&mut self, now: Instant) {
        let slots: Vec<usize> = self.conns.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.update(now, slot, |conn, ctx| {
                closing::end(conn, ctx);
                true
            });
        }
    }

    /// A modify of [`QpChange`] has ended. One of a connection that is gone does nothing.
    pub fn qp_modified(&mut self, now: Instant, conn: ConnId, result: Result<(), Error>) {
        // The error of a connection that is gone would tell the caller nothing.
        let _gone = self.command(now, conn, |conn, ctx| {
            conn.qp_modified(ctx, result);
            true
        });
    }

    /// Data came on the queue pair of a connection whose RTU did not (the asynchronous event
    /// "communication established").
    ///
    /// # Errors
    /// [`CmError::Stale`], [`CmError::State`] when no RTU is waited for, which does no harm.
    pub fn communication_established(&mut self, now: Instant, conn: ConnId) -> Result<(), CmError> {
        self.command(now, conn, |conn, ctx| {
            passive::handle_rtu(conn, ctx, Blob::default())
        })
    }

    /// Asks which queue pair serves datagrams for a service.
    ///
    /// # Errors
    /// [`CmError::Limit`].
    pub fn resolve(&mut self, now: Instant, resolve: &Resolve) -> Result<ResolveId, CmError> {
        let request_id = loop {
            let id = CommId(self.draw());
            if id.0 != 0 && !self.resolutions.is_asked(id) {
                break id;
            }
        };
        let tid = TransactionId::new(self.client, request_id.0);
        let max = self.config.resolutions_max;
        self.resolutions
            .ask(now, request_id, tid, resolve, max, &mut self.out)
    }

    /// Answers a question that [`Event::ResolveRequest`] told of.
    ///
    /// # Errors
    /// [`CmError::Stale`] when it was answered already.
    pub fn answer(
        &mut self,
        now: Instant,
        resolution: ResolveId,
        resolved: &Resolved,
    ) -> Result<(), CmError> {
        self.resolutions
            .answer(now, resolution, resolved, &mut self.out)
    }

    /// Ends interest in a question, asked or to be answered: there is no further event.
    ///
    /// # Errors
    /// [`CmError::Stale`].
    pub fn forget(&mut self, resolution: ResolveId) -> Result<(), CmError> {
        self.resolutions.forget(resolution, &mut self.out)
    }

    /// Takes a received datagram. `from` is where it came from, with the way back.
    pub fn handle(&mut self, now: Instant, from: Address, mad: &MadBytes) {
        dispatch::dispatch(self, now, from, mad);
    }

    /// The network reports that a message was not delivered: its destination's host refused it. A hint, which
    /// counts for a request only, until its first answer: the first report has the request sent again after
    /// half a second, and one for that repetition, too, ends the attempt. And for the questions of a [`Watch`](crate::Watch).
    pub fn undelivered(&mut self, now: Instant, to: Gid, tid: TransactionId) {
        if let Some(is_gone) = self.watched.refused(now, to, tid) {
            if is_gone {
                dispatch::lose(self, now, to, false);
            }
            return;
        }
        let id = CommId(tid.request());
        let known = (tid.client() == self.client).then(|| self.index.local(id));
        let slot = known.flatten().filter(|&slot| {
            let asked = self.conns.get(slot).and_then(|conn| conn.peer().av.global);
            asked.is_some_and(|asked| asked.dgid == to)
        });
        let counted = match slot {
            Some(slot) => self.update(now, slot, active::handle_refusal),
            None if tid.client() == self.client => {
                self.resolutions.refused(now, id, to, &mut self.out)
            }
            None => false,
        };
        self.out.counters.idle_refusals += u64::from(!counted);
    }

    /// Does what is due: repetitions, giving up, the end of timewait, questions to peers that are watched.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(slot) = self.index.due(now) {
            self.update(now, slot, |conn, ctx| {
                conn.handle_timeout(ctx);
                true
            });
        }
        self.resolutions.handle_timeout(now, &mut self.out);
        dispatch::ask_peers(self, now);
    }

    /// The next datagram to send, and where to.
    pub fn poll_transmit(&mut self) -> Option<(Address, MadBytes)> {
        self.out.transmits.pop_front()
    }

    /// The next modify to issue.
    pub fn poll_qp_change(&mut self) -> Option<QpChange> {
        self.out.changes.pop_front()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; `None` for no time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = [
            self.index.deadline(),
            self.resolutions.deadline(),
            self.watched.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// State of a connection; `None` when there is none (any longer).
    pub fn state(&self, conn: ConnId) -> Option<State> {
        Some(self.known(conn)?.state())
    }

    /// Which side has ended a connection; `None` while it is not ended, and when there is none (any longer). Known
    /// before the queue pair goes to ERR, and so before what is posted is flushed.
    pub fn ended(&self, conn: ConnId) -> Option<Ended> {
        self.known(conn)?.ended()
    }

    /// The queue pair of a connection, once the user has named it.
    pub fn qpn(&self, conn: ConnId) -> Option<Qpn> {
        let [qpn, _] = self.known(conn)?.qpns();
        (qpn != Qpn::default()).then_some(qpn)
    }

    /// The peer's queue pair, once the peer has named it.
    pub fn remote_qpn(&self, conn: ConnId) -> Option<Qpn> {
        let [_, qpn] = self.known(conn)?.qpns();
        (qpn != Qpn::default()).then_some(qpn)
    }

    /// The way that a connection was asked for with; `None` on the side that was asked.
    pub fn route(&self, conn: ConnId) -> Option<Route> {
        self.known(conn)?.route()
    }

    /// The modifies that bring the queue pair of a connection to RTR and to RTS, for a user that prepares it before
    /// [`poll_qp_change`](Self::poll_qp_change) says so. They are known once the peer has replied or the user has
    /// accepted.
    pub fn qp_attrs(&self, conn: ConnId) -> Option<[QpAttr; 2]> {
        self.known(conn)?.qp_attrs()
    }

    /// Those of a connection that [`Event::ConnectRequest`] told of, if it is accepted like that.
    pub fn qp_attrs_if(&self, conn: ConnId, accept: &Accept) -> Option<[QpAttr; 2]> {
        let (rtr, rts) = passive::attrs_if(self.known(conn)?, &self.port, accept)?;
        Some([rtr, rts])
    }

    /// What the peer said with its REP or RTU, before the user is told that the connection is there.
    pub fn private_data(&self, conn: ConnId) -> Option<Blob<224>> {
        Some(self.known(conn)?.private_data())
    }

    fn known(&self, conn: ConnId) -> Option<&Connection> {
        self.conns
            .get(conn.index)
            .filter(|found| found.id() == conn)
    }

    /// Connections in any state, and resolutions.
    pub fn len(&self) -> usize {
        self.conns.len() + self.resolutions.len()
    }

    /// Whether there are no connections and resolutions at all; listeners do not count.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was dropped or refused.
    pub fn counters(&self) -> Counters {
        self.out.counters
    }

    /// A random first packet number.
    pub fn draw_psn(&mut self) -> Psn {
        Psn::new(self.draw())
    }

    /// A call of the user on a connection; `call` returns whether the state allows it.
    fn command(
        &mut self,
        now: Instant,
        id: ConnId,
        call: impl FnOnce(&mut Connection, &mut Ctx<'_>) -> bool,
    ) -> Result<(), CmError> {
        let state = self.state(id).ok_or(CmError::Stale)?;
        if self.update(now, id.index, call) {
            Ok(())
        } else {
            Err(CmError::State(state))
        }
    }

    /// Calls a connection, and keeps the indexes right.
    fn update(
        &mut self,
        now: Instant,
        slot: usize,
        call: impl FnOnce(&mut Connection, &mut Ctx<'_>) -> bool,
    ) -> bool {
        let Some(conn) = self.conns.get_mut(slot) else {
            return false;
        };
        let mut ctx = ctx(now, &self.port, &self.config, &mut self.out);
        let done = call(conn, &mut ctx);
        self.settle(now, slot);
        while self.index.lingering() > self.config.timewait_max {
            let Some(least) = self.least_lingering() else {
                break;
            };
            self.out.counters.timewait_cut += 1;
            if let Some(conn) = self.conns.get_mut(least) {
                conn.cut(&mut Ctx {
                    now,
                    port: &self.port,
                    config: &self.config,
                    out: &mut self.out,
                });
            }
            self.settle(now, least);
        }
        done
    }

    /// The connection in timewait that is missed least; not one whose queue pair is being modified.
    fn least_lingering(&self) -> Option<usize> {
        let idle = |slot: &usize| self.conns.get(*slot).is_some_and(Connection::is_idle);
        self.index.lingering_in_order().find(idle)
    }

    fn insert(&mut self, now: Instant, conn: Connection) {
        let slot = self.conns.insert(conn);
        self.settle(now, slot);
    }

    /// Room for what one more connection is to tell: no event is lost, or waits, for want of memory.
    fn reserve(&mut self) {
        let count = self.conns.len() + 1;
        self.out.events.reserve(count * EVENTS_PER_CONNECTION);
        self.out.changes.reserve(count);
    }

    fn settle(&mut self, now: Instant, slot: usize) {
        let Some(conn) = self.conns.get(slot) else {
            return;
        };
        if let Some(watch) = self.config.watch {
            let peer = question::watched_peer(conn, &self.port);
            self.watched.settle(slot, peer, now + watch.pause());
        }
        let is_gone = self.index.settle(slot, conn, &mut self.listeners);
        if is_gone {
            self.conns.remove(slot);
        }
    }

    fn check_room(&self) -> Result<(), CmError> {
        let max = self.config.connections_max;
        if self.conns.len() - self.index.lingering() >= max {
            return Err(CmError::Limit {
                what: "connections_max",
                max,
            });
        }
        Ok(())
    }

    fn draw(&mut self) -> u32 {
        (self.draws.draw() >> 32) as u32
    }

    /// An id that the peer cannot guess and no connection here has. One of fewer than 2^32
    /// connections ends the search.
    fn fresh_comm_id(&mut self) -> CommId {
        loop {
            let id = CommId(self.draw());
            if id.0 != 0 && self.index.local(id).is_none() {
                return id;
            }
        }
    }

    fn next_id(&mut self) -> ConnId {
        let (index, serial) = (self.conns.vacant_key(), self.next_serial);
        self.next_serial += 1;
        ConnId { index, serial }
    }
}

/// Events that a connection can have waiting: request, established, what came of a path, disconnected, timewait exit.
const EVENTS_PER_CONNECTION: usize = 5;

fn ctx<'a>(now: Instant, port: &'a Port, config: &'a Config, out: &'a mut Outputs) -> Ctx<'a> {
    Ctx {
        now,
        port,
        config,
        out,
    }
}
