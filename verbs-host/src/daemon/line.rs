//! The messages of clients.

use verbs_core::host::message::{
    FEATURES, Hello, No, NotListening, Service, VERSION, VERSION_LEAST, Welcome,
};
use verbs_core::host::quota::Quota;
use verbs_core::host::{Block, Message};
use verbs_core::time::Instant;

use super::{Daemon, Ended, GroupChange, list, span};
use crate::client::ClientId;

impl Daemon {
    /// A datagram of a client. A client that breaks the rules is ended.
    pub fn hear(&mut self, now: Instant, client: ClientId, datagram: &[u8]) {
        let Some(is_member) = self.clients.get(&client).map(|known| known.is_member()) else {
            return;
        };
        let heard = match Message::decode(datagram) {
            Ok(Message::Hello(hello)) if !is_member => self.introduce(now, client, hello),
            Ok(Message::List(tag, from)) => {
                let piece = list::piece(self, from).map(Box::new);
                self.tell(client, &Message::Listing(tag, piece));
                Ok(())
            }
            Ok(message) if is_member => self.take(now, client, datagram, message),
            Ok(_) => Err(Ended::Unexpected),
            Err(malformed) => Err(Ended::Malformed(malformed)),
        };
        if let Err(why) = heard {
            self.counters.broken_lines += u64::from(!matches!(why, Ended::Refused(_)));
            self.end(now, client, why);
        }
        self.end_deaf(now);
    }

    fn introduce(&mut self, now: Instant, client: ClientId, hello: Hello) -> Result<(), Ended> {
        let refused = |daemon: &mut Self, no: No| {
            daemon.tell(client, &Message::No(no));
            Err(Ended::Refused(no))
        };
        let version = VERSION.min(hello.highest);
        if version < VERSION_LEAST.max(hello.lowest) {
            let (lowest, highest) = (VERSION_LEAST, VERSION);
            return refused(self, No::Version { lowest, highest });
        }
        let is_ours = |address| self.port.addresses.contains(address);
        if !hello.addresses.iter().all(is_ours) {
            return refused(self, No::Addresses);
        }
        let Some(user) = self.clients.get(&client).map(|known| known.user) else {
            return Ok(());
        };
        if let Err(error) = self.may_enter(user) {
            return refused(self, No::Quota(error));
        }
        let is_new = hello.blocks.is_empty();
        let token = match is_new {
            true => self.leases.token(),
            false => hello.token,
        };
        let Some(known) = self.clients.get_mut(&client) else {
            return Ok(());
        };
        known.token = token;
        let block = match is_new {
            true => self.lease(now, client),
            false => self.claim(now, client, token, &hello.blocks),
        };
        let block = match block {
            Ok(block) => block,
            Err(no) => return refused(self, no),
        };
        let Some(known) = self.clients.get_mut(&client) else {
            return Ok(());
        };
        known.name = Some(hello.name);
        known.features = hello.features & FEATURES;
        let features = known.features;
        if !is_new {
            known.usage.put(Quota::Blocks, hello.blocks.len() as u32);
        }
        let welcome = Welcome {
            version,
            features,
            client: client.number(),
            block: block.number(),
            port: self.port.clone(),
            token,
        };
        self.tell(client, &Message::Welcome(welcome));
        self.moved.insert(client);
        Ok(())
    }

