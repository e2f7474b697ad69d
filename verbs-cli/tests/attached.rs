//! HCAs of several processes on the subnet that `verbs subnet` hosts: messages between them, groups, and what
//! becomes of a port whose process dies.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "attached/by_hand.rs"]
mod by_hand;
mod child;
#[path = "../../hca-sim/tests/subnet/manager.rs"]
mod manager;

use std::env;
use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hca_sim::Hca;
use hca_sim::extension::PacketCounters;
use hca_sim::link::fabric::AttachError;
use hca_sim::link::fabric::message::Refusal;
use verbs_core::mad::sm::{LinkState, NodeInfo, NodeInfoView, attribute};
use verbs_core::mad::{AttributeId, Delivery};
use verbs_core::wr::Datagram;
use verbs_core::{
    Access, Av, Cq, Device, EventType, Gid, Lid, Memory, Mr, Mtu, Path, Pd, PortState, Psn, QKey,
    Qp, QpAttr, QpInit, QpState, QpType, Qpn, Recv, Send, Wc,
};

use child::{Guarded, started};
use manager::{ADAPTERS, Manager, SPREAD, Smp};

const NET: &str = "Switch 4 \"S1\"\n[1] \"A\"[1]\n[2] \"B\"[1]\n[3] \"S2\"[1]\n\
                   Switch 4 \"S2\"\n[2] \"C\"[1]\nHca 1 \"A\"\nHca 1 \"B\"\nHca 1 \"C\"\n";
const QKEY: QKey = QKey(0x1111_2222);
const ROOM: usize = 1 << 18;
/// Bytes of a long message.
const LONG: usize = 1 << 16;
/// The number of each send of a conversation; those of its receives are smaller.
const SENT: u64 = 100;
/// After which a conversation is stuck.
const STUCK: Duration = Duration::from_secs(60);
/// Where the other process finds the subnet, and whom it sends to.
const SOCKET: &str = "VERBS_TEST_SOCKET";
const DATAGRAM: &str = "VERBS_TEST_QPN";

/// A hosted subnet, ended when it goes.
struct Hosted {
    _child: Guarded,
    _folder: tempfile::TempDir,
    socket: PathBuf,
}

impl Hosted {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (socket, file) = (folder.path().join("subnet"), folder.path().join("net"));
        fs::write(&file, NET).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbs"));
        command.arg("subnet").arg(&file);
        let (child, line) = started(command.env("VERBS_SUBNET", &socket));
        assert!(line.starts_with("subnet with"), "{line}");
        Self {
            _child: child,
            _folder: folder,
            socket,
        }
    }
}

/// An HCA with a device, and the events that it has raised.
struct Node {
    device: Device,
    gid: Gid,
    events: Arc<Mutex<Vec<EventType>>>,
}

impl Node {
    fn attach(socket: &FilePath, name: &str) -> Result<Self, AttachError> {
        let hca = Hca::subnet(socket, name, 1)?.build();
        let device = hca.open().wait().unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        device.on_event(move |event| seen.lock().unwrap().push(event.event));
        Ok(Self {
            gid: hca.gid(),
            device,
            events,
        })
    }

    fn state(&self) -> PortState {
        self.device.query_port(1).wait().unwrap().state
    }

    /// How often the link had no room.
    fn blocked(&self) -> u64 {
        self.device
            .call::<PacketCounters>(())
            .wait()
            .unwrap()
            .link
            .blocked
    }

    /// Waits until the port is in that state, as messages of the host are taken in by and by.
    fn wait_for(&self, state: PortState) {
        eventually(|| self.state() == state);
    }
}

