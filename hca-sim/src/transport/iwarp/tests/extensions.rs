//! Goal: immediate data and atomics as RFC 7306 has them: golden bytes, what they do at the peer, the order and number
//! of answers, and what is told of those that are wrong or not offered.

use verbs_core::{Atomic, EventType, RKey, Read, Remote, Send, SendOp, WcOpcode, WcStatus, Write};
use verbs_wire::iwarp::{
    AtomicOperation, AtomicRequest, AtomicResponse, Cause, Header, RdmapOpcode, STag, Tagged,
    Terminate, Untagged,
};

use super::golden::hex;
use super::*;

/// Computed from the layouts, with a CRC of other code.
const IMMEDIATE: &str = "001a 4149 00000000 00000000 00000001 00000000 12345678 00000000 7aa29e32";
const WRITE: &str = "0012 c140 12345678 0000000000001000 64617461 f2ca6d3e";
const FETCH_ADD: &str = "0046 414a 00000000 00000001 00000001 00000000 00000000 00000000 12345678
    0000000000001000 0000000000000007 0000000000000000 0000000000000000 0000000000000000 9c59d542";
const COMPARE_SWAP: &str =
    "0046 414a 00000000 00000001 00000002 00000000 00000002 00000001 12345678
    0000000000001008 1111111111111111 ffffffffffffffff 2222222222222222 ffffffffffffffff 013718ec";
const MASKED_ADD: &str = "0046 414a 00000000 00000001 00000003 00000000 00000000 00000002 12345678
    0000000000001010 0000000100000001 0000000080000000 0000000000000000 0000000000000000 951a6211";
const RESPONSE: &str =
    "001e 414b 00000000 00000003 00000001 00000000 00000000 0102030405060708 badd61bd";

fn at(addr: u64) -> Remote {
    Remote {
        addr,
        rkey: RKey::new(0x1234_5678),
    }
}

fn two() -> (Machine, Machine) {
    (
        Machine::new(start(true, true)),
        Machine::new(start(false, true)),
    )
}

#[test]
fn immediate_data_have_the_golden_bytes() {
    let mut ours = Machine::new(start(true, true));
    let write = Write::new(1, at(0x1000)).inline(b"data").imm(0x1234_5678);
    ours.post(write.solicited().signaled());
    assert_eq!(ours.transmit(), [hex(WRITE), hex(IMMEDIATE)].concat());
    let done = ours.poll_sends();
    assert_eq!(statuses(&done), [(1, WcStatus::Success)]);
    assert_eq!((done[0].opcode, done[0].byte_len), (WcOpcode::RdmaWrite, 4));
}

#[test]
fn atomics_have_the_golden_bytes() {
    let mut ours = Machine::new(start(true, true));
    let into = ours.sge(0, 8);
    ours.post(Atomic::fetch_add(1, at(0x1000), 7).into(into));
    let (old, new) = (0x2222_2222_2222_2222, 0x1111_1111_1111_1111);
    ours.post(Atomic::compare_swap(2, at(0x1008), old, new).into(into));
    let add = Atomic::fetch_add(3, at(0x1010), 1 << 32 | 1).fields(1 << 31);
    ours.post(add.into(into));
    let golden = [FETCH_ADD, COMPARE_SWAP, MASKED_ADD].map(hex).concat();
    assert_eq!(ours.transmit(), golden);
}

#[test]
fn an_answer_has_the_golden_bytes() {
    let (mut ours, mut theirs) = two();
    theirs.memory.store_u64(64, 0x0102_0304_0506_0708).unwrap();
    let into = ours.sge(8, 8);
    ours.post(
        Atomic::fetch_add(1, theirs.remote(64), 1)
            .into(into)
            .signaled(),
    );
    theirs.receive(&ours.transmit());
    assert_eq!(theirs.memory.load_u64(64), Ok(0x0102_0304_0506_0709));
    patient(&mut theirs);
    assert_eq!(theirs.transmit(), hex(RESPONSE));
    for byte in hex(RESPONSE) {
        ours.receive(&[byte]);
    }
    assert_eq!(ours.memory.load_u64(8), Ok(0x0102_0304_0506_0708));
    let done = ours.poll_sends();
    assert_eq!(statuses(&done), [(1, WcStatus::Success)]);
    assert_eq!((done[0].opcode, done[0].byte_len), (WcOpcode::FetchAdd, 8));
}

