//! A domain of extended reliable connections that all programs of the host have opened: targets of each of them, and
//! requests of the host elsewhere for the queues of all.
//!
//! The host elsewhere asks a program for a target, as programs do by other means than the connection manager, and sends
//! messages, each to any program's queue. What has to be true: a queue gets what names it, once, in order, as it was sent; what was
//! confirmed has arrived; and a connection goes on as long as its target's home and the programs that it names live.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use verbs_core::xrcd::XrcdName;
use verbs_core::{
    Access, Av, Cq, Error, Gid, Memory, Mr, Mtu, Path, Psn, Qp, QpAttr, QpInit, Recv, Send, Srq,
    Srqn, Wc, Xrcd,
};

use super::place::{Note, Program};
use super::program::{Bundle, MESSAGE, is_local, text, while_alive};
use super::world::{HERE, THERE, World};
use crate::Draw;

/// What programs call the domain.
const NAME: XrcdName = XrcdName {
    device: 1,
    inode: 1,
};
/// Receives that are posted.
const DEPTH: usize = 8;
/// How long the host elsewhere pauses between connections, at most.
const PAUSE: Duration = Duration::from_micros(600);
/// Connections that the host elsewhere has at a time.
const ASKERS: usize = 4;
/// Connections have numbers of their own.
const FIRST: u32 = 1 << 16;

/// What is known of the domain beside the code under test.
#[derive(Default)]
pub(super) struct Domain {
    members: RefCell<BTreeMap<Program, Rc<Member>>>,
    /// What each connection has sent to each program, as far as it was confirmed, and what has arrived.
    flows: RefCell<BTreeMap<(u32, Program), Arrived>>,
    connections: RefCell<u32>,
}

/// Messages of a connection for one program.
#[derive(Default)]
struct Arrived {
    /// The number of each, in the order in which they were sent.
    sent: Vec<u64>,
    /// How many of them were confirmed, and how many have come.
    confirmed: usize,
    came: usize,
}

/// A program that has opened the domain.
struct Member {
    domain: Xrcd,
    srqn: Srqn,
}

impl Domain {
    /// Messages that have arrived.
    pub(super) fn messages(&self) -> u64 {
        let flows = self.flows.borrow();
        flows.values().map(|flow| flow.came as u64).sum()
    }
}

/// Opens the domain and takes what names its queue, for as long as the program lives.
pub(super) async fn member(world: Rc<World>, bundle: Rc<Bundle>) {
    let Ok((domain, srq, cq, mr)) = open(&bundle).await else {
        return;
    };
    let member = Rc::new(Member {
        domain,
        srqn: srq.srqn(),
    });
    let members = &world.domain.members;
    members.borrow_mut().insert(bundle.number(), member);
    let ended = receive(&world, bundle.number(), (srq, cq, mr)).await;
    if let Err(what) = ended {
        world.place.violated(world.sim.now(), what);
    }
}

async fn open(bundle: &Bundle) -> Result<(Xrcd, Srq, Cq, Mr), Error> {
    let (device, pd) = bundle.device();
    let domain = device.open_xrcd(NAME).await?;
    let cq = device.create_cq(2 * DEPTH as u32).await?;
    let srq = pd.create_xrc_srq(&domain, &cq, DEPTH as u32, 1).await?;
    let memory = Memory::alloc(DEPTH * MESSAGE)?;
    let mr = pd.register(memory, Access::LOCAL_WRITE).await?;
    Ok((domain, srq, cq, mr))
}

