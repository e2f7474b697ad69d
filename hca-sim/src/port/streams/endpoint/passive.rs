//! The side that listens.

use std::io;
use std::time::Duration;

use verbs_core::sync::atomic::AtomicU32;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{Attr, CmEvent, CmParam, CmRequest, Error, Why};
use verbs_link::stream::{Agreed, Interest, Mpa, MpaEvent, Stream};
use verbs_wire::iwarp::{Depth, Rtr, Setup};

use super::active::too_much_data;
use super::{
    Asking, CmEnd, Listening, Place, READ, REQUEST, Read, SILENT_MAX, State, config, read, reads,
};
use crate::port::streams::Streams;
use crate::port::streams::buffers::Outgoing;
use crate::port::streams::making::{Making, OnStream};
use crate::queue::base::events::Job;
use crate::queue::base::limits::RD_ATOMIC;

/// How long no connections are taken in after one could not be, for want of descriptors or memory.
const REST: Duration = Duration::from_millis(100);

/// TCP connections that are taken in at once.
const ACCEPTS: usize = 64;

/// Takes no connections for a while: those that wait would be told of without end.
fn rest<Q: OnStream>(listening: &mut Listening<Q>, streams: &Arc<Streams<Q>>, error: &io::Error) {
    if std::mem::replace(&mut listening.rests, true) {
        return;
    }
    streams.rests.up();
    tracing::warn!(%error, "connections are not taken for {REST:?}");
    let _ = listening.bound.rest(listening.token, true);
    let due = Arc::clone(streams) as Arc<_>;
    let at = streams.engine.now() + REST;
    let _ = streams.engine.at(at, due, listening.token.0);
}

impl<Q: OnStream> CmEnd<Q> {
    /// Listens at its address, which it loses when that fails. If it does already, the backlog is that of connections that
    /// come from now on.
    pub(crate) fn listen(&self, backlog: u32) -> Result<(), Error> {
        let (Some(streams), Some(me)) = (self.streams.upgrade(), self.me.upgrade()) else {
            return Err(Error::DeviceRemoved);
        };
        let mut state = self.state.lock();
        let mut bound = match std::mem::replace(&mut *state, State::Closed) {
            State::Bound(bound) => bound,
            State::Listening(mut listening) => {
                listening.backlog = backlog.max(1);
                *state = State::Listening(listening);
                return Ok(());
            }
            other => {
                *state = other;
                let (attr, why) = (Attr::Address, Why::State);
                return Err(Error::Mismatch { attr, why });
            }
        };
        let token = streams.reserve();
        if let Err(error) = bound.listen(backlog.max(SILENT_MAX as u32), token) {
            streams.forget(token);
            tracing::debug!(%error, "nothing listens");
            return Err(Error::from(&error));
        }
        streams.give_to_endpoint(token, &me);
        *state = State::Listening(Listening {
            bound,
            token,
            backlog: backlog.max(1),
            waiting: Arc::new(AtomicU32::new(0)),
            silent: Default::default(),
            rests: false,
        });
        Ok(())
    }

    /// Peers have made connections: each has some time to send its Request.
    pub(super) fn take_connections(
        &self,
        listening: &mut Listening<Q>,
        streams: &Arc<Streams<Q>>,
        after: &mut Vec<Job>,
    ) {
        for _ in 0..ACCEPTS {
            match listening.bound.accept() {
                Ok(stream) => self.take_connection(listening, stream, streams, after),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The peer has given up.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return rest(listening, streams, &error),
            }
        }
    }

    /// The rest is over.
    pub(super) fn resume(
        &self,
        listening: &mut Listening<Q>,
        streams: &Arc<Streams<Q>>,
        after: &mut Vec<Job>,
    ) {
        listening.rests = false;
        if let Err(error) = listening.bound.rest(listening.token, false) {
            return rest(listening, streams, &error);
        }
        self.take_connections(listening, streams, after);
    }

