//! The table of faults: what is wrong, the NAK on the wire, the statuses at both ends, and what becomes of
//! the responder (IBTA vol. 1, 9.9.2 and 9.9.3).

use verbs_core::Remote;

use super::*;

/// A key that no region has.
const NO_KEY: u32 = 0xbad0_0001;

/// The requester's work request; the peer has one receive of 2,000 bytes.
#[derive(Clone, Copy)]
enum Post {
    Send(u32),
    Write(u32),
    WriteImm(u32),
    Read(u32),
    FetchAdd,
    Invalidate(u32),
}

/// Changes what is posted or how the peers are set up.
type Change = fn(&mut Pair, &mut Remote);

/// Damages one of the requester's packets, by its number.
type Damage = fn(usize, &mut Vec<u8>);

struct Fault {
    what: &'static str,
    post: Post,
    change: Change,
    damage: Damage,
    /// The syndrome of the only answer.
    syndrome: u8,
    requester: WcStatus,
    /// The status of the receive.
    receive: WcStatus,
    event: Option<EventType>,
}

const NONE: Change = |_, _| {};
const INTACT: Damage = |_, _| {};

const fn invalid(what: &'static str, post: Post, change: Change, damage: Damage) -> Fault {
    Fault {
        what,
        post,
        change,
        damage,
        syndrome: 0x61,
        requester: WcStatus::RemInvReqErr,
        receive: WcStatus::WrFlushErr,
        event: Some(EventType::QpReqErr),
    }
}

/// As `invalid`, in the middle of a SEND, whose receive reports the fault.
const fn invalid_inside(what: &'static str, damage: Damage) -> Fault {
    Fault {
        receive: WcStatus::RemInvReqErr,
        event: None,
        ..invalid(what, Post::Send(1500), NONE, damage)
    }
}

const fn access(what: &'static str, post: Post, change: Change) -> Fault {
    Fault {
        syndrome: 0x62,
        requester: WcStatus::RemAccessErr,
        event: Some(EventType::QpAccessErr),
        ..invalid(what, post, change, INTACT)
    }
}

fn opcode(number: usize, nth: usize, bytes: &mut [u8], opcode: u8) {
    if number == nth {
        bytes[0] = opcode;
    }
}

/// Takes payload away before the ICRC.
fn shorten(number: usize, nth: usize, bytes: &mut Vec<u8>, by: usize) {
    if number == nth {
        let end = bytes.len() - 4;
        bytes.drain(end - by..end);
    }
}

/// A region of other rights or of another protection domain, in place of the peer's.
fn region(pair: &mut Pair, remote: &mut Remote, access: Access, pd: u32) {
    let peer = &pair.ends[1];
    let region = region_of(&peer.memory, access, pd);
    remote.rkey = RKey::new(peer.mrs.register(region).unwrap().0.value());
}

fn revoke(pair: &mut Pair, right: Access) {
    pair.ends[1].path.access.remove(right);
}

