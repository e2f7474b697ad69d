//! The daemon and its clients in virtual time, as seeds decide: clients come, die, lease, listen and send; the daemon is
//! killed between any two steps, and the next one follows with what the last has had kept.
//!
//! The checker knows only what clients see: no two have the same number, nobody gets one that has not rested, packets reach
//! the owner of their number and no other, a port number has one listener, and the end of a client is told
//! to all others in time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use verbs_core::Qpn;
use verbs_core::host::message::{No, NotListening, VERSION};
use verbs_core::host::number::REST;
use verbs_core::host::quota::Quota;
use verbs_core::host::{Block, Message};
use verbs_core::seed::Draws;
use verbs_core::time::Instant;
use verbs_host::Ended;

use crate::bed::{Bed, Client, HERE, USER, hello, hello_again, packet, service_of};
use crate::claims::File;

const STEPS: u32 = 400;
const SEEDS: u64 = 60;
const CLIENTS: usize = 12;
const PORTS: u64 = 6;

/// A client, as it sees itself.
struct Peer {
    client: Client,
    blocks: BTreeSet<Block>,
    ports: BTreeSet<u16>,
    /// The daemon of now knows it.
    is_in: bool,
    /// Since when, if it does not.
    away: Instant,
    packets: Vec<Vec<u8>>,
    gone: BTreeSet<Block>,
    answers: Vec<Message<'static>>,
}

