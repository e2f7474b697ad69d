//! Injected defects of the network: packets changed as if a defective HCA had sent them, with a correct ICRC.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use verbs_core::addr::{Msn, PKey, Psn, QKey, Qpn, Srqn};
use verbs_wire::{
    Aeth, AtomicEth, Bth, BthFlags, CreditCode, Envelope, Extended, Head, Ieth, ImmDt, Message,
    Net, Opcode, Operation, Packet, Place, ROCE_PORT, Reth, Role, Service, Syndrome,
};

use crate::mutant::Mutant;
use crate::mutant::services::Services;
use crate::{Draw, Ppm};

/// How often a defect shows, of the packets that it can concern.
const OFTEN: Ppm = Ppm::percent(10);
/// How long a WRITE is held up that was already acknowledged.
const HELD_UP: Duration = Duration::from_millis(3);

/// Changes packets; changes none unless there is a mutant of this place.
pub(crate) struct PacketMutator {
    mutant: Option<Mutant>,
    draw: Draw,
    /// The queue pair at the other end of each, as runs have connected them.
    peers: BTreeMap<Qpn, Qpn>,
    /// Flows to a queue pair whose numbers lag behind by that much.
    skipped: BTreeMap<Qpn, u32>,
    /// The payload of the last READ response.
    last_read: Vec<u8>,
    /// The key that the last SEND with invalidate to each queue pair has named.
    last_ended: BTreeMap<Qpn, Ieth>,
    services: Services,
    passed: u64,
    /// The flow that no longer carries anything.
    dead: Option<Qpn>,
}

/// A packet as it is passed on.
pub(crate) struct Passed<'a> {
    pub(crate) bytes: Cow<'a, [u8]>,
    /// The time for which it is held up.
    pub(crate) delay: Duration,
    /// It is not passed on.
    pub(crate) swallowed: bool,
    /// The packets that arrive at the sender at once.
    pub(crate) answers: Vec<Box<[u8]>>,
}

impl<'a> Passed<'a> {
    fn unchanged(bytes: &'a [u8]) -> Self {
        Self {
            bytes: Cow::Borrowed(bytes),
            delay: Duration::ZERO,
            swallowed: false,
            answers: Vec::new(),
        }
    }
}

impl PacketMutator {
    pub(crate) fn new(draw: Draw) -> Self {
        Self {
            mutant: None,
            draw,
            peers: BTreeMap::new(),
            skipped: BTreeMap::new(),
            last_read: Vec::new(),
            last_ended: BTreeMap::new(),
            services: Services::default(),
            passed: 0,
            dead: None,
        }
    }

    /// Injects this defect from now on, if it is one of the network.
    pub(crate) fn inject(&mut self, mutant: Option<Mutant>) {
        self.mutant = mutant.filter(|mutant| mutant.needs_packets());
    }

    /// Two queue pairs are connected from now on.
    pub(crate) fn connected(&mut self, a: Qpn, b: Qpn) {
        for (from, to) in [(a, b), (b, a)] {
            self.peers.insert(from, to);
            self.skipped.remove(&from);
        }
    }

    /// A queue pair receives datagrams with that key from now on.
    pub(crate) fn keyed(&mut self, qpn: Qpn, key: QKey) {
        self.services.keys.insert(qpn, key);
    }

    /// Requests to that target name one of those queues.
    pub(crate) fn queues(&mut self, target: Qpn, queues: &[Srqn]) {
        self.services.queues.insert(target, queues.to_vec());
    }

