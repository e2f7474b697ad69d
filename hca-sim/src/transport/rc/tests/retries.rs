//! What is lost is sent again, what arrives again is done once, and what never arrives ends in an error.

use super::*;

fn lose(pair: &mut Pair, side: usize, numbers: &'static [usize]) {
    let mut count = 0;
    pair.filter = Some(Box::new(move |from, _| {
        if from != side {
            return true;
        }
        count += 1;
        !numbers.contains(&(count - 1))
    }));
}

pub(super) fn post_write(pair: &mut Pair, wr_id: u64, len: u32) {
    let [ours, theirs] = &mut pair.ends;
    let sges = [ours.sge(0, len)];
    ours.post(wr(wr_id, SendOp::Write(theirs.remote(0)), &sges));
}

pub(super) fn post_read(pair: &mut Pair, wr_id: u64, len: u32) {
    let [ours, theirs] = &mut pair.ends;
    theirs
        .memory
        .write(0, &pattern(wr_id, len as usize))
        .unwrap();
    let sges = [ours.sge(0x8000, len)];
    ours.post(wr(wr_id, SendOp::Read(theirs.remote(0)), &sges));
}

fn post_send(pair: &mut Pair, wr_id: u64, len: u32) {
    let sges = [pair.ends[0].sge(0, len)];
    pair.ends[0].post(wr(wr_id, SendOp::Send, &sges));
}

const OK: WcStatus = WcStatus::Success;

/// Goal: a silent peer is given up after `retry_cnt` repetitions, each a timeout apart; without a timeout there is no
/// end.
#[test]
fn a_silent_peer() {
    for (retry_cnt, code) in [(0, 10), (3, 10), (7, 1)] {
        let mut pair = Pair::new();
        pair.paths(|path| (path.retry_cnt, path.timeout) = (retry_cnt, code));
        pair.filter = Some(Box::new(|_, _| false));
        post_write(&mut pair, 1, 100);
        post_write(&mut pair, 2, 100);
        pair.run();
        let sends = pair.ends[0].send_statuses();
        assert_eq!(
            sends,
            [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]
        );
        let tries = u64::from(retry_cnt) + 1;
        // Both packets at first; then one at a time, as long as nothing is confirmed.
        assert_eq!(pair.log.len() as u64, 2 + u64::from(retry_cnt));
        assert_eq!(pair.now, tries * (4096 << code));
        assert_eq!(pair.ends[0].counters.timeouts.get(), tries);
    }
    let mut pair = Pair::new();
    pair.paths(|path| path.timeout = 0);
    pair.filter = Some(Box::new(|_, _| false));
    post_write(&mut pair, 1, 100);
    assert!(!pair.step(), "nothing will ever happen");
    assert_eq!(pair.ends[0].sends.next(), Some(0));
}

/// Goal: a requester that has given its peer up sends again after its queue pair was reset.
#[test]
fn a_requester_that_failed_sends_again_after_a_reset() {
    let mut pair = Pair::new();
    pair.paths(|path| path.retry_cnt = 0);
    pair.filter = Some(Box::new(|_, _| false));
    post_write(&mut pair, 1, 100);
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(1, WcStatus::RetryExcErr)]);
    pair.filter = None;
    for end in &mut pair.ends {
        end.rc.reset();
        end.dead = false;
    }
    post_write(&mut pair, 2, 100);
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(2, OK)]);
}

/// Goal: after a timeout one packet is sent, and each confirmation lets twice as many follow. Method: the first twenty
/// packets are lost; a peer that is asked once for each of the forty would answer forty times.
#[test]
fn a_window_that_a_timeout_has_closed_opens_again() {
    let mut pair = Pair::new();
    let mut count = 0;
    pair.filter = Some(Box::new(move |from, _| {
        count += u32::from(from == 0);
        from == 1 || count > 40
    }));
    post_write(&mut pair, 1, 40 * 1024);
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(1, OK)]);
    let answers = pair.syndromes_of(1).len();
    assert!(
        answers <= 20,
        "{answers} answers to 1, 2, 4, 8, 16 and 9 packets, 4 in a window at most"
    );
}

