//! A live initiator: a hostile target sends what the script says, and accesses memory that it was once given; beside it
//! an honest target, to which the same device is logged in too.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{Either, select};
use ulp_srp::initiator::{
    Command, Data, Initiator, Mechanism, Options, Session, Target as Where, transfer_cdb,
};
use ulp_srp::iu::{
    AerReq, BufferFormats, Cdb, CredReq, DataBuffer, Delta, Detail, LoginRej, LoginRejectReason,
    LoginReq, LoginRsp, Lun, MemoryDescriptor, Residual, ResponseCode, Rsp, Status, Tag,
    TargetLogout, TaskAttribute, TaskFunction, ToTarget,
};
use ulp_srp::target::{Target, TargetConfig};
use verbs_cm::{ConnectRequest, Listener, Manager};
use verbs_core::{Read, SendWr, Write};
use verbs_simulator::Sim;

use super::end::{End, Parts};
use super::units::{Fixed, byte_of};
use super::{BLOCK, Blotter, CANARY, FIXED, Node, port, read, run};
use crate::Script;

const HONEST: &str = "10.0.0.1:5555";
const HOSTILE: &str = "10.0.0.3:5555";
const BLOCKS: u64 = 8;

/// Logins with any answer, units of any kind, RDMA with valid and invalid keys, silence, disconnects at a live
/// initiator. Every command ends once; memory that no command names, or only a command that has ended, is not written;
/// the other session continues; and when both have logged out the device holds as many objects as before.
pub(crate) fn initiator(bytes: &[u8]) -> u32 {
    let script = RefCell::new(Script::new(bytes));
    run(async |sim| {
        let mut world = World::new(sim, &script).await;
        let listener = world.hostile.device.clone();
        let listener = verbs_cm::listen(&listener, HOSTILE)
            .await
            .expect("a free port");
        let ends = RefCell::new(VecDeque::new());
        let device = Arc::clone(&world.hostile.device);
        let welcome = Box::pin(welcome(&device, listener, &script, &ends));
        let play = Box::pin(async {
            world.play(&script, &ends).await;
            world
        });
        match select(welcome, play).await {
            Either::Left(((), _)) => unreachable!("a listener does not end"),
            Either::Right((world, welcome)) => {
                drop(welcome);
                ends.borrow_mut().clear();
                world.end().await;
            }
        }
    });
    script.borrow().steps()
}

/// A connection of the initiator, as the hostile target sees it.
struct Peer {
    end: End,
    /// Requests without an answer, with the memory that they name.
    asked: VecDeque<(Tag, Vec<MemoryDescriptor>)>,
    /// Memory that was named at any time.
    named: Vec<MemoryDescriptor>,
}

type Peers = RefCell<VecDeque<Peer>>;

/// Takes or refuses logins, for ever.
async fn welcome(
    device: &verbs_core::Device,
    mut listener: Listener,
    script: &RefCell<Script<'_>>,
    peers: &Peers,
) {
    loop {
        let request = listener.accept().await;
        if let Some(peer) = answer_login(device, request, script).await {
            let mut peers = peers.borrow_mut();
            peers.push_back(peer);
            if peers.len() > 2 {
                let oldest = peers.pop_front();
                drop(peers);
                drop(oldest);
            }
        }
    }
}

async fn answer_login(
    device: &verbs_core::Device,
    request: ConnectRequest,
    script: &RefCell<Script<'_>>,
) -> Option<Peer> {
    let login = LoginReq::parse_cm(request.private_data()).expect("what an initiator sends");
    let how = script.borrow_mut().below(12);
    if how == 11 {
        let rej = LoginRej {
            reason: LoginRejectReason::from_code(script.borrow_mut().u32()),
            tag: login.tag,
            formats: BufferFormats::DIRECT,
        };
        // It may have given up.
        let _late = request.reject(&rej.unit());
        return None;
    }
    let mut rsp = LoginRsp {
        delta: Delta(8),
        tag: login.tag,
        max_initiator_iu_len: 1024,
        max_target_iu_len: 512,
        formats: login.formats,
        immediate: login.immediate,
        ..LoginRsp::default()
    };
    let mut answer = {
        let mut script = script.borrow_mut();
        match how {
            7 => rsp.delta = Delta(script.u32().cast_signed()),
            8 => rsp.max_initiator_iu_len = script.pick(&[0, 63, 64, 100, 9000, u32::MAX]),
            9 => rsp.max_target_iu_len = script.pick(&[0, 35, 64, 9000, u32::MAX]),
            10 => rsp.formats = BufferFormats::from_bits_retain(script.u16()),
            _ => {}
        }
        let mut answer = rsp.unit().to_vec();
        if how == 6 {
            script.change(&mut answer);
            answer.truncate(196);
        }
        answer
    };
    answer.truncate(196);
    let (parts, qp) = Parts::new(device).await;
    let accepted = request.accept(qp).private_data(&answer).await;
    let connection = accepted.ok()?;
    Some(Peer {
        end: End::new(connection, parts),
        asked: VecDeque::new(),
        named: Vec::new(),
    })
}

