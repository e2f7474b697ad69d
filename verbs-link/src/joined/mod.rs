//! A port whose addresses belong to a daemon of the host: several processes share them.
//!
//! The daemon delivers a packet to the process that has its queue pair number: numbers are leased from it in blocks.
//! Packets of the network pass through the daemon in both directions, over a Unix socket, unless it gives the process
//! sockets of its own (`wire`). Between two processes of the host they do so only at first: with the first one, the
//! daemon is asked for a *channel*, memory that the two share, and from then on they talk without the daemon, and without
//! system calls while both are awake.
//!
//! Long packets, which are sent to neighbours only, are copied once into the memory and once out of it.
//!
//! A channel never reorders packets against those that were sent through the daemon before, and a neighbour that
//! writes nonsense to it, stops reading, or dies at any moment harms no connection but its own.

mod line;
mod list;
mod near;
mod outbound;
mod packet;
mod rejoin;
#[cfg(all(test, not(verbs_loom)))]
mod tests;
mod waiter;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};
use verbs_core::host::channel::FEATURE;
use verbs_core::host::message::{
    FEATURES, Hello, MESSAGE_MAX, No, PACKETS_MAX, Packets, PortNews, Token, VERSION,
    VERSION_LEAST, Welcome,
};
use verbs_core::host::{Block, Channel as ChannelNews, HostPorts, Malformed, Message, Quota};
use verbs_core::mem::{Unmapped, Window};
use verbs_core::sync::Arc;
use verbs_core::{Mtu, Qpn};

use crate::rng::system_entropy;
use crate::sys::{self, BATCH_MAX, Slot};
use crate::time::Clock;
use crate::{
    Arrival, Burst, Change, Feedback, FillWindow, LinkCounters, LongPacket, PacketLink, Refusal,
    Route, Sent, Waiter,
};

pub use self::list::clients_of;
pub use self::near::channel::channel_files;
pub use self::near::inbound::{Bounds, Inbound, Taken};
pub use self::packet::arrived;

use self::line::Line;
use self::near::channel::Channel;
use self::near::channels::{Channels, Ended, Path};
use self::near::inbound::BURST;
use self::packet::{hand_up, hand_up_long, numbers_of};
use self::rejoin::Tie;
use self::waiter::{LOOKS, LineWaiter};
use self::wire::Wire;

/// The most datagrams that one call of `receive` takes.
const TURNS: usize = 4;

/// The buffer size that is requested for the socket, in bytes; the system may grant less.
const SOCKET_BYTES: usize = 1 << 20;

/// How long a daemon may take to answer the first message; a stopped daemon never does.
const PATIENCE: Duration = Duration::from_secs(5);

/// The process could not become a client of the host's daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The daemon does not answer.
    #[error("the host's daemon does not answer: {0}")]
    Socket(io::Error),
    /// It refuses.
    #[error("the host's daemon refuses: {0}")]
    Refused(No),
    /// Its answer makes no sense.
    #[error("the host's daemon does not answer as it should: {0}")]
    Malformed(Malformed),
    /// It has sent another message first.
    #[error("the host's daemon does not answer as it should: it says something else first")]
    Unexpected,
}

impl From<io::Error> for JoinError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl From<Malformed> for JoinError {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

/// A port of the host's daemon, as a link.
///
/// When the daemon ends, the link goes down for good, or looks for the next one: see [`Joined::rejoins`].
///
/// # Context
/// As [`PacketLink`] says.
#[derive(Debug)]
pub struct Joined {
    line: Arc<Line>,
    /// The line's socket.
    socket: Arc<OwnedFd>,
    tie: Tie,
    waiter: Arc<LineWaiter>,
    port: PortNews,
    /// The groups that it is in, and how often.
    groups: BTreeMap<IpAddr, u32>,
    numbers: Vec<Range<u32>>,
    /// A further block was requested, and there is no answer yet; or there are none left.
    asks: bool,
    changes: VecDeque<Change>,
    gone: VecDeque<Range<u32>>,
    slots: Vec<Slot>,
    /// The datagram that is being sent.
    datagram: Vec<u8>,
    channels: Channels,
    wire: Wire,
    /// The daemon makes channels.
    has_channels: bool,
    /// Calls of `receive` that look at the line.
    looks: u32,
    counters: LinkCounters,
}

fn failed(error: Errno) -> JoinError {
    JoinError::Socket(error.into())
}

/// A process that has asked to become a client of the daemon, and has no answer yet.
#[derive(Debug)]
pub struct Joining {
    socket: Arc<OwnedFd>,
    name: String,
}

/// What has come of asking the daemon.
#[derive(Debug)]
pub enum Answer {
    /// The process is a client.
    Joined(Box<Joined>),
    /// There is no answer yet.
    Waits(Joining),
}

impl Joining {
    /// As [`Joined::join`], which also waits for the answer.
    ///
    /// # Errors
    /// [`JoinError::Socket`].
    pub fn ask(socket: OwnedFd, addresses: &[IpAddr], name: &str) -> Result<Self, JoinError> {
        give_room(&socket);
        let hello = Message::Hello(Hello {
            lowest: VERSION_LEAST,
            highest: VERSION,
            features: FEATURES,
            addresses: addresses.to_vec(),
            name: name.to_owned(),
            token: Token::default(),
            blocks: Vec::new(),
        });
        line::send(&socket, &hello.encode()).map_err(failed)?;
        Ok(Self {
            socket: Arc::new(socket),
            name: name.to_owned(),
        })
    }

