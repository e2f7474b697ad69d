//! Extended reliable connections.

use verbs_core::{
    Access, Attr, Capability, Cq, Device, DeviceCap, Error, LocalInv, Memory, Mr, Path, Pd,
    PostError, Psn, Qp, QpInit, QpState, QpType, Qpn, RKey, Recv, Send, Srq, Wc, WcOpcode,
    WcStatus, Why, Write, Xrcd,
};

use crate::pair::{BYTES, End, way};
use crate::rdma_core::nic;

/// A consumer at the responder: its domain, queue and memory.
struct Consumer {
    srq: Srq,
    end: End,
}

impl Consumer {
    fn new(device: &Device, domain: &Xrcd) -> Self {
        let pd = device.alloc_pd().wait().unwrap();
        // An end has a queue pair, which is not used here.
        let end = End::new(device, &pd, QpType::Rc);
        let srq = pd.create_xrc_srq(domain, &end.cq, 16, 2).wait().unwrap();
        Self { srq, end }
    }
}

/// An initiator, its target, and the domain of the target.
struct Bed {
    sender: Qp,
    sent: Cq,
    mr: Mr,
    _pd: Pd,
    target: Qp,
    domain: Xrcd,
    device: Device,
}

/// `None` if the device has no such connections, which it says.
fn bed() -> Option<Bed> {
    let device = Device::open(nic()).wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let sent = device.create_cq(16).wait().unwrap();
    let attr = device.query().wait().unwrap();
    if !attr.caps.contains(DeviceCap::XRC) {
        let refused = device.alloc_xrcd().wait().unwrap_err();
        let missing = Capability::of(DeviceCap::XRC);
        let error = |attr| Error::NoCapability { attr, missing };
        assert_eq!(refused, error(Attr::Xrcd));
        let refused = pd.create_qp(QpInit::xrc(&sent)).wait().unwrap_err();
        assert_eq!(refused, error(Attr::QpType));
        return None;
    }
    assert!(attr.qp_types.contains(&QpType::XrcSend));
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    let mr = pd.register(Memory::alloc(BYTES).unwrap(), access);
    let mr = mr.wait().unwrap();
    let init = QpInit::xrc(&sent).depth(16, 0).sges(2, 0).inline(64);
    let sender = pd.create_qp(init).wait().unwrap();
    let domain = device.alloc_xrcd().wait().unwrap();
    let target = domain.create_target_qp().wait().unwrap();
    let (av, mtu) = (
        way(&device),
        device.query_port(1).wait().unwrap().active_mtu,
    );
    for (own, dest_qpn) in [(&sender, target.qpn()), (&target, sender.qpn())] {
        let rq_psn = Psn::new(9);
        let path = Path {
            av,
            dest_qpn,
            rq_psn,
            mtu,
        };
        own.init(1, Access::REMOTE).wait().unwrap();
        own.ready_to_receive(&path).wait().unwrap();
        own.ready_to_send(Psn::new(9)).wait().unwrap();
    }
    Some(Bed {
        sender,
        sent,
        mr,
        _pd: pd,
        target,
        domain,
        device,
    })
}

impl Bed {
    fn sent(&mut self) -> (WcStatus, WcOpcode) {
        self.sent.wait().unwrap();
        let mut wc = [Wc::default()];
        assert_eq!(self.sent.poll(&mut wc).len(), 1);
        (wc[0].status, wc[0].opcode)
    }
}

/// Goal: one connection serves two protection domains; each message goes to the queue that it names, and a WRITE to the
/// memory of the domain of that queue.
#[test]
fn a_request_goes_to_the_queue_that_it_names() {
    let Some(mut bed) = bed() else { return };
    let mut consumers = [(); 2].map(|()| Consumer::new(&bed.device, &bed.domain));
    bed.mr.write(0, &[5; 3000]).unwrap();
    for number in [1, 0] {
        let consumer = &mut consumers[number];
        let room = consumer.end.mr.slice(0..4000);
        consumer.srq.post_recv(Recv::new(7).into(room)).unwrap();
        let srqn = consumer.srq.srqn();
        let from = bed.mr.slice(0..3000);
        let send = Send::new(1).from(from).imm(3).srq(srqn).signaled();
        bed.sender.post_send(send).unwrap();
        assert_eq!(bed.sent(), (WcStatus::Success, WcOpcode::Send));
        let wc = consumer.end.completion();
        assert_eq!((wc.wr_id, wc.byte_len, wc.immediate()), (7, 3000, Some(3)));
        assert_eq!(wc.qpn, bed.target.qpn());
        assert_eq!(consumer.end.read(3000), [5; 3000]);
        let write = Write::new(2, consumer.end.remote()).inline(b"written");
        bed.sender.post_send(write.srq(srqn).signaled()).unwrap();
        assert_eq!(bed.sent(), (WcStatus::Success, WcOpcode::RdmaWrite));
        assert_eq!(consumer.end.read(7), b"written");
    }
    assert_ne!(consumers[0].srq.srqn(), consumers[1].srq.srqn());
}

/// Goal: a target has another handle, which is the same queue pair; it ends with the last of them, and the domain is Busy
/// until then.
#[test]
fn a_target_lives_as_long_as_its_last_handle() {
    let Some(bed) = bed() else { return };
    let again = bed.domain.open_target_qp(bed.target.qpn());
    let again = again.wait().unwrap();
    assert_eq!(
        (again.qpn(), again.qp_type()),
        (bed.target.qpn(), QpType::XrcRecv)
    );
    assert_eq!(again.query().wait().unwrap().state, QpState::Rts);
    bed.target.destroy().wait().unwrap();
    assert_eq!(again.query().wait().unwrap().state, QpState::Rts);
    let refused = bed.domain.dealloc().wait().unwrap_err();
    assert_eq!(refused.error, Error::Busy);
    again.destroy().wait().unwrap();
    let domain = refused.handle.expect("it comes back");
    let unknown = domain.open_target_qp(Qpn::new(0x00ff_fffe)).wait();
    let expected = Error::Mismatch {
        attr: Attr::TargetQpn,
        why: Why::Missing,
    };
    assert_eq!(unknown.unwrap_err(), expected);
    domain.dealloc().wait().unwrap();
}

/// Goal: what does not fit is refused by its name.
#[test]
fn an_initiator_needs_a_queue_to_name_and_has_none() {
    let Some(mut bed) = bed() else { return };
    let send = Send::new(1).inline(b"x");
    assert_eq!(bed.sender.post_send(send), Err(PostError::NoSrq));
    assert_eq!(bed.sender.post_recv(Recv::new(1)), Err(PostError::UsesSrq));
    assert_eq!(bed.target.post_recv(Recv::new(1)), Err(PostError::UsesSrq));
    let consumer = Consumer::new(&bed.device, &bed.domain);
    let srqn = consumer.srq.srqn();
    let mut rc = consumer.end;
    assert_eq!(
        rc.qp.post_send(send.srq(srqn)),
        Err(PostError::State(QpState::Reset))
    );
    let init = QpInit::xrc(&bed.sent).srq(&consumer.srq);
    let refused = bed._pd.create_qp(init).wait().unwrap_err();
    let expected = Error::Mismatch {
        attr: Attr::Srq,
        why: Why::NoReceives,
    };
    assert_eq!(refused, expected);
    // What concerns only keys of this side names no queue.
    let inv = LocalInv::new(2, RKey::new(0x0123_4500)).signaled();
    bed.sender.post_send(inv).unwrap();
    assert_ne!(bed.sent().0, WcStatus::Success);
    drop((bed, rc.cq.poll(&mut []).len()));
}
