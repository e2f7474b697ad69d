//! Extended reliable connections. No other software has them, so both ends are this crate's.

use std::time::Duration;

use verbs_core::{
    Access, Attr, Cq, Error, EventType, Memory, Mr, Mtu, Path, Pd, PostError, Psn, Qp, QpInit,
    QpState, QpType, Read, Recv, Send, SendOp, SendWr, Srq, Srqn, Wc, WcOpcode, WcStatus, Why,
    Write, Xrcd,
};

use crate::bed::{Bed, End, Way};

/// A process at the responder: its protection domain, queue and memory.
struct Process {
    srq: Srq,
    cq: Cq,
    mr: Mr,
    pd: Pd,
}

struct Connection {
    bed: Bed,
    ini: End,
    tgt: Qp,
    processes: [Process; 2],
    domain: Xrcd,
    /// A region at the responder that belongs to none of them.
    device: verbs_core::Device,
}

fn process(device: &verbs_core::Device, domain: &Xrcd) -> Process {
    let pd = device.alloc_pd().wait().unwrap();
    let cq = device.create_cq(64).wait().unwrap();
    let srq = pd.create_xrc_srq(domain, &cq, 16, 2).wait().unwrap();
    let access = Access::REMOTE | Access::LOCAL_WRITE;
    let mr = pd
        .register(Memory::alloc(1 << 16).unwrap(), access)
        .wait()
        .unwrap();
    Process { srq, cq, mr, pd }
}

fn connection(way: Way) -> Connection {
    let bed = Bed::new(way);
    let ini = bed.end(0, QpType::XrcSend, |init| init);
    let device = bed.hcas[1].open().wait().unwrap();
    let domain = device.alloc_xrcd().wait().unwrap();
    let tgt = domain.create_target_qp().wait().unwrap();
    let processes = [(); 2].map(|()| process(&device, &domain));
    let path = |to: usize, dest_qpn| Path {
        av: bed.address(to),
        dest_qpn,
        rq_psn: Psn::new(9),
        mtu: Mtu::B1024,
    };
    for (qp, peer) in [(&ini.qp, path(1, tgt.qpn())), (&tgt, path(0, ini.qp.qpn()))] {
        let access = Access::REMOTE | Access::LOCAL_WRITE;
        qp.init(1, access).wait().unwrap();
        qp.ready_to_receive(&peer).wait().unwrap();
        qp.ready_to_send(Psn::new(9)).wait().unwrap();
    }
    Connection {
        bed,
        ini,
        tgt,
        processes,
        domain,
        device,
    }
}

impl Connection {
    /// Posts and waits for its completion.
    fn run(&mut self, wr: SendWr<'_>) -> Wc {
        self.ini.qp.post_send(wr).unwrap();
        for _ in 0..100 {
            if let [wc] = self.bed.poll(&mut self.ini)[..] {
                return wc;
            }
            self.bed.advance(Duration::from_millis(1));
        }
        panic!("{:?}: {wr:?} does not complete", self.bed.way);
    }

    /// The completions of that process.
    fn polled(&mut self, number: usize) -> Vec<Wc> {
        self.bed.settle();
        let mut some = [Wc::default(); 16];
        self.processes[number].cq.poll(&mut some).to_vec()
    }
}

/// Goal: one connection serves two processes; each gets the messages that name its queue, in its own memory.
#[test]
fn every_request_goes_to_the_queue_that_it_names() {
    for way in Way::ALL {
        let mut c = connection(way);
        c.ini.mr.write(0, &[5; 3000]).unwrap();
        for (number, process) in c.processes.iter_mut().enumerate() {
            let room = process.mr.slice(0..4000);
            process
                .srq
                .post_recv(Recv::new(number as u64).into(room))
                .unwrap();
        }
        for number in [1, 0] {
            let srqn = c.processes[number].srq.srqn();
            let send = Send::new(7)
                .from(c.ini.mr.slice(0..3000))
                .srq(srqn)
                .signaled();
            let wc = c.run(send.wr);
            assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Send));
            let [wc] = c.polled(number)[..] else {
                panic!("{way:?}: one receive");
            };
            assert_eq!((wc.wr_id, wc.byte_len), (number as u64, 3000));
            assert_eq!(wc.qpn, c.tgt.qpn());
            assert_eq!(c.polled(1 - number), []);
            let mut got = vec![0; 3000];
            c.processes[number].mr.read(0, &mut got).unwrap();
            assert_eq!(got, vec![5; 3000]);
        }
    }
}

