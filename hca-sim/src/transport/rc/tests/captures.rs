//! Packets of Linux rxe against this crate's machines: its requests to our responder must produce the answers that its
//! own responder gave, byte for byte, and its answers to our requester must be answers to the packets that its own
//! requester sent.
//!
//! Only keys are replaced, as a table of regions draws its own.

use std::collections::BTreeSet;
use std::path::PathBuf;

use verbs_core::{Payload, Psn, Remote};

use super::*;
use crate::wire::{BthFlags, Envelope, Message, Operation, Service, Syndrome};

use crate::link::pcap::reader::Capture;

/// The requests of one side and the answers to them, in the order of the capture.
#[derive(Default)]
struct Talk {
    name: String,
    /// Whether it is a request, and the packet.
    packets: Vec<(bool, Vec<u8>)>,
    /// The number of the last request.
    last: Psn,
}

impl Talk {
    fn parsed(&self, requests: bool) -> impl Iterator<Item = Packet<'_>> {
        self.packets
            .iter()
            .filter(move |(request, _)| *request == requests)
            .map(|(_, bytes)| Packet::parse(bytes).unwrap())
    }

    /// The path MTU: the payload of a First.
    fn mtu(&self) -> Mtu {
        [true, false]
            .into_iter()
            .flat_map(|requests| self.parsed(requests))
            .find(|packet| packet.head.opcode().facts().place == crate::wire::Place::First)
            .map_or(Mtu::B1024, |first| {
                Mtu::from_bytes(first.payload.len() as u32).unwrap()
            })
    }
}

/// All reliable connections of a capture, each direction of its own.
fn talks(capture: &Capture) -> Vec<Talk> {
    // By the requester's address and the responder's queue pair.
    let mut talks: BTreeMap<(Vec<u8>, u32), Talk> = BTreeMap::new();
    for (_, ip) in capture.ip_packets() {
        let Ok((_, bytes)) = Envelope::parse(ip) else {
            continue;
        };
        let head = Packet::parse(bytes).unwrap().head;
        if head.opcode().service() != Service::Rc {
            continue;
        }
        let addresses = match ip[0] >> 4 {
            4 => &ip[12..20],
            _ => &ip[8..40],
        };
        let (from, to) = addresses.split_at(addresses.len() / 2);
        let request = head.opcode().is_request();
        let talk = if request {
            let key = (from.to_vec(), head.bth().dest_qpn.value());
            Some(talks.entry(key).or_default())
        } else {
            // An answer does not name the responder's queue pair: its number is near the requests'.
            let ours = talks
                .iter_mut()
                .filter(|((requester, _), _)| requester == to);
            ours.map(|(_, talk)| talk)
                .min_by_key(|talk| talk.last.since(head.bth().psn).unsigned_abs())
        };
        let talk = talk.unwrap();
        if request {
            talk.last = head.bth().psn;
        }
        talk.name.clone_from(&capture.name);
        talk.packets.push((request, bytes.to_vec()));
    }
    talks.into_values().collect()
}

fn captures() -> Vec<Capture> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../verbs-wire/tests/captures");
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "pcap"))
        .collect();
    paths.sort();
    paths.iter().map(|path| Capture::read(path)).collect()
}

/// The parts of an answer that are compared: opcode, number, AETH and the rest of the headers, payload.
fn essence(packet: &Packet<'_>) -> String {
    let bth = packet.head.bth();
    format!(
        "{} {} {:?} {:x?}",
        bth.opcode,
        bth.psn,
        packet.head.ext(),
        packet.payload
    )
}

