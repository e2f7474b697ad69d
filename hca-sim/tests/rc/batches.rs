//! Several work requests in one call: the same as one after the other, only cheaper.

use proptest::collection::vec;
use proptest::prelude::*;
use verbs_core::{
    BatchError, Mr, PostError, Psn, QpInit, RKey, Read, Recv, Remote, Send, SendFlags, SendWr, Sge,
    Wc, WcStatus, Write,
};

use crate::ends::{End, bytes, pair, poll, statuses};
use crate::way;

/// Bytes for each place of an item.
const PLACE: usize = 512;
/// Bytes of memory that are looked at.
const SEEN: usize = 1 << 14;

/// A work request of a batch.
#[derive(Clone, Copy, Debug)]
struct Item {
    kind: u8,
    len: usize,
    place: usize,
    signaled: bool,
}

/// Batches, mostly of messages for the short paths, with other things in between.
fn items() -> impl Strategy<Value = Vec<Item>> {
    let kind = prop_oneof![8 => 0..3_u8, 1 => 3..8_u8];
    let len = prop_oneof![8 => 0..65_usize, 1 => 65..300_usize];
    let item = (kind, len, 0..8_usize, any::<bool>());
    let item = item.prop_map(|(kind, len, place, signaled)| Item {
        kind,
        len,
        place,
        signaled,
    });
    vec(item, 1..40)
}

impl Item {
    fn wr<'w>(self, id: u64, here: &Mr, there: &Mr, pieces: &'w [Sge]) -> SendWr<'w> {
        let at = self.place * PLACE;
        let (here, there) = (here.slice(at..at + self.len), there.remote(2 * at));
        let wrong = Remote {
            rkey: RKey::new(there.rkey.value() ^ 0x55),
            ..there
        };
        let mut wr: SendWr<'_> = match self.kind {
            0 => Send::new(id).from(here).wr,
            1 => Write::new(id, there).from(here).wr,
            2 => Read::new(id, there).into(here).wr,
            3 => Send::new(id).gather(pieces).wr,
            4 => Write::new(id, there).imm(7).from(here).wr,
            5 => Write::new(id, there).inline(b"inline").wr,
            // The work requests behind it are flushed then.
            6 if self.place == 0 => Write::new(id, wrong).from(here).wr,
            _ => Send::new(id).from(here).fenced().wr,
        };
        if self.signaled {
            wr.flags |= SendFlags::SIGNALED;
        }
        wr
    }
}

/// All that can be seen of what happened.
#[derive(Debug, PartialEq)]
struct Outcome {
    accepted: Result<(), BatchError>,
    sent: Vec<(u64, WcStatus, u32)>,
    received: Vec<(u64, WcStatus, u32)>,
    memory: [Vec<u8>; 2],
    psn: [Option<Psn>; 2],
}

fn told(completions: &[Wc]) -> Vec<(u64, WcStatus, u32)> {
    let each = completions.iter();
    each.map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect()
}

