//! Goal: every fault of a peer is told in a Terminate with its layer, type and code, quotes the segment at fault, is counted,
//! takes the queue pair down, and completes what it concerns. Method: a table of hostile streams.

use verbs_core::{EventType, Read, Send, WcStatus};
use verbs_wire::iwarp::{Cause, RdmapOpcode, ReadRequest, STag, Tagged, Terminate, Untagged};

use super::*;

/// A fault: its name, what the peer sends, and what comes of it.
struct Row {
    name: &'static str,
    stream: Vec<u8>,
    cause: Cause,
    receive: Option<WcStatus>,
    event: Option<EventType>,
}

fn write(stag: u32, offset: u64, is_last: bool) -> Header {
    Header::Tagged(Tagged {
        opcode: RdmapOpcode::Write,
        is_last,
        stag: STag::new(stag),
        offset,
    })
}

fn send(msn: u32, offset: u32, is_last: bool) -> Header {
    Header::Untagged(Untagged {
        opcode: RdmapOpcode::Send,
        is_last,
        invalidate: STag::new(0),
        msn,
        offset,
    })
}

fn read(msn: u32) -> Header {
    Header::Untagged(Untagged::first(RdmapOpcode::ReadRequest, msn))
}

fn response(stag: u32, offset: u64) -> Header {
    Header::Tagged(Tagged {
        opcode: RdmapOpcode::ReadResponse,
        is_last: true,
        stag: STag::new(stag),
        offset,
    })
}

/// A raw ULPDU with that control field.
fn raw(control: u16, queue: u32) -> Vec<u8> {
    let mut ulpdu = control.to_be_bytes().to_vec();
    ulpdu.extend([0; 4]);
    ulpdu.extend(queue.to_be_bytes());
    ulpdu.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    ulpdu.extend(b"payload!");
    sealed(&ulpdu)
}

/// The region that the victim grants reads and writes of, another without rights, and one of another domain.
struct Keys {
    good: u32,
    local: u32,
    foreign: u32,
}

fn victim() -> (Machine, Keys) {
    let mut machine = Machine::new(start(false, true));
    let region = |access, pd| Region {
        iova: BASE,
        ..Region::new(Arc::clone(&machine.memory), access, pd)
    };
    let local = region(Access::LOCAL_WRITE, PD);
    let foreign = region(Access::LOCAL_WRITE | Access::REMOTE, PD + 1);
    let keys = Keys {
        good: machine.rkey.value(),
        local: machine.mrs.register(local).unwrap().0.value(),
        foreign: machine.mrs.register(foreign).unwrap().1.value(),
    };
    let room = [machine.sge(0, 64)];
    machine.post_recv(7, &room);
    (machine, keys)
}

fn request(source: u32, source_offset: u64, len: u32) -> [u8; ReadRequest::LEN] {
    ReadRequest {
        sink: STag::new(1),
        sink_offset: 0,
        len,
        source: STag::new(source),
        source_offset,
    }
    .to_bytes()
}

fn of_writes(keys: &Keys) -> Vec<Row> {
    let access = Some(EventType::QpAccessErr);
    let fatal = Some(EventType::QpFatal);
    let end = BASE + MEMORY as u64;
    let row = |name, stream: &[Vec<u8>], cause, event| Row {
        name,
        stream: stream.concat(),
        cause,
        receive: None,
        event,
    };
    let begun = || fpdu(&write(keys.good, BASE, false), b"1234");
    vec![
        row(
            "no such STag",
            &[fpdu(&write(0xdead_be00, BASE, true), b"x")],
            Cause::DDP_STAG,
            access,
        ),
        row(
            "wrong key of an STag",
            &[fpdu(&write(keys.good ^ 1, BASE, true), b"x")],
            Cause::DDP_STAG,
            access,
        ),
        row(
            "behind the end",
            &[fpdu(&write(keys.good, end - 1, true), b"xy")],
            Cause::DDP_BOUNDS,
            access,
        ),
        row(
            "another domain",
            &[fpdu(&write(keys.foreign, BASE, true), b"x")],
            Cause::DDP_STREAM,
            access,
        ),
        row(
            "no right",
            &[fpdu(&write(keys.local, BASE, true), b"x")],
            Cause::RDMAP_ACCESS,
            access,
        ),
        row(
            "the offset wraps",
            &[fpdu(&write(keys.good, u64::MAX, true), b"xy")],
            Cause::DDP_WRAP,
            access,
        ),
        row(
            "another STag in the middle",
            &[begun(), fpdu(&write(keys.foreign, BASE + 4, true), b"x")],
            Cause::DDP_STAG,
            fatal,
        ),
        row(
            "a gap in the middle",
            &[begun(), fpdu(&write(keys.good, BASE + 5, true), b"x")],
            Cause::DDP_BOUNDS,
            fatal,
        ),
    ]
}

