//! Every operation over a wire without faults, at every size where something changes.

use verbs_core::{Payload, Remote, WcFlags, WcOpcode};

use super::*;

/// Splits a range of memory into pieces, an empty one among them.
fn pieces(machine: &Machine, offset: usize, len: usize) -> Vec<Sge> {
    let (a, b) = (len / 3, len / 2);
    vec![
        machine.sge(offset, a as u32),
        machine.sge(0, 0),
        machine.sge(offset + a, (b - a) as u32),
        machine.sge(offset + b, (len - b) as u32),
    ]
}

/// Goal: bytes, statuses and lengths of SEND, WRITE and READ are right at every boundary of the path MTU.
/// Method: each size around 0 to 3 packets with each MTU, gathered from and scattered to odd pieces; own and
/// shared receive queues; both completions.
#[test]
fn every_operation_at_every_boundary() {
    for mtu in Mtu::ALL {
        let m = mtu.bytes() as usize;
        for len in [
            0,
            1,
            3,
            m - 1,
            m,
            m + 1,
            2 * m - 1,
            2 * m,
            2 * m + 1,
            3 * m + 5,
        ] {
            for shared in [false, true] {
                one_of_each(mtu, len, shared, None);
            }
        }
    }
}

/// Goal: the same with long packets, which stand for two, three or all packets of a message and take their numbers.
#[test]
fn every_operation_with_long_packets() {
    for mtu in [Mtu::B512, Mtu::B1024, Mtu::B2048] {
        let m = mtu.bytes() as usize;
        for packets in [1, 2, 3, 16] {
            for len in [0, 1023, 1024, m + 1, 2 * m, 3 * m, 3 * m + 1, 7 * m + 5] {
                for shared in [false, true] {
                    one_of_each(mtu, len, shared, Some(packets * m));
                }
            }
        }
    }
}

fn one_of_each(mtu: Mtu, len: usize, shared: bool, longest: Option<usize>) {
    let mut pair = Pair::with(shared, 0).long(longest);
    pair.paths(|path| path.mtu = mtu);
    let [ours, theirs] = &mut pair.ends;
    let data = |number| pattern(number, len);
    let at = |number: usize| number * 0x8000;
    for number in 1..=5 {
        ours.memory.write(at(number), &data(number as u64)).unwrap();
    }
    theirs.memory.write(at(6), &data(6)).unwrap();
    let room: Vec<_> = (1..=2).map(|n| pieces(theirs, at(n), len)).collect();
    theirs.post_recv(101, &room[0]);
    theirs.post_recv(102, &room[1]);
    theirs.post_recv(103, &[]);
    let to = |number| theirs.remote(at(number));
    let ops: [(u64, SendOp); 5] = [
        (1, SendOp::Send),
        (2, SendOp::SendWithImm(0x1234_5678)),
        (3, SendOp::Write(to(3))),
        (4, SendOp::WriteWithImm(to(4), 77)),
        (6, SendOp::Read(to(6))),
    ];
    for (number, op) in ops {
        let sges = pieces(ours, at(number as usize), len);
        ours.post(wr(number, op, &sges));
    }
    pair.run();
    let [ours, theirs] = &mut pair.ends;
    let done = ours.poll_sends();
    let seen: Vec<_> = done
        .iter()
        .map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len))
        .collect();
    let n = len as u32;
    let ok = WcStatus::Success;
    assert_eq!(
        seen,
        [
            (1, ok, WcOpcode::Send, n),
            (2, ok, WcOpcode::Send, n),
            (3, ok, WcOpcode::RdmaWrite, n),
            (4, ok, WcOpcode::RdmaWrite, n),
            (6, ok, WcOpcode::RdmaRead, n),
        ],
        "{mtu:?} {len}"
    );
    check_receives(theirs, n);
    for number in 1..=4 {
        assert_eq!(
            theirs.bytes(at(number), len),
            data(number as u64),
            "{mtu:?} {len} op {number}"
        );
    }
    assert_eq!(ours.bytes(at(6), len), data(6));
    let packets = mtu.packets(n);
    assert_eq!(ours.sends.psn(), 5 * packets);
    assert_eq!(theirs.recvs.epsn(), 5 * packets);
    assert_eq!((ours.contacts, theirs.contacts), (1, 1));
    for index in 0..5 {
        let marked = ours.sends.marked(index);
        assert_eq!(marked, Some(index), "the poster sees which are done");
    }
    assert!(ours.rc.is_drained() && ours.rc.deadline().is_none());
    assert!(
        pair.log.iter().all(|(_, again, _)| !again),
        "nothing is sent twice"
    );
}