/// Waits for something that happens by itself.
#[track_caller]
fn eventually(mut has_happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !has_happened() {
        assert!(begin.elapsed() < STUCK, "it does not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
}

impl End {
    fn new(node: &Node, qp_type: QpType) -> Self {
        let pd = node.device.alloc_pd().wait().unwrap();
        let cq = node.device.create_cq(64).wait().unwrap();
        let memory = Memory::alloc(2 * ROOM).unwrap();
        let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
        let init = QpInit::of(qp_type, &cq, &cq).inline(64).depth(16, 32);
        let qp = pd.create_qp(init).wait().unwrap();
        Self {
            qp,
            cq,
            mr,
            _pd: pd,
        }
    }

    /// For datagrams, with receives.
    fn datagrams(node: &Node) -> Self {
        let mut end = Self::new(node, QpType::Ud);
        end.qp
            .modify(QpAttr::init_datagram(1, QKEY))
            .wait()
            .unwrap();
        for wr_id in 0..8 {
            let at = ROOM + 256 * wr_id as usize;
            let recv = Recv::new(wr_id).into(end.mr.slice(at..at + 256));
            end.qp.post_recv(recv).unwrap();
        }
        end.qp.modify(QpAttr::to(QpState::Rtr)).wait().unwrap();
        let ready = QpAttr::rts_of(QpType::Ud, Psn::new(0));
        end.qp.modify(ready).wait().unwrap();
        end
    }

    fn connect(&mut self, lid: Lid, peer: Qpn) {
        let path = Path {
            av: Av::to_lid(1, lid),
            dest_qpn: peer,
            rq_psn: Psn::new(0),
            mtu: Mtu::B4096,
        };
        self.qp
            .modify(QpAttr::init(1, Access::empty()))
            .wait()
            .unwrap();
        self.qp.modify(QpAttr::rtr(&path)).wait().unwrap();
        // Nothing is sent again by itself: what is lost stays so.
        let ready = QpAttr {
            timeout: Some(0),
            ..QpAttr::rts(Psn::new(0))
        };
        self.qp.modify(ready).wait().unwrap();
    }

    /// Sends that many messages of 64 KiB and receives as many, 16 at a time and 32 receives ahead of them.
    fn converse(&mut self, count: usize) -> Conversation<'_> {
        for wr_id in 0..32 {
            self.receive_long(wr_id);
        }
        Conversation {
            end: self,
            to_send: count,
            sent: 0,
            received: 0,
        }
    }

    fn receive_long(&mut self, wr_id: u64) {
        let recv = Recv::new(wr_id).into(self.mr.slice(ROOM..ROOM + LONG));
        self.qp.post_recv(recv).unwrap();
    }

    fn send(&mut self, av: Av, qpn: Qpn, text: &[u8]) {
        let there = Datagram {
            av,
            qpn,
            qkey: QKEY,
            pkey_index: 0,
        };
        let send = Send::new(100).inline(text).to(&there);
        self.qp.post_send(send).unwrap();
    }

    fn poll(&mut self) -> Wc {
        let mut wcs = [Wc::default()];
        let mut found = None;
        eventually(|| {
            found = self.cq.poll(&mut wcs).iter().next().copied();
            found.is_some()
        });
        found.unwrap()
    }
}

/// Goal: a manager in one process manages the subnet that another hosts, and messages go between HCAs: long
/// ones on connections, datagrams to ports and to groups.
#[test]
fn processes_share_a_subnet() {
    let hosted = Hosted::new();
    let socket = &hosted.socket;
    let names = ADAPTERS.map(|(name, ..)| name);
    let [a, b, c] = names.map(|name| Node::attach(socket, name).unwrap());
    let AttachError::Refused { refusal, .. } = Node::attach(socket, "B").err().unwrap() else {
        panic!("refused by the host");
    };
    assert_eq!(refusal, Refusal::Taken);
    assert_eq!(c.state(), PortState::Init);
    let manager = Manager::on(&a.device);
    manager.bring_up();
    for node in [&a, &b, &c] {
        node.wait_for(PortState::Active);
    }
    eventually(|| c.events.lock().unwrap().len() == 4);
    assert_eq!(
        c.events.lock().unwrap()[..],
        [
            EventType::LidChange,
            EventType::SmChange,
            EventType::ClientReregister,
            EventType::PortActive,
        ]
    );
    let answer = manager.ask_lid(Lid(3), Smp::get(AttributeId::NODE_INFO, 0));
    let info = NodeInfoView::new(attribute(&answer)).map(NodeInfo::parse);
    assert_eq!(info.unwrap().ports, 1);

    let mut ends = [&a, &c].map(|node| End::new(node, QpType::Rc));
    let numbers = ends.each_ref().map(|end| end.qp.qpn());
    let [here, there] = &mut ends;
    here.connect(Lid(3), numbers[1]);
    there.connect(Lid(1), numbers[0]);
    let text: Vec<u8> = (0..=250).cycle().take(ROOM - 5).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        ends[from].mr.write(0, &text).unwrap();
        let recv = Recv::new(1).into(ends[to].mr.slice(ROOM..2 * ROOM));
        ends[to].qp.post_recv(recv).unwrap();
        let send = Send::new(2).from(ends[from].mr.slice(0..text.len()));
        ends[from].qp.post_send(send.signaled()).unwrap();
        let wc = ends[to].poll();
        assert!(wc.is_ok() && wc.byte_len as usize == text.len(), "{wc:?}");
        let mut got = vec![0; text.len()];
        ends[to].mr.read(ROOM, &mut got).unwrap();
        assert!(got == text, "the bytes are others");
        assert!(ends[from].poll().is_ok());
    }

    // Many at a time fill messages and buffers on the way to the brim, and nothing is lost.
    for wr_id in 0..8 {
        let recv = Recv::new(wr_id).into(ends[1].mr.slice(ROOM..2 * ROOM));
        ends[1].qp.post_recv(recv).unwrap();
    }
    for wr_id in 0..8 {
        let send = Send::new(wr_id).from(ends[0].mr.slice(0..text.len()));
        ends[0].qp.post_send(send.signaled()).unwrap();
    }
    for wr_id in 0..8 {
        for end in &mut ends {
            let wc = end.poll();
            assert_eq!((wc.is_ok(), wc.wr_id), (true, wr_id));
        }
    }
    let counters = c.device.call::<PacketCounters>(()).wait().unwrap();
    assert_eq!((counters.bad_icrcs, counters.out_of_sequence), (0, 0));

    datagrams_arrive(&manager, [&a, &b, &c]);
    several_lids_are_one_port(&manager, [&a, &c]);
}