    /// The daemon's answer, if it is there. Does not wait.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn answer(self) -> Result<Answer, JoinError> {
        let mut answer = vec![0; MESSAGE_MAX];
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.socket, &mut answer, RecvFlags::DONTWAIT)
        });
        let len = match received {
            Ok((0, _)) => return Err(failed(Errno::CONNRESET)),
            Ok((len, _)) => len,
            Err(Errno::AGAIN) => return Ok(Answer::Waits(self)),
            Err(error) => return Err(failed(error)),
        };
        let welcome = match Message::decode(&answer[..len])? {
            Message::Welcome(welcome) => welcome,
            Message::No(no) => return Err(JoinError::Refused(no)),
            _ => return Err(JoinError::Unexpected),
        };
        Joined::welcomed(self, welcome).map(|link| Answer::Joined(Box::new(link)))
    }
}

impl Joined {
    fn welcomed(Joining { socket, name }: Joining, welcome: Welcome) -> Result<Self, JoinError> {
        let block = Block::new(welcome.block).ok_or(JoinError::Unexpected)?;
        Ok(Self {
            waiter: Arc::new(LineWaiter::new(&socket).map_err(failed)?),
            line: Arc::new(Line::new(Arc::clone(&socket))),
            socket,
            tie: Tie::new(&name, welcome.token),
            port: welcome.port,
            groups: BTreeMap::new(),
            numbers: vec![numbers_of(block)],
            asks: false,
            changes: VecDeque::new(),
            gone: VecDeque::new(),
            slots: (0..BATCH_MAX).map(|_| Slot::new()).collect(),
            datagram: Vec::with_capacity(MESSAGE_MAX),
            channels: Channels::new(),
            wire: Wire::default(),
            has_channels: welcome.features & FEATURE != 0,
            looks: LOOKS,
            counters: LinkCounters::default(),
        })
    }

