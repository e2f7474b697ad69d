//! MPA startup, sans-IO: Request and Reply on either side (RFC 5044, section 7; RFC 6581).

use std::time::Duration;

use verbs_wire::iwarp::{
    Cause, Depth, IwarpError, Reply, Revision, Rtr, Setup, Startup, StartupKind,
};

use crate::time::Instant;

/// What one side wants of a connection.
#[derive(Clone, Copy, Debug)]
pub struct MpaConfig {
    /// CRCs are asked for. The peer can ask for them as well.
    pub wants_crc: bool,
    /// An initiator's revision: `true` for 2, with the words of the enhanced setup, `false` for 1. A responder
    /// answers in the Request's revision.
    pub is_enhanced: bool,
    /// RDMA Reads that this side accepts at once.
    pub ird: u16,
    /// RDMA Reads that this side wants to have outstanding.
    pub ord: u16,
    /// Ready-to-receive messages that this side can send (initiator) or take (responder). An initiator that
    /// names some asks for a peer-to-peer connection.
    pub rtr: Rtr,
    /// How long the peer's frame may take. Linux siw waits 10 s for a Reply and 5 s for a Request.
    pub timeout: Duration,
}

/// What both sides have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// FPDUs have CRCs.
    pub has_crc: bool,
    /// RDMA Reads that this side accepts at once.
    pub ird: u16,
    /// RDMA Reads that this side may have outstanding.
    pub ord: u16,
    /// The zero-length message that the initiator sends first, if the connection is peer-to-peer.
    pub rtr: Rtr,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpaEvent {
    /// A responder's peer asks for a connection: call [`Mpa::accept`] or [`Mpa::reject`].
    Request {
        /// The words of the enhanced setup, if the peer has sent them.
        setup: Option<Setup>,
        /// What the peer's ULP says.
        private_data: Vec<u8>,
    },
    /// The stream carries FPDUs from here on.
    Connected {
        /// What both sides have agreed on.
        agreed: Agreed,
        /// What the responder's ULP says; empty on the responder's side.
        private_data: Vec<u8>,
        /// Bytes behind the Reply, which were read with it: the first ones of FPDUs. A responder has to wait for
        /// the initiator's first FPDU, and Linux siw does not enforce it. Empty on the responder's side.
        surplus: Vec<u8>,
    },
    /// The responder has rejected the connection. The stream is to be closed.
    Rejected {
        /// What its ULP says.
        private_data: Vec<u8>,
    },
    /// There will be no connection. What [`Mpa::poll_output`] has is to be sent before the stream is closed.
    Failed(MpaError),
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MpaError {
    /// The peer's frame is none.
    #[error(transparent)]
    Frame(#[from] IwarpError),
    /// The peer's frame did not come in time.
    #[error("no MPA frame from the peer within the timeout")]
    Timeout,
    /// The stream ended before the connection began.
    #[error("the peer closed the stream during MPA startup")]
    Closed,
    /// The peer wants markers, which this side does not send.
    #[error("the peer asks for markers, which are not supported")]
    Markers,
    /// The Reply has another revision than the Request.
    #[error("MPA Reply of revision {got}, expected {expected}")]
    Revision {
        /// The Request's.
        expected: u8,
        /// The Reply's.
        got: u8,
    },
    /// The initiator sent bytes behind its Request although it has to wait for the Reply.
    #[error("{0} bytes behind the MPA Request, before the Reply was sent")]
    Early(usize),
    /// The responder wants more RDMA Reads outstanding than this side accepts.
    #[error("the peer wants {got} RDMA Reads outstanding, at most {max} are accepted")]
    Depth {
        /// This side's IRD.
        max: u16,
        /// The peer's ORD.
        got: u16,
    },
    /// No ready-to-receive message that both sides have.
    #[error("no ready-to-receive message that both sides have: {got:?}, offered {offered:?}")]
    Rtr {
        /// Those of this side.
        offered: Rtr,
        /// The peer's.
        got: Rtr,
    },
}

impl MpaError {
    /// What a Terminate tells the peer, where one is to be sent (RFC 6581, section 8).
    pub const fn cause(&self) -> Option<Cause> {
        match self {
            Self::Frame(error) => error.cause(),
            Self::Revision { .. } | Self::Early(_) => Some(Cause::LLP_STARTUP),
            Self::Depth { .. } => Some(Cause::LLP_IRD),
            Self::Rtr { .. } => Some(Cause::LLP_RTR),
            Self::Timeout | Self::Closed | Self::Markers => None,
        }
    }
}

/// The startup of one MPA connection.
///
/// * Commands: [`Mpa::accept`], [`Mpa::reject`].
/// * Events: [`Mpa::handle_bytes`], [`Mpa::handle_end`], [`Mpa::handle_timeout`].
/// * Outputs: [`Mpa::poll_output`] bytes for the stream, [`Mpa::poll_event`], [`Mpa::deadline`]. Drain both
///   after every command and event.
///
/// It keeps at most one startup frame and what was handed in with it.
#[derive(Debug)]
pub struct Mpa {
    config: MpaConfig,
    state: State,
    deadline: Option<Instant>,
    input: Vec<u8>,
    output: Vec<u8>,
    event: Option<MpaEvent>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    AwaitReply,
    AwaitRequest,
    /// The Request is in `input`, and nothing else.
    Decide,
    Done,
}

impl Mpa {
    /// The initiator's side; the Request is ready to be sent.
    ///
    /// # Errors
    /// [`IwarpError::PrivateData`] if there is more than a frame can carry.
    pub fn connect(
        config: MpaConfig,
        private_data: &[u8],
        now: Instant,
    ) -> Result<Self, IwarpError> {
        let setup = Setup {
            ird: Depth::new(config.ird),
            ord: Depth::new(config.ord),
            is_peer_to_peer: !config.rtr.is_empty(),
            rtr: config.rtr,
        };
        let mut mpa = Self::new(config, State::AwaitReply, now);
        let revision = if config.is_enhanced {
            Revision::Two(Some(setup))
        } else {
            Revision::One
        };
        mpa.put(
            StartupKind::Request,
            config.wants_crc,
            revision,
            private_data,
        )?;
        Ok(mpa)
    }

    /// The responder's side.
    pub fn listen(config: MpaConfig, now: Instant) -> Self {
        Self::new(config, State::AwaitRequest, now)
    }

    fn new(config: MpaConfig, state: State, now: Instant) -> Self {
        Self {
            config,
            state,
            deadline: Some(now + config.timeout),
            input: Vec::new(),
            output: Vec::new(),
            event: None,
        }
    }

    /// Takes other numbers of RDMA Reads than those of the configuration, for the Reply that is to come.
    pub fn limit(&mut self, ird: u16, ord: u16) {
        (self.config.ird, self.config.ord) = (ird, ord);
    }

    /// Accepts the Request. Without one it does nothing.
    ///
    /// # Errors
    /// [`IwarpError::PrivateData`] if there is more than a frame can carry; the Request still waits.
    pub fn accept(&mut self, private_data: &[u8]) -> Result<(), IwarpError> {
        if !matches!(self.state, State::Decide) {
            return Ok(());
        }
        let input = std::mem::take(&mut self.input);
        let answered = match Startup::parse_request(&input) {
            Ok(Some((request, _))) => self.answer(&request, private_data),
            Ok(None) => unreachable!("the Request was read whole before it was reported"),
            Err(error) => Err(error),
        };
        match answered {
            Ok(agreed) => {
                self.finish(MpaEvent::Connected {
                    agreed,
                    private_data: Vec::new(),
                    surplus: Vec::new(),
                });
                Ok(())
            }
            Err(error) => {
                self.input = input;
                Err(error)
            }
        }
    }

    /// Rejects the Request. Without one it does nothing.
    ///
    /// # Errors
    /// As [`Mpa::accept`].
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), IwarpError> {
        if !matches!(self.state, State::Decide) {
            return Ok(());
        }
        let revision = match Startup::parse_request(&self.input)? {
            Some((request, _)) => request.revision,
            None => Revision::One,
        };
        let reject = StartupKind::Reply(Reply::Reject);
        self.put(reject, self.config.wants_crc, revision, private_data)?;
        self.state = State::Done;
        Ok(())
    }

    /// Takes bytes of the stream. After the connection began they belong to FPDUs and are not taken.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        if matches!(self.state, State::Done) {
            return;
        }
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let read = match self.state {
            State::AwaitRequest => self.request(&input),
            State::AwaitReply => self.reply(&input),
            State::Decide => Err(MpaError::Early(bytes.len())),
            State::Done => Ok(()),
        };
        self.input = input;
        if let Err(error) = read {
            self.finish(MpaEvent::Failed(error));
        }
    }

    /// The peer sends nothing further.
    pub fn handle_end(&mut self) {
        if !matches!(self.state, State::Done) {
            self.finish(MpaEvent::Failed(MpaError::Closed));
        }
    }

    /// It is later than before.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.finish(MpaEvent::Failed(MpaError::Timeout));
        }
    }

    /// Bytes to be sent, in order.
    pub fn poll_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<MpaEvent> {
        self.event.take()
    }

    /// When to call [`Mpa::handle_timeout`] at the latest.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn request(&mut self, input: &[u8]) -> Result<(), MpaError> {
        let Some((request, request_len)) = Startup::parse_request(input)? else {
            return Ok(());
        };
        if request.wants_markers {
            let reject = StartupKind::Reply(Reply::Reject);
            self.put(reject, self.config.wants_crc, request.revision, &[])?;
            return Err(MpaError::Markers);
        }
        if input.len() > request_len {
            return Err(MpaError::Early(input.len() - request_len));
        }
        self.deadline = None;
        self.state = State::Decide;
        let setup = match request.revision {
            Revision::Two(setup) => setup,
            Revision::One => None,
        };
        self.event = Some(MpaEvent::Request {
            setup,
            private_data: request.private_data.to_vec(),
        });
        Ok(())
    }

    /// Puts the Reply that accepts a Request.
    fn answer(&mut self, request: &Startup<'_>, data: &[u8]) -> Result<Agreed, IwarpError> {
        let config = self.config;
        let mut agreed = Agreed {
            has_crc: config.wants_crc || request.wants_crc,
            ird: config.ird,
            ord: config.ord,
            rtr: Rtr::empty(),
        };
        let mut revision = request.revision;
        if let Revision::Two(Some(theirs)) = request.revision {
            // RFC 6581, section 9: the responder's ORD is within the initiator's IRD.
            agreed.ord = config.ord.min(theirs.ird.value().unwrap_or(u16::MAX));
            if theirs.is_peer_to_peer {
                agreed.rtr = one_of(theirs.rtr & config.rtr);
            }
            revision = Revision::Two(Some(Setup {
                ird: Depth::new(agreed.ird),
                ord: Depth::new(agreed.ord),
                is_peer_to_peer: theirs.is_peer_to_peer,
                rtr: agreed.rtr,
            }));
        }
        let accept = StartupKind::Reply(Reply::Accept);
        self.put(accept, agreed.has_crc, revision, data)?;
        Ok(agreed)
    }

    fn reply(&mut self, input: &[u8]) -> Result<(), MpaError> {
        let Some((reply, len)) = Startup::parse_reply(input)? else {
            return Ok(());
        };
        let private_data = reply.private_data.to_vec();
        if reply.kind == StartupKind::Reply(Reply::Reject) {
            self.finish(MpaEvent::Rejected { private_data });
            return Ok(());
        }
        if reply.wants_markers {
            return Err(MpaError::Markers);
        }
        let (expected, got) = (
            1 + u8::from(self.config.is_enhanced),
            reply.revision.number(),
        );
        if expected != got {
            return Err(MpaError::Revision { expected, got });
        }
        let config = self.config;
        let mut agreed = Agreed {
            has_crc: config.wants_crc || reply.wants_crc,
            ird: config.ird,
            ord: config.ord,
            rtr: Rtr::empty(),
        };
        if let Revision::Two(Some(theirs)) = reply.revision {
            if let Some(got) = theirs.ord.value().filter(|&ord| ord > config.ird) {
                let max = config.ird;
                return Err(MpaError::Depth { max, got });
            }
            agreed.ord = config.ord.min(theirs.ird.value().unwrap_or(u16::MAX));
            if !config.rtr.is_empty() {
                agreed.rtr = one_of(theirs.rtr & config.rtr);
                if agreed.rtr.is_empty() || !theirs.is_peer_to_peer {
                    let (offered, got) = (config.rtr, theirs.rtr);
                    return Err(MpaError::Rtr { offered, got });
                }
            }
        }
        self.finish(MpaEvent::Connected {
            agreed,
            private_data,
            surplus: input[len..].to_vec(),
        });
        Ok(())
    }

    fn put(
        &mut self,
        kind: StartupKind,
        wants_crc: bool,
        revision: Revision,
        private_data: &[u8],
    ) -> Result<(), IwarpError> {
        let frame = Startup {
            kind,
            wants_markers: false,
            wants_crc,
            revision,
            private_data,
        };
        let mut out = vec![0; frame.wire_len()];
        frame.emit(&mut out)?;
        self.output = out;
        Ok(())
    }

    fn finish(&mut self, event: MpaEvent) {
        self.state = State::Done;
        self.deadline = None;
        self.event = Some(event);
    }
}

/// The ready-to-receive message that is chosen of several: a Write costs the peer least, as siw prefers it.
fn one_of(rtr: Rtr) -> Rtr {
    let order = [Rtr::WRITE, Rtr::READ, Rtr::SEND];
    let mut offered = order.into_iter().filter(|&one| rtr.contains(one));
    offered.next().unwrap_or(Rtr::empty())
}