fn check_receives(theirs: &mut Machine, n: u32) {
    let received = theirs.poll_recvs();
    let seen: Vec<_> = received
        .iter()
        .map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.immediate()))
        .collect();
    assert_eq!(
        seen,
        [
            (101, WcOpcode::Recv, n, None),
            (102, WcOpcode::Recv, n, Some(0x1234_5678)),
            (103, WcOpcode::RecvRdmaWithImm, n, Some(77)),
        ]
    );
    assert!(received.iter().all(|wc| !wc.flags.contains(WcFlags::GRH)));
}

/// Goal: opcodes, headers and numbers on the wire are those of the specification. Method: three packets of a
/// message, byte values.
#[test]
fn opcodes_and_numbers_on_the_wire() {
    let mut pair = Pair::new();
    pair.paths(|path| {
        path.mtu = Mtu::B256;
        (path.sq_psn, path.rq_psn) = (0xff_fffe, 0xff_fffe);
    });
    let [ours, theirs] = &mut pair.ends;
    for wr_id in 0..3 {
        theirs.post_recv(wr_id, &[theirs.sge(0, 4096)]);
    }
    let sges = [ours.sge(0, 600)];
    for op in [
        SendOp::SendWithImm(1),
        SendOp::WriteWithImm(theirs.remote(0), 2),
        SendOp::Read(theirs.remote(0)),
        SendOp::Send,
    ] {
        ours.post(wr(1, op, &sges));
    }
    pair.run();
    assert_eq!(
        pair.sent_by(0),
        [
            (0x00, 0xff_fffe, 256),
            (0x01, 0xff_ffff, 256),
            (0x03, 0, 88),
            (0x06, 1, 256),
            (0x07, 2, 256),
            (0x09, 3, 88),
            (0x0c, 4, 0),
            (0x00, 7, 256),
            (0x01, 8, 256),
            (0x02, 9, 88),
        ]
    );
    assert_eq!(
        pair.sent_by(1),
        [(0x0d, 4, 256), (0x0e, 5, 256), (0x0f, 6, 88), (0x11, 9, 0)],
        "one acknowledgement for the burst"
    );
    let last = Packet::parse(&pair.log.last().unwrap().2).unwrap();
    assert_eq!(last.head.ext().aeth.unwrap().msn.value(), 4);
}

/// Goal: atomics return what was there, once each, in order, and READs and atomics keep to their depth.
#[test]
fn atomics_and_their_depth() {
    let mut pair = Pair::new();
    let [ours, theirs] = &mut pair.ends;
    theirs.memory.store_u64(64, 40).unwrap();
    let remote = theirs.remote(64);
    for i in 0..10_u64 {
        let op = match i {
            9 => SendOp::CompareSwap {
                remote,
                compare: 49,
                swap: 7,
            },
            _ => SendOp::FetchAdd { remote, add: 1 },
        };
        let sges = [ours.sge(i as usize * 8, 3), ours.sge(i as usize * 8 + 3, 5)];
        ours.post(wr(i, op, &sges));
    }
    pair.run();
    let [ours, theirs] = &mut pair.ends;
    for i in 0..10 {
        assert_eq!(ours.memory.load_u64(i * 8).unwrap(), 40 + i as u64);
    }
    assert_eq!(theirs.memory.load_u64(64).unwrap(), 7);
    let done = ours.poll_sends();
    assert!(done.iter().all(|wc| wc.is_ok() && wc.byte_len == 8));
    assert_eq!(done.last().unwrap().opcode, WcOpcode::CompSwap);
    let (mut open, mut deepest) = (0_i32, 0);
    for (from, ..) in &pair.log {
        open += if *from == 0 { 1 } else { -1 };
        deepest = deepest.max(open);
    }
    assert_eq!(deepest, 4, "no deeper than max_rd_atomic");
}

