//! The end of a client, and its consequences for others.

use std::collections::BTreeSet;

use verbs_core::host::bytes::LIST_MAX;
use verbs_core::host::quota::Quota;
use verbs_core::host::{Block, Message};
use verbs_core::mad::TransactionId;
use verbs_core::time::Instant;

use super::{Daemon, Ended, Mad, span};
use crate::client::{ClientId, members, part};

impl Daemon {
    /// A client has ended: its line was closed, or its process has ended, whichever is noticed first.
    ///
    /// In this order: neighbours are informed that its queue pairs no longer exist, behind the packets that it has sent
    /// them; peers of its connections that those have ended; then everything that it had is released. Packets that it has
    /// sent to the network still leave.
    pub fn leave(&mut self, now: Instant, client: ClientId, why: Ended) {
        let Some(mut gone) = self.clients.remove(&client) else {
            return;
        };
        self.ready.remove(&client);
        self.counters.lost_outward += self.outward.end(client);
        let blocks = self.blocks.give_back_all(client, span(now));
        blocks.iter().for_each(|&block| self.leases.returned(block));
        let neighbours = part(&mut self.clients, client, &mut gone);
        self.depart(now, client, blocks, neighbours);
        for farewell in self.connections.forget(client) {
            self.tids = self.tids.wrapping_add(1);
            let tid = TransactionId::new(0, self.tids);
            let message = verbs_cm::wire::Message::Dreq(farewell.dreq);
            self.counters.farewells += 1;
            self.mads.push_back(Mad {
                src: farewell.own,
                dst: farewell.peer,
                mad: message.emit(tid),
            });
        }
        self.services.forget(client);
        self.forget_channels(client);
        self.moved.insert(client);
        for &group in gone.groups.keys() {
            self.forget_member(client, group);
        }
        self.commands.retain(|&(whose, ..)| whose != client);
        if gone.is_member() {
            let blocks = gone.usage.of(Quota::Blocks);
            tracing::debug!(?client, name = gone.name, %why, blocks, "a client has gone");
        }
    }

    /// Those blocks of a client no longer exist: its neighbours are told now.
    pub(super) fn depart(
        &mut self,
        now: Instant,
        client: ClientId,
        blocks: Vec<Block>,
        neighbours: BTreeSet<ClientId>,
    ) {
        if blocks.is_empty() {
            return;
        }
        let numbers = blocks.iter().copied().map(Block::number).collect();
        let gone = Message::Gone(numbers);
        for &neighbour in &neighbours {
            self.tell(neighbour, &gone);
        }
        let members = members(&self.clients).count();
        self.departures
            .add(now, members, blocks, client, neighbours);
    }

    /// The others are told of all that has departed.
    pub(super) fn tell_departures(&mut self, now: Instant) {
        let Some(departures) = self.departures.take_due(now) else {
            return;
        };
        let ids: Vec<_> = members(&self.clients).map(|(id, _)| id).collect();
        for client in ids {
            for piece in departures.news_for(client).chunks(LIST_MAX) {
                self.tell(client, &Message::Gone(piece.to_vec()));
            }
        }
    }

    /// The daemon ends a client.
    pub(super) fn end(&mut self, now: Instant, client: ClientId, why: Ended) {
        if let Ended::Refused(_) = why {
            // It has nothing yet, and has to be able to read the reason: the owner of the line sends what waits,
            // and closes it.
            self.ended.push_back((client, why));
            return;
        }
        self.leave(now, client, why);
        self.ended.push_back((client, why));
    }

    /// Ends clients that do not read. Their end is reported to others, which may not read either.
    pub(super) fn end_deaf(&mut self, now: Instant) {
        while let Some(client) = self.deaf.pop() {
            if self.clients.contains_key(&client) {
                self.end(now, client, Ended::Deaf);
            }
        }
    }
}
