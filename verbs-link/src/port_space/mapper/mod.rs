//! The iWARP port mapper: a host tells another at which TCP port an endpoint really is.
//!
//! With a port mapper, an endpoint's number is its own, and the host's TCP port that stands for it is another: one that
//! the mapper takes in the host's [port space](super), so that no ordinary socket has it. A host that connects asks the
//! mapper of the other host, at UDP port 3935, for the number behind an address, and says its own. Linux's `iwpmd` does
//! the same for RNICs whose TCP is their own. Software over TCP needs none of this: its numbers are real.
//!
//! [`PortMapper`] is sans-IO. Commands: [`PortMapper::map`], [`PortMapper::unmap`], [`PortMapper::ask`]. Events:
//! [`PortMapper::handle_datagram`], [`PortMapper::handle_timeout`]. Outputs, in this order until there are none:
//! [`PortMapper::poll_output`], [`PortMapper::poll_event`], [`PortMapper::poll_timeout`]. [`MapperSocket`] runs it on a
//! UDP socket.

mod socket;
#[cfg(test)]
#[cfg(not(verbs_loom))]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use verbs_wire::iwarp::{MAPPER_PORT, MapperKind, MapperMessage};

use super::{BoundPort, PortError, PortUse, TcpPortSpace};
use crate::time::Instant;

pub use socket::MapperSocket;

/// Mappings of one mapper.
pub const MAPPINGS_MAX: usize = 65_536;
/// Questions under way at a time.
pub const ASKED_MAX: usize = 4_096;
/// Answers that are remembered for peers that did not get them; of more, the oldest are forgotten.
pub const ANSWERED_MAX: usize = 4_096;
/// How often a message is sent that is not answered.
const SENDS: u32 = 4;
/// How long an answer is waited for, each time, unless a mapper is told otherwise. Four times that are the ten seconds that `iwpmd`
/// waits.
const WAIT: Duration = Duration::from_millis(2_500);

/// See the module's documentation.
pub struct PortMapper {
    space: TcpPortSpace,
    mappings: BTreeMap<SocketAddr, Mapping>,
    /// By association.
    asked: BTreeMap<u64, Asked>,
    /// By the asking mapper's address and association.
    answered: BTreeMap<(SocketAddr, u64), Answered>,
    /// The answers, oldest first.
    order: VecDeque<(SocketAddr, u64)>,
    /// Questions that were answered, by whom and under which association, oldest first.
    found: VecDeque<(SocketAddr, u64)>,
    next_association: u64,
    output: VecDeque<(SocketAddr, MapperMessage)>,
    events: VecDeque<MapperEvent>,
    dropped: u64,
    /// How long an answer is waited for, each time.
    wait: Duration,
}

/// What an endpoint's address is mapped to.
enum Mapping {
    /// A port of the host that is taken for it.
    To(BoundPort),
    /// Itself: it holds its own.
    Itself,
}

impl Mapping {
    fn of(&self, local: SocketAddr) -> SocketAddr {
        match self {
            Self::To(port) => port.local(),
            Self::Itself => local,
        }
    }
}

/// A question that was not answered.
struct Asked {
    local: SocketAddr,
    remote: SocketAddr,
    /// The other host's mapper.
    mapper: SocketAddr,
    message: MapperMessage,
    sends: u32,
    again: Instant,
}

/// An answer that was not acknowledged.
struct Answered {
    message: MapperMessage,
    sends: u32,
    again: Option<Instant>,
}

/// What a mapper has found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapperEvent {
    /// The answer to a question: where the remote endpoint really is.
    Mapped {
        /// The endpoint that connects.
        local: SocketAddr,
        /// The address that was asked for.
        remote: SocketAddr,
        /// The address to connect to.
        mapped: SocketAddr,
    },
    /// The other host has no such mapping.
    Rejected {
        /// The endpoint that connects.
        local: SocketAddr,
        /// The address that was asked for.
        remote: SocketAddr,
    },
    /// The other host has no mapper, or it does not answer.
    TimedOut {
        /// The endpoint that connects.
        local: SocketAddr,
        /// The address that was asked for.
        remote: SocketAddr,
    },
    /// A peer has asked for an endpoint of this host: a connection from `mapped` is one from `remote`.
    Announced {
        /// The endpoint of this host.
        local: SocketAddr,
        /// The peer's endpoint.
        remote: SocketAddr,
        /// Where it connects from.
        mapped: SocketAddr,
    },
}

