//! Goal: an attacker that knows addresses and queue pair numbers, but no keys, changes no byte, crashes nothing, makes
//! nothing grow, and is counted.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::extension::{PacketCounters, Packets};
use hca_sim::link::Route;
use hca_sim::wire::{
    AtomicEth, Bth, BthFlags, Envelope, Extended, Head, ImmDt, Opcode, Packet, ROCE_PORT, Reth,
};
use verbs_core::{
    Access, Av, Cq, Device, Memory, Mr, Mtu, PKey, Path, Pd, Psn, Qp, QpInit, QpState, Qpn, RKey,
    Recv, Send, Wc, WcStatus,
};
use verbs_simulator::{Draw, Sim};

const MALLORY: &str = "10.0.0.66";

/// A packet with an ICRC that is right.
fn seal(src: IpAddr, dst: IpAddr, head: Head, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (src, dst) else {
        unreachable!("the test has IPv4 addresses")
    };
    let packet = Packet { head, payload };
    let mut bytes = vec![0; packet.wire_len()];
    let icrc = Envelope::v4(src, dst, ROCE_PORT).icrc(bytes.len()).unwrap();
    packet.emit(&mut bytes, &icrc).unwrap();
    bytes
}

/// Any headers that an opcode requires, with random numbers in them.
fn extended(opcode: Opcode, draw: &mut Draw) -> Extended {
    let headers = opcode.headers();
    let mut number = || draw.number();
    let rkey = RKey::new(number() as u32);
    let reth = Reth {
        addr: 0x1_0000_0000 + number() % 8192,
        rkey,
        dma_len: (number() % 5000) as u32,
    };
    let atomic = AtomicEth {
        addr: 0x1_0000_0000,
        rkey,
        swap_or_add: number(),
        compare: 0,
    };
    let has = |header| headers.contains(header);
    Extended {
        reth: has(hca_sim::wire::Headers::RETH).then_some(reth),
        atomic: has(hca_sim::wire::Headers::ATOMIC_ETH).then_some(atomic),
        immdt: has(hca_sim::wire::Headers::IMMDT).then_some(ImmDt { imm: 7 }),
        ..Extended::default()
    }
}

/// Two HCAs with a connection between them.
struct Pair {
    devices: [Device; 2],
    cqs: [Cq; 2],
    qps: [Qp; 2],
    mr: Mr,
    _pds: [Pd; 2],
}

async fn connected(hcas: &[Arc<Hca>; 2]) -> Pair {
    let (a, b) = (hcas[0].open().await.unwrap(), hcas[1].open().await.unwrap());
    let (pd_a, pd_b) = (a.alloc_pd().await.unwrap(), b.alloc_pd().await.unwrap());
    let (cq_a, cq_b) = (
        a.create_cq(64).await.unwrap(),
        b.create_cq(64).await.unwrap(),
    );
    let qp_a = pd_a
        .create_qp(QpInit::rc(&cq_a, &cq_a).inline(64))
        .await
        .unwrap();
    let qp_b = pd_b.create_qp(QpInit::rc(&cq_b, &cq_b)).await.unwrap();
    for (qp, hca, peer) in [(&qp_a, &hcas[1], &qp_b), (&qp_b, &hcas[0], &qp_a)] {
        let path = Path {
            av: Av::to_gid(1, 0, hca.gid()),
            dest_qpn: peer.qpn(),
            rq_psn: Psn::new(9),
            mtu: Mtu::B1024,
        };
        qp.init(1, Access::REMOTE | Access::LOCAL_WRITE)
            .await
            .unwrap();
        qp.ready_to_receive(&path).await.unwrap();
        qp.ready_to_send(Psn::new(9)).await.unwrap();
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    let memory = pd_b.register(Memory::alloc(8192).unwrap(), access);
    Pair {
        mr: memory.iova(0x1_0000_0000).await.unwrap(),
        devices: [a, b],
        cqs: [cq_a, cq_b],
        qps: [qp_a, qp_b],
        _pds: [pd_a, pd_b],
    }
}

/// Mallory knows the number of the queue pair and its next PSN, and sends in her own name.
async fn attack(sim: &Sim, target: Qpn, dst: IpAddr) {
    let mut draw = sim.draw();
    let opcodes: Vec<Opcode> = (0..=255).filter_map(Opcode::from_u8).collect();
    let src = MALLORY.parse().unwrap();
    let (tclass, hop_limit) = (0, 64);
    let route = Route {
        src,
        dst,
        tclass,
        hop_limit,
        local: None,
    };
    for n in 0..20_000 {
        let opcode = *draw.pick(&opcodes);
        let ext = extended(opcode, &mut draw);
        let dest_qpn = match draw.below(3) {
            0 => Qpn::new(draw.number() as u32 & 0xff_ffff),
            _ => target,
        };
        let (flags, psn) = (BthFlags::ACK_REQ, Psn::new(9));
        let pkey = PKey::DEFAULT;
        let bth = Bth {
            opcode,
            flags,
            pkey,
            dest_qpn,
            psn,
        };
        if let Ok(head) = Head::new(bth, ext) {
            let payload = vec![0xaa; draw.below(1025)];
            sim.network()
                .inject(&route, &seal(src, dst, head, &payload));
        }
        let mut garbage = vec![0; draw.below(200)];
        draw.fill(&mut garbage);
        sim.network().inject(&route, &garbage);
        if n % 64 == 0 {
            sim.sleep(Duration::from_micros(50)).await;
        }
    }
    sim.sleep(Duration::from_millis(1)).await;
}

fn counters(device: &Device) -> Packets {
    let answer = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&answer);
    let _ = device.call::<PacketCounters>(()).issue(move |counters| {
        *kept.lock().unwrap() = Some(counters.unwrap());
    });
    answer.lock().unwrap().take().unwrap()
}

