//! Goal: programs of one host share a domain of extended reliable connections: one target, and shared receive queues in each of
//! them (D13). Method: the programs are HCAs of this process, with a daemon on a thread; packets between them go through
//! shared memory. The initiator is another program.

#[path = "../../exact/near/daemon.rs"]
mod daemon;
mod mixed;
mod strangers;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::mpsc::channel;

use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::link::{Joined, PacketLink};
use verbs_core::xrcd::XrcdName;
use verbs_core::{
    Access, Av, Cq, Device, Error, EventType, Gid, Memory, Mr, Mtu, Path, Pd, Psn, Qp, QpAttr,
    QpInit, QpState, Qpn, Recv, Send, SendWr, Srq, Srqn, Subject, Target, Wc, WcOpcode, WcStatus,
    Write, Xrcd,
};

const NAME: XrcdName = XrcdName {
    device: 7,
    inode: 17,
};

/// Bytes of a program's memory.
const BYTES: usize = 1 << 16;

/// A program.
struct Program {
    _hca: Arc<Hca>,
    device: Device,
    mr: Mr,
    cq: Cq,
    domain: Xrcd,
    srq: Srq,
}

/// Three programs of a host whose domain is the same, and a target of the first of them that is connected to an initiator.
struct Host {
    address: IpAddr,
    programs: Vec<Program>,
    target: Qp,
    client: Client,
}

struct Client {
    _hca: Arc<Hca>,
    mr: Mr,
    cq: Cq,
    qp: Qp,
}

/// An address that no other test has.
fn address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    Ipv4Addr::new(127, 79, 3, NEXT.fetch_add(1, Relaxed)).into()
}

fn joined(socket: OwnedFd) -> Joined {
    Joined::join(socket, &[], "test").expect("welcome")
}

fn memory(pd: &Pd) -> Mr {
    let access = Access::REMOTE | Access::LOCAL_WRITE;
    let memory = Memory::alloc(BYTES).expect("memory");
    pd.register(memory, access).wait().expect("a region")
}

impl Program {
    async fn new(hca: Arc<Hca>, name: Option<XrcdName>) -> Self {
        let device = hca.open().await.expect("a device");
        let pd = device.alloc_pd().await.expect("a domain");
        let cq = device.create_cq(256).await.expect("a queue");
        let domain = device.xrcd_of(name).await.expect("an XRC domain");
        let srq = pd.create_xrc_srq(&domain, &cq, 64, 2).await;
        Self {
            mr: memory(&pd),
            _hca: hca,
            device,
            cq,
            srq: srq.expect("a shared receive queue"),
            domain,
        }
    }

    fn post(&mut self, wr_id: u64, at: usize, len: usize) {
        let room = self.mr.slice(at..at + len);
        let recv = Recv::new(wr_id).into(room);
        self.srq.post_recv(recv).expect("room");
    }

    /// What has completed.
    fn polled(&mut self) -> Vec<Wc> {
        let mut some = [Wc::default(); 64];
        self.cq.poll(&mut some).to_vec()
    }
}

async fn connect(address: IpAddr, (client, target): (&Qp, &Qp)) {
    let av = Av::to_gid(1, 0, Gid::from(address));
    for (qp, peer) in [(client, target), (target, client)] {
        let path = Path {
            av,
            dest_qpn: peer.qpn(),
            rq_psn: Psn::new(0x00ff_fffa),
            mtu: Mtu::B1024,
        };
        let access = Access::REMOTE | Access::LOCAL_WRITE;
        qp.init(1, access).await.expect("INIT");
        qp.ready_to_receive(&path).await.expect("RTR");
        // 4.3 s in all, as threads may wait for their processor.
        let attr = QpAttr {
            timeout: Some(17),
            ..QpAttr::rts_of(qp.qp_type(), Psn::new(0x00ff_fffa))
        };
        qp.modify(attr).await.expect("RTS");
    }
}

impl Host {
    fn new() -> Self {
        Self::with([Some(NAME); 3], |_, link| Hca::over(link).build())
    }

