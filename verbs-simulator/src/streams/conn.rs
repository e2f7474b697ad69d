//! A connection: what is under way in each direction, and what each end has not read.

use std::collections::VecDeque;
use std::net::SocketAddr;

use verbs_link::stream::{Interest, Token};
use verbs_link::time::Instant;

/// See the module's documentation. End 0 has connected.
pub(super) struct Conn {
    pub(super) addresses: [SocketAddr; 2],
    /// The host of each end, and its owner then; none is that of a stranger.
    pub(super) hosts: [Option<(usize, u64)>; 2],
    ends: [End; 2],
}

/// One end, with what it has sent.
struct End {
    /// There is a socket.
    is_open: bool,
    /// The connection is there, as far as this end knows.
    is_connected: bool,
    watch: Option<(Token, Interest)>,
    /// What has come and was not read.
    inbox: VecDeque<u8>,
    /// The peer sends nothing further.
    is_ended: bool,
    /// The connection is lost.
    is_reset: bool,
    /// What is under way to the peer, and when it arrives.
    flight: VecDeque<(Instant, Item)>,
    /// Bytes that were sent and not read.
    unread: usize,
    /// It sends nothing further.
    is_finished: bool,
    /// A fault swallows what it sends.
    is_muted: bool,
    /// It has answered with a reset.
    has_reset: bool,
}

/// What one end sends to the other.
pub(super) enum Item {
    /// It asks for the connection.
    Syn,
    /// The connection is there.
    Accepted,
    Bytes(Vec<u8>),
    /// Nothing further.
    End,
    /// The connection is lost, or refused.
    Reset,
}

impl End {
    fn new(is_open: bool) -> Self {
        Self {
            is_open,
            is_connected: false,
            watch: None,
            inbox: VecDeque::new(),
            is_ended: false,
            is_reset: false,
            flight: VecDeque::new(),
            unread: 0,
            is_finished: false,
            is_muted: false,
            has_reset: false,
        }
    }
}

/// What a read finds.
pub(super) enum Found {
    Bytes(usize),
    End,
    Nothing,
    Reset,
}

impl Conn {
    pub(super) fn new(host: Option<(usize, u64)>, peer: usize, addresses: [SocketAddr; 2]) -> Self {
        Self {
            addresses,
            hosts: [host, Some((peer, 0))],
            ends: [End::new(host.is_some()), End::new(false)],
        }
    }

    /// The peer's host takes the connection in.
    pub(super) fn welcome(&mut self, owner: u64) {
        if let Some((_, known)) = &mut self.hosts[1] {
            *known = owner;
        }
        (self.ends[1].is_open, self.ends[1].is_connected) = (true, true);
    }

    /// Lets something arrive, not before what was sent before it. Returns when.
    pub(super) fn launch(&mut self, end: usize, now: Instant, at: Instant, item: Item) -> Instant {
        let from = &mut self.ends[end];
        let last = from.flight.back().map_or(now, |(at, _)| *at);
        let at = at.max(last);
        if !from.is_muted || matches!(item, Item::Reset) {
            from.flight.push_back((at, item));
        }
        at
    }

    /// The next thing that was sent from there and has arrived.
    pub(super) fn landed(&mut self, from: usize, now: Instant) -> Option<Item> {
        let flight = &mut self.ends[from].flight;
        flight
            .pop_front_if(|(at, _)| *at <= now)
            .map(|(_, item)| item)
    }

    /// Something has arrived at that end.
    pub(super) fn arrive(&mut self, to: usize, item: Item) {
        let end = &mut self.ends[to];
        match item {
            Item::Bytes(bytes) if end.is_open && !end.is_reset => end.inbox.extend(bytes),
            Item::Bytes(_) | Item::Syn => {}
            Item::Accepted => end.is_connected = true,
            Item::End => end.is_ended = true,
            Item::Reset => end.is_reset = true,
        }
    }

    pub(super) fn is_open(&self, end: usize) -> bool {
        self.ends[end].is_open
    }

    /// Whether a reset is to be sent from that end: once, and not as an answer to one.
    pub(super) fn reset_once(&mut self, end: usize) -> bool {
        let end = &mut self.ends[end];
        !std::mem::replace(&mut end.has_reset, true) && !end.is_reset
    }

