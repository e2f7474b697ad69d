//! A live HCA: correctly sealed packets with any content, for queue pairs of all services; alongside them a connection
//! of honest ends.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::link::Route;
use hca_sim::wire::{ROCE_PORT, Seal};
use verbs_core::{
    Access, Atomic, Av, Cq, Device, Gid, Memory, Mr, Mtu, Path, Pd, PostError, Psn, QKey, Qp,
    QpAttr, QpInit, QpState, Qpn, RKey, Read, Recv, Remote, Send, Srq, Wc, Write,
};
use verbs_simulator::Sim;

use crate::Script;

/// Bytes of each region.
const LEN: usize = 16 << 10;
/// The contents of the regions that no peer may write.
const CANARY: u8 = 0xa5;
const READABLE: u8 = 0x5a;
const KEY: QKey = QKey(0x1234);

/// Services of the queue pairs that are attacked, and the upper bits of their opcodes.
const SERVICES: [Service; 4] = [Service::Rc, Service::Uc, Service::Ud, Service::Shared];
const CLASSES: [u8; 4] = [0x00, 0x20, 0x60, 0x00];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Rc,
    Uc,
    Ud,
    /// RC, with receives of a shared queue.
    Shared,
}

/// Packets, work requests, keys that are invalidated, resets and time at a live HCA. Memory that was given to no peer
/// is untouched, as is memory that may only be read; every work request ends once; honest ends exchange the right
/// bytes; and when everything was destroyed no object is left.
pub(crate) fn hca(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let sim = Sim::new(1);
    let end = sim.now() + Duration::from_secs(36_000);
    let ended = sim.run_until(end, async {
        let open = |host| open(&sim, host);
        let (hca, device) = open(1).await;
        let (_, friend) = open(2).await;
        let before = hca.object_counts();
        let mut world = World::new(&sim, &device, &friend).await;
        while let Some(what) = script.step(400) {
            world.step(what, &mut script).await;
            world.drain();
        }
        world.end().await;
        // Waits for what still belonged to a message that was under way.
        sim.sleep(Duration::from_secs(10)).await;
        assert_eq!(hca.object_counts(), before, "objects that are left");
    });
    ended.expect("everything ends");
    script.steps()
}

async fn open(sim: &Sim, host: u8) -> (Arc<Hca>, Device) {
    let port = sim.network().attach(&[address(host)]);
    let hca = Hca::over(port).clock(sim.clock().clone()).build();
    let device = hca.open().await.expect("a device on a simulated network");
    (hca, device)
}

fn address(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

fn path(host: u8, qpn: Qpn, psn: u32) -> Path {
    Path {
        av: Av::to_gid(1, 0, Gid::from(address(host))),
        dest_qpn: qpn,
        rq_psn: Psn::new(psn),
        mtu: Mtu::B1024,
    }
}

/// A queue pair that is attacked.
struct Victim {
    service: Service,
    qp: Qp,
    psn: u32,
}

struct World<'s> {
    sim: &'s Sim,
    victims: Vec<Victim>,
    honest: [Qp; 2],
    srq: Srq,
    cq: Cq,
    /// The completion queue of the friend's queue pair.
    far: Cq,
    open: Mr,
    canary: Mr,
    readable: Mr,
    far_memory: Mr,
    pd: Pd,
    _far_pd: Pd,
    seal: Seal,
    /// Work requests that have not completed, and those of the shared receive queue.
    posted: BTreeSet<u64>,
    shared: BTreeSet<u64>,
    next: u64,
}