/// Goal: a WRITE with immediate data takes one receive and none of its memory, tells how much was written, and stands in
/// one order with SENDs, however the stream is cut and whatever the outlet takes.
#[test]
fn immediate_data_take_a_receive() {
    for (piece, room) in [(1, STAGE), (1000, Fpdu::wire_len(Fpdu::ULPDU_MAX))] {
        let (mut a, mut b) = two();
        for n in 0..3 {
            let space = [b.sge(0, 64)];
            b.post_recv(n, &space);
        }
        a.memory.fill(0..200_000, 7).unwrap();
        let write = Write::new(1, b.remote(300_000)).from(a.sge(0, 200_000));
        a.post(write.imm(0xdead_beef).signaled());
        a.post(Send::new(2).inline(b"between").signaled());
        a.post(Write::new(3, b.remote(0)).imm(3).signaled());
        loop {
            let (bytes, more) = a.transmit_into(room);
            bytes.chunks(piece).for_each(|bytes| b.receive(bytes));
            if !more {
                break;
            }
        }
        let told = b.poll_recvs();
        let told: Vec<_> = told
            .iter()
            .map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.immediate()))
            .collect();
        let with_imm = WcOpcode::RecvRdmaWithImm;
        assert_eq!(
            told,
            [
                (0, with_imm, 200_000, Some(0xdead_beef)),
                (1, WcOpcode::Recv, 7, None),
                (2, with_imm, 0, Some(3)),
            ]
        );
        assert_eq!(b.bytes(0, 64)[7..], [0; 57], "it has placed nothing");
        assert!(b.bytes(300_000, 200_000) == [7; 200_000]);
        assert_eq!(a.poll_sends().len(), 3);
        assert!(!b.failed && b.event.is_none());
    }
}

/// Goal: immediate data tell how much the WRITE just before them wrote, and nothing if there was none. Method: each as the
/// next message after a WRITE, after a WRITE and a SEND, and alone.
#[test]
fn immediate_data_tell_of_the_write_before_them() {
    let rows: [(&[RdmapOpcode], u32); 4] = [
        (&[RdmapOpcode::Write], 5),
        (&[RdmapOpcode::Write, RdmapOpcode::Write], 5),
        (&[RdmapOpcode::Write, RdmapOpcode::Send], 0),
        (&[], 0),
    ];
    for (before, written) in rows {
        let mut machine = Machine::new(start(false, true));
        for n in 0..2 {
            let space = [machine.sge(0, 64)];
            machine.post_recv(n, &space);
        }
        let mut msn = 1;
        for opcode in before {
            let header = match *opcode {
                RdmapOpcode::Write => Header::Tagged(Tagged {
                    opcode: *opcode,
                    is_last: true,
                    stag: STag::new(machine.rkey.value()),
                    offset: BASE,
                }),
                opcode => {
                    msn += 1;
                    untagged(opcode, msn - 1)
                }
            };
            machine.receive(&fpdu(&header, b"12345"));
        }
        let opcode = RdmapOpcode::Immediate;
        machine.receive(&fpdu(&untagged(opcode, msn), &[0, 0, 0, 9, 0, 0, 0, 0]));
        let told = machine.poll_recvs();
        let last = told.last().expect("a completion");
        assert!(last.immediate().is_some(), "{before:?}");
        assert_eq!(
            (told.len() as u32, last.byte_len),
            (msn, written),
            "{before:?}"
        );
    }
}

