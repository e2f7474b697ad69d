//! Objects that are taken away while another thread uses them: nothing is touched after the verb that took them away
//! has completed (K11), and every work request completes exactly once.
#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::{Hca, Loopback, connect};
use verbs_core::{
    Access, Cq, Device, Memory, Mr, Pd, PostError, Qp, QpAttr, QpInit, QpState, Recv, Remote, Send,
    SendQueue, Wc, WcStatus, Write,
};

struct End {
    hca: Arc<Hca>,
    send_cq: Cq,
    recv_cq: Cq,
    mr: Mr,
    pd: Pd,
    device: Device,
}

fn end(link: &Loopback) -> End {
    let hca = Hca::on(link).build();
    let device = hca.open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let (send_cq, recv_cq) = (
        device.create_cq(256).wait().unwrap(),
        device.create_cq(256).wait().unwrap(),
    );
    let mr = region(&pd, 4096);
    End {
        hca,
        send_cq,
        recv_cq,
        mr,
        pd,
        device,
    }
}

fn region(pd: &Pd, len: usize) -> Mr {
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    pd.register(Memory::alloc(len).unwrap(), access)
        .wait()
        .unwrap()
}

fn connected(a: &End, b: &End) -> (Qp, Qp) {
    let make = |end: &End| {
        let init = QpInit::rc(&end.send_cq, &end.recv_cq).depth(64, 64);
        end.pd.create_qp(init).wait().unwrap()
    };
    let (mut qp_a, mut qp_b) = (make(a), make(b));
    block_on(connect(&mut qp_a, &mut qp_b)).unwrap();
    (qp_a, qp_b)
}

fn polled(cq: &mut Cq) -> Vec<Wc> {
    let mut out = [Wc::default(); 64];
    cq.poll(&mut out).to_vec()
}

