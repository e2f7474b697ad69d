//! Goal: whatever happens to connections, messages come once and in order. Method: two machines, queues of packets
//! between them, and virtual time; connections are cut at random places.

use std::collections::VecDeque;

use super::*;
use crate::wire::{FRAGMENT_LEN, HeaderError};

/// Packets that a queue pair holds.
const RECEIVES: u32 = 32;

struct End {
    machine: Machine,
    map: CongestionMap,
    /// Packets on their way to this end.
    wire: VecDeque<Packet>,
    /// Receive buffers that are posted. A packet that finds none breaks the test.
    posted: u32,
    got: Vec<Incoming>,
    acked: usize,
    freed: u64,
}

impl End {
    fn new(host: u8, generation: u32) -> Self {
        let terms = Terms {
            local: [10, 0, 0, host].into(),
            remote: [10, 0, 0, 3 - host].into(),
            tos: 0,
            receives: RECEIVES,
            generation,
            seed: u64::from(generation),
        };
        Self {
            machine: Machine::new(terms),
            map: CongestionMap::default(),
            wire: VecDeque::new(),
            posted: 0,
            got: Vec::new(),
            acked: 0,
            freed: 0,
        }
    }

    fn take(&mut self) -> bool {
        let Some(packet) = self.wire.pop_front() else {
            return false;
        };
        assert!(self.posted > 0, "a packet finds no receive buffer");
        let mut bytes = packet.header.to_vec();
        bytes.extend_from_slice(packet.payload());
        self.machine.handle_packet(&bytes).unwrap();
        self.machine.receives_posted(1);
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Datagram(incoming) => self.got.push(incoming),
                Event::Acked { .. } => self.acked += 1,
                Event::Congestion(freed) => self.freed |= freed,
            }
        }
        true
    }
}

struct Pair {
    ends: [End; 2],
    now: Time,
}

impl Pair {
    fn new() -> Self {
        Self {
            ends: [End::new(1, 11), End::new(2, 12)],
            now: Time::ZERO,
        }
    }

    /// End 0 asks, unless it is not down.
    fn connect(&mut self) {
        let [one, other] = &mut self.ends;
        let asked = one.machine.connect().unwrap();
        let answer = other.machine.accept().unwrap();
        other.machine.established(&asked, &other.map);
        one.machine.established(&answer, &one.map);
        (one.posted, other.posted) = (RECEIVES, RECEIVES);
    }

    fn cut(&mut self) {
        for end in &mut self.ends {
            end.wire.clear();
            end.machine.lost(self.now);
        }
    }

    /// One end posts a packet, if it has one.
    fn post(&mut self, from: usize) -> bool {
        let Some(packet) = self.ends[from].machine.poll_transmit() else {
            return false;
        };
        if packet.control {
            self.ends[from].machine.control_sent();
        }
        self.ends[1 - from].wire.push_back(packet);
        true
    }

    /// Until nothing moves.
    fn settle(&mut self) {
        for step in 0.. {
            assert!(step < 100_000, "the two never stop talking");
            let mut moved = false;
            for end in 0..2 {
                moved |= self.post(end);
                moved |= self.ends[end].take();
            }
            if !moved {
                return;
            }
        }
    }

    fn send(&mut self, from: usize, source: u16, destination: u16, payload: &[u8]) {
        self.ends[from]
            .machine
            .send(message(source, destination, payload));
    }

    fn texts(&self, end: usize) -> Vec<u64> {
        let number =
            |incoming: &Incoming| u64::from_be_bytes(*incoming.payload.first_chunk().unwrap());
        self.ends[end].got.iter().map(number).collect()
    }
}

fn message(source: u16, destination: u16, payload: &[u8]) -> Outgoing {
    Outgoing {
        rdma: None,
        source,
        destination,
        payload: Arc::from(payload),
        ack_required: true,
        extensions: Extensions::default(),
    }
}