/// Memory of a command, and whether that has ended.
struct Lent {
    memory: Arc<Blotter>,
    ended: Arc<AtomicU32>,
}

struct World<'s> {
    sim: &'s Sim,
    client: Node,
    hostile: Node,
    target: Target,
    honest: Session,
    memory: Blotter,
    victim: Option<Session>,
    options: Options,
    lent: Vec<Lent>,
    /// Memory of commands that have ended: no peer may write it.
    retired: Vec<Arc<Blotter>>,
    last: Option<Tag>,
    managed: (u32, Arc<AtomicU32>),
    events: Arc<Mutex<u32>>,
    before: [usize; 8],
}

impl<'s> World<'s> {
    async fn new(sim: &'s Sim, script: &RefCell<Script<'_>>) -> Self {
        let server = Node::new(sim, 1).await;
        let (client, hostile) = (Node::new(sim, 2).await, Node::new(sim, 3).await);
        let config = TargetConfig {
            request_limit: 4,
            buffers: 1,
            buffer_bytes: 4096,
            ..TargetConfig::new(port(1))
        };
        let target = Target::open(server.device, config).await;
        let target = target.expect("a target on a new device");
        let fixed = Arc::new(Fixed::new(BLOCKS, BLOCK, true));
        target.export(1, fixed).await.expect("its first unit");
        target.listen(HONEST).await.expect("a free port");
        let options = Options {
            queue_depth: 2,
            runs_max: 2,
            immediate_max: 0,
            ..Options::new(port(100))
        };
        let at = Where::at(HONEST.parse().expect("an address"), port(1));
        let honest = Initiator::new(&client.device, options).login(at).await;
        let honest = honest.expect("there is room");
        let before = client.hca.object_counts();
        let mut script = script.borrow_mut();
        let mechanisms = [
            Mechanism::FastReg,
            Mechanism::FastReg,
            Mechanism::Request,
            Mechanism::Fmr,
        ];
        let options = Options {
            mechanism: script.pick(&mechanisms),
            channels: 1 + script.below(2) as u8,
            queue_depth: 4,
            pages_max: 4,
            runs_max: 2,
            immediate_max: 512,
            reconnect_timeout: Some(Duration::from_millis(20)),
            backoff: Duration::from_millis(1),
            ..Options::new(port(101))
        };
        Self {
            sim,
            client,
            hostile,
            target,
            honest,
            memory: Blotter::new(),
            victim: None,
            options,
            lent: Vec::new(),
            retired: Vec::new(),
            last: None,
            managed: (0, Arc::default()),
            events: Arc::default(),
            before,
        }
    }

    async fn play(&mut self, script: &RefCell<Script<'_>>, peers: &Peers) {
        loop {
            let what = script.borrow_mut().step(300);
            let Some(what) = what else { return };
            self.step(what, script, peers).await;
            listen(peers);
            self.retire();
        }
    }

    async fn step(&mut self, what: u8, script: &RefCell<Script<'_>>, peers: &Peers) {
        let Some(victim) = &self.victim else {
            return self.login().await;
        };
        match what % 16 {
            0..=3 => self.command(&mut script.borrow_mut()),
            4..=8 => answer(&mut script.borrow_mut(), peers),
            9 => say(&mut script.borrow_mut(), peers),
            10 => reach(&mut script.borrow_mut(), peers),
            11 => {
                let micros = script
                    .borrow_mut()
                    .pick(&[1, 20, 300, 5_000, 700_000, 20_000_000]);
                self.sim.sleep(Duration::from_micros(micros)).await;
            }
            12 => {
                let script = &mut *script.borrow_mut();
                let function = script.pick(&[TaskFunction::ABORT_TASK, TaskFunction::LUN_RESET]);
                let tag = self.last.filter(|_| function == TaskFunction::ABORT_TASK);
                let ended = Arc::clone(&self.managed.1);
                self.managed.0 += 1;
                victim.manage(function, Lun(0), tag, move |_| {
                    ended.fetch_add(1, Relaxed);
                });
            }
            13 => {
                let peer = peers.borrow_mut().pop_front();
                if let Some(peer) = peer
                    && script.borrow_mut().once_in(2)
                {
                    // The initiator may have ended.
                    let _gone = peer.end.connection().disconnect().await;
                }
            }
            14 => {
                let lba = script.borrow_mut().below(BLOCKS as usize) as u64;
                let block = read(&self.honest, FIXED, lba, &self.memory).await;
                assert!(
                    block.iter().all(|&byte| byte == byte_of(lba)),
                    "wrong bytes"
                );
            }
            _ => {
                let is_polite = script.borrow_mut().once_in(2);
                match self.victim.take() {
                    Some(victim) if is_polite => victim.logout().await,
                    victim => drop(victim),
                }
            }
        }
    }

