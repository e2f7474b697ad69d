//! One connection as a state machine, sans-IO: it carries the messages of all sockets between two addresses.
//!
//! Commands go in ([`send`](Machine::send), [`cancel`](Machine::cancel),
//! [`congestion_changed`](Machine::congestion_changed)), and so does what happens
//! ([`handle_packet`](Machine::handle_packet), [`established`](Machine::established), [`lost`](Machine::lost)); out
//! come packets ([`poll_transmit`](Machine::poll_transmit)) and events ([`poll_event`](Machine::poll_event)). It
//! owns no clock, no queue pair and no lock. A queue pair may go at any time: what the peer has not acknowledged is
//! transmitted again on the next one, and what the peer had is dropped there.

mod credits;
mod message;
mod receive;
mod state;
#[cfg(test)]
mod tests;
mod transmit;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use oorandom::Rand32;
use verbs_core::mad::Time;
use verbs_core::sync::Arc;

use self::credits::Credits;
use self::receive::{Receive, Whole};
use self::transmit::Transmit;
use crate::wire::{
    CongestionMap, Extension, Extensions, FRAGMENT_LEN, Handshake, Header, HeaderFlags, PING_PORT,
    PROBE_PORT, Version,
};

pub use self::message::{Event, Incoming, Outgoing, Packet, RdmaWork};
pub use self::receive::Fault;
pub use self::state::State;

/// Answers to pings that may wait for transmission; more pings are left unanswered.
pub const PONGS_MAX: usize = 64;

/// The longest pause before a connection is asked for again.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pause before the second attempt; the first comes at once.
const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(1);

/// What a connection is made with.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The address here.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// The type of service.
    pub tos: u8,
    /// Receive buffers of a queue pair; 0 turns flow control by credits off.
    pub receives: u32,
    /// The number of this life of the node.
    pub generation: u32,
    /// Decides pauses.
    pub seed: u64,
}

/// Why a peer's request for a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An attempt is under way here, and goes on; or the queue pair before is still being taken down.
    Busy,
    /// A connection was up: the peer has lost it, and it is taken down here too.
    Stale,
}

/// Counts of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Messages that came.
    pub received: u64,
    /// Messages that came again and were dropped.
    pub duplicates: u64,
    /// Packets transmitted.
    pub packets: u64,
    /// Connections that were made.
    pub connects: u64,
    /// Connections that were lost.
    pub losses: u64,
    /// Pings that were not answered, because too many waited.
    pub pings_dropped: u64,
    /// Times that the peer had forgotten everything.
    pub peer_restarts: u64,
}

/// One connection.
#[derive(Debug)]
pub struct Machine {
    terms: Terms,
    state: State,
    transmit: Transmit,
    receive: Receive,
    credits: Credits,
    /// Acknowledgements: whether the peer waits for one, and whether one is in flight.
    ack_due: bool,
    control_in_flight: bool,
    /// The peer is to be told the number of this life.
    announce: bool,
    peer_generation: Option<u32>,
    /// The map that is to be sent, the one that is being sent with how much of it, and the peer's.
    map_due: Option<Arc<[u8]>>,
    map_sending: Option<(Arc<[u8]>, usize)>,
    peer_map: CongestionMap,
    pongs: usize,
    events: VecDeque<Event>,
    attempts: u32,
    retry_at: Time,
    random: Rand32,
    counts: Counts,
}

