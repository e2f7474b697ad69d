//! Goal: nodes that lose their power and begin again, with no memory, lose what is not acknowledged or not read, and nothing
//! else; all others lose nothing. Method: a mesh of nodes on a simulated network in which all send to all, connections are
//! killed and nodes replaced by new ones at the same addresses; a checker of its own.

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use ulp_rds::{Node, RdsSocket, SendError};
use verbs_core::Device;
use verbs_simulator::{LinkConfig, Ppm, Sim};

use crate::lab::{addr, at, config, device};
use crate::lives::{Flow, Lives, Wrong};

/// After this long nothing is under way any longer.
const SETTLED: Duration = Duration::from_secs(5);
/// The longest that all may take.
const PATIENCE: Duration = Duration::from_secs(120);
const PORT: u16 = 4000;

/// One life of a node.
struct Life {
    node: Node,
    socket: Rc<RdsSocket>,
}

impl Life {
    async fn begin(device: Arc<Device>, host: u8, generation: u32) -> Self {
        let mut config = config(addr(host));
        config.generation = NonZeroU32::new(generation);
        let node = Node::open(&device, config).await.unwrap();
        let socket = Rc::new(RdsSocket::bind(&node, at(host, PORT)).unwrap());
        Self { node, socket }
    }
}

struct Mesh {
    sim: Sim,
    hosts: Vec<RefCell<Option<Life>>>,
    checker: RefCell<Lives>,
    /// Whether a new life says that it is one.
    honest: bool,
}

impl Mesh {
    /// The socket of a host's life, if it has one now.
    fn socket(&self, index: usize) -> Option<Rc<RdsSocket>> {
        let life = self.hosts[index].borrow();
        Some(Rc::clone(&life.as_ref()?.socket))
    }

    async fn send(&self, from: usize, each: usize) {
        let mut draw = self.sim.draw();
        for _ in 0..each {
            for to in (0..self.hosts.len()).filter(|to| *to != from) {
                let flow = (at(from as u8 + 1, PORT), at(to as u8 + 1, PORT));
                let len = draw.within(12..=6000) as usize;
                while !self.try_send(from, flow, len) {
                    self.sim.sleep(Duration::from_micros(200)).await;
                }
            }
        }
    }

