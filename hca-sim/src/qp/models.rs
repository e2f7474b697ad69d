//! Models of whole queue pairs: posts against the verbs that take away what was posted.

use loom::thread;
use verbs_core::mem::MrTable;
use verbs_core::sync::Arc;
use verbs_core::{
    Access, Av, Mtu, Path, Psn, QpAttr, QpCap, QpState, QpType, RawCq, RawRecvQueue, RawSendQueue,
    SendFlags, Sge, Wc, WcStatus,
};

use crate::clock::VirtualClock;
use crate::engine::Engine;
use crate::link::Loopback;
use crate::port::Port;
use crate::post::recv::RecvPoster;
use crate::post::send::Poster;
use crate::post::send::moves::Unguarded;
use crate::qp::{Init, QueuePair};
use crate::queue::cq::{CqPoller, CqRing};

pub(crate) fn port(link: &Loopback, engine: &Engine) -> Arc<Port> {
    let (lid, gid, guid) = link.directory.lock().attach();
    let (link, mrs) = (Arc::clone(&link.directory), Arc::new(MrTable::new(1, 0)));
    let gids = [gid].into_iter().collect();
    Arc::new(Port::new(
        (lid, guid),
        gids,
        link,
        mrs,
        engine.clone(),
        None,
    ))
}

fn queue_pair(port: &Arc<Port>) -> Arc<QueuePair> {
    let cq = || Arc::new(CqRing::new(4, Arc::default(), None, false).expect("a model has memory"));
    let cap = QpCap {
        max_send_wr: 2,
        max_recv_wr: 2,
        ..QpCap::default()
    };
    let init = Init {
        qp_type: QpType::Rc,
        blocks_own_multicast: false,
        low_latency: false,
        port: Arc::clone(port),
        pd: 1,
        cap,
        sq_sig_all: true,
        send_cq: cq(),
        recv_cq: cq(),
        srq: None,
    };
    let mut links = port.link.lock();
    links
        .enter(port.lid, &[], |qpn| QueuePair::new(qpn, init))
        .expect("the port is attached")
}

/// Two queue pairs in RTS, connected to each other.
pub(crate) fn pair(link: &Loopback) -> (Arc<QueuePair>, Arc<QueuePair>) {
    let (a, b) = pair_in_rtr(link);
    b.change(&[QpAttr::rts(Psn::new(0))]);
    (a, b)
}

/// The same, the second one still in RTR.
fn pair_in_rtr(link: &Loopback) -> (Arc<QueuePair>, Arc<QueuePair>) {
    let engine = Engine::new(VirtualClock::new());
    let (port_a, port_b) = (port(link, &engine), port(link, &engine));
    let (a, b) = (queue_pair(&port_a), queue_pair(&port_b));
    for (qp, peer) in [(&a, &b), (&b, &a)] {
        let path = Path {
            av: Av::to_lid(1, peer.port.lid),
            dest_qpn: peer.qpn,
            rq_psn: Psn::new(0),
            mtu: Mtu::B256,
        };
        let init = QpAttr::init(1, Access::REMOTE);
        qp.change(&[init, QpAttr::rtr(&path)]);
    }
    a.change(&[QpAttr::rts(Psn::new(0))]);
    (a, b)
}

fn statuses(cq: &Arc<CqRing>) -> Vec<(u64, WcStatus)> {
    let mut out = [Wc::default(); 4];
    let count = CqPoller::new(Arc::clone(cq), None).poll(&mut out);
    out[..count]
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect()
}

/// Checks `body` with at most that many preemptions.
///
/// It runs in a thread of its own: the first thread of a model releases its pin record after the process-wide records
/// have been dropped.
pub(crate) fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let body = Arc::new(body);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 20_000;
    model.check(move || {
        let body = Arc::clone(&body);
        thread::spawn(move || body())
            .join()
            .expect("the model does not panic");
    });
}

/// A receive is posted while the queue pair goes to ERR: it is flushed exactly once.
#[test]
fn loom_recv_post_vs_err() {
    model(2, || {
        let (a, _b) = pair(&Loopback::default());
        let mut recvs = RecvPoster::new(Arc::clone(&a));
        let poster = thread::spawn(move || recvs.post(1, &[]).expect("there is room"));
        a.fail();
        poster.join().expect("the poster does not panic");
        verbs_core::mem::grace::help();
        assert_eq!(statuses(&a.recv_cq), [(1, WcStatus::WrFlushErr)]);
    });
}

