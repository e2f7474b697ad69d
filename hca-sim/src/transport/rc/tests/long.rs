//! Long packets, each of which stands for several of a message.

use super::retries::{post_read, post_write, requests};
use super::*;

/// Two machines whose long packets stand for that many of 1024 bytes.
fn pair_of(packets: usize) -> Pair {
    Pair::new().long(Some(packets * 1024))
}

/// Takes payload away from the packets of one side that have at least so many bytes.
fn shorten(pair: &mut Pair, side: usize, from: usize, by: usize) {
    pair.filter = Some(Box::new(move |sender, bytes| {
        if sender == side && bytes.len() >= from {
            let end = bytes.len() - 4;
            bytes.drain(end - by..end);
        }
        true
    }));
}

/// Goal: a message of seven packets takes seven numbers and is sent as four; what is short is no long packet.
#[test]
fn a_long_packet_takes_the_numbers_of_those_it_stands_for() {
    let mut pair = pair_of(2);
    post_write(&mut pair, 1, 6 * 1024 + 5);
    post_write(&mut pair, 2, 1023);
    post_read(&mut pair, 3, 3 * 1024);
    pair.run();
    assert_eq!(pair.ends[0].send_statuses().len(), 3);
    let [first, middle, last, only] = [0x06, 0x07, 0x08, 0x0a];
    assert_eq!(
        pair.sent_by(0),
        [
            (first, 0, 2048),
            (middle, 2, 2048),
            (middle, 4, 2048),
            (last, 6, 5),
            (only, 7, 1023),
            (0x0c, 8, 0),
        ]
    );
    let responses: Vec<_> = pair
        .sent_by(1)
        .into_iter()
        .filter(|sent| sent.2 != 0)
        .collect();
    assert_eq!(responses, [(0x0d, 8, 2048), (0x0f, 10, 1024)]);
}

/// Goal: an acknowledgement is for the last of the packets that a long one stands for, and the window counts all of them.
#[test]
fn the_window_counts_packets() {
    let mut pair = pair_of(100);
    pair.ends[0].room = 100;
    post_write(&mut pair, 1, 300 * 1024);
    let sent = requests(&mut pair);
    let numbers: Vec<_> = sent.iter().map(|bytes| bytes[11]).collect();
    assert_eq!(numbers, [0, 100, 200], "256 of 300");
    assert_eq!(sent[1].len() - sent[2].len(), 44 * 1024, "56 of 100");
    for bytes in &sent {
        pair.ends[1].receive(pair.now, bytes);
    }
    let (answers, _) = pair.ends[1].transmit(pair.now);
    let psn = |bytes: &[u8]| Packet::parse(bytes).unwrap().head.bth().psn.value();
    assert_eq!(psn(&answers.last().unwrap().0), 255);
    pair.ends[0].receive(pair.now, &answers.last().unwrap().0);
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(1, WcStatus::Success)]);
}

/// Goal: what is lost is sent again packet by packet, because that depends on nothing that may have been wrong with the first
/// try; and no packet is executed twice.
#[test]
fn what_is_sent_again_is_not_long() {
    let mut pair = pair_of(4);
    let data = pattern(1, 16 * 1024);
    pair.ends[0].memory.write(0, &data).unwrap();
    let mut lost = 0;
    pair.filter = Some(Box::new(move |from, bytes| {
        let is_second = from == 0 && bytes[11] == 4 && lost == 0;
        lost += usize::from(is_second);
        !is_second
    }));
    post_write(&mut pair, 1, 16 * 1024);
    pair.run();
    assert_eq!(pair.ends[0].send_statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.ends[1].bytes(0, 16 * 1024), data);
    let again = pair
        .log
        .iter()
        .filter(|(from, again, _)| *from == 0 && *again);
    let lens: Vec<_> = again.map(|(_, _, bytes)| bytes.len()).collect();
    assert!(
        !lens.is_empty() && lens.iter().all(|&len| len < 1100),
        "{lens:?}"
    );
}

/// Goal: a long packet that does not end its message stands for whole packets only, and one that ends it has what is left:
/// all else is refused, or ends the READ, and nothing is written.
#[test]
fn one_of_another_length_is_refused() {
    for (len, by) in [(4096, 4), (2048, 4), (2048, 1028), (2040, 8)] {
        let mut pair = pair_of(2);
        pair.ends[0].memory.write(0, &[7; 4096]).unwrap();
        shorten(&mut pair, 0, 2000, by);
        post_write(&mut pair, 1, len);
        pair.run();
        let sends = pair.ends[0].send_statuses();
        assert_eq!(sends, [(1, WcStatus::RemInvReqErr)], "{len} {by}");
        assert_eq!(pair.ends[1].bytes(0, 4096), [0; 4096]);

        let mut pair = pair_of(2);
        shorten(&mut pair, 1, 2000, by);
        post_read(&mut pair, 1, len);
        pair.run();
        let sends = pair.ends[0].send_statuses();
        assert_eq!(sends, [(1, WcStatus::BadRespErr)], "READ {len} {by}");
    }
}

/// Goal: only SENDs, WRITEs and the answers to READs can be long. Method: the opcode of a WRITE becomes another one with the
/// same headers.
#[test]
fn others_are_not_long() {
    // ATOMIC WRITE and READ request.
    for opcode in [0x1d, 0x0c] {
        let mut pair = pair_of(2);
        pair.ends[0].memory.write(0, &[7; 2048]).unwrap();
        pair.filter = Some(Box::new(move |from, bytes| {
            if from == 0 {
                bytes[0] = opcode;
            }
            true
        }));
        post_write(&mut pair, 1, 2048);
        pair.run();
        let sends = pair.ends[0].send_statuses();
        assert_eq!(sends, [(1, WcStatus::RemInvReqErr)], "{opcode:x}");
        assert_eq!(pair.ends[1].bytes(0, 2048), [0; 2048]);
    }
}