/// Why a mapper does not do what it is asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapperError {
    /// The address is mapped already.
    #[error("{0} is mapped already")]
    Duplicate(SocketAddr),
    /// The address is not mapped.
    #[error("{0} is not mapped")]
    Unknown(SocketAddr),
    /// One is of IPv4 and the other of IPv6.
    #[error("{local} does not reach {remote}: their families differ")]
    Families {
        /// The endpoint that connects.
        local: SocketAddr,
        /// The address that was asked for.
        remote: SocketAddr,
    },
    /// There are too many.
    #[error("the port mapper has {max} {what} already")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// The host has no port for it.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl PortMapper {
    /// A mapper that takes its numbers in that port space. `first` is the number of its first question; a mapper that
    /// begins again had better not repeat those of before, so it is drawn at random.
    pub fn new(space: TcpPortSpace, first: u64) -> Self {
        Self {
            space,
            mappings: BTreeMap::new(),
            asked: BTreeMap::new(),
            answered: BTreeMap::new(),
            order: VecDeque::new(),
            found: VecDeque::new(),
            next_association: first,
            output: VecDeque::new(),
            events: VecDeque::new(),
            dropped: 0,
            wait: WAIT,
        }
    }

    /// Waits four times so long for an answer; without it, four times two and a half seconds.
    #[must_use]
    pub fn waiting(mut self, each: Duration) -> Self {
        self.wait = each;
        self
    }

    /// Maps an endpoint's address to a TCP port of the host, which is bound and kept from all other sockets until
    /// [`PortMapper::unmap`]. Returns the mapped address.
    ///
    /// # Errors
    /// [`MapperError::Duplicate`], [`MapperError::TooMany`], [`MapperError::Port`].
    pub fn map(&mut self, local: SocketAddr) -> Result<SocketAddr, MapperError> {
        self.admit(local)?;
        let any = SocketAddr::new(local.ip(), 0);
        let port = self.space.bind(any, PortUse::Reserve)?;
        let mapped = port.local();
        self.mappings.insert(local, Mapping::To(port));
        Ok(mapped)
    }

    /// Maps an address to itself, for an endpoint that holds its number by a socket of its own.
    ///
    /// # Errors
    /// [`MapperError::Duplicate`], [`MapperError::TooMany`].
    pub fn map_to_itself(&mut self, local: SocketAddr) -> Result<(), MapperError> {
        self.admit(local)?;
        self.mappings.insert(local, Mapping::Itself);
        Ok(())
    }

    /// Ends a mapping, and the questions of its endpoint; the host's port is free again.
    ///
    /// # Errors
    /// [`MapperError::Unknown`].
    pub fn unmap(&mut self, local: SocketAddr) -> Result<(), MapperError> {
        let mapping = self.mappings.remove(&local);
        self.asked.retain(|_, asked| asked.local != local);
        mapping.map(drop).ok_or(MapperError::Unknown(local))
    }

    /// What an address is mapped to.
    pub fn mapped(&self, local: SocketAddr) -> Option<SocketAddr> {
        self.mappings.get(&local).map(|mapping| mapping.of(local))
    }

    /// Asks the mapper of another host where an endpoint of it really is; an event is the answer.
    ///
    /// # Errors
    /// [`MapperError::Unknown`] if the asking endpoint is not mapped, [`MapperError::Families`],
    /// [`MapperError::TooMany`].
    pub fn ask(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<(), MapperError> {
        let mapper = SocketAddr::new(remote.ip(), MAPPER_PORT);
        self.ask_at(mapper, local, remote, now)
    }

    /// As [`PortMapper::ask`], of a mapper at another address.
    ///
    /// # Errors
    /// As there.
    pub fn ask_at(
        &mut self,
        mapper: SocketAddr,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<(), MapperError> {
        let mapped = self.mapped(local).ok_or(MapperError::Unknown(local))?;
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(MapperError::Families { local, remote });
        }
        if self.asked.len() >= ASKED_MAX {
            let what = "questions under way";
            return Err(MapperError::TooMany {
                what,
                max: ASKED_MAX,
            });
        }
        let association = self.next_association;
        self.next_association = association.wrapping_add(1);
        let message = MapperMessage {
            kind: MapperKind::Request {
                mapped_port: mapped.port(),
                mapped_addr: mapped.ip(),
            },
            accept_port: remote.port(),
            connect_port: local.port(),
            association,
            connect_addr: local.ip(),
            accept_addr: remote.ip(),
        };
        self.output.push_back((mapper, message));
        self.asked.insert(
            association,
            Asked {
                local,
                remote,
                mapper,
                message,
                sends: 1,
                again: now + self.wait,
            },
        );
        Ok(())
    }

    /// A datagram has come from another mapper. What is no message of one, or answers nothing, is dropped.
    pub fn handle_datagram(&mut self, from: SocketAddr, bytes: &[u8], now: Instant) {
        let Ok(message) = MapperMessage::parse(bytes) else {
            self.dropped += 1;
            return;
        };
        match message.kind {
            MapperKind::Request {
                mapped_port,
                mapped_addr,
            } => {
                let mapped = SocketAddr::new(mapped_addr, mapped_port);
                self.handle_request(from, message, mapped, now);
            }
            MapperKind::Accept => self.handle_accept(from, message),
            MapperKind::Reject => match self.take(from, &message) {
                Some(Asked { local, remote, .. }) => {
                    self.events
                        .push_back(MapperEvent::Rejected { local, remote });
                }
                None => self.dropped += 1,
            },
            MapperKind::Ack => {
                match self.answered.get_mut(&(from, message.association)) {
                    // It stays, so that a request that was repeated meanwhile is not taken for another one.
                    Some(answered) => answered.again = None,
                    None => self.dropped += 1,
                }
            }
        }
    }

    /// It is later than before: what was not answered is sent again, or given up.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Self {
            asked,
            answered,
            output,
            events,
            wait,
            ..
        } = self;
        asked.retain(|_, asked| {
            if asked.again > now {
                return true;
            }
            let &mut Asked { local, remote, .. } = asked;
            if asked.sends >= SENDS {
                events.push_back(MapperEvent::TimedOut { local, remote });
                return false;
            }
            asked.sends += 1;
            asked.again = now + *wait;
            output.push_back((asked.mapper, asked.message));
            true
        });
        for ((peer, _), answered) in answered {
            if answered.again.is_none_or(|again| again > now) {
                continue;
            }
            answered.sends += 1;
            answered.again = (answered.sends < SENDS).then(|| now + *wait);
            output.push_back((*peer, answered.message));
        }
    }

    /// The next message to be sent, and to whom.
    pub fn poll_output(&mut self) -> Option<(SocketAddr, MapperMessage)> {
        self.output.pop_front()
    }

    /// What was found out next.
    pub fn poll_event(&mut self) -> Option<MapperEvent> {
        self.events.pop_front()
    }

    /// When to call [`PortMapper::handle_timeout`] at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let asked = self.asked.values().map(|asked| asked.again);
        let answered = self.answered.values().filter_map(|answered| answered.again);
        asked.chain(answered).min()
    }

    /// Datagrams that were no messages, or answered nothing.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn admit(&self, local: SocketAddr) -> Result<(), MapperError> {
        if self.mappings.contains_key(&local) {
            return Err(MapperError::Duplicate(local));
        }
        if self.mappings.len() >= MAPPINGS_MAX {
            let (what, max) = ("mappings", MAPPINGS_MAX);
            return Err(MapperError::TooMany { what, max });
        }
        Ok(())
    }

    /// A mapping at that address, or at the wildcard with its number.
    fn find(&self, address: SocketAddr) -> Option<(SocketAddr, SocketAddr)> {
        let any: std::net::IpAddr = match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let wildcard = SocketAddr::new(any, address.port());
        let local = [address, wildcard]
            .into_iter()
            .find(|local| self.mappings.contains_key(local))?;
        let mut mapped = self.mappings[&local].of(local);
        if mapped.ip().is_unspecified() {
            mapped.set_ip(address.ip());
        }
        Some((local, mapped))
    }

    fn handle_request(
        &mut self,
        from: SocketAddr,
        request: MapperMessage,
        mapped_remote: SocketAddr,
        now: Instant,
    ) {
        let key = (from, request.association);
        if let Some(answered) = self.answered.get(&key) {
            // The answer was lost, or is under way.
            return self.output.push_back((from, answered.message));
        }
        let asked_for = SocketAddr::new(request.accept_addr, request.accept_port);
        let remote = SocketAddr::new(request.connect_addr, request.connect_port);
        let Some((local, mapped)) = self.find(asked_for) else {
            let message = MapperMessage {
                kind: MapperKind::Reject,
                ..request
            };
            return self.output.push_back((from, message));
        };
        let message = MapperMessage {
            kind: MapperKind::Accept,
            accept_port: mapped.port(),
            accept_addr: mapped.ip(),
            ..request
        };
        if self.order.len() >= ANSWERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.answered.remove(&oldest);
        }
        self.order.push_back(key);
        self.answered.insert(
            key,
            Answered {
                message,
                sends: 1,
                again: Some(now + self.wait),
            },
        );
        self.output.push_back((from, message));
        self.events.push_back(MapperEvent::Announced {
            local,
            remote,
            mapped: mapped_remote,
        });
    }

    /// An accept that comes again is acknowledged again: the acknowledgement was lost.
    fn handle_accept(&mut self, from: SocketAddr, message: MapperMessage) {
        let key = (from, message.association);
        if let Some(Asked { local, remote, .. }) = self.take(from, &message) {
            let mapped = SocketAddr::new(message.accept_addr, message.accept_port);
            self.events.push_back(MapperEvent::Mapped {
                local,
                remote,
                mapped,
            });
            if self.found.len() >= ANSWERED_MAX {
                self.found.pop_front();
            }
            self.found.push_back(key);
        } else if !self.found.contains(&key) {
            self.dropped += 1;
            return;
        }
        let ack = MapperMessage {
            kind: MapperKind::Ack,
            ..message
        };
        self.output.push_back((from, ack));
    }

    /// The question that a message of that mapper answers.
    fn take(&mut self, from: SocketAddr, message: &MapperMessage) -> Option<Asked> {
        let asked = self.asked.get(&message.association)?;
        let local = SocketAddr::new(message.connect_addr, message.connect_port);
        if asked.mapper != from || asked.local != local {
            return None;
        }
        self.asked.remove(&message.association)
    }
}

impl fmt::Debug for PortMapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortMapper")
            .field("mappings", &self.mappings.len())
            .field("asked", &self.asked.len())
            .finish_non_exhaustive()
    }
}
