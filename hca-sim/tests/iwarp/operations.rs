//! Messages.

use verbs_core::{
    Access, Atomic, DeviceCap, Memory, QpState, Read, Recv, Send, WcOpcode, WcStatus, Write,
};

use crate::support::{Host, address, connect, until};

#[test]
fn sends_writes_and_reads_arrive() {
    let mut client = Host::new(address(1, 1));
    let mut server = Host::new(address(1, 2));
    let (mut ours, mut theirs) = connect(&client, &server);
    for len in [0, 1, 5, 100, 4096, 70_000, 1 << 20] {
        let text: Vec<u8> = (0..len).map(|n| (n * 7 + len) as u8).collect();
        client.mr.write(0, &text).unwrap();
        theirs
            .qp
            .post_recv(Recv::new(1).into(server.mr.slice(1 << 20..2 << 20)))
            .unwrap();
        let send = Send::new(2).from(client.mr.slice(0..len)).signaled();
        ours.qp.post_send(send).unwrap();
        let sent = client.completions(1)[0];
        assert_eq!(
            (sent.status, sent.opcode),
            (WcStatus::Success, WcOpcode::Send)
        );
        let got = server.completions(1)[0];
        assert_eq!((got.status, got.byte_len), (WcStatus::Success, len as u32));
        assert!(server.bytes(1 << 20, len) == text, "{len} bytes sent");

        let write = Write::new(3, server.mr.remote(2 << 20)).from(client.mr.slice(0..len));
        ours.qp.post_send(write.signaled()).unwrap();
        assert_eq!(client.completions(1)[0].status, WcStatus::Success);
        let sink = 3 << 20;
        let read = Read::new(4, server.mr.remote(2 << 20));
        let read = read.into(client.mr.slice(sink..sink + len)).signaled();
        ours.qp.post_send(read).unwrap();
        let read = client.completions(1)[0];
        assert_eq!(
            (read.status, read.byte_len),
            (WcStatus::Success, len as u32)
        );
        assert!(
            client.bytes(sink, len) == text,
            "{len} bytes written and read"
        );
    }
}

/// Goal: completions are in order, whatever waits for responses; more READs are posted than may be outstanding.
#[test]
fn completions_are_in_order() {
    let mut client = Host::new(address(2, 1));
    let mut server = Host::new(address(2, 2));
    let (mut ours, mut theirs) = connect(&client, &server);
    for n in 0..20 {
        let recv = Recv::new(n).into(server.mr.slice(0..64));
        theirs.qp.post_recv(recv).unwrap();
    }
    for n in 0..20 {
        let place = 4096 * n as usize..4096 * (n as usize + 1);
        let read = Read::new(3 * n, server.mr.remote(1 << 20)).into(client.mr.slice(place));
        ours.qp.post_send(read.signaled()).unwrap();
        let write = Write::new(3 * n + 1, server.mr.remote(2 << 20)).inline(b"x");
        ours.qp.post_send(write.signaled()).unwrap();
        let send = Send::new(3 * n + 2).inline(b"hello").signaled().fenced();
        ours.qp.post_send(send).unwrap();
    }
    let done = client.completions(60);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
    let ids: Vec<u64> = done.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (0..60).collect::<Vec<_>>());
    assert_eq!(server.completions(20).len(), 20);
}

/// Goal: immediate data and atomics of RFC 7306, between two of ours over TCP.
#[test]
fn immediate_data_and_atomics_arrive() {
    let mut client = Host::new(address(10, 1));
    let mut server = Host::new(address(10, 2));
    let (mut ours, mut theirs) = connect(&client, &server);
    let recv = Recv::new(1).into(server.mr.slice(0..64));
    theirs.qp.post_recv(recv).unwrap();
    let write = Write::new(2, server.mr.remote(4096)).from(client.mr.slice(0..3000));
    ours.qp.post_send(write.imm(77).signaled()).unwrap();
    assert_eq!(client.completions(1)[0].opcode, WcOpcode::RdmaWrite);
    let got = server.completions(1)[0];
    assert_eq!((got.wr_id, got.opcode), (1, WcOpcode::RecvRdmaWithImm));
    assert_eq!((got.byte_len, got.immediate()), (3000, Some(77)));
    for n in 0..100 {
        let add = Atomic::fetch_add(n, server.mr.remote(0), 3).into(client.mr.slice(0..8));
        ours.qp.post_send(add.signaled()).unwrap();
        let done = client.completions(1)[0];
        assert_eq!((done.wr_id, done.status), (n, WcStatus::Success));
        assert_eq!(client.bytes(0, 8), (n * 3).to_ne_bytes());
    }
    let swap = Atomic::compare_swap(5, server.mr.remote(0), 300, 7).into(client.mr.slice(0..8));
    ours.qp.post_send(swap.signaled()).unwrap();
    assert_eq!(client.completions(1)[0].opcode, WcOpcode::CompSwap);
    assert_eq!(server.bytes(0, 8), 7_u64.to_ne_bytes());
}

