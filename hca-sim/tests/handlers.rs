//! Handlers of completion queues: one call at a time, once per arm, and destroys from inside.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use futures::executor::block_on;
use hca_sim::Hca;
use verbs_core::{
    Access, Arm, Armed, Cq, Device, Error, Memory, Mr, Pd, PostError, Qp, QpInit, Recv, Send, Wc,
    no_block,
};

/// Two connected queue pairs; the receiver's completion queue has a handler.
struct World {
    device: Device,
    pd: Pd,
    mr: Mr,
    send_cq: Cq,
    ours: Qp,
    theirs: Qp,
}

async fn world(handler: impl FnMut() + std::marker::Send + 'static) -> (World, Cq) {
    let device = Hca::loopback().open().await.unwrap();
    let pd = device.alloc_pd().await.unwrap();
    let recv_cq = device.create_cq(64).handler(handler).await.unwrap();
    let send_cq = device.create_cq(64).await.unwrap();
    let mr = pd
        .register(Memory::alloc(4096).unwrap(), Access::LOCAL_WRITE)
        .await
        .unwrap();
    let mut ours = pd.create_qp(QpInit::rc(&send_cq, &send_cq)).await.unwrap();
    let mut theirs = pd.create_qp(QpInit::rc(&send_cq, &recv_cq)).await.unwrap();
    hca_sim::connect(&mut ours, &mut theirs).await.unwrap();
    (
        World {
            device,
            pd,
            mr,
            send_cq,
            ours,
            theirs,
        },
        recv_cq,
    )
}

impl World {
    fn message(&mut self) {
        self.theirs
            .post_recv(Recv::new(1).into(self.mr.slice(2048..4096)))
            .unwrap();
        self.ours
            .post_send(Send::new(2).from(self.mr.slice(0..8)))
            .unwrap();
    }
}

#[test]
fn k14_a_handler_runs_once_per_arm_and_sees_the_completion() {
    let place = Arc::new(Mutex::new(None::<Cq>));
    let (calls, polled) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let inside = AtomicBool::new(false);
    let (cq, count, sum) = (Arc::clone(&place), Arc::clone(&calls), Arc::clone(&polled));
    let (mut world, recv_cq) = block_on(world(move || {
        assert!(no_block());
        assert!(
            !inside.swap(true, SeqCst),
            "a handler does not run beside itself"
        );
        count.fetch_add(1, SeqCst);
        let mut place = cq.lock().unwrap();
        let got = place.as_mut().unwrap().poll(&mut [Wc::default(); 8]).len();
        sum.fetch_add(u32::try_from(got).unwrap(), SeqCst);
        inside.store(false, SeqCst);
    }));
    *place.lock().unwrap() = Some(recv_cq);
    world.message();
    assert_eq!(calls.load(SeqCst), 0, "not armed");
    let armed = place.lock().unwrap().as_mut().unwrap().arm(Arm::Next);
    assert_eq!(armed, Armed::Waiting, "arm says what waits already");
    world.message();
    world.message();
    assert!(calls.load(SeqCst) <= 1, "once per arm");
    place
        .lock()
        .unwrap()
        .as_mut()
        .unwrap()
        .poll(&mut [Wc::default(); 8]);
    for n in 0..10 {
        let before = calls.load(SeqCst);
        assert_eq!(
            place.lock().unwrap().as_mut().unwrap().arm(Arm::Next),
            Armed::Empty,
            "round {n}"
        );
        world.message();
        assert_eq!(calls.load(SeqCst), before + 1);
    }
    assert!(polled.load(SeqCst) >= 10);
}

#[test]
fn k11_a_queue_is_destroyed_from_its_own_handler() {
    let place = Arc::new(Mutex::new(None::<(World, Cq)>));
    let log = Arc::new(Mutex::new(Vec::new()));
    let (mine, lines) = (Arc::clone(&place), Arc::clone(&log));
    let (world, recv_cq) = block_on(world(move || {
        let Some((world, cq)) = mine.lock().unwrap().take() else {
            return;
        };
        let World {
            device,
            pd,
            mr,
            send_cq,
            ours,
            theirs,
        } = world;
        let refused = cq.destroy().wait().unwrap_err();
        assert_eq!(refused.error, Error::WouldBlock);
        let cq = refused.handle.unwrap();
        let (first, second) = (Arc::clone(&lines), Arc::clone(&lines));
        let _ = ours.destroy().issue(|result| result.unwrap());
        let _ = theirs.destroy().issue(move |result| {
            result.unwrap();
            first.lock().unwrap().push("queue pair");
            let _ = cq.destroy().issue(move |result| {
                result.unwrap();
                second.lock().unwrap().push("completion queue");
                drop((mr, send_cq, pd, device));
            });
        });
        lines.lock().unwrap().push("handler returns");
    }));
    // The queues are moved out, because the handler needs the rest.
    let (recv, send) = (world.mr.slice(2048..4096), world.mr.slice(0..8));
    let World {
        device,
        pd,
        mr,
        send_cq,
        ours,
        theirs,
    } = world;
    let (ours, mut sender, _) = ours.split().unwrap();
    let (theirs, _, mut receiver) = theirs.split().unwrap();
    let mut recv_cq = recv_cq;
    assert_eq!(recv_cq.arm(Arm::Next), Armed::Empty);
    *place.lock().unwrap() = Some((
        World {
            device,
            pd,
            mr,
            send_cq,
            ours,
            theirs,
        },
        recv_cq,
    ));
    receiver.post(Recv::new(1).into(recv)).unwrap();
    sender.post(Send::new(2).from(send)).unwrap();
    assert_eq!(
        *log.lock().unwrap(),
        ["handler returns", "queue pair", "completion queue"]
    );
    assert_eq!(
        sender.post(Send::new(3).from(send)),
        Err(PostError::Destroyed)
    );
}
