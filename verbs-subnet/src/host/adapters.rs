//! HCAs of other processes, each attached to a port: their packets, and the messages to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use verbs_core::mad::sm::{CapabilityMask, PERMISSIVE_LID};
use verbs_core::time::Instant;
use verbs_core::{Lid, PKey};

use super::{Host, Role};
use crate::attached::{change_of, tables_of};
use crate::ipc::message::{Message, MessageError, PACKETS_MAX, Refusal};
use crate::packet::Packet;
use crate::subnet::{Bound, SubnetEvent};
use crate::topology::PortRef;
use verbs_wire::{Bth, BthView, Frame};

/// Buffers that are kept for reuse.
const SPARE_MAX: usize = 256;
/// Messages of at least this length are passed on unchanged; shorter ones are combined.
const WHOLE_MIN: usize = 8 << 10;

/// The HCAs that are attached.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    attached: BTreeMap<PortRef, Adapter>,
    /// Ports with a message that has been begun.
    begun: BTreeSet<PortRef>,
    /// Messages that are complete, by client.
    full: VecDeque<(u32, Vec<u8>)>,
    /// Buffers for reuse: long ones with their old contents, because clearing them would cost as much as copying
    /// into them, and short ones.
    spare: [Vec<Vec<u8>>; 2],
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

    /// Appends a packet of at most `len` bytes, which `write` writes, to the message for a port's HCA; does
    /// nothing if there is no HCA.
    fn add(&mut self, at: PortRef, len: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(adapter) = self.attached.get_mut(&at) else {
            return;
        };
        if adapter.message.len() + len > PACKETS_MAX {
            let full = std::mem::replace(&mut adapter.message, empty(&mut self.spare[1]));
            self.full.push_back((adapter.client, full));
        }
        if adapter.message.is_empty() {
            self.begun.insert(at);
        }
        write(&mut adapter.message);
    }

    /// Passes a message on to a port's HCA, after the packets gathered for it.
    fn pass(&mut self, at: PortRef, message: Vec<u8>) {
        let Some(adapter) = self.attached.get_mut(&at) else {
            return;
        };
        if self.begun.remove(&at) {
            let begun = std::mem::replace(&mut adapter.message, empty(&mut self.spare[1]));
            self.full.push_back((adapter.client, begun));
        }
        self.full.push_back((adapter.client, message));
    }

    fn poll(&mut self) -> Option<(u32, Vec<u8>)> {
        if let Some(full) = self.full.pop_front() {
            return Some(full);
        }
        let at = self.begun.pop_first()?;
        let adapter = self.attached.get_mut(&at)?;
        let next = empty(&mut self.spare[1]);
        Some((
            adapter.client,
            std::mem::replace(&mut adapter.message, next),
        ))
    }
}

impl Host {
    /// A message with packets for the client of an attached HCA, in wire format: see
    /// [`message`](crate::ipc::message). [Return](Self::recycle) it when it has been sent.
    pub fn poll_packets(&mut self) -> Option<(u32, Vec<u8>)> {
        self.adapters.poll()
    }

    /// Takes a buffer back for reuse.
    pub fn recycle(&mut self, message: Vec<u8>) {
        let [long, short] = &mut self.adapters.spare;
        let kind = if message.len() < WHOLE_MIN {
            short
        } else {
            long
        };
        if kind.len() < SPARE_MAX {
            kind.push(message);
        }
    }

    /// A buffer of any length for packets to handle; its contents do not matter.
    pub fn spare(&mut self) -> Vec<u8> {
        self.adapters.spare[0].pop().unwrap_or_default()
    }

    /// Attaches a client's HCA to a port.
    pub(super) fn attach(
        &mut self,
        now: Instant,
        client: u32,
        at: PortRef,
    ) -> Result<Message, Refusal> {
        if self.subnet.node(at.node).is_none_or(|sma| sma.is_switch()) {
            return Err(Refusal::Missing);
        }
        if self.adapters.has(at) {
            return Err(Refusal::Taken);
        }
        self.clients.attach(client, at)?;
        let message = Vec::new();
        self.adapters
            .attached
            .insert(at, Adapter { client, message });
        if self.adapters.orphans.remove(&at) {
            self.subnet.plug(now, at, true);
        }
        // The tables contain all changes so far.
        while self.subnet.poll_event().is_some() {}
        let tables = tables_of(&self.subnet, at).ok_or(Refusal::Missing)?;
        Ok(Message::Attached(tables))
    }

