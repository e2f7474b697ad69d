//! Packets: from clients to the network and to each other, and from the network to clients.

use verbs_cm::wire::{Dreq, Lap, Message as CmMessage};
use verbs_core::Qpn;
use verbs_core::host::message::{Packets, SOCKETS};
use verbs_core::host::{Block, Message};
use verbs_core::time::Instant;

use super::{Daemon, Ended};
use crate::client::{ClientId, acquaint};
use crate::connection::Whose;
use crate::packet::{self, GSI};

impl Daemon {
    /// Packets have arrived from the network.
    pub fn arrive(&mut self, now: Instant, packets: &Packets<'_>) {
        self.deliver(now, None, packets);
        self.end_deaf(now);
    }

    /// Packets of a client, which arrived in that datagram.
    pub(super) fn relay(
        &mut self,
        now: Instant,
        client: ClientId,
        datagram: &[u8],
        packets: &Packets<'_>,
    ) {
        // An address may just have left the port; otherwise a client sends from no address but the port's.
        let is_ours = self.port.addresses.contains(&packets.src);
        let way = (packets.src, packets.dst);
        if !is_ours || !self.connections.let_out(client, way, packets.packets()) {
            self.counters.refused += 1;
            return;
        }
        if self.port.addresses.contains(&packets.dst) {
            return self.deliver(now, Some(client), packets);
        }
        if !self.outward.push(client, datagram.to_vec()) {
            self.counters.lost_outward += 1;
        }
    }

    /// Packets of the network that came to a client's socket, and are for others.
    pub(super) fn pass_on(
        &mut self,
        now: Instant,
        client: ClientId,
        packets: &Packets<'_>,
    ) -> Result<(), Ended> {
        let known = self.clients.get(&client);
        let has_sockets = known.is_some_and(|known| known.has(SOCKETS));
        if !has_sockets {
            return Err(Ended::Unexpected);
        }
        // What clients send to each other passes through no socket. An address may just have come to the port.
        if self.port.addresses.contains(&packets.src) {
            self.counters.refused += 1;
            return Ok(());
        }
        self.counters.misled += packets.packets().len() as u64;
        self.deliver(now, None, packets);
        Ok(())
    }

    /// Delivers packets of that client, or of the network, to their clients.
    fn deliver(&mut self, now: Instant, from: Option<ClientId>, packets: &Packets<'_>) {
        let segment = usize::from(packets.segment.max(1));
        let mut first = 0;
        while first * segment < packets.bytes.len() {
            let rest = &packets.bytes[first * segment..];
            let dest = packet::dest(&rest[..segment.min(rest.len())]);
            // Most often all are for one queue pair.
            let count = rest
                .chunks(segment)
                .take_while(|&next| packet::dest(next) == dest)
                .count();
            let len = (count * segment).min(rest.len());
            let run = Packets {
                ident: packets.ident.map(|ident| ident.wrapping_add(first as u16)),
                bytes: &rest[..len],
                ..*packets
            };
            self.deliver_run(now, from, dest, &run);
            first += count;
        }
    }

    /// The same with packets that are all for one queue pair.
    fn deliver_run(
        &mut self,
        now: Instant,
        from: Option<ClientId>,
        dest: Option<Qpn>,
        run: &Packets<'_>,
    ) {
        let block = match dest {
            Some(Qpn::MULTICAST) => {
                let members = self.groups.get(&run.dst).cloned().unwrap_or_default();
                for client in members {
                    self.carry(None, client, run);
                }
                return;
            }
            Some(GSI) => {
                for (k, packet) in (0_u16..).zip(run.packets()) {
                    let one = Packets {
                        ident: run.ident.map(|ident| ident.wrapping_add(k)),
                        bytes: packet,
                        ..*run
                    };
                    self.deliver_management(now, from, &one);
                }
                return;
            }
            Some(qpn) => Block::of(qpn),
            None => None,
        };
        match block.and_then(|block| self.blocks.owner(block)) {
            Some(client) => self.carry(from, client, run),
            None => {
                self.counters.strangers += run.packets().len() as u64;
                // It may have missed the end of the block's owner.
                let ended =
                    |block: &Block| *block != Block::DAEMON && !self.leases.is_awaited(*block);
                if let (Some(from), Some(block)) = (from, block.filter(ended)) {
                    self.tell(from, &Message::Gone(vec![block.number()]));
                }
            }
        }
    }

    fn deliver_management(&mut self, now: Instant, from: Option<ClientId>, packet: &Packets<'_>) {
        let mad = packet::mad(packet.bytes);
        let message = mad.and_then(|mad| Some((mad, CmMessage::parse(mad).ok()?.1)));
        let Some((mad, message)) = message else {
            self.counters.strangers += 1;
            return;
        };
        let client = match self.connections.comes(packet.src, &message) {
            Whose::Client(client) => Some(client),
            Whose::Service(id) => self.services.find(id, packet.dst),
            // A connection that a client may have had since before this daemon began. What asks about one is not answered
            // by one who does not know.
            Whose::Nobody => match message {
                CmMessage::Dreq(Dreq { remote_qpn, .. })
                | CmMessage::Lap(Lap { remote_qpn, .. }) => {
                    let block = Block::of(remote_qpn);
                    if block.is_some_and(|block| self.leases.is_awaited(block)) {
                        return;
                    }
                    self.blocks.owner_of(remote_qpn)
                }
                CmMessage::Rep(_) if self.leases.has_unknown() => return,
                _ => None,
            },
        };
        match client {
            Some(client) => self.carry(from, client, packet),
            None => {
                self.strays.handle(now, (packet.src, packet.dst), mad);
                self.collect_strays();
            }
        }
    }

    pub(super) fn collect_strays(&mut self) {
        while let Some(mad) = self.strays.poll_mad() {
            self.mads.push_back(mad);
        }
    }

    /// Carries packets to a client, which and that client have to do with each other from now on.
    fn carry(&mut self, from: Option<ClientId>, client: ClientId, run: &Packets<'_>) {
        if let Some(from) = from {
            acquaint(&mut self.clients, from, client);
        }
        let Some(known) = self.clients.get_mut(&client) else {
            return;
        };
        match known.outbox.carry(Message::Packets(*run).encode()) {
            true => {
                self.counters.inward += 1;
                self.ready.insert(client);
            }
            false => self.counters.lost_inward += 1,
        }
    }
}