impl<'s> World<'s> {
    async fn new(sim: &'s Sim, device: &Device, friend: &Device) -> Self {
        let pd = device.alloc_pd().await.expect("a domain");
        let cq = device.create_cq(1024).await.expect("a queue");
        let open = region(&pd, remote() | Access::LOCAL_WRITE | Access::MW_BIND).await;
        let canary = region(&pd, Access::LOCAL_WRITE).await;
        let readable = region(&pd, Access::REMOTE_READ).await;
        canary
            .memory()
            .fill(0..LEN, CANARY)
            .expect("it is in range");
        readable
            .memory()
            .fill(0..LEN, READABLE)
            .expect("it is in range");
        let srq = pd.create_srq(64, 1).await.expect("a queue");
        let far_pd = friend.alloc_pd().await.expect("a domain");
        let far = friend.create_cq(64).await.expect("a queue");
        let far_memory = region(&far_pd, remote() | Access::LOCAL_WRITE).await;
        let near_qp = pd.create_qp(QpInit::rc(&cq, &cq).depth(8, 8)).await;
        let far_qp = far_pd.create_qp(QpInit::rc(&far, &far).depth(8, 8)).await;
        let honest = [
            near_qp.expect("a queue pair"),
            far_qp.expect("a queue pair"),
        ];
        for (own, host) in [(0, 2), (1, 1)] {
            let (qp, peer) = (&honest[own], &honest[1 - own]);
            qp.init(1, remote()).await.expect("it is new");
            let path = path(host, peer.qpn(), 77);
            qp.ready_to_receive(&path).await.expect("it is INIT");
            qp.ready_to_send(Psn::new(77)).await.expect("it is RTR");
        }
        let victims = victims(&pd, &cq, &srq).await;
        let seal = Seal::new(address(3), address(1), ROCE_PORT);
        let mut world = Self {
            sim,
            victims,
            honest,
            srq,
            cq,
            far,
            open,
            canary,
            readable,
            far_memory,
            pd,
            _far_pd: far_pd,
            seal: seal.expect("addresses of one family"),
            posted: BTreeSet::new(),
            shared: BTreeSet::new(),
            next: 0,
        };
        for at in 0..SERVICES.len() {
            world.connect(at).await;
        }
        world
    }

    /// Takes a queue pair in RESET into service.
    async fn connect(&mut self, at: usize) {
        let Victim { service, qp, psn } = &self.victims[at];
        if *service == Service::Ud {
            qp.init_datagram(1, KEY).await.expect("it is RESET");
            qp.ready_to_receive_datagrams().await.expect("it is INIT");
        } else {
            let access = if *service == Service::Uc {
                Access::LOCAL_WRITE | Access::REMOTE_WRITE
            } else {
                remote() | Access::LOCAL_WRITE
            };
            qp.init(1, access).await.expect("it is RESET");
            let path = path(3, Qpn::new(0x11), *psn);
            qp.ready_to_receive(&path).await.expect("it is INIT");
        }
        qp.ready_to_send(Psn::new(*psn)).await.expect("it is RTR");
    }

    async fn step(&mut self, what: u8, script: &mut Script<'_>) {
        match what % 16 {
            0..=8 => self.packet(script),
            9 | 10 => self.post(script),
            11 | 12 => self.receive(script),
            13 => {
                let micros = script.pick(&[1, 50, 5_000, 3_000_000]);
                self.sim.sleep(Duration::from_micros(micros)).await;
            }
            14 => self.restart(script.below(SERVICES.len())).await,
            _ if script.once_in(2) => self.exchange().await,
            _ => {
                // The key is invalidated, whatever is under way.
                let access = remote() | Access::LOCAL_WRITE | Access::MW_BIND;
                self.open = region(&self.pd, access).await;
            }
        }
        if what & 0x30 == 0 {
            // Packets under way arrive.
            self.sim.sleep(Duration::from_micros(20)).await;
        }
    }

    fn packet(&mut self, script: &mut Script<'_>) {
        let bytes = self.a_packet(script);
        let icrc = self.seal.icrc(0, &bytes);
        let packet = [&bytes[..], &icrc.to_le_bytes()].concat();
        let route = Route {
            src: address(3),
            dst: address(1),
            tclass: script.below(4) as u8,
            hop_limit: 64,
            local: None,
        };
        self.sim.network().inject(&route, &packet);
    }

    /// From the BTH to the last byte before the ICRC.
    fn a_packet(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let at = script.below(SERVICES.len());
        let low = script.byte() & 0x1f;
        let opcode = match script.below(16) {
            13 => script.byte(),
            14 => 0x80 | low,
            15 => 0x40 | low,
            _ => CLASSES[at] | low,
        };
        let own = self.victims[at].psn;
        let psn = match script.below(8) {
            5 => script.u32(),
            6 => own.wrapping_sub(script.below(8) as u32),
            7 => own.wrapping_add(script.below(5) as u32),
            _ => own,
        } & 0x00ff_ffff;
        if psn == own && !script.once_in(3) {
            self.victims[at].psn = (own + 1) & 0x00ff_ffff;
        }
        let qpn = match script.below(32) {
            30 => 0x00ff_ffff,
            31 => script.below(4) as u32,
            _ => self.victims[at].qp.qpn().value(),
        };
        let flags = script.pick(&[0x40, 0x40, 0, 0x10, 0x20, 0x30, 0xff]);
        let mut bytes = vec![opcode, flags, 0xff, 0xff, 0];
        bytes.extend_from_slice(&qpn.to_be_bytes()[1..]);
        bytes.push(script.below(2) as u8 * 0x80);
        bytes.extend_from_slice(&psn.to_be_bytes()[1..]);
        if opcode >> 5 == 3 {
            bytes.extend_from_slice(&KEY.0.to_be_bytes());
            bytes.extend_from_slice(&[0, 0, 0, 0x11]);
        }
        self.extend(script, opcode & 0x1f, &mut bytes);
        let len = match script.below(8) {
            0 | 1 => 0,
            2 => script.below(16),
            3 => usize::from(script.u16()) % 4200,
            _ => 1024,
        };
        bytes.resize((bytes.len() + len).next_multiple_of(4), 0x77);
        if script.once_in(12) {
            let place = usize::from(script.u16()) % bytes.len();
            bytes[place] = script.byte();
        }
        if script.once_in(24) {
            bytes.truncate(12.max(usize::from(script.u16()) % bytes.len()));
        }
        bytes
    }

