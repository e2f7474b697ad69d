//! Everything that is posted completes: every operation, over the C library.

use futures::executor::block_on;
use verbs_core::{
    Atomic, Attr, Datagram, Device, Error, Pd, PostError, QpState, QpType, Read, Recv, Send,
    SendWr, WcOpcode, WcStatus, Write,
};

use crate::pair::{BYTES, End, QKEY, connected, datagrams, way};
use crate::rdma_core::nic;

fn device() -> (Device, Pd) {
    let device = Device::open(nic()).wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    (device, pd)
}

fn sent(end: &mut End, opcode: WcOpcode) {
    let wc = end.completion();
    assert_eq!((wc.status, wc.opcode), (WcStatus::Success, opcode));
}

#[test]
fn a_send_goes_into_a_receive_in_pieces_and_inline() {
    let (device, pd) = device();
    let (mut left, mut right) = connected(&device, &pd, QpType::Rc);
    let room = [right.mr.slice(0..5), right.mr.slice(5..BYTES)];
    right.qp.post_recv(Recv::new(1).scatter(&room)).unwrap();
    right
        .qp
        .post_recv(Recv::new(2).into(right.mr.slice(0..64)))
        .unwrap();
    left.write(b"twice told tales");
    let pieces = [left.mr.slice(0..6), left.mr.slice(6..16)];
    left.qp
        .post_send(Send::new(3).gather(&pieces).imm(0x0102_0304).signaled())
        .unwrap();
    sent(&mut left, WcOpcode::Send);
    let wc = right.completion();
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (1, WcOpcode::Recv, 16));
    assert_eq!(wc.immediate(), Some(0x0102_0304));
    assert_eq!(wc.qpn, right.qp.qpn());
    assert_eq!(right.read(16), b"twice told tales");
    left.qp
        .post_send(Send::new(4).inline(b"inline").signaled())
        .unwrap();
    sent(&mut left, WcOpcode::Send);
    assert_eq!(right.completion().byte_len, 6);
    assert_eq!(right.read(6), b"inline");
}

#[test]
fn memory_of_the_peer_is_written_read_and_added_to() {
    let (device, pd) = device();
    let (mut left, mut right) = connected(&device, &pd, QpType::Rc);
    left.write(&[7; 4096]);
    left.qp
        .post_send(
            Write::new(1, right.remote())
                .from(left.mr.slice(0..4096))
                .signaled(),
        )
        .unwrap();
    sent(&mut left, WcOpcode::RdmaWrite);
    assert_eq!(right.read(4096), [7; 4096]);
    right.qp.post_recv(Recv::new(9)).unwrap();
    let write = Write::new(2, right.remote())
        .inline(&[9; 8])
        .imm(5)
        .signaled();
    left.qp.post_send(write).unwrap();
    sent(&mut left, WcOpcode::RdmaWrite);
    let wc = right.completion();
    assert_eq!(
        (wc.opcode, wc.immediate()),
        (WcOpcode::RecvRdmaWithImm, Some(5))
    );
    right.write(&100_u64.to_ne_bytes());
    left.qp
        .post_send(
            Read::new(3, right.remote())
                .into(left.mr.slice(0..8))
                .signaled(),
        )
        .unwrap();
    sent(&mut left, WcOpcode::RdmaRead);
    assert_eq!(left.read(8), 100_u64.to_ne_bytes());
    let word = left.mr.slice(0..8);
    left.qp
        .post_send(
            Atomic::fetch_add(4, right.remote(), 11)
                .into(word)
                .signaled(),
        )
        .unwrap();
    sent(&mut left, WcOpcode::FetchAdd);
    assert_eq!(
        (left.read(8), right.read(8)),
        (
            100_u64.to_ne_bytes().to_vec(),
            111_u64.to_ne_bytes().to_vec()
        )
    );
    left.qp
        .post_send(
            Atomic::compare_swap(5, right.remote(), 111, 5)
                .into(word)
                .signaled(),
        )
        .unwrap();
    sent(&mut left, WcOpcode::CompSwap);
    assert_eq!(right.read(8), 5_u64.to_ne_bytes());
}

#[test]
fn an_unreliable_connection_sends_and_writes() {
    let (device, pd) = device();
    let (mut left, mut right) = connected(&device, &pd, QpType::Uc);
    right
        .qp
        .post_recv(Recv::new(1).into(right.mr.slice(0..64)))
        .unwrap();
    left.qp
        .post_send(Send::new(2).inline(b"maybe").signaled())
        .unwrap();
    sent(&mut left, WcOpcode::Send);
    assert_eq!(right.completion().byte_len, 5);
    let read = Read::new(3, right.remote()).into(left.mr.slice(0..8));
    assert_eq!(left.qp.post_send(read), Err(PostError::Unsupported));
}

#[test]
fn a_datagram_needs_a_handle_of_its_address() {
    let (device, pd) = device();
    let (mut left, mut right) = (datagrams(&device, &pd), datagrams(&device, &pd));
    right
        .qp
        .post_recv(Recv::new(1).into(right.mr.slice(0..256)))
        .unwrap();
    let av = way(&device);
    let datagram = Datagram::new(av, right.qp.qpn(), QKEY);
    let send = Send::new(2).inline(b"hello").to(&datagram).signaled();
    assert_eq!(left.qp.post_send(send), Err(PostError::Unreachable));
    let ah = pd.create_ah(av).wait().unwrap();
    left.qp.post_send(send).unwrap();
    sent(&mut left, WcOpcode::Send);
    let wc = right.completion();
    assert_eq!((wc.byte_len, wc.src_qpn), (45, left.qp.qpn()));
    assert_eq!(&right.read(45)[40..], b"hello");
    // Drivers look at the handle when the datagram is sent, which may be later.
    ah.destroy().wait().unwrap();
    left.qp.post_send(send).unwrap();
    sent(&mut left, WcOpcode::Send);
    let plain = Send::new(3).inline(b"hello");
    assert_eq!(left.qp.post_send(plain), Err(PostError::NoDestination));
}

