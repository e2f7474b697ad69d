//! Goal: the bytes are those of the golden vectors.

use verbs_core::{RKey, Read, Remote, Send, WcStatus, Write};
use verbs_wire::iwarp::{Header, Rtr};

use super::*;

pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

const SEND: &str = "0017 4143 00000000 00000000 00000001 00000000 68656c6c6f 000000 b990b10c";

#[test]
fn a_send_has_the_golden_bytes() {
    let mut ours = Machine::new(start(true, true));
    ours.post(Send::new(1).inline(b"hello").signaled());
    assert_eq!(ours.transmit(), hex(SEND));
    assert_eq!(statuses(&ours.poll_sends()), [(1, WcStatus::Success)]);
    let mut theirs = Machine::new(start(false, true));
    let room = [theirs.sge(0, 64)];
    theirs.post_recv(2, &room);
    theirs.receive(&hex(SEND));
    let wcs = theirs.poll_recvs();
    assert_eq!(statuses(&wcs), [(2, WcStatus::Success)]);
    assert_eq!(
        (wcs[0].byte_len, theirs.bytes(0, 5)),
        (5, b"hello".to_vec())
    );
}

#[test]
fn a_write_has_the_golden_bytes() {
    let mut ours = Machine::new(start(true, true));
    let to = Remote {
        addr: 0x1000,
        rkey: RKey::new(0x1234_5678),
    };
    ours.post(Write::new(1, to).inline(b"data"));
    let golden = "0012 c140 12345678 0000000000001000 64617461 f2ca6d3e";
    assert_eq!(ours.transmit(), hex(golden));
}

#[test]
fn the_ready_to_receive_write_has_the_golden_bytes() {
    let mut ours = Machine::new(Start {
        rtr: Rtr::WRITE,
        ..start(true, true)
    });
    let golden = "000e c140 00000001 0000000000000000 ebd34c5f";
    assert_eq!(ours.transmit(), hex(golden));
    assert!(ours.transmit().is_empty(), "it is sent once");
    // Whatever its STag, it lets the peer send, who waits for nothing else.
    let mut theirs = Machine::new(Start {
        rtr: Rtr::WRITE,
        ..start(false, true)
    });
    theirs.post(Send::new(1).inline(b"hello"));
    assert_eq!(theirs.iwarp.deadline(), None);
    assert!(theirs.transmit().is_empty());
    theirs.receive(&hex(golden));
    assert_eq!(theirs.transmit(), hex(SEND));
}

#[test]
fn a_read_request_has_the_golden_form() {
    let mut ours = Machine::new(start(true, true));
    let from = Remote {
        addr: 0x3000,
        rkey: RKey::new(0x2222_2200),
    };
    let sink = ours.sge(0x2000, 4096);
    ours.post(Read::new(1, from).into(sink));
    let put = ours.transmit();
    let key = ours.lkey.value();
    let addr = BASE + 0x2000;
    let ulpdu = format!(
        "4141 00000000 00000001 00000001 00000000 {key:08x} {addr:016x} 00001000 22222200 0000000000003000"
    );
    assert_eq!(put, sealed(&hex(&ulpdu)));
    assert_eq!(put.len(), 52);
}

#[test]
fn a_damaged_fpdu_is_answered_with_the_golden_terminate() {
    let mut theirs = Machine::new(start(false, true));
    let mut damaged = hex(SEND);
    damaged[24] ^= 1;
    let room = [theirs.sge(0, 64)];
    theirs.post_recv(1, &room);
    theirs.receive(&damaged);
    assert!(theirs.failed);
    let golden = "0016 4147 00000000 00000002 00000001 00000000 20020000 7fe42585";
    assert_eq!(theirs.transmit(), hex(golden));
    assert!(
        theirs.poll_recvs().is_empty(),
        "it is flushed, not completed"
    );
}

/// Goal: a responder waits for the first FPDU, and if none comes for so long that nothing can be glued to its Reply.
#[test]
fn a_responder_leaves_the_first_word_to_the_initiator() {
    let mut theirs = Machine::new(start(false, true));
    theirs.post(Send::new(1).inline(b"hello"));
    assert!(theirs.transmit().is_empty());
    assert_eq!(theirs.iwarp.deadline(), Some(Instant::ZERO + FIRST_FPDU));
    patient(&mut theirs);
    let put = parsed(&theirs.transmit());
    assert!(matches!(put[0].0, Header::Untagged(_)));
}