const TABLE: &[Fault] = &[
    invalid("missing First", Post::Send(100), NONE, |n, b| {
        opcode(n, 0, b, 0x02);
    }),
    invalid(
        "missing First of a WRITE",
        Post::Write(1500),
        NONE,
        |n, b| {
            // In front of the RETH: a Middle with 16 bytes too many would have a wrong length.
            if n == 0 {
                b[0] = 0x07;
                b.drain(12..28);
            }
        },
    ),
    invalid_inside("missing Last", |n, b| opcode(n, 1, b, 0x04)),
    invalid_inside("a WRITE inside of a SEND", |n, b| opcode(n, 1, b, 0x08)),
    invalid(
        "a SEND inside of a WRITE",
        Post::Write(1500),
        NONE,
        |n, b| opcode(n, 1, b, 0x02),
    ),
    invalid("ATOMIC WRITE of 16 bytes", Post::Write(16), NONE, |n, b| {
        opcode(n, 0, b, 0x1d);
    }),
    invalid(
        "no right to WRITE",
        Post::Write(8),
        |p, _| revoke(p, Access::REMOTE_WRITE),
        INTACT,
    ),
    invalid(
        "no right to READ",
        Post::Read(8),
        |p, _| revoke(p, Access::REMOTE_READ),
        INTACT,
    ),
    invalid(
        "no right to atomics",
        Post::FetchAdd,
        |p, _| revoke(p, Access::REMOTE_ATOMIC),
        INTACT,
    ),
    invalid(
        "the right is looked at before the key",
        Post::Read(8),
        |p, r| {
            revoke(p, Access::REMOTE_READ);
            r.rkey = RKey::new(NO_KEY);
        },
        INTACT,
    ),
    invalid(
        "misaligned atomic",
        Post::FetchAdd,
        |_, r| r.addr += 4,
        INTACT,
    ),
    invalid(
        "no READs at all",
        Post::Read(8),
        |p, _| p.ends[1].path.max_dest_rd_atomic = 0,
        INTACT,
    ),
    invalid(
        "no atomics at all",
        Post::FetchAdd,
        |p, _| p.ends[1].path.max_dest_rd_atomic = 0,
        INTACT,
    ),
    invalid("short First", Post::Send(1500), NONE, |n, b| {
        shorten(n, 0, b, 4);
    }),
    invalid_inside("empty Last", |n, b| shorten(n, 1, b, 476)),
    invalid_inside("short Middle", |n, b| {
        if n == 1 {
            b[0] = 0x01;
        }
    }),
    invalid(
        "WRITE shorter than it says",
        Post::Write(100),
        NONE,
        |n, b| shorten(n, 0, b, 4),
    ),
    invalid(
        "WRITE longer than it says",
        Post::Write(100),
        NONE,
        |n, b| {
            if n == 0 {
                b[27] = 96;
            }
        },
    ),
    invalid(
        "WRITE that ends too late",
        Post::Write(1500),
        NONE,
        |n, b| {
            if n == 0 {
                (b[26], b[27]) = (4, 0);
            }
        },
    ),
    invalid(
        "READ of more than 2^31 bytes",
        Post::Read(8),
        NONE,
        |_, b| {
            b[24] = 0x80;
        },
    ),
    Fault {
        receive: WcStatus::LocLenErr,
        event: None,
        ..invalid("SEND that does not fit", Post::Send(2001), NONE, INTACT)
    },
    access("WRITE with no such key", Post::Write(8), |_, r| {
        r.rkey = RKey::new(NO_KEY);
    }),
    access(
        "WRITE with immediate and no such key",
        Post::WriteImm(8),
        |_, r| r.rkey = RKey::new(NO_KEY),
    ),
    access("READ with no such key", Post::Read(8), |_, r| {
        r.rkey = RKey::new(NO_KEY);
    }),
    access("atomic with no such key", Post::FetchAdd, |_, r| {
        r.rkey = RKey::new(NO_KEY);
    }),
    access("wrong key byte", Post::Write(8), |_, r| {
        r.rkey = r.rkey.next();
    }),
    access("WRITE beyond the end", Post::Write(1500), |_, r| {
        r.addr += MEMORY as u64 - 1499;
    }),
    access("READ before the start", Post::Read(8), |_, r| r.addr -= 1),
    access("region of another domain", Post::Write(8), |p, r| {
        region(p, r, Access::REMOTE | Access::LOCAL_WRITE, PD + 1);
    }),
    access("region that grants no WRITE", Post::Write(8), |p, r| {
        region(p, r, Access::REMOTE_READ, PD);
    }),
    access("region that grants no READ", Post::Read(8), |p, r| {
        region(p, r, Access::LOCAL_WRITE | Access::REMOTE_WRITE, PD);
    }),
    Fault {
        what: "receive with no such key",
        syndrome: 0x63,
        requester: WcStatus::RemOpErr,
        receive: WcStatus::LocProtErr,
        event: None,
        ..invalid(
            "",
            Post::Send(100),
            |p, _| p.ends[1].lkey = LKey::new(NO_KEY),
            INTACT,
        )
    },
    Fault {
        what: "SEND that invalidates no key",
        syndrome: 0x1f,
        requester: WcStatus::Success,
        receive: WcStatus::RemInvReqErr,
        event: None,
        ..invalid("", Post::Invalidate(NO_KEY), NONE, INTACT)
    },
];

