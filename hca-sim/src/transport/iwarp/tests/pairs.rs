//! Goal: whatever the stream splits and merges, both machines do what two queue pairs do. Method: seeds draw work
//! requests, the size of pieces, how much the outlet takes, and how late receives are posted; memory, completions and their order are checked against
//! what was posted.

use std::collections::VecDeque;

use verbs_core::{Atomic, Read, Send, SendOp, SendWr, WcOpcode, WcStatus, Write};

use super::*;
use crate::rng::Rng;

/// Bytes on their way from one machine to the other.
#[derive(Default)]
struct Pipe(Vec<u8>);

impl Pipe {
    /// Hands over a piece, of a size that is drawn.
    fn deliver(&mut self, to: &mut Machine, rng: &mut Rng) {
        let max = [3, 40, 1500, 100_000][rng.within(0..4) as usize];
        let count = (1 + rng.within(0..max) as usize).min(self.0.len());
        let piece: Vec<u8> = self.0.drain(..count).collect();
        to.receive(&piece);
    }
}

/// The work requests that one side has posted, and what its peer is to have of them.
#[derive(Debug, Default)]
struct Posted {
    sends: Vec<u64>,
    received: Vec<WcOpcode>,
    /// Receives that are to be posted yet.
    receives: VecDeque<(u64, Option<Sge>)>,
}

impl Posted {
    /// Posts the next receive.
    fn receive(&mut self, to: &mut Machine) {
        if let Some((id, room)) = self.receives.pop_front() {
            to.post_recv(id, room.as_slice());
        }
    }
}

fn post_some(from: &mut Machine, to: &Machine, rng: &mut Rng, id: &mut u64) -> Posted {
    let mut posted = Posted::default();
    for _ in 0..rng.within(1..6) {
        let len = [0, 1, 63, 1000, 5000, 60_000][rng.within(0..6) as usize];
        let fill = rng.within(0..256) as u8;
        *id += 1;
        posted.sends.push(*id);
        let place = 0x1_0000 * (*id as usize % 4);
        let wr: SendWr<'_> = match rng.within(0..5) {
            0 => {
                from.memory.fill(place..place + len as usize, fill).unwrap();
                let room = to.sge(0x8_0000 + place, 65_536);
                posted.receives.push_back((*id, Some(room)));
                posted.received.push(WcOpcode::Recv);
                Send::new(*id).from(from.sge(place, len)).signaled().into()
            }
            kind @ 1..3 => {
                from.memory.fill(place..place + len as usize, fill).unwrap();
                let remote = to.remote(0x4_0000 + place);
                let write = Write::new(*id, remote).from(from.sge(place, len));
                if kind == 1 {
                    write.signaled().into()
                } else {
                    posted.receives.push_back((*id, None));
                    posted.received.push(WcOpcode::RecvRdmaWithImm);
                    write.imm(*id as u32).signaled().into()
                }
            }
            3 => {
                let into = from.sge(0x3_f800 + 8 * (*id as usize % 4), 8);
                let add = Atomic::fetch_add(*id, to.remote(0x3_f000), 1);
                SendWr::from(add.into(into).signaled())
            }
            _ => {
                let remote = to.remote(0x4_0000 + place);
                let sink = from.sge(0xc_0000 + place, len);
                SendWr::from(Read::new(*id, remote).into(sink).signaled())
            }
        };
        from.post(wr);
    }
    posted
}