    /// What becomes of a packet.
    pub(crate) fn pass<'a>(&mut self, envelope: &Envelope, bytes: &'a [u8]) -> Passed<'a> {
        let mut passed = Passed::unchanged(bytes);
        let Some(mutant) = self.mutant else {
            return passed;
        };
        let Ok(packet) = Packet::parse(bytes) else {
            return passed;
        };
        match mutant {
            Mutant::EarlyAck => self.acknowledge_early(envelope, &packet, &mut passed),
            Mutant::DeadLink => {
                self.passed += 1;
                if self.passed == 100 {
                    self.dead = Some(packet.head.bth().dest_qpn);
                }
                passed.swallowed = self.dead == Some(packet.head.bth().dest_qpn);
            }
            Mutant::SkippedPsn => self.skip(envelope, &packet, &mut passed),
            _ => {
                if let Some((head, payload)) = self.change(mutant, &packet)
                    && let Some(changed) = seal(envelope, head, &payload)
                {
                    passed.bytes = Cow::Owned(changed);
                }
            }
        }
        passed
    }

    /// Returns the packet to send instead of this one.
    fn change(&mut self, mutant: Mutant, packet: &Packet<'_>) -> Option<(Head, Vec<u8>)> {
        let (head, mut payload) = (packet.head, packet.payload.to_vec());
        let facts = head.opcode().operation().facts();
        let (mut bth, mut ext) = (*head.bth(), *head.ext());
        match mutant {
            Mutant::StaleRead if facts.message == Message::Read && facts.role == Role::Response => {
                let last = std::mem::replace(&mut self.last_read, payload.clone());
                payload = (last.len() == payload.len() && last != payload).then_some(last)?;
            }
            Mutant::Resealed if !payload.is_empty() => {
                let at = self.draw.below(payload.len());
                payload[at] ^= 1;
            }
            Mutant::PastTheRange if head.opcode().operation() == Operation::WriteOnly => {
                let reth = ext.reth?;
                let dma_len = reth.dma_len + 1;
                ext.reth = Some(Reth { dma_len, ..reth });
                payload.push(!payload.last().copied().unwrap_or(0));
            }
            Mutant::WrongAddress if facts.message == Message::Write => {
                let reth = ext.reth?;
                ext.reth = Some(Reth {
                    addr: reth.addr + 8,
                    ..reth
                });
            }
            Mutant::AtomicTwice if head.opcode().operation() == Operation::FetchAdd => {
                let atomic = ext.atomic?;
                let swap_or_add = atomic.swap_or_add.wrapping_mul(2);
                ext.atomic = Some(AtomicEth {
                    swap_or_add,
                    ..atomic
                });
            }
            Mutant::WrongImm => {
                let ImmDt { imm } = ext.immdt?;
                ext.immdt = Some(ImmDt { imm: imm ^ 1 });
            }
            Mutant::ForgottenInvalidate => {
                let operation = match head.opcode().operation() {
                    Operation::SendOnlyInv => Operation::SendOnly,
                    Operation::SendLastInv => Operation::SendLast,
                    _ => return None,
                };
                bth.opcode = Opcode::new(head.opcode().service(), operation)?;
                ext.ieth = None;
            }
            Mutant::ForeignInvalidate => {
                let named = ext.ieth?;
                let last = self.last_ended.insert(bth.dest_qpn, named);
                ext.ieth = Some(last.filter(|last| *last != named)?);
            }
            Mutant::EarlyRead if head.opcode().operation() == Operation::SendOnly => {
                payload.pop()?;
            }
            _ => self
                .services
                .change(mutant, &head, &mut ext, &mut payload)?,
        }
        if !self.draw.chance(OFTEN) {
            return None;
        }
        Some((Head::new(bth, ext).ok()?, payload))
    }

    /// Acknowledges a WRITE in place of its responder, and holds it up.
    fn acknowledge_early(
        &mut self,
        envelope: &Envelope,
        packet: &Packet<'_>,
        passed: &mut Passed<'_>,
    ) {
        let facts = packet.head.opcode().operation().facts();
        let is_write = facts.message == Message::Write && facts.place.is_last();
        let peer = self.peers.get(&packet.head.bth().dest_qpn).copied();
        let (Some(peer), true) = (peer, is_write && self.draw.chance(OFTEN)) else {
            return;
        };
        let bth = answer(peer, packet.head.bth().pkey, packet.head.bth().psn);
        let aeth = Aeth {
            syndrome: Syndrome::Ack(CreditCode::at_most(0)),
            msn: Msn::new(0),
        };
        let ext = Extended {
            aeth: Some(aeth),
            ..Extended::default()
        };
        let Some(back) = reversed(envelope) else {
            return;
        };
        let Ok(head) = Head::new(bth, ext) else {
            return;
        };
        passed
            .answers
            .extend(seal(&back, head, &[]).map(Vec::into_boxed_slice));
        passed.delay = HELD_UP;
    }

    /// Swallows the middle of a message and renumbers what follows, in both directions.
    fn skip(&mut self, envelope: &Envelope, packet: &Packet<'_>, passed: &mut Passed<'_>) {
        let mut bth = *packet.head.bth();
        let facts = packet.head.opcode().operation().facts();
        let request = facts.role == Role::Request;
        let flow = match request {
            true => bth.dest_qpn,
            false => match self.peers.get(&bth.dest_qpn) {
                Some(&peer) => peer,
                None => return,
            },
        };
        let behind = self.skipped.get(&flow).copied().unwrap_or(0);
        let droppable = request && matches!(facts.place, Place::Middle);
        if droppable && behind == 0 && self.draw.chance(OFTEN) {
            self.skipped.insert(flow, 1);
            passed.swallowed = true;
            return;
        }
        let by = if request {
            behind.wrapping_neg()
        } else {
            behind
        };
        bth.psn = Psn::new(bth.psn.value().wrapping_add(by) & 0xff_ffff);
        if let Ok(head) = Head::new(bth, *packet.head.ext())
            && let Some(changed) = seal(envelope, head, packet.payload)
        {
            passed.bytes = Cow::Owned(changed);
        }
    }
}

/// The headers of the opposite direction.
fn reversed(envelope: &Envelope) -> Option<Envelope> {
    Some(match envelope.net {
        Net::V4 { src, dst, .. } => Envelope::v4(dst, src, ROCE_PORT),
        Net::V6 { src, dst, .. } => Envelope::v6(dst, src, ROCE_PORT),
    })
}

/// The base of an acknowledgement.
fn answer(dest_qpn: Qpn, pkey: PKey, psn: Psn) -> Bth {
    let opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
    Bth {
        opcode: opcode.expect("reliable connections acknowledge"),
        flags: BthFlags::empty(),
        pkey,
        dest_qpn,
        psn,
    }
}

/// The packet in bytes.
pub(crate) fn seal(envelope: &Envelope, head: Head, payload: &[u8]) -> Option<Vec<u8>> {
    let packet = Packet { head, payload };
    let mut bytes = vec![0; packet.wire_len()];
    let icrc = envelope.icrc(bytes.len()).ok()?;
    packet.emit(&mut bytes, &icrc).ok()?;
    Some(bytes)
}