/// Goal: a fenced work request starts after the READs before it; one that is not may go ahead.
#[test]
fn a_fence_waits_for_reads() {
    for (fenced, order) in [(false, [0x0c, 0x04]), (true, [0x0c, 0x04])] {
        let mut pair = Pair::new();
        let [ours, theirs] = &mut pair.ends;
        theirs.post_recv(1, &[theirs.sge(0, 64)]);
        let sges = [ours.sge(0, 64)];
        ours.post(wr(1, SendOp::Read(theirs.remote(0)), &sges));
        let mut send = wr(2, SendOp::Send, &sges);
        send.flags.set(SendFlags::FENCE, fenced);
        ours.post(send);
        pair.run();
        let opcodes: Vec<u8> = pair.sent_by(0).iter().map(|packet| packet.0).collect();
        assert_eq!(opcodes, order);
        let senders: Vec<usize> = pair.log.iter().map(|(from, ..)| *from).collect();
        let first_answer = senders.iter().position(|&from| from == 1).unwrap();
        assert_eq!(first_answer, if fenced { 1 } else { 2 });
    }
}

/// Goal: a fenced work request that sends nothing is carried out after the READs before it too; one that is not fenced
/// may be carried out while they are under way. Method: a fast registration behind a READ; its key is valid when it has
/// been carried out.
#[test]
fn a_fence_holds_a_registration_until_reads_end() {
    for fenced in [false, true] {
        let mut pair = Pair::new();
        let [ours, theirs] = &mut pair.ends;
        let what = stage_fast(&ours.mrs, &ours.memory, Access::REMOTE_READ, PD);
        let is_valid = |machine: &Machine| {
            let pin = pin();
            let found = machine
                .mrs
                .check(&pin, what.key.value(), BASE, 8, PD, Access::REMOTE_READ);
            found.is_some()
        };
        let sges = [ours.sge(0, 64)];
        ours.post(wr(1, SendOp::Read(theirs.remote(0)), &sges));
        let mut register = wr(2, SendOp::RegMr(what), &[]);
        register.flags.set(SendFlags::FENCE, fenced);
        ours.post(register);
        ours.post(wr(3, SendOp::Write(theirs.remote(0)), &[]));
        pair.send_all();
        assert_eq!(is_valid(&pair.ends[0]), !fenced, "the READ is under way");
        pair.run();
        let ours = &mut pair.ends[0];
        assert!(is_valid(ours));
        let done = [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success));
        assert_eq!(ours.send_statuses(), done);
    }
}

/// Goal: inline bytes travel, unsignalled work requests make no completion and solicited ones say so.
#[test]
fn inline_unsignalled_and_solicited() {
    let mut pair = Pair::new();
    let [ours, theirs] = &mut pair.ends;
    for wr_id in 0..2 {
        theirs.post_recv(wr_id, &[theirs.sge(64 * wr_id as usize, 64)]);
    }
    let mut send = wr(1, SendOp::Send, &[]);
    send.payload = Payload::Inline(b"inline bytes");
    send.flags = SendFlags::INLINE | SendFlags::SOLICITED;
    ours.post(send);
    send.flags = SendFlags::INLINE | SendFlags::SIGNALED;
    send.wr_id = 2;
    ours.post(send);
    pair.run();
    let [ours, theirs] = &mut pair.ends;
    assert_eq!(ours.send_statuses(), [(2, WcStatus::Success)]);
    assert_eq!(theirs.bytes(64, 12), b"inline bytes");
    let solicited: Vec<bool> = pair
        .log
        .iter()
        .filter(|(from, ..)| *from == 0)
        .map(|(_, _, bytes)| bytes[1] & 0x80 != 0)
        .collect();
    assert_eq!(solicited, [true, false]);
    let asks: Vec<bool> = pair
        .log
        .iter()
        .filter(|(from, ..)| *from == 0)
        .map(|(_, _, bytes)| bytes[8] & 0x80 != 0)
        .collect();
    assert_eq!(
        asks,
        [false, true],
        "the last of a burst asks for an acknowledgement"
    );
}

