//! The side that connects.

use std::io;
use std::net::SocketAddr;

use verbs_core::cm::ConnectCm;
use verbs_core::command::Pending;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{Attr, CmReply, Error, Why};
use verbs_link::stream::{Agreed, Bound, Interest, Mpa, MpaError, MpaEvent};
use verbs_wire::iwarp::{Cause, Fpdu, Header, RdmapOpcode, Rtr, Terminate, Untagged};

use super::{ANSWER, CmEnd, Connecting, READ, Read, State, config, read};
use crate::port::streams::buffers::{FpduBuffer, Outgoing};
use crate::port::streams::making::{Making, OnStream};
use crate::port::streams::{PRIVATE_DATA_MAX, Streams};
use crate::queue::base::events::Job;
use crate::transport::iwarp::StreamOutlet;

impl<Q: OnStream> CmEnd<Q> {
    /// Connects from its address.
    pub(crate) fn connect(
        &self,
        qp: Arc<Q>,
        args: &ConnectCm,
        pending: Pending<ConnectCm>,
        after: &mut Vec<Job>,
    ) {
        let answer = |pending: Pending<ConnectCm>, result| -> Job {
            Box::new(move || pending.complete(result))
        };
        let (Some(streams), Some(me)) = (self.streams.upgrade(), self.me.upgrade()) else {
            return after.push(answer(pending, Err(Error::DeviceRemoved)));
        };
        let outgoing = match Outgoing::new() {
            Ok(outgoing) => outgoing,
            Err(error) => return after.push(answer(pending, Err(error))),
        };
        let mut state = self.state.lock();
        let bound = match take_address(&mut state, &streams) {
            Ok(bound) => bound,
            Err(error) => return after.push(answer(pending, Err(error))),
        };
        let token = streams.reserve();
        let local = bound.local();
        // Whoever finds the socket before the state is there waits for its lock. It would look again and again if the
        // socket were nobody's.
        streams.give_to_endpoint(token, &me);
        let stream = match bound.connect(args.remote, token) {
            Ok(stream) => stream,
            Err(error) => {
                *state = State::Spent(local);
                streams.forget(token);
                return after.push(answer(pending, reply_of(&error, local)));
            }
        };
        let deadline = streams.engine.now() + ANSWER;
        let rtr = if streams.peer_to_peer {
            Rtr::WRITE | Rtr::READ
        } else {
            Rtr::empty()
        };
        *state = State::Connecting(Box::new(Connecting {
            stream,
            token,
            config: config(args.param, rtr, ANSWER),
            private_data: args.private_data.clone(),
            mpa: None,
            outgoing,
            qp,
            pending,
            deadline,
        }));
        let due = Arc::clone(&streams) as Arc<_>;
        let _ = streams.engine.at(deadline, due, token.0);
        // It may be there already, where the peer is near.
        self.go_on_connecting(&mut state, &streams, after);
    }

    /// The TCP connection is there, the Reply has come, or neither is possible.
    pub(super) fn go_on_connecting(
        &self,
        state: &mut State<Q>,
        streams: &Arc<Streams<Q>>,
        after: &mut Vec<Job>,
    ) {
        let State::Connecting(connecting) = state else {
            return;
        };
        if let Err(reply) = connecting.go_on(streams) {
            return self.give_up(state, streams, reply, after);
        }
        match connecting.mpa.as_mut().and_then(Mpa::poll_event) {
            Some(MpaEvent::Connected {
                agreed,
                private_data,
                surplus,
            }) => self.connected(state, agreed, private_data, surplus, after),
            Some(MpaEvent::Rejected { private_data }) => {
                let reply = Ok(CmReply::Rejected(private_data.into_boxed_slice()));
                self.give_up(state, streams, reply, after);
            }
            Some(MpaEvent::Failed(error)) => {
                tracing::debug!(%error, "no connection");
                if let Some(cause) = error.cause() {
                    connecting.tell(cause);
                }
                let reply = match error {
                    MpaError::Timeout => CmReply::TimedOut,
                    _ => CmReply::Rejected(Box::default()),
                };
                self.give_up(state, streams, Ok(reply), after);
            }
            Some(MpaEvent::Request { .. }) | None => {}
        }
    }

    /// MPA has agreed: the queue pair takes the stream over.
    fn connected(
        &self,
        state: &mut State<Q>,
        agreed: Agreed,
        private_data: Vec<u8>,
        surplus: Vec<u8>,
        after: &mut Vec<Job>,
    ) {
        let State::Connecting(connecting) = std::mem::replace(state, State::Closed) else {
            return;
        };
        let Connecting {
            stream,
            token,
            qp,
            pending,
            ..
        } = *connecting;
        *state = State::Connected(Arc::downgrade(&qp), qp.resets());
        let making = Making {
            stream,
            token,
            is_initiator: true,
            agreed,
            reply: Vec::new(),
            surplus,
            endpoint: self.core.get().cloned(),
        };
        let streams = Weak::clone(&self.streams);
        after.push(Box::new(move || {
            let made = qp.connect_stream(making);
            if let (Err(_), Some(streams)) = (&made, streams.upgrade()) {
                streams.forget(token);
            }
            pending.complete(made.map(|()| CmReply::Established(private_data.into_boxed_slice())));
        }));
    }