/// Goal: a timer that is early does nothing.
#[test]
fn an_early_timer_does_nothing() {
    let mut pair = Pair::new();
    pair.filter = Some(Box::new(|_, _| false));
    post_write(&mut pair, 1, 100);
    pair.send_all();
    let deadline = pair.ends[0].rc.deadline().unwrap();
    let early = deadline.as_nanos() - 1;
    pair.ends[0].with(early, |rc, ends, events| rc.expire(ends, events));
    assert_eq!(pair.ends[0].rc.deadline(), Some(deadline));
    assert!(pair.ends[0].transmit(early).0.is_empty());
}

/// Goal: one loss causes one NAK and one packet that is sent again, unchanged, WRITEs that begin in their middle
/// included. Method: without timeouts, so that only the NAK can cause it.
#[test]
fn a_loss_is_one_nak() {
    let mut pair = Pair::new();
    pair.paths(|path| path.timeout = 0);
    lose(&mut pair, 0, &[1]);
    post_write(&mut pair, 1, 5000);
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(1, OK)]);
    assert_eq!(pair.syndromes_of(1), [0x60, 0x1f]);
    let sent: Vec<_> = pair
        .sent_by(0)
        .iter()
        .map(|packet| (packet.0, packet.1))
        .collect();
    assert_eq!(
        sent[..5],
        [(0x06, 0), (0x07, 1), (0x07, 2), (0x07, 3), (0x08, 4)]
    );
    assert_eq!(sent[5..], [(0x07, 1)]);
    let counters = &pair.ends[1].counters;
    assert_eq!(counters.out_of_sequence.get(), 3);
    assert_eq!(counters.kept_early.get(), 3);
    assert_eq!(pair.ends[0].counters.sequence_naks.get(), 1);
}

/// Goal: retries are only counted between signs of life. Method: one retry, and each message is lost once.
#[test]
fn progress_fills_the_retries_again() {
    let mut pair = Pair::new();
    pair.paths(|path| path.retry_cnt = 1);
    for wr_id in 0..3 {
        let mut count = 0;
        pair.filter = Some(Box::new(move |_, _| {
            count += 1;
            count != 1
        }));
        post_write(&mut pair, wr_id, 100);
        pair.run();
        assert_eq!(pair.ends[0].send_statuses(), [(wr_id, OK)]);
    }
}

/// Goal: what is confirmed while it is about to be sent again is not sent again.
#[test]
fn a_late_acknowledgement_saves_packets() {
    let mut pair = Pair::new();
    post_write(&mut pair, 1, 5000);
    let requests = requests(&mut pair);
    let mut ack = Vec::new();
    for bytes in &requests {
        ack.extend(answers(&mut pair, &[bytes]));
    }
    let deadline = pair.ends[0].rc.deadline().unwrap().as_nanos();
    pair.ends[0].with(deadline, |rc, ends, events| rc.expire(ends, events));
    let mut early = ack[0].clone();
    early[11] = 2;
    pair.ends[0].receive(deadline, &early);
    let (packets, _) = pair.ends[0].transmit(deadline);
    assert!(packets.is_empty(), "the rest is on its way as well");
    assert!(pair.ends[0].rc.deadline().is_some(), "or will be missed");
    pair.ends[0].receive(deadline, &ack[0]);
    assert_eq!(pair.ends[0].send_statuses(), [(1, OK)]);
}

/// Goal: a repetition does not take the place of a NAK that has not been sent; the missing packet does.
#[test]
fn a_repetition_does_not_hide_a_nak() {
    let mut pair = Pair::new();
    for wr_id in 0..3 {
        post_write(&mut pair, wr_id, 100);
    }
    let requests = requests(&mut pair);
    let answers = answers(&mut pair, &[&requests[0], &requests[2], &requests[0]]);
    assert_eq!(
        (answers.len(), answers[0][11], answers[0][12]),
        (1, 1, 0x60)
    );

    let mut pair = Pair::new();
    post_write(&mut pair, 1, 3000);
    let requests = self::requests(&mut pair);
    let answers = self::answers(&mut pair, &[&requests[1], &requests[0]]);
    assert!(answers.is_empty(), "what was missing came meanwhile");
    let answers = self::answers(&mut pair, &[&requests[1]]);
    assert_eq!(
        (answers.len(), answers[0][11], answers[0][12]),
        (1, 1, 0x1f),
        "what was kept has been executed"
    );
}

