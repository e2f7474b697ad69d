//! A node that a subnet's manager asks.

use std::cell::RefCell;
use std::future::IntoFuture;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::command::{CommandConfig, CommandInterface, CommandTime};
use hca_sim::engine::{Due, Engine};
use hca_sim::link::fabric::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use verbs_cm::resolver::Fixed;
use verbs_cm::{Resolver, UDP_QKEY};
use verbs_core::mad::header::header_of;
use verbs_core::mad::{Class, MadVerdict};
use verbs_core::time::Instant;
use verbs_core::{Av, Cq, Datagram, Device, Lid, Pd, Provider, Qp, QpInit, QpType, Send, Wc};
use verbs_sm::{Config, Manager};

use crate::front::Front;
use crate::{Service, Work, alone, datagrams, finish, poll_until, service};

/// What a command takes of the node's thread, to be issued.
const ISSUE: Duration = Duration::from_micros(5);
const SERVICES: usize = 40;
const PORT: u16 = 7174;

/// The node's HCA: commands take time of the node, and answers of its agents to the manager are counted.
fn busy(hca: &Arc<Hca>, work: &Work, answered: &Arc<AtomicU64>) -> Front {
    let (agents, work, answered) = (Arc::clone(hca), work.clone(), Arc::clone(answered));
    let node = Front::of(Arc::clone(hca), move |incoming, reply| {
        let verdict = agents.process_mad(incoming, reply);
        let class = header_of(incoming.mad).class();
        let is_answer = matches!(verdict, MadVerdict::Reply);
        if is_answer && [Class::SUBN_LID, Class::SUBN_DIRECTED].contains(&class) {
            answered.fetch_add(1, Relaxed);
        }
        verdict
    });
    node.issued(move || work.spend(ISSUE))
}

/// A switch with three adapters: the manager's, the node's, and that of a peer who wants much of the node.
struct Bed {
    clock: VirtualClock,
    hcas: Vec<Arc<Hca>>,
    /// Requests of the manager that the node has answered.
    answered: Arc<AtomicU64>,
    work: Work,
    manager: Arc<Manager>,
    node_device: Device,
    peer_device: Device,
    node_lid: Lid,
    _managers_device: Device,
}

impl Bed {
    fn new() -> Self {
        let clock = VirtualClock::new();
        let mut topology = Topology::new();
        let switch = topology.switch("s", 4).unwrap();
        let mut hcas = Vec::new();
        let ports: Vec<_> = (1..=3)
            .map(|number| {
                let node = topology.hca(&format!("h{number}"), 1).unwrap();
                topology.link((switch, number), (node, 1)).unwrap();
                PortRef { node, port: 1 }
            })
            .collect();
        let subnet = SharedSubnet::new(Subnet::new(&topology, SubnetConfig::default()));
        for (&at, seed) in ports.iter().zip(1..) {
            let link = subnet.attach(at, seed).unwrap();
            hcas.push(Hca::over(link).clock(clock.clone()).build());
        }
        let work = Work::beside_others(&clock);
        let answered = Arc::default();
        let node = busy(&hcas[1], &work, &answered);
        let commands = CommandConfig {
            time: CommandTime::Fixed(Duration::from_micros(200)),
            ..CommandConfig::default()
        };
        let engine = Engine::new(clock.clone());
        let front = CommandInterface::new(Arc::new(node), engine, commands);
        let node_device = finish(&clock, Device::open(Arc::new(front)));
        let [managers_device, peer_device] = [0, 2].map(|n: usize| hcas[n].open().wait().unwrap());
        let manager = Manager::start(&managers_device, 1, Config::default());
        let manager = Arc::new(poll_until(&clock, manager).unwrap());
        let bed = Self {
            clock,
            hcas,
            answered,
            work,
            manager,
            node_device,
            peer_device,
            node_lid: Lid(0),
            _managers_device: managers_device,
        };
        while !bed.manager.is_up() {
            bed.others();
            bed.turn_node();
            bed.clock.advance(Duration::from_micros(100));
        }
        let node_lid = subnet.with(bed.clock.now(), |subnet| subnet.lid(ports[1]));
        Self { node_lid, ..bed }
    }

    /// Turns of the other adapters.
    fn others(&self) {
        for n in [0, 2] {
            while self.hcas[n].turn() {}
        }
    }

    /// One turn of the node.
    fn turn_node(&self) {
        self.hcas[1].turn();
    }
}

/// What a load has done so far.
#[derive(Default)]
struct Tally {
    connected: u32,
    /// Queue pairs of the node that were destroyed.
    destroyed: u32,
}