fn of_sends() -> Vec<Row> {
    let fatal = Some(EventType::QpFatal);
    let row = |name, stream: &[Vec<u8>], cause| Row {
        name,
        stream: stream.concat(),
        cause,
        receive: None,
        event: fatal,
    };
    let one = || fpdu(&send(1, 0, true), b"x");
    let begun = || fpdu(&send(1, 0, false), b"1234");
    vec![
        row(
            "a message number too far",
            &[fpdu(&send(2, 0, true), b"x")],
            Cause::DDP_MSN_RANGE,
        ),
        row(
            "a message number again",
            &[one(), one()],
            Cause::DDP_MSN_RANGE,
        ),
        row(
            "no receive",
            &[one(), fpdu(&send(2, 0, true), b"x")],
            Cause::DDP_NO_BUFFER,
        ),
        row(
            "an offset in front",
            &[fpdu(&send(1, 4, true), b"x")],
            Cause::DDP_OFFSET,
        ),
        row(
            "a gap",
            &[begun(), fpdu(&send(1, 5, true), b"x")],
            Cause::DDP_OFFSET,
        ),
    ]
}

/// SENDs whose receive completes in error, which tells the client instead of an event.
fn of_receives() -> Vec<Row> {
    let row = |name, stream: &[Vec<u8>], cause, status| Row {
        name,
        stream: stream.concat(),
        cause,
        receive: Some(status),
        event: None,
    };
    let invalidate = Header::Untagged(Untagged {
        opcode: RdmapOpcode::SendInvalidate,
        is_last: true,
        invalidate: STag::new(0x77_0000),
        msn: 1,
        offset: 0,
    });
    let long = WcStatus::LocLenErr;
    vec![
        row(
            "too long at once",
            &[fpdu(&send(1, 0, true), &[0; 65])],
            Cause::DDP_TOO_LONG,
            long,
        ),
        row(
            "too long in the end",
            &[
                fpdu(&send(1, 0, false), &[0; 64]),
                fpdu(&send(1, 64, true), b"x"),
            ],
            Cause::DDP_TOO_LONG,
            long,
        ),
        row(
            "no such key to invalidate",
            &[fpdu(&invalidate, b"x")],
            Cause::RDMAP_INVALIDATE,
            WcStatus::RemInvReqErr,
        ),
    ]
}

fn of_reads(keys: &Keys) -> Vec<Row> {
    let asked = Some(EventType::QpReqErr);
    let row = |name, stream: Vec<u8>, cause| Row {
        name,
        stream,
        cause,
        receive: None,
        event: asked,
    };
    let ask = |source, offset, len| fpdu(&read(1), &request(source, offset, len));
    let end = BASE + MEMORY as u64;
    let whole = Untagged::first(RdmapOpcode::ReadRequest, 1);
    let of = |header| fpdu(&Header::Untagged(header), &request(keys.good, BASE, 8));
    let many = (1..=5).map(|msn| fpdu(&read(msn), &request(keys.good, BASE, 8)));
    vec![
        row(
            "no such source",
            ask(0xdead_be00, BASE, 8),
            Cause::RDMAP_STAG,
        ),
        row(
            "a source behind the end",
            ask(keys.good, end - 4, 8),
            Cause::RDMAP_BOUNDS,
        ),
        row(
            "a source without the right",
            ask(keys.local, BASE, 8),
            Cause::RDMAP_ACCESS,
        ),
        row(
            "a source of another domain",
            ask(keys.foreign, BASE, 8),
            Cause::RDMAP_STREAM,
        ),
        row(
            "a source that wraps",
            ask(keys.good, u64::MAX - 3, 8),
            Cause::RDMAP_WRAP,
        ),
        row(
            "a READ's number",
            fpdu(&read(2), &request(keys.good, BASE, 8)),
            Cause::DDP_MSN_RANGE,
        ),
        row(
            "a READ's request in parts",
            of(Untagged {
                is_last: false,
                ..whole
            }),
            Cause::DDP_OFFSET,
        ),
        row(
            "a READ's request from its middle",
            of(Untagged { offset: 4, ..whole }),
            Cause::DDP_OFFSET,
        ),
        row(
            "more READs than IRD",
            many.collect::<Vec<_>>().concat(),
            Cause::RDMAP_STREAM_CATASTROPHIC,
        ),
    ]
}

