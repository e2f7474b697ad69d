//! HCAs of other processes, each attached to a port: their packets, and what they are told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use verbs_core::mad::Time;
use verbs_core::mad::sm::CapabilityMask;
use verbs_core::{Lid, PKey};

use super::{Host, Role};
use crate::link::fabric::attached::{change_of, sheet_of};
use crate::link::fabric::message::{
    BUNDLE_MAX, Message, MessageError, PACKETS, PACKETS_AT, Refusal,
};
use crate::link::fabric::packet::Packet;
use crate::link::fabric::subnet::{Bound, SubnetEvent};
use crate::link::fabric::topology::PortRef;
use crate::wire::{Bth, BthView, Frame, Vcrc};

/// Buffers that are kept to be used again.
const SPARE_MAX: usize = 256;

/// The HCAs that are attached.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    attached: BTreeMap<PortRef, Adapter>,
    /// Ports that have something in their message.
    begun: BTreeSet<PortRef>,
    /// Messages that are complete, by client.
    full: VecDeque<(u32, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    /// Ports whose link is down because their HCA has died.
    orphans: BTreeSet<PortRef>,
}

#[derive(Debug)]
struct Adapter {
    client: u32,
    /// The message that packets are gathered in.
    message: Vec<u8>,
}

impl Adapters {
    /// Whether an HCA is attached there.
    pub(super) fn has(&self, at: PortRef) -> bool {
        self.attached.contains_key(&at)
    }

    /// Adds what `write` writes, a packet of at most so many bytes, to the message for a port's HCA; nothing
    /// if there is no HCA.
    fn add(&mut self, at: PortRef, len: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(adapter) = self.attached.get_mut(&at) else {
            return;
        };
        if adapter.message.len() + len > BUNDLE_MAX {
            let full =
                std::mem::replace(&mut adapter.message, self.spare.pop().unwrap_or_default());
            self.full.push_back((adapter.client, full));
        }
        if adapter.message.is_empty() {
            adapter.message.extend([PACKETS, 0, 0, 0]);
            self.begun.insert(at);
        }
        write(&mut adapter.message);
    }

    fn poll(&mut self) -> Option<(u32, Vec<u8>)> {
        if let Some(full) = self.full.pop_front() {
            return Some(full);
        }
        let at = self.begun.pop_first()?;
        let adapter = self.attached.get_mut(&at)?;
        let next = self.spare.pop().unwrap_or_default();
        Some((
            adapter.client,
            std::mem::replace(&mut adapter.message, next),
        ))
    }
}

impl Host {
    /// A message with packets for the client of an attached HCA, as it goes over the wire: see
    /// [`message`](crate::link::fabric::message). Give it [back](Self::recycle) when it was sent.
    pub fn poll_packets(&mut self) -> Option<(u32, Vec<u8>)> {
        self.adapters.poll()
    }

    /// Takes a buffer back, for packets to come.
    pub fn recycle(&mut self, mut message: Vec<u8>) {
        if self.adapters.spare.len() < SPARE_MAX {
            message.clear();
            self.adapters.spare.push(message);
        }
    }

    /// Attaches a client's HCA to a port.
    pub(super) fn attach(
        &mut self,
        now: Time,
        client: u32,
        at: PortRef,
    ) -> Result<Message, Refusal> {
        if self.subnet.node(at.node).is_none_or(|sma| sma.is_switch()) {
            return Err(Refusal::Missing);
        }
        if self.adapters.has(at) {
            return Err(Refusal::Taken);
        }
        let role = self.clients.get_mut(&client).ok_or(Refusal::Missing)?;
        if *role != Role::New {
            return Err(Refusal::Invalid);
        }
        *role = Role::Attached(at);
        let message = Vec::new();
        self.adapters
            .attached
            .insert(at, Adapter { client, message });
        if self.adapters.orphans.remove(&at) {
            self.subnet.plug(now, at, true);
        }
        // What has happened so far, its sheet has.
        while self.subnet.poll_event().is_some() {}
        let sheet = sheet_of(&self.subnet, at).ok_or(Refusal::Missing)?;
        Ok(Message::Attached(sheet))
    }

    /// An attached HCA has gone; by itself it says so before.
    pub(super) fn detach(&mut self, now: Time, at: PortRef, has_left: bool) {
        self.adapters.attached.remove(&at);
        self.adapters.begun.remove(&at);
        let nothing = CapabilityMask::empty();
        self.subnet.offer(now, at, nothing, CapabilityMask::IS_SM);
        if !has_left {
            self.adapters.orphans.insert(at);
            self.subnet.plug(now, at, false);
        }
    }