    fn take_connection(
        &self,
        listening: &mut Listening<Q>,
        mut stream: Box<dyn Stream>,
        streams: &Arc<Streams<Q>>,
        after: &mut Vec<Job>,
    ) {
        listening.silent.retain(|end| {
            let end = end.upgrade();
            end.is_some_and(|end| matches!(&*end.state.lock(), State::Silent(_)))
        });
        if listening.silent.len() >= SILENT_MAX
            && let Some(oldest) = listening.silent.pop_front().and_then(|end| end.upgrade())
        {
            streams.refused.up();
            let mut state = oldest.state.lock();
            if matches!(&*state, State::Silent(_)) {
                oldest.close(&mut state, streams);
            }
        }
        let token = streams.reserve();
        if let Err(error) = stream.watch(token, Interest::Receive) {
            tracing::warn!(%error, "a socket cannot be watched");
            streams.forget(token);
            return;
        }
        let now = streams.engine.now();
        let param = CmParam {
            responder_resources: RD_ATOMIC as u8,
            initiator_depth: RD_ATOMIC as u8,
            ..CmParam::default()
        };
        let config = config(param, Rtr::WRITE | Rtr::READ, REQUEST);
        let asking = Box::new(Asking {
            stream,
            token,
            mpa: Mpa::listen(config, now),
            listener: Weak::clone(&self.me),
            waiting: Arc::clone(&listening.waiting),
            backlog: listening.backlog,
            place: None,
        });
        let end = Self::new(Arc::downgrade(streams), State::Silent(asking));
        streams.give_to_endpoint(token, &end);
        listening.silent.push_back(Arc::downgrade(&end));
        let due = Arc::clone(streams) as Arc<_>;
        let _ = streams.engine.at(now + REQUEST, due, token.0);
        let mut state = end.state.lock();
        end.take_request(&mut state, streams, after);
    }

    /// A peer has sent its Request, or a part of it.
    pub(super) fn take_request(
        &self,
        state: &mut State<Q>,
        streams: &Arc<Streams<Q>>,
        after: &mut Vec<Job>,
    ) {
        let State::Silent(asking) = state else {
            return;
        };
        let mut bytes = [0; READ];
        match read(&mut *asking.stream, &mut bytes) {
            Read::Some(count) => asking.mpa.handle_bytes(&bytes[..count]),
            Read::Nothing => return,
            Read::End => asking.mpa.handle_end(),
        }
        match asking.mpa.poll_event() {
            Some(MpaEvent::Request {
                setup,
                private_data,
            }) => self.requested(state, setup, private_data, streams, after),
            Some(MpaEvent::Failed(error)) => {
                tracing::debug!(%error, "no request");
                streams.refused.up();
                let reply = asking.mpa.poll_output();
                self.answer_and_close(state, streams, &reply);
            }
            _ => {}
        }
    }

    /// The Request has come: the client of the listener is told.
    fn requested(
        &self,
        state: &mut State<Q>,
        setup: Option<Setup>,
        private_data: Vec<u8>,
        streams: &Arc<Streams<Q>>,
        after: &mut Vec<Job>,
    ) {
        let Some(me) = self.me.upgrade() else {
            return;
        };
        let State::Silent(mut asking) = std::mem::replace(state, State::Closed) else {
            return;
        };
        asking.place = Place::take(&asking.waiting, asking.backlog);
        let listener = asking.listener.upgrade();
        let core = listener.and_then(|listener| listener.core.get().and_then(Weak::upgrade));
        let (local, remote) = (asking.stream.local(), asking.stream.peer());
        let is_full = asking.place.is_none();
        *state = State::Asked(asking);
        let Some(core) = core.filter(|_| !is_full) else {
            // There is room for no private data.
            let _ = self.reject_in(state, streams, &[]);
            return;
        };
        let endpoint = core.spawn(streams.number(), local, Box::new(Arc::clone(&me)));
        self.set_core(endpoint.target());
        let wants = |depth: Option<Depth>| {
            let reads = depth.and_then(Depth::value).unwrap_or(RD_ATOMIC as u16);
            u8::try_from(reads).unwrap_or(u8::MAX)
        };
        let request = CmRequest {
            endpoint,
            remote,
            param: CmParam {
                responder_resources: wants(setup.map(|setup| setup.ird)),
                initiator_depth: wants(setup.map(|setup| setup.ord)),
                ..CmParam::default()
            },
            private_data,
        };
        after.push(Box::new(move || {
            core.raise(CmEvent::ConnectRequest(request));
        }));
    }

