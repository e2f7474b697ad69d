//! Connections of the host's clients, as far as passing messages of the connection manager reveal them.
//!
//! All clients have queue pair 1, and each runs its own connection manager. The communication id in a message shows
//! whose it is: an id belongs to the client that has first sent a message with it. The ids are 32 random bits, so that
//! two clients seldom draw the same one. If they do, the peer's id tells their connections apart: the second client
//! may begin once the first one's peer has named its own id, and a message of either that is sent again before then
//! gets through later. A client that sends a message of another's connection on purpose finds that it is dropped.
//!
//! The same messages show which peers have to be informed when a client dies.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use verbs_cm::wire::{CommId, Dreq, Message};
use verbs_core::Qpn;
use verbs_core::host::list::ListedConnection;
use verbs_core::host::quota::Quota;

use crate::client::ClientId;
use crate::packet::{self, GSI};

/// The most requests of peers without an answer that are remembered.
const ASKED_MAX: usize = 4096;

/// The connections of all clients.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    /// By id, and by whose it is: two clients may have drawn the same id.
    ids: BTreeMap<(CommId, ClientId), Connection>,
    /// The ids of each client, oldest first.
    of: BTreeMap<ClientId, VecDeque<CommId>>,
    /// The requests of peers that have no answer yet, by address and id; oldest first.
    asked: VecDeque<((IpAddr, CommId), Asked)>,
}

/// A peer's request: its queue pair, and what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    qpn: Qpn,
    service: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    peer: IpAddr,
    own: IpAddr,
    /// The peer's id and queue pair, once it has named them.
    remote: Option<(CommId, Qpn)>,
    /// One end has ended it.
    is_over: bool,
    /// The client's queue pair.
    qpn: Option<Qpn>,
    service: Option<u64>,
    /// The client has asked for it.
    is_active: bool,
}

impl Connection {
    fn new((own, peer): (IpAddr, IpAddr)) -> Self {
        Self {
            peer,
            own,
            remote: None,
            is_over: false,
            qpn: None,
            service: None,
            is_active: false,
        }
    }

    /// It is being made: the peer has not named its id.
    fn is_begun(&self) -> bool {
        self.remote.is_none() && !self.is_over
    }

    /// Both ends have a queue pair for it.
    fn is_made(&self) -> bool {
        self.remote.is_some() && !self.is_over
    }

    /// Whether the peer calls it by that id.
    fn is_with(&self, remote: Option<CommId>) -> bool {
        self.remote.is_some_and(|(known, _)| Some(known) == remote)
    }
}

/// The destination of a message that has arrived for queue pair 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The client that listens for that service.
    Service(u64),
    /// That client.
    Client(ClientId),
    /// No client.
    Nobody,
}

/// A message to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Farewell {
    pub(crate) own: IpAddr,
    pub(crate) peer: IpAddr,
    pub(crate) dreq: Dreq,
}

/// The ids of the sender and the receiver in a message, as far as it has them.
fn ids(message: &Message) -> (Option<CommId>, Option<CommId>) {
    let some = |id: CommId| (id != CommId(0)).then_some(id);
    match message {
        Message::Req(m) => (some(m.local_id), None),
        Message::Mra(m) => (some(m.local_id), some(m.remote_id)),
        Message::Rej(m) => (some(m.local_id), some(m.remote_id)),
        Message::Rep(m) => (some(m.local_id), some(m.remote_id)),
        Message::Rtu(m) => (some(m.local_id), some(m.remote_id)),
        Message::Dreq(m) => (some(m.local_id), some(m.remote_id)),
        Message::Drep(m) => (some(m.local_id), some(m.remote_id)),
        Message::Lap(m) => (some(m.local_id), some(m.remote_id)),
        Message::Apr(m) => (some(m.local_id), some(m.remote_id)),
        Message::SidrReq(m) => (some(m.request_id), None),
        Message::SidrRep(m) => (None, some(m.request_id)),
    }
}