    /// Logs in at the hostile target, which may never answer.
    async fn login(&mut self) {
        let at = Where::at(HOSTILE.parse().expect("an address"), port(3));
        let events = Arc::clone(&self.events);
        let initiator = Initiator::new(&self.client.device, self.options.clone());
        let initiator = initiator.on_event(move |event| {
            // Every event can be formatted.
            let _shown = format!("{event:?}");
            *events.lock().expect("nobody panics with it") += 1;
        });
        self.victim = initiator.login(at).await.ok();
    }

    fn command(&mut self, script: &mut Script<'_>) {
        let Some(victim) = &self.victim else { return };
        let memory = Arc::new(Blotter::new());
        let is_write = script.once_in(2);
        let cdb = transfer_cdb(is_write, script.byte().into(), 1);
        let block = memory.block();
        let data = match (script.below(8), is_write) {
            (7, _) => Data::None,
            (_, true) => Data::Out(&block),
            (_, false) => Data::In(&block),
        };
        let command = Command {
            cdb: Cdb::new(&cdb).expect("it has 16 bytes"),
            lun: Lun(0),
            attribute: TaskAttribute::SIMPLE,
            data,
        };
        let ended = Arc::new(AtomicU32::new(0));
        let end = Arc::clone(&ended);
        let sent = victim.command(&command, move |outcome| {
            // An error has a text, whatever the target has sent.
            let _text = outcome.map_err(|error| error.to_string());
            end.fetch_add(1, Relaxed);
        });
        if let Ok(tag) = sent {
            self.last = Some(tag);
            self.lent.push(Lent { memory, ended });
        } else {
            assert_eq!(ended.load(Relaxed), 0, "a refused command has ended");
        }
    }

    /// Takes back the memory of commands that have ended.
    fn retire(&mut self) {
        let retired = &mut self.retired;
        self.lent.retain(|lent| {
            let ends = lent.ended.load(Relaxed);
            assert!(ends <= 1, "a command has ended {ends} times");
            if ends == 1 {
                // The bytes around its block were never lent.
                lent.memory.get();
                lent.memory.put(&[CANARY; BLOCK as usize]);
                retired.push(Arc::clone(&lent.memory));
            }
            ends == 0
        });
    }

    /// All sides leave.
    async fn end(mut self) {
        if let Some(victim) = self.victim.take() {
            victim.logout().await;
        }
        self.sim.sleep(Duration::from_secs(300)).await;
        self.retire();
        assert_eq!(self.lent.len(), 0, "commands that have not ended");
        let (asked, ended) = (self.managed.0, self.managed.1.load(Relaxed));
        assert_eq!(asked, ended, "task management that has not ended");
        for memory in &self.retired {
            let is_untouched = memory.get() == [CANARY; BLOCK as usize];
            assert!(
                is_untouched,
                "memory of a command that had ended was written"
            );
        }
        let block = read(&self.honest, FIXED, 2, &self.memory).await;
        assert!(block.iter().all(|&byte| byte == byte_of(2)), "wrong bytes");
        assert_eq!(
            self.client.hca.object_counts(),
            self.before,
            "objects of what has ended"
        );
        let counts = Manager::of(&self.client.device).count().await;
        let connections = counts.map(|counts| counts.connections);
        assert_eq!(connections.ok(), Some(1), "connections of what has ended");
        self.honest.logout().await;
        self.target.close().await;
    }
}

/// Takes what the hostile target has received.
fn listen(peers: &Peers) {
    for peer in peers.borrow_mut().iter_mut() {
        for unit in peer.end.received().unwrap_or_default() {
            let Ok(unit) = ToTarget::parse(&unit) else {
                panic!("an initiator sent what is no unit: {unit:02x?}");
            };
            let mut pieces = Vec::new();
            if let ToTarget::Cmd(cmd) = &unit {
                for buffer in [&cmd.data_in, &cmd.data_out] {
                    match buffer {
                        DataBuffer::Direct(piece) => pieces.push(*piece),
                        DataBuffer::Indirect(indirect) => {
                            pieces.push(indirect.table);
                            pieces.extend(indirect.partial.iter());
                        }
                        DataBuffer::None | DataBuffer::Immediate(_) => {}
                    }
                }
            }
            peer.named.extend(&pieces);
            let excess = peer.named.len().saturating_sub(32);
            peer.named.drain(..excess);
            peer.asked.push_back((unit.tag(), pieces));
            if peer.asked.len() > 16 {
                peer.asked.pop_front();
            }
        }
    }
}