    /// Becomes a client of the daemon at the other end of a Unix socket of type seqpacket, if its port has all of these
    /// addresses. `name` identifies the process in lists.
    ///
    /// Waits for the daemon's answer, which comes at once.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(socket: OwnedFd, addresses: &[IpAddr], name: &str) -> Result<Self, JoinError> {
        let joining = Joining::ask(socket, addresses, name)?;
        let patience = Timespec::try_from(PATIENCE).map_err(|_| JoinError::Unexpected)?;
        let mut polled = [PollFd::new(&joining.socket, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&patience)));
        if ready.map_err(failed)? == 0 {
            return Err(failed(Errno::TIMEDOUT));
        }
        match joining.answer()? {
            Answer::Joined(link) => Ok(*link),
            // It was there, and nobody else reads it.
            Answer::Waits(_) => Err(JoinError::Unexpected),
        }
    }

    /// With that clock instead of the machine's, as in virtual time.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        let clock = clock.into();
        self.channels.clock = clock.clone();
        self.tie.clock = clock;
        self
    }

    /// Takes a message of the daemon, and the files that came with it. False if it made no sense.
    fn take(&mut self, message: &Message<'_>, files: Vec<OwnedFd>) -> bool {
        if self.tie.is_asked() {
            self.answered(message);
            return true;
        }
        match message {
            Message::Port(port) => self.follow(port),
            Message::Leased(_, leased) => {
                let block = leased.ok().and_then(Block::new);
                // A client that is refused does not ask again: what it may have does not change.
                self.asks = block.is_none();
                self.numbers.extend(block.map(numbers_of));
            }
            Message::Listening(tag, result) => self.line.listening(*tag, *result),
            Message::Gone(blocks) => {
                let blocks = blocks.iter().filter_map(|&block| Block::new(block));
                let blocks: Vec<_> = blocks.collect();
                let (gone, opened) = self.channels.end_blocks(&blocks);
                self.gone.extend(gone.into_iter().map(numbers_of));
                for (number, packets) in opened {
                    self.waiter.watch(number, packets);
                }
            }
            Message::NoChannel(block) => {
                Block::new(*block)
                    .into_iter()
                    .for_each(|block| self.channels.refuse(block));
            }
            Message::Channel(news) => self.open_channel(news, files),
            Message::Socket(address) => {
                // The system passes none on if too many are under way.
                if let Some(socket) = files.into_iter().next() {
                    self.wire.add(*address, socket, &self.waiter);
                }
            }
            Message::ChangedOver(number) => {
                if let Some(channel) = self.channels.get_mut(*number) {
                    channel.is_open = true;
                    self.waiter.watch(*number, channel.watch());
                }
            }
            // Not an answer to anything that this process has asked.
            Message::Done(..) | Message::Event(_) => {}
            _ => return false,
        }
        true
    }

    /// What the port is from now on.
    fn follow(&mut self, port: &PortNews) {
        if port.addresses != self.port.addresses {
            self.changes.push_back(Change::Addresses);
            self.wire.keep(&port.addresses, &self.waiter);
        }
        if port.is_up != self.port.is_up {
            let change = if port.is_up { Change::Up } else { Change::Down };
            self.changes.push_back(change);
        }
        self.port = port.clone();
    }

    /// There is a channel, or one has further blocks at its other end. A number that a channel of the last daemon has is
    /// not used.
    fn open_channel(&mut self, news: &ChannelNews, files: Vec<OwnedFd>) {
        if news.is_new
            && self.channels.get_mut(news.number).is_none()
            && let Some(channel) = Channel::open(news, files)
            && self.waiter.add(channel.number, channel.bell()).is_ok()
        {
            self.channels.add(channel);
            self.line.say(&Message::ChangedOver(news.number));
        }
        let blocks: Vec<_> = news
            .blocks
            .iter()
            .filter_map(|&block| Block::new(block))
            .collect();
        // Without memory for it, packets go through the daemon; the neighbour learns that from the bell's end.
        self.channels.name_blocks(news.number, &blocks);
    }

    /// A channel has ended.
    fn end_channel(&mut self, end: Ended) {
        end.number
            .into_iter()
            .for_each(|number| self.waiter.remove(number));
        if end.is_broken {
            self.counters.receive_errors += 1;
            if let Some(block) = end.gone.first() {
                self.line.say(&Message::Broken(block.number()));
            }
        }
        self.gone.extend(end.gone.into_iter().map(numbers_of));
    }

    /// Receives from neighbours. Returns how many packets came.
    fn receive_near(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let mut ended = Vec::new();
        if let Some(all) = self.waiter.take_heard() {
            for heard in all.into_values() {
                ended.extend(self.channels.heard(&heard));
            }
        }
        let bounds = Bounds {
            addresses: &self.port.addresses,
            numbers: &self.numbers,
        };
        // Without a daemon, only the end of a neighbour's bell tells that it has gone.
        self.channels.ends_blocks = self.tie.is_cut();
        let mut hand = |packets: &Packets<'_>, payload: Option<Window<'_>>| match payload {
            None => drop(hand_up(packets, true, sink)),
            Some(payload) => hand_up_long(packets, payload, sink),
        };
        let packets = self.channels.read(&bounds, &mut hand, &mut ended);
        ended.into_iter().for_each(|end| self.end_channel(end));
        self.counters.shared_received += packets as u64;
        self.counters.receive_errors += std::mem::take(&mut self.channels.refused);
        packets
    }

    /// Receives from the daemon. Returns how many packets came.
    fn receive_line(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let mut packets = 0;
        for turn in 1..=TURNS {
            // Descriptors are closed on `exec`.
            let received =
                sys::receive(self.socket.as_fd(), &mut self.slots, libc::MSG_CMSG_CLOEXEC);
            let count = match received {
                Ok(count) => count,
                Err(error) => {
                    match error.kind() {
                        // What the daemon has said before follows.
                        io::ErrorKind::ConnectionReset if turn < TURNS => continue,
                        io::ErrorKind::WouldBlock => {}
                        io::ErrorKind::Interrupted => self.waiter.leave_line(),
                        _ => self.lose(),
                    }
                    break;
                }
            };
            self.looks = LOOKS;
            match self.hand_up(count, sink) {
                Some(came) => packets += came,
                None => {
                    self.lose();
                    break;
                }
            }
            if count < self.slots.len() {
                break;
            }
            if turn == TURNS {
                self.waiter.leave_line();
            }
        }
        packets
    }

    /// Hands up the datagrams of a turn. Returns how many packets those were, or `None` if the daemon has ended.
    fn hand_up(&mut self, count: usize, sink: &mut dyn FnMut(&Arrival<'_>)) -> Option<usize> {
        let mut slots = std::mem::take(&mut self.slots);
        let mut packets = Some(0);
        for slot in &mut slots[..count] {
            let files = slot.take_files();
            if slot.bytes().is_empty() {
                packets = None;
                break;
            }
            match Message::decode(slot.bytes()) {
                Ok(Message::Packets(burst)) => {
                    packets = packets.map(|packets| packets + hand_up(&burst, false, sink));
                }
                Ok(message) if self.take(&message, files) => self.waiter.wake(),
                Ok(_) | Err(_) => self.counters.receive_errors += 1,
            }
        }
        self.slots = slots;
        packets
    }
}