impl Machine {
    /// A connection that is down.
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            state: State::Down,
            transmit: Transmit::default(),
            receive: Receive::default(),
            credits: Credits::default(),
            ack_due: false,
            control_in_flight: false,
            announce: false,
            peer_generation: None,
            map_due: None,
            map_sending: None,
            peer_map: CongestionMap::default(),
            pongs: 0,
            events: VecDeque::new(),
            attempts: 0,
            retry_at: Time::ZERO,
            random: Rand32::new(terms.seed),
            counts: Counts::default(),
        }
    }

    /// Queues a message. The caller bounds what a socket may have queued.
    pub fn send(&mut self, message: Outgoing) {
        self.transmit.push(message);
    }

    /// Takes back messages of a socket that were not acknowledged, to one port or to all. Yields how many, and their
    /// bytes. The peer may have got them.
    pub fn cancel(&mut self, source: u16, destination: Option<u16>) -> (usize, usize) {
        self.transmit.cancel(source, destination)
    }

    /// The congestion map of the address here has changed.
    pub fn congestion_changed(&mut self, map: &CongestionMap) {
        self.map_due = Some(Arc::from(&map.bytes()[..]));
    }

    /// Begins an attempt: yields what the request says. `None` unless the connection is down.
    pub fn connect(&mut self) -> Option<Handshake> {
        self.step(State::Connecting).then(|| self.handshake())
    }

    /// The peer asks. Yields what the answer says.
    ///
    /// # Errors
    /// [`Refusal`]; after [`Refusal::Stale`] the caller takes the queue pair down and calls [`lost`](Self::lost).
    pub fn accept(&mut self) -> Result<Handshake, Refusal> {
        match self.state {
            State::Down => {
                self.step(State::Connecting);
                Ok(self.handshake())
            }
            State::Up => {
                self.step(State::Error);
                Err(Refusal::Stale)
            }
            State::Connecting | State::Error | State::Disconnecting => Err(Refusal::Busy),
        }
    }

    /// The connection is made, and the peer has said this; `map` is the congestion map of the address here.
    pub fn established(&mut self, peer: &Handshake, map: &CongestionMap) {
        if !self.step(State::Up) {
            return;
        }
        self.counts.connects += 1;
        self.attempts = 0;
        self.credits = Credits::new(peer.credits, self.terms.receives);
        self.transmit.peer_has(peer.ack);
        self.handle_ack(peer.ack);
        self.announce = true;
        // The peer may hold a map of an earlier connection, or of an earlier life of this node.
        let is_new = self.counts.connects > 1 || map.count() > 0;
        self.map_due = is_new.then(|| Arc::from(&map.bytes()[..]));
    }

    /// Gives the queue pair up: the caller takes it down and calls [`lost`](Self::lost).
    pub fn fail(&mut self) {
        self.step(State::Error);
    }

    /// The queue pair is gone, or was never made.
    pub fn lost(&mut self, now: Time) {
        if self.state == State::Down {
            return;
        }
        self.counts.losses += u64::from(self.state != State::Connecting);
        self.step(State::Error);
        self.step(State::Disconnecting);
        self.step(State::Down);
        for (source, len) in self.transmit.lost() {
            self.events.push_back(Event::Acked { source, len });
        }
        self.receive.lost();
        self.credits = Credits::default();
        self.map_sending = None;
        (self.ack_due, self.control_in_flight) = (false, false);
        // What was congested may be free by now, and the peer sends its map again.
        let freed = self.peer_map.freed(&CongestionMap::default());
        self.peer_map = CongestionMap::default();
        if freed != 0 {
            self.events.push_back(Event::Congestion(freed));
        }
        self.retry_at = now + self.pause();
    }

    /// A packet has come. Its receive buffer is posted again by the caller, who says so with
    /// [`receives_posted`](Self::receives_posted).
    ///
    /// # Errors
    /// [`Fault`]: the caller takes the queue pair down and calls [`lost`](Self::lost).
    pub fn handle_packet(&mut self, packet: &[u8]) -> Result<(), Fault> {
        let header = Header::parse(packet)?;
        self.credits.granted(header.credit);
        self.handle_ack(header.ack);
        for extension in header.extensions.iter() {
            if let Extension::Generation(generation) = extension {
                self.peer_lives(generation);
            }
        }
        let payload = packet.get(Header::LEN..).unwrap_or_default();
        if header.is_control() && !header.flags.contains(HeaderFlags::CONGESTION) {
            return Ok(());
        }
        match self.receive.fragment(&header, payload)? {
            Whole::Nothing => {}
            Whole::Message(incoming) => {
                self.counts.received += 1;
                self.deliver(incoming);
            }
            Whole::Duplicate => {
                self.counts.duplicates += 1;
                self.ack_due = true;
            }
            Whole::Map(map) => {
                let freed = self.peer_map.freed(&map);
                self.peer_map = map;
                self.events.push_back(Event::Congestion(freed));
            }
        }
        self.ack_due |= header.flags.contains(HeaderFlags::ACK_REQUIRED);
        Ok(())
    }

    /// Receive buffers were posted, those of a new queue pair not counted.
    pub fn receives_posted(&mut self, count: u32) {
        self.credits.posted(count);
    }

    /// A packet with [`Packet::control`] has been sent.
    pub fn control_sent(&mut self) {
        self.control_in_flight = false;
    }

    /// The next packet to post; the caller asks when it has room.
    pub fn poll_transmit(&mut self) -> Option<Packet> {
        if self.state != State::Up {
            return None;
        }
        if self.announce {
            let extension = Extension::Generation(self.terms.generation);
            let packet = self.control(Extensions::one(extension));
            self.announce = packet.is_none();
            return packet;
        }
        let packet = match (self.transmit.is_inside(), self.transmit.is_ready()) {
            (true, _) => self.message(),
            (false, ready) => match self.map() {
                None if ready && self.map_sending.is_none() => self.message(),
                map => map,
            },
        };
        if packet.is_some() {
            return packet;
        }
        let is_due = self.ack_due || self.credits.is_due();
        match is_due && !self.control_in_flight {
            true => self.control(Extensions::default()),
            false => None,
        }
    }

    /// What has happened, one after the other.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When a connection is to be asked for; `None` while nothing is to be sent or one is there.
    pub fn poll_timeout(&self) -> Option<Time> {
        let wanted = self.transmit.len() > 0 && self.state == State::Down;
        wanted.then_some(self.retry_at)
    }

    /// Where the connection stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// What it is made with.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Whether the peer's port is congested.
    pub fn is_congested(&self, port: u16) -> bool {
        self.peer_map.is_congested(port)
    }

    /// Messages that are queued, those that wait for an acknowledgement among them.
    pub fn queued(&self) -> usize {
        self.transmit.len()
    }

    /// Messages that wait for an acknowledgement.
    pub fn unacked(&self) -> usize {
        self.transmit.unacked()
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn step(&mut self, next: State) -> bool {
        let legal = self.state.may_become(next);
        if legal {
            self.state = next;
        }
        legal
    }

    fn handshake(&self) -> Handshake {
        Handshake {
            source: self.terms.local,
            destination: self.terms.remote,
            version: Version::V3_1,
            minors: Version::MINORS,
            tos: self.terms.tos,
            ack: self.receive.ack(),
            credits: self.terms.receives,
        }
    }

    /// The first attempt comes at once; then a random part of a time that doubles.
    fn pause(&mut self) -> Duration {
        self.attempts += 1;
        if self.attempts == 1 {
            return Duration::ZERO;
        }
        let longest = RECONNECT_PAUSE_MIN * (1 << self.attempts.min(10));
        let longest = longest.min(RECONNECT_PAUSE_MAX);
        longest.mul_f32(self.random.rand_float())
    }

    fn peer_lives(&mut self, generation: u32) {
        let known = self.peer_generation.replace(generation);
        if known.is_some_and(|known| known != generation) {
            self.counts.peer_restarts += 1;
            self.receive.restart();
        }
    }

    fn handle_ack(&mut self, ack: u64) {
        let events = &mut self.events;
        let pongs = &mut self.pongs;
        self.transmit.acked(ack, |source, len| match source {
            PING_PORT => *pongs = pongs.saturating_sub(1),
            source => events.push_back(Event::Acked { source, len }),
        });
    }

    /// Pings are answered here, all else goes to sockets.
    fn deliver(&mut self, incoming: Incoming) {
        if incoming.destination != PING_PORT {
            self.events.push_back(Event::Datagram(incoming));
            return;
        }
        if incoming.source == PING_PORT {
            return;
        }
        if self.pongs >= PONGS_MAX {
            self.counts.pings_dropped += 1;
            return;
        }
        self.pongs += 1;
        let mut extensions = Extensions::default();
        if incoming.source == PROBE_PORT {
            extensions = Extensions::one(Extension::Paths(1));
            // Both take eight bytes.
            let _fits = extensions.push(Extension::Generation(self.terms.generation));
        }
        self.transmit.push(Outgoing {
            source: PING_PORT,
            destination: incoming.source,
            payload: Arc::from([]),
            ack_required: self.pongs * 2 > PONGS_MAX,
            extensions,
            rdma: None,
        });
    }

    /// Completes a header: acknowledgement and credits travel with everything.
    fn finish(
        &mut self,
        header: Header,
        message: Arc<[u8]>,
        range: std::ops::Range<usize>,
    ) -> Packet {
        self.ack_due = false;
        self.counts.packets += 1;
        let header = Header {
            ack: self.receive.ack(),
            credit: self.credits.grant(),
            ..header
        };
        Packet {
            header: header.emit(),
            message,
            range,
            control: false,
            rdma: None,
        }
    }

    fn message(&mut self) -> Option<Packet> {
        if !self.credits.take(false) {
            return None;
        }
        let (header, message, range, rdma) = self.transmit.next()?;
        let packet = self.finish(header, message, range);
        Some(Packet { rdma, ..packet })
    }

    fn map(&mut self) -> Option<Packet> {
        let (map, offset) = match self.map_sending.take() {
            Some(sending) => sending,
            None => (self.map_due.take()?, 0),
        };
        if !self.credits.take(false) {
            match offset {
                0 => self.map_due = Some(map),
                _ => self.map_sending = Some((map, offset)),
            }
            return None;
        }
        let end = map.len().min(offset + FRAGMENT_LEN);
        if end < map.len() {
            self.map_sending = Some((Arc::clone(&map), end));
        }
        let header = Header {
            len: map.len() as u32,
            flags: HeaderFlags::CONGESTION,
            ..Header::default()
        };
        Some(self.finish(header, map, offset..end))
    }

    fn control(&mut self, extensions: Extensions) -> Option<Packet> {
        if !self.credits.take(true) {
            return None;
        }
        self.control_in_flight = true;
        let header = Header {
            extensions,
            ..Header::default()
        };
        let packet = self.finish(header, Arc::from([]), 0..0);
        Some(Packet {
            control: true,
            ..packet
        })
    }
}