    /// With domains of these names, and what `wrap` makes of each program's link. The initiator's is the last.
    fn with(names: [Option<XrcdName>; 3], wrap: impl Fn(usize, Joined) -> Arc<Hca>) -> Self {
        let links = daemon::start::<4>(address());
        Self::over(links.map(joined), names, wrap)
    }

    fn over(
        links: [Joined; 4],
        names: [Option<XrcdName>; 3],
        wrap: impl Fn(usize, Joined) -> Arc<Hca>,
    ) -> Self {
        let address = links[0].addresses()[0];
        let mut hcas = links.into_iter().enumerate().map(|(k, link)| wrap(k, link));
        block_on(async {
            let mut programs = Vec::new();
            for (name, hca) in names.into_iter().zip(&mut hcas) {
                programs.push(Program::new(hca, name).await);
            }
            let hca = hcas.next().expect("the fourth");
            let target = programs[0].domain.create_target_qp().await;
            let target = target.expect("a target");
            let device = hca.open().await.expect("a device");
            let pd = device.alloc_pd().await.expect("a domain");
            let cq = device.create_cq(256).await.expect("a queue");
            let init = QpInit::xrc(&cq).depth(128, 1).inline(64);
            let qp = pd.create_qp(init).await.expect("an initiator");
            connect(address, (&qp, &target)).await;
            let mr = memory(&pd);
            let client = Client {
                _hca: hca,
                mr,
                cq,
                qp,
            };
            Self {
                address,
                programs,
                target,
                client,
            }
        })
    }

    fn srqn(&self, program: usize) -> Srqn {
        self.programs[program].srq.srqn()
    }

    /// Waits until that many of the initiator's requests have completed. Meanwhile all programs poll; what has completed at
    /// them, with the program's number.
    fn settle(&mut self, count: usize) -> (Vec<Wc>, Vec<(usize, Wc)>) {
        let (mut ended, mut came) = (Vec::new(), Vec::new());
        let mut some = [Wc::default(); 64];
        while ended.len() < count {
            ended.extend_from_slice(self.client.cq.poll(&mut some));
            for (number, program) in self.programs.iter_mut().enumerate() {
                came.extend(program.polled().into_iter().map(|wc| (number, wc)));
            }
        }
        (ended, came)
    }

    /// Sends 100 bytes to the queue of that number, for which the program at that place has a receive.
    fn send(&mut self, at: usize, to: Srqn) -> (Wc, Vec<(usize, Wc)>) {
        self.programs[at].post(1, 0, 100);
        let send = Send::new(7).from(self.client.mr.slice(0..100));
        self.run(send.srq(to).signaled().wr)
    }

    /// Posts one, and waits for its completion.
    fn run(&mut self, wr: SendWr<'_>) -> (Wc, Vec<(usize, Wc)>) {
        self.client.qp.post_send(wr).expect("it is posted");
        let (ended, came) = self.settle(1);
        (ended[0], came)
    }
}

/// Goal: each program gets what names its queue, in its own memory, whatever the order; numbers of queues differ.
#[test]
fn every_request_goes_to_the_program_whose_queue_it_names() {
    let mut host = Host::new();
    let numbers = [0, 1, 2].map(|program| host.srqn(program));
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[2] != numbers[0]);
    let order = [1, 1, 2, 0, 2, 1, 0, 0, 1, 2, 2, 0, 1];
    for (k, &to) in order.iter().enumerate() {
        host.client.mr.write(0, &[k as u8; 3000]).expect("in range");
        host.programs[to].post(k as u64, 4096 * k, 3000);
        let send = Send::new(7).from(host.client.mr.slice(0..3000));
        let (wc, came) = host.run(send.srq(host.srqn(to)).signaled().wr);
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Send));
        let [(at, wc)] = came[..] else {
            panic!("one receive: {came:?}");
        };
        assert_eq!((at, wc.wr_id, wc.byte_len), (to, k as u64, 3000));
        assert_eq!((wc.status, wc.qpn), (WcStatus::Success, host.target.qpn()));
        let mut got = vec![0; 3000];
        host.programs[to]
            .mr
            .read(4096 * k, &mut got)
            .expect("in range");
        assert_eq!(got, vec![k as u8; 3000]);
    }
}