/// Asks the system for large buffers.
fn give_room(socket: &OwnedFd) {
    for set in [
        sockopt::set_socket_send_buffer_size,
        sockopt::set_socket_recv_buffer_size,
    ] {
        // With smaller buffers it is slower.
        let _ = set(socket, SOCKET_BYTES);
    }
}

impl PacketLink for Joined {
    fn addresses(&self) -> &[IpAddr] {
        &self.port.addresses
    }

    fn mtu(&self) -> Mtu {
        self.port.mtu
    }

    /// Packets that leave the host through the daemon are sent one by one.
    fn burst_limit(&self, route: &Route) -> usize {
        match self.port.addresses.contains(&route.dst) {
            true => BURST,
            false => self.wire.burst_limit(route).unwrap_or(1),
        }
    }

    fn burst_bytes(&self) -> usize {
        PACKETS_MAX
    }

    fn seals(&self, route: &Route, dest: Qpn) -> bool {
        let is_near = self.port.addresses.contains(&route.dst);
        !(is_near && self.channels.channel_of(Block::of(dest)).is_some())
    }

    fn take_long(&mut self) {
        self.channels.take_long();
    }

    fn longest(&mut self, route: &Route, dest: Qpn) -> Option<usize> {
        let is_near = self.port.addresses.contains(&route.dst);
        let block = Block::of(dest).filter(|_| is_near);
        self.channels.longest(block)
    }

    fn transmit_long(
        &mut self,
        packet: &LongPacket<'_>,
        fill: FillWindow<'_>,
    ) -> Result<Sent, Unmapped> {
        self.transmit_near_long(packet, fill)
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        match self.port.addresses.contains(&burst.route.dst) {
            true if self.has_channels => self.transmit_near(burst),
            true => self.transmit_run(Path::Daemon, burst, 0),
            false => self.transmit_far(burst),
        }
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let mut packets = 0;
        if self.tie.is_cut() {
            self.look_for_daemon();
        }
        // In any case: no thread sleeps before.
        let has_said = self.waiter.take_line();
        if !self.tie.is_alone() && (has_said || self.looks > 0) {
            self.looks = self.looks.saturating_sub(1);
            packets += self.receive_line(sink);
        }
        packets += self.receive_near(sink);
        let Self {
            wire,
            port,
            numbers,
            line,
            waiter,
            ..
        } = self;
        packets += wire.receive((&port.addresses, numbers), line, waiter, sink);
        self.counters.packets_received += packets as u64;
        packets
    }

    fn feedback(&mut self, route: &Route, news: Feedback) {
        self.wire.feedback(route, news);
    }

    fn refusal(&mut self) -> Option<Refusal> {
        self.wire.refusal()
    }

    fn entropy(&mut self) -> u64 {
        system_entropy()
    }

    fn change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        Some(Arc::clone(&self.waiter) as Arc<dyn Waiter>)
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let is_new = !self.groups.contains_key(&group);
        if is_new && self.groups.len() >= Quota::Groups.max() as usize {
            return Err(io::Error::other(Quota::Groups.exceeded()));
        }
        *self.groups.entry(group).or_default() += 1;
        self.line.say(&Message::Join(group));
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        if let Some(count) = self.groups.get_mut(&group) {
            *count -= 1;
            if *count == 0 {
                self.groups.remove(&group);
            }
        }
        self.line.say(&Message::Leave(group));
    }

    fn numbers(&mut self, used: usize) -> Option<&[Range<u32>]> {
        let count: usize = self.numbers.iter().map(ExactSizeIterator::len).sum();
        // Early: the next queue pairs are made while the daemon answers.
        if !self.asks && used >= count / 4 {
            self.asks = true;
            self.line.say(&Message::Lease(self.line.tag()));
        }
        Some(&self.numbers)
    }

    fn gone(&mut self) -> Option<Range<u32>> {
        self.gone.pop_front()
    }

    fn host_ports(&self) -> Option<Arc<dyn HostPorts>> {
        Some(Arc::clone(&self.line) as Arc<dyn HostPorts>)
    }

    fn counters(&self) -> LinkCounters {
        self.wire.counted(self.counters)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        // A thread may hold the waiter for a while; neighbours learn of the end now.
        self.waiter.clear();
    }
}