/// How often a message has waited for a receive.
fn run(seed: u64) -> u32 {
    let mut holds = 0;
    let mut rng = Rng::new(seed);
    let has_crc = rng.within(0..4) != 0;
    // How many steps a receive is late.
    let late = [1, 4, 40][rng.within(0..3) as usize];
    let mut ends = [
        Machine::new(start(true, has_crc)),
        Machine::new(start(false, has_crc)),
    ];
    let mut pipes = [Pipe::default(), Pipe::default()];
    let mut id = 0;
    let mut added = [0; 2];
    for _ in 0..6 {
        let [a, b] = &mut ends;
        let mut posted = [
            post_some(a, b, &mut rng, &mut id),
            post_some(b, a, &mut rng, &mut id),
        ];
        let mut done = [Vec::new(), Vec::new()];
        let mut recvs = [Vec::new(), Vec::new()];
        for _ in 0..2_000_000 {
            let which = rng.within(0..2) as usize;
            let room = [Fpdu::wire_len(Fpdu::ULPDU_MAX), STAGE][rng.within(0..2) as usize];
            let (bytes, _) = ends[which].transmit_into(room);
            pipes[which].0.extend(bytes);
            if !pipes[which].0.is_empty() {
                pipes[which].deliver(&mut ends[1 - which], &mut rng);
            }
            if rng.within(0..late) == 0 {
                posted[which].receive(&mut ends[1 - which]);
            }
            if ends[which].iwarp.is_held() {
                holds += 1;
                ends[which].resume();
            }
            for end in 0..2 {
                done[end].extend(ends[end].poll_sends());
                for wc in ends[end].poll_recvs() {
                    assert_eq!(wc.status, WcStatus::Success);
                    assert!(wc.immediate().is_none_or(|imm| u64::from(imm) == wc.wr_id));
                    recvs[end].push(wc.opcode);
                }
            }
            let all =
                done[0].len() + done[1].len() == posted[0].sends.len() + posted[1].sends.len();
            let all = all && (0..2).all(|end| recvs[1 - end].len() == posted[end].received.len());
            if all && pipes.iter().all(|pipe| pipe.0.is_empty()) {
                break;
            }
        }
        for end in 0..2 {
            let ids: Vec<u64> = done[end].iter().map(|wc| wc.wr_id).collect();
            assert_eq!(ids, posted[end].sends, "seed {seed}: each once, in order");
            assert_eq!(recvs[1 - end], posted[end].received, "seed {seed}");
            assert!(done[end].iter().all(|wc| wc.status == WcStatus::Success));
            assert!(!ends[end].failed, "seed {seed}");
        }
        for (end, posted) in posted.iter().enumerate() {
            let adds = done[end]
                .iter()
                .filter(|wc| wc.opcode == WcOpcode::FetchAdd);
            added[1 - end] += adds.count() as u64;
            let word = ends[1 - end].memory.load_u64(0x3_f000);
            assert_eq!(word, Ok(added[1 - end]), "seed {seed}: {posted:?}");
        }
    }
    holds
}

#[test]
fn any_segmentation_gives_the_same_completions() {
    let holds: u32 = (0..150).map(run).sum();
    assert!(holds > 1000, "{holds}");
}

/// Goal: bytes are where they belong, for each operation and length.
#[test]
fn bytes_are_where_they_belong() {
    for piece in [1, 7, 1461, 1 << 20] {
        for len in [0_u32, 1, 100, 1500, 200_000] {
            let (mut a, mut b) = (
                Machine::new(start(true, true)),
                Machine::new(start(false, true)),
            );
            let text: Vec<u8> = (0..len).map(|n| (n * 13 + len) as u8).collect();
            a.memory.write(0, &text).unwrap();
            let room = [b.sge(0, 100_000), b.sge(300_000, 200_000)];
            b.post_recv(1, &room);
            let sge = a.sge(0, len);
            a.post(Send::new(2).from(sge));
            let write = Write::new(3, b.remote(600_000)).from(sge);
            a.post(write);
            let sink = a.sge(700_000, len);
            a.post(Read::new(4, b.remote(600_000)).into(sink).signaled());
            for _ in 0..4 {
                for bytes in a.transmit_into(4 * STAGE).0.chunks(piece) {
                    b.receive(bytes);
                }
                for bytes in b.transmit_into(4 * STAGE).0.chunks(piece) {
                    a.receive(bytes);
                }
            }
            assert_eq!(statuses(&b.poll_recvs()), [(1, WcStatus::Success)]);
            assert_eq!(statuses(&a.poll_sends()), [(4, WcStatus::Success)]);
            let first = text.len().min(100_000);
            assert!(b.bytes(0, first) == text[..first]);
            assert!(b.bytes(300_000, text.len() - first) == text[first..]);
            assert!(b.bytes(600_000, text.len()) == text);
            assert!(a.bytes(700_000, text.len()) == text, "{len} in {piece}");
        }
    }
}