#[test]
fn who_has_no_keys_changes_nothing() {
    let sim = Sim::new(5);
    let addresses = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
    let mallory = sim.network().attach(&[MALLORY.parse().unwrap()]);
    let hcas = addresses.map(|address| {
        let port = sim.network().attach(&[address]);
        Hca::over(port).clock(sim.clock().clone()).build()
    });
    sim.run(async {
        let Pair {
            devices,
            cqs,
            qps,
            mr,
            _pds,
        } = connected(&hcas).await;
        let ([mut cq_a, mut cq_b], [mut qp_a, mut qp_b]) = (cqs, qps);
        qp_b.post_recv(Recv::new(1).into(mr.slice(0..64))).unwrap();
        attack(&sim, qp_b.qpn(), addresses[1]).await;
        let mut now = vec![0; 8192];
        mr.read(0, &mut now).unwrap();
        assert!(now.iter().all(|&byte| byte == 0), "a byte has changed");
        assert_eq!(qp_b.query().await.unwrap().state, QpState::Rts);
        assert!(cq_b.poll(&mut [Wc::default(); 4]).is_empty());
        let counted = counters(&devices[1]);
        assert!(counted.strangers > 5_000, "{counted:?}");
        assert!(
            counted.malformed + counted.bad_icrcs > 15_000,
            "{counted:?}"
        );

        // The connected ends have not noticed.
        qp_a.post_send(Send::new(2).inline(b"still here").signaled())
            .unwrap();
        cq_a.ready().await.unwrap();
        let mut out = [Wc::default(); 1];
        assert_eq!(cq_a.poll(&mut out)[0].status, WcStatus::Success);
        assert_eq!(cq_b.poll(&mut out)[0].byte_len, 10);
    })
    .unwrap();
    drop(mallory);
}

#[test]
fn numbers_cannot_be_guessed_from_those_before() {
    let sim = Sim::new(6);
    let port = sim.network().attach(&["10.0.0.1".parse().unwrap()]);
    let hca = Hca::over(port).clock(sim.clock().clone()).build();
    sim.run(async {
        let device = hca.open().await.unwrap();
        let pd = device.alloc_pd().await.unwrap();
        let cq = device.create_cq(4).await.unwrap();
        let (mut qpns, mut keys, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..32 {
            let qp = pd.create_qp(QpInit::rc(&cq, &cq)).await.unwrap();
            let mr = pd
                .register(Memory::alloc(8).unwrap(), Access::REMOTE_READ)
                .await
                .unwrap();
            qpns.push(qp.qpn().value());
            keys.push(mr.rkey().value());
            kept.push((qp, mr));
        }
        for numbers in [qpns, keys] {
            let mut steps: Vec<u32> = numbers
                .windows(2)
                .map(|two| two[1].wrapping_sub(two[0]))
                .collect();
            steps.sort_unstable();
            steps.dedup();
            assert!(steps.len() > 28, "{numbers:?}");
        }
    })
    .unwrap();
}