/// Goal: all atomics do what they do over packets, between READs, and their answers come in the order of the requests.
#[test]
fn atomics_are_carried_out_in_order() {
    let (mut a, mut b) = two();
    b.memory.store_u64(64, 5).unwrap();
    let word = b.remote(64);
    let into = |n: usize| n * 8;
    let (add, swap) = (WcOpcode::FetchAdd, WcOpcode::CompSwap);
    let (masked_add, masked_swap) = (WcOpcode::MaskedFetchAdd, WcOpcode::MaskedCompSwap);
    let all = [
        (Atomic::fetch_add(0, word, 3), add, 5),
        (Atomic::compare_swap(1, word, 8, 100), swap, 8),
        (Atomic::compare_swap(2, word, 8, 1), swap, 100),
        (
            Atomic::fetch_add(3, word, 0xff).fields(0x80),
            masked_add,
            100,
        ),
        (
            Atomic::compare_swap(4, word, 0, 0xf00).masks(0xff00, 0xf00),
            masked_swap,
            99,
        ),
    ];
    a.path.max_rd_atomic = 3;
    b.path.max_dest_rd_atomic = 3;
    for (n, &(atomic, ..)) in all.iter().enumerate() {
        let sge = a.sge(into(n), 8);
        a.post(atomic.into(sge).signaled());
    }
    let sink = a.sge(256, 8);
    a.post(Read::new(5, word).into(sink).signaled());
    let first = a.transmit();
    assert_eq!(parsed(&first).len(), 3, "no more than ORD wait");
    b.receive(&first);
    patient(&mut b);
    for _ in 0..3 {
        let answers = b.transmit();
        a.receive(&answers);
        b.receive(&a.transmit());
    }
    let done = a.poll_sends();
    let told: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.opcode)).collect();
    let mut expected: Vec<_> = (0..).zip(all.map(|(_, opcode, _)| opcode)).collect();
    expected.push((5, WcOpcode::RdmaRead));
    assert_eq!(told, expected);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
    for (n, (_, _, before)) in all.iter().enumerate() {
        assert_eq!(a.memory.load_u64(into(n)), Ok(*before), "atomic {n}");
    }
    // 100 and 255 in fields of eight bits are 99, without a carry into the next.
    assert_eq!(b.memory.load_u64(64), Ok(0xf63));
    assert_eq!(a.memory.load_u64(256), Ok(0xf63), "the READ came behind");
}

/// Goal: a fenced SEND waits for an atomic.
#[test]
fn a_fence_waits_for_atomics() {
    let (mut a, mut b) = two();
    let space = [b.sge(0, 64)];
    b.post_recv(9, &space);
    let into = a.sge(0, 8);
    a.post(Atomic::fetch_add(1, b.remote(64), 1).into(into));
    a.post(Send::new(2).inline(b"x").fenced().signaled());
    let first = a.transmit();
    assert_eq!(parsed(&first).len(), 1);
    b.receive(&first);
    patient(&mut b);
    a.receive(&b.transmit());
    b.receive(&a.transmit());
    assert_eq!(statuses(&a.poll_sends()), [(2, WcStatus::Success)]);
    assert_eq!(statuses(&b.poll_recvs()), [(9, WcStatus::Success)]);
}

fn untagged(opcode: RdmapOpcode, msn: u32) -> Header {
    Header::Untagged(Untagged::first(opcode, msn))
}

fn asking(key: u32, offset: u64, masks: u64) -> Vec<u8> {
    let request = AtomicRequest {
        request: 0,
        stag: STag::new(key),
        offset,
        operation: AtomicOperation::FetchAdd {
            add: 1,
            mask: masks,
        },
    };
    fpdu(
        &untagged(RdmapOpcode::AtomicRequest, 1),
        &request.to_bytes(),
    )
}

/// What a machine says to a stream that is wrong.
fn answer(machine: &mut Machine, stream: &[u8]) -> (Cause, Option<EventType>) {
    stream.chunks(1).for_each(|byte| machine.receive(byte));
    machine.wait();
    assert!(machine.failed);
    let put = parsed(&machine.transmit());
    let [.., (header, body)] = &put[..] else {
        panic!("no Terminate")
    };
    assert_eq!(header.opcode(), RdmapOpcode::Terminate);
    (Terminate::parse(body).unwrap().cause, machine.event)
}