#[test]
fn a_batch_stops_at_what_is_wrong_and_says_where() {
    let (device, pd) = device();
    let (mut left, right) = connected(&device, &pd, QpType::Rc);
    let good = |id| -> SendWr<'static> {
        Write::new(id, right.remote())
            .inline(b"x")
            .signaled()
            .into()
    };
    let long = Write::new(3, right.remote()).inline(&[0; 65]);
    let wrs = [good(1), good(2), long.into(), good(4)];
    let error = left.qp.send_queue().unwrap().post_batch(&wrs).unwrap_err();
    assert_eq!(
        (error.posted, error.error),
        (2, PostError::InlineTooLong { got: 65, max: 64 })
    );
    for id in [1, 2] {
        assert_eq!(left.completion().wr_id, id);
    }
    let depth = left.qp.cap().max_send_wr as usize;
    let many: Vec<_> = (0..2 * depth as u64).map(good).collect();
    // Some drivers make room before anything is polled.
    let posted = match left.qp.send_queue().unwrap().post_batch(&many) {
        Ok(()) => many.len(),
        Err(error) => {
            assert!(matches!(error.error, PostError::Full { .. }), "{error:?}");
            error.posted
        }
    };
    assert!(posted >= depth, "{posted} of {depth}");
    for id in 0..posted as u64 {
        assert_eq!(left.completion().wr_id, id);
    }
}

#[test]
fn posts_that_cannot_be_are_refused_by_their_reason() {
    let (device, pd) = device();
    let mut end = End::new(&device, &pd, QpType::Rc);
    let send = Send::new(1).inline(b"x");
    assert_eq!(
        end.qp.post_send(send),
        Err(PostError::State(QpState::Reset))
    );
    assert_eq!(
        end.qp.post_recv(Recv::new(1)),
        Err(PostError::State(QpState::Reset))
    );
    let (mut left, right) = connected(&device, &pd, QpType::Rc);
    let three = [left.mr.slice(0..1); 3];
    let max = left.qp.cap().max_send_sge;
    if max < 3 {
        let refused = left.qp.post_send(Send::new(1).gather(&three));
        assert_eq!(refused, Err(PostError::TooManySges { got: 3, max }));
    }
    // C would read that memory without checking a key.
    let mut forged = SendWr::from(Send::new(1).from(verbs_core::Sge {
        addr: 8,
        len: 8,
        ..left.mr.slice(0..8)
    }));
    forged.flags = verbs_core::SendFlags::INLINE;
    assert_eq!(left.qp.post_send(forged), Err(PostError::Unsupported));
    let batch = left
        .qp
        .send_queue()
        .unwrap()
        .post_batch(&[forged])
        .unwrap_err();
    assert_eq!((batch.posted, batch.error), (0, PostError::Unsupported));
    let odd = Atomic::fetch_add(1, right.mr.remote(4), 1).into(left.mr.slice(0..8));
    assert_eq!(left.qp.post_send(odd), Err(PostError::AtomicAlignment));
    let (qp, mut sends, mut receives) = left.qp.split().unwrap();
    qp.destroy().wait().unwrap();
    assert_eq!(sends.post(send), Err(PostError::Destroyed));
    assert_eq!(receives.post(Recv::new(1)), Err(PostError::Destroyed));
}

#[test]
fn an_index_beyond_a_table_is_refused_by_its_name() {
    let (device, _pd) = device();
    let port = device.query_port(1).wait().unwrap();
    let refused = |attr, len: u16| Error::Invalid {
        attr,
        got: u32::from(len),
        max: u32::from(len - 1),
    };
    let (gids, pkeys) = (port.gid_tbl_len, port.pkey_tbl_len);
    let gid = device.query_gid(1, gids).wait();
    assert_eq!(gid, Err(refused(Attr::GidIndex, gids)));
    let pkey = device.query_pkey(1, pkeys).wait();
    assert_eq!(pkey, Err(refused(Attr::PkeyIndex, pkeys)));
}

#[test]
fn whoever_awaits_a_queue_hears_of_its_completions() {
    let (device, pd) = device();
    let (mut left, mut right) = connected(&device, &pd, QpType::Rc);
    for round in 0..100 {
        right
            .qp
            .post_recv(Recv::new(round).into(right.mr.slice(0..64)))
            .unwrap();
        left.qp
            .post_send(Send::new(round).inline(b"ping").signaled())
            .unwrap();
        block_on(right.cq.ready()).unwrap();
        assert_eq!(right.completion().wr_id, round);
        block_on(left.cq.ready()).unwrap();
        assert_eq!(left.completion().wr_id, round);
    }
}

#[test]
fn queue_pairs_share_receives() {
    let (device, pd) = device();
    let mut srq = pd.create_srq(16, 1).wait().unwrap();
    let (mut left, _) = connected(&device, &pd, QpType::Rc);
    let attr = srq.query().wait().unwrap();
    assert!(attr.max_wr >= 16, "{attr:?}");
    srq.post_recv(Recv::new(5).into(left.mr.slice(0..8)))
        .unwrap();
    let init = verbs_core::QpInit::rc(&left.cq, &left.cq).srq(&srq);
    let mut qp = pd.create_qp(init).wait().unwrap();
    qp.init(1, verbs_core::Access::empty()).wait().unwrap();
    assert_eq!(qp.post_recv(Recv::new(1)), Err(PostError::UsesSrq));
    drop(qp);
    assert_eq!(left.qp.post_recv(Recv::new(1)), Ok(()));
}
