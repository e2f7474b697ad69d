//! The daemon: its clients, and what each of them has.

mod channel;
mod claim;
mod end;
mod line;
mod list;
mod quota;
mod relay;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use verbs_core::device::local_guid;
use verbs_core::host::message::{No, Packets, PortNews, SOCKETS};
use verbs_core::host::quota::Quota;
use verbs_core::host::{Block, Blocks, Malformed, Message};
use verbs_core::mad::MadBytes;
use verbs_core::seed::Draws;
use verbs_core::time::Instant;
use verbs_core::{AsyncEvent, Seed};

use crate::channel::{Channels, NewChannel};
use crate::client::departure::Departures;
use crate::client::{Client, ClientId, ClientInfo, User, members};
use crate::connection::Connections;
use crate::outbox::Files;
use crate::outward::Outward;
use crate::service::Services;
use crate::stray::Strays;

use self::claim::Leases;
pub use self::claim::Record;

/// See the crate's documentation.
///
/// * Commands: [`enter`](Self::enter), [`leave`](Self::leave), [`port_changed`](Self::port_changed),
///   [`answer`](Self::answer), [`raise`](Self::raise), [`channel_made`](Self::channel_made),
///   [`give_socket`](Self::give_socket); [`restore`](Self::restore), first of all.
/// * Inputs: [`hear`](Self::hear) a datagram of a client, [`arrive`](Self::arrive) packets of the network,
///   [`expire`](Self::expire) when the [`deadline`](Self::deadline) has come.
/// * Outputs, all to be drained after any of these: [`poll_ended`](Self::poll_ended),
///   [`poll_command`](Self::poll_command), [`poll_group`](Self::poll_group), [`poll_mad`](Self::poll_mad),
///   [`poll_channel`](Self::poll_channel), [`poll_record`](Self::poll_record), [`poll_moved`](Self::poll_moved),
///   [`poll_ready`](Self::poll_ready) with [`next_for`](Self::next_for), [`next_outward`](Self::next_outward).
#[derive(Debug)]
pub struct Daemon {
    port: PortNews,
    clients: BTreeMap<ClientId, Client>,
    next_client: u32,
    blocks: Blocks<ClientId>,
    leases: Leases,
    departures: Departures,
    services: Services,
    connections: Connections,
    outward: Outward,
    /// Answers messages of the connection manager that belong to no client.
    strays: Strays,
    /// Members of each group.
    groups: BTreeMap<IpAddr, BTreeSet<ClientId>>,
    /// Clients that have something to read.
    ready: BTreeSet<ClientId>,
    ended: VecDeque<(ClientId, Ended)>,
    commands: VecDeque<(ClientId, u64, Vec<u8>)>,
    group_changes: VecDeque<GroupChange>,
    mads: VecDeque<Mad>,
    channels: Channels,
    new_channels: VecDeque<NewChannel>,
    /// Clients whose blocks have changed.
    moved: BTreeSet<ClientId>,
    /// Transaction ids of the daemon's own datagrams.
    tids: u32,
    /// Clients that do not read, to be ended.
    deaf: Vec<ClientId>,
    counters: Counters,
}

/// Why a client is no longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// Its end of the line was closed.
    #[error("it has closed its line")]
    Closed,
    /// Its process has ended.
    #[error("its process has ended")]
    Died,
    /// It was refused.
    #[error("it was refused: {0}")]
    Refused(No),
    /// It has sent something that is not a message.
    #[error("it broke the rules of the line: {0}")]
    Malformed(Malformed),
    /// It has sent a message that clients do not send, or not at this time.
    #[error(
        "it broke the rules of the line: it has sent a message that is not a client's, or came too early"
    )]
    Unexpected,
    /// It does not read its messages.
    #[error("it does not read what it is told")]
    Deaf,
}

/// The daemon has to join or leave a multicast group on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupChange {
    /// The group.
    pub group: IpAddr,
    /// Whether to join it.
    pub joins: bool,
}