/// Goal: no more READs are outstanding than ORD, and what is fenced waits for them.
#[test]
fn depth_and_fences_hold() {
    let (mut a, mut b) = (
        Machine::new(start(true, true)),
        Machine::new(start(false, true)),
    );
    a.path.max_rd_atomic = 2;
    let room = [b.sge(0, 64)];
    b.post_recv(9, &room);
    for n in 0..3 {
        let sink = a.sge(0, 8);
        a.post(Read::new(n, b.remote(0)).into(sink).signaled());
    }
    a.post(Send::new(3).inline(b"x").signaled().fenced());
    let reads = parsed(&a.transmit());
    assert_eq!(reads.len(), 2, "ORD is 2");
    assert!(a.transmit().is_empty());
    b.receive(
        &reads
            .iter()
            .map(|(h, p)| fpdu(h, p))
            .collect::<Vec<_>>()
            .concat(),
    );
    let responses = b.transmit();
    a.receive(&responses);
    assert_eq!(statuses(&a.poll_sends()).len(), 2);
    let last = a.transmit();
    assert_eq!(
        parsed(&last).len(),
        1,
        "the third READ, and nothing behind it"
    );
    b.receive(&last);
    let response = b.transmit();
    a.receive(&response);
    b.receive(&a.transmit());
    let ids: Vec<u64> = a.poll_sends().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [2, 3]);
    assert_eq!(b.poll_recvs().len(), 1);
}

/// Goal: a SEND whose key cannot be invalidated completes its receive in error, and the sender is told.
#[test]
fn keys_that_cannot_be_invalidated_are_told_of() {
    let (mut a, mut b) = (
        Machine::new(start(true, true)),
        Machine::new(start(false, true)),
    );
    let room = [b.sge(0, 64)];
    b.post_recv(1, &room);
    let mut wr: SendWr<'_> = Send::new(2).inline(b"x").into();
    wr.op = SendOp::SendWithInv(b.rkey);
    wr.flags |= verbs_core::SendFlags::SOLICITED;
    a.post(wr);
    b.receive(&a.transmit());
    // A key that is no fast registration cannot be invalidated.
    assert!(b.failed);
    assert_eq!(statuses(&b.poll_recvs()), [(1, WcStatus::RemInvReqErr)]);
}

/// Goal: an initiator that has sent something and hears nothing sends a WRITE of no bytes, between messages only, and no
/// longer when it has heard something.
#[test]
fn an_initiator_that_hears_nothing_sends_again() {
    let (mut a, mut b) = (
        Machine::new(start(true, true)),
        Machine::new(start(false, true)),
    );
    let room = [b.sge(0, 64)];
    b.post_recv(1, &room);
    let at = |millis| Instant::ZERO + std::time::Duration::from_millis(millis);
    assert_eq!(a.iwarp.deadline(), Some(at(20)));
    a.iwarp.expire(at(20));
    assert!(a.transmit().is_empty(), "it has sent nothing");
    // In the middle of a message.
    a.post(Write::new(2, b.remote(0)).from(a.sge(0, 400_000)));
    let (mut stream, more) = a.transmit_into(STAGE);
    assert!(more);
    a.iwarp.expire(at(1000));
    while a.iwarp.requester.is_inside() {
        stream.extend(a.transmit_into(STAGE).0);
    }
    // Behind it.
    a.iwarp.expire(at(10_000));
    let nudge = a.transmit();
    assert_eq!(parsed(&nudge).len(), 1);
    stream.extend(nudge);
    b.receive(&stream);
    assert!(!b.failed && b.poll_recvs().is_empty());
    assert_eq!(a.iwarp.deadline(), None, "three times are enough");
    let mut heard = Machine::new(start(true, true));
    let room = [heard.sge(0, 64)];
    heard.post_recv(1, &room);
    heard.receive(&fpdu(
        &Header::Untagged(verbs_wire::iwarp::Untagged::first(
            verbs_wire::iwarp::RdmapOpcode::Send,
            1,
        )),
        b"x",
    ));
    assert_eq!(heard.iwarp.deadline(), None);
}