fn try_fault(fault: &Fault, shared: bool) {
    let mut pair = Pair::with(shared, 0);
    let mut remote = pair.ends[1].remote(0);
    (fault.change)(&mut pair, &mut remote);
    let room = [pair.ends[1].sge(0x1000, 2000)];
    pair.ends[1].post_recv(50, &room);
    let before = pair.ends[1].bytes(0, 2000);
    let (op, len) = match fault.post {
        Post::Send(len) => (SendOp::Send, len),
        Post::Write(len) => (SendOp::Write(remote), len),
        Post::WriteImm(len) => (SendOp::WriteWithImm(remote, 1), len),
        Post::Read(len) => (SendOp::Read(remote), len),
        Post::FetchAdd => (SendOp::FetchAdd { remote, add: 1 }, 8),
        Post::Invalidate(key) => (SendOp::SendWithInv(RKey::new(key)), 100),
    };
    let ours = &mut pair.ends[0];
    let sges = [ours.sge(0x2000, len)];
    ours.post(wr(1, op, &sges));
    ours.post(wr(2, SendOp::Write(remote), &[]));
    // The last packet of the first message has to be the last of all, or else it would not ask for an acknowledgement.
    let damage = fault.damage;
    let mut number = 0;
    pair.filter = Some(Box::new(move |from, bytes| {
        if from == 0 {
            damage(number, bytes);
            number += 1;
        }
        true
    }));
    pair.run();
    let what = fault.what;
    assert_eq!(pair.syndromes_of(1), [fault.syndrome], "{what}");
    let [ours, theirs] = &mut pair.ends;
    let sends = ours.send_statuses();
    assert_eq!(sends[0], (1, fault.requester), "{what}");
    if fault.requester == WcStatus::Success {
        // The peer is gone for the requests behind it.
        assert_eq!(sends[1], (2, WcStatus::RetryExcErr), "{what}");
    } else {
        assert_eq!(sends[1..], [(2, WcStatus::WrFlushErr)], "{what}");
    }
    assert!(ours.dead && theirs.dead, "{what}");
    let receives = theirs.recv_statuses();
    // What is on a shared receive queue stays there.
    if shared && fault.receive == WcStatus::WrFlushErr {
        assert_eq!(receives, [], "{what}");
    } else {
        assert_eq!(receives, [(50, fault.receive)], "{what}");
    }
    assert_eq!(theirs.events, Vec::from_iter(fault.event), "{what}");
    assert_eq!(ours.events, [], "{what}");
    if !matches!(fault.post, Post::Write(1500) | Post::Send(_)) {
        assert_eq!(theirs.bytes(0, 2000), before, "{what}: memory is as it was");
    }
}

#[test]
fn faults_end_as_the_table_says() {
    for fault in TABLE {
        for shared in [false, true] {
            try_fault(fault, shared);
        }
    }
}

/// Goal: a fault that the requester itself finds completes in its order, and nothing of the work request is sent, even
/// if the request for an acknowledgement was left to it. Method: no timeout helps.
#[test]
fn a_local_fault_completes_in_its_order() {
    for read in [false, true] {
        let mut pair = Pair::new();
        pair.paths(|path| path.timeout = 0);
        let [ours, theirs] = &mut pair.ends;
        let to = theirs.remote(0);
        let good = [ours.sge(0, 2000)];
        let bad = [
            ours.sge(0, 8),
            Sge {
                lkey: LKey::new(NO_KEY),
                ..ours.sge(8, 8)
            },
        ];
        let op = if read {
            SendOp::Read(to)
        } else {
            SendOp::Write(to)
        };
        ours.post(wr(1, SendOp::Write(to), &good));
        ours.post(wr(2, op, &bad));
        ours.post(wr(3, SendOp::Write(to), &good));
        pair.run();
        let ours = &mut pair.ends[0];
        assert_eq!(
            ours.send_statuses(),
            [
                (1, WcStatus::Success),
                (2, WcStatus::LocProtErr),
                (3, WcStatus::WrFlushErr)
            ]
        );
        assert!(!pair.ends[1].dead, "the peer does not know");
        assert_eq!(pair.sent_by(0).iter().map(|sent| sent.1).max(), Some(1));
    }
}

