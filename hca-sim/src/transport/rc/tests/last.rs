//! The last answers of a responder whose queue pair stops.

use super::retries::{post_read, post_write, requests};
use super::*;

/// What the responder sends as its last while its outlet takes that many, as (opcode, number), and whether there is more.
/// The requester receives it.
fn sent_last(pair: &mut Pair, room: usize) -> (Vec<(u8, u8)>, bool) {
    let [ours, theirs] = &mut pair.ends;
    let mut packets = Vec::new();
    let mut out = Out {
        packets: &mut packets,
        room,
        longest: None,
    };
    let more = theirs.rc.transmit_last(&theirs.path, &mut out);
    for (bytes, _) in &packets {
        ours.receive(pair.now, bytes);
    }
    let sent = packets.iter().map(|(bytes, _)| (bytes[0], bytes[11]));
    (sent.collect(), more)
}

/// Goal: the requester learns of everything that was executed before a READ that is no longer answered, and of nothing
/// behind it, which would tell it that the response was lost. Method: an outlet that takes one packet at a time.
#[test]
fn what_was_executed_is_told_at_last_up_to_a_read() {
    let mut pair = Pair::new();
    post_write(&mut pair, 1, 8);
    let add = SendOp::FetchAdd {
        remote: pair.ends[1].remote(64),
        add: 1,
    };
    let sges = [pair.ends[0].sge(0, 8)];
    pair.ends[0].post(wr(2, add, &sges));
    post_write(&mut pair, 3, 8);
    post_read(&mut pair, 4, 8);
    post_write(&mut pair, 5, 8);
    for bytes in requests(&mut pair) {
        pair.ends[1].receive(pair.now, &bytes);
    }
    assert_eq!(sent_last(&mut pair, 0), (vec![], true));
    assert_eq!(sent_last(&mut pair, 1), (vec![(0x12, 1)], true));
    assert_eq!(sent_last(&mut pair, 1), (vec![(0x11, 2)], false));
    assert_eq!(sent_last(&mut pair, 1), (vec![], false), "told once");
    let done = [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success));
    assert_eq!(pair.ends[0].send_statuses(), done);
}

/// Goal: a responder that owes nothing sends nothing, and an acknowledgement that is due is sent once.
#[test]
fn an_acknowledgement_that_is_due_is_the_last_packet() {
    let mut pair = Pair::new();
    assert_eq!(sent_last(&mut pair, 9), (vec![], false));
    post_write(&mut pair, 1, 3000);
    for bytes in requests(&mut pair) {
        pair.ends[1].receive(pair.now, &bytes);
    }
    assert_eq!(sent_last(&mut pair, 9), (vec![(0x11, 2)], false));
    assert_eq!(sent_last(&mut pair, 9), (vec![], false));
    assert_eq!(pair.ends[0].send_statuses(), [(1, WcStatus::Success)]);
}