    fn take(
        &mut self,
        now: Instant,
        client: ClientId,
        datagram: &[u8],
        message: Message<'_>,
    ) -> Result<(), Ended> {
        match message {
            Message::Packets(packets) => self.relay(now, client, datagram, &packets),
            Message::Arrived(packets) => return self.pass_on(now, client, &packets),
            Message::Command(tag, bytes) => self.command(client, tag, bytes),
            Message::Lease(tag) => {
                let leased = self.lease(now, client).map(Block::number);
                self.moved.insert(client);
                self.tell(client, &Message::Leased(tag, leased));
            }
            Message::Return(block) => {
                let block = Block::new(block).ok_or(Ended::Unexpected)?;
                if !self.blocks.give_back(client, block, span(now)) {
                    return Err(Ended::Unexpected);
                }
                self.leases.returned(block);
                self.moved.insert(client);
                self.give_back(client, Quota::Blocks);
                let known = self.clients.get(&client);
                let neighbours = known.map(|known| known.neighbours.clone());
                self.depart(now, client, vec![block], neighbours.unwrap_or_default());
            }
            Message::Listen(tag, service) => {
                let listening = self.listen(client, service);
                self.tell(client, &Message::Listening(tag, listening));
            }
            Message::Unlisten(service) => {
                if !self.services.unlisten(service, client) {
                    return Err(Ended::Unexpected);
                }
                self.give_back(client, Quota::Listeners);
            }
            Message::Join(group) if group.is_multicast() => self.join(client, group),
            Message::Leave(group) => self.leave_group(client, group),
            Message::OpenChannel(block) => return self.open_channel(client, block),
            Message::ChangedOver(number) => return self.change_over(client, number),
            Message::Broken(block) => self.break_channel(client, block),
            _ => return Err(Ended::Unexpected),
        }
        Ok(())
    }

    fn command(&mut self, client: ClientId, tag: u64, bytes: &[u8]) {
        let Some(known) = self.clients.get_mut(&client) else {
            return;
        };
        match known.usage.take(Quota::Commands) {
            Ok(()) => self.commands.push_back((client, tag, bytes.to_vec())),
            Err(error) => {
                let refused = verbs_core::host::command::refused(error);
                self.tell(client, &Message::Done(tag, &refused));
            }
        }
    }

    fn lease(&mut self, now: Instant, client: ClientId) -> Result<Block, No> {
        self.take_one(client, Quota::Blocks).map_err(No::Quota)?;
        let block = self.lease_block(now, client);
        if block.is_none() {
            self.give_back(client, Quota::Blocks);
        }
        block.ok_or(No::Numbers)
    }

    fn listen(&mut self, client: ClientId, service: Service) -> Result<(), NotListening> {
        let taken = self.take_one(client, Quota::Listeners);
        taken.map_err(NotListening::Quota)?;
        let is_free = self.services.listen(service, client);
        if !is_free {
            self.give_back(client, Quota::Listeners);
        }
        is_free.then_some(()).ok_or(NotListening::InUse)
    }

    fn give_back(&mut self, client: ClientId, quota: Quota) {
        if let Some(known) = self.clients.get_mut(&client) {
            known.usage.give_back(quota);
        }
    }

    /// Joins beyond the limit are ignored: a client counts for itself, and refuses the attachment before.
    fn join(&mut self, client: ClientId, group: std::net::IpAddr) {
        let Some(known) = self.clients.get_mut(&client) else {
            return;
        };
        if let Some(count) = known.groups.get_mut(&group) {
            *count = count.saturating_add(1);
            return;
        }
        if let Err(error) = self.take_one(client, Quota::Groups) {
            tracing::debug!(?client, %group, %error, "does not join");
            return;
        }
        if let Some(known) = self.clients.get_mut(&client) {
            known.groups.insert(group, 1);
        }
        let members = self.groups.entry(group).or_default();
        if members.is_empty() {
            self.group_changes
                .push_back(GroupChange { group, joins: true });
        }
        members.insert(client);
    }

    fn leave_group(&mut self, client: ClientId, group: std::net::IpAddr) {
        let Some(known) = self.clients.get_mut(&client) else {
            return;
        };
        match known.groups.get_mut(&group) {
            Some(1) => {
                known.groups.remove(&group);
                known.usage.give_back(Quota::Groups);
                self.forget_member(client, group);
            }
            Some(count) => *count -= 1,
            None => {}
        }
    }

    pub(super) fn forget_member(&mut self, client: ClientId, group: std::net::IpAddr) {
        let Some(members) = self.groups.get_mut(&group) else {
            return;
        };
        members.remove(&client);
        if members.is_empty() {
            self.groups.remove(&group);
            let joins = false;
            self.group_changes.push_back(GroupChange { group, joins });
        }
    }
}