/// Goal: a NAK that arrives repeatedly for the same packet uses up the retries.
#[test]
fn a_packet_that_never_arrives() {
    let mut pair = Pair::new();
    pair.paths(|path| path.retry_cnt = 2);
    pair.filter = Some(Box::new(|from, bytes| from == 1 || bytes[11] != 1));
    post_write(&mut pair, 1, 5000);
    post_write(&mut pair, 2, 1);
    pair.run();
    let sends = pair.ends[0].send_statuses();
    assert_eq!(
        sends,
        [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]
    );
}

/// Goal: a sender that finds no receive waits as long as the responder says, `rnr_retry` times, or for ever at 7; the
/// packets behind are not answered with NAKs.
#[test]
fn receiver_not_ready() {
    for rnr_retry in [0, 2, 6] {
        let mut pair = Pair::new();
        pair.paths(|path| (path.rnr_retry, path.min_rnr_timer) = (rnr_retry, 14));
        post_send(&mut pair, 1, 3000);
        pair.run();
        assert_eq!(
            pair.ends[0].send_statuses(),
            [(1, WcStatus::RnrRetryExcErr)]
        );
        let tries = u64::from(rnr_retry) + 1;
        assert_eq!(pair.syndromes_of(1), vec![0x20 | 14; tries as usize]);
        assert_eq!(pair.ends[0].counters.rnr_naks.get(), tries);
        assert!(pair.now >= u64::from(rnr_retry) * 1_280_000);
        assert!(!pair.ends[1].dead && pair.ends[1].events.is_empty());
    }
    let mut pair = Pair::new();
    pair.paths(|path| (path.rnr_retry, path.retry_cnt) = (7, 0));
    post_send(&mut pair, 1, 3000);
    post_write(&mut pair, 2, 10);
    pair.run_for(Duration::from_millis(10));
    assert!(!pair.ends[0].dead && pair.syndromes_of(1).len() > 100);
    let room = [pair.ends[1].sge(0, 3000)];
    pair.ends[1].post_recv(9, &room);
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(1, OK), (2, OK)]);
    assert_eq!(pair.ends[1].recv_statuses(), [(9, OK)]);
}

/// Goal: nothing shortens the wait that the responder has asked for. Method: the sequence NAK that Linux rxe sends
/// behind its RNR NAK, and the RNR NAK once more, which does not count twice.
#[test]
fn the_wait_for_a_receive_is_kept() {
    let mut pair = Pair::new();
    pair.paths(|path| (path.min_rnr_timer, path.rnr_retry) = (14, 1));
    post_send(&mut pair, 1, 3000);
    let requests = requests(&mut pair);
    let mut nak = answers(&mut pair, &[&requests[0]]).remove(0);
    assert_eq!(nak[12], 0x2e);
    pair.ends[0].receive(0, &nak);
    pair.ends[0].receive(0, &nak);
    nak[12] = 0x60;
    pair.ends[0].receive(0, &nak);
    let deadline = pair.ends[0].rc.deadline();
    assert_eq!(deadline, Some(Instant::from_nanos(1_280_000)));
    pair.ends[0].with(1_279_999, |rc, ends, events| rc.expire(ends, events));
    assert!(pair.ends[0].transmit(1_279_999).0.is_empty());
    pair.ends[0].with(1_280_000, |rc, ends, events| rc.expire(ends, events));
    let again = pair.ends[0].transmit(1_280_000).0;
    assert_eq!(again.len(), 3);
    assert!(again.iter().all(|(_, again)| *again));
    assert!(!pair.ends[0].dead);
}

