//! The end of a client, and its consequences for others.

use verbs_core::host::quota::Quota;
use verbs_core::host::{Block, Message};
use verbs_core::mad::TransactionId;
use verbs_core::time::Instant;

use super::{Daemon, Ended, Mad, span};
use crate::client::ClientId;

impl Daemon {
    /// A client has ended: its line was closed, or its process has ended, whichever is noticed first.
    ///
    /// In this order: neighbours are informed that its queue pairs no longer exist, behind the packets that it has sent
    /// them; peers of its connections that those have ended; then everything that it had is released.
    pub fn leave(&mut self, now: Instant, client: ClientId, why: Ended) {
        let Some(gone) = self.clients.remove(&client) else {
            return;
        };
        self.ready.remove(&client);
        self.outward.forget(client);
        let blocks = self.blocks.give_back_all(client, span(now));
        if !blocks.is_empty() {
            blocks.iter().for_each(|&block| self.leases.returned(block));
            let numbers = blocks.into_iter().map(Block::number).collect();
            self.tell_all(None, &Message::Gone(numbers));
        }
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
        for &group in gone.groups.keys() {
            self.forget_member(client, group);
        }
        self.commands.retain(|&(whose, ..)| whose != client);
        if gone.is_member() {
            let blocks = gone.usage.of(Quota::Blocks);
            tracing::debug!(?client, name = gone.name, %why, blocks, "a client has gone");
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
