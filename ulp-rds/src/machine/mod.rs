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
mod probe;
mod receive;
mod state;
mod terms;
#[cfg(test)]
mod tests;
mod transmit;
mod turn;

use std::collections::VecDeque;
use std::time::Duration;

use oorandom::Rand32;
use verbs_core::time::Instant;

use self::credits::Credits;
use self::probe::Probe;
use self::receive::{Receive, Whole};
use self::transmit::{Life, Transmit};
use self::turn::Turn;
use crate::payload::Payload;
use crate::wire::{
    CongestionMap, Handshake, Header, HeaderError, HeaderFlags, PING_PORT, PROBE_PORT, Version,
};

pub use self::message::{Arrived, Event, Incoming, Outgoing, Packet, RdmaWork, Short};
pub use self::probe::PONGS_MAX;
pub use self::receive::Fault;
pub use self::state::State;
pub use self::terms::{ACK_INTERVAL_MAX, Asked, Counts, Refusal, Terms};

/// The longest pause before a connection is asked for again.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pause before the second attempt; the first comes at once.
const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(1);

/// One connection.
#[derive(Debug)]
pub struct Machine {
    terms: Terms,
    state: State,
    /// Whether this end asked for the connection.
    is_own: bool,
    transmit: Transmit,
    receive: Receive,
    credits: Credits,
    /// Acknowledgements: whether the peer waits for one, and whether one is in flight.
    ack_due: bool,
    control_in_flight: bool,
    /// The peer is to be told the number of this life.
    announce: bool,
    peer_generation: Option<u32>,
    probe: Probe,
    /// The map that is to be sent, the one that is being sent with how much of it, and the peer's.
    map_due: Option<Box<[u8]>>,
    map_sending: Option<(Box<[u8]>, usize)>,
    peer_map: CongestionMap,
    pongs: usize,
    events: VecDeque<Event>,
    attempts: u32,
    retry_at: Instant,
    random: Rand32,
    counts: Counts,
}

