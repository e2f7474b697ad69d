//! Established TCP connections that become those of queue pairs (B4, B7).

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use hca_sim::{Adopted, adopt};
use verbs_core::{Error, QpState, Recv, Send, WcStatus, Why};

use crate::support::{Host, address};

fn pair(host: u8) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((address(40, host), 0)).unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

/// Goal: two programs talk over TCP, and go on with RDMA; what one has read too much is not lost.
#[test]
fn a_connection_is_taken_over_with_bytes_already_read() {
    let mut client = Host::new(address(40, 1));
    let mut server = Host::new(address(40, 2));
    let (ours, mut theirs) = pair(2);
    let (mut our_qp, mut their_qp) = (client.qp(), server.qp());
    for n in 0..2 {
        let recv = Recv::new(n).into(server.mr.slice(0..4096));
        their_qp.post_recv(recv).unwrap();
    }
    let text = [7; 3000];
    client.mr.write(0, &text).unwrap();
    adopt(&our_qp, ours, Adopted::new(true)).unwrap();
    for n in 0..2 {
        let send = Send::new(n).from(client.mr.slice(0..3000)).signaled();
        our_qp.post_send(send).unwrap();
    }
    assert_eq!(client.completions(2).len(), 2);
    // The other program still reads, and finds the first FPDUs, cut anywhere.
    let mut read = vec![0; 1234];
    theirs.read_exact(&mut read).unwrap();
    let mut adopted = Adopted::new(false);
    adopted.read = read;
    adopt(&their_qp, theirs, adopted).unwrap();
    let got = server.completions(2);
    assert!(
        got.iter()
            .all(|wc| wc.status == WcStatus::Success && wc.byte_len == 3000)
    );
    assert_eq!(server.bytes(0, 3000), text);
    assert_eq!(their_qp.query().wait().unwrap().state, QpState::Rts);
}

/// Goal: with data in flight it is refused, and the queue pair is as it was.
#[test]
fn data_in_flight_is_refused() {
    let client = Host::new(address(41, 1));
    let (mut ours, theirs) = pair(3);
    ours.set_nonblocking(true).unwrap();
    // More than the peer's socket takes: the rest waits in ours.
    while ours.write(&[0; 1 << 16]).is_ok() {}
    let qp = client.qp();
    let refused = adopt(&qp, ours, Adopted::new(true)).unwrap_err();
    let why = Why::StillUsed;
    assert!(
        matches!(refused, Error::Mismatch { why: got, .. } if got == why),
        "{refused}"
    );
    assert_eq!(qp.query().wait().unwrap().state, QpState::Init);
    drop(theirs);
    // A queue pair that has a connection takes no other.
    let (ours, _theirs) = pair(4);
    adopt(&qp, ours, Adopted::new(true)).unwrap();
    let (ours, _theirs) = pair(4);
    let refused = adopt(&qp, ours, Adopted::new(true)).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Mismatch {
                why: Why::State,
                ..
            }
        ),
        "{refused}"
    );
}