    /// Nothing that is under way from that end arrives.
    pub(super) fn abort(&mut self, end: usize) {
        self.ends[end].flight.clear();
        self.ends[end].has_reset = true;
    }

    /// Nothing that is sent from that end from now on arrives.
    pub(super) fn mute(&mut self, end: usize) {
        self.ends[end].is_muted = true;
    }

    /// Reads what has come at that end.
    pub(super) fn read(&mut self, end: usize, into: &mut [u8]) -> Found {
        let at = &mut self.ends[end];
        let count = at.inbox.len().min(into.len());
        if count != 0 {
            for (to, byte) in into.iter_mut().zip(at.inbox.drain(..count)) {
                *to = byte;
            }
            let sender = &mut self.ends[1 - end];
            sender.unread = sender.unread.saturating_sub(count);
            return Found::Bytes(count);
        }
        match (at.is_reset, at.is_ended) {
            (true, _) => Found::Reset,
            (false, true) => Found::End,
            (false, false) => Found::Nothing,
        }
    }

    /// Whether bytes wait at that end.
    pub(super) fn has_bytes(&self, end: usize) -> bool {
        !self.ends[end].inbox.is_empty()
    }

    /// How many bytes that end may send; `Err` if none ever again.
    pub(super) fn room(&self, end: usize, window: usize) -> Result<usize, std::io::ErrorKind> {
        let from = &self.ends[end];
        if from.is_reset {
            return Err(std::io::ErrorKind::ConnectionReset);
        }
        if from.is_finished {
            return Err(std::io::ErrorKind::BrokenPipe);
        }
        if !from.is_connected {
            return Ok(0);
        }
        Ok(window.saturating_sub(from.unread))
    }

    /// Bytes leave. What is swallowed is never read, and takes no room.
    pub(super) fn sent(&mut self, end: usize, count: usize) {
        if !self.ends[end].is_muted {
            self.ends[end].unread += count;
        }
    }

    /// Whether a connect has ended: `Err` if there is no connection.
    pub(super) fn is_connected(&self, end: usize) -> Result<bool, std::io::ErrorKind> {
        let at = &self.ends[end];
        match (at.is_connected, at.is_reset) {
            (false, true) => Err(std::io::ErrorKind::ConnectionRefused),
            (is_connected, _) => Ok(is_connected),
        }
    }

    /// What that socket is waited for. Whether that is new.
    pub(super) fn watch(&mut self, end: usize, token: Token, interest: Interest) -> bool {
        let watch = Some((token, interest));
        std::mem::replace(&mut self.ends[end].watch, watch) != watch
    }

    /// The name of the socket of that end, if it has what it is waited for.
    pub(super) fn ready(&self, end: usize, owner: u64, window: usize) -> Option<Token> {
        let at = &self.ends[end];
        let (token, interest) = at.watch.filter(|_| at.is_open)?;
        let is_owned = self.hosts[end].is_some_and(|(_, known)| known == owner);
        let comes = !at.inbox.is_empty() || at.is_ended || at.is_reset;
        let goes = at.is_reset || at.is_connected && at.unread < window;
        let has = match interest {
            Interest::Nothing => false,
            Interest::Send => goes,
            Interest::Receive => comes,
            Interest::Both => comes || goes,
        };
        (is_owned && has).then_some(token)
    }

    /// That end sends nothing further. Whether it did before.
    pub(super) fn finish(&mut self, end: usize) -> bool {
        std::mem::replace(&mut self.ends[end].is_finished, true)
    }

    /// The socket of that end is closed. What the peer is to be sent.
    pub(super) fn close(&mut self, end: usize) -> Option<Item> {
        let was_finished = self.finish(end);
        let at = &mut self.ends[end];
        (at.is_open, at.watch) = (false, None);
        let has_unread = !std::mem::take(&mut at.inbox).is_empty();
        if has_unread {
            return self.reset_once(end).then_some(Item::Reset);
        }
        (!was_finished && !at.is_reset).then_some(Item::End)
    }

    /// Neither end has a socket, and nothing is under way.
    pub(super) fn is_over(&self) -> bool {
        self.ends
            .iter()
            .all(|end| !end.is_open && end.flight.is_empty())
    }
}