    fn try_send(&self, from: usize, flow: Flow, len: usize) -> bool {
        let Some(socket) = self.socket(from) else {
            return false;
        };
        let mut checker = self.checker.borrow_mut();
        match socket.try_send_to(&checker.next(flow, len), flow.1) {
            Ok(()) => {
                checker.sent(flow);
                true
            }
            Err(SendError::WouldBlock | SendError::Congested(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Takes what has come for a host.
    fn take(&self, index: usize, most: usize) {
        let Some(socket) = self.socket(index) else {
            return;
        };
        for datagram in std::iter::from_fn(|| socket.try_recv()).take(most) {
            let flow = (datagram.from, socket.local_addr());
            self.checker.borrow_mut().receive(flow, &datagram.payload);
        }
    }

    /// A host loses its power and gets it back after a while.
    async fn restart(&self, index: usize, pause: Duration, generation: u32) {
        let host = index as u8 + 1;
        self.take(index, usize::MAX);
        let unacked = |of: std::net::SocketAddr| {
            let host = (0..self.hosts.len()).find(|index| at(*index as u8 + 1, PORT) == of);
            let socket = host.and_then(|host| self.socket(host));
            socket.map_or(0, |socket| socket.unacked().0 as u64)
        };
        self.checker.borrow_mut().restarts(at(host, PORT), unacked);
        let old = self.hosts[index].borrow_mut().take();
        // Whatever the old device still says no longer has a cable.
        let device = device(&self.sim, addr(host));
        drop(old);
        self.sim.sleep(pause).await;
        let life = Life::begin(device, host, generation).await;
        *self.hosts[index].borrow_mut() = Some(life);
    }

    /// Kills the connection from one host to another, if it is up; what is on its way there arrives, what comes from there
    /// does not.
    fn kill(&self, index: usize, peer: usize) -> u32 {
        let life = self.hosts[index].borrow();
        let killed = life.as_ref().is_some_and(|life| {
            let [local, remote] = [index, peer].map(|index| addr(index as u8 + 1));
            life.node.drop_connection(local, remote)
        });
        u32::from(killed)
    }

    /// Kills connections and restarts nodes until it is told that all have sent. Yields how many of both.
    async fn trouble(&self, done: &RefCell<bool>) -> (u32, u32) {
        let mut draw = self.sim.draw();
        let (mut killed, mut restarted, mut generation) = (0, 0, self.hosts.len() as u32);
        while !*done.borrow() {
            let pause = Duration::from_micros(50)..=Duration::from_micros(800);
            self.sim.sleep(draw.duration(pause)).await;
            let index = draw.within(0..=self.hosts.len() as u64 - 1) as usize;
            if draw.chance(Ppm::percent(20)) {
                generation += 1;
                let number = if self.honest {
                    generation
                } else {
                    index as u32 + 1
                };
                let pause = draw.duration(Duration::ZERO..=Duration::from_millis(20));
                self.restart(index, pause, number).await;
                restarted += 1;
                // A life that its peers have hardly heard of loses its first connections.
                for _ in 0..3 {
                    let pause = Duration::from_micros(100)..=Duration::from_micros(500);
                    self.sim.sleep(draw.duration(pause)).await;
                    for peer in 0..self.hosts.len() {
                        killed += self.kill(peer, index);
                    }
                }
                continue;
            }
            killed += self.kill(index, draw.within(0..=self.hosts.len() as u64 - 1) as usize);
        }
        (killed, restarted)
    }
}

/// Yields what the checker says.
fn run(seed: u64, hosts: u8, each: usize, honest: bool) -> Vec<(Flow, Wrong)> {
    let sim = Sim::new(seed);
    sim.network().set_all(LinkConfig {
        latency: Duration::from_micros(100),
        rate: 100_000_000,
        ..LinkConfig::default()
    });
    let run = sim.run(async {
        let mut lives = Vec::new();
        for host in 1..=hosts {
            let life = Life::begin(device(&sim, addr(host)), host, host.into()).await;
            lives.push(RefCell::new(Some(life)));
        }
        let mesh = Mesh {
            sim: sim.clone(),
            hosts: lives,
            checker: RefCell::default(),
            honest,
        };
        let (mesh, done) = (&mesh, &RefCell::new(false));
        let over = &RefCell::new(false);
        let receive = async {
            let mut draw = mesh.sim.draw();
            while !*over.borrow() {
                for index in 0..mesh.hosts.len() {
                    mesh.take(index, draw.within(0..=6) as usize);
                }
                mesh.sim.sleep(Duration::from_micros(100)).await;
            }
        };
        let send = async {
            join_all((0..mesh.hosts.len()).map(|from| mesh.send(from, each))).await;
            *done.borrow_mut() = true;
        };
        let watch = async {
            let (_, trouble) = futures::join!(send, mesh.trouble(done));
            let until = mesh.sim.now() + PATIENCE;
            while !mesh.checker.borrow().is_complete() && mesh.sim.now() < until {
                mesh.sim.sleep(Duration::from_millis(1)).await;
            }
            mesh.sim.sleep(SETTLED).await;
            *over.borrow_mut() = true;
            trouble
        };
        let (_, (killed, restarted)) = futures::join!(receive, watch);
        let checker = mesh.checker.take();
        println!(
            "seed {seed}: {} datagrams, {killed} connections killed, {restarted} nodes restarted",
            checker.received
        );
        assert!(killed > 0 && restarted > 0, "seed {seed}: nothing happened");
        checker.finish()
    });
    run.unwrap()
}

#[test]
fn nodes_that_forget_everything_lose_what_may_be_lost_and_nothing_else() {
    for seed in 1..=8 {
        assert_eq!(run(seed, 4, 120, true), [], "seed {seed}");
    }
}

#[test]
fn ten_nodes_forget_everything() {
    assert_eq!(run(20, 10, 30, true), []);
}

/// Goal: the checker would see it. Method: nodes that keep the number of their life when they begin another one.
#[test]
fn a_node_that_hides_its_new_life_is_caught() {
    let mut seeds = 1..=16;
    let is_caught = seeds.any(|seed| !run(seed, 4, 120, false).is_empty());
    assert!(is_caught, "no seed shows it");
}
