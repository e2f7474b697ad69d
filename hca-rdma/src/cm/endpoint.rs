//! One endpoint: its id, its state, and the connect or accept that waits for it.

use rustix::io::Errno;
use verbs_abi::rdmacm::event;
use verbs_core::cm::{AcceptCm, CmCore, ConnectCm};
use verbs_core::qp::QpCore;
use verbs_core::sync::{Arc, Mutex, MutexGuard};
use verbs_core::{CmEvent, CmParam, CmReply, Error, Pending, RequestId, Target, Why};

use super::address::{bound, misplaced};
use super::machine::{Act, Event, State, next};
use super::moves::{self, Side};
use crate::command::pair;
use crate::convert::error;
use crate::shared::Shared;
use crate::sys::{Arrival, CmId, Wishes};

/// How long the system may look for the device and the route. Callers with a shorter limit give up before.
const RESOLVE_MS: u16 = 2000;

/// Reasons of a REJ (IBTA vol. 1, 12.6.7.2): there is no such service; the service's own.
const INVALID_SERVICE_ID: i32 = 8;
const CONSUMER: i32 = 28;

/// The state kept with an endpoint. Only the command thread locks it.
pub(crate) struct Endpoint(Mutex<Inner>);

pub(super) struct Inner {
    pub(super) number: u64,
    /// `None` once it has been destroyed.
    pub(super) id: Option<CmId>,
    pub(super) state: State,
    waiting: Option<Waiting>,
}

/// The request that waits for the connection.
enum Waiting {
    Connect(ConnectCm, Pending<ConnectCm>),
    Accept(Pending<AcceptCm>),
}

/// What to report when nothing is locked: first the result of the waiting request, then the event.
#[derive(Default)]
#[must_use = "somebody waits for it"]
pub(super) struct Outcome {
    answer: Option<Answer>,
    is_over: bool,
    is_closed: bool,
}

enum Answer {
    Connect(Pending<ConnectCm>, Result<CmReply, Error>),
    Accept(Pending<AcceptCm>, Result<(), Error>),
}

impl Outcome {
    pub(super) fn tell(self, endpoint: &Arc<CmCore>) {
        match self.answer {
            Some(Answer::Connect(pending, result)) => pending.complete(result),
            Some(Answer::Accept(pending, result)) => pending.complete(result),
            None => {}
        }
        if self.is_over {
            // Who finds work flushed is to know why.
            endpoint.raise(CmEvent::Disconnected);
            if let Some(state) = state_of(endpoint) {
                state.lock().end(endpoint);
            }
        }
        if self.is_over || self.is_closed {
            endpoint.raise(CmEvent::Closed);
        }
    }
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        Self {
            answer: Some(answer),
            ..Self::default()
        }
    }
}