    /// There will be no connection.
    pub(super) fn give_up(
        &self,
        state: &mut State<Q>,
        streams: &Streams<Q>,
        reply: Result<CmReply, Error>,
        after: &mut Vec<Job>,
    ) {
        let State::Connecting(connecting) = std::mem::replace(state, State::Closed) else {
            return;
        };
        let Connecting {
            stream,
            token,
            outgoing,
            pending,
            mpa,
            ..
        } = *connecting;
        *state = State::Spent(stream.local());
        match mpa {
            Some(_) => streams.leave(token, stream, outgoing),
            None => streams.forget(token),
        }
        after.push(Box::new(move || pending.complete(reply)));
    }
}

/// The endpoint's address, for a connect.
///
/// # Errors
/// The endpoint does something else, or somebody has taken the address since the last connect failed.
fn take_address<Q: OnStream>(
    state: &mut State<Q>,
    streams: &Streams<Q>,
) -> Result<Box<dyn Bound>, Error> {
    match std::mem::replace(state, State::Closed) {
        State::Bound(bound) => Ok(bound),
        State::Spent(local) => streams.link.bind(local).map_err(|error| {
            *state = State::Spent(local);
            Error::from(&error)
        }),
        other => {
            *state = other;
            let (attr, why) = (Attr::Address, Why::State);
            Err(Error::Mismatch { attr, why })
        }
    }
}

impl<Q: OnStream> Connecting<Q> {
    /// Does what can be done.
    ///
    /// # Errors
    /// What the connect ends with.
    fn go_on(&mut self, streams: &Arc<Streams<Q>>) -> Result<(), Result<CmReply, Error>> {
        let now = streams.engine.now();
        if self.mpa.is_none() {
            match self.stream.connected() {
                Ok(false) => return Ok(()),
                Err(error) => return Err(reply_of(&error, self.stream.local())),
                Ok(true) => {}
            }
            let mut mpa = Mpa::connect(self.config, &self.private_data, now)
                .map_err(|_| Err(too_much_data(&self.private_data)))?;
            self.outgoing.push(&mpa.poll_output());
            self.mpa = Some(mpa);
            self.deadline = now + ANSWER;
            let due = Arc::clone(streams) as Arc<_>;
            let _ = streams.engine.at(self.deadline, due, self.token.0);
        }
        let lost = || Ok(CmReply::Rejected(Box::default()));
        let Some(mpa) = &mut self.mpa else {
            return Ok(());
        };
        self.outgoing.flush(&mut *self.stream).map_err(|_| lost())?;
        let interest = if self.outgoing.is_empty() {
            Interest::Receive
        } else {
            Interest::Both
        };
        self.stream
            .watch(self.token, interest)
            .map_err(|error| Err(os(&error)))?;
        let mut bytes = [0; READ];
        match read(&mut *self.stream, &mut bytes) {
            Read::Some(count) => mpa.handle_bytes(&bytes[..count]),
            Read::Nothing => {}
            Read::End => mpa.handle_end(),
        }
        Ok(())
    }

    /// Tells the peer why there is no connection (RFC 6581, section 8).
    fn tell(&mut self, cause: Cause) {
        let terminate = Terminate {
            cause,
            refused: None,
        };
        let (mut front, mut body) = ([0; Header::UNTAGGED_LEN], [0; Terminate::LEN_MAX]);
        let header = Header::Untagged(Untagged::first(RdmapOpcode::Terminate, 1));
        if let (Ok(_), Ok(len)) = (header.emit(&mut front), terminate.emit(&mut body)) {
            let ulpdu_len = front.len() + len;
            let mut room = vec![0; Fpdu::wire_len(ulpdu_len)];
            let mut fpdu = FpduBuffer::new(&mut room, true, ulpdu_len);
            // These bytes are always there.
            let _ = fpdu.put(&front, len, &mut |at, out| {
                out.copy_from_slice(&body[at..at + out.len()]);
                Ok(())
            });
            let len = fpdu.len();
            self.outgoing.push(&room[..len]);
        }
    }
}

/// What the peer, or the way to it, says of a connect from that address.
fn reply_of(error: &io::Error, local: SocketAddr) -> Result<CmReply, Error> {
    use io::ErrorKind::{
        AddrInUse, AddrNotAvailable, ConnectionRefused, ConnectionReset, HostUnreachable,
        NetworkUnreachable, TimedOut,
    };
    match error.kind() {
        ConnectionRefused => Ok(CmReply::Refused),
        ConnectionReset => Ok(CmReply::Rejected(Box::default())),
        HostUnreachable | NetworkUnreachable => Ok(CmReply::Unreachable),
        TimedOut => Ok(CmReply::TimedOut),
        // There is a connection between these two ends.
        AddrInUse | AddrNotAvailable => Err(Error::AddrInUse { port: local.port() }),
        _ => Err(os(error)),
    }
}

/// An error of the system's.
pub(in crate::port::streams) fn os(error: &io::Error) -> Error {
    Error::Os {
        errno: error.raw_os_error().unwrap_or(0),
    }
}

/// More private data than a startup frame carries.
pub(in crate::port::streams) fn too_much_data(data: &[u8]) -> Error {
    Error::Invalid {
        attr: Attr::PrivateData,
        got: u32::try_from(data.len()).unwrap_or(u32::MAX),
        max: PRIVATE_DATA_MAX,
    }
}