/// Goal: memory is that of the process whose queue is named; READs and atomics are answered from there.
#[test]
fn memory_is_checked_against_the_queue_that_is_named() {
    for way in Way::ALL {
        let mut c = connection(way);
        let srqn = c.processes[1].srq.srqn();
        let remote = c.processes[1].mr.remote(64);
        c.ini.mr.write(0, &[9; 5000]).unwrap();
        let local = |range| c.ini.mr.slice(range);
        let (source, sink, word) = (local(0..5000), local(8192..13_192), local(20_000..20_008));
        let write = Write::new(1, remote).from(source).srq(srqn).signaled();
        assert_eq!(c.run(write.wr).status, WcStatus::Success);
        let read = Read::new(2, remote).into(sink).srq(srqn).signaled();
        assert_eq!(c.run(read.wr).status, WcStatus::Success);
        assert_eq!(c.ini.bytes(8192..13_192), vec![9; 5000]);
        let mut add = Read::new(3, remote).into(word).srq(srqn).signaled().wr;
        add.op = SendOp::FetchAdd { remote, add: 1 };
        assert_eq!(c.run(add).status, WcStatus::Success);
        assert_eq!(c.ini.bytes(20_000..20_008), [9; 8]);
        // The same memory in the name of the other process.
        let other = c.processes[0].srq.srqn();
        let read = Read::new(4, remote).into(sink).srq(other).signaled();
        assert_eq!(c.run(read.wr).status, WcStatus::RemAccessErr, "{way:?}");
        assert_eq!(c.tgt.query().wait().unwrap().state, QpState::Err);
    }
}

/// Goal: masked atomics reach the memory of the process that is named, and no other's: the old value is returned, and
/// only the permitted bits change.
#[test]
fn masked_atomics_keep_to_their_bits_and_their_queue() {
    for way in Way::ALL {
        let mut c = connection(way);
        let (srqn, remote) = (c.processes[1].srq.srqn(), c.processes[1].mr.remote(64));
        let word = c.ini.mr.slice(0..8);
        let mut run = |op| {
            let mut wr = Read::new(1, remote).into(word).srq(srqn).signaled().wr;
            wr.op = op;
            let wc = c.run(wr);
            let old = c.ini.bytes(0..8).try_into().map(u64::from_ne_bytes);
            (wc.status, wc.opcode, old.unwrap())
        };
        let start = SendOp::FetchAdd {
            remote,
            add: 0xffff,
        };
        assert_eq!(run(start), (WcStatus::Success, WcOpcode::FetchAdd, 0));
        // Each byte is a number of its own.
        let add = SendOp::MaskedFetchAdd {
            remote,
            add: 0x0102,
            boundary: 0x8080,
        };
        let ok = WcStatus::Success;
        assert_eq!(run(add), (ok, WcOpcode::MaskedFetchAdd, 0xffff), "{way:?}");
        let swap = |compare| SendOp::MaskedCompareSwap {
            remote,
            compare,
            compare_mask: 0x00ff,
            swap: 0xaaaa,
            swap_mask: 0xff00,
        };
        assert_eq!(run(swap(1)), (ok, WcOpcode::MaskedCompSwap, 0x0001));
        assert_eq!(run(swap(2)), (ok, WcOpcode::MaskedCompSwap, 0xaa01));
        let mut now = [0; 8];
        c.processes[1].mr.read(64, &mut now).unwrap();
        let now = u64::from_ne_bytes(now);
        assert_eq!(now, 0xaa01, "{way:?}: the second did not compare");

        let mut foreign = Read::new(2, remote).into(word).signaled().wr;
        foreign.op = add;
        let foreign = SendWr {
            dest: verbs_core::Dest::Srq(c.processes[0].srq.srqn()),
            ..foreign
        };
        assert_eq!(c.run(foreign).status, WcStatus::RemAccessErr, "{way:?}");
    }
}

#[test]
fn a_queue_that_is_none_is_an_invalid_request() {
    for way in Way::ALL {
        for foreign in [false, true] {
            let mut c = connection(way);
            let other = c.device.alloc_xrcd().wait().unwrap();
            let elsewhere = process(&c.device, &other);
            let srqn = if foreign {
                elsewhere.srq.srqn()
            } else {
                Srqn::new(0xff_fff0)
            };
            let send = Send::new(1).inline(b"x").srq(srqn).signaled();
            assert_eq!(c.run(send.wr).status, WcStatus::RemInvReqErr, "{way:?}");
            assert_eq!(c.ini.qp.query().wait().unwrap().state, QpState::Err);
            let event = c.device.next_event().wait().unwrap();
            assert_eq!(event.event, EventType::QpReqErr);
        }
    }
}

/// Goal: a queue that was destroyed can no longer be named.
#[test]
fn a_queue_that_is_gone_is_an_invalid_request() {
    for way in Way::ALL {
        let mut c = connection(way);
        let mut gone = process(&c.device, &c.domain);
        let srqn = gone.srq.srqn();
        let room = gone.mr.slice(0..100);
        gone.srq.post_recv(Recv::new(6).into(room)).unwrap();
        gone.srq.destroy().wait().unwrap();
        let send = Send::new(1).inline(b"x").srq(srqn).signaled();
        assert_eq!(c.run(send.wr).status, WcStatus::RemInvReqErr, "{way:?}");
    }
}