/// Goal: memory is checked in the program whose queue is named, and a refusal takes the target to ERR at home too, which its
/// handle is told.
#[test]
fn a_refusal_elsewhere_fails_the_target() {
    let mut host = Host::new();
    let remotes = [1, 2].map(|k| host.programs[k].mr.remote(64));
    for to in [1, 2] {
        let source = host.client.mr.slice(0..100);
        let write = Write::new(1, remotes[to - 1])
            .from(source)
            .srq(host.srqn(to));
        let (wc, _) = host.run(write.signaled().wr);
        assert_eq!(wc.status, WcStatus::Success);
    }
    let write = Write::new(1, remotes[0]).from(host.client.mr.slice(0..100));
    let (wc, _) = host.run(write.srq(host.srqn(2)).signaled().wr);
    assert_eq!(wc.status, WcStatus::RemAccessErr);
    let event = host.programs[0]
        .device
        .next_event()
        .wait()
        .expect("an event");
    assert_eq!(event.event, EventType::QpAccessErr);
    let state = host.target.query().wait().expect("it is there").state;
    assert_eq!(state, QpState::Err);
}

/// Goal: a program that dies takes its own queues away and nothing else: the target is home again, with everything that was
/// executed, and requests for others go on. A request for the dead one is refused.
#[test]
fn a_program_that_dies_takes_only_its_queues_away() {
    let mut host = Host::new();
    let numbers = [0, 1, 2].map(|program| host.srqn(program));
    for to in [2, 0, 1] {
        let (wc, _) = host.send(to, numbers[to]);
        assert_eq!(wc.status, WcStatus::Success);
    }
    // The target visits it now.
    drop(host.programs.remove(1));
    for (at, to) in [(1, 2), (0, 0), (1, 2)] {
        let (wc, came) = host.send(at, numbers[to]);
        assert_eq!(wc.status, WcStatus::Success);
        assert_eq!(came.len(), 1);
    }
    let send = Send::new(7).from(host.client.mr.slice(0..100));
    let (wc, _) = host.run(send.srq(numbers[1]).signaled().wr);
    assert_eq!(wc.status, WcStatus::RemInvReqErr);
}

/// Goal: a number that stands for no queue in the domain is refused: a queue that was destroyed, a queue of a domain of another
/// name, and one of a domain without a name.
#[test]
fn what_is_not_in_the_domain_is_refused() {
    let other = XrcdName {
        device: NAME.device,
        inode: NAME.inode + 1,
    };
    for name in [Some(NAME), Some(other), None] {
        let mut host = Host::with([Some(NAME), name, name], |_, link| Hca::over(link).build());
        let number = host.srqn(1);
        if name == Some(NAME) {
            let Program { srq, .. } = host.programs.remove(1);
            srq.destroy().wait().expect("nothing uses it");
        }
        let send = Send::new(7).from(host.client.mr.slice(0..100));
        let (wc, _) = host.run(send.srq(number).signaled().wr);
        assert_eq!(wc.status, WcStatus::RemInvReqErr, "{name:?}");
    }
}

