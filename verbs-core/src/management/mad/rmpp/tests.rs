//! Goal: transfers arrive whole whatever the wire loses, and end when the peer breaks the protocol.
//! Method: a sender and a receiver over a wire in virtual time, seeded; single datagrams for errors.

use super::*;
use crate::mad::header::{Class, MadHeader, Method, TransactionId, emit_header};
use crate::time::Instant;

fn template() -> MadBytes {
    let mut mad = [0; MAD_LEN];
    let header = MadHeader {
        base_version: 1,
        class: Class::SA,
        class_version: 2,
        method: Method::GET_TABLE_RESP,
        tid: TransactionId(0x1234),
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    mad[36..56].fill(0x5a);
    mad
}

/// A generator of bits: enough for losing one datagram in eight.
struct Dice(u64);

impl Dice {
    fn one_in(&mut self, n: u64) -> bool {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33).is_multiple_of(n)
    }
}

/// Runs a transfer to its end; returns what arrived and how many datagrams it took.
fn transfer(payload: &[u8], dice: &mut Dice) -> (Vec<u8>, u32) {
    let config = RmppConfig {
        window_segments: 5,
        retries_max: 100,
        ..RmppConfig::default()
    };
    let mut sender = Sender::new(&template(), Layout::SA, payload.to_vec(), config).unwrap();
    let mut receiver: Option<Receiver> = None;
    let (mut now, mut datagrams, mut arrived) = (Instant::ZERO, 0, None);
    while sender.outcome().is_none() {
        while let Some(mad) = sender.poll_transmit(now) {
            datagrams += 1;
            assert_eq!(mad[36..56], [0x5a; 20], "the class header is repeated");
            if dice.one_in(8) {
                continue;
            }
            let receiver =
                receiver.get_or_insert_with(|| Receiver::new(now, &mad, Layout::SA, config));
            receiver.handle(now, &mad);
            match receiver.poll_received() {
                Some(Received::Done(payload)) => assert_eq!(arrived.replace(payload), None),
                Some(Received::Failed(status)) => panic!("{status:?}"),
                None => {}
            }
            let answer = receiver.poll_transmit();
            if let Some(answer) = answer.filter(|_| !dice.one_in(8)) {
                assert_eq!(answer[3], Method::GET_TABLE.0);
                sender.handle(now, &RmppHeader::of(&answer));
            }
        }
        if let Some(deadline) = sender.poll_timeout() {
            now = deadline;
            sender.handle_timeout(now);
        }
    }
    assert_eq!(sender.outcome(), Some(Sent::Done));
    let mut receiver = receiver.unwrap();
    receiver.handle_timeout(receiver.poll_timeout().unwrap());
    assert!(receiver.is_over());
    (arrived.unwrap(), datagrams)
}

#[test]
fn payloads_of_every_length_arrive_over_a_wire_that_loses() {
    let mut dice = Dice(1);
    for len in [0, 1, 199, 200, 201, 400, 1_999, 2_000, 12_345] {
        let payload: Vec<u8> = (0..len).map(|n: u32| n.to_le_bytes()[0]).collect();
        for _ in 0..20 {
            let (arrived, datagrams) = transfer(&payload, &mut dice);
            assert_eq!(arrived, payload);
            assert!(datagrams >= len.div_ceil(200));
        }
    }
}

/// The sender's segments without loss.
fn segments(len: usize) -> Vec<MadBytes> {
    let config = RmppConfig::default();
    let mut sender = Sender::new(&template(), Layout::SA, vec![7; len], config).unwrap();
    let open = RmppHeader {
        version: VERSION,
        kind: Kind::ACK,
        segment: 1,
        length_or_window: 100,
        ..RmppHeader::default()
    };
    let first = sender.poll_transmit(Instant::ZERO).unwrap();
    assert!(
        sender.poll_transmit(Instant::ZERO).is_none(),
        "the window is one segment at first"
    );
    sender.handle(Instant::ZERO, &open);
    let rest = std::iter::from_fn(|| sender.poll_transmit(Instant::ZERO));
    [first].into_iter().chain(rest).collect()
}