/// A responder whose only region lies where the talk's requests read and write.
fn responder(talk: &Talk) -> Machine {
    let mut machine = Machine::new(0x10, false);
    let first = talk.parsed(true).next().unwrap().head.bth().psn;
    let addr = talk.parsed(true).find_map(|packet| {
        let ext = packet.head.ext();
        ext.reth
            .map(|reth| reth.addr)
            .or(ext.atomic.map(|eth| eth.addr))
    });
    let timer = talk
        .parsed(false)
        .find_map(|packet| match packet.head.ext().aeth?.syndrome {
            Syndrome::RnrNak(timer) => Some(timer.to_u8()),
            _ => None,
        });
    machine.path.mtu = talk.mtu();
    machine.path.rq_psn = first.value();
    machine.path.max_dest_rd_atomic = 128;
    machine.path.min_rnr_timer = timer.unwrap_or(0);
    let region = Region {
        iova: addr.unwrap_or(0) & !0xfff,
        len: MEMORY / 2,
        ..Region::new(
            Arc::clone(&machine.memory),
            Access::LOCAL_WRITE | Access::REMOTE,
            PD,
        )
    };
    machine.rkey = machine.mrs.register(region).unwrap().1;
    machine
}

/// Puts our key into a request, unless the peer refused the request because of its key.
fn give_key(machine: &Machine, packet: &Packet<'_>, bytes: &mut [u8], refused: bool) {
    let ext = packet.head.ext();
    let at = match (ext.ieth, ext.reth.is_some() || ext.atomic.is_some()) {
        (Some(_), _) => 12,
        (_, true) => 20,
        _ => return,
    };
    let key = match (refused, ext.ieth) {
        (true, _) => RKey::new(0),
        (_, None) => machine.rkey,
        (_, Some(_)) => register_fast(&machine.mrs, &machine.memory, Access::REMOTE_READ, PD),
    };
    bytes[at..at + 4].copy_from_slice(&key.value().to_be_bytes());
}

/// Writes what the peer had in its memory, known from its answers.
fn prepare_memory(machine: &Machine, talk: &Talk, packet: &Packet<'_>, words: &mut BTreeSet<u64>) {
    let iova = machine
        .mrs
        .query(LKey::new(machine.rkey.value()))
        .unwrap()
        .iova;
    let psn = packet.head.bth().psn;
    let ext = packet.head.ext();
    for answer in talk.parsed(false) {
        let (reth, offset) = (ext.reth, answer.head.bth().psn.since(psn));
        let facts = answer.head.opcode().facts();
        if let (Some(reth), Message::Read, 0..) = (reth, facts.message, offset)
            && packet.head.opcode().operation() == Operation::ReadRequest
            && offset.cast_unsigned() < talk.mtu().packets(reth.dma_len)
        {
            let at = reth.addr - iova + u64::from(offset.cast_unsigned() << talk.mtu().shift());
            machine.memory.write(at as usize, answer.payload).unwrap();
        }
        if let (Some(eth), Some(value), 0) = (ext.atomic, answer.head.ext().atomic_ack, offset) {
            let at = (eth.addr - iova) as usize;
            // From then on our own machine adds.
            if words.insert(eth.addr) {
                machine.memory.store_u64(at, value.original).unwrap();
            }
        }
    }
}

fn answer_as_rxe(talk: &Talk) -> usize {
    let mut machine = responder(talk);
    let expected: Vec<_> = talk.parsed(false).collect();
    let mut answers: Vec<Vec<u8>> = Vec::new();
    let mut words = BTreeSet::new();
    for packet in talk.parsed(true) {
        let next = expected
            .get(answers.len())
            .and_then(|answer| answer.head.ext().aeth);
        let next = next.map(|aeth| aeth.syndrome.to_u8());
        if next.is_none_or(|next| next & 0x60 != 0x20) && machine.recvs.next().is_none() {
            let room = machine.sge(MEMORY / 2, 0x4_0000);
            machine.post_recv(0, &[room]);
        }
        prepare_memory(&machine, talk, &packet, &mut words);
        let mut bytes = vec![0; packet.wire_len()];
        let start = packet.head.emit(packet.payload.len(), &mut bytes).unwrap();
        bytes[start..start + packet.payload.len()].copy_from_slice(packet.payload);
        bytes[5..8].copy_from_slice(&machine.qpn.value().to_be_bytes()[1..]);
        give_key(&machine, &packet, &mut bytes, next == Some(0x62));
        machine.receive(0, &bytes);
        machine.room = 1000;
        answers.extend(machine.transmit(0).0.into_iter().map(|(bytes, _)| bytes));
    }
    let ours: Vec<_> = answers
        .iter()
        .map(|bytes| essence(&Packet::parse(bytes).unwrap()))
        .collect();
    let theirs: Vec<_> = expected.iter().map(essence).collect();
    assert_eq!(ours, theirs, "{}", talk.name);
    ours.len()
}