/// Answers a request, rightly or not.
fn answer(script: &mut Script<'_>, peers: &Peers) {
    let mut peers = peers.borrow_mut();
    let Some(peer) = peers.back_mut() else { return };
    let at = match peer.asked.len() {
        0 => None,
        len => Some(script.below(len.min(4))),
    };
    let (tag, pieces) = match (at, script.below(8)) {
        (Some(at), 0) => peer.asked[at].clone(),
        (Some(at), 1..=6) => peer.asked.remove(at).unwrap_or_default(),
        _ => (Tag(script.u64()), Vec::new()),
    };
    let mut sense = vec![0x70, 0, 6, 0, 0, 0, 0, 10];
    sense.extend_from_slice(script.take(10));
    let code = ResponseCode::from_code(script.byte());
    let residual = script.pick(&[0, 1, 512, 513, u32::MAX]);
    let rsp = Rsp {
        solicited: script.once_in(2),
        delta: Delta(script.pick(&[1, 1, 1, 0, 2, -1, 100, i32::MAX, i32::MIN])),
        tag,
        status: Status::from_code(script.pick(&[0, 0, 0, 2, 8, 0x28, 0x40, 0xff])),
        data_in: match script.below(4) {
            0 | 1 => Residual::None,
            2 => Residual::Under(residual),
            _ => Residual::Over(residual),
        },
        data_out: Residual::None,
        detail: match script.below(4) {
            0 | 1 => Detail::None,
            2 => Detail::Sense(&sense),
            _ => Detail::Response(code),
        },
    };
    let mut unit = vec![0; 128];
    let Ok(len) = rsp.emit(&mut unit) else { return };
    unit.truncate(len);
    if script.once_in(5) {
        script.change(&mut unit);
    }
    match script.below(6) {
        4 => {
            let key = pieces
                .first()
                .or(peer.named.first())
                .map(|piece| piece.rkey);
            let key = key.unwrap_or(verbs_core::RKey::new(script.u32()));
            let data = peer.end.data();
            let len = unit.len().min(512);
            data.write(0, &unit[..len]).expect("it is in range");
            let send = verbs_core::Send::new(3)
                .from(data.slice(0..len))
                .invalidate(key);
            let send = SendWr::from(send.signaled());
            peer.end.post(send);
        }
        5 => {
            peer.end.send(&unit);
            peer.end.send(&unit);
        }
        _ => peer.end.send(&unit),
    }
}

/// Sends something that no request asked for.
fn say(script: &mut Script<'_>, peers: &Peers) {
    let mut peers = peers.borrow_mut();
    let Some(peer) = peers.back_mut() else { return };
    let delta = Delta(script.pick(&[1, 0, -1, 1000, i32::MAX, i32::MIN]));
    let tag = Tag(script.u16().into());
    match script.below(5) {
        0 => {
            let credit = CredReq {
                delta,
                tag,
                ..CredReq::default()
            };
            peer.end.send(&credit.unit());
        }
        1 => {
            let len = script.below(40);
            let event = AerReq {
                delta,
                tag,
                sense: script.take(len),
                ..AerReq::default()
            };
            let mut unit = [0; 128];
            if let Ok(len) = event.emit(&mut unit) {
                peer.end.send(&unit[..len]);
            }
        }
        2 => peer.end.send(&TargetLogout::default().unit()),
        _ => {
            let len = script.below(100);
            let unit = script.take(len);
            peer.end.send(unit);
        }
    }
}

/// RDMA with a key that a command has named, in range or not.
fn reach(script: &mut Script<'_>, peers: &Peers) {
    let mut peers = peers.borrow_mut();
    let Some(peer) = peers.back_mut() else { return };
    let Some(&piece) = peer.named.get(script.below(peer.named.len().max(1))) else {
        return;
    };
    let mut remote = piece.remote(0);
    let mut len = piece.len.min(512) as usize;
    match script.below(6) {
        4 => remote.addr = remote.addr.wrapping_sub(script.below(64) as u64),
        5 => len += script.below(64),
        _ => {}
    }
    let local = peer.end.data().slice(1024..1024 + len);
    if script.once_in(2) {
        peer.end.post(Write::new(2, remote).from(local).signaled());
    } else {
        peer.end.post(Read::new(2, remote).into(local).signaled());
    }
}