    /// An attached HCA has ended; if it ended by itself, it announced that before.
    pub(super) fn detach(&mut self, now: Instant, at: PortRef, has_left: bool) {
        self.adapters.attached.remove(&at);
        self.adapters.begun.remove(&at);
        let nothing = CapabilityMask::empty();
        self.subnet.offer(now, at, nothing, CapabilityMask::IS_SM);
        if !has_left {
            self.adapters.orphans.insert(at);
            self.subnet.plug(now, at, false);
        }
    }

    /// Handles a message of an attached HCA about its port.
    pub(super) fn handle_own(&mut self, now: Instant, client: u32, said: &Message) {
        let Some(Role::Attached(at)) = self.clients.role(client) else {
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
                self.clients.leave(client);
                self.detach(now, at, true);
            }
            _ => {}
        }
    }

    /// Handles a message with packets of a client's attached HCA: the first `len` bytes. The buffer may be kept
    /// to pass the message on, and is then empty.
    ///
    /// # Errors
    /// [`MessageError`] for a malformed packet; the caller should disconnect the client.
    pub fn handle_packets(
        &mut self,
        now: Instant,
        client: u32,
        message: &mut Vec<u8>,
        len: usize,
    ) -> Result<(), MessageError> {
        let Some(Role::Attached(at)) = self.clients.role(client) else {
            // It has detached.
            return Ok(());
        };
        if self.pass(at, message, len) {
            return Ok(());
        }
        let packets = message.get(..len).ok_or(MessageError::Short)?;
        let taken = self.take_packets(now, at, packets);
        self.advance(now);
        taken
    }

    /// Passes a long message on unchanged, if all its packets take one path; `false` if they must be handled one
    /// by one.
    fn pass(&mut self, from: PortRef, message: &mut Vec<u8>, len: usize) -> bool {
        let bundle = message.get(..len).and_then(|it| Bundle::of(from, it));
        let Some(Bundle {
            packets,
            bound,
            first,
        }) = bundle
        else {
            return false;
        };
        let said = first.vl;
        if !self.is_source(from, &first, false) {
            return false;
        }
        let Some((to, vl)) = self.subnet.carry(bound, packets, len as u64 / 4) else {
            return false;
        };
        let mut message = std::mem::take(message);
        message.truncate(len);
        if vl != said {
            let mut rest = &mut message[..];
            while let Ok((_, _, behind)) = Frame::split(rest) {
                let len = rest.len() - behind.len();
                let (packet, behind) = rest.split_at_mut(len);
                set_lane(packet, vl);
                rest = behind;
            }
        }
        self.adapters.pass(to, message);
        true
    }

    fn take_packets(
        &mut self,
        now: Instant,
        at: PortRef,
        message: &[u8],
    ) -> Result<(), MessageError> {
        let mut rest = message;
        while !rest.is_empty() {
            let (frame, transport, behind) =
                Frame::split(rest).map_err(|_| MessageError::BadPacket)?;
            let bytes = &rest[..rest.len() - behind.len()];
            rest = behind;
            let Some(bth) = transport.first_chunk::<{ Bth::LEN }>() else {
                return Err(MessageError::BadPacket);
            };
            let bth = BthView::of(bth);
            let qpn = bth.dest_qpn().value();
            if !self.is_source(at, &frame, qpn == 0) {
                self.forged += 1;
                continue;
            }
            if qpn <= 1 || !self.carry(at, &frame, bth.pkey(), bytes) {
                self.send(now, at, &frame, transport);
            }
        }
        Ok(())
    }

    /// Whether a packet of a port's HCA has a true source: one of the port's LIDs, and one of its GIDs if it has
    /// a global route header. On directed routes the permissive LID is used instead, and the port may have no LID
    /// yet.
    fn is_source(&self, at: PortRef, frame: &Frame, is_smp: bool) -> bool {
        let node = self.subnet.node(at.node);
        let Some(port) = node.and_then(|node| node.port(at.port)) else {
            return false;
        };
        let without = frame.slid == PERMISSIVE_LID || frame.slid == Lid(0);
        let is_lid = port.info().has_lid(frame.slid) || is_smp && without;
        let is_gid = |sgid| (0..port.info().guid_cap).any(|index| port.gid(index) == Some(sgid));
        is_lid && frame.grh.is_none_or(|grh| is_gid(grh.sgid))
    }

    /// Carries a packet unchanged; `false` if it must be handled at each port.
    fn carry(&mut self, from: PortRef, frame: &Frame, pkey: PKey, bytes: &[u8]) -> bool {
        let bound = Bound {
            from,
            dlid: frame.dlid,
            sl: frame.sl,
            pkey,
        };
        let words = bytes.len() as u64 / 4;
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

    /// Sends a packet that must be handled at each port.
    fn send(&mut self, now: Instant, at: PortRef, frame: &Frame, transport: &[u8]) {
        let mut frame = *frame;
        if let (Lid(0), Some(grh)) = (frame.dlid, frame.grh) {
            let to = self.subnet.find_gid(grh.dgid);
            let lid = to.map_or(Lid(0), |to| self.subnet.lid(to));
            if lid == Lid(0) {
                // Packets to addresses that no port has are lost.
                return;
            }
            frame.dlid = lid;
        }
        self.subnet
            .send(now, at, Packet::of_frame(&frame, transport));
    }

    /// A packet has arrived at a port with an attached HCA.
    pub(super) fn deliver(&mut self, at: PortRef, packet: &Packet) {
        let frame = packet.frame();
        let Some(transport) = packet.transport(&mut self.scratch) else {
            return;
        };
        let len = Frame::LEN_MAX + transport.len();
        let mut headers = [0; Frame::LEN_MAX];
        // A packet that came through the subnet is not too long for its headers.
        let Ok(headers_len) = frame.emit(transport.len(), &mut headers) else {
            return;
        };
        self.adapters.add(at, len, |message| {
            message.extend_from_slice(&headers[..headers_len]);
            message.extend_from_slice(transport);
        });
    }

    /// Reports a change of its port to an attached HCA.
    pub(super) fn tell(&mut self, event: SubnetEvent) {
        let client = self.adapters.attached.get(&event.at).map(|own| own.client);
        let change = change_of(event.change);
        let tables = tables_of(&self.subnet, event.at);
        if let (Some(client), Some(change), Some(tables)) = (client, change, tables) {
            let told = Message::Changed { change, tables };
            self.transmits.push_back((client, told));
        }
    }
}