fn of_frames() -> Vec<Row> {
    let row = |name, stream: Vec<u8>, cause| Row {
        name,
        stream,
        cause,
        receive: None,
        event: Some(EventType::QpFatal),
    };
    let mut damaged = fpdu(&send(1, 0, true), b"hello");
    damaged[30] ^= 0x10;
    vec![
        row("a damaged FPDU", damaged, Cause::LLP_CRC),
        row(
            "a short READ request",
            fpdu(&read(1), &[0; 27]),
            Cause::LLP_FRAMING,
        ),
        row(
            "a long READ request",
            fpdu(&read(1), &[0; 29]),
            Cause::DDP_TOO_LONG,
        ),
        row(
            "a response to nothing",
            fpdu(&response(1, 0), b"x"),
            Cause::DDP_CATASTROPHIC,
        ),
        row(
            "a ULPDU that is too short",
            vec![0, 5, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0],
            Cause::LLP_FRAMING,
        ),
        row(
            "DDP version 2, tagged",
            raw(0xc240, 0),
            Cause::DDP_TAGGED_VERSION,
        ),
        row(
            "DDP version 0, untagged",
            raw(0x4043, 0),
            Cause::DDP_UNTAGGED_VERSION,
        ),
        row("RDMAP version 2", raw(0x4183, 0), Cause::RDMAP_VERSION),
        row(
            "an opcode that is none",
            raw(0x414f, 0),
            Cause::RDMAP_OPCODE,
        ),
        row("a tagged SEND", raw(0xc143, 0), Cause::RDMAP_OPCODE),
        row(
            "a SEND for the queue of READs",
            raw(0x4143, 1),
            Cause::DDP_QUEUE,
        ),
    ]
}

fn rows() -> impl Iterator<Item = Row> {
    let (_, keys) = victim();
    let rows = [
        of_writes(&keys),
        of_sends(),
        of_receives(),
        of_reads(&keys),
        of_frames(),
    ];
    rows.into_iter().flatten()
}

/// The causes of all rows.
pub(super) fn causes() -> impl Iterator<Item = Cause> {
    rows().map(|row| row.cause)
}

#[test]
fn every_fault_is_told() {
    for row in rows() {
        for piece in [1, row.stream.len()] {
            check(&row, piece);
        }
    }
}

fn check(row: &Row, piece: usize) {
    check_with(row, piece, Access::REMOTE);
}

/// Of a queue pair that grants its peer that.
fn check_with(row: &Row, piece: usize, granted: Access) {
    let name = row.name;
    let (mut machine, _) = victim();
    machine.path.access = granted;
    let before = machine.bytes(64, 4096);
    for bytes in row.stream.chunks(piece) {
        machine.receive(bytes);
    }
    machine.wait();
    assert!(machine.failed, "{name}: the queue pair goes to ERR");
    assert_eq!(machine.event, row.event, "{name}");
    assert_eq!(machine.errors(), (0, 1), "{name}");
    let recvs = machine.poll_recvs();
    let failed = recvs.iter().find(|wc| wc.status != WcStatus::Success);
    assert_eq!(failed.map(|wc| wc.status), row.receive, "{name}");
    let put = parsed(&machine.transmit());
    let [.., (header, body)] = &put[..] else {
        panic!("{name}: no Terminate")
    };
    assert_eq!(header.opcode(), RdmapOpcode::Terminate, "{name}");
    let terminate = Terminate::parse(body).unwrap();
    assert_eq!(terminate.cause, row.cause, "{name}");
    let quotes = row.cause.layer() != 2;
    assert_eq!(
        terminate.refused.is_some(),
        quotes,
        "{name}: what was refused is quoted"
    );
    if let Some(refused) = terminate.refused {
        // The last FPDU is the one at fault.
        let header = refused.header();
        let position = row
            .stream
            .windows(header.len())
            .rposition(|bytes| bytes == header);
        assert!(position.is_some(), "{name}");
        let is_read = name.contains("source") || name.contains("IRD");
        assert_eq!(refused.read_request().is_some(), is_read, "{name}");
    }
    machine.receive(&fpdu(&send(1, 0, true), b"late"));
    assert!(
        machine.transmit().is_empty(),
        "{name}: nothing is said or taken afterwards"
    );
    assert_eq!(
        machine.bytes(64, 4096),
        before,
        "{name}: nothing is touched"
    );
}