/// Goal: an invalid answer ends in BAD_RESP_ERR. Method: each thing that may be wrong.
#[test]
fn bad_responses_are_told() {
    let damages: [(&str, Damage); 5] = [
        ("Only for First", |n, b| opcode(n, 0, b, 0x10)),
        ("First for Last", |n, b| opcode(n, 1, b, 0x0d)),
        ("too short", |n, b| shorten(n, 0, b, 4)),
        ("a NAK inside", |_, b| b[12] = 0x61),
        ("atomic for READ", |n, b| {
            if n == 0 {
                b[0] = 0x12;
            }
        }),
    ];
    for (what, damage) in damages {
        let mut pair = Pair::new();
        let sges = [pair.ends[0].sge(0, 1500)];
        let from = pair.ends[1].remote(0);
        pair.ends[0].post(wr(1, SendOp::Read(from), &sges));
        let mut number = 0;
        pair.filter = Some(Box::new(move |from, bytes| {
            if from == 1 {
                damage(number, bytes);
                number += 1;
            }
            true
        }));
        pair.run();
        assert_eq!(
            pair.ends[0].send_statuses(),
            [(1, WcStatus::BadRespErr)],
            "{what}"
        );
        assert!(!pair.ends[1].dead);
    }
}

/// Goal: a region that is deregistered is no longer touched, in the middle of a message of any kind. Method: it is
/// deregistered after the first packet of three, at either end.
#[test]
fn regions_that_go_away_are_left_alone() {
    let from_peer = [false, true];
    for (read, at_peer) in from_peer
        .into_iter()
        .flat_map(|read| from_peer.map(|peer| (read, peer)))
    {
        let mut pair = Pair::new();
        pair.paths(|path| path.timeout = 0);
        let [ours, theirs] = &mut pair.ends;
        ours.room = 1;
        theirs.room = 1;
        ours.memory.fill(0..3000, 1).unwrap();
        theirs.memory.fill(0..3000, 2).unwrap();
        let sges = [ours.sge(0, 3000)];
        let place = theirs.remote(0);
        let op = if read {
            SendOp::Read(place)
        } else {
            SendOp::Write(place)
        };
        ours.post(wr(1, op, &sges));
        let gone = if at_peer { &theirs.mrs } else { &ours.mrs };
        let (mrs, key) = (
            Arc::clone(gone),
            if at_peer { theirs.lkey } else { ours.lkey },
        );
        let data_from = usize::from(read);
        let mut count = 0;
        pair.filter = Some(Box::new(move |from, _| {
            count += usize::from(from == data_from);
            if from == data_from && count == 2 {
                mrs.deregister(key, || {}).unwrap();
            }
            true
        }));
        pair.run();
        let [ours, theirs] = &mut pair.ends;
        let status = if at_peer {
            WcStatus::RemAccessErr
        } else {
            WcStatus::LocProtErr
        };
        assert_eq!(
            ours.send_statuses(),
            [(1, status)],
            "read {read}, at the peer {at_peer}"
        );
        assert_eq!(theirs.dead, at_peer);
        let sink = if read { ours } else { theirs };
        assert_eq!(sink.bytes(2048, 952), vec![2 - u8::from(read); 952]);
    }
}

/// Goal: a SEND with Invalidate invalidates the key when it has arrived, once.
#[test]
fn a_key_is_invalidated_with_the_message() {
    let mut pair = Pair::new();
    let [ours, theirs] = &mut pair.ends;
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    let rkey = register_fast(&theirs.mrs, &theirs.memory, access, PD);
    let room = [theirs.sge(0x1000, 2000)];
    theirs.post_recv(50, &room);
    let remote = Remote {
        rkey,
        ..theirs.remote(0)
    };
    let sges = [ours.sge(0, 1500)];
    ours.post(wr(1, SendOp::Write(remote), &sges));
    ours.post(wr(2, SendOp::SendWithInv(rkey), &sges));
    ours.post(wr(3, SendOp::Write(remote), &sges));
    pair.run();
    let [ours, theirs] = &mut pair.ends;
    let (ok, refused) = (WcStatus::Success, WcStatus::RemAccessErr);
    assert_eq!(ours.send_statuses(), [(1, ok), (2, ok), (3, refused)]);
    assert_eq!(theirs.recv_statuses(), [(50, ok)]);
}