/// Goal: what iWARP does not have is refused when it is posted.
#[test]
fn what_iwarp_lacks_is_refused() {
    let client = Host::new(address(3, 1));
    let server = Host::new(address(3, 2));
    let (mut ours, _theirs) = connect(&client, &server);
    let attr = client.device.query().wait().unwrap();
    assert_eq!(attr.qp_types, [verbs_core::QpType::Rc]);
    for absent in [DeviceCap::SEND_WITH_IMM, DeviceCap::ATOMIC_WRITE] {
        assert!(!attr.caps.contains(absent), "{absent:?}");
    }
    let imm = Send::new(1).imm(7).inline(b"x");
    assert!(ours.qp.post_send(imm).is_err());
    let pieces = [client.mr.slice(0..8), client.mr.slice(8..16)];
    let read = Read::new(2, server.mr.remote(0)).scatter(&pieces);
    let refused = ours.qp.post_send(read).unwrap_err();
    assert!(matches!(
        refused,
        verbs_core::PostError::TooManySges { got: 2, max: 1 }
    ));
    let ud = verbs_core::QpInit::ud(&client.cq, &client.cq);
    assert!(client.pd.create_qp(ud).wait().is_err());
}

/// Goal: a WRITE without the right ends both sides, the peer's client is told by an event, and nothing is written.
#[test]
fn memory_without_the_right_is_refused() {
    let mut client = Host::new(address(4, 1));
    let mut server = Host::new(address(4, 2));
    let (mut ours, mut theirs) = connect(&client, &server);
    let secret = Memory::alloc(4096).unwrap();
    let secret = server.pd.register(secret, Access::LOCAL_WRITE).wait();
    let secret = secret.unwrap();
    let recv = Recv::new(9).into(server.mr.slice(0..64));
    theirs.qp.post_recv(recv).unwrap();
    let write = Write::new(1, secret.remote(0)).from(client.mr.slice(0..4096));
    ours.qp.post_send(write.signaled()).unwrap();
    // It was handed over, which is all that a WRITE says.
    assert_eq!(client.completions(1)[0].status, WcStatus::Success);
    assert_eq!(server.completions(1)[0].status, WcStatus::WrFlushErr);
    for end in [&ours, &theirs] {
        until("both ends are in ERR", || {
            end.qp.query().wait().unwrap().state == QpState::Err
        });
    }
    // A READ is told.
    let (mut ours, _theirs) = connect(&client, &server);
    let read = Read::new(2, secret.remote(0)).into(client.mr.slice(0..64));
    ours.qp.post_send(read).unwrap();
    assert_eq!(client.completions(1)[0].status, WcStatus::RemAccessErr);
}

/// Goal: a post returns although the peer takes nothing, and everything arrives when it does.
#[test]
fn back_pressure_blocks_no_post() {
    let client = Host::new(address(5, 1));
    let server = Host::new(address(5, 2));
    let mut client = client;
    let (mut ours, _theirs) = connect(&client, &server);
    let text: Vec<u8> = (0..1 << 20).map(|n| (n % 251) as u8).collect();
    client.mr.write(0, &text).unwrap();
    for n in 0..64 {
        let write = Write::new(n, server.mr.remote(0)).from(client.mr.slice(0..1 << 20));
        ours.qp.post_send(write.signaled()).unwrap();
    }
    let done = client.completions(64);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
    until("the last bytes are there", || {
        server.bytes(0, 1 << 20) == text
    });
}
