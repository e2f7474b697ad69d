//! Goal: whatever happens to connections, messages come once and in order. Method: two machines, queues of packets
//! between them, and virtual time; connections are cut at random places.

mod lives;
mod outages;
mod requests;

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::payload::Pool;
use crate::wire::{Extension, Extensions, FRAGMENT_LEN, HeaderError};

/// Packets that a queue pair holds.
const RECEIVES: u32 = 32;

struct End {
    machine: Machine,
    map: CongestionMap,
    /// Packets on their way to this end.
    wire: VecDeque<Vec<u8>>,
    /// Receive buffers that are posted. A packet that finds none breaks the test.
    posted: u32,
    /// Messages that are kept in slots, by the slot.
    kept: BTreeMap<u32, Vec<u8>>,
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
            ack_interval: ACK_INTERVAL_MAX,
            generation,
            seed: u64::from(generation),
        };
        Self {
            machine: Machine::new(terms),
            map: CongestionMap::default(),
            wire: VecDeque::new(),
            posted: 0,
            kept: BTreeMap::new(),
            got: Vec::new(),
            acked: 0,
            freed: 0,
        }
    }

    /// The queue pair is gone, and with it what is kept in slots.
    fn lost(&mut self, now: Instant) {
        let kept = std::mem::take(&mut self.kept);
        self.machine.lost(now, |slot, len| {
            let message = &kept[&slot];
            assert_eq!(message.len(), len);
            Pool::new().copy_of(message)
        });
        assert_eq!(self.machine.poll_released(), None);
    }

    /// Sends a message at once, kept in a slot, or queues it.
    fn send_now(&mut self, message: &[u8], ack_required: bool) -> Option<Vec<u8>> {
        let short = Short {
            source: 5,
            destination: 6,
            len: message.len() as u32,
            ack_required,
        };
        let slot = (0..).find(|slot| !self.kept.contains_key(slot)).unwrap();
        let Some(header) = self.machine.transmit_now(&short, slot) else {
            self.machine
                .send(short.queued(Pool::new().copy_of(message)));
            return None;
        };
        self.kept.insert(slot, message.to_vec());
        Some([&header, message].concat())
    }

    fn take(&mut self) -> bool {
        let Some(bytes) = self.wire.pop_front() else {
            return false;
        };
        assert!(self.posted > 0, "a packet finds no receive buffer");
        let incoming = self.machine.handle_packet(&bytes[..], room).unwrap();
        self.got.extend(incoming);
        self.machine.receives_posted(1);
        while let Some(slot) = self.machine.poll_released() {
            assert!(self.kept.remove(&slot).is_some(), "a slot is released once");
        }
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Acked { messages, .. } => self.acked += messages,
                Event::Congestion(freed) => self.freed |= freed,
            }
        }
        true
    }
}

struct Pair {
    ends: [End; 2],
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        Self {
            ends: [End::new(1, 11), End::new(2, 12)],
            now: Instant::ZERO,
        }
    }

    /// End 0 asks, unless it is not down.
    fn connect(&mut self) {
        let [one, other] = &mut self.ends;
        let asked = one.machine.connect().unwrap();
        let answer = other.machine.asked().unwrap().answer;
        assert!(other.machine.accept());
        other.machine.established(&asked, &other.map);
        one.machine.established(&answer, &one.map);
        (one.posted, other.posted) = (RECEIVES, RECEIVES);
    }

    fn cut(&mut self) {
        for end in &mut self.ends {
            end.wire.clear();
            end.lost(self.now);
        }
    }

    /// One end posts a packet, if it has one.
    fn post(&mut self, from: usize) -> bool {
        let Some(packet) = self.ends[from].machine.poll_transmit() else {
            return false;
        };
        let (bytes, control) = ([&packet.header, packet.payload].concat(), packet.control);
        if control {
            self.ends[from].machine.control_sent();
        }
        self.ends[1 - from].wire.push_back(bytes);
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

    /// Sends a message at once, if nothing is to be transmitted before it.
    fn send_now(&mut self, from: usize, payload: &[u8]) {
        let packet = self.ends[from].send_now(payload, false);
        self.ends[1 - from].wire.extend(packet);
    }

    fn texts(&self, end: usize) -> Vec<u64> {
        let number =
            |incoming: &Incoming| u64::from_be_bytes(*incoming.payload.first_chunk().unwrap());
        self.ends[end].got.iter().map(number).collect()
    }
}

fn room(len: usize) -> Payload {
    Pool::new().room_for(len)
}

/// Goal: Linux looks at its receives when a packet asks for it, and at no other time. Method: what ends a message does, and
/// what carries none; a fragment before the last does not.
#[test]
fn what_ends_a_message_is_last_and_what_carries_none_too() {
    let mut pair = Pair::new();
    pair.connect();
    pair.send(0, 3, 2, &[7; 2 * FRAGMENT_LEN]);
    let machine = &mut pair.ends[0].machine;
    let mut sent = std::iter::from_fn(|| {
        let packet = machine.poll_transmit()?;
        Some((packet.payload.len(), packet.is_last()))
    });
    let expected = [(0, true), (FRAGMENT_LEN, false), (FRAGMENT_LEN, true)];
    assert!(sent.by_ref().take(3).eq(expected));
}