#[test]
fn lengths_are_those_of_the_specification() {
    let found: Vec<_> = segments(450).iter().map(RmppHeader::of).collect();
    let lengths: Vec<_> = found.iter().map(|header| header.length_or_window).collect();
    assert_eq!(lengths, [450 + 3 * 20, 0, 50 + 20]);
    assert_eq!(found[2].flags, RmppFlags::ACTIVE | RmppFlags::LAST);
}

type Change = fn(&mut RmppHeader);

/// What a receiver answers to segments of which one header was changed.
fn answer(at: usize, change: impl Fn(&mut RmppHeader)) -> (RmppHeader, Option<Received>) {
    let config = RmppConfig {
        transfer_bytes_max: 1_000,
        ..RmppConfig::default()
    };
    let mut all = segments(450);
    let mut header = RmppHeader::of(&all[at]);
    change(&mut header);
    header.put(&mut all[at]);
    let mut receiver = Receiver::new(Instant::ZERO, &all[0], Layout::SA, config);
    for mad in &all {
        receiver.handle(Instant::ZERO, mad);
    }
    let answer = receiver.poll_transmit().unwrap();
    (RmppHeader::of(&answer), receiver.poll_received())
}

#[test]
fn receivers_refuse_what_breaks_the_protocol() {
    let done = answer(0, |_| {});
    assert_eq!(
        (done.0.kind, done.1),
        (Kind::ACK, Some(Received::Done(vec![7; 450])))
    );
    let cases: [(RmppStatus, usize, Change); 6] = [
        (RmppStatus::BAD_VERSION, 0, |header| header.version = 2),
        (RmppStatus::BAD_KIND, 1, |header| header.kind = Kind(9)),
        (RmppStatus::INCONSISTENT_FIRST, 1, |header| {
            header.flags |= RmppFlags::FIRST;
        }),
        (RmppStatus::INCONSISTENT_LENGTH, 2, |header| {
            header.length_or_window = 221;
        }),
        (RmppStatus::INCONSISTENT_LENGTH, 2, |header| {
            header.length_or_window = 19;
        }),
        (RmppStatus::INCONSISTENT_LENGTH, 0, |header| {
            header.length_or_window = 1;
        }),
    ];
    for (status, at, change) in cases {
        let (header, received) = answer(at, change);
        assert_eq!((header.kind, header.status), (Kind::ABORT, status));
        assert_eq!(received, Some(Received::Failed(status)));
    }
    let (header, received) = answer(2, |header| header.flags = RmppFlags::ACTIVE);
    assert_eq!(
        (header.kind, received),
        (Kind::ACK, None),
        "more is to come"
    );
}

#[test]
fn receivers_take_no_more_than_their_limit_and_do_not_wait_for_ever() {
    let config = RmppConfig {
        transfer_bytes_max: 300,
        ..RmppConfig::default()
    };
    let all = segments(450);
    let mut receiver = Receiver::new(Instant::ZERO, &all[0], Layout::SA, config);
    receiver.handle(Instant::ZERO, &all[0]);
    receiver.handle(Instant::ZERO, &all[1]);
    let stop = RmppHeader::of(&receiver.poll_transmit().unwrap());
    assert_eq!(
        (stop.kind, stop.status),
        (Kind::STOP, RmppStatus::RESOURCES)
    );

    let mut silent = Receiver::new(Instant::ZERO, &all[0], Layout::SA, config);
    silent.handle(Instant::ZERO, &all[0]);
    silent.handle_timeout(Instant::ZERO + config.receive_idle_max);
    assert_eq!(
        silent.poll_received(),
        Some(Received::Failed(RmppStatus::TOTAL_TIME))
    );
}

