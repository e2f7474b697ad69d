//! Connections of the host's clients, as far as passing messages of the connection manager reveal them.
//!
//! All clients have queue pair 1, and each runs its own connection manager. The communication id in a message shows
//! whose it is: an id belongs to the client that has first sent a message with it. The ids are 32 random bits, so that
//! two clients do not draw the same one; a client that takes another's on purpose finds that its message is dropped.
//!
//! The same messages show which peers have to be informed when a client dies.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use verbs_cm::wire::{CommId, Dreq, Message};
use verbs_core::Qpn;
use verbs_core::host::list::ListedConnection;

use crate::client::ClientId;

/// The most requests of peers without an answer that are remembered.
const ASKED_MAX: usize = 4096;

/// The connections of all clients.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    ids: BTreeMap<CommId, Connection>,
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
    client: ClientId,
    peer: IpAddr,
    own: IpAddr,
    state: State,
    /// The client's queue pair.
    qpn: Option<Qpn>,
    service: Option<u64>,
    /// The client has asked for it.
    is_active: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is being made.
    Begun,
    /// Both ends have a queue pair for it: the peer's id and queue pair.
    Made(CommId, Qpn),
    /// One end has ended it.
    Over,
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
    /// A client sends a message to a peer. Returns whether it may, according to the ids; `room` says whether it may
    /// have one more.
    pub(crate) fn sends(
        &mut self,
        client: ClientId,
        (own, peer): (IpAddr, IpAddr),
        message: &Message,
        room: u32,
    ) -> bool {
        let (local, _) = ids(message);
        let Some(local) = local else {
            return true;
        };
        let may = match self.ids.get(&local).map(|known| known.client) {
            Some(known) => known == client,
            None => self.begin(client, local, (own, peer), room),
        };
        if !may {
            return false;
        }
        let Some(known) = self.ids.get_mut(&local) else {
            return false;
        };
        match message {
            Message::Req(req) => {
                known.qpn = Some(req.qpn);
                known.service = Some(req.service_id.0);
                known.is_active = true;
            }
            Message::Rep(rep) => {
                known.qpn = Some(rep.qpn);
                let asked = (peer, rep.remote_id);
                let found = self.asked.iter().position(|(who, _)| *who == asked);
                if let Some((_, asked)) = found.and_then(|at| self.asked.remove(at)) {
                    known.state = State::Made(rep.remote_id, asked.qpn);
                    known.service = Some(asked.service);
                }
            }
            Message::Rej(_) | Message::Dreq(_) | Message::Drep(_) => known.state = State::Over,
            _ => {}
        }
        true
    }

    fn begin(
        &mut self,
        client: ClientId,
        id: CommId,
        (own, peer): (IpAddr, IpAddr),
        room: u32,
    ) -> bool {
        let theirs = self.of.entry(client).or_default();
        if theirs.len() >= room as usize {
            let ids = &self.ids;
            let is = |id: &CommId, over: bool| {
                ids.get(id).is_none_or(|known| match known.state {
                    State::Over => true,
                    State::Begun => !over,
                    State::Made(..) => false,
                })
            };
            // A connection that has ended is replaced, or else the oldest attempt.
            let over = theirs.iter().position(|id| is(id, true));
            let Some(at) = over.or_else(|| theirs.iter().position(|id| is(id, false))) else {
                return false;
            };
            if let Some(gone) = theirs.remove(at) {
                self.ids.remove(&gone);
            }
        }
        theirs.push_back(id);
        self.ids.insert(
            id,
            Connection {
                client,
                peer,
                own,
                state: State::Begun,
                qpn: None,
                service: None,
                is_active: false,
            },
        );
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
        let Some(known) = ids(message).1.and_then(|id| self.ids.get_mut(&id)) else {
            return Whose::Nobody;
        };
        // A stranger that has guessed the id ends nothing here; the client checks the message itself.
        if known.peer == peer {
            match message {
                Message::Rep(rep) if known.state == State::Begun => {
                    known.state = State::Made(rep.local_id, rep.qpn);
                }
                Message::Rej(_) | Message::Dreq(_) | Message::Drep(_) | Message::SidrRep(_) => {
                    known.state = State::Over;
                }
                _ => {}
            }
        }
        Whose::Client(known.client)
    }

    /// How many a client has.
    pub(crate) fn count(&self, client: ClientId) -> u32 {
        self.of.get(&client).map_or(0, |theirs| theirs.len() as u32)
    }

    /// Those of a client that have not ended, oldest first.
    pub(crate) fn list(&self, client: ClientId) -> impl Iterator<Item = ListedConnection> {
        let theirs = self.of.get(&client).into_iter().flatten();
        let known = theirs.filter_map(|id| self.ids.get(id));
        known.filter_map(|known| {
            let remote_qpn = match known.state {
                State::Begun => None,
                State::Made(_, qpn) => Some(qpn),
                State::Over => return None,
            };
            Some(ListedConnection {
                local: known.own,
                remote: known.peer,
                service: known.service,
                is_active: known.is_active,
                qpn: known.qpn,
                remote_qpn,
            })
        })
    }

    /// A client no longer exists. Returns the peers to inform.
    pub(crate) fn forget(&mut self, client: ClientId) -> Vec<Farewell> {
        let theirs = self.of.remove(&client).unwrap_or_default();
        let farewell = |id: CommId| {
            let known = self.ids.remove(&id)?;
            let State::Made(remote_id, remote_qpn) = known.state else {
                return None;
            };
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