impl Endpoint {
    pub(super) fn new(number: u64, id: CmId, state: State) -> Self {
        Self(Mutex::new(Inner {
            number,
            id: Some(id),
            state,
            waiting: None,
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

/// The state kept with that endpoint.
pub(super) fn state_of(endpoint: &CmCore) -> Option<&Endpoint> {
    endpoint.private::<Endpoint>()
}

impl Inner {
    fn id(&self) -> Result<&CmId, Error> {
        self.id.as_ref().ok_or(Error::Closing)
    }

    /// Begins a connect: resolves the address to a device.
    pub(super) fn connect(
        &mut self,
        nic: &Shared,
        endpoint: &CmCore,
        args: ConnectCm,
        pending: Pending<ConnectCm>,
    ) -> Outcome {
        let was = self.state;
        if !matches!(was, State::Bound | State::Spent) {
            let refused = Err(misplaced(Why::State));
            return Answer::Connect(pending, refused).into();
        }
        let begun = self.begin(nic, endpoint, &args);
        self.state = State::Address;
        self.waiting = Some(Waiting::Connect(args, pending));
        self.unless(begun)
    }

    fn begin(&mut self, nic: &Shared, endpoint: &CmCore, args: &ConnectCm) -> Result<(), Failure> {
        // An id can be used for one attempt.
        if self.id.is_none() {
            self.id = Some(bound(nic, self.number, endpoint.local())?);
        }
        let id = self.id()?;
        if args.param.tos != 0 {
            id.set_tos(args.param.tos)?;
        }
        Ok(id.resolve_addr(args.remote, RESOLVE_MS)?)
    }

    /// Accepts: the queue pair is ready before the peer receives the reply, or the kernel makes it ready where it does
    /// that.
    pub(super) fn accept(
        &mut self,
        nic: &Shared,
        endpoint: &Arc<CmCore>,
        args: &AcceptCm,
        pending: Pending<AcceptCm>,
    ) -> Outcome {
        let refused = match self.state {
            State::Asked => None,
            State::Over => Some(Why::Missing),
            _ => Some(Why::State),
        };
        if let Some(why) = refused {
            return Answer::Accept(pending, Err(misplaced(why))).into();
        }
        let begun = self.answer(nic, endpoint, args);
        self.state = State::Accepting;
        self.waiting = Some(Waiting::Accept(pending));
        self.unless(begun)
    }

    fn answer(
        &mut self,
        nic: &Shared,
        endpoint: &Arc<CmCore>,
        args: &AcceptCm,
    ) -> Result<(), Failure> {
        let (id, qp) = (self.id()?, endpoint.qp().ok_or(Error::Closing)?);
        moves::to_init(&qp, id)?;
        if !nic.is_iwarp() {
            moves::to_rts(&qp, id, &args.param, Side::Passive)?;
        }
        pair::connect(&qp, endpoint)?;
        let accepted = id.accept(&wishes(&qp, &args.param, &args.private_data)?);
        accepted.map_err(|errno| match errno {
            // The peer has given up, and its event has not been read yet.
            Errno::NOTCONN | Errno::CONNRESET => misplaced(Why::Missing).into(),
            errno => error(errno).into(),
        })
    }

    /// Rejects the request.
    pub(super) fn reject(&mut self, private_data: &[u8]) -> Result<(), Error> {
        if self.state != State::Asked {
            return Err(misplaced(Why::Missing));
        }
        self.id()?.reject(private_data).map_err(error)?;
        self.state = State::Over;
        Ok(())
    }

    /// Handles an event; `None`: it is too late to matter.
    pub(super) fn happened(
        &mut self,
        nic: &Shared,
        endpoint: &Arc<CmCore>,
        arrival: Arrival,
    ) -> Option<Outcome> {
        let event = Event::of(arrival.kind);
        if arrival.kind == event::TIMEWAIT_EXIT {
            return Some(Outcome::default());
        }
        let (state, act) = next(self.state, event?)?;
        self.state = state;
        Some(match act {
            Act::FindRoute => {
                let found = self.find_route(nic);
                self.unless(found)
            }
            Act::Ask => {
                let asked = self.ask(endpoint);
                self.unless(asked)
            }
            Act::Establish => match self.establish(endpoint) {
                Ok(()) => self.done(arrival.private_data),
                Err(error) => self.failed(error.into()),
            },
            Act::Complete => {
                // Where nothing had to be done here, the kernel has moved the queue pair.
                if let Some(qp) = endpoint.qp() {
                    pair::is_connected(&qp);
                }
                self.done(arrival.private_data)
            }
            Act::Fail => self.failed(Failure::of(arrival)),
            Act::CompleteAndEnd => Outcome {
                is_over: true,
                ..self.done(Vec::new())
            },
            Act::End => Outcome {
                is_over: true,
                ..Outcome::default()
            },
            Act::Forget => Outcome {
                is_closed: true,
                ..Outcome::default()
            },
        })
    }

    /// A failure ends the waiting request.
    fn unless(&mut self, begun: Result<(), Failure>) -> Outcome {
        match begun {
            Ok(()) => Outcome::default(),
            Err(failure) => self.failed(failure),
        }
    }

    fn find_route(&self, nic: &Shared) -> Result<(), Failure> {
        let id = self.id()?;
        // The system chooses the device; another one's queue pairs cannot be connected.
        if id.device().is_none_or(|name| name != nic.attr.name) {
            return Err(Failure::Peer(CmReply::Unreachable));
        }
        Ok(id.resolve_route(RESOLVE_MS)?)
    }

    fn ask(&self, endpoint: &Arc<CmCore>) -> Result<(), Failure> {
        let Some(Waiting::Connect(args, _)) = &self.waiting else {
            return Err(Error::Closing.into());
        };
        let (id, qp) = (self.id()?, endpoint.qp().ok_or(Error::Closing)?);
        moves::to_init(&qp, id)?;
        pair::connect(&qp, endpoint)?;
        let wishes = wishes(&qp, &args.param, &args.private_data)?;
        Ok(id.connect(&wishes)?)
    }

    fn establish(&mut self, endpoint: &CmCore) -> Result<(), Error> {
        let Some(Waiting::Connect(args, _)) = &self.waiting else {
            return Err(Error::Closing);
        };
        let (id, qp) = (self.id()?, endpoint.qp().ok_or(Error::Closing)?);
        moves::to_rts(&qp, id, &args.param, Side::Active)?;
        id.establish().map_err(error)
    }

    /// The connection is established.
    fn done(&mut self, private_data: Vec<u8>) -> Outcome {
        let answer = self.waiting.take().map(|waiting| match waiting {
            Waiting::Connect(_, pending) => {
                let reply = CmReply::Established(private_data.into());
                Answer::Connect(pending, Ok(reply))
            }
            Waiting::Accept(pending) => Answer::Accept(pending, Ok(())),
        });
        Outcome {
            answer,
            ..Outcome::default()
        }
    }

    /// There will be no connection. When an id is destroyed, its peer is informed, if it has received the request.
    fn failed(&mut self, failure: Failure) -> Outcome {
        let answer = self.waiting.take().map(|waiting| match waiting {
            Waiting::Connect(_, pending) => {
                self.state = State::Spent;
                Answer::Connect(pending, failure.reply())
            }
            Waiting::Accept(pending) => {
                self.state = State::Over;
                Answer::Accept(pending, Err(failure.error()))
            }
        });
        if answer.is_some() {
            let gone = self.id.take();
            drop(gone);
        }
        Outcome {
            answer,
            ..Outcome::default()
        }
    }

    /// The connection has ended, and its user knows. Confirms the peer's disconnect.
    fn end(&mut self, endpoint: &CmCore) {
        if let Some(qp) = endpoint.qp() {
            moves::to_error(&qp);
        }
        if let Some(id) = &self.id {
            // There may be no peer to confirm it to.
            let _ = id.disconnect();
        }
    }

    /// This end ends the connection; its queue pair is in ERR. The event that it has ended follows.
    pub(super) fn leave(&mut self) {
        if self.state == State::Connected {
            self.state = State::Leaving;
            if let Some(Err(errno)) = self.id.as_ref().map(CmId::disconnect) {
                tracing::debug!(%errno, "the peer is not told that the connection is over");
            }
        }
    }

    /// Data has arrived before the peer's confirmation, which may be lost.
    pub(super) fn data_came(&self) {
        /// `IBV_EVENT_COMM_EST`.
        const COMM_EST: u32 = 4;
        if self.state == State::Accepting
            && let Some(id) = &self.id
        {
            // The confirmation may have arrived first.
            let _ = id.notify(COMM_EST);
        }
    }

    /// Ends the waiting request, if it is that one.
    pub(super) fn cancel(&mut self, request: RequestId) -> Option<Outcome> {
        let waits = match self.waiting.as_ref()? {
            Waiting::Connect(_, pending) => pending.id(),
            Waiting::Accept(pending) => pending.id(),
        };
        (waits == request).then(|| self.failed(Error::Cancelled.into()))
    }

    /// The NIC has been removed.
    pub(super) fn removed(&mut self) -> Outcome {
        let was = self.state;
        let outcome = self.failed(Error::DeviceRemoved.into());
        self.state = State::Over;
        let gone = self.id.take();
        drop(gone);
        Outcome {
            is_closed: !matches!(was, State::Over),
            ..outcome
        }
    }

    /// The endpoint is unbound: its connection, its listening or its request ends.
    pub(super) fn unbind(&mut self, endpoint: &CmCore) {
        if let (State::Connected | State::Leaving, Some(qp)) = (self.state, endpoint.qp()) {
            moves::to_error(&qp);
        }
        if let Some(id) = self.id.take() {
            match self.state {
                State::Connected => drop(id.disconnect()),
                State::Asked => drop(id.reject(&[])),
                _ => {}
            }
            drop(id);
        }
        self.state = State::Over;
    }
}

fn wishes<'a>(qp: &QpCore, param: &CmParam, private_data: &'a [u8]) -> Result<Wishes<'a>, Error> {
    Ok(Wishes {
        qpn: qp.qpn(),
        srq: pair::uses_srq(qp)?,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        private_data,
    })
}

/// Why there is no connection.
enum Failure {
    /// The peer's reply, or its silence.
    Peer(CmReply),
    /// An error at this end.
    Here(Error),
}

impl Failure {
    /// The failure that the event reports.
    fn of(arrival: Arrival) -> Self {
        let Arrival {
            kind,
            status,
            private_data,
            ..
        } = arrival;
        const CONNREFUSED: i32 = -Errno::CONNREFUSED.raw_os_error();
        Self::Peer(match (kind, status) {
            (event::ADDR_ERROR | event::ROUTE_ERROR, _) => CmReply::Unreachable,
            (event::REJECTED, INVALID_SERVICE_ID) => CmReply::Refused,
            (event::REJECTED, reason @ 1..) if reason != CONSUMER => {
                CmReply::ManagerRejected(u16::try_from(reason).unwrap_or(u16::MAX))
            }
            // RDMA over TCP: no program has accepted the TCP connection, so none has rejected it.
            (event::REJECTED, CONNREFUSED) if private_data.is_empty() => CmReply::Refused,
            (event::REJECTED | event::DISCONNECTED, _) => CmReply::Rejected(private_data.into()),
            (event::UNREACHABLE, 0) => CmReply::TimedOut,
            (_, status) => return Errno::from_raw_os_error(status.saturating_abs()).into(),
        })
    }

    fn reply(self) -> Result<CmReply, Error> {
        match self {
            Self::Peer(reply) => Ok(reply),
            Self::Here(error) => Err(error),
        }
    }

    /// The error that an accept returns.
    fn error(self) -> Error {
        match self {
            Self::Peer(CmReply::TimedOut | CmReply::Unreachable) => misplaced(Why::Unreachable),
            Self::Peer(_) => misplaced(Why::Missing),
            Self::Here(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Here(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::CONNREFUSED => Self::Peer(CmReply::Refused),
            Errno::TIMEDOUT => Self::Peer(CmReply::TimedOut),
            Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NODEV | Errno::ADDRNOTAVAIL => {
                Self::Peer(CmReply::Unreachable)
            }
            errno => Self::Here(error(errno)),
        }
    }
}
