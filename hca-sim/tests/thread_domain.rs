//! Queues in a thread domain: connections that share a completion queue and a shared receive queue, and
//! one thread at a time that works for all of them.
#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

use std::sync::Arc;
use std::thread;

use futures::executor::block_on;
use hca_sim::{Hca, connect};
use verbs_core::{
    Access, Cq, InDomain, Memory, Mr, OtherDomain, Qp, QpInit, Recv, RecvQueue, Send, SendQueue,
    Srq, ThreadDomain, Wc, WcOpcode,
};

/// One of the connections, with what it has in common with the others.
struct Connection {
    send: InDomain<SendQueue>,
    _own_recv: InDomain<RecvQueue>,
    _ends: [Qp; 2],
    done: Arc<InDomain<Cq>>,
    receives: Arc<InDomain<Srq>>,
}

const MESSAGES: u64 = 10;

/// Sends to the other end, whose receives are the shared ones, and takes both completions.
fn work(connection: &Connection, mr: &Mr, domain: &mut ThreadDomain) -> Result<(), OtherDomain> {
    for id in 0..MESSAGES {
        let room = Recv::new(100 + id).into(mr.slice(64..72));
        connection.receives.of(domain)?.post_recv(room).unwrap();
        let send = Send::new(id).from(mr.slice(0..8)).signaled();
        connection.send.of(domain)?.post(send).unwrap();
        let mut out = [Wc::default(); 4];
        let done = connection.done.of(domain)?.poll(&mut out);
        let done: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.opcode)).collect();
        let both = [(100 + id, WcOpcode::Recv), (id, WcOpcode::Send)];
        assert_eq!(done, both);
    }
    Ok(())
}

#[test]
fn connections_hold_what_they_have_in_common_and_the_thread_with_the_domain_uses_it() {
    let device = Hca::loopback().open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let memory = Memory::alloc(4096).unwrap();
    let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
    let mut domain = ThreadDomain::new();
    let done = Arc::new(domain.put(device.create_cq(64).wait().unwrap()));
    let receives = pd.create_srq(64, 1).wait().unwrap();
    let receives = Arc::new(domain.put(receives));
    let connections = [(); 3].map(|()| {
        let make = || {
            let init = QpInit::rc(&*done, &*done).srq(&*receives);
            pd.create_qp(init).wait().unwrap()
        };
        let (mut a, mut b) = (make(), make());
        block_on(connect(&mut a, &mut b)).unwrap();
        let (a, send, recv) = a.split().unwrap();
        Connection {
            send: domain.put(send),
            _own_recv: domain.put(recv),
            _ends: [a, b],
            done: Arc::clone(&done),
            receives: Arc::clone(&receives),
        }
    });
    // Here first, then in two other threads, one after the other.
    work(&connections[0], &mr, &mut domain).unwrap();
    for _ in 0..2 {
        thread::scope(|scope| {
            let run = || {
                for connection in &connections {
                    work(connection, &mr, &mut domain).unwrap();
                }
            };
            scope.spawn(run).join().unwrap();
        });
    }
    let mut other = ThreadDomain::new();
    assert_eq!(work(&connections[1], &mr, &mut other), Err(OtherDomain));
}