/// The same for a post that takes the short path, with the state as the previous post saw it.
#[test]
fn loom_recv_short_post_vs_err() {
    model(2, || {
        let (a, _b) = pair(&Loopback::default());
        let mut recvs = RecvPoster::new(Arc::clone(&a));
        let piece = Sge::default().into();
        recvs.post_one(1, piece).expect("there is room");
        let poster = thread::spawn(move || recvs.post_one(2, piece).expect("there is room"));
        a.fail();
        poster.join().expect("the poster does not panic");
        verbs_core::mem::grace::help();
        let flushed = [1, 2].map(|wr_id| (wr_id, WcStatus::WrFlushErr));
        assert_eq!(statuses(&a.recv_cq), flushed);
    });
}

/// A message is placed while the responder goes to ERR: its receive completes exactly once, and with the result that
/// the sender sees.
#[test]
fn loom_direct_path_close() {
    model(2, || {
        let (a, b) = pair(&Loopback::default());
        let mut recvs = RecvPoster::new(Arc::clone(&b));
        recvs.post(1, &[]).expect("there is room");
        let mut sends = Poster::<Unguarded>::new(Arc::clone(&a));
        let poster = thread::spawn(move || {
            let nothing = Sge::default();
            sends
                .send(2, nothing.into(), SendFlags::empty())
                .expect("there is room");
        });
        b.fail();
        poster.join().expect("the poster does not panic");
        verbs_core::mem::grace::help();
        let (sent, received) = (statuses(&a.send_cq), statuses(&b.recv_cq));
        match sent[..] {
            [(2, WcStatus::Success)] => assert_eq!(received, [(1, WcStatus::Success)]),
            [] => assert_eq!(received, [(1, WcStatus::WrFlushErr)]),
            _ => panic!("{sent:?}"),
        }
        assert_eq!(b.state(), QpState::Err);
    });
}

/// The first messages arrive in RTR while the responder goes to RTS: all are placed, in order, whoever opens the path.
#[test]
fn loom_first_message_vs_rts() {
    model(2, || {
        let (a, b) = pair_in_rtr(&Loopback::default());
        let mut recvs = RecvPoster::new(Arc::clone(&b));
        for wr_id in [1, 2] {
            recvs.post(wr_id, &[]).expect("there is room");
        }
        let mut sends = Poster::<Unguarded>::new(Arc::clone(&a));
        let poster = thread::spawn(move || {
            for wr_id in [3, 4] {
                let sent = sends.send(wr_id, Sge::default().into(), SendFlags::empty());
                sent.expect("there is room");
            }
        });
        b.change(&[QpAttr::rts(Psn::new(0))]);
        poster.join().expect("the poster does not panic");
        verbs_core::mem::grace::help();
        let ok = |wr_ids: [u64; 2]| wr_ids.map(|wr_id| (wr_id, WcStatus::Success));
        assert_eq!(statuses(&a.send_cq), ok([3, 4]));
        assert_eq!(statuses(&b.recv_cq), ok([1, 2]));
    });
}

/// A work request is given to the machine while another thread holds it: one of the two carries it out.
#[test]
fn loom_trylock_again() {
    model(2, || {
        let link = Loopback::default();
        let (a, b) = pair(&link);
        link.flip_bit(u64::MAX);
        RecvPoster::new(Arc::clone(&b))
            .post(1, &[])
            .expect("there is room");
        let mut sends = Poster::<Unguarded>::new(Arc::clone(&a));
        let other = Arc::clone(&a);
        let thread = thread::spawn(move || other.turn());
        sends
            .send(2, Sge::default().into(), SendFlags::empty())
            .expect("there is room");
        thread.join().expect("the other thread does not panic");
        verbs_core::mem::grace::help();
        assert_eq!(statuses(&a.send_cq), [(2, WcStatus::Success)]);
        assert_eq!(statuses(&b.recv_cq), [(1, WcStatus::Success)]);
    });
}

/// A machine has carried out what it was given, and the poster then sends a message by direct path itself: it finds all
/// that the machine has done for this direction.
#[test]
fn loom_machine_hands_over() {
    model(2, || {
        let link = Loopback::default();
        let (a, b) = pair(&link);
        let mut recvs = RecvPoster::new(Arc::clone(&b));
        for wr_id in [1, 2] {
            recvs.post(wr_id, &[]).expect("there is room");
        }
        link.flip_bit(u64::MAX);
        let mut sends = Poster::<Unguarded>::new(Arc::clone(&a));
        let other = Arc::clone(&a);
        let thread = thread::spawn(move || other.turn());
        for wr_id in [3, 4] {
            let sent = sends.send(wr_id, Sge::default().into(), SendFlags::empty());
            sent.expect("there is room");
        }
        thread.join().expect("the other thread does not panic");
        verbs_core::mem::grace::help();
        let ok = |wr_ids: [u64; 2]| wr_ids.map(|wr_id| (wr_id, WcStatus::Success));
        assert_eq!(statuses(&a.send_cq), ok([3, 4]));
        assert_eq!(statuses(&b.recv_cq), ok([1, 2]));
    });
}