    /// The headers that go with an opcode.
    fn extend(&self, script: &mut Script<'_>, low: u8, bytes: &mut Vec<u8>) {
        let region = [&self.open, &self.open, &self.canary, &self.readable][script.below(4)];
        let base = region.remote(0);
        let addr = match script.below(8) {
            5 => script.u64(),
            6 => base.addr.wrapping_add(LEN as u64 - script.below(64) as u64),
            7 => u64::MAX - u64::from(script.u16()),
            _ => base.addr + u64::from(script.u16()) % (LEN as u64 / 2),
        };
        let rkey = match script.below(8) {
            6 => script.u32(),
            7 => region.lkey().value(),
            _ => base.rkey.value(),
        };
        let len = match script.below(8) {
            6 => script.u32(),
            7 => script.pick(&[u32::MAX, 0x8000_0000, 0x7fff_ffff]),
            _ => u32::from(script.u16()) % 5000,
        };
        match low {
            0x06 | 0x0a..=0x0c | 0x1c | 0x1d => {
                bytes.extend_from_slice(&addr.to_be_bytes());
                bytes.extend_from_slice(&rkey.to_be_bytes());
                bytes.extend_from_slice(&len.to_be_bytes());
            }
            0x0d | 0x0f..=0x11 => {
                let kinds = [0, 0x1f, 0x20, 0x3f, 0x60, 0x61, 0x63, 0x64, 0x65, 0xff];
                bytes.extend_from_slice(&[script.pick(&kinds), 0, 0, script.byte()]);
            }
            0x12 => {
                bytes.extend_from_slice(&[0, 0, 0, script.byte()]);
                bytes.extend_from_slice(&script.array::<8>());
            }
            0x13 | 0x14 => {
                let addr = if script.once_in(4) { addr } else { addr & !7 };
                bytes.extend_from_slice(&addr.to_be_bytes());
                bytes.extend_from_slice(&rkey.to_be_bytes());
                bytes.extend_from_slice(&script.array::<16>());
            }
            _ => {}
        }
        if matches!(low, 0x03 | 0x05 | 0x09 | 0x0b | 0x16 | 0x17) || script.once_in(12) {
            let key = if script.once_in(2) {
                self.open.rkey().value()
            } else {
                script.u32()
            };
            bytes.extend_from_slice(&key.to_be_bytes());
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Posts a request on a queue that is attacked.
    fn post(&mut self, script: &mut Script<'_>) {
        let number = self.number();
        let remote = Remote {
            addr: script.u64() & !7,
            rkey: RKey::new(script.u32()),
        };
        let local = |len| self.open.slice(0..len);
        let len = usize::from(script.u16()) % 6000;
        let qp = &mut self.victims[script.below(2) * 3].qp;
        let posted = match script.below(4) {
            0 => qp.post_send(Read::new(number, remote).into(local(len)).signaled()),
            1 => qp.post_send(Write::new(number, remote).from(local(len)).signaled()),
            2 => qp.post_send(Send::new(number).from(local(len)).signaled()),
            _ => {
                let atomic = Atomic::fetch_add(number, remote, 3).into(local(8));
                qp.post_send(atomic.signaled())
            }
        };
        self.count(number, posted);
    }

    fn count(&mut self, number: u64, posted: Result<(), PostError>) {
        if posted.is_ok() {
            self.posted.insert(number);
        }
    }

    /// Posts receives.
    fn receive(&mut self, script: &mut Script<'_>) {
        let at = script.below(SERVICES.len());
        for _ in 0..1 + script.below(4) {
            let number = self.number();
            let len = script.pick(&[4096, 1100, 256, 8, 0]);
            let recv = Recv::new(number).into(self.open.slice(LEN / 2..LEN / 2 + len));
            if self.victims[at].service == Service::Shared {
                if self.srq.post_recv(recv).is_ok() {
                    self.shared.insert(number);
                }
            } else {
                let posted = self.victims[at].qp.post_recv(recv);
                self.count(number, posted);
            }
        }
    }

    /// Takes completions: each belongs to a request that has not completed yet.
    fn drain(&mut self) {
        let mut wcs = [Wc::default(); 64];
        loop {
            let polled = self.cq.poll(&mut wcs);
            if polled.is_empty() {
                return;
            }
            for wc in polled.iter() {
                let is_own = self.posted.remove(&wc.wr_id) || self.shared.remove(&wc.wr_id);
                assert!(is_own, "a completion of nothing: {wc:?}");
            }
        }
    }

    /// Takes a queue pair through ERR, where all its requests end, into service again.
    async fn restart(&mut self, at: usize) {
        self.stop(at).await;
        let victim = &mut self.victims[at];
        victim.psn = (victim.psn + 500) & 0x00ff_ffff;
        let reset = QpAttr::to(QpState::Reset);
        victim.qp.modify(reset).await.expect("it is ERR");
        self.connect(at).await;
    }

    async fn stop(&mut self, at: usize) {
        let err = QpAttr::to(QpState::Err);
        // It may be in that state already.
        let _there = self.victims[at].qp.modify(err).await;
        self.drain();
    }

    /// The honest ends send, write and read.
    async fn exchange(&mut self) {
        let mark = [self.next.to_le_bytes()[0]; 64];
        let number = self.number();
        self.far_memory.write(0, &mark).expect("it is in range");
        // The exchange is in a region of its own, which is not attacked.
        let landing = region(&self.pd, Access::LOCAL_WRITE).await;
        let recv = Recv::new(number).into(landing.slice(0..64));
        self.honest[0].post_recv(recv).expect("there is room");
        let send = Send::new(1).from(self.far_memory.slice(0..64)).signaled();
        self.honest[1].post_send(send).expect("there is room");
        let fetched = self.number();
        let read = Read::new(fetched, self.far_memory.remote(0)).into(landing.slice(64..128));
        self.honest[0]
            .post_send(read.signaled())
            .expect("there is room");
        self.posted.extend([number, fetched]);
        let mut waited = 0;
        while self.posted.contains(&number) || self.posted.contains(&fetched) {
            waited += 1;
            assert!(waited < 1000, "honest ends that hear nothing of each other");
            self.sim.sleep(Duration::from_micros(10)).await;
            self.drain();
        }
        let mut wcs = [Wc::default(); 8];
        let done = self.far.poll(&mut wcs);
        assert!(done.iter().all(|wc| wc.is_ok()), "{done:?}");
        let mut got = [0; 128];
        landing.read(0, &mut got).expect("it is in range");
        assert_eq!(
            (&got[..64], &got[64..]),
            (&mark[..], &mark[..]),
            "wrong bytes"
        );
    }

    async fn end(mut self) {
        self.exchange().await;
        for at in 0..SERVICES.len() {
            self.stop(at).await;
        }
        // Operations under way end with their retries.
        self.sim.sleep(Duration::from_secs(20)).await;
        self.drain();
        assert!(
            self.posted.is_empty(),
            "requests that do not end: {:?}",
            self.posted
        );
        for (region, byte, what) in [
            (&self.canary, CANARY, "memory without remote rights"),
            (&self.readable, READABLE, "memory that may be read only"),
        ] {
            let mut bytes = vec![0; LEN];
            region.read(0, &mut bytes).expect("it is in range");
            assert!(bytes.iter().all(|&b| b == byte), "{what} was written");
        }
    }
}

fn remote() -> Access {
    Access::REMOTE | Access::FLUSH_GLOBAL
}

async fn region(pd: &Pd, access: Access) -> Mr {
    let memory = Memory::alloc(LEN).expect("memory");
    pd.register(memory, access).await.expect("a region")
}

/// A queue pair of each service, new.
async fn victims(pd: &Pd, cq: &Cq, srq: &Srq) -> Vec<Victim> {
    let mut victims = Vec::new();
    for service in SERVICES {
        let init = match service {
            Service::Rc => QpInit::rc(cq, cq).sges(2, 2).inline(64),
            Service::Uc => QpInit::uc(cq, cq),
            Service::Ud => QpInit::ud(cq, cq),
            Service::Shared => QpInit::rc(cq, cq).srq(srq),
        };
        let qp = pd.create_qp(init.depth(16, 16)).await;
        let qp = qp.expect("a queue pair");
        victims.push(Victim {
            service,
            qp,
            psn: 1000,
        });
    }
    victims
}
