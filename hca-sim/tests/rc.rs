//! Reliable connections on a loopback link: what every operation does, and every status that it can
//! end in, at both ends.

use std::sync::Arc;

use futures::executor::block_on;
use hca_sim::{Hca, Loopback, connect};
use verbs_core::{
    Access, Cq, Device, Memory, Mr, Payload, Pd, PostError, Qp, QpInit, QpState, Read, Recv,
    Remote, Send, SendFlags, SendOp, SendWr, Wc, WcOpcode, WcStatus, Write,
};

/// One end of a connection, with memory that the peer may do everything to.
struct End {
    hca: Arc<Hca>,
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    mr: Mr,
    pd: Pd,
    device: Device,
}

fn end_with(link: &Loopback, init: impl Fn(QpInit<'_>) -> QpInit<'_>) -> End {
    block_on(async {
        let hca = Hca::on(link).build();
        let device = hca.open().await.unwrap();
        let pd = device.alloc_pd().await.unwrap();
        let (send_cq, recv_cq) = (
            device.create_cq(64).await.unwrap(),
            device.create_cq(64).await.unwrap(),
        );
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = pd
            .register(Memory::alloc(1 << 16).unwrap(), access)
            .await
            .unwrap();
        let qp = pd
            .create_qp(init(QpInit::rc(&send_cq, &recv_cq).sges(4, 4).inline(64)))
            .await
            .unwrap();
        End {
            hca,
            qp,
            send_cq,
            recv_cq,
            mr,
            pd,
            device,
        }
    })
}

fn pair() -> (End, End) {
    let link = Loopback::with_seed(1);
    let (mut a, mut b) = (end_with(&link, |init| init), end_with(&link, |init| init));
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    (a, b)
}

fn poll(cq: &mut Cq) -> Vec<Wc> {
    let mut out = [Wc::default(); 64];
    cq.poll(&mut out).to_vec()
}

/// The completions of a queue, as (`wr_id`, status).
fn statuses(cq: &mut Cq) -> Vec<(u64, WcStatus)> {
    poll(cq).iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

fn bytes(end: &End, at: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    end.mr.read(at, &mut out).unwrap();
    out
}

fn state(end: &End) -> QpState {
    end.qp.query().wait().unwrap().state
}

#[test]
fn send_arrives_with_both_completions() {
    let (mut a, mut b) = pair();
    for round in 0..40u64 {
        let text = format!("message number {round}");
        a.mr.write(0, text.as_bytes()).unwrap();
        b.qp.post_recv(Recv::new(100 + round).into(b.mr.slice(512..1024)))
            .unwrap();
        a.qp.post_send(Send::new(round).from(a.mr.slice(0..text.len())).signaled())
            .unwrap();
        let sent = poll(&mut a.send_cq);
        assert_eq!(sent.len(), 1);
        assert_eq!(
            (sent[0].wr_id, sent[0].status, sent[0].opcode),
            (round, WcStatus::Success, WcOpcode::Send)
        );
        assert_eq!(sent[0].qpn, a.qp.qpn());
        let got = poll(&mut b.recv_cq);
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].wr_id, got[0].opcode), (100 + round, WcOpcode::Recv));
        assert_eq!(
            (got[0].byte_len as usize, got[0].qpn),
            (text.len(), b.qp.qpn())
        );
        assert_eq!(bytes(&b, 512, text.len()), text.as_bytes());
    }
}

#[test]
fn write_and_read_move_bytes_without_the_peer() {
    let (mut a, mut b) = pair();
    a.mr.write(0, b"there").unwrap();
    b.mr.write(100, b"and back").unwrap();
    for _ in 0..3 {
        a.qp.post_send(
            Write::new(1, b.mr.remote(0))
                .from(a.mr.slice(0..5))
                .signaled(),
        )
        .unwrap();
        a.qp.post_send(
            Read::new(2, b.mr.remote(100))
                .into(a.mr.slice(50..58))
                .signaled(),
        )
        .unwrap();
        assert_eq!(
            statuses(&mut a.send_cq),
            [(1, WcStatus::Success), (2, WcStatus::Success)]
        );
    }
    assert_eq!(bytes(&b, 0, 5), b"there");
    assert_eq!(bytes(&a, 50, 8), b"and back");
    assert!(poll(&mut b.recv_cq).is_empty() && poll(&mut b.send_cq).is_empty());
}