    /// What an attached HCA says about its port.
    pub(super) fn handle_own(&mut self, now: Time, client: u32, said: &Message) {
        let Some(&Role::Attached(at)) = self.clients.get(&client) else {
            return;
        };
        match said {
            Message::Offer { set, clear } => {
                let [set, clear] = [*set, *clear].map(CapabilityMask::from_bits_retain);
                self.subnet.offer(now, at, set, clear);
            }
            Message::Report(key) => self.subnet.report(now, at, key),
            Message::PlugOwn { is_in } => {
                self.subnet.plug(now, at, *is_in);
            }
            Message::Leave => {
                self.clients.insert(client, Role::New);
                self.detach(now, at, true);
            }
            _ => {}
        }
    }

    /// Packets of an attached HCA.
    ///
    /// # Errors
    /// [`MessageError`] for what is no packet.
    pub(super) fn handle_packets(
        &mut self,
        now: Time,
        client: u32,
        message: &[u8],
    ) -> Result<(), MessageError> {
        let Some(&Role::Attached(at)) = self.clients.get(&client) else {
            return Err(MessageError::Unknown(PACKETS));
        };
        let mut rest = message.get(PACKETS_AT..).ok_or(MessageError::Short)?;
        while !rest.is_empty() {
            let (frame, transport, behind) =
                Frame::split(rest).map_err(|_| MessageError::BadPacket)?;
            let bytes = &rest[..rest.len() - behind.len()];
            rest = behind;
            let Some(bth) = transport.first_chunk::<{ Bth::LEN }>() else {
                return Err(MessageError::BadPacket);
            };
            let bth = BthView::of(bth);
            let is_mad = bth.dest_qpn().value() <= 1;
            if is_mad || !self.carry(at, &frame, bth.pkey(), bytes) {
                self.send(now, at, &frame, transport);
            }
        }
        Ok(())
    }

    /// Carries a packet as it is; `false` if it has to be looked at.
    fn carry(&mut self, from: PortRef, frame: &Frame, pkey: PKey, bytes: &[u8]) -> bool {
        let bound = Bound {
            from,
            dlid: frame.dlid,
            sl: frame.sl,
            pkey,
        };
        let words = (bytes.len() - Vcrc::LEN) as u64 / 4;
        let Some((to, vl)) = self.subnet.carry(bound, 1, words) else {
            return false;
        };
        self.adapters.add(to, bytes.len(), |message| {
            let start = message.len();
            message.extend_from_slice(bytes);
            if vl != frame.vl {
                set_lane(&mut message[start..], vl);
            }
        });
        true
    }

    /// Sends a packet that has to be looked at at each port.
    fn send(&mut self, now: Time, at: PortRef, frame: &Frame, transport: &[u8]) {
        let mut frame = *frame;
        if let (Lid(0), Some(grh)) = (frame.dlid, frame.grh) {
            let to = self.subnet.find_gid(grh.dgid);
            let lid = to.map_or(Lid(0), |to| self.subnet.lid(to));
            if lid == Lid(0) {
                // Packets to nobody are lost on the way.
                return;
            }
            frame.dlid = lid;
        }
        self.subnet
            .send(now, at, Packet::of_frame(&frame, transport));
    }

    /// A packet has come to a port that an HCA is attached to.
    pub(super) fn deliver(&mut self, at: PortRef, packet: &Packet) {
        let frame = packet.frame();
        let Some(transport) = packet.transport(&mut self.scratch) else {
            return;
        };
        let len = Frame::LEN_MAX + transport.len() + Vcrc::LEN;
        self.adapters.add(at, len, |message| {
            // A packet that came through the subnet is not too long for its headers.
            let _ = frame.append(transport, message);
        });
    }

    /// Tells an attached HCA what has happened to its port.
    pub(super) fn tell(&mut self, event: SubnetEvent) {
        let client = self.adapters.attached.get(&event.at).map(|own| own.client);
        let change = change_of(event.change);
        let sheet = sheet_of(&self.subnet, event.at);
        if let (Some(client), Some(change), Some(sheet)) = (client, change, sheet) {
            let told = Message::Changed { change, sheet };
            self.transmits.push_back((client, told));
        }
    }
}

/// Writes another virtual lane into a packet.
fn set_lane(packet: &mut [u8], vl: u8) {
    let Some((covered, vcrc)) = packet.split_last_chunk_mut::<{ Vcrc::LEN }>() else {
        return;
    };
    if let Some(first) = covered.first_mut() {
        *first = *first & 15 | vl << 4;
    }
    *vcrc = Vcrc::of(covered);
}