/// A fault: its name, what the peer sends, and what it is told.
type Row = (&'static str, Vec<u8>, Cause, Option<EventType>);

fn check((name, stream, cause, event): Row) {
    let mut machine = Machine::new(start(false, true));
    let space = [machine.sge(0, 64)];
    machine.post_recv(7, &space);
    assert_eq!(answer(&mut machine, &stream), (cause, event), "{name}");
    let count = if name == "more than IRD" { 4 } else { 0 };
    assert_eq!(machine.memory.load_u64(64), Ok(count), "{name}");
}

const ASKED: Option<EventType> = Some(EventType::QpReqErr);
const FATAL: Option<EventType> = Some(EventType::QpFatal);

fn of_len(opcode: RdmapOpcode, len: usize) -> Vec<u8> {
    fpdu(&untagged(opcode, 1), &vec![0; len])
}

/// Goal: faults of atomics are told, and nothing is changed.
#[test]
fn faults_of_atomics_are_told() {
    let good = Machine::new(start(false, true)).rkey.value();
    let end = BASE + MEMORY as u64;
    let request = RdmapOpcode::AtomicRequest;
    let many = (1..=5).flat_map(|msn| {
        let (_, body) = parsed(&asking(good, BASE + 64, 0)).remove(0);
        fpdu(&untagged(request, msn), &body)
    });
    let (stag, bounds) = (Cause::RDMAP_STAG, Cause::RDMAP_BOUNDS);
    let (odd, depth) = (Cause::RDMAP_OPERATION, Cause::RDMAP_STREAM_CATASTROPHIC);
    let rows: [Row; 7] = [
        ("no such key", asking(0xdead_be00, BASE, 0), stag, ASKED),
        ("behind the end", asking(good, end, 0), bounds, ASKED),
        ("an odd place", asking(good, BASE + 4, 0), odd, ASKED),
        ("more than IRD", many.collect(), depth, ASKED),
        ("too short", of_len(request, 51), Cause::LLP_FRAMING, FATAL),
        ("too long", of_len(request, 53), Cause::DDP_TOO_LONG, FATAL),
        (
            "an answer to nothing",
            of_len(RdmapOpcode::AtomicResponse, 12),
            Cause::RDMAP_OPCODE,
            FATAL,
        ),
    ];
    rows.into_iter().for_each(check);
    // Without the right.
    let mut machine = Machine::new(start(false, true));
    machine.path.access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let stream = asking(machine.rkey.value(), BASE + 64, 0);
    assert_eq!(answer(&mut machine, &stream), (Cause::RDMAP_ACCESS, ASKED));
    assert_eq!(machine.memory.load_u64(64), Ok(0));
}

/// Goal: the same of immediate data.
#[test]
fn faults_of_immediate_data_are_told() {
    let opcode = RdmapOpcode::Immediate;
    let imm = |msn| fpdu(&untagged(opcode, msn), &[0; 8]);
    let begun = Untagged {
        is_last: false,
        ..Untagged::first(RdmapOpcode::Send, 1)
    };
    let begun = fpdu(&Header::Untagged(begun), b"1234");
    let (twice, within) = ([imm(1), imm(2)].concat(), [begun, imm(1)].concat());
    let rows: [Row; 5] = [
        ("four bytes", of_len(opcode, 4), Cause::LLP_FRAMING, FATAL),
        ("nine bytes", of_len(opcode, 9), Cause::DDP_TOO_LONG, FATAL),
        ("a number too far", imm(2), Cause::DDP_MSN_RANGE, FATAL),
        ("no receive", twice, Cause::DDP_NO_BUFFER, FATAL),
        ("in a SEND", within, Cause::RDMAP_OPCODE, FATAL),
    ];
    rows.into_iter().for_each(check);
}

/// Goal: what is not offered is an unexpected opcode, as Linux siw has it, each by itself.
#[test]
fn what_is_not_offered_is_not_expected() {
    let all = Extensions {
        immediate: true,
        atomics: true,
        masked: true,
    };
    let imm = fpdu(&untagged(RdmapOpcode::Immediate, 1), &[0; 8]);
    // All machines have the same keys.
    let key = Machine::new(start(false, true)).rkey.value();
    let (plain, masked) = (asking(key, BASE + 64, 0), asking(key, BASE + 64, 1 << 31));
    let without = [
        (
            Extensions {
                immediate: false,
                ..all
            },
            imm,
        ),
        (
            Extensions {
                atomics: false,
                ..all
            },
            plain,
        ),
        (
            Extensions {
                masked: false,
                ..all
            },
            masked,
        ),
    ];
    for (extensions, stream) in without {
        for (extensions, is_offered) in [(extensions, false), (all, true)] {
            let mut machine = Machine::new(Start {
                extensions,
                ..start(false, true)
            });
            let space = [machine.sge(0, 64)];
            machine.post_recv(7, &space);
            if is_offered {
                machine.receive(&stream);
                assert!(!machine.failed);
            } else {
                let (cause, _) = answer(&mut machine, &stream);
                assert_eq!(cause, Cause::RDMAP_OPCODE);
                assert_eq!(machine.memory.load_u64(64), Ok(0));
            }
        }
    }
}

/// Goal: an answer that is not that of the oldest request ends it, and touches nothing.
#[test]
fn wrong_answers_end_an_atomic() {
    let response = |msn, request| {
        let body = AtomicResponse {
            request,
            original: u64::MAX,
        };
        fpdu(
            &untagged(RdmapOpcode::AtomicResponse, msn),
            &body.to_bytes(),
        )
    };
    let read = Header::Tagged(Tagged {
        opcode: RdmapOpcode::ReadResponse,
        is_last: true,
        stag: STag::new(1),
        offset: 0,
    });
    for (stream, cause) in [
        (response(2, 0), Cause::DDP_MSN_RANGE),
        (response(1, 1), Cause::RDMAP_OPERATION),
        (fpdu(&read, &[1; 8]), Cause::RDMAP_OPCODE),
    ] {
        let mut machine = Machine::new(start(true, true));
        let into = machine.sge(128, 8);
        machine.post(Atomic::fetch_add(1, machine.remote(0), 1).into(into));
        machine.transmit();
        let (told, _) = answer(&mut machine, &stream);
        assert_eq!(told, cause);
        let failed = statuses(&machine.poll_sends());
        assert_eq!(failed, [(1, WcStatus::BadRespErr)]);
        assert_eq!(machine.bytes(120, 24), [0; 24]);
    }
}

/// Goal: a READ whose sink lacks the right is refused by the machine too, when a registration has changed it behind the
/// post; one that invalidates takes its sink's key away, and another's is refused.
#[test]
fn sinks_are_looked_at_again() {
    let mut machine = Machine::new(start(true, true));
    let region = Region {
        iova: BASE,
        ..Region::new(Arc::clone(&machine.memory), Access::LOCAL_WRITE, PD)
    };
    let local = machine.mrs.register(region).unwrap().0;
    let mut sink = machine.sge(0, 8);
    sink.lkey = local;
    machine.post(Read::new(1, machine.remote(0)).into(sink));
    machine.transmit();
    let failed = machine.poll_sends();
    assert_eq!(statuses(&failed), [(1, WcStatus::LocProtErr)]);
    assert!(machine.failed);

    let (mut a, mut b) = two();
    let sink = a.sge(0, 8);
    a.post(Read::new(1, b.remote(0)).into(sink).invalidate());
    assert!(matches!(
        a.sends
            .read(0, &mut crate::queue::send::Scratch::default())
            .op,
        SendOp::ReadWithInv(_)
    ));
    b.receive(&a.transmit());
    patient(&mut b);
    a.receive(&b.transmit());
    // That of an ordinary region cannot be taken away.
    assert_eq!(statuses(&a.poll_sends()), [(1, WcStatus::LocQpOpErr)]);
}
