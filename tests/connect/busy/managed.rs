//! A node that a subnet's manager asks.

use std::cell::RefCell;
use std::future::IntoFuture;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::command::{CommandConfig, CommandInterface, CommandTime};
use hca_sim::engine::Engine;
use hca_sim::link::fabric::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use verbs_cm::resolver::Fixed;
use verbs_cm::{Resolver, UDP_QKEY};
use verbs_core::mad::header::header_of;
use verbs_core::mad::{Class, MadArrival, MadBytes, MadVerdict};
use verbs_core::time::Instant;
use verbs_core::{
    AnyCommand, Av, Cq, Datagram, Device, Lid, Pd, Provider, ProviderAttr, Qp, QpInit, QpType,
    RequestId, Send, Timer, Wc,
};
use verbs_sm::{Config, Manager};

use super::{Service, Work, datagrams, finish, poll_until, service};

/// What a command takes of the node's thread, to be issued.
const ISSUE: Duration = Duration::from_micros(5);
/// What one datagram of a service takes of it.
const HANDLER: Duration = Duration::from_millis(2);
const SERVICES: usize = 40;
const PORT: u16 = 7174;

/// The node's HCA: what is asked of it takes time of the node.
struct Busy {
    hca: Arc<Hca>,
    work: Work,
    /// Datagrams of the manager that its agents have answered.
    answered: AtomicU64,
}

impl Provider for Busy {
    fn issue(&self, command: AnyCommand<'_>) {
        self.work.spend(ISSUE);
        self.hca.issue(command);
    }

    fn cancel(&self, id: RequestId) {
        self.hca.cancel(id);
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.hca.query_provider(port)
    }

    fn timer(&self) -> Option<Arc<dyn Timer>> {
        self.hca.timer()
    }

    fn process_mad(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict {
        let verdict = self.hca.process_mad(incoming, reply);
        let class = header_of(incoming.mad).class();
        let is_answer = matches!(verdict, MadVerdict::Reply);
        if is_answer && [Class::SUBN_LID, Class::SUBN_DIRECTED].contains(&class) {
            self.answered.fetch_add(1, Relaxed);
        }
        verdict
    }
}

/// A switch with three adapters: the manager's, the node's, and that of a peer who wants much of the node.
struct Bed {
    clock: VirtualClock,
    hcas: Vec<Arc<Hca>>,
    node: Arc<Busy>,
    work: Work,
    manager: Manager,
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
        let work = Work::default();
        let node = Arc::new(Busy {
            hca: Arc::clone(&hcas[1]),
            work: work.clone(),
            answered: AtomicU64::new(0),
        });
        let commands = CommandConfig {
            time: CommandTime::Fixed(Duration::from_micros(200)),
            ..CommandConfig::default()
        };
        let engine = Engine::new(clock.clone());
        let front = CommandInterface::new(Arc::<Busy>::clone(&node), engine, commands);
        let node_device = finish(&clock, Device::open(Arc::new(front)));
        let [managers_device, peer_device] = [0, 2].map(|n: usize| hcas[n].open().wait().unwrap());
        let manager = Manager::start(&managers_device, 1, Config::default());
        let manager = poll_until(&clock, manager).unwrap();
        let bed = Self {
            clock,
            hcas,
            node,
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
#[derive(Debug, Default)]
struct Tally {
    connected: u32,
    served: u32,
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
                    let connection = request.accept(qp).await.unwrap();
                    told.borrow_mut().served += 1;
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
            let connection = connecting.await.unwrap();
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
    fn new(bed: &Bed) -> Self {
        let one = || service(&bed.clock, &bed.node_device, &bed.work, HANDLER, || ());
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

/// Goal: a node keeps its manager although its handlers have work for nearly all of its time, connections come in storms
/// and end, and queue pairs are destroyed (A9): none of the manager's requests has to be repeated. Method: for two
/// seconds of virtual time, datagrams for 40 services at a steady rate, whatever the node has done of them, each worth 2
/// ms; every 100 ms 24 clients that connect and disconnect; a sweep every 20 ms. Each command of the node takes 200 us.
#[test]
fn a_busy_node_keeps_its_manager() {
    let bed = Bed::new();
    let mut connections = Connections::new(&bed);
    let mut load = Datagrams::new(&bed);
    let begun = bed.clock.now();
    let before = (bed.manager.counters(), bed.node.answered.load(Relaxed));
    let mut datagram = Every::new(&bed, HANDLER * 100 / 88);
    let mut storm = Every::new(&bed, Duration::from_millis(100));
    let mut sweep = Every::new(&bed, Duration::from_millis(20));
    let mut busy = Duration::ZERO;
    bed.work.begin();
    let end = begun + Duration::from_secs(2);
    while bed.clock.now() < end {
        let now = bed.clock.now();
        while datagram.is_due(now) {
            load.send();
        }
        if storm.is_due(now) {
            (0..24).for_each(|_| connections.client(&bed));
        }
        if sweep.is_due(now) {
            bed.manager.sweep();
        }
        bed.others();
        bed.turn_node();
        connections.pool.run_until_stalled();
        let worked = bed.work.spent();
        bed.work.begin();
        busy += worked;
        bed.clock.advance(worked.max(Duration::from_micros(50)));
    }
    let percent = busy.as_nanos() * 100 / (bed.clock.now() - begun).as_nanos();
    assert!((80..=100).contains(&percent), "{percent} % busy");
    let after = bed.manager.counters();
    let sweeps = after.sweeps - before.0.sweeps;
    assert!(sweeps >= 90, "{sweeps} sweeps");
    // A sweep asks the node for itself, its port, and its tables.
    let answered = bed.node.answered.load(Relaxed) - before.1;
    assert!(answered >= 4 * sweeps, "{answered} in {sweeps} sweeps");
    let again = (after.timeouts, after.refusals);
    assert_eq!(again, (before.0.timeouts, before.0.refusals));
    let tally = connections.tally.borrow();
    assert!(
        tally.connected >= 400 && tally.destroyed >= 400,
        "{tally:?}"
    );
    load.services.iter().for_each(Service::stop);
}