    /// Something has come of a peer that is to wait for the answer: most likely it has gone.
    pub(super) fn look_after_request(&self, state: &mut State<Q>, streams: &Streams<Q>) {
        let State::Asked(asking) = state else {
            return;
        };
        let mut bytes = [0; READ];
        match read(&mut *asking.stream, &mut bytes) {
            Read::Nothing => {}
            Read::Some(_) | Read::End => {
                streams.refused.up();
                self.close(state, streams);
            }
        }
    }

    /// Accepts the request with a queue pair; what the peer gets to see is sent before all else.
    pub(crate) fn accept(
        &self,
        qp: &Arc<Q>,
        param: CmParam,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        let State::Asked(asking) = &mut *state else {
            // Not a request, or the peer has given it up.
            let (attr, why) = (Attr::Address, Why::Missing);
            return Err(Error::Mismatch { attr, why });
        };
        asking.mpa.limit(
            reads(param.responder_resources),
            reads(param.initiator_depth),
        );
        asking
            .mpa
            .accept(private_data)
            .map_err(|_| too_much_data(private_data))?;
        let reply = asking.mpa.poll_output();
        let agreed = match asking.mpa.poll_event() {
            Some(MpaEvent::Connected { agreed, .. }) => agreed,
            _ => return Err(Error::DeviceFailed),
        };
        let State::Asked(asking) = std::mem::replace(&mut *state, State::Closed) else {
            return Err(Error::DeviceFailed);
        };
        *state = State::Connected(Arc::downgrade(qp), qp.resets());
        drop(state);
        self.hand_over(*asking, agreed, reply, qp)
    }

    fn hand_over(
        &self,
        asking: Asking<Q>,
        agreed: Agreed,
        reply: Vec<u8>,
        qp: &Arc<Q>,
    ) -> Result<(), Error> {
        let token = asking.token;
        let made = qp.connect_stream(Making {
            stream: asking.stream,
            token,
            is_initiator: false,
            agreed,
            reply,
            surplus: Vec::new(),
            endpoint: self.core.get().cloned(),
        });
        if made.is_err() {
            *self.state.lock() = State::Closed;
            if let Some(streams) = self.streams.upgrade() {
                streams.forget(token);
            }
        }
        made
    }

    /// Rejects the request.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let streams = self.streams.upgrade().ok_or(Error::DeviceRemoved)?;
        let mut state = self.state.lock();
        self.reject_in(&mut state, &streams, private_data)
    }

    pub(super) fn reject_in(
        &self,
        state: &mut State<Q>,
        streams: &Streams<Q>,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let State::Asked(asking) = state else {
            let (attr, why) = (Attr::Address, Why::Missing);
            return Err(Error::Mismatch { attr, why });
        };
        asking
            .mpa
            .reject(private_data)
            .map_err(|_| too_much_data(private_data))?;
        let reply = asking.mpa.poll_output();
        self.answer_and_close(state, streams, &reply);
        Ok(())
    }

    /// Sends what the peer is to know, and ends the connection.
    fn answer_and_close(&self, state: &mut State<Q>, streams: &Streams<Q>, reply: &[u8]) {
        let old = std::mem::replace(state, State::Closed);
        let (State::Silent(asking) | State::Asked(asking)) = old else {
            return;
        };
        match Outgoing::new() {
            Ok(mut outgoing) if !reply.is_empty() => {
                outgoing.push(reply);
                streams.leave(asking.token, asking.stream, outgoing);
            }
            _ => streams.forget(asking.token),
        }
    }
}
