//! Extended connections by address, as rdma_xclient and rdma_xserver make them.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::{null, null_mut};

use verbs_abi::rdmacm as abi;
use verbs_abi::rdmacm::CmId;

use super::tests::{at, init, param};
use super::*;

/// Goal: a message reaches the shared queue whose number
/// the server has told, in the completion queue of its id.
#[test]
fn an_extended_connection_reaches_a_shared_queue() {
    const PS_IB: c_int = 0x13f;
    let mut hints: abi::AddrInfo = zeroed_info();
    (hints.flags, hints.port_space, hints.qp_type) = (1, PS_IB, 10);
    let (mut info, mut server) = (null_mut(), null_mut());
    // SAFETY: C strings; as above; each id is used by one thread at a time.
    unsafe {
        let code = getaddrinfo(null(), c"0".as_ptr(), &raw const hints, &raw mut info);
        assert_eq!(code, 0);
        let made = create_ep(
            &raw mut server,
            info,
            null_mut(),
            &raw mut *Box::new(init()),
        );
        assert_eq!(made, 0);
        freeaddrinfo(info);
        assert_eq!(listen(server, 1), 0);
        let port = u16::from_be(get_src_port(server));
        let place = server.expose_provenance();
        let serves = std::thread::spawn(move || serve_extended(place));
        let mut dst = at(port);
        (hints.flags, hints.qp_type) = (0, 9);
        hints.dst_addr = (&raw mut dst).cast();
        let mut client = null_mut();
        assert_eq!(
            getaddrinfo(null(), null(), &raw const hints, &raw mut info),
            0
        );
        let made = create_ep(
            &raw mut client,
            info,
            null_mut(),
            &raw mut *Box::new(init()),
        );
        assert_eq!(made, 0);
        freeaddrinfo(info);
        assert!((*client).recv_cq.is_null(), "an initiator receives nothing");
        assert_eq!(connect(client, null_mut()), 0);
        let told = (*(*client).event).param.conn.private_data.cast::<[u8; 4]>();
        let mut wr: verbs_abi::SendWr = zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (8, verbs_abi::opcode::SEND, 2);
        wr.remote_srqn = u32::from_be_bytes(*told);
        let mut bad = null();
        let posted = crate::qp::post_send((*client).qp, &raw const wr, &raw mut bad);
        assert_eq!(posted, 0);
        let wc = crate::tests::poll_one((*client).send_cq);
        assert_eq!((wc.wr_id, wc.status), (8, 0));
        serves.join().expect("no panic");
        disconnect(client);
        destroy_ep(client);
        assert_eq!(destroy_id(server), 0);
    }
}

/// Takes a request of an extended connection, and a message in a shared queue.
fn serve_extended(place: usize) {
    // SAFETY: a listener, which only this thread uses now.
    unsafe {
        let server: *mut CmId = std::ptr::with_exposed_provenance_mut(place);
        let mut child = null_mut();
        assert_eq!(get_request(server, &raw mut child), 0);
        let mut attr: verbs_abi::SrqInitAttr = zeroed();
        (attr.attr.max_wr, attr.attr.max_sge) = (1, 1);
        assert_eq!(create_srq(child, null_mut(), &raw mut attr), 0);
        let mut number = 0;
        assert_eq!(crate::srq::get_srq_num((*child).srq, &raw mut number), 0);
        let wr = verbs_abi::RecvWr {
            wr_id: 7,
            next: null(),
            sg_list: null(),
            num_sge: 0,
        };
        let mut bad = null();
        let posted = crate::srq::post_srq_recv((*child).srq, &raw const wr, &raw mut bad);
        assert_eq!(posted, 0);
        let number = number.to_be_bytes();
        assert_eq!(accept(child, &raw mut *Box::new(param(&number))), 0);
        let wc = crate::tests::poll_one((*child).recv_cq);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (7, 0, 0));
        disconnect(child);
        destroy_ep(child);
    }
}

fn zeroed_info() -> abi::AddrInfo {
    // SAFETY: plain numbers and pointers.
    unsafe { zeroed() }
}