/// With four LIDs each, the host's agents answer at all of them, and datagrams go between them.
fn several_lids_are_one_port(manager: &Manager, nodes: [&Node; 2]) {
    manager.spread();
    eventually(|| nodes[1].device.query_port(1).wait().unwrap().lid == SPREAD[2]);
    for bits in [0, 3] {
        let dlid = Lid(SPREAD[2].0 + bits);
        manager.ask_lid(dlid, Smp::get(AttributeId::NODE_INFO, 0));
        let [mut here, mut there] = nodes.map(End::datagrams);
        here.send(Av::to_lid(1, dlid), there.qp.qpn(), b"one");
        assert_eq!(u16::from(there.poll().dlid_path_bits), bits);
    }
}

/// Datagrams of the first to a group that it is in, and of the second to the third by its GID.
fn datagrams_arrive(manager: &Manager, nodes: [&Node; 3]) {
    let group = Gid([
        0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
    ]);
    manager.set_group(Lid(0xc001), [&[2, 3], &[1, 2]]);
    let mut ends = nodes.map(End::datagrams);
    let attached = ends
        .each_ref()
        .map(|end| end.qp.attach_mcast(group, Lid(0xc001)).wait().unwrap());
    let to_group = Av {
        dlid: Lid(0xc001),
        ..Av::to_gid(1, 0, group)
    };
    ends[0].send(to_group, Qpn::MULTICAST, b"all");
    assert_eq!([ends[1].poll().slid, ends[2].poll().slid], [Lid(1); 2]);
    assert_eq!(ends[0].poll().byte_len, 43, "its own");
    drop(attached);
    // By GID alone: the subnet knows the LID.
    let number = ends[2].qp.qpn();
    ends[1].send(Av::to_gid(1, 0, nodes[2].gid), number, b"one");
    assert_eq!(ends[2].poll().slid, Lid(2));
}

/// See [`End::converse`].
struct Conversation<'e> {
    end: &'e mut End,
    to_send: usize,
    sent: usize,
    received: usize,
}

impl Conversation<'_> {
    fn start(&mut self) {
        for _ in 0..16 {
            self.send();
        }
    }

    fn send(&mut self) {
        if self.to_send > 0 {
            self.to_send -= 1;
            let send = Send::new(SENT).from(self.end.mr.slice(0..LONG));
            self.end.qp.post_send(send.signaled()).unwrap();
        }
    }

    /// Takes what has completed, and sends more.
    fn go_on(&mut self) {
        let mut wcs = [Wc::default(); 48];
        for wc in self.end.cq.poll(&mut wcs).iter() {
            assert!(wc.is_ok(), "{wc:?}");
            if wc.wr_id == SENT {
                self.sent += 1;
                self.send();
            } else {
                self.received += 1;
                self.end.receive_long(wc.wr_id);
            }
        }
    }
}