/// A message of a length that begins with its number.
fn numbered(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![number as u8; len.max(8)];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

#[test]
fn messages_of_all_lengths_arrive_and_are_acknowledged() {
    let mut pair = Pair::new();
    pair.connect();
    let lengths = [0, 1, 4095, 4096, 4097, 8192, 1 << 20];
    for len in lengths {
        pair.send(0, 5, 6, &vec![7; len]);
    }
    pair.settle();
    let got: Vec<usize> = pair.ends[1]
        .got
        .iter()
        .map(|got| got.payload.len())
        .collect();
    assert_eq!(got, lengths);
    assert!(
        pair.ends[1]
            .got
            .iter()
            .all(|got| (got.source, got.destination) == (5, 6))
    );
    assert_eq!(
        (pair.ends[0].acked, pair.ends[0].machine.queued()),
        (lengths.len(), 0)
    );
}

#[test]
fn lost_connections_neither_lose_nor_double_nor_reorder() {
    for seed in 0..200 {
        let mut random = Rand32::new(seed);
        let mut pair = Pair::new();
        let (mut sent, total) = ([0_u64; 2], 60);
        pair.connect();
        let mut cuts = 0;
        while sent != [total; 2] {
            let end = random.rand_range(0..2) as usize;
            match random.rand_range(0..12) {
                0..4 if sent[end] < total => {
                    let len = random.rand_range(8..3 * FRAGMENT_LEN as u32) as usize;
                    pair.send(end, 1000, 2000, &numbered(sent[end], len));
                    sent[end] += 1;
                }
                4..8 => drop(pair.post(end)),
                8..11 => drop(pair.ends[end].take()),
                11 => {
                    pair.cut();
                    pair.connect();
                    cuts += 1;
                }
                _ => {}
            }
        }
        pair.settle();
        let all: Vec<u64> = (0..total).collect();
        assert_eq!(pair.texts(0), all, "seed {seed}");
        assert_eq!(pair.texts(1), all, "seed {seed}");
        assert!(cuts > 0 && pair.ends.iter().all(|end| end.machine.queued() == 0));
    }
}

#[test]
fn two_ends_that_only_send_do_not_run_out_of_credits() {
    let mut pair = Pair::new();
    pair.connect();
    for number in 0..500 {
        pair.send(0, 1, 9, &numbered(number, 5000));
        pair.send(1, 1, 9, &numbered(number, 5000));
    }
    // Both post all they may before anything arrives.
    while pair.post(0) || pair.post(1) {}
    assert!(pair.ends[0].wire.len() < RECEIVES as usize);
    pair.settle();
    assert_eq!((pair.ends[0].got.len(), pair.ends[1].got.len()), (500, 500));
    let credited = pair.ends[0].machine.counts().packets;
    assert!(credited < 1_400, "{credited} packets for 1000 fragments");
}

#[test]
fn a_node_that_has_forgotten_everything_is_heard() {
    let mut pair = Pair::new();
    pair.connect();
    for number in 0..20 {
        pair.send(0, 1, 9, &numbered(number, 8));
    }
    pair.settle();
    // The sender starts again, and its first connection is cut before anything arrives.
    pair.cut();
    pair.ends[0] = End::new(1, 99);
    pair.ends[1].got.clear();
    pair.connect();
    for number in 0..5 {
        pair.send(0, 1, 9, &numbered(number, 8));
    }
    while pair.post(0) {}
    pair.cut();
    pair.connect();
    pair.settle();
    assert_eq!(pair.texts(1), [0, 1, 2, 3, 4]);
    assert_eq!(pair.ends[1].machine.counts().peer_restarts, 1);
    assert_eq!(pair.ends[0].machine.queued(), 0);
    // The receiver starts again: what it had acknowledged does not come again, the rest does.
    pair.cut();
    pair.ends[1] = End::new(2, 98);
    pair.send(0, 1, 9, &numbered(5, 8));
    pair.connect();
    pair.settle();
    assert_eq!(pair.texts(1), [5]);
}

#[test]
fn what_is_cancelled_is_not_sent_again() {
    let mut pair = Pair::new();
    pair.connect();
    pair.settle();
    for (number, port) in [(0, 9), (1, 8), (2, 9), (3, 8)] {
        pair.send(0, 1, port, &numbered(number, 2 * FRAGMENT_LEN));
    }
    // The first is in flight as a whole, the second in part.
    for _ in 0..3 {
        assert!(pair.post(0));
    }
    assert_eq!(
        pair.ends[0].machine.cancel(1, Some(8)),
        (2, 4 * FRAGMENT_LEN)
    );
    assert_eq!(pair.ends[0].machine.cancel(7, None), (0, 0));
    pair.cut();
    pair.connect();
    pair.settle();
    assert_eq!(pair.texts(1), [0, 2]);
    assert_eq!(pair.ends[0].acked, 2);
    // Without a loss, what was begun is finished: the connection stays whole.
    pair.send(0, 1, 8, &numbered(4, 2 * FRAGMENT_LEN));
    assert!(pair.post(0));
    assert_eq!(pair.ends[0].machine.cancel(1, None).0, 1);
    pair.settle();
    assert_eq!((pair.texts(1), pair.ends[0].acked), (vec![0, 2, 4], 2));
}

#[test]
fn maps_travel_and_are_forgotten_with_the_connection() {
    let mut pair = Pair::new();
    pair.connect();
    pair.ends[1].map.set(4000, true);
    let map = pair.ends[1].map.clone();
    pair.ends[1].machine.congestion_changed(&map);
    pair.settle();
    assert!(pair.ends[0].machine.is_congested(4000));
    // The next connection brings the map again, even if nothing changed.
    pair.cut();
    assert!(!pair.ends[0].machine.is_congested(4000));
    pair.connect();
    pair.settle();
    assert!(pair.ends[0].machine.is_congested(4000));
    pair.ends[0].freed = 0;
    pair.ends[1]
        .machine
        .congestion_changed(&CongestionMap::default());
    pair.settle();
    assert_eq!(pair.ends[0].freed, 1 << (4000 % 64));
}

#[test]
fn pings_and_probes_are_answered_and_bounded() {
    let mut pair = Pair::new();
    pair.connect();
    pair.send(0, 4000, PING_PORT, b"");
    pair.send(0, PROBE_PORT, PING_PORT, b"");
    pair.settle();
    let got = &pair.ends[0].got;
    assert_eq!(
        (got[0].source, got[0].destination, got[0].payload.len()),
        (PING_PORT, 4000, 0)
    );
    let said: Vec<Extension> = got[1].extensions.iter().collect();
    assert_eq!(said, [Extension::Paths(1), Extension::Generation(12)]);
    // A peer that pings and takes no answers.
    for number in 0..2 * PONGS_MAX as u64 {
        let header = Header {
            sequence: 100 + number,
            source: 4000,
            ..Header::default()
        };
        pair.ends[1].machine.handle_packet(&header.emit()).unwrap();
    }
    assert!(pair.ends[1].machine.queued() <= PONGS_MAX);
    assert!(pair.ends[1].machine.counts().pings_dropped >= PONGS_MAX as u64);
}

#[test]
fn simultaneous_attempts_and_lost_peers() {
    let mut pair = Pair::new();
    let [one, other] = &mut pair.ends;
    assert!(one.machine.connect().is_some() && other.machine.connect().is_some());
    assert_eq!(one.machine.accept(), Err(Refusal::Busy));
    assert_eq!(other.machine.accept(), Err(Refusal::Busy));
    // Both try again after a time of their own, and only if something is to be sent.
    one.machine.lost(pair.now);
    other.machine.lost(pair.now);
    assert_eq!(one.machine.poll_timeout(), None);
    let mut pauses = Vec::new();
    one.machine.send(message(1, 2, b""));
    for _ in 0..14 {
        let at = one.machine.poll_timeout().unwrap();
        pauses.push(at.since(pair.now));
        pair.now = at;
        assert!(one.machine.connect().is_some());
        one.machine.lost(pair.now);
    }
    assert_eq!(pauses[0], Duration::ZERO);
    assert!(pauses.iter().all(|pause| *pause <= RECONNECT_PAUSE_MAX));
    assert!(pauses.iter().any(|pause| *pause > RECONNECT_PAUSE_MAX / 8));
    pair.connect();
    assert_eq!(pair.ends[0].machine.accept(), Err(Refusal::Stale));
    assert_eq!(pair.ends[0].machine.state(), State::Error);
    assert_eq!(pair.ends[0].machine.accept(), Err(Refusal::Busy));
}

#[test]
fn peers_that_break_rules_are_named() {
    let mut end = End::new(1, 1);
    let header = Header {
        sequence: 1,
        len: 5000,
        ..Header::default()
    };
    let packet = |header: Header, len: usize| [&header.emit()[..], &vec![0; len]].concat();
    let mut hand = |header: Header, len: usize| end.machine.handle_packet(&packet(header, len));
    assert_eq!(
        hand(header, 4000),
        Err(Fault::Fragment {
            expected: 4096,
            got: 4000
        })
    );
    assert_eq!(hand(header, 4096), Ok(()));
    let other = Header {
        sequence: 2,
        ..header
    };
    assert_eq!(
        hand(other, 904),
        Err(Fault::Mixed {
            expected: 1,
            got: 2
        })
    );
    let long = Header {
        len: 1 << 21,
        ..header
    };
    assert_eq!(hand(long, 4096), Err(Fault::TooLong(1 << 21)));
    let without = Header {
        sequence: 0,
        ..header
    };
    assert_eq!(hand(without, 4096), Err(Fault::NoSequence(5000)));
    let map = Header {
        flags: HeaderFlags::CONGESTION,
        len: 8,
        ..Header::default()
    };
    assert_eq!(hand(map, 8), Err(Fault::Map(crate::wire::MapLength(8))));
    let short = end.machine.handle_packet(&[0; 4]);
    assert_eq!(short, Err(Fault::Header(HeaderError::Short(4))));
}

#[test]
fn steps_between_states_are_those_of_the_table() {
    let legal = |from: State| {
        let next = State::ALL.into_iter().filter(|next| from.may_become(*next));
        next.map(|next| next.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        State::ALL.map(legal),
        [
            "connecting error",
            "up error",
            "error disconnecting",
            "error disconnecting",
            "down error",
        ]
    );
}
