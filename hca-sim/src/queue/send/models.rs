//! A model of the send ring.

use loom::thread;
use verbs_core::sync::Arc;
use verbs_core::{Dest, Payload};

use super::*;
use crate::qp::models::model;

/// The machine has carried out what is in the ring, and the poster continues from there without a lock between them: it
/// finds the numbers of packets as the machine has left them, and entries that are free.
#[test]
fn loom_send_ring_is_handed_over() {
    model(2, || {
        let cap = QpCap {
            max_send_wr: 1,
            ..QpCap::default()
        };
        let ring = SendRing::new(&SlabAlloc::default(), &cap, Service::Rc);
        let ring = Arc::new(ring.expect("a model has memory"));
        let machine = Arc::clone(&ring);
        let thread = thread::spawn(move || {
            for expected in [10, 11] {
                let at = loop {
                    match machine.next() {
                        Some(at) => break at,
                        None => thread::yield_now(),
                    }
                };
                let wr_id = machine.read(at, &mut Scratch::default()).wr_id;
                assert_eq!(wr_id, expected);
                machine.advance(1);
                machine.executed(at);
            }
        });
        for (index, psn) in [(0, 2), (1, 4)] {
            let wr = SendWr {
                wr_id: u64::from(index) + 10,
                op: SendOp::Send,
                flags: SendFlags::empty(),
                payload: Payload::List(&[]),
                dest: Dest::Peer,
            };
            ring.append(index, &wr);
            while !ring.is_drained() {
                thread::yield_now();
            }
            assert_eq!(ring.advance(1), psn);
        }
        thread.join().expect("the machine does not panic");
    });
}