/// Goal: a WRITE with immediate that finds no receive places its data and completes later.
#[test]
fn a_write_with_immediate_waits_for_a_receive() {
    let mut pair = Pair::new();
    pair.ends[0].memory.write(0, &pattern(4, 3000)).unwrap();
    let sges = [pair.ends[0].sge(0, 3000)];
    let to = pair.ends[1].remote(0x4000);
    pair.ends[0].post(wr(1, SendOp::WriteWithImm(to, 5), &sges));
    pair.send_all();
    while pair.syndromes_of(1).is_empty() {
        pair.step();
    }
    pair.ends[1].post_recv(9, &[]);
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(1, OK)]);
    assert_eq!(pair.ends[1].poll_recvs()[0].immediate(), Some(5));
    assert_eq!(pair.ends[1].bytes(0x4000, 3000), pattern(4, 3000));
    assert_eq!(
        pair.sent_by(0).last().unwrap().0,
        0x09,
        "only the Last is sent again"
    );
}

/// Goal: a lost part of a READ's response is requested again, and only that part; a responder that continues with
/// Middle there (Linux rxe) is understood as well as one that begins again with First.
#[test]
fn a_lost_response_is_asked_for_again() {
    for like_rxe in [false, true] {
        let mut pair = Pair::new();
        pair.paths(|path| path.timeout = 0);
        let mut count = 0;
        pair.filter = Some(Box::new(move |from, bytes| {
            if from == 0 {
                return true;
            }
            count += 1;
            if like_rxe && count > 5 && bytes[0] == 0x0d {
                bytes[0] = 0x0e;
                bytes.drain(12..16);
            }
            count != 3 && count != 4
        }));
        post_read(&mut pair, 7, 5000);
        pair.run();
        assert_eq!(pair.ends[0].send_statuses(), [(7, OK)]);
        assert_eq!(pair.ends[0].bytes(0x8000, 5000), pattern(7, 5000));
        assert_eq!(pair.sent_by(0), [(0x0c, 0, 0), (0x0c, 2, 0)], "{like_rxe}");
        let reth =
            Packet::parse(&pair.log.iter().rfind(|(from, ..)| *from == 0).unwrap().2).unwrap();
        let reth = reth.head.ext().reth.unwrap();
        assert_eq!((reth.addr, reth.dma_len), (BASE + 2048, 2048));
        let answers: Vec<_> = pair
            .sent_by(1)
            .iter()
            .map(|packet| (packet.0, packet.1))
            .collect();
        assert_eq!(answers[5..], [(0x0d, 2), (0x0f, 3)]);
    }
}

/// Goal: an acknowledgement beyond a READ or an atomic says that its answer is lost (implied NAK).
#[test]
fn an_acknowledgement_beyond_a_read() {
    let mut pair = Pair::new();
    pair.paths(|path| path.timeout = 0);
    let [ours, theirs] = &mut pair.ends;
    theirs.memory.store_u64(0x9000, 5).unwrap();
    let cell = [ours.sge(0x100, 8)];
    let remote = theirs.remote(0x9000);
    ours.post(wr(1, SendOp::FetchAdd { remote, add: 2 }, &cell));
    post_write(&mut pair, 2, 10);
    post_read(&mut pair, 3, 10);
    post_write(&mut pair, 4, 10);
    lose(&mut pair, 1, &[0, 1]);
    pair.run();
    let all = [1, 2, 3, 4].map(|wr_id| (wr_id, OK));
    assert_eq!(pair.ends[0].send_statuses(), all);
    assert_eq!(
        pair.ends[1].memory.load_u64(0x9000).unwrap(),
        7,
        "added once"
    );
    assert_eq!(pair.ends[0].memory.load_u64(0x100).unwrap(), 5);
}

/// The answers of one machine to the given requests.
pub(super) fn answers(pair: &mut Pair, requests: &[&[u8]]) -> Vec<Vec<u8>> {
    for bytes in requests {
        pair.ends[1].receive(pair.now, bytes);
    }
    pair.ends[1].room = 1000;
    let (packets, more) = pair.ends[1].transmit(pair.now);
    assert!(!more);
    packets.into_iter().map(|(bytes, _)| bytes).collect()
}

pub(super) fn requests(pair: &mut Pair) -> Vec<Vec<u8>> {
    let (packets, _) = pair.ends[0].transmit(pair.now);
    packets.into_iter().map(|(bytes, _)| bytes).collect()
}