struct World {
    bed: Bed,
    file: File,
    draws: Draws,
    peers: Vec<Peer>,
    /// When a block lost its owner.
    left: BTreeMap<Block, Instant>,
    started: Instant,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut draws = Draws::new(seed);
        let bed = Bed::of(draws.draw());
        Self {
            started: bed.now,
            bed,
            file: File::default(),
            draws,
            peers: Vec::new(),
            left: BTreeMap::new(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.draws.below(end as u64) as usize
    }

    /// One of the peers that the daemon knows, or does not.
    fn pick(&mut self, is_in: bool) -> Option<usize> {
        let such = |(at, peer): (usize, &Peer)| (peer.is_in == is_in).then_some(at);
        let all: Vec<_> = self.peers.iter().enumerate().filter_map(such).collect();
        (!all.is_empty()).then(|| all[self.draws.below(all.len() as u64) as usize])
    }

    /// All read what they are told.
    fn drain(&mut self) {
        for peer in self.peers.iter_mut().filter(|peer| peer.is_in) {
            for message in self.bed.told(peer.client) {
                match message {
                    Message::Packets(packets) => peer.packets.push(packets.bytes.to_vec()),
                    Message::Gone(blocks) => {
                        peer.gone.extend(blocks.into_iter().filter_map(Block::new));
                    }
                    other => peer.answers.push(other),
                }
            }
        }
    }

    /// A client has got a block.
    fn check_new(&self, block: Block) {
        // One that has stayed away for too long finds out when it comes back.
        let is_late = |peer: &Peer| !peer.is_in && self.bed.now.since(peer.away) >= REST;
        let mut peers = self.peers.iter().filter(|peer| !is_late(peer));
        let owner = peers.find(|peer| peer.blocks.contains(&block));
        assert!(owner.is_none(), "{block:?} has an owner");
        let left = self.left.get(&block);
        let rested = left.is_none_or(|&left| self.bed.now.since(left) >= REST);
        assert!(rested, "{block:?} has not rested");
    }

    /// A block loses its owner.
    fn leave(&mut self, block: Block, at: Instant) {
        let left = self.left.entry(block).or_insert(at);
        *left = (*left).max(at);
    }

    fn join(&mut self) {
        if self.peers.len() == CLIENTS {
            return;
        }
        // A client that is killed, or whose daemon is, before it has read the answer.
        let is_lost = self.below(8) == 0;
        let client = self
            .bed
            .join_as(USER, &hello(VERSION, VERSION))
            .expect("there is room");
        self.check_new(client.block);
        if is_lost {
            match self.below(2) {
                0 => self.leave(client.block, self.bed.now),
                _ => while self.bed.daemon.poll_record().is_some() {},
            }
            return self.kill_daemon();
        }
        self.peers.push(Peer {
            client,
            blocks: BTreeSet::from([client.block]),
            ports: BTreeSet::new(),
            is_in: true,
            away: self.bed.now,
            packets: Vec::new(),
            gone: BTreeSet::new(),
            answers: Vec::new(),
        });
    }

    fn die(&mut self) {
        if self.peers.is_empty() {
            return;
        }
        let at = self.below(self.peers.len());
        let peer = self.peers.swap_remove(at);
        self.drain();
        // One that the daemon does not know has left with the last daemon.
        let at = if peer.is_in { self.bed.now } else { peer.away };
        for &block in &peer.blocks {
            self.leave(block, at);
        }
        if !peer.is_in {
            return;
        }
        let now = self.bed.now;
        self.bed.daemon.leave(now, peer.client.id, Ended::Died);
        self.bed.others_hear();
        self.drain();
        for other in self.peers.iter().filter(|other| other.is_in) {
            assert!(other.gone.is_superset(&peer.blocks), "it was not told");
        }
    }

    fn lease(&mut self) {
        let Some(at) = self.pick(true) else { return };
        let client = self.peers[at].client;
        self.bed.say(client, &Message::Lease(1));
        self.drain();
        let has_all = self.peers[at].blocks.len() == Quota::Blocks.max() as usize;
        match self.peers[at].answers.pop() {
            Some(Message::Leased(1, Ok(block))) if !has_all => {
                let block = Block::new(block).expect("there is one");
                self.check_new(block);
                self.peers[at].blocks.insert(block);
            }
            Some(Message::Leased(1, Err(No::Quota(_)))) if has_all => {}
            other => panic!("{other:?}"),
        }
    }

    fn give_back(&mut self) {
        let Some(at) = self.pick(true) else { return };
        if self.peers[at].blocks.len() == 1 {
            return;
        }
        let block = self.peers[at].blocks.pop_last().expect("there are two");
        let client = self.peers[at].client;
        self.bed.say(client, &Message::Return(block.number()));
        self.leave(block, self.bed.now);
    }

    /// Asks for a port number: it gets it unless another client that the daemon knows has it.
    fn listen(&mut self, at: usize, port: u16) {
        let mut others = self.peers.iter().filter(|peer| peer.is_in);
        let is_free = !others.any(|peer| peer.ports.contains(&port));
        let client = self.peers[at].client;
        self.bed.say(client, &Message::Listen(2, service_of(port)));
        self.drain();
        let answer = self.peers[at].answers.pop();
        let expected = if is_free {
            Ok(())
        } else {
            Err(NotListening::InUse)
        };
        assert_eq!(answer, Some(Message::Listening(2, expected)));
        if is_free {
            self.peers[at].ports.insert(port);
        }
    }

    fn unlisten(&mut self) {
        let Some(at) = self.pick(true) else { return };
        if let Some(port) = self.peers[at].ports.pop_first() {
            let client = self.peers[at].client;
            self.bed.say(client, &Message::Unlisten(service_of(port)));
        }
    }

    fn send(&mut self) {
        let (Some(from), to) = (self.pick(true), self.below(CLIENTS)) else {
            return;
        };
        self.drain();
        self.peers.iter_mut().for_each(|peer| peer.packets.clear());
        let known = self
            .peers
            .get(to)
            .and_then(|peer| peer.blocks.last().copied());
        let block = known.or_else(|| self.left.keys().next().copied());
        let Some(block) = block else { return };
        let bytes = packet(Qpn::new(block.qpns().start + 0x21), b"seed");
        let client = self.peers[from].client;
        self.bed.send(client, HERE, &bytes);
        self.drain();
        for peer in &self.peers {
            let is_its = peer.is_in && peer.blocks.contains(&block);
            assert_eq!(peer.packets.len(), usize::from(is_its), "{block:?}");
        }
    }

    /// Whoever has been told something has read it; the rest is lost with the daemon.
    fn kill_daemon(&mut self) {
        self.file.keep(&mut self.bed);
        let seed = self.draws.draw();
        let now = self.bed.now;
        self.bed = self.file.next(seed, now);
        self.started = now;
        for peer in self.peers.iter_mut().filter(|peer| peer.is_in) {
            peer.is_in = false;
            peer.away = now;
        }
    }

    fn come_back(&mut self) {
        let Some(at) = self.pick(false) else { return };
        let peer = &self.peers[at];
        let blocks: Vec<_> = peer.blocks.iter().copied().map(Block::number).collect();
        let hello = hello_again(VERSION, VERSION, peer.client.token, &blocks);
        match self.bed.join_as(USER, &hello) {
            Ok(client) => {
                assert_eq!(client.token, peer.client.token);
                let peer = &mut self.peers[at];
                peer.client = client;
                peer.is_in = true;
                let ports = std::mem::take(&mut peer.ports);
                ports.into_iter().for_each(|port| self.listen(at, port));
            }
            Err(no) => {
                assert_eq!(no, No::Claim);
                let Peer { blocks, away, .. } = self.peers.swap_remove(at);
                assert!(self.bed.now.since(away) >= REST, "it was in time");
                blocks.into_iter().for_each(|block| self.leave(block, away));
            }
        }
    }

    fn wait(&mut self) {
        let millis = match self.below(10) {
            0 => 60_000,
            _ => self.draws.below(3000),
        };
        self.bed.now += Duration::from_millis(millis);
        if self
            .bed
            .daemon
            .deadline()
            .is_some_and(|due| due <= self.bed.now)
        {
            self.bed.daemon.expire(self.bed.now);
        }
    }

    /// What is true after every step.
    fn check(&mut self) {
        self.drain();
        self.file.keep(&mut self.bed);
        let owners = |block: &Block| {
            let mut all = self.peers.iter().filter(|peer| peer.is_in);
            all.find(|peer| peer.blocks.contains(block))
        };
        for peer in self.peers.iter().filter(|peer| peer.is_in) {
            assert!(self.bed.is_there(peer.client), "it has kept to the rules");
            assert!(peer.answers.is_empty(), "{:?}", peer.answers);
            let alive = peer.gone.iter().find(|block| owners(block).is_some());
            // One that was late has been reported, and goes on.
            let is_late = self.bed.now.since(self.started) >= Duration::from_secs(5);
            assert!(alive.is_none() || is_late, "{alive:?} is not gone");
        }
        self.peers.iter_mut().for_each(|peer| peer.gone.clear());
    }

    fn step(&mut self) {
        match self.below(16) {
            0..=2 => self.join(),
            3 => self.die(),
            4 => self.lease(),
            5 => self.give_back(),
            6 | 7 => {
                if let Some(at) = self.pick(true) {
                    let port = self.draws.below(PORTS) as u16;
                    self.listen(at, port);
                }
            }
            8 => self.unlisten(),
            9 | 10 => self.send(),
            11 => {
                if self.below(3) == 0 {
                    self.kill_daemon();
                }
            }
            12 | 13 => self.come_back(),
            _ => self.wait(),
        }
        self.check();
    }

    /// When all clients have ended, nothing of them is left.
    fn end(mut self) {
        while !self.peers.is_empty() {
            self.die();
        }
        self.bed.now += REST;
        self.bed.daemon.expire(self.bed.now);
        let last = self.bed.join();
        assert_eq!(self.bed.daemon.block_counts(self.bed.now), (1, 0));
        self.file.keep(&mut self.bed);
        assert_eq!(self.file.blocks(), [last.block]);
    }
}

#[test]
fn clients_and_daemons_in_virtual_time() {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        world.end();
    }
}
