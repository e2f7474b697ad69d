//! Random work over a bad wire: whatever is lost, repeated or late, every byte and every completion is as
//! without, and each work request completes once, in order.

use verbs_core::WcOpcode;

use super::*;

/// Of each side: where messages come from, where the peer WRITEs and READs, where SENDs arrive.
const SLOT: usize = 0x2000;
const LOCAL: usize = 0;
const TARGET: usize = 0x4_0000;
const ROOM: usize = 0x8_0000;
const CELL: usize = 0xf_0000;
const OPS: usize = 24;

/// What one side was asked to do, and what must come of it.
#[derive(Default)]
struct Plan {
    /// Signalled work requests, in order.
    sends: Vec<(u64, WcOpcode, u32)>,
    /// Receives of the peer, in order: bytes, immediate data, opcode.
    receives: Vec<(u32, Option<u32>, WcOpcode)>,
    /// At the peer, and here.
    there: Vec<(usize, Vec<u8>)>,
    here: Vec<(usize, Vec<u8>)>,
    added: u64,
}

/// Draws work for one side and posts it.
fn draw(pair: &mut Pair, side: usize) -> Plan {
    let mut plan = Plan::default();
    let mtu = pair.ends[side].path.mtu.bytes();
    let mut receives = 0;
    for i in 0..OPS {
        let rng = &mut pair.rng;
        let len = match rng.within(0..4) {
            0 => rng.within(0..8),
            1 => mtu * rng.within(1..4) + rng.within(0..3) - 1,
            _ => rng.within(0..(4 * mtu).min(SLOT as u32)),
        } as usize;
        let (kind, cut, flags) = (
            rng.within(0..7),
            rng.within(0..len as u32 + 1),
            rng.within(0..16),
        );
        let number = (side * 1000 + i) as u64;
        let data = pattern(number, len);
        let (local, target) = (LOCAL + i * SLOT, TARGET + i * SLOT);
        let peer = &pair.ends[1 - side];
        let me = &pair.ends[side];
        let imm = (kind == 1 || kind == 3).then_some(number as u32 ^ 0xabcd);
        let to = peer.remote(target);
        let (op, opcode) = match kind {
            0 => (SendOp::Send, WcOpcode::Send),
            1 => (SendOp::SendWithImm(imm.unwrap()), WcOpcode::Send),
            2 => (SendOp::Write(to), WcOpcode::RdmaWrite),
            3 => (SendOp::WriteWithImm(to, imm.unwrap()), WcOpcode::RdmaWrite),
            4 | 5 => (SendOp::Read(to), WcOpcode::RdmaRead),
            _ => {
                let remote = peer.remote(CELL);
                (SendOp::FetchAdd { remote, add: 3 }, WcOpcode::FetchAdd)
            }
        };
        let mut bytes = len as u32;
        match kind {
            4 | 5 => {
                peer.memory.write(target, &data).unwrap();
                plan.here.push((local, data));
            }
            6 => {
                bytes = 8;
                plan.here.push((local, plan.added.to_ne_bytes().to_vec()));
                plan.added += 3;
            }
            _ => {
                me.memory.write(local, &data).unwrap();
                let place = if kind < 2 {
                    ROOM + receives * SLOT
                } else {
                    target
                };
                plan.there.push((place, data));
            }
        }
        if matches!(kind, 0 | 1 | 3) {
            receives += 1;
            let opcode = if kind == 3 {
                WcOpcode::RecvRdmaWithImm
            } else {
                WcOpcode::Recv
            };
            plan.receives.push((len as u32, imm, opcode));
        }
        let cut = cut.min(bytes);
        let sges = [
            me.sge(local, cut),
            me.sge(local + cut as usize, bytes - cut),
        ];
        let mut wr = wr(number, op, &sges);
        wr.flags.set(SendFlags::SIGNALED, flags & 3 != 0);
        wr.flags.set(SendFlags::FENCE, flags & 12 == 0);
        if flags & 3 != 0 {
            plan.sends.push((number, opcode, bytes));
        }
        pair.ends[side].post(wr);
    }
    plan
}