/// A management datagram of the daemon's own, from queue pair 1 to queue pair 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// One of the port's addresses.
    pub src: IpAddr,
    /// The peer.
    pub dst: IpAddr,
    /// The datagram.
    pub mad: MadBytes,
}

/// The daemon's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Bursts from clients to the network.
    pub outward: u64,
    /// Bursts to clients.
    pub inward: u64,
    /// Bursts that were lost because a client does not read them as fast as they arrive.
    pub lost_inward: u64,
    /// Bursts that were lost because a client sends faster than the network takes them.
    pub lost_outward: u64,
    /// Packets for queue pairs that no client has.
    pub strangers: u64,
    /// Packets that a client may not send: from an address that is not the port's, or for a connection of another
    /// client.
    pub refused: u64,
    /// Clients that broke the rules of the line.
    pub broken_lines: u64,
    /// Reports of clients that a neighbour sends packets that no correct program sends.
    pub broken_neighbours: u64,
    /// Peers that were informed of the end of a client.
    pub farewells: u64,
    /// Packets of the network that came to the socket of a client that they are not for.
    pub misled: u64,
}

impl Daemon {
    /// A daemon without clients. The seed decides which numbers it assigns first.
    pub fn new(port: PortNews, seed: impl Into<Seed>) -> Self {
        let mut draws = Draws::new(seed);
        let halves = [draws.draw(), draws.draw()].map(u64::to_ne_bytes);
        let own = Seed::secret(std::array::from_fn(|n| halves[n / 8][n % 8]));
        Self {
            strays: Strays::new(&port, local_guid(draws.draw()), own),
            blocks: Blocks::new(draws.draw()),
            channels: Channels::new(draws.draw() as u32),
            leases: Leases::new(draws),
            departures: Departures::default(),
            port,
            clients: BTreeMap::new(),
            next_client: 1,
            services: Services::default(),
            connections: Connections::default(),
            outward: Outward::default(),
            groups: BTreeMap::new(),
            ready: BTreeSet::new(),
            ended: VecDeque::new(),
            commands: VecDeque::new(),
            group_changes: VecDeque::new(),
            mads: VecDeque::new(),
            new_channels: VecDeque::new(),
            moved: BTreeSet::new(),
            tids: 0,
            deaf: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// A process has connected. It becomes a client when its first message is right.
    pub fn enter(&mut self, user: User) -> ClientId {
        let number = self.next_client;
        self.next_client = number.checked_add(1).unwrap_or(1);
        let id = ClientId::new(number).expect("numbers begin with 1");
        self.clients.insert(id, Client::new(user));
        id
    }

    /// The port has changed: clients are informed.
    pub fn port_changed(&mut self, port: PortNews) {
        if port == self.port {
            return;
        }
        self.strays.port_changed(&port);
        self.port = port.clone();
        self.tell_all(&Message::Port(port));
    }

    /// The current state of the port.
    pub fn port(&self) -> &PortNews {
        &self.port
    }

    /// The result of a command that came out of [`poll_command`](Self::poll_command).
    pub fn answer(&mut self, client: ClientId, tag: u64, result: &[u8]) {
        if let Some(known) = self.clients.get_mut(&client) {
            known.usage.give_back(Quota::Commands);
            self.tell(client, &Message::Done(tag, result));
        }
    }

    /// An event for a client.
    pub fn raise(&mut self, client: ClientId, event: AsyncEvent) {
        self.tell(client, &Message::Event(event));
    }

    /// The time is `now`.
    pub fn expire(&mut self, now: Instant) {
        self.strays.expire(now);
        self.collect_strays();
        self.give_up_claims(now);
        self.tell_departures(now);
        self.end_deaf(now);
    }

    /// When [`expire`](Self::expire) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.strays.deadline(),
            self.leases.claims_until(),
            self.departures.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// A client that the daemon itself has ended: its line has to be closed.
    pub fn poll_ended(&mut self) -> Option<(ClientId, Ended)> {
        self.ended.pop_front()
    }

    /// A command, with its tag: it has to be [answered](Self::answer).
    pub fn poll_command(&mut self) -> Option<(ClientId, u64, Vec<u8>)> {
        self.commands.pop_front()
    }

    /// See [`GroupChange`].
    pub fn poll_group(&mut self) -> Option<GroupChange> {
        self.group_changes.pop_front()
    }

    /// A client whose blocks have changed, and those that it has now; none if it has gone, or receives nothing by a
    /// [socket](Self::give_socket) of its own.
    pub fn poll_moved(&mut self) -> Option<(ClientId, Vec<Block>)> {
        let client = self.moved.pop_first()?;
        let known = self.clients.get(&client);
        let has_sockets = known.is_some_and(|known| known.has(SOCKETS));
        let blocks = self.blocks.all_of(client).filter(|_| has_sockets);
        Some((client, blocks.collect()))
    }

    /// A client gets a socket for that address: [`Files::Socket`] comes out of [`files_for_next`](Self::files_for_next).
    pub fn give_socket(&mut self, client: ClientId, address: IpAddr) {
        let files = Files::Socket(address);
        self.tell_with(client, &Message::Socket(address), Some(files));
    }

    /// A datagram of the daemon's own. One that is addressed to the port itself returns as one that has
    /// [arrived](Self::arrive).
    pub fn poll_mad(&mut self) -> Option<Mad> {
        self.mads.pop_front()
    }

    /// A client that has something to read, reported once.
    pub fn poll_ready(&mut self) -> Option<ClientId> {
        self.ready.pop_first()
    }

    /// The next datagram for that client.
    pub fn next_for(&self, client: ClientId) -> Option<&[u8]> {
        self.clients.get(&client)?.outbox.next()
    }

    /// The files that go with that datagram.
    pub fn files_for_next(&self, client: ClientId) -> Option<Files> {
        self.clients.get(&client)?.outbox.files()
    }

    /// That datagram has been sent.
    pub fn sent(&mut self, client: ClientId) {
        if let Some(known) = self.clients.get_mut(&client) {
            known.outbox.sent();
        }
    }

    /// The packets to send to the network next.
    pub fn next_outward(&self) -> Option<Packets<'_>> {
        match Message::decode(self.outward.next()?) {
            Ok(Message::Packets(packets)) => Some(packets),
            // They were decoded when they arrived.
            _ => None,
        }
    }

    /// Those packets have been sent.
    pub fn outward_sent(&mut self) {
        self.counters.outward += 1;
        self.outward.sent();
    }

    /// The daemon's counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether it was welcomed.
    pub fn is_member(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(Client::is_member)
    }

    /// The clients that were welcomed.
    pub fn clients(&self) -> Vec<ClientInfo> {
        members(&self.clients)
            .filter_map(|(id, client)| {
                let mut usage = client.usage;
                usage.put(Quota::Connections, self.connections.count(id));
                Some(ClientInfo {
                    id,
                    user: client.user,
                    name: client.name.clone()?,
                    usage,
                })
            })
            .collect()
    }

    /// Blocks of queue pair numbers that are leased, and that are resting.
    pub fn block_counts(&self, now: Instant) -> (usize, usize) {
        self.blocks.counts(span(now))
    }

    /// Bytes that wait for clients to read them.
    pub fn waiting(&self) -> usize {
        self.clients
            .values()
            .map(|client| client.outbox.bytes())
            .sum()
    }

    /// Sends a message to a client; a client that does not read is ended.
    fn tell(&mut self, client: ClientId, message: &Message<'_>) {
        self.tell_with(client, message, None);
    }

    fn tell_with(&mut self, client: ClientId, message: &Message<'_>, files: Option<Files>) {
        let Some(known) = self.clients.get_mut(&client) else {
            return;
        };
        if known.outbox.say(message.encode(), files) {
            self.ready.insert(client);
        } else {
            self.deaf.push(client);
        }
    }

    /// Sends a message to all clients.
    fn tell_all(&mut self, message: &Message<'_>) {
        let ids: Vec<_> = members(&self.clients).map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.tell(id, message));
    }
}

/// The time since the start.
fn span(now: Instant) -> Duration {
    now.since(Instant::ZERO)
}