/// Goal: an atomic that arrives again is answered as before and not executed again; one that is not remembered is not
/// answered.
#[test]
fn a_repeated_atomic() {
    let mut pair = Pair::new();
    pair.paths(|path| path.max_rd_atomic = 6);
    pair.ends[0].path.max_dest_rd_atomic = 6;
    pair.ends[1].memory.store_u64(64, 100).unwrap();
    let remote = pair.ends[1].remote(64);
    let sges = [pair.ends[0].sge(0, 8)];
    for wr_id in 0..5 {
        pair.ends[0].post(wr(wr_id, SendOp::FetchAdd { remote, add: 1 }, &sges));
    }
    let requests = requests(&mut pair);
    let first: Vec<_> = requests
        .iter()
        .map(|bytes| answers(&mut pair, &[bytes]))
        .collect();
    assert_eq!(pair.ends[1].memory.load_u64(64).unwrap(), 105);
    let again = answers(&mut pair, &[&requests[3]]);
    assert_eq!(
        again[0][16..24],
        first[3][0][16..24],
        "the value that was there"
    );
    assert_eq!(again.len(), 1);
    assert!(
        answers(&mut pair, &[&requests[0]]).is_empty(),
        "four are remembered"
    );
    assert_eq!(pair.ends[1].memory.load_u64(64).unwrap(), 105);
    assert!(!pair.ends[1].dead);
}

/// Goal: a READ that arrives again, or its rest, reads memory again; more than was requested at first, or under another
/// key, is not answered.
#[test]
fn a_repeated_read() {
    let mut pair = Pair::new();
    post_read(&mut pair, 1, 3000);
    let request = requests(&mut pair).remove(0);
    assert_eq!(answers(&mut pair, &[&request]).len(), 3);
    pair.ends[1].memory.write(0, &pattern(2, 3000)).unwrap();
    let again = answers(&mut pair, &[&request]);
    assert_eq!(again[0][16..1040], pattern(2, 3000)[..1024], "fresh data");
    let change = |psn: u8, addr: u16, key: u8, len: u16| {
        let mut bytes = request.clone();
        bytes[11] += psn;
        let at = u64::from_be_bytes(bytes[12..20].try_into().unwrap()) + u64::from(addr);
        bytes[12..20].copy_from_slice(&at.to_be_bytes());
        bytes[23] ^= key;
        bytes[26..28].copy_from_slice(&len.to_be_bytes());
        bytes
    };
    let mut count = |bytes: Vec<u8>| answers(&mut pair, &[&bytes]).len();
    assert_eq!(count(change(1, 1024, 0, 1976)), 2, "the rest");
    assert_eq!(count(change(0, 1, 0, 3000)), 0, "beyond the end");
    assert_eq!(
        count(change(2, 0, 0, 3000)),
        0,
        "more packets than there are numbers"
    );
    assert_eq!(count(change(0, 0, 1, 3000)), 0, "another key");
    assert!(!pair.ends[1].dead && pair.ends[1].events.is_empty());
}

/// Goal: WRITEs and SENDs that arrive again are acknowledged again, are not executed, and it does not matter what is
/// wrong with them now; their acknowledgements never pass over a READ.
#[test]
fn repeated_writes_and_sends() {
    let mut pair = Pair::new();
    let room = [pair.ends[1].sge(0x4000, 100)];
    pair.ends[1].post_recv(1, &room);
    post_send(&mut pair, 1, 100);
    post_write(&mut pair, 2, 100);
    let requests = requests(&mut pair);
    let all: Vec<&[u8]> = requests.iter().map(Vec::as_slice).collect();
    assert_eq!(answers(&mut pair, &all).len(), 1);
    pair.ends[1].memory.fill(0..100, 9).unwrap();
    let mut damaged = requests[1].clone();
    damaged[20..24].fill(0xee);
    let again = answers(&mut pair, &[&requests[0], &damaged]);
    assert_eq!(again.len(), 1);
    assert_eq!((again[0][0], again[0][11], again[0][12]), (0x11, 1, 0x1f));
    assert_eq!(pair.ends[1].bytes(0, 100), vec![9; 100]);
    assert_eq!(pair.ends[1].poll_recvs().len(), 1);
    assert_eq!(pair.ends[1].counters.duplicates.get(), 2);

    let mut pair = Pair::new();
    post_write(&mut pair, 1, 100);
    post_read(&mut pair, 2, 100);
    let requests = self::requests(&mut pair);
    let all: Vec<&[u8]> = requests.iter().map(Vec::as_slice).collect();
    assert_eq!(
        answers(&mut pair, &all).len(),
        1,
        "the response acknowledges the WRITE"
    );
    let again = answers(&mut pair, &[&requests[0]]);
    assert_eq!(
        (again[0][0], again[0][11]),
        (0x11, 0),
        "not beyond the READ"
    );
}