/// Goal: where sockets are full most of the time, nothing is lost and nothing gets stuck, whether somebody polls
/// all the time or now and then. Method: long messages one way and both ways at once, on connections without a
/// timeout.
#[test]
fn full_sockets_hold_up_and_lose_nothing() {
    let hosted = Hosted::new();
    let names = ADAPTERS.map(|(name, ..)| name);
    let [a, b, c] = names.map(|name| Node::attach(&hosted.socket, name).unwrap());
    Manager::on(&a.device).bring_up();
    for node in [&b, &c] {
        node.wait_for(PortState::Active);
    }
    for pause in [Duration::ZERO, Duration::from_millis(1)] {
        for counts in [[100, 0], [100, 100]] {
            talk([&b, &c], counts, pause);
        }
    }
    for (node, has_sent_all) in [(&b, true), (&c, false)] {
        let counts = node.device.call::<PacketCounters>(()).wait().unwrap();
        let again = counts.duplicates + counts.out_of_sequence + counts.sequence_naks;
        assert_eq!(again, 0, "{counts:?}");
        let was_full = counts.link.blocked > 0;
        assert!(was_full || !has_sent_all, "no socket was full: {counts:?}");
    }
}

/// Sends that many long messages from each, and waits until all have come.
fn talk(nodes: [&Node; 2], counts: [usize; 2], pause: Duration) {
    let mut ends = nodes.map(|node| End::new(node, QpType::Rc));
    let numbers = ends.each_ref().map(|end| end.qp.qpn());
    for (end, (lid, peer)) in ends.iter_mut().zip([(3, numbers[1]), (2, numbers[0])]) {
        end.connect(Lid(lid), peer);
    }
    let [one, other] = &mut ends;
    let mut talks = [one.converse(counts[0]), other.converse(counts[1])];
    talks.iter_mut().for_each(Conversation::start);
    let begin = Instant::now();
    loop {
        talks.iter_mut().for_each(Conversation::go_on);
        let done = talks.each_ref().map(|talk| (talk.sent, talk.received));
        if done == [(counts[0], counts[1]), (counts[1], counts[0])] {
            return;
        }
        let is_stuck = begin.elapsed() > STUCK;
        assert!(
            !is_stuck,
            "{counts:?} were to be sent, and (sent, received) are {done:?}"
        );
        thread::sleep(pause);
    }
}

/// Goal: the link of a process that dies goes down, which the manager hears; another takes the port, and has
/// it managed again. When the host dies, ports go down and nothing hangs.
#[test]
fn a_port_goes_down_with_its_process() {
    let hosted = Hosted::new();
    let a = Node::attach(&hosted.socket, "A").unwrap();
    let manager = Manager::on(&a.device);
    manager.bring_up();
    a.wait_for(PortState::Active);
    let mut end_here = End::datagrams(&a);
    let mut other = Command::new(env::current_exe().unwrap());
    other.args(["--exact", "the_other_process", "--nocapture"]);
    other.env(SOCKET, &hosted.socket).stdout(Stdio::null());
    other.env(DATAGRAM, end_here.qp.qpn().value().to_string());
    let other = Guarded::start(&mut other);
    let wc = end_here.poll();
    assert_eq!((wc.slid, wc.byte_len), (Lid(2), 45));
    assert_eq!(manager.port(&[1], 2).state, LinkState::ACTIVE);

    drop(other);
    let Delivery::Request { from, .. } = manager.delivery() else {
        panic!("a trap is no answer");
    };
    assert_eq!(from.av.dlid, Lid(10));
    assert_eq!(manager.port(&[1], 2).state, LinkState::DOWN);
    let b = Node::attach(&hosted.socket, "B").unwrap();
    eventually(|| manager.port(&[1], 2).state == LinkState::INIT);
    assert_eq!(b.state(), PortState::Init);
    drop(b);
    drop(hosted);
    a.wait_for(PortState::Down);
    end_here.send(Av::to_lid(1, Lid(2)), Qpn::new(5), b"nobody");
}

/// The other process of [`a_port_goes_down_with_its_process`], which starts it; nothing by itself.
#[test]
fn the_other_process() {
    let Some(socket) = env::var_os(SOCKET) else {
        return;
    };
    let number = env::var(DATAGRAM).unwrap().parse().unwrap();
    let b = Node::attach(FilePath::new(&socket), "B").unwrap();
    b.wait_for(PortState::Active);
    let mut end = End::datagrams(&b);
    end.send(Av::to_lid(1, Lid(1)), Qpn::new(number), b"hello");
    // Until it is killed, or the test that has started it has long ended.
    thread::sleep(2 * STUCK);
}