/// Goal: our responder answers rxe's requests as rxe did. Method: all captures; a SEND that does not fit is left out,
/// because rxe answers it with a NAK other than the one of hardware and of this crate.
#[test]
fn our_responder_answers_as_rxe() {
    let mut answers = 0;
    for capture in captures()
        .iter()
        .filter(|capture| !capture.name.ends_with("toolong"))
    {
        if capture.name == "rxe-verbs-atomic-write" {
            continue;
        }
        for talk in talks(capture) {
            answers += answer_as_rxe(&talk);
        }
    }
    assert_eq!(answers, 175, "by an independent count");
}

/// The work requests that a talk's requests are, with their bytes.
fn work(talk: &Talk) -> Vec<(SendOp, usize, Vec<u8>)> {
    let mut work: Vec<(SendOp, usize, Vec<u8>)> = Vec::new();
    let mut next = talk.parsed(true).next().unwrap().head.bth().psn;
    for packet in talk.parsed(true) {
        if packet.head.bth().psn != next {
            continue;
        }
        let (ext, facts) = (packet.head.ext(), packet.head.opcode().facts());
        let remote = |reth: crate::wire::Reth| Remote {
            addr: reth.addr,
            rkey: reth.rkey,
        };
        let mut packets = 1;
        if facts.place.is_first() {
            let (op, len) = match (facts.message, ext.reth, ext.atomic) {
                (Message::Write, Some(reth), _) => (SendOp::Write(remote(reth)), 0),
                (Message::Read, Some(reth), _) => {
                    packets = talk.mtu().packets(reth.dma_len);
                    (SendOp::Read(remote(reth)), reth.dma_len as usize)
                }
                (Message::Atomic, _, Some(eth)) => {
                    let remote = Remote {
                        addr: eth.addr,
                        rkey: eth.rkey,
                    };
                    let op = match packet.head.opcode().operation() {
                        Operation::CompareSwap => SendOp::CompareSwap {
                            remote,
                            compare: eth.compare,
                            swap: eth.swap_or_add,
                        },
                        _ => SendOp::FetchAdd {
                            remote,
                            add: eth.swap_or_add,
                        },
                    };
                    (op, 8)
                }
                _ => (SendOp::Send, 0),
            };
            work.push((op, len, Vec::new()));
        }
        let (op, len, bytes) = work.last_mut().unwrap();
        bytes.extend_from_slice(packet.payload);
        *len = (*len).max(bytes.len());
        if let Some(immdt) = ext.immdt {
            *op = match *op {
                SendOp::Write(remote) => SendOp::WriteWithImm(remote, immdt.imm),
                _ => SendOp::SendWithImm(immdt.imm),
            };
        }
        if let Some(ieth) = ext.ieth {
            *op = SendOp::SendWithInv(ieth.rkey);
        }
        next = next.add(packets);
    }
    work
}

/// The parts of a request that are compared: everything except whether it asks for an acknowledgement, and the noise
/// that rxe leaves in a field of FETCH ADD that is never read.
fn request_essence(packet: &Packet<'_>) -> String {
    let bth = packet.head.bth();
    let mut ext = *packet.head.ext();
    if let (Some(eth), Operation::FetchAdd) = (&mut ext.atomic, bth.opcode.operation()) {
        eth.compare = 0;
    }
    let solicited = bth.flags.contains(BthFlags::SOLICITED);
    format!(
        "{} {} {ext:?} {solicited} {:x?}",
        bth.opcode, bth.psn, packet.payload
    )
}