/// Goal: a peer needs the right of the queue pair besides that of the region. Method: a WRITE and a READ of a region that
/// grants both, by queue pairs that grant only the other one, or nothing.
#[test]
fn rights_of_the_queue_pair_count() {
    let (_, keys) = victim();
    let [write, read] = [
        ("a WRITE", fpdu(&write(keys.good, BASE, true), b"x")),
        ("a source", fpdu(&read(1), &request(keys.good, BASE, 8))),
    ]
    .map(|(name, stream)| Row {
        name,
        stream,
        cause: Cause::RDMAP_ACCESS,
        receive: None,
        event: Some(match name {
            "a WRITE" => EventType::QpAccessErr,
            _ => EventType::QpReqErr,
        }),
    });
    let others = Access::REMOTE - Access::REMOTE_WRITE - Access::REMOTE_READ;
    for granted in [others, Access::empty()] {
        check_with(&write, 1, granted | Access::REMOTE_READ);
        check_with(&read, 1, granted | Access::REMOTE_WRITE);
        check_with(&write, 1, granted);
        check_with(&read, 1, granted);
    }
}

/// Goal: what a Terminate from the peer says reaches the READ that waits, in the form of the RFC and in siw's.
#[test]
fn a_peers_terminate_ends_a_read() {
    let forms: [(&[u8], WcStatus); 4] = [
        (&[0x01, 0x02, 0, 0], WcStatus::RemAccessErr),
        (&[0x02, 0x06, 0, 0], WcStatus::RemOpErr),
        // siw's nibbles and control bits are the other way round.
        (&[0x10, 0x00, 1, 0], WcStatus::RemAccessErr),
        (&[0x20, 0x02, 0, 0], WcStatus::WrFlushErr),
    ];
    for (body, status) in forms {
        let mut machine = Machine::new(start(true, true));
        let sink = machine.sge(0, 8);
        machine.post(Read::new(1, machine.remote(0)).into(sink));
        machine.post(Send::new(2).inline(b"x"));
        machine.transmit();
        let terminate = Header::Untagged(Untagged::first(RdmapOpcode::Terminate, 1));
        machine.receive(&fpdu(&terminate, body));
        assert!(machine.failed, "{body:?}");
        let got = statuses(&machine.poll_sends());
        if status == WcStatus::WrFlushErr {
            assert!(got.is_empty(), "{body:?}: it is flushed");
            assert_eq!(machine.event, Some(EventType::QpFatal));
        } else {
            assert_eq!(got, [(1, status)], "{body:?}");
        }
        assert!(machine.transmit().is_empty(), "a Terminate is not answered");
    }
}

/// Goal: responses that are not what was asked for end the READ.
#[test]
fn wrong_responses_end_a_read() {
    for (name, change, cause) in [
        ("another STag", (1_u32, 0_u64, 8_usize), Cause::DDP_STAG),
        ("another place", (0, 1, 8), Cause::DDP_BOUNDS),
        ("too short", (0, 0, 7), Cause::DDP_BOUNDS),
        ("too long", (0, 0, 9), Cause::DDP_BOUNDS),
    ] {
        let mut machine = Machine::new(start(true, true));
        let sink = machine.sge(128, 8);
        machine.post(Read::new(1, machine.remote(0)).into(sink));
        machine.transmit();
        let (key, at, len) = change;
        let header = response(sink.lkey.value() ^ key << 8, sink.addr + at);
        machine.receive(&fpdu(&header, &vec![1; len]));
        assert_eq!(
            statuses(&machine.poll_sends()),
            [(1, WcStatus::BadRespErr)],
            "{name}"
        );
        let put = parsed(&machine.transmit());
        let terminate = Terminate::parse(&put[0].1).unwrap();
        assert_eq!(terminate.cause, cause, "{name}");
        assert_eq!(machine.bytes(120, 24), [0; 24], "{name}");
    }
}

/// Goal: an end in the middle of a message is an event; at a boundary it is none, as connections end so.
#[test]
fn an_end_in_the_middle_is_told() {
    for (cut, event) in [
        (0, None),
        (9, Some(EventType::QpFatal)),
        (30, Some(EventType::QpFatal)),
    ] {
        let (mut machine, _) = victim();
        machine.receive(&fpdu(&send(1, 0, true), b"hello")[..cut]);
        machine.with(|iwarp, ends, events| iwarp.end(ends, false, events));
        assert!(machine.failed);
        assert_eq!(machine.iwarp.is_closed(), event.is_none(), "cut at {cut}");
        assert_eq!(machine.event, event, "cut at {cut}");
        assert!(machine.transmit().is_empty());
    }
}