/// Goal: READs beyond the number that the responder said it would remember are refused while none is answered.
#[test]
fn more_reads_than_agreed() {
    let mut pair = Pair::new();
    pair.ends[0].path.max_rd_atomic = 5;
    for wr_id in 0..5 {
        post_read(&mut pair, wr_id, 100);
    }
    let requests = requests(&mut pair);
    let all: Vec<&[u8]> = requests.iter().map(Vec::as_slice).collect();
    let answers = answers(&mut pair, &all);
    let opcodes: Vec<u8> = answers.iter().map(|bytes| bytes[0]).collect();
    assert_eq!(opcodes, [0x10, 0x10, 0x10, 0x10, 0x11]);
    assert_eq!((answers[4][12], answers[4][11]), (0x61, 4));
    assert!(pair.ends[1].dead);
}

/// Goal: answers to what was never sent, or is confirmed already, change nothing.
#[test]
fn ghosts_are_ignored() {
    let mut pair = Pair::new();
    pair.paths(|path| path.sq_psn = 10);
    pair.ends[1].path.rq_psn = 10;
    for wr_id in 0..3 {
        post_write(&mut pair, wr_id, 100);
    }
    let requests = requests(&mut pair);
    let ack = answers(&mut pair, &[&requests[0], &requests[1], &requests[2]]).remove(0);
    let ghost = |psn: u8, syndrome: u8| {
        let mut bytes = ack.clone();
        bytes[11] = psn;
        bytes[12] = syndrome;
        bytes
    };
    for (psn, syndrome) in [
        (9, 0x1f),
        (13, 0x1f),
        (13, 0x60),
        (9, 0x62),
        (200, 0x61),
        (9, 0x2e),
    ] {
        pair.ends[0].receive(0, &ghost(psn, syndrome));
    }
    assert!(pair.ends[0].send_statuses().is_empty() && !pair.ends[0].dead);
    pair.ends[0].receive(0, &ghost(11, 0x1f));
    assert_eq!(pair.ends[0].send_statuses(), [(0, OK), (1, OK)]);
    pair.ends[0].receive(0, &ghost(11, 0x62));
    pair.ends[0].receive(0, &ghost(12, 0x1f));
    pair.ends[0].receive(0, &ghost(12, 0x1f));
    assert_eq!(pair.ends[0].send_statuses(), [(2, OK)]);
    assert!(pair.ends[0].rc.deadline().is_none());
}

/// Goal: a message of 2^31 bytes takes 2^23 numbers and nothing else is sent beside it.
#[test]
fn the_longest_message_has_numbers() {
    use super::super::requester::window::{Flight, Kind, Window};
    let mut window = Window::new(4).unwrap();
    window.start(verbs_core::Psn::new(0xff_ffff));
    let packets = 1 << 23;
    assert!(window.has_numbers(packets) && !window.has_numbers(packets + 1));
    let long = window.begin(Flight {
        packets,
        kind: Kind::Read,
        ..Flight::default()
    });
    window.passed_request(&long);
    assert!(!window.has_numbers(1));
    assert!(window.awaits(long.first) && window.awaits(long.first.add(packets - 1)));
    assert!(!window.awaits(long.first.add(packets)));
    window.confirm(packets - 1);
    assert!(!window.is_confirmed());
    window.confirm(1);
    assert!(window.is_confirmed() && !window.is_outstanding());
    window.retire();
    assert!(window.is_idle() && window.has_numbers(packets));
    assert_eq!(
        (window.requests(), window.reads(), window.responses()),
        (0, 0, 0)
    );
}
