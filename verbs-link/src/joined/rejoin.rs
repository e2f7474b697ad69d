//! What a port does when its daemon has ended: it goes on, and becomes a client of the next one.
//!
//! Queue pairs stay as they are. Packets to neighbours go on through the memory that is shared with them; all others are
//! lost, as on a network that is interrupted, and the transport sends them again. As soon as a daemon listens at the same
//! place, the port claims its queue pair numbers there, and says again what it listens for and which groups it is in. If
//! there is none for [`PATIENCE`], the port goes down until there is one.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use verbs_core::Qpn;
use verbs_core::host::channel::FEATURE;
use verbs_core::host::message::{
    FEATURES, Hello, PortNews, Token, VERSION, VERSION_LEAST, Welcome,
};
use verbs_core::host::{Block, Message};
use verbs_core::sync::Arc;

use super::waiter::{LOOKS, RETRY};
use super::{Joined, line};
use crate::time::{Clock, Instant};
use crate::{Change, Waiter as _};

/// How long the port stays up without a daemon.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a daemon may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Connects to a daemon at the same place, without waiting.
type Connect = Box<dyn FnMut() -> Result<OwnedFd, Errno> + Send>;

/// What a port has to do with its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is a client.
    Joined,
    /// There is no daemon: when there was one last, and when the port looks for the next.
    Alone { since: Instant, next: Instant },
    /// One was asked to take the port, and has to answer until then.
    Asked { since: Instant, until: Instant },
    /// The port is down for good.
    Over,
}

pub(super) struct Tie {
    state: State,
    connect: Option<Connect>,
    name: String,
    token: Token,
    pub(super) clock: Clock,
    /// How long the port stays up without a daemon.
    pub(super) patience: Duration,
    /// The port is down for lack of a daemon.
    is_down: bool,
}

impl Tie {
    pub(super) fn new(name: &str, token: Token) -> Self {
        Self {
            state: State::Joined,
            connect: None,
            name: name.to_owned(),
            token,
            clock: Clock::wall(),
            patience: PATIENCE,
            is_down: false,
        }
    }

    /// The daemon does not hear what is said.
    pub(super) fn is_cut(&self) -> bool {
        self.state != State::Joined
    }

    /// There is no line.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.state, State::Alone { .. })
    }

    /// A daemon was asked and has not answered.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked { .. })
    }
}

impl Joined {
    /// From now on, the port looks for the next daemon when its daemon has ended. `connect` connects to the place where
    /// one listens, and must not wait.
    pub fn rejoins(
        mut self,
        connect: impl FnMut() -> Result<OwnedFd, Errno> + Send + 'static,
    ) -> Self {
        self.tie.connect = Some(Box::new(connect));
        self
    }

    /// The daemon has ended, or makes no sense.
    pub(super) fn lose(&mut self) {
        if self.tie.connect.is_none() || self.tie.state == State::Over {
            return self.close();
        }
        let now = self.tie.clock.now();
        let (since, next) = match self.tie.state {
            State::Alone { .. } => return,
            State::Asked { since, .. } => (since, now + RETRY),
            _ => (now, now),
        };
        self.tie.state = State::Alone { since, next };
        self.line.cut();
        self.waiter.cut(true);
        // All that neighbours have sent through the daemon has been read, or is lost.
        for (number, packets) in self.channels.open_all() {
            self.waiter.watch(number, packets);
        }
        self.channels.forget_asked();
        self.asks = false;
    }

    /// The daemon has ended, and the network with it.
    pub(super) fn close(&mut self) {
        self.tie.state = State::Over;
        self.waiter.cut(false);
        self.wire.clear(&self.waiter);
        if self.line.close() {
            self.channels.clear();
            self.waiter.clear();
            self.set_down(true);
            self.waiter.wake();
        }
    }

    fn set_down(&mut self, is_down: bool) {
        let changes = self.port.is_up == is_down;
        if changes {
            self.port.is_up = !is_down;
            let change = if is_down { Change::Down } else { Change::Up };
            self.changes.push_back(change);
        }
    }

    /// Looks for a daemon, if it is time to.
    pub(super) fn look_for_daemon(&mut self) {
        let now = self.tie.clock.now();
        match self.tie.state {
            State::Joined | State::Over => {}
            State::Asked { until, .. } if now >= until => self.lose(),
            State::Asked { .. } => {}
            State::Alone { since, next } if now >= next => {
                if now.since(since) >= self.tie.patience && !self.tie.is_down {
                    self.tie.is_down = true;
                    self.set_down(true);
                    self.line.refuse_asked();
                    self.waiter.wake();
                }
                let next = now + RETRY;
                self.tie.state = match self.ask() {
                    Some(()) => State::Asked {
                        since,
                        until: now + ANSWER,
                    },
                    None => State::Alone { since, next },
                };
            }
            State::Alone { .. } => {}
        }
    }

    /// Asks the daemon that listens now, if there is one.
    fn ask(&mut self) -> Option<()> {
        let Ok(socket) = (self.tie.connect.as_mut()?)() else {
            // Nobody keeps the place for a daemon: the next one has to find the addresses free.
            self.wire.clear(&self.waiter);
            return None;
        };
        super::give_room(&socket);
        let blocks = self.numbers.iter().map(block_of);
        let hello = Message::Hello(Hello {
            lowest: VERSION_LEAST,
            highest: VERSION,
            features: FEATURES,
            addresses: self.port.addresses.clone(),
            name: self.tie.name.clone(),
            token: self.tie.token,
            blocks: blocks.collect(),
        });
        let socket = Arc::new(socket);
        line::send(&socket, &hello.encode()).ok()?;
        self.waiter.watch_line(&socket).ok()?;
        self.socket = socket;
        Some(())
    }

    /// The answer of a daemon that was asked.
    pub(super) fn answered(&mut self, message: &Message<'_>) {
        match message {
            Message::Welcome(welcome) if self.is_as_before(welcome) => {
                self.tie.state = State::Joined;
                self.tie.is_down = false;
                self.has_channels = welcome.features & FEATURE != 0;
                self.channels.forget_asked();
                self.looks = LOOKS;
                let is_up = welcome.port.is_up;
                // Whether it is up is told below.
                self.follow(&PortNews {
                    is_up: self.port.is_up,
                    ..welcome.port.clone()
                });
                self.set_down(!is_up);
                self.waiter.cut(false);
                let groups = self.groups.iter();
                let joins = groups.flat_map(|(&group, &count)| {
                    std::iter::repeat_n(Message::Join(group), count as usize)
                });
                self.line.resume(&self.socket, joins);
            }
            // It does not take the port, ever.
            Message::No(_) => self.close(),
            _ => self.lose(),
        }
    }

    fn is_as_before(&self, welcome: &Welcome) -> bool {
        let first = self.numbers.first().map(block_of);
        first == Some(welcome.block)
    }
}

/// The block that these numbers are from.
fn block_of(numbers: &Range<u32>) -> u16 {
    Block::of(Qpn::new(numbers.start)).map_or(0, Block::number)
}

impl fmt::Debug for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tie")
            .field("state", &self.state)
            .field("rejoins", &self.connect.is_some())
            .finish_non_exhaustive()
    }
}