impl Connections {
    /// A client sends packets. Returns whether it may: messages of the connection manager among them concern its own
    /// connections.
    pub(crate) fn let_out<'p>(
        &mut self,
        client: ClientId,
        way: (IpAddr, IpAddr),
        packets: impl Iterator<Item = &'p [u8]>,
    ) -> bool {
        let mut may = true;
        for packet in packets.filter(|packet| packet::dest(packet) == Some(GSI)) {
            let message = packet::mad(packet).and_then(|mad| Message::parse(mad).ok());
            if let Some((_, message)) = message {
                may &= self.sends(client, way, &message, Quota::Connections.max());
            }
        }
        may
    }

    /// A client sends a message to a peer. Returns whether it may, according to the ids; `room` says how many
    /// connections it may have.
    fn sends(
        &mut self,
        client: ClientId,
        way: (IpAddr, IpAddr),
        message: &Message,
        room: u32,
    ) -> bool {
        let (local, remote) = ids(message);
        let Some(local) = local else {
            return true;
        };
        let is_others = self
            .with_id(local)
            .any(|(whose, known)| whose != client && (known.is_begun() || known.is_with(remote)));
        if is_others {
            return false;
        }
        let key = (local, client);
        if !self.ids.contains_key(&key) && !self.begin(key, way, message, room) {
            return false;
        }
        let Some(known) = self.ids.get_mut(&key) else {
            return false;
        };
        match message {
            Message::Req(req) => {
                if known.is_over {
                    *known = Connection::new(way);
                }
                known.qpn = Some(req.qpn);
                known.service = Some(req.service_id.0);
                known.is_active = true;
            }
            Message::Rep(rep) => {
                known.qpn = Some(rep.qpn);
                let asked = (way.1, rep.remote_id);
                let found = self.asked.iter().position(|(who, _)| *who == asked);
                if let Some((_, asked)) = found.and_then(|at| self.asked.remove(at)) {
                    known.remote = Some((rep.remote_id, asked.qpn));
                    known.service = Some(asked.service);
                }
            }
            // One that the client has had since before the daemon began.
            Message::Lap(lap) if known.is_begun() => {
                known.remote = Some((lap.remote_id, lap.remote_qpn));
                known.is_active = true;
            }
            Message::Rej(_) | Message::Dreq(_) | Message::Drep(_) => known.is_over = true,
            _ => {}
        }
        true
    }

    /// The connections with that id, and whose they are.
    fn with_id(&self, id: CommId) -> impl Iterator<Item = (ClientId, &Connection)> {
        let all = self.ids.range((id, ClientId::FIRST)..);
        let same = all.take_while(move |((known, _), _)| *known == id);
        same.map(|(&(_, client), known)| (client, known))
    }

    fn begin(
        &mut self,
        (id, client): (CommId, ClientId),
        way: (IpAddr, IpAddr),
        message: &Message,
        room: u32,
    ) -> bool {
        use Message::{Mra, Rep, Req, SidrReq};
        let begins = matches!(message, Req(_) | Mra(_) | Rep(_) | SidrReq(_));
        if !begins && self.with_id(id).next().is_some() {
            return false;
        }
        let theirs = self.of.entry(client).or_default();
        if theirs.len() >= room as usize {
            let state = |id: &CommId| self.ids.get(&(*id, client));
            // A connection that has ended is replaced, or else the oldest attempt.
            let place = |is: fn(&Connection) -> bool| {
                let mut ids = theirs.iter();
                ids.position(|id| state(id).is_none_or(is))
            };
            let over = place(|known| known.is_over);
            let Some(at) = over.or_else(|| place(Connection::is_begun)) else {
                return false;
            };
            if let Some(gone) = theirs.remove(at) {
                self.ids.remove(&(gone, client));
            }
        }
        theirs.push_back(id);
        self.ids.insert((id, client), Connection::new(way));
        true
    }

    /// A message has arrived from a peer.
    pub(crate) fn comes(&mut self, peer: IpAddr, message: &Message) -> Whose {
        match message {
            Message::Req(req) => {
                let who = (peer, req.local_id);
                if !self.asked.iter().any(|(known, _)| *known == who) {
                    if self.asked.len() == ASKED_MAX {
                        self.asked.pop_front();
                    }
                    let asked = Asked {
                        qpn: req.qpn,
                        service: req.service_id.0,
                    };
                    self.asked.push_back((who, asked));
                }
                return Whose::Service(req.service_id.0);
            }
            Message::SidrReq(req) => return Whose::Service(req.service_id.0),
            _ => {}
        }
        let (remote, local) = ids(message);
        let found = local.and_then(|local| Some((local, self.whose(local, peer, remote)?)));
        let Some((local, client)) = found else {
            return Whose::Nobody;
        };
        // A stranger that has guessed the id ends nothing here; the client checks the message itself.
        let known = self.ids.get_mut(&(local, client));
        if let Some(known) = known.filter(|known| known.peer == peer) {
            match message {
                Message::Rep(rep) if known.is_begun() => {
                    known.remote = Some((rep.local_id, rep.qpn));
                }
                Message::Rej(_) | Message::Dreq(_) | Message::Drep(_) | Message::SidrRep(_) => {
                    known.is_over = true;
                }
                _ => {}
            }
        }
        Whose::Client(client)
    }

    /// The client whose connection with that id a message is for, from a peer that calls it `remote`.
    fn whose(&self, local: CommId, peer: IpAddr, remote: Option<CommId>) -> Option<ClientId> {
        let same = self.with_id(local);
        let best = same.min_by_key(|(_, known)| {
            let fits = [known.peer == peer, known.is_with(remote), known.is_begun()];
            fits.map(|fits| !fits)
        });
        best.map(|(client, _)| client)
    }

    /// How many a client has.
    pub(crate) fn count(&self, client: ClientId) -> u32 {
        self.of.get(&client).map_or(0, |theirs| theirs.len() as u32)
    }

    /// Those of a client that have not ended, oldest first.
    pub(crate) fn list(&self, client: ClientId) -> impl Iterator<Item = ListedConnection> {
        let theirs = self.of.get(&client).into_iter().flatten();
        let known = theirs.filter_map(move |&id| self.ids.get(&(id, client)));
        let open = known.filter(|known| !known.is_over);
        open.map(|known| ListedConnection {
            local: known.own,
            remote: known.peer,
            service: known.service,
            is_active: known.is_active,
            qpn: known.qpn,
            remote_qpn: known.remote.map(|(_, qpn)| qpn),
        })
    }

    /// A client no longer exists. Returns the peers to inform.
    pub(crate) fn forget(&mut self, client: ClientId) -> Vec<Farewell> {
        let theirs = self.of.remove(&client).unwrap_or_default();
        let farewell = |id: CommId| {
            let known = self.ids.remove(&(id, client))?;
            let (remote_id, remote_qpn) = known.remote.filter(|_| known.is_made())?;
            let dreq = Dreq {
                local_id: id,
                remote_id,
                remote_qpn,
                ..Dreq::default()
            };
            Some(Farewell {
                own: known.own,
                peer: known.peer,
                dreq,
            })
        };
        theirs.into_iter().filter_map(farewell).collect()
    }
}