/// Clients and a server of connections, on the peer and on the node.
struct Connections {
    pool: LocalPool,
    tally: Rc<RefCell<Tally>>,
    pd: Pd,
    cq: Rc<Cq>,
    /// The server's; they outlive its queue pairs.
    _managers: [verbs_cm::Manager; 2],
}

fn address(end: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, end])
}

impl Connections {
    fn new(bed: &Bed) -> Self {
        let table = (1..=2).fold(Fixed::new(), |table, end: u8| {
            table.way(address(end), bed.hcas[usize::from(end)].gid(), None)
        });
        let table: Arc<dyn Resolver> = Arc::new(table);
        let managers = [&bed.node_device, &bed.peer_device].map(|device| {
            let manager = verbs_cm::Manager::of(device);
            let uses = manager.use_resolver(Arc::clone(&table)).into_future();
            poll_until(&bed.clock, uses).unwrap();
            manager
        });
        let (pool, tally) = (LocalPool::new(), Rc::<RefCell<Tally>>::default());
        let spawner = pool.spawner();
        let told = Rc::clone(&tally);
        let listening = verbs_cm::listen(&bed.node_device, (address(1), PORT)).into_future();
        let pd = Rc::new(finish(&bed.clock, bed.node_device.alloc_pd()));
        let cq = Rc::new(finish(&bed.clock, bed.node_device.create_cq(4096)));
        let server = async move {
            let mut listener = listening.await.unwrap();
            loop {
                let request = listener.accept().await;
                let (pd, cq, told) = (Rc::clone(&pd), Rc::clone(&cq), Rc::clone(&told));
                let serve = async move {
                    let qp = pd.create_qp(QpInit::rc(&*cq, &*cq)).await.unwrap();
                    let Ok(connection) = request.accept(qp).await else {
                        return;
                    };
                    // Its queue pair is destroyed with it.
                    connection.close().await.unwrap();
                    told.borrow_mut().destroyed += 1;
                };
                spawner.spawn_local(serve).unwrap();
            }
        };
        pool.spawner().spawn_local(server).unwrap();
        Self {
            pool,
            tally,
            pd: bed.peer_device.alloc_pd().wait().unwrap(),
            cq: Rc::new(bed.peer_device.create_cq(4096).wait().unwrap()),
            _managers: managers,
        }
    }

    /// A client connects, and ends its connection.
    fn client(&self, bed: &Bed) {
        let qp = self.pd.create_qp(QpInit::rc(&*self.cq, &*self.cq));
        let qp = qp.wait().unwrap();
        let connecting = verbs_cm::connect(&bed.peer_device, (address(1), PORT), qp);
        let tally = Rc::clone(&self.tally);
        let client = async move {
            let Ok(connection) = connecting.await else {
                return;
            };
            tally.borrow_mut().connected += 1;
            let _ = connection.closed().await;
        };
        self.pool.spawner().spawn_local(client).unwrap();
    }
}

/// Services of the node, and who sends them datagrams.
struct Datagrams {
    services: Vec<Service>,
    sender: Qp,
    sends: Cq,
    to: Av,
    sent: usize,
    _pd: Pd,
}

impl Datagrams {
    fn new(bed: &Bed, each: Duration) -> Self {
        let one = || service(&bed.clock, &bed.node_device, &bed.work, each, || ());
        let services = (0..SERVICES).map(|_| one()).collect();
        let pd = bed.peer_device.alloc_pd().wait().unwrap();
        let sends = bed.peer_device.create_cq(4096).wait().unwrap();
        let init = QpInit::of(QpType::Ud, &sends, &sends);
        let sender = pd.create_qp(init.depth(4096, 1).inline(8)).wait().unwrap();
        datagrams(&bed.clock, &sender);
        Self {
            services,
            sender,
            sends,
            to: Av::to_lid(1, bed.node_lid),
            sent: 0,
            _pd: pd,
        }
    }

    fn send(&mut self) {
        let to = Datagram {
            av: self.to,
            qpn: self.services[self.sent % SERVICES].qpn,
            qkey: UDP_QKEY,
            pkey_index: 0,
        };
        let send = Send::new(1).inline(b"datagram").to(&to).signaled();
        self.sender.post_send(send).unwrap();
        self.sends.poll(&mut [Wc::default(); 64]);
        self.sent += 1;
    }
}

/// What happens at equal distances, whatever has become of it before.
struct Every {
    distance: Duration,
    next: Instant,
}