/// Goal: no peer invalidates a key of another protection domain.
#[test]
fn a_key_of_another_domain_stays() {
    let mut pair = Pair::new();
    let [ours, theirs] = &mut pair.ends;
    let rkey = register_fast(&theirs.mrs, &theirs.memory, Access::REMOTE_READ, PD + 1);
    theirs.post_recv(50, &[]);
    ours.post(wr(1, SendOp::SendWithInv(rkey), &[]));
    pair.run();
    let theirs = &mut pair.ends[1];
    assert!(theirs.dead);
    let (pin, who) = (pin(), Who { pd: PD + 1, qpn: 0 });
    let granted = theirs
        .mrs
        .grants(&pin, rkey.value(), who, Access::REMOTE_READ);
    assert_eq!(granted, Ok(()));
    drop(pin);
    assert_eq!(theirs.recv_statuses(), [(50, WcStatus::RemInvReqErr)]);
}

/// Goal: the receive of a SEND that does not end is flushed, even if it came from a shared queue.
#[test]
fn a_receive_that_is_taken_is_flushed() {
    for shared in [false, true] {
        let mut pair = Pair::with(shared, 0);
        let room = [pair.ends[1].sge(0, 4000)];
        pair.ends[1].post_recv(50, &room);
        let sges = [pair.ends[0].sge(0, 3000)];
        pair.ends[0].post(wr(1, SendOp::Send, &sges));
        let (packets, _) = pair.ends[0].transmit(0);
        pair.ends[1].receive(0, &packets[0].0);
        pair.ends[1].receive(0, &packets[1].0);
        pair.ends[1].flush();
        let flushed = pair.ends[1].recv_statuses();
        assert_eq!(flushed, [(50, WcStatus::WrFlushErr)]);
    }
}

/// Goal: a queue pair that may have no READs outstanding reports that, rather than waiting for ever.
#[test]
fn a_read_without_depth() {
    let mut pair = Pair::new();
    pair.ends[0].path.max_rd_atomic = 0;
    let sges = [pair.ends[0].sge(0, 8)];
    let from = pair.ends[1].remote(0);
    pair.ends[0].post(wr(1, SendOp::Write(from), &sges));
    pair.ends[0].post(wr(2, SendOp::Read(from), &sges));
    pair.run();
    let sends = pair.ends[0].send_statuses();
    assert_eq!(sends, [(1, WcStatus::Success), (2, WcStatus::LocQpOpErr)]);
}

/// Goal: the NAK of a fault is sent after the answers before it, even if the outlet had no room at once.
#[test]
fn a_nak_waits_for_the_outlet() {
    let mut pair = Pair::new();
    let [ours, theirs] = &mut pair.ends;
    let sges = [ours.sge(0, 8)];
    let good = theirs.remote(0);
    let bad = Remote {
        rkey: RKey::new(NO_KEY),
        ..good
    };
    ours.post(wr(1, SendOp::Read(good), &sges));
    ours.post(wr(2, SendOp::Write(bad), &sges));
    let (packets, _) = ours.transmit(0);
    for (bytes, _) in &packets {
        theirs.receive(0, bytes);
    }
    assert!(theirs.dead && theirs.rc.is_answering());
    theirs.room = 0;
    assert_eq!(theirs.transmit(0), (Vec::new(), true));
    theirs.room = 1;
    for (opcode, more) in [(0x10, true), (0x11, false)] {
        let (packets, left) = theirs.transmit(0);
        assert_eq!((packets[0].0[0], left), (opcode, more));
        ours.receive(0, &packets[0].0);
    }
    assert!(!theirs.rc.is_answering() && theirs.rc.deadline().is_none());
    let refused = WcStatus::RemAccessErr;
    assert_eq!(ours.send_statuses(), [(1, WcStatus::Success), (2, refused)]);
}

/// Goal: taking receives from a shared queue reports when its limit is reached, once.
#[test]
fn the_limit_of_a_shared_queue_is_told() {
    let mut pair = Pair::with(true, 0);
    let [ours, theirs] = &mut pair.ends;
    for wr_id in 0..3 {
        theirs.post_recv(wr_id, &[]);
        ours.post(wr(wr_id, SendOp::Send, &[]));
    }
    let (srq, _) = theirs.srq.as_ref().unwrap();
    assert!(!srq.arm(2));
    pair.run();
    assert_eq!((pair.ends[0].limits, pair.ends[1].limits), (0, 1));
}