fn check(pair: &mut Pair, side: usize, plan: &Plan, seed: u64) {
    let me = &mut pair.ends[side];
    let done: Vec<_> = me
        .poll_sends()
        .iter()
        .map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len))
        .collect();
    let expected: Vec<_> = plan
        .sends
        .iter()
        .map(|&(id, opcode, len)| (id, WcStatus::Success, opcode, len))
        .collect();
    assert_eq!(done, expected, "seed {seed} side {side}");
    for (offset, data) in &plan.here {
        assert_eq!(
            &me.bytes(*offset, data.len()),
            data,
            "seed {seed} side {side} at {offset:#x}"
        );
    }
    let peer = &mut pair.ends[1 - side];
    let received: Vec<_> = peer
        .poll_recvs()
        .iter()
        .map(|wc| (wc.wr_id, wc.status, wc.byte_len, wc.immediate(), wc.opcode))
        .collect();
    let expected: Vec<_> = (0..)
        .zip(&plan.receives)
        .map(|(id, &(len, imm, opcode))| (id, WcStatus::Success, len, imm, opcode))
        .collect();
    assert_eq!(received, expected, "seed {seed} side {side}");
    for (offset, data) in &plan.there {
        assert_eq!(
            &peer.bytes(*offset, data.len()),
            data,
            "seed {seed} side {side} at {offset:#x}"
        );
    }
    assert_eq!(
        peer.memory.load_u64(CELL).unwrap(),
        plan.added,
        "each atomic once"
    );
    assert!(me_is_quiet(&pair.ends[side]));
}

fn me_is_quiet(machine: &Machine) -> bool {
    machine.rc.is_drained() && machine.rc.deadline().is_none() && !machine.dead
}

/// Work for both sides under that weather; what it took.
fn storm(seed: u64, weather: Weather) -> Vec<(usize, bool, Vec<u8>)> {
    let mut pair = Pair::with(seed % 3 == 0, seed);
    let mtu = Mtu::ALL[pair.rng.within(0..5) as usize];
    let mtu = if mtu == Mtu::B4096 { Mtu::B2048 } else { mtu };
    let psns = [0, 1].map(|_| match pair.rng.within(0..2) {
        0 => 0xff_fff0,
        _ => pair.rng.within(0..1 << 24),
    });
    let depth = pair.rng.within(1..5) as u8;
    let room = pair.rng.within(1..20) as usize;
    for (side, end) in pair.ends.iter_mut().enumerate() {
        end.path.mtu = mtu;
        (end.path.sq_psn, end.path.rq_psn) = (psns[side], psns[1 - side]);
        (end.path.max_rd_atomic, end.path.max_dest_rd_atomic) = (depth, depth);
        (end.path.retry_cnt, end.path.rnr_retry, end.path.timeout) = (7, 7, 5);
        end.room = room;
    }
    pair.weather = weather;
    let plans = [0, 1].map(|side| draw(&mut pair, side));
    // Receives come late and in parts, so that some requests find none.
    let mut posted = [0; 2];
    loop {
        for side in 0..2 {
            if posted[side] < OPS
                && (pair.rng.within(0..40) == 0 || !pair.wire.is_empty() && posted[side] == 0)
            {
                let me = &mut pair.ends[side];
                let at = ROOM + posted[side] * SLOT;
                let sges = [me.sge(at, 5), me.sge(at + 5, SLOT as u32 - 5)];
                // WRITEs with immediate take one as well, but leave its memory alone.
                me.post_recv(posted[side] as u64, &sges);
                posted[side] += 1;
            }
        }
        pair.step();
        if pair.ends.iter().all(|end| end.sends.next().is_none()) || pair.log.len() > 100_000 {
            break;
        }
    }
    pair.run();
    for (side, plan) in plans.iter().enumerate() {
        check(&mut pair, side, plan, seed);
    }
    pair.log
}

/// Goal: no weather changes what comes of the work. Method: 300 seeds that draw operations, sizes, pieces,
/// flags, MTU, numbers near their end, depth, the outlet's room, when receives are posted, and what the
/// wire loses, repeats and delays. SENDs arrive in the memory of their receive, which is why that is found
/// by its place in the order.
#[test]
fn work_survives_any_weather() {
    for seed in 0..300 {
        let weather = Weather {
            loss: [0, 1, 5, 15][seed as usize % 4],
            repeats: [0, 10, 0][seed as usize % 3],
            delays: [0, 0, 0, 10, 30][seed as usize % 5],
        };
        storm(seed, weather);
    }
}

/// Goal: a seed decides a run, packet by packet, and what was sent before says so.
#[test]
fn a_seed_decides_the_run() {
    let weather = Weather {
        loss: 10,
        repeats: 10,
        delays: 10,
    };
    let log = storm(7, weather);
    assert_eq!(log, storm(7, weather));
    let mut seen = std::collections::BTreeSet::new();
    let mut repeated = 0;
    for (from, again, bytes) in &log {
        let opcode = bytes[0];
        let psn = &bytes[9..12];
        // Acknowledgements are made anew each time.
        if opcode != 0x11 && !seen.insert((*from, (0x0d..=0x12).contains(&opcode), psn)) {
            assert!(again, "{opcode:#x} {psn:?} was sent before");
            repeated += 1;
        }
    }
    assert!(repeated > 10, "{repeated}");
}