async fn receive(
    world: &World,
    program: Program,
    (mut srq, mut cq, mr): (Srq, Cq, Mr),
) -> Result<(), String> {
    let place = |slot: usize| mr.slice(slot * MESSAGE..(slot + 1) * MESSAGE);
    for slot in 0..DEPTH {
        let recv = Recv::new(slot as u64).into(place(slot));
        let posted = srq.post_recv(recv);
        posted.map_err(|error| format!("program {program} cannot post: {error}"))?;
    }
    while cq.ready().await.is_ok() {
        let mut out = [Wc::default(); DEPTH];
        for wc in cq.poll(&mut out).to_vec() {
            let slot = wc.wr_id as usize % DEPTH;
            // A message that did not end, as its connection has.
            if wc.is_ok() {
                let mut bytes = vec![0; wc.byte_len as usize];
                let _ = mr.read(slot * MESSAGE, &mut bytes);
                arrived(world, program, &bytes)?;
            }
            if srq
                .post_recv(Recv::new(wc.wr_id).into(place(slot)))
                .is_err()
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A message has come to that program.
fn arrived(world: &World, program: Program, bytes: &[u8]) -> Result<(), String> {
    let numbers = bytes.split_first_chunk().and_then(|(flow, rest)| {
        let number = rest.first_chunk()?;
        Some((u32::from_be_bytes(*flow), u64::from_be_bytes(*number)))
    });
    let got = || format!("program {program} got {} bytes", bytes.len());
    let (flow, number) = numbers.ok_or_else(got)?;
    if bytes != message(flow, number) {
        return Err(format!(
            "program {program}: message {number} of target {flow} is not as it was sent"
        ));
    }
    let mut flows = world.domain.flows.borrow_mut();
    let known = flows.entry((flow, program)).or_default();
    let expected = known.sent.get(known.came);
    if expected != Some(&number) {
        return Err(format!(
            "program {program}: message {number} of target {flow} has come, and {expected:?} was next"
        ));
    }
    known.came += 1;
    let what = [u64::from(flow) << 32 | u64::from(program), number];
    world.place.note(world.sim.now(), Note::Received, what);
    Ok(())
}

/// The bytes of a message: its connection and number, and what follows from them.
fn message(flow: u32, number: u64) -> Vec<u8> {
    let mut bytes = flow.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend(text(flow, number));
    bytes.truncate(MESSAGE);
    bytes
}

/// The host elsewhere connects to targets, one after the other, and sends.
pub(super) async fn ask(world: Rc<World>, bundle: Rc<Bundle>) {
    let mut draw = world.sim.draw();
    while !world.is_over() {
        let pause = draw.duration(Duration::ZERO..=PAUSE);
        world.sim.sleep(pause).await;
        if let Err(what) = connection(&world, &bundle, &mut draw).await {
            world.place.violated(world.sim.now(), what);
        }
    }
}

/// One connection: what was wrong with it, if anything was.
async fn connection(world: &Rc<World>, bundle: &Bundle, draw: &mut Draw) -> Result<(), String> {
    let Some((home, member)) = any(world, draw) else {
        return Ok(());
    };
    let (daemons, kills) = (world.place.daemons(), world.kills.get());
    let flow = {
        let mut connections = world.domain.connections.borrow_mut();
        *connections += 1;
        FIRST + *connections
    };
    let Some((mut qp, mut cq, mr, _target)) = connect(bundle, &member).await else {
        return Ok(());
    };
    let count = draw.within(1..=40);
    for number in 0..count {
        let Some((to, named)) = any(world, draw) else {
            return Ok(());
        };
        let bytes = message(flow, number);
        let _ = mr.write(0, &bytes);
        {
            let mut flows = world.domain.flows.borrow_mut();
            flows.entry((flow, to)).or_default().sent.push(number);
        }
        let send = Send::new(number).from(mr.slice(0..bytes.len()));
        let posted = qp.post_send(send.srq(named.srqn).signaled());
        let wc = match posted {
            Ok(()) => one(world, &mut cq, [home, to]).await,
            Err(_) => None,
        };
        if wc.is_some_and(|wc| wc.is_ok()) {
            let mut flows = world.domain.flows.borrow_mut();
            let known = flows.entry((flow, to)).or_default();
            known.confirmed = known.sent.len();
            continue;
        }
        // Nobody has died, and no daemon, so nothing may fail.
        let is_calm = world.place.daemons() == daemons && world.kills.get() == kills;
        let lives = is_calm && world.is_alive(home) && world.is_alive(to);
        return match lives {
            true => Err(format!(
                "target {flow} of program {home}: message {number} to program {to} ends in {wc:?}, and both are there"
            )),
            false => Ok(()),
        };
    }
    Ok(())
}

/// Any program that has opened the domain and lives.
fn any(world: &World, draw: &mut Draw) -> Option<(Program, Rc<Member>)> {
    let mut members = world.domain.members.borrow_mut();
    members.retain(|&program, _| world.is_alive(program));
    let count = members.len();
    if count == 0 {
        return None;
    }
    let (program, member) = members.iter().nth(draw.below(count))?;
    Some((*program, Rc::clone(member)))
}

/// The next completion. `None` as soon as one of these programs is gone: the host elsewhere has other connections to make.
async fn one(world: &World, cq: &mut Cq, needs: [Program; 2]) -> Option<Wc> {
    loop {
        if let Some(ready) = world.sim.timeout(PAUSE, cq.ready()).await {
            ready.ok()?;
            let mut out = [Wc::default(); 1];
            return cq.poll(&mut out).first().copied();
        }
        if needs.iter().any(|&program| !world.is_alive(program)) {
            return None;
        }
    }
}

/// An initiator here, and a target there that it is connected to. `None` if that program has just ended.
async fn connect(bundle: &Bundle, member: &Member) -> Option<(Qp, Cq, Mr, Qp)> {
    let (device, pd) = bundle.device();
    let cq = device.create_cq(4).await.ok()?;
    let memory = Memory::alloc(MESSAGE).ok()?;
    let mr = pd.register(memory, Access::LOCAL_WRITE).await.ok()?;
    let qp = pd.create_qp(QpInit::xrc(&cq)).await.ok()?;
    let target = member.domain.create_target_qp().await.ok()?;
    for (end, at, peer) in [(&qp, HERE, target.qpn()), (&target, THERE, qp.qpn())] {
        let path = Path {
            av: Av::to_gid(1, 0, Gid::from(at)),
            dest_qpn: peer,
            rq_psn: Psn::new(0x00ff_fffe),
            mtu: Mtu::B1024,
        };
        let rts = QpAttr {
            // 8 ms, and eight of them are longer than a program is without a daemon.
            timeout: Some(11),
            ..QpAttr::rts_of(end.qp_type(), Psn::new(0x00ff_fffe))
        };
        end.init(1, Access::REMOTE).await.ok()?;
        end.ready_to_receive(&path).await.ok()?;
        end.modify(rts).await.ok()?;
    }
    Some((qp, cq, mr, target))
}

/// What was confirmed to the host elsewhere has arrived, where the program is still there.
pub(super) fn judge(world: &World) {
    for (&(flow, program), known) in &*world.domain.flows.borrow() {
        if world.is_alive(program) && known.came < known.confirmed {
            let what = format!(
                "target {flow}: {} messages to program {program} were confirmed, {} have come",
                known.confirmed, known.came
            );
            world.place.violated(world.sim.now(), what);
        }
    }
}

/// Begins what a node does with the domain.
pub(super) fn begin(world: &Rc<World>, bundle: &Rc<Bundle>) {
    let (world, bundle) = (Rc::clone(world), Rc::clone(bundle));
    let sim = world.sim.clone();
    match is_local(bundle.number()) {
        true => sim.spawn(async move {
            let process = bundle.process().cloned();
            while_alive(process.as_deref(), member(world, bundle)).await;
        }),
        false => {
            for _ in 0..ASKERS {
                sim.spawn(ask(Rc::clone(&world), Rc::clone(&bundle)));
            }
        }
    }
}