fn message(source: u16, destination: u16, payload: &[u8]) -> Outgoing {
    Outgoing {
        rdma: None,
        source,
        destination,
        payload: Payload::from(payload.to_vec()),
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
                    match random.rand_range(0..2) {
                        0 => pair.send(end, 1000, 2000, &numbered(sent[end], len)),
                        _ => pair.send_now(end, &numbered(sent[end], len.min(FRAGMENT_LEN))),
                    }
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
        // These ask for an acknowledgement, and so for one of all before them.
        (0..2).for_each(|end| pair.send(end, 1000, 2000, &numbered(total, 8)));
        pair.settle();
        let all: Vec<u64> = (0..=total).collect();
        assert_eq!(pair.texts(0), all, "seed {seed}");
        assert_eq!(pair.texts(1), all, "seed {seed}");
        assert!(cuts > 0 && pair.ends.iter().all(|end| end.machine.queued() == 0));
        assert!(pair.ends.iter().all(|end| end.kept.is_empty()));
    }
}

#[test]
fn two_ends_that_only_send_do_not_run_out_of_credits() {
    let mut pair = Pair::new();
    pair.connect();
    for number in 0..500 {
        pair.send(0, 3, 9, &numbered(number, 5000));
        pair.send(1, 3, 9, &numbered(number, 5000));
    }
    // Both post all they may before anything arrives.
    while pair.post(0) || pair.post(1) {}
    assert!(pair.ends[0].wire.len() < RECEIVES as usize);
    pair.settle();
    assert_eq!((pair.ends[0].got.len(), pair.ends[1].got.len()), (500, 500));
    let credited = pair.ends[0].machine.counts().packets;
    assert!(credited < 1_400, "{credited} packets for 1000 fragments");
}

/// Goal: a message that is kept in a slot is one of the socket's like any other: it counts, asks for an acknowledgement in time,
/// and can be taken back. Method: as many as after which one is asked for, and one more that is cancelled.
#[test]
fn what_is_kept_in_a_slot_is_acknowledged_or_taken_back() {
    let mut pair = Pair::new();
    pair.connect();
    pair.settle();
    for number in 0..u64::from(ACK_INTERVAL_MAX) {
        pair.send_now(0, &numbered(number, 8));
    }
    let machine = &pair.ends[0].machine;
    assert_eq!((machine.queued(), machine.unacked()), (16, 16));
    pair.settle();
    assert_eq!((pair.ends[0].machine.queued(), pair.ends[0].acked), (0, 16));
    assert!(pair.ends[0].kept.is_empty());
    pair.send_now(0, &numbered(16, 100));
    assert_eq!(pair.ends[0].machine.cancel(5, Some(7)), (0, 0));
    assert_eq!(pair.ends[0].machine.cancel(5, Some(6)), (1, 100));
    assert_eq!(pair.ends[0].machine.poll_released(), Some(0));
    assert_eq!(pair.ends[0].machine.queued(), 0);
}

/// Goal: a peer that counts its credits although it grants none goes on. Method: its request says 0, as Linux's does that has no
/// receive buffers yet.
#[test]
fn a_peer_that_grants_no_credits_is_granted_some() {
    let mut pair = Pair::new();
    pair.connect();
    pair.settle();
    pair.cut();
    let [one, other] = &mut pair.ends;
    let asked = one.machine.connect().unwrap();
    let answer = other.machine.asked().unwrap().answer;
    assert!(other.machine.accept());
    let silent = Handshake {
        credits: 0,
        ..answer
    };
    other.machine.established(&asked, &other.map);
    one.machine.established(&silent, &one.map);
    (one.posted, other.posted) = (RECEIVES, RECEIVES);
    for number in 0..10 * u64::from(RECEIVES) {
        pair.send(1, 3, 9, &numbered(number, 8));
    }
    pair.settle();
    assert_eq!(pair.ends[0].got.len(), 10 * RECEIVES as usize);
}

#[test]
fn what_is_cancelled_is_not_sent_again() {
    let mut pair = Pair::new();
    pair.connect();
    pair.settle();
    for (number, port) in [(0, 9), (1, 8), (2, 9), (3, 8)] {
        pair.send(0, 3, port, &numbered(number, 2 * FRAGMENT_LEN));
    }
    // The first is in flight as a whole, the second in part.
    for _ in 0..3 {
        assert!(pair.post(0));
    }
    assert_eq!(
        pair.ends[0].machine.cancel(3, Some(8)),
        (2, 4 * FRAGMENT_LEN)
    );
    assert_eq!(pair.ends[0].machine.cancel(7, None), (0, 0));
    pair.cut();
    pair.connect();
    pair.settle();
    assert_eq!(pair.texts(1), [0, 2]);
    assert_eq!(pair.ends[0].acked, 2);
    // Without a loss, what was begun is finished: the connection stays whole.
    pair.send(0, 3, 8, &numbered(4, 2 * FRAGMENT_LEN));
    assert!(pair.post(0));
    assert_eq!(pair.ends[0].machine.cancel(3, None).0, 1);
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
    pair.settle();
    let got = &pair.ends[0].got;
    assert_eq!(
        (got[0].source, got[0].destination, got[0].payload.len()),
        (PING_PORT, 4000, 0)
    );
    assert_eq!(got.len(), 1, "answers to probes are for no socket");
    // A peer that pings and takes no answers.
    for number in 0..2 * PONGS_MAX as u64 {
        let header = Header {
            sequence: 100 + number,
            source: 4000,
            ..Header::default()
        };
        pair.ends[1]
            .machine
            .handle_packet(&header.emit()[..], room)
            .unwrap();
    }
    assert!(pair.ends[1].machine.queued() <= PONGS_MAX);
    assert!(pair.ends[1].machine.counts().pings_dropped >= PONGS_MAX as u64);
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
    let mut hand =
        |header: Header, len: usize| end.machine.handle_packet(&packet(header, len)[..], room);
    assert_eq!(
        hand(header, 4000),
        Err(Fault::Fragment {
            expected: 4096,
            got: 4000
        })
    );
    assert_eq!(hand(header, 4096), Ok(None));
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
    let short = end.machine.handle_packet(&[0; 4][..], room);
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