/// How a talk's last work request ended.
fn end_of(talk: &Talk) -> WcStatus {
    let bad = talk.parsed(false).find_map(|packet| {
        let code = packet.head.ext().aeth?.syndrome.to_u8();
        (code >= 0x60).then_some(code)
    });
    match bad {
        None => WcStatus::Success,
        Some(0x61) => WcStatus::RemInvReqErr,
        Some(0x62) => WcStatus::RemAccessErr,
        Some(_) => WcStatus::RemOpErr,
    }
}

fn ask_as_rxe(talk: &Talk) -> usize {
    let mut machine = Machine::new(0x10, false);
    machine.path.mtu = talk.mtu();
    machine.path.max_rd_atomic = 128;
    machine.path.timeout = 0;
    machine.path.sq_psn = talk.parsed(true).next().unwrap().head.bth().psn.value();
    machine.room = 10_000;
    let work = work(talk);
    let solicited = talk
        .parsed(true)
        .any(|p| p.head.bth().flags.contains(BthFlags::SOLICITED));
    let mut sent: Vec<Vec<u8>> = Vec::new();
    let mut answers = talk
        .packets
        .iter()
        .filter(|(request, _)| !request)
        .peekable();
    let mut statuses = Vec::new();
    for (number, (op, len, bytes)) in work.iter().enumerate() {
        machine.memory.write(0, bytes).unwrap();
        let sge = machine.sge(0, *len as u32);
        let mut wr = wr(number as u64, *op, &[]);
        wr.flags.set(SendFlags::SOLICITED, solicited);
        wr.payload = Payload::One(sge);
        machine.post(wr);
        sent.extend(machine.transmit(0).0.into_iter().map(|(bytes, _)| bytes));
        // Everything that this work request sent, repetitions included.
        while machine.sends.next().is_some()
            && let Some((_, bytes)) = answers.next()
        {
            let mut bytes = bytes.clone();
            bytes[5..8].copy_from_slice(&machine.qpn.value().to_be_bytes()[1..]);
            machine.receive(0, &bytes);
            if machine.dead {
                break;
            }
            while let Some(deadline) = machine.rc.deadline() {
                let now = deadline.as_nanos();
                machine.with(now, |rc, ends, events| rc.expire(ends, events));
                sent.extend(machine.transmit(now).0.into_iter().map(|(bytes, _)| bytes));
            }
        }
        statuses.extend(machine.send_statuses());
    }
    let last = end_of(talk);
    assert_eq!(statuses.len(), work.len(), "{}", talk.name);
    assert!(statuses.split_last().is_none_or(|((_, status), before)| {
        *status == last
            && before
                .iter()
                .all(|(_, status)| *status == WcStatus::Success)
    }));
    let ours: Vec<_> = sent
        .iter()
        .map(|bytes| request_essence(&Packet::parse(bytes).unwrap()))
        .collect();
    let mut theirs: Vec<_> = talk
        .parsed(true)
        .map(|packet| request_essence(&packet))
        .collect();
    if talk.name.contains("duplicate") {
        theirs.dedup();
    }
    assert_eq!(ours, theirs, "{}", talk.name);
    ours.len()
}

/// Goal: our requester sends what rxe's did, and understands what rxe answered. Method: all captures; each work request
/// as rxe's packets show it.
#[test]
fn our_requester_asks_as_rxe() {
    let mut requests = 0;
    for capture in captures() {
        if capture.name == "rxe-verbs-atomic-write" {
            continue;
        }
        for talk in talks(&capture) {
            requests += ask_as_rxe(&talk);
        }
    }
    assert_eq!(requests, 215, "by an independent count");
}
