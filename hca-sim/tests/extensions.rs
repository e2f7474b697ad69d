//! The extensions of the HCA beyond the verbs: listed by name and version, called by bytes, posted by type.
#![allow(clippy::unwrap_used, reason = "tests")]

use futures::executor::block_on;
use hca_sim::extension::Barrier;
use hca_sim::{Hca, connect};
use verbs_core::extension::{ExtensionKind, WorkExtension};
use verbs_core::{Attr, Error, PostError, QpInit, QpType, Recv, Send, SendFlags, Wc, Why};

/// Goal: extensions are found by name and version, and called by bytes; unknown ones are refused (D17). Method: the
/// extensions that this HCA lists, and others.
#[test]
fn extensions_are_listed_and_called_by_bytes() {
    let device = Hca::loopback().open().wait().unwrap();
    let names: Vec<_> = device
        .extensions()
        .iter()
        .map(|info| (info.name, info.version))
        .collect();
    let listed = [
        "hca_sim.port_counters",
        "hca_sim.capability_mask",
        "hca_sim.barrier",
        "verbs.qp_stats",
        "verbs.connected_qps",
    ];
    assert_eq!(names, listed.map(|name| (name, 1)));
    assert!(
        device.extension("hca_sim.packet_counters").is_none(),
        "there are no packets"
    );
    let kind = |name| device.extension(name).unwrap().kind;
    assert_eq!(kind("hca_sim.barrier"), ExtensionKind::WorkRequest);

    let bytes = |name, version, input: &[u8]| device.call_by_name(name, version, input).wait();
    assert_eq!(bytes("hca_sim.port_counters", 1, &[]).unwrap(), [0; 48]);
    let attr = Attr::Extension;
    for (name, version) in [
        ("hca_sim.port_counters", 2),
        ("example.other", 1),
        ("hca_sim.barrier", 1),
    ] {
        assert_eq!(
            bytes(name, version, &[]),
            Err(Error::Unsupported(attr)),
            "{name} {version}"
        );
    }
    let why = Why::Malformed;
    assert_eq!(
        bytes("hca_sim.port_counters", 1, &[0]),
        Err(Error::Mismatch { attr, why })
    );
}

struct Other;

impl WorkExtension for Other {
    const NAME: &'static str = "example.other";
}

/// Goal: a work request of an extension takes its place among the others, and an unknown one is refused (D17). Method: a
/// barrier behind a SEND that waits.
#[test]
fn a_work_request_of_an_extension_takes_its_place() {
    let device = Hca::loopback().open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let mut cq = device.create_cq(16).wait().unwrap();
    let init = QpInit::rc(&cq, &cq);
    let (mut qp, mut peer) = (
        pd.create_qp(init).wait().unwrap(),
        pd.create_qp(init).wait().unwrap(),
    );
    block_on(connect(&mut qp, &mut peer)).unwrap();
    // No receive is posted, so the first one waits, and the barrier behind it.
    qp.post_send(Send::new(1).inline(b"").signaled()).unwrap();
    let sends = qp.send_queue().unwrap();
    sends
        .post_extension(2, &Barrier, SendFlags::SIGNALED)
        .unwrap();
    let unknown = sends.post_extension(3, &Other, SendFlags::SIGNALED);
    assert_eq!(unknown, Err(PostError::Unsupported));
    assert_eq!(cq.poll(&mut [Wc::default(); 4]).len(), 0);
    peer.post_recv(Recv::new(4)).unwrap();
    let mut out = [Wc::default(); 4];
    let mut order: Vec<_> = cq
        .poll(&mut out)
        .iter()
        .map(|wc| (wc.wr_id, wc.is_ok()))
        .collect();
    order.retain(|&(wr_id, _)| wr_id != 4);
    assert_eq!(order, [(1, true), (2, true)]);
    let mut ud = pd
        .create_qp(QpInit::of(QpType::Ud, &cq, &cq))
        .wait()
        .unwrap();
    let refused = ud
        .send_queue()
        .unwrap()
        .post_extension(5, &Barrier, SendFlags::SIGNALED);
    assert_eq!(refused, Err(PostError::Unsupported));
}
