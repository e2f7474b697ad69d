//! One client, as the daemon sees it.

pub(crate) mod departure;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;

use verbs_core::Origin;
use verbs_core::host::message::Token;
use verbs_core::host::quota::Usage;

use crate::outbox::Outbox;

/// Names a client; never used again by the same daemon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(NonZeroU32);

impl ClientId {
    /// The lowest.
    pub(crate) const FIRST: Self = Self(NonZeroU32::MIN);

    /// The client with that number; there is no number 0.
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0.get()
    }

    /// The origin of the requests that it sends.
    pub const fn origin(self) -> Origin {
        Origin::Client(self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.0)
    }
}

/// The user that has connected, as the system reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// User.
    pub uid: u32,
    /// Process, in the daemon's namespace; 0 if it is not visible there.
    pub pid: u32,
}

/// A client's entry in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Its number.
    pub id: ClientId,
    /// Its user.
    pub user: User,
    /// The name of its program, as it reports it.
    pub name: String,
    /// The part of its quotas that is in use.
    pub usage: Usage,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) user: User,
    /// The name that it has reported; `None` before its first message.
    pub(crate) name: Option<String>,
    /// What it shows to the next daemon.
    pub(crate) token: Token,
    /// Bits of the line's features that both sides know.
    pub(crate) features: u64,
    pub(crate) usage: Usage,
    pub(crate) outbox: Outbox,
    /// The groups that it has joined, and how often.
    pub(crate) groups: BTreeMap<IpAddr, u32>,
    /// Clients that it has sent packets to, or that have sent it some.
    pub(crate) neighbours: BTreeSet<ClientId>,
}

impl Client {
    pub(crate) fn new(user: User) -> Self {
        Self {
            user,
            name: None,
            token: Token::default(),
            features: 0,
            usage: Usage::default(),
            outbox: Outbox::default(),
            groups: BTreeMap::new(),
            neighbours: BTreeSet::new(),
        }
    }

    /// Whether both it and the daemon have that feature of the line.
    pub(crate) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Whether it has been welcomed.
    pub(crate) fn is_member(&self) -> bool {
        self.name.is_some()
    }
}

/// The clients that have been welcomed.
pub(crate) fn members(
    clients: &BTreeMap<ClientId, Client>,
) -> impl Iterator<Item = (ClientId, &Client)> {
    let members = clients.iter().filter(|(_, client)| client.is_member());
    members.map(|(&id, client)| (id, client))
}

/// Two clients exchange packets.
pub(crate) fn acquaint(clients: &mut BTreeMap<ClientId, Client>, one: ClientId, other: ClientId) {
    let knows = |client: Option<&mut Client>, other| {
        client.is_some_and(|client| client.neighbours.insert(other))
    };
    if one != other && knows(clients.get_mut(&one), other) {
        knows(clients.get_mut(&other), one);
    }
}

/// A client has gone: returns its neighbours, which no longer know it.
pub(crate) fn part(
    clients: &mut BTreeMap<ClientId, Client>,
    id: ClientId,
    gone: &mut Client,
) -> BTreeSet<ClientId> {
    let neighbours = std::mem::take(&mut gone.neighbours);
    for neighbour in &neighbours {
        if let Some(known) = clients.get_mut(neighbour) {
            known.neighbours.remove(&id);
        }
    }
    neighbours
}
