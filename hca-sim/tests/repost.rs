//! Goal: a thread that has polled a completion can post again at once, whichever thread made the completion. Method: a
//! sender and a receiver on two threads, with queues so short that every post needs the place that the last completion
//! freed. A refusal is a failure.

use futures::executor::block_on;
use hca_sim::Hca;
use verbs_core::sync::{spin_loop, thread};
use verbs_core::{Access, Cq, Error, Memory, Mr, Qp, QpInit, Recv, Send, Wc};

const ROUNDS: u64 = 200_000;
/// Receives that are posted at any time: the depth of the queue.
const RECEIVES: u64 = 2;

struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

async fn ends() -> Result<(End, End), Error> {
    let device = Hca::loopback().open().await?;
    let pd = device.alloc_pd().await?;
    let mut ends = Vec::new();
    for _ in 0..2 {
        let cq = device.create_cq(16).await?;
        let mr = pd
            .register(Memory::alloc(4096)?, Access::LOCAL_WRITE)
            .await?;
        let init = QpInit::rc(&cq, &cq).depth(1, RECEIVES as u32);
        let qp = pd.create_qp(init).await?;
        ends.push(End { qp, cq, mr });
    }
    let (mut receiver, mut sender) = (ends.pop().expect("two"), ends.pop().expect("two"));
    hca_sim::connect(&mut sender.qp, &mut receiver.qp).await?;
    Ok((sender, receiver))
}

/// Waits for the next completion. The other thread needs the processor too, but not at every look: the case that this
/// test looks for occurs only while both run.
fn next(cq: &mut Cq) -> u64 {
    let mut out = [Wc::default()];
    for look in 1_u32.. {
        if let Some(wc) = cq.poll(&mut out).first() {
            assert!(wc.is_ok(), "{wc:?}");
            return wc.wr_id;
        }
        if look.is_multiple_of(1024) {
            thread::yield_now();
        }
        spin_loop();
    }
    unreachable!("completions come before u32::MAX looks")
}

fn receive(mut end: End) {
    let recvs = end.qp.recv_queue().expect("has a receive queue");
    let to = end.mr.slice(0..8);
    for id in 0..RECEIVES {
        recvs.post(Recv::new(id).into(to)).expect("there is room");
    }
    for id in 0..ROUNDS {
        assert_eq!(next(&mut end.cq), id);
        let posted = recvs.post(Recv::new(id + RECEIVES).into(to));
        posted.expect("a receive was polled");
    }
}

fn send(mut end: End) {
    let sends = end.qp.send_queue().expect("has a send queue");
    let from = end.mr.slice(0..8);
    for id in 0..ROUNDS {
        let posted = sends.post(Send::new(id).from(from).signaled());
        posted.expect("the last send was polled");
        assert_eq!(next(&mut end.cq), id);
    }
}

#[test]
fn a_polled_completion_gives_its_place_back() {
    let (sender, receiver) = block_on(ends()).expect("a connection");
    let receiver = thread::spawn(move || receive(receiver));
    send(sender);
    receiver.join().expect("the receiver was never refused");
}