#[test]
fn without_a_receive_the_initiator_waits_and_the_limit_is_told() {
    for way in Way::ALL {
        let mut c = connection(way);
        let srqn = c.processes[0].srq.srqn();
        c.ini
            .qp
            .post_send(Send::new(1).inline(b"late").srq(srqn).signaled())
            .unwrap();
        c.bed.advance(Duration::from_millis(3));
        assert_eq!(c.bed.poll(&mut c.ini), []);
        let room = c.processes[0].mr.slice(0..8);
        for wr_id in 1..=2 {
            c.processes[0]
                .srq
                .post_recv(Recv::new(wr_id).into(room))
                .unwrap();
        }
        c.processes[0].srq.arm_limit(2).wait().unwrap();
        c.bed.advance(Duration::from_millis(3));
        assert_eq!(c.bed.poll(&mut c.ini).len(), 1, "{way:?}");
        assert_eq!(c.polled(0).len(), 1);
        let event = c.device.next_event().wait().unwrap();
        assert_eq!(event.event, EventType::SrqLimitReached);
    }
}

/// Goal: the receive of a message that fails on the way completes as flushed, on the shared queue's own completion
/// queue.
#[test]
fn a_receive_of_a_message_that_never_ends_is_flushed() {
    for way in Way::ALL {
        let mut c = connection(way);
        let srqn = c.processes[0].srq.srqn();
        let room = c.processes[0].mr.slice(0..100);
        c.processes[0]
            .srq
            .post_recv(Recv::new(6).into(room))
            .unwrap();
        let send = Send::new(1)
            .from(c.ini.mr.slice(0..5000))
            .srq(srqn)
            .signaled();
        assert_eq!(c.run(send.wr).status, WcStatus::RemInvReqErr);
        let [wc] = c.polled(0)[..] else {
            panic!("{way:?}: the receive completes");
        };
        assert_eq!((wc.wr_id, wc.status), (6, WcStatus::LocLenErr));
    }
}

#[test]
fn only_requests_that_name_a_queue_can_be_posted() {
    let mut c = connection(Way::Loopback);
    let send = Send::new(1).inline(b"x");
    assert_eq!(c.ini.qp.post_send(send), Err(PostError::NoSrq));
    assert_eq!(c.ini.qp.post_recv(Recv::new(1)), Err(PostError::UsesSrq));
    assert_eq!(c.tgt.post_send(send), Err(PostError::Unsupported));
    let [mut rc, _other] = c.bed.pair(QpType::Rc);
    let named = send.srq(Srqn::new(1));
    assert_eq!(rc.qp.post_send(named), Err(PostError::Destination));
    let init = QpInit::xrc(&c.ini.cq).srq(&c.processes[0].srq);
    let refused = c.processes[0].pd.create_qp(init).wait().unwrap_err();
    let (attr, why) = (Attr::Srq, Why::NoReceives);
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused}");
    // On one device, so that there is no other cause.
    let pd = c.device.alloc_pd().wait().unwrap();
    let init = QpInit::xrc(&c.processes[0].cq).srq(&c.processes[0].srq);
    assert_eq!(
        pd.create_qp(init).wait().unwrap_err(),
        Error::Mismatch { attr, why }
    );
}

/// Goal: a target lives as long as any client has it open, and all of them receive its events.
#[test]
fn a_target_is_shared_by_all_who_open_it() {
    for way in Way::ALL {
        let mut c = connection(way);
        let missing = c.domain.open_target_qp(c.ini.qp.qpn()).wait();
        let (attr, why) = (Attr::TargetQpn, Why::Missing);
        assert_eq!(missing.unwrap_err(), Error::Mismatch { attr, why });
        let second = c.domain.open_target_qp(c.tgt.qpn()).wait().unwrap();
        assert_eq!(second.query().wait().unwrap().state, QpState::Rts);
        let busy = c.domain.dealloc().wait().unwrap_err();
        assert_eq!(busy.error, Error::Busy);
        let holders: Vec<_> = busy.busy.unwrap().kinds().collect();
        assert_eq!(
            holders.iter().map(|&(_, n)| n).sum::<u32>(),
            4,
            "{holders:?}"
        );
        c.tgt.destroy().wait().unwrap();
        let srqn = c.processes[0].srq.srqn();
        let room = c.processes[0].mr.slice(0..100);
        c.processes[0]
            .srq
            .post_recv(Recv::new(6).into(room))
            .unwrap();
        c.ini
            .qp
            .post_send(Send::new(1).inline(b"still").srq(srqn).signaled())
            .unwrap();
        let [wc] = c.bed.poll(&mut c.ini)[..] else {
            panic!("{way:?}: sent");
        };
        assert_eq!(wc.status, WcStatus::Success, "{way:?}");
        second.destroy().wait().unwrap();
        let domain = busy.handle.unwrap();
        for process in c.processes {
            process.srq.destroy().wait().unwrap();
        }
        domain.dealloc().wait().unwrap();
    }
}