impl Machine {
    /// A connection that is down.
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            state: State::Down,
            is_own: false,
            transmit: Transmit::new(terms.ack_interval),
            receive: Receive::default(),
            credits: Credits::default(),
            ack_due: false,
            control_in_flight: false,
            announce: false,
            peer_generation: None,
            probe: Probe::None,
            map_due: None,
            map_sending: None,
            peer_map: CongestionMap::default(),
            pongs: 0,
            events: VecDeque::new(),
            attempts: 0,
            retry_at: Instant::ZERO,
            random: Rand32::new(terms.seed),
            counts: Counts::default(),
        }
    }

    /// Queues a message. The caller bounds what a socket may have queued.
    pub fn send(&mut self, message: Outgoing) {
        self.transmit.push(message);
    }

    /// Sends a message of one packet at once, if nothing is to be transmitted before it: yields its header. The caller posts it
    /// from a slot, and keeps that as it is until it comes out of [`poll_released`](Self::poll_released) or the connection is
    /// [`lost`](Self::lost). `None`: it is to be queued with [`send`](Self::send).
    #[inline]
    pub fn transmit_now(&mut self, message: &Short, slot: u32) -> Option<[u8; Header::LEN]> {
        if !self.is_quiet() || !self.credits.take(false) {
            return None;
        }
        let (ack, credit) = self.rides();
        let header = self.transmit.keep(message, slot);
        let header = Header {
            ack,
            credit,
            ..header
        };
        Some(header.emit())
    }

    /// Whether there is something to transmit, to release or to tell, as far as one look can tell.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.has_turn() && self.events.is_empty() && !self.transmit.has_released()
    }

    /// A slot whose message is done with.
    #[inline]
    pub fn poll_released(&mut self) -> Option<u32> {
        self.transmit.released()
    }

    /// Takes back messages of a socket that were not acknowledged, to one port or to all. Yields how many, and their
    /// bytes. The peer may have got them.
    pub fn cancel(&mut self, source: u16, destination: Option<u16>) -> (usize, usize) {
        self.transmit.cancel(source, destination)
    }

    /// The congestion map of the address here has changed.
    pub fn congestion_changed(&mut self, map: &CongestionMap) {
        self.map_due = Some(Box::from(&map.bytes()[..]));
    }

    /// Begins an attempt: yields what the request says. `None` unless the connection is down.
    pub fn connect(&mut self) -> Option<Handshake> {
        let is_begun = self.step(State::Connecting);
        self.is_own |= is_begun;
        is_begun.then(|| self.handshake())
    }

    /// The peer asks for a connection, or somebody in its name: nothing changes before that connection is established. The caller
    /// answers, and keeps the request for [`supersede`](Self::supersede).
    ///
    /// If both ends ask at once, the request of the lower address is the one that is answered.
    ///
    /// # Errors
    /// [`Refusal::Busy`].
    pub fn asked(&mut self) -> Result<Asked, Refusal> {
        if self.state == State::Connecting && self.terms.has_precedence() {
            self.counts.refused += 1;
            return Err(Refusal::Busy);
        }
        Ok(Asked {
            answer: self.handshake(),
            connects: self.counts.connects,
        })
    }

    /// A connection that the peer asked for is established. It takes the place of the one that there is, which the peer has lost:
    /// the caller takes that queue pair down, or gives its attempt up, calls [`lost`](Self::lost) and then
    /// [`accept`](Self::accept).
    ///
    /// # Errors
    /// [`Refusal::Older`]: nothing changes, and the caller closes the new one.
    pub fn supersede(&mut self, asked: &Asked) -> Result<(), Refusal> {
        if self.state != State::Up {
            return Ok(());
        }
        let is_older = asked.connects < self.counts.connects;
        // Both ends decide the same: of two that were asked for at once, the lower address's stays.
        let crosses_and_wins = self.is_own && !self.terms.has_precedence();
        if is_older && !crosses_and_wins {
            self.counts.refused += 1;
            return Err(Refusal::Older);
        }
        self.step(State::Error);
        Ok(())
    }

    /// Takes a connection that the peer asked for and that is established: [`established`](Self::established) is to follow.
    /// Returns whether the connection was down.
    pub fn accept(&mut self) -> bool {
        let is_down = self.step(State::Connecting);
        self.is_own &= !is_down;
        is_down
    }

    /// The connection is made, and the peer has said this; `map` is the congestion map of the address here.
    pub fn established(&mut self, peer: &Handshake, map: &CongestionMap) {
        if !self.step(State::Up) {
            return;
        }
        self.counts.connects += 1;
        self.attempts = 0;
        self.credits = Credits::new(peer.credits, self.terms.receives);
        let life = match peer.acked_life {
            0 => Life::Unknown,
            number if number == self.terms.generation => Life::This,
            _ => Life::Other,
        };
        self.transmit.peer_has(peer.ack, life);
        self.handle_ack(peer.ack);
        self.announce = true;
        // The peer may hold a map of an earlier connection, or of an earlier life of this node.
        let is_new = self.counts.connects > 1 || map.count() > 0;
        self.map_due = is_new.then(|| Box::from(&map.bytes()[..]));
    }

    /// Gives the queue pair up: the caller takes it down and calls [`lost`](Self::lost).
    pub fn fail(&mut self) {
        self.step(State::Error);
    }

    /// The queue pair is gone, or was never made. `copy` yields the message of so many bytes that was kept in a slot.
    pub fn lost(&mut self, now: Instant, copy: impl FnMut(u32, usize) -> Payload) {
        if self.state == State::Down {
            return;
        }
        self.counts.losses += u64::from(self.state != State::Connecting);
        self.step(State::Error);
        self.step(State::Disconnecting);
        self.step(State::Down);
        for (source, len) in self.transmit.lost(copy) {
            settle(&mut self.events, source, 1, len);
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

    /// A packet has come, of which this is the header, with so many bytes of payload behind it. Whether that is all of a new message
    /// for a socket, without extension headers, as most are: the caller takes the payload. `false`: nothing has happened, and
    /// [`handle_packet`](Self::handle_packet) is due.
    #[inline]
    pub fn handle_single(&mut self, header: &Header, payload: usize) -> bool {
        let is_for_socket = header.source != PING_PORT && header.destination != PING_PORT;
        if !is_for_socket || !header.extensions.is_empty() || !self.receive.single(header, payload)
        {
            return false;
        }
        self.credits.granted(header.credit);
        self.ack_due |= header.flags.contains(HeaderFlags::ACK_REQUIRED);
        self.counts.received += 1;
        self.handle_ack(header.ack);
        true
    }

    /// A packet has come. Yields the message that it completes, if that is one for a socket. Its receive buffer is posted again
    /// by the caller, who says so with [`receives_posted`](Self::receives_posted). `room` makes an empty payload with room for
    /// so many bytes, for a message that begins.
    ///
    /// # Errors
    /// [`Fault`]: the caller takes the queue pair down and calls [`lost`](Self::lost).
    pub fn handle_packet(
        &mut self,
        packet: &(impl Arrived + ?Sized),
        room: impl FnOnce(usize) -> Payload,
    ) -> Result<Option<Incoming>, Fault> {
        let mut bytes = [0; Header::LEN];
        let read = packet.read(0, &mut bytes);
        read.ok_or(HeaderError::Short(packet.len()))?;
        let header = Header::parse(&bytes)?;
        self.credits.granted(header.credit);
        if !header.extensions.is_empty() {
            probe::heard(self, &header.extensions);
        }
        let mut whole = None;
        if !header.is_control() || header.flags.contains(HeaderFlags::CONGESTION) {
            whole = self.handle_payload(&header, packet, room)?;
        }
        // After the payload, which may say that the peer has heard of this life.
        self.handle_ack(header.ack);
        Ok(whole)
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
    #[inline]
    pub fn poll_transmit(&mut self) -> Option<Packet<'_>> {
        if !self.has_turn() {
            return None;
        }
        match self.choose()? {
            Turn::Message => self.message(),
            Turn::Map => self.map(),
            Turn::Control(extensions) => Some(self.control(extensions)),
        }
    }

    /// What has happened, one after the other.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When a connection is to be asked for; `None` while nothing is to be sent or one is there.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let wanted = self.transmit.len() > 0 && self.state == State::Down;
        wanted.then_some(self.retry_at)
    }

    /// Where the connection stands.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the peer's port is congested.
    #[inline]
    pub fn is_congested(&self, port: u16) -> bool {
        self.peer_map.is_congested(port)
    }

    /// Messages that are queued, those that wait for an acknowledgement among them.
    pub fn queued(&self) -> usize {
        self.transmit.len()
    }

    /// Whether nothing would be lost with it: it is down, and no socket has anything queued.
    pub fn is_forgettable(&self) -> bool {
        self.state == State::Down && !self.transmit.has_message_of_socket()
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
            acked_life: self.peer_generation.unwrap_or(0),
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

    fn handle_payload(
        &mut self,
        header: &Header,
        packet: &(impl Arrived + ?Sized),
        room: impl FnOnce(usize) -> Payload,
    ) -> Result<Option<Incoming>, Fault> {
        let whole = self.receive.fragment(header, packet, room)?;
        self.ack_due |= header.flags.contains(HeaderFlags::ACK_REQUIRED);
        match whole {
            Whole::Nothing => {}
            Whole::Message(incoming) => {
                self.counts.received += 1;
                return Ok(probe::receive_message(self, incoming));
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
        Ok(None)
    }

    #[inline]
    fn handle_ack(&mut self, ack: u64) {
        if self.transmit.is_news(ack) {
            self.handle_new_ack(ack);
        }
    }

    fn handle_new_ack(&mut self, ack: u64) {
        let events = &mut self.events;
        let (pongs, probe) = (&mut self.pongs, &mut self.probe);
        self.transmit
            .acked(ack, |source, messages, bytes| match source {
                PING_PORT => *pongs = pongs.saturating_sub(messages),
                PROBE_PORT => *probe = Probe::Taken,
                source => settle(events, source, messages, bytes),
            });
    }
}

/// Messages of that socket are done with. Several one after the other are one event.
fn settle(events: &mut VecDeque<Event>, socket: u16, more: usize, len: usize) {
    if let Some(Event::Acked {
        source,
        messages,
        bytes,
    }) = events.back_mut()
        && *source == socket
    {
        *messages += more;
        *bytes += len;
        return;
    }
    events.push_back(Event::Acked {
        source: socket,
        messages: more,
        bytes: len,
    });
}