/// Posts that many receives, and the batch by `post`.
fn outcome(
    items: &[Item],
    receives: usize,
    post: impl Fn(&mut End, &[SendWr<'_>]) -> Result<(), BatchError>,
) -> Outcome {
    let (mut a, mut b) = pair();
    for (end, seed) in [(&a, 1), (&b, 101)] {
        let pattern: Vec<u8> = (0..SEEN).map(|i| (i * 7 + seed) as u8).collect();
        end.mr.write(0, &pattern).unwrap();
    }
    for i in 0..receives {
        let room = b.mr.slice(i * PLACE..(i + 1) * PLACE);
        b.qp.post_recv(Recv::new(i as u64).into(room)).unwrap();
    }
    // The first message of a connection takes a path of its own.
    a.qp.post_send(Write::new(999, b.mr.remote(0)).signaled())
        .unwrap();
    assert_eq!(statuses(&mut a.send_cq), [(999, WcStatus::Success)]);
    let pieces = [a.mr.slice(0..10), a.mr.slice(100..120)];
    let wrs: Vec<_> = (items.iter().zip(0..))
        .map(|(item, id)| item.wr(id, &a.mr, &b.mr, &pieces))
        .collect();
    let accepted = post(&mut a, &wrs);
    way::settle();
    let psn = |end: &End| end.qp.query().wait().unwrap().attr;
    Outcome {
        accepted,
        sent: told(&poll(&mut a.send_cq)),
        received: told(&poll(&mut b.recv_cq)),
        memory: [bytes(&a, 0, SEEN), bytes(&b, 0, SEEN)],
        psn: [psn(&a).sq_psn, psn(&b).rq_psn],
    }
}

fn singly(end: &mut End, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
    for (posted, wr) in wrs.iter().enumerate() {
        let result = end.qp.post_send(*wr);
        result.map_err(|error| BatchError { posted, error })?;
    }
    Ok(())
}

fn together(end: &mut End, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
    end.qp.send_queue().unwrap().post_batch(wrs)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Even where receives run out, the queue is full, or a work request fails in between.
    #[test]
    fn a_batch_does_what_its_parts_do(items in items(), receives in 0..16_usize) {
        let apart = outcome(&items, receives, singly);
        prop_assert_eq!(outcome(&items, receives, together), apart);
    }
}

#[test]
fn a_batch_stops_at_the_first_that_is_refused() {
    let (mut a, mut b) = pair();
    let room = |i: usize| Recv::new(i as u64).into(b.mr.slice(i * 8..i * 8 + 8));
    let receives: Vec<_> = (0..4).map(room).collect();
    b.qp.recv_queue().unwrap().post_batch(&receives).unwrap();
    let from = a.mr.slice(0..8);
    let send = |id| Send::new(id).from(from).signaled().wr;
    let long = [0; 65];
    let wrs = [send(0), send(1), Send::new(2).inline(&long).wr, send(3)];
    let error = PostError::InlineTooLong { got: 65, max: 64 };
    let refused = a.qp.send_queue().unwrap().post_batch(&wrs);
    assert_eq!(refused, Err(BatchError { posted: 2, error }));
    let done = [0, 1].map(|id| (id, WcStatus::Success));
    assert_eq!(statuses(&mut a.send_cq), done);
    assert_eq!(statuses(&mut b.recv_cq), done);
    a.qp.send_queue().unwrap().post_batch(&[]).unwrap();
}

#[test]
fn receives_fill_the_queue_and_say_how_many_did() {
    let (mut a, mut b) = pair();
    let depth = b.qp.query().wait().unwrap().cap.max_recv_wr;
    let room = b.mr.slice(0..8);
    let wrs: Vec<_> = (0..u64::from(depth) + 3)
        .map(|id| Recv::new(id).into(room))
        .collect();
    let queue = b.qp.recv_queue().unwrap();
    let (posted, error) = (depth as usize, PostError::Full { depth });
    assert_eq!(queue.post_batch(&wrs), Err(BatchError { posted, error }));
    // One place becomes free, and is filled.
    let from = a.mr.slice(0..8);
    a.qp.post_send(Send::new(0).from(from).signaled()).unwrap();
    assert_eq!(statuses(&mut b.recv_cq), [(0, WcStatus::Success)]);
    let (posted, queue) = (1, b.qp.recv_queue().unwrap());
    assert_eq!(queue.post_batch(&wrs), Err(BatchError { posted, error }));
    let mixed = [Recv::new(7), Recv::new(8)];
    let nothing = Err(BatchError { posted: 0, error });
    assert_eq!(queue.post_batch(&mixed), nothing);
}

#[test]
fn a_batch_of_receives_calls_a_sender_that_waits() {
    let (mut a, mut b) = pair();
    let from = a.mr.slice(0..8);
    for id in 0..3 {
        a.qp.post_send(Send::new(id).from(from).signaled()).unwrap();
    }
    assert_eq!(statuses(&mut a.send_cq), [], "there is no receive");
    let room = |i: usize| Recv::new(i as u64).into(b.mr.slice(i * 8..i * 8 + 8));
    let receives: Vec<_> = (0..3).map(room).collect();
    b.qp.recv_queue().unwrap().post_batch(&receives).unwrap();
    let done = [0, 1, 2].map(|id| (id, WcStatus::Success));
    assert_eq!(statuses(&mut a.send_cq), done, "no timer was needed");
    assert_eq!(statuses(&mut b.recv_cq), done);
}

/// Where sends and receives complete to one queue, each message takes two of its entries.
#[test]
fn one_completion_queue_may_take_both_completions() {
    let (a, _) = pair();
    let mut cq = a.device.create_cq(16).wait().unwrap();
    let init = || QpInit::rc(&cq, &cq).depth(16, 16);
    let (mut from, mut to) = (
        a.pd.create_qp(init()).wait().unwrap(),
        a.pd.create_qp(init()).wait().unwrap(),
    );
    way::connect(&mut from, &mut to);
    for round in 0..4 {
        let ids = (0..8).map(|i| round * 8 + i);
        let room = |id| Recv::new(id).into(a.mr.slice(64..72));
        let receives: Vec<_> = ids.clone().map(room).collect();
        to.recv_queue().unwrap().post_batch(&receives).unwrap();
        let send = |id| Send::new(id).from(a.mr.slice(0..8)).signaled().wr;
        let sends: Vec<_> = ids.clone().map(send).collect();
        from.send_queue().unwrap().post_batch(&sends).unwrap();
        let expected: Vec<_> = ids.flat_map(|id| [(id, WcStatus::Success); 2]).collect();
        assert_eq!(statuses(&mut cq), expected);
    }
}