/// Writes as fast as it can, through a queue pair that it repairs when a write has failed.
fn hammer(qp: &mut SendQueue, cq: &mut Cq, from: &Mr, to: Remote) -> WcStatus {
    loop {
        match qp.post(Write::new(0, to).from(from.slice(0..64)).signaled()) {
            Ok(()) | Err(PostError::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        if let Some(wc) = polled(cq).iter().find(|wc| !wc.is_ok()) {
            return wc.status;
        }
    }
}

#[test]
fn k11_no_write_lands_after_the_region_was_deregistered() {
    let link = Loopback::with_seed(1);
    let (a, b) = (end(&link), end(&link));
    let stop = AtomicBool::new(false);
    let target = AtomicU64::new(0);
    let key = AtomicU64::new(0);
    let (mut a, rounds) = (a, 300);
    thread::scope(|scope| {
        let (stop, target, key, pd) = (&stop, &target, &key, &b.pd);
        let peer = &b;
        let writer = scope.spawn(move || {
            let mut hits = 0u64;
            a.mr.write(0, &[0xff; 64]).unwrap();
            while !stop.load(Relaxed) {
                let (qp, _peer_qp) = connected(&a, peer);
                let (_qp, mut sends, _recvs) = qp.split().unwrap();
                let rkey = verbs_core::RKey::new(key.load(Relaxed) as u32);
                let to = Remote {
                    addr: target.load(Relaxed),
                    rkey,
                };
                let status = hammer(&mut sends, &mut a.send_cq, &a.mr, to);
                assert!(
                    matches!(status, WcStatus::RemAccessErr | WcStatus::WrFlushErr),
                    "{status}"
                );
                while !polled(&mut a.send_cq).is_empty() {}
                hits += 1;
            }
            hits
        });
        for _ in 0..rounds {
            let mr = region(pd, 64);
            let memory = Arc::clone(mr.memory());
            key.store(u64::from(mr.rkey().value()), Relaxed);
            target.store(mr.remote(0).addr, Relaxed);
            let mut seen = [0; 64];
            for _ in 0..20_000 {
                memory.read(0, &mut seen).unwrap();
                if seen[0] != 0 {
                    break;
                }
            }
            mr.dereg().wait().unwrap();
            memory.fill(0..64, 1).unwrap();
            for _ in 0..50 {
                memory.read(0, &mut seen).unwrap();
                assert_eq!(seen, [1; 64], "written after deregistration");
            }
        }
        stop.store(true, Relaxed);
        assert!(writer.join().unwrap() > 0, "the writer came through");
    });
}

#[test]
fn k11_every_receive_completes_once_when_its_queue_pair_goes_under_fire() {
    let link = Loopback::with_seed(2);
    let (a, mut b) = (end(&link), end(&link));
    let mut a = a;
    for round in 0..200u64 {
        let (qp_a, mut qp_b) = connected(&a, &b);
        let (_keep, mut sends, _) = qp_a.split().unwrap();
        for wr_id in 0..64 {
            qp_b.post_recv(Recv::new(wr_id).into(b.mr.slice(0..64)))
                .unwrap();
        }
        let (send_cq, mr) = (&mut a.send_cq, &a.mr);
        let sent = thread::scope(|scope| {
            let sender = scope.spawn(move || {
                let mut completed = 0;
                for wr_id in 0..40 {
                    sends
                        .post(Send::new(wr_id).from(mr.slice(0..64)).signaled())
                        .unwrap();
                    completed += polled(send_cq).iter().filter(|wc| wc.is_ok()).count();
                }
                completed + polled(send_cq).iter().filter(|wc| wc.is_ok()).count()
            });
            for _ in 0..round % 16 {
                thread::yield_now();
            }
            if round % 2 == 0 {
                qp_b.destroy().wait().unwrap();
            } else {
                qp_b.to_error().wait().unwrap();
            }
            let done: Vec<_> = std::iter::repeat_with(|| polled(&mut b.recv_cq))
                .take_while(|some| !some.is_empty())
                .flatten()
                .collect();
            let ids: Vec<_> = done.iter().map(|wc| wc.wr_id).collect();
            assert_eq!(ids, (0..64).collect::<Vec<_>>(), "each once and in order");
            let arrived = done.iter().filter(|wc| wc.is_ok()).count();
            (arrived, sender.join().unwrap())
        });
        assert_eq!(sent.0, sent.1, "as many arrived as the sender was told");
        while !polled(&mut a.send_cq).is_empty() {}
    }
}

#[test]
fn a_device_can_go_under_fire() {
    for seed in 0..20 {
        let link = Loopback::with_seed(seed);
        let (a, b) = (end(&link), end(&link));
        let (qp_a, qp_b) = connected(&a, &b);
        let (qp_a, mut sends, _) = qp_a.split().unwrap();
        // Few retries, so that the sender finds out soon.
        let patience = QpAttr {
            retry_cnt: Some(1),
            timeout: Some(5),
            ..QpAttr::to(QpState::Sqd)
        };
        let _ = qp_a.modify(QpAttr::to(QpState::Sqd)).wait();
        qp_a.modify(QpAttr {
            state: Some(QpState::Sqd),
            ..patience
        })
        .wait()
        .unwrap();
        qp_a.modify(QpAttr::to(QpState::Rts)).wait().unwrap();
        let to = b.mr.remote(0);
        let (mut send_cq, mr) = (a.send_cq, a.mr);
        thread::scope(|scope| {
            let writer = scope.spawn(move || hammer(&mut sends, &mut send_cq, &mr, to));
            for _ in 0..seed {
                thread::yield_now();
            }
            b.hca.remove();
            assert_eq!(writer.join().unwrap(), WcStatus::RetryExcErr);
        });
        drop(qp_b);
        assert_eq!(b.device.implicit_destroy_failures(), 0);
    }
}

#[test]
fn two_threads_share_one_completion_queue() {
    let link = Loopback::with_seed(4);
    let one = end(&link);
    let mut cq = one.device.create_cq(1 << 16).wait().unwrap();
    let make = || {
        one.pd
            .create_qp(QpInit::rc(&cq, &cq).depth(1 << 12, 16))
            .wait()
            .unwrap()
    };
    let mut pairs: Vec<_> = (0..2).map(|_| (make(), make())).collect();
    for (a, b) in &mut pairs {
        block_on(connect(a, b)).unwrap();
    }
    const EACH: u64 = 20_000;
    let mut seen = [0u64; 2];
    thread::scope(|scope| {
        for (number, (qp, _)) in pairs.iter_mut().enumerate() {
            let (mr, at) = (&one.mr, number * 64);
            scope.spawn(move || {
                let mut next = 0;
                while next < EACH {
                    let wr_id = (number as u64) << 32 | next;
                    let write = Write::new(wr_id, mr.remote(at))
                        .from(mr.slice(256..320))
                        .signaled();
                    match qp.post_send(write) {
                        Ok(()) => next += 1,
                        Err(PostError::Full { .. }) => thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        while seen != [EACH; 2] {
            for wc in polled(&mut cq) {
                assert!(wc.is_ok(), "{wc:?}");
                let number = (wc.wr_id >> 32) as usize;
                assert_eq!(wc.wr_id & 0xffff_ffff, seen[number], "each queue in order");
                seen[number] += 1;
            }
        }
    });
    assert!(polled(&mut cq).is_empty());
}

/// Method: a receiver that has taken all messages and waits, and the sender goes on only then, every 64 messages.
#[test]
fn an_event_wakes_who_waits_for_another_thread() {
    let link = Loopback::with_seed(5);
    let (a, mut b) = (end(&link), end(&link));
    let (qp_a, mut qp_b) = connected(&a, &b);
    let (_keep, mut sends, _) = qp_a.split().unwrap();
    const MESSAGES: u64 = 3_000;
    for wr_id in 0..64 {
        qp_b.post_recv(Recv::new(wr_id)).unwrap();
    }
    // How many messages the receiver had when it last began to wait.
    let waits_after = &AtomicU64::new(0);
    thread::scope(|scope| {
        let mut send_cq = a.send_cq;
        scope.spawn(move || {
            for wr_id in 0..MESSAGES {
                while let Err(error) = sends.post(Send::new(wr_id).signaled()) {
                    assert!(matches!(error, PostError::Full { .. }), "{error}");
                    let _ = polled(&mut send_cq);
                    thread::yield_now();
                }
                if wr_id % 64 == 0 {
                    let end = Instant::now() + Duration::from_secs(60);
                    while waits_after.load(Relaxed) != wr_id + 1 {
                        assert!(Instant::now() < end, "it does not wait after {wr_id}");
                        thread::yield_now();
                    }
                }
            }
        });
        let mut got = 0;
        while got < MESSAGES {
            let ready = poll_fn(|cx| {
                let ready = b.recv_cq.poll_ready(cx);
                if ready.is_pending() {
                    waits_after.store(got, Relaxed);
                }
                ready
            });
            block_on(ready).unwrap();
            for wc in polled(&mut b.recv_cq) {
                assert!(wc.is_ok(), "{wc:?}");
                got += 1;
                qp_b.post_recv(Recv::new(got)).unwrap();
            }
        }
    });
}