/// Goal: only the packet that ends a message asks for the receiver's event, so that the event does not come before
/// the message does (IBTA vol. 1, 9.2.3).
#[test]
fn the_last_packet_is_the_solicited_one() {
    for (op, len) in [(SendOp::Send, 3000), (SendOp::SendWithImm(4), 2500)] {
        let mut pair = Pair::new();
        let [ours, theirs] = &mut pair.ends;
        theirs.post_recv(1, &[theirs.sge(0, 4096)]);
        let sges = [ours.sge(0, len)];
        let mut send = wr(1, op, &sges);
        send.flags |= SendFlags::SOLICITED;
        ours.post(send);
        pair.run();
        let sent = pair.log.iter().filter(|(from, ..)| *from == 0);
        let marks: Vec<bool> = sent.map(|(.., bytes)| bytes[1] & 0x80 != 0).collect();
        assert_eq!(marks, [false, false, true], "{op:?}");
    }
}

/// Goal: a long transfer fills its window, asks for acknowledgements in between, and continues.
#[test]
fn a_long_message_keeps_to_the_window() {
    let mut pair = Pair::new();
    pair.paths(|path| path.mtu = Mtu::B256);
    let len = 256 * 1000;
    let [ours, theirs] = &mut pair.ends;
    ours.room = 10_000;
    ours.memory.write(0, &pattern(9, len)).unwrap();
    let sges = [ours.sge(0, len as u32)];
    ours.post(wr(1, SendOp::Write(theirs.remote(1 << 18)), &sges));
    let (packets, more) = pair.ends[0].transmit(0);
    assert_eq!((packets.len(), more), (256, false));
    let asks = packets
        .iter()
        .filter(|(bytes, _)| bytes[8] & 0x80 != 0)
        .count();
    assert_eq!(asks, 4);
    for (bytes, _) in packets {
        pair.put(0, bytes);
    }
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.ends[1].bytes(1 << 18, len), pattern(9, len));
}

/// Goal: the packet that fills the window asks for an acknowledgement, wherever it is in its message.
#[test]
fn a_full_window_asks() {
    let mut pair = Pair::new();
    pair.paths(|path| path.mtu = Mtu::B256);
    let [ours, theirs] = &mut pair.ends;
    ours.room = 10_000;
    let to = SendOp::Write(theirs.remote(0));
    ours.post(wr(1, to, &[ours.sge(0, 10 * 256)]));
    assert_eq!(ours.transmit(0).0.len(), 10);
    ours.post(wr(2, to, &[ours.sge(0, 400 * 256)]));
    let (packets, more) = ours.transmit(0);
    assert_eq!((packets.len(), more), (246, false));
    assert_ne!(packets[245].0[8] & 0x80, 0);
}

/// Goal: SQD finishes what has begun, even if the request for an acknowledgement was left to a work request that is no
/// longer sent, and begins nothing.
#[test]
fn draining_ends_what_has_begun() {
    let mut pair = Pair::new();
    pair.paths(|path| path.timeout = 0);
    let [ours, theirs] = &mut pair.ends;
    let sges = [ours.sge(0, 100)];
    ours.post(wr(1, SendOp::Write(theirs.remote(0)), &sges));
    ours.post(wr(2, SendOp::Write(theirs.remote(0)), &sges));
    ours.room = 1;
    let (packets, more) = ours.transmit(0);
    assert!(
        more && packets[0].0[8] & 0x80 == 0,
        "the next one is to ask"
    );
    ours.may_begin = false;
    pair.put(0, packets[0].0.clone());
    while pair.step() {}
    assert!(pair.ends[0].rc.is_drained());
    assert_eq!(pair.ends[0].send_statuses(), [(1, WcStatus::Success)]);
    pair.ends[0].may_begin = true;
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(2, WcStatus::Success)]);
}

/// Goal: nothing of an earlier connection is left after RESET.
#[test]
fn reset_forgets_the_connection() {
    let mut pair = Pair::new();
    let sges = [pair.ends[0].sge(0, 3000)];
    let to: Remote = pair.ends[1].remote(0);
    pair.ends[0].post(wr(1, SendOp::Write(to), &sges));
    pair.ends[0].post(wr(2, SendOp::Read(to), &sges));
    pair.ends[0].transmit(0);
    for end in &mut pair.ends {
        end.rc.reset();
        end.path.sq_psn = 500;
        end.path.rq_psn = 500;
    }
    while let Some(at) = pair.ends[0].sends.next() {
        pair.ends[0].sends.executed(at);
    }
    assert!(pair.ends[0].rc.is_drained());
    pair.ends[0].post(wr(3, SendOp::Write(to), &sges));
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(3, WcStatus::Success)]);
    assert_eq!(pair.sent_by(0)[0], (0x06, 500, 1024));
}