/// Goal: a program opens a target of another one, sees its events, and keeps it alive when its home closes it; a number that
/// stands for no target of the domain is refused.
#[test]
fn a_target_is_opened_by_other_programs() {
    let host = Host::new();
    let qpn = host.target.qpn();
    let opened = [1, 2].map(|k| {
        let request = host.programs[k].domain.open_target_qp(qpn);
        request.wait().expect("its home has it")
    });
    assert_eq!(opened[0].qpn(), qpn);
    let unknown = Qpn::new(qpn.value() ^ 1);
    let refused = host.programs[1].domain.open_target_qp(unknown).wait();
    assert!(
        matches!(refused, Err(Error::Mismatch { .. })),
        "{refused:?}"
    );
    let refused = opened[0].to_error().wait();
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");

    // Its home closes it, and it goes on.
    let Host {
        address,
        programs,
        target,
        client,
    } = host;
    target.destroy().wait().expect("nothing uses it");
    let domain = programs[0].domain.create_target_qp().wait();
    let mut host = Host {
        address,
        programs,
        target: domain.expect("another"),
        client,
    };
    let numbers = [0, 1, 2].map(|program| host.srqn(program));
    for to in [2, 0, 1] {
        let (wc, _) = host.send(to, numbers[to]);
        assert_eq!(wc.status, WcStatus::Success);
    }
    // With the last handle it ends.
    let [first, second] = opened;
    first.destroy().wait().expect("nothing uses it");
    let again = host.programs[1].domain.open_target_qp(qpn).wait();
    again
        .expect("the other program has it")
        .destroy()
        .wait()
        .expect("nothing uses it");
    second.destroy().wait().expect("nothing uses it");
    while host.programs[1].domain.open_target_qp(qpn).wait().is_ok() {}
}

/// Goal: an event of a target reaches those who have it open, and each sees it once, wherever the target was.
#[test]
fn an_event_of_a_target_is_seen_once() {
    let mut host = Host::new();
    let qpn = host.target.qpn();
    let opened = [1, 2].map(|k| {
        let request = host.programs[k].domain.open_target_qp(qpn);
        request.wait().expect("its home has it")
    });
    let write = Write::new(1, host.programs[1].mr.remote(64)).from(host.client.mr.slice(0..100));
    let (wc, _) = host.run(write.srq(host.srqn(2)).signaled().wr);
    assert_eq!(wc.status, WcStatus::RemAccessErr);
    for program in [1, 2] {
        let event = host.programs[program]
            .device
            .next_event()
            .wait()
            .expect("an event");
        assert_eq!(event.event, EventType::QpAccessErr);
        let of = Subject::Object(opened[program - 1].target().id());
        assert_eq!(event.subject, of);
    }
    // What the home has sent before its answer has come by then.
    let mut more = Vec::new();
    for program in [1, 2] {
        let (tell, told) = channel();
        let device = &host.programs[program].device;
        let asked = device.next_event().issue(move |event| {
            // The device may have been closed.
            let _ = tell.send(event);
        });
        let again = host.programs[program].domain.open_target_qp(qpn).wait();
        again
            .expect("others have it")
            .destroy()
            .wait()
            .expect("nothing uses it");
        more.push((asked, told));
    }
    for (_, told) in &more {
        assert!(told.try_recv().is_err(), "a second event");
    }
}

/// Goal: a target that goes to RESET while it visits another program begins anew there, with another connection.
#[test]
fn a_target_that_is_reset_begins_anew() {
    let mut host = Host::new();
    let numbers = [0, 1, 2].map(|program| host.srqn(program));
    for round in 0..3 {
        for to in [1, 0, 2] {
            let (wc, came) = host.send(to, numbers[to]);
            assert_eq!(wc.status, WcStatus::Success, "round {round}");
            assert_eq!(came.len(), 1);
        }
        block_on(async {
            for qp in [&host.client.qp, &host.target] {
                qp.modify(QpAttr::to(QpState::Reset)).await.expect("RESET");
            }
            connect(host.address, (&host.client.qp, &host.target)).await;
        });
    }
}

/// Goal: rights that a verb takes away from the initiator are taken away wherever the target is.
#[test]
fn rights_change_wherever_the_target_is() {
    let mut host = Host::new();
    let (srqn, remote) = (host.srqn(1), host.programs[1].mr.remote(64));
    for (access, status) in [
        (Access::REMOTE_WRITE, WcStatus::Success),
        (Access::REMOTE_READ, WcStatus::RemInvReqErr),
    ] {
        let change = QpAttr {
            access: Some(access),
            ..QpAttr::default()
        };
        host.target.modify(change).wait().expect("it is in RTS");
        let write = Write::new(1, remote).from(host.client.mr.slice(0..100));
        let (wc, _) = host.run(write.srq(srqn).signaled().wr);
        assert_eq!(wc.status, status, "{access:?}");
    }
}