#[test]
fn senders_abort_on_nonsense_and_give_up_on_silence() {
    let config = RmppConfig::default();
    let ack = |segment, window| RmppHeader {
        version: VERSION,
        kind: Kind::ACK,
        segment,
        length_or_window: window,
        ..RmppHeader::default()
    };
    let cases = [
        (ack(2, 9), RmppStatus::SEGMENT_TOO_BIG),
        (ack(1, 0), RmppStatus::WINDOW_TOO_SMALL),
        (
            RmppHeader {
                kind: Kind::DATA,
                ..ack(1, 9)
            },
            RmppStatus::BAD_KIND,
        ),
        (
            RmppHeader {
                version: 3,
                ..ack(1, 9)
            },
            RmppStatus::BAD_VERSION,
        ),
    ];
    for (header, status) in cases {
        let mut sender = Sender::new(&template(), Layout::SA, vec![0; 900], config).unwrap();
        sender.poll_transmit(Instant::ZERO).unwrap();
        sender.handle(Instant::ZERO, &header);
        let farewell = RmppHeader::of(&sender.poll_transmit(Instant::ZERO).unwrap());
        assert_eq!((farewell.kind, farewell.status), (Kind::ABORT, status));
        assert_eq!(sender.outcome(), Some(Sent::Failed(status)));
        assert!(sender.poll_transmit(Instant::ZERO).is_none());
    }

    let mut sender = Sender::new(&template(), Layout::SA, vec![0; 900], config).unwrap();
    let (mut now, mut sent) = (Instant::ZERO, 0);
    while sender.outcome().is_none() {
        sent += u32::from(sender.poll_transmit(now).is_some());
        now = sender.poll_timeout().unwrap();
        sender.handle_timeout(now);
    }
    assert_eq!(sent, 1 + config.retries_max);
    assert_eq!(
        sender.outcome(),
        Some(Sent::Failed(RmppStatus::TOO_MANY_RETRIES))
    );
}

#[test]
fn an_acknowledgement_that_was_overtaken_changes_nothing() {
    let config = RmppConfig::default();
    let mut sender = Sender::new(&template(), Layout::SA, vec![0; 1_000], config).unwrap();
    let ack = |segment| RmppHeader {
        version: VERSION,
        kind: Kind::ACK,
        segment,
        length_or_window: 4,
        ..RmppHeader::default()
    };
    sender.poll_transmit(Instant::ZERO).unwrap();
    sender.handle(Instant::ZERO, &ack(1));
    while sender.poll_transmit(Instant::ZERO).is_some() {}
    sender.handle(Instant::ZERO, &ack(3));
    sender.handle(Instant::ZERO, &ack(2));
    let deadline = sender.poll_timeout().unwrap();
    sender.handle_timeout(deadline);
    let again = sender.poll_transmit(deadline).unwrap();
    assert_eq!(RmppHeader::of(&again).segment, 4);
}

/// Goal: a sender has no more segments under way than its own window, whatever the receiver allows. Method: a receiver
/// that allows all of them from the first on.
#[test]
fn a_sender_keeps_to_its_own_window() {
    let config = RmppConfig {
        window_segments: 2,
        ..RmppConfig::default()
    };
    let payload = vec![7; 2_000];
    let mut sender = Sender::new(&template(), Layout::SA, payload, config).unwrap();
    let now = Instant::ZERO;
    let mut sent = 0;
    let mut under_way = |sender: &mut Sender| {
        sent += std::iter::from_fn(|| sender.poll_transmit(now)).count();
        sent
    };
    assert_eq!(under_way(&mut sender), 1);
    for (acknowledged, expected) in [(1, 3), (2, 4), (4, 6), (6, 8), (8, 10)] {
        let header = RmppHeader {
            version: VERSION,
            kind: Kind::ACK,
            segment: acknowledged,
            length_or_window: 100,
            ..RmppHeader::default()
        };
        sender.handle(now, &header);
        assert_eq!(under_way(&mut sender), expected);
    }
}