impl Every {
    fn new(bed: &Bed, distance: Duration) -> Self {
        let next = bed.clock.now();
        Self { distance, next }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next <= now;
        if is_due {
            self.next += self.distance;
        }
        is_due
    }
}

/// The manager sweeps again and again, also while the node works.
struct Sweeps {
    manager: Arc<Manager>,
    engine: Engine,
    again: Weak<Self>,
}

impl Sweeps {
    const EVERY: Duration = Duration::from_millis(20);

    fn begin(bed: &Bed) -> Arc<Self> {
        let sweeps = Arc::new_cyclic(|again| Self {
            manager: Arc::clone(&bed.manager),
            engine: Engine::new(bed.clock.clone()),
            again: Weak::clone(again),
        });
        let due: Arc<dyn Due> = Arc::<Self>::clone(&sweeps);
        sweeps.engine.after(Self::EVERY, due, 0);
        sweeps
    }
}

impl Due for Sweeps {
    fn due(&self, _now: Instant, _token: u64) {
        self.manager.sweep();
        if let Some(due) = self.again.upgrade() {
            self.engine.after(Self::EVERY, due, 0);
        }
    }
}

/// What two seconds of load have made of the node and its manager.
#[derive(Debug)]
struct Outcome {
    /// Of the time, in percent, handlers and commands worked.
    busy: u128,
    sweeps: u64,
    /// The manager's requests that the node has answered, those that nobody has, and those
    /// that were refused.
    answered: u64,
    unanswered: u64,
    refused: u64,
    connected: u32,
    destroyed: u32,
}

/// Datagrams for 40 services at a steady rate, whatever the node has done of them, each worth `handler`: 88 % of the time; every
/// 100 ms 24 clients that connect, and are disconnected; a sweep every 20 ms. Each command of the node takes 200 us.
fn load(handler: Duration) -> Outcome {
    let bed = Bed::new();
    let mut connections = Connections::new(&bed);
    let mut services = Datagrams::new(&bed, handler);
    let before = bed.manager.counters();
    bed.answered.store(0, Relaxed);
    let mut datagram = Every::new(&bed, handler * 100 / 88);
    let mut storm = Every::new(&bed, Duration::from_millis(100));
    let _sweeps = Sweeps::begin(&bed);
    let begun = bed.clock.now();
    bed.work.begin();
    while bed.clock.now() < begun + Duration::from_secs(2) {
        let now = bed.clock.now();
        while datagram.is_due(now) {
            services.send();
        }
        if storm.is_due(now) {
            (0..24).for_each(|_| connections.client(&bed));
        }
        bed.others();
        bed.turn_node();
        connections.pool.run_until_stalled();
        bed.clock.advance(Duration::from_micros(50));
    }
    let took = bed.clock.now() - begun;
    let after = bed.manager.counters();
    let tally = connections.tally.borrow();
    let outcome = Outcome {
        busy: bed.work.spent().as_nanos() * 100 / took.as_nanos(),
        sweeps: after.sweeps - before.sweeps,
        answered: bed.answered.load(Relaxed),
        unanswered: after.timeouts - before.timeouts,
        refused: after.refusals - before.refusals,
        connected: tally.connected,
        destroyed: tally.destroyed,
    };
    services.services.iter().for_each(Service::stop);
    outcome
}

/// Goal: a node keeps its manager although its handlers have work for nearly all of its time, connections come in storms
/// and end, and queue pairs are destroyed (A9). Method: that load, of handlers that take 2 ms. Every sweep ends before the next
/// one is due, so that no answer takes longer than 20 ms; the manager waits 200. In contrast, most sweeps are late if a
/// handler alone takes longer than the manager waits.
#[test]
fn a_busy_node_keeps_its_manager() {
    let _alone = alone();
    let kept = load(Duration::from_millis(2));
    assert!((80..=100).contains(&kept.busy), "{kept:?}");
    assert!(kept.sweeps >= 99, "{kept:?}");
    assert_eq!((kept.unanswered, kept.refused), (0, 0), "{kept:?}");
    // A sweep asks the node for itself, its port, and its tables.
    assert!(kept.answered >= 4 * kept.sweeps, "{kept:?}");
    assert!(kept.connected >= 400 && kept.destroyed >= 400, "{kept:?}");
    let patience = Config::default().retry.timeout;
    assert!(Sweeps::EVERY * 10 <= patience, "{patience:?}");
    let late = load(patience + Duration::from_millis(50));
    assert!(late.sweeps < kept.sweeps / 2, "{late:?}");
}