/// A message whose packets all take one path.
struct Bundle {
    packets: u64,
    bound: Bound,
    /// The headers of the first packet; those of the others differ only in their lengths.
    first: Frame,
}

impl Bundle {
    /// Reads a long message as such a bundle, if it is one.
    fn of(from: PortRef, message: &[u8]) -> Option<Self> {
        let mut bundle: Option<Self> = None;
        let mut rest = message;
        while message.len() >= WHOLE_MIN && !rest.is_empty() {
            let (frame, transport, behind) = Frame::split(rest).ok()?;
            let bth = BthView::of(transport.first_chunk::<{ Bth::LEN }>()?);
            let bound = Bound {
                from,
                dlid: frame.dlid,
                sl: frame.sl,
                pkey: bth.pkey(),
            };
            let is_mad = bth.dest_qpn().value() <= 1;
            let whole = bundle.get_or_insert(Self {
                packets: 0,
                bound,
                first: frame,
            });
            let gids = |frame: &Frame| frame.grh.map(|grh| (grh.sgid, grh.dgid));
            let first = &whole.first;
            let is_alike = (first.vl, first.slid) == (frame.vl, frame.slid);
            if is_mad || whole.bound != bound || !is_alike || gids(first) != gids(&frame) {
                return None;
            }
            whole.packets += 1;
            rest = behind;
        }
        bundle
    }
}

/// An empty buffer.
fn empty(spare: &mut Vec<Vec<u8>>) -> Vec<u8> {
    let mut buffer = spare.pop().unwrap_or_default();
    buffer.clear();
    buffer
}

/// Writes another virtual lane into a packet.
fn set_lane(packet: &mut [u8], vl: u8) {
    if let Some(first) = packet.first_mut() {
        *first = *first & 15 | vl << 4;
    }
}
