//! The daemon with clients that keep to the rules, and with some that do not.

mod bed;
mod channels;
mod claims;
mod limits;
mod lists;
mod seeds;
mod sockets;

use std::net::IpAddr;
use std::time::Duration;

use bed::{Bed, Client, HERE, packet, rep, req, rtu, service_of};
use verbs_cm::wire::{CommId, Dreq, Message as CmMessage};
use verbs_core::Qpn;
use verbs_core::host::message::{No, NotListening, Packets, VERSION, VERSION_LEAST};
use verbs_core::host::quota::Quota;
use verbs_core::host::{Block, Message};
use verbs_host::Ended;

fn away() -> IpAddr {
    "192.0.2.9".parse().expect("an address")
}

/// Goal: packets are delivered to the client that has the queue pair number, whatever their source; other clients
/// receive nothing.
#[test]
fn packets_go_to_whom_their_number_belongs() {
    let mut bed = Bed::new();
    let [one, other, third] = [0; 3].map(|_| bed.join());
    let qpn = Qpn::new(other.block.qpns().start + 0x20);
    let bytes = packet(qpn, b"hello");
    bed.send(one, HERE, &bytes);
    let got = bed.packets(other);
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].0, &got[0].1), (Some(0), &bytes));
    assert!(bed.packets(third).is_empty() && bed.packets(one).is_empty());

    // One burst to two clients: each packet keeps its identification.
    let to_third = packet(Qpn::new(third.block.qpns().start + 1), b"hello");
    let burst = [&bytes[..], &to_third, &to_third].concat();
    bed.send_burst(one, HERE, bytes.len() as u16, &burst);
    assert_eq!(bed.packets(other), [(Some(0), bytes.clone())]);
    let two = [(Some(1), to_third.clone()), (Some(2), to_third)];
    assert_eq!(bed.packets(third), two);

    // From the network.
    bed.arrive(away(), &bytes);
    assert_eq!(bed.packets(other), [(None, bytes.clone())]);
    // For no client.
    bed.arrive(away(), &packet(Qpn::new(0xff_0000), b"stray"));
    bed.arrive(away(), b"short");
    assert_eq!(bed.daemon.counters().strangers, 2);
    // To the network.
    bed.send(one, away(), &bytes);
    let outward = bed.daemon.next_outward().expect("it leaves");
    assert_eq!((outward.dst, outward.bytes), (away(), &bytes[..]));
    bed.daemon.outward_sent();
    assert_eq!(bed.daemon.next_outward(), None);
    // From an address that is not the port's.
    bed.say(
        one,
        &Message::Packets(Packets {
            src: away(),
            ..bed::burst(HERE, bytes.len() as u16, &bytes)
        }),
    );
    assert!(bed.packets(other).is_empty());
    assert_eq!(bed.daemon.counters().refused, 1);
    assert!(bed.is_there(one), "an address may just have gone");
}

/// Goal: messages of the connection manager are delivered one by one, and each keeps its identification; each burst
/// is counted where it went.
#[test]
fn messages_of_one_burst_keep_their_identifications() {
    let mut bed = Bed::new();
    let [one, other] = [0; 2].map(|_| bed.join());
    bed.say(other, &Message::Listen(1, service_of(7)));
    assert_eq!(bed.told(other), [Message::Listening(1, Ok(()))]);
    let requests = [0x21, 0x22, 0x23].map(|id| {
        let qpn = Qpn::new(one.block.qpns().start + id);
        bed::cm_packet(&req(CommId(id), 7, qpn))
    });
    let before = bed.daemon.counters().inward;
    bed.send_burst(one, HERE, requests[0].len() as u16, &requests.concat());
    let got = bed.packets(other);
    let expected: Vec<_> = (0..).map(Some).zip(requests).collect();
    assert_eq!(got, expected);
    assert_eq!(bed.daemon.counters().inward, before + 3);
}

/// Goal: a client that breaks the rules of the line loses its line, and its neighbours only notice that it
/// has ended.
#[test]
fn who_breaks_the_rules_loses_its_own() {
    let hello = bed::hello(1, VERSION).encode();
    let garbage: [(&str, Vec<u8>); 8] = [
        ("nothing", Vec::new()),
        ("text", b"GET / HTTP/1.1".to_vec()),
        ("a kind that is none", [&[99][..], &[0; 15]].concat()),
        ("a second hello", hello.clone()),
        ("a daemon's message", Message::Leased(1, Ok(1)).encode()),
        ("a block of another", Message::Return(1).encode()),
        (
            "a listener that is none",
            Message::Unlisten(service_of(9)).encode(),
        ),
        ("more than fits", vec![0; 70_000]),
    ];
    for (what, bytes) in garbage {
        let mut bed = Bed::new();
        let [good, bad] = [0; 2].map(|_| bed.join());
        bed.say_bytes(bad, &bytes);
        let ended = bed.daemon.poll_ended().map(|(id, _)| id);
        assert_eq!(ended, Some(bad.id), "{what}");
        assert!(bed.is_there(good) && !bed.is_there(bad), "{what}");
        assert_eq!(bed.daemon.counters().broken_lines, 1, "{what}");
        bed.others_hear();
        assert_eq!(
            bed.told(good),
            [Message::Gone(vec![bad.block.number()])],
            "{what}"
        );
        // A stranger that sends this first never becomes a client.
        let stranger = bed.daemon.enter(bed::USER);
        if bytes != hello {
            bed.daemon.hear(bed.now, stranger, &bytes);
            assert_eq!(
                bed.daemon.poll_ended().map(|(id, _)| id),
                Some(stranger),
                "{what}"
            );
            assert!(bed.told(good).is_empty(), "{what}");
        }
    }
}

#[test]
fn versions_are_agreed_on_or_both_are_named() {
    let mut bed = Bed::new();
    for (lowest, highest) in [(VERSION + 1, VERSION + 5), (0, 0)] {
        let id = bed.daemon.enter(bed::USER);
        bed.daemon
            .hear(bed.now, id, &bed::hello(lowest, highest).encode());
        let no = No::Version {
            lowest: VERSION_LEAST,
            highest: VERSION,
        };
        assert_eq!(bed.told_of(id), [Message::No(no)]);
        assert_eq!(bed.daemon.poll_ended(), Some((id, Ended::Refused(no))));
        assert_eq!(bed.daemon.counters().broken_lines, 0, "it broke no rule");
    }
    let id = bed.daemon.enter(bed::USER);
    bed.daemon.hear(bed.now, id, &bed::hello(1, 900).encode());
    assert!(
        matches!(&bed.told_of(id)[..], [Message::Welcome(welcome)] if welcome.version == VERSION)
    );
}

/// Goal: each quota holds, has its own error, and takes nothing from others; blocks rest.
#[test]
fn quotas_hold() {
    let mut bed = Bed::new();
    let [one, other] = [0; 2].map(|_| bed.join());
    let mut blocks = vec![one.block];
    for tag in 1..u64::from(Quota::Blocks.max()) {
        bed.say(one, &Message::Lease(tag));
        let [Message::Leased(got, Ok(block))] = bed.told(one)[..] else {
            panic!("a block");
        };
        assert_eq!(got, tag);
        blocks.push(Block::new(block).expect("a block"));
    }
    bed.say(one, &Message::Lease(9));
    let refused = Err(No::Quota(Quota::Blocks.exceeded()));
    assert_eq!(bed.told(one), [Message::Leased(9, refused)]);
    bed.say(one, &Message::Return(blocks[2].number()));
    assert!(bed.told(other).is_empty(), "it has never had to do with it");
    bed.others_hear();
    assert_eq!(bed.told(other), [Message::Gone(vec![blocks[2].number()])]);
    let all = Quota::Blocks.max() as usize;
    assert_eq!(bed.daemon.block_counts(bed.now), (all, 1));
    bed.say(one, &Message::Lease(10));
    assert!(
        matches!(bed.told(one)[..], [Message::Leased(10, Ok(block))] if block != blocks[2].number())
    );

    for port in 0..Quota::Listeners.max() as u16 {
        bed.say(one, &Message::Listen(u64::from(port), service_of(port)));
        assert_eq!(bed.told(one), [Message::Listening(u64::from(port), Ok(()))]);
    }
    bed.say(one, &Message::Listen(1, service_of(9999)));
    let refused = Err(NotListening::Quota(Quota::Listeners.exceeded()));
    assert_eq!(bed.told(one), [Message::Listening(1, refused)]);
    bed.say(other, &Message::Listen(2, service_of(3)));
    assert_eq!(
        bed.told(other),
        [Message::Listening(2, Err(NotListening::InUse))]
    );
    bed.say(one, &Message::Unlisten(service_of(3)));
    bed.say(other, &Message::Listen(3, service_of(3)));
    assert_eq!(bed.told(other), [Message::Listening(3, Ok(()))]);

    let commands = u64::from(Quota::Commands.max());
    for tag in 0..=commands {
        bed.say(one, &Message::Command(tag, b"verb"));
    }
    let done = bed.told(one);
    assert!(
        matches!(done[..], [Message::Done(tag, _)] if tag == commands),
        "{done:?}"
    );
    let issued: Vec<_> = std::iter::from_fn(|| bed.daemon.poll_command()).collect();
    assert_eq!(issued.len() as u64, commands);
    bed.daemon.answer(one.id, 0, b"result");
    bed.say(one, &Message::Command(7, b"verb"));
    assert!(bed.daemon.poll_command().is_some(), "one was answered");
}

/// Goal: a client that does not read costs a bounded amount of memory and loses packets; a client with more messages
/// than it ever reads is ended. The others are served.
#[test]
fn who_never_reads_is_no_burden() {
    let mut bed = Bed::new();
    let [deaf, one] = [0; 2].map(|_| bed.join());
    let qpn = Qpn::new(deaf.block.qpns().start + 0x20);
    let bytes = packet(qpn, &[7; 4000]);
    for _ in 0..5000 {
        bed.send(one, HERE, &bytes);
    }
    assert!(bed.daemon.waiting() <= 5 << 20, "{}", bed.daemon.waiting());
    assert!(bed.daemon.counters().lost_inward > 0);
    assert!(bed.is_there(deaf), "loss is what networks do");
    for tag in 0..200_000 {
        bed.say(deaf, &Message::Listen(tag, service_of(1)));
    }
    assert_eq!(bed.daemon.poll_ended(), Some((deaf.id, Ended::Deaf)));
    assert!(bed.daemon.waiting() < 1000);
    bed.say(one, &Message::Lease(1));
    let told = bed.told(one);
    assert!(
        matches!(told[..], [Message::Gone(_), Message::Leased(1, Ok(_))]),
        "{told:?}"
    );
    // The number that it listened at is free again.
    bed.say(one, &Message::Listen(2, service_of(1)));
    assert_eq!(bed.told(one), [Message::Listening(2, Ok(()))]);
}

/// Goal: a flood to the network takes nothing from another client, and its memory is bounded.
#[test]
fn a_flood_to_the_network_is_bounded() {
    let mut bed = Bed::new();
    let [flood, one] = [0; 2].map(|_| bed.join());
    let bytes = packet(Qpn::new(0x99), &[1; 1000]);
    for _ in 0..10_000 {
        bed.send(flood, away(), &bytes);
    }
    assert!(bed.daemon.counters().lost_outward > 8000);
    let mine = packet(Qpn::new(0x77), &[2; 1000]);
    bed.send(one, away(), &mine);
    let mut before = 0;
    while bed.daemon.next_outward().expect("it is there").bytes != mine {
        bed.daemon.outward_sent();
        before += 1;
    }
    assert!(before < 80, "{before} packets of the flood went first");
}

/// Goal: what a client sent before its end leaves: its sends have completed. Method: clients that end each way, a datagram
/// of each not sent yet.
#[test]
fn what_a_client_sent_before_its_end_leaves() {
    let mut bed = Bed::new();
    let bytes = packet(Qpn::new(0x99), b"last words");
    for why in [Ended::Closed, Ended::Died] {
        let client = bed.join();
        bed.send(client, away(), &bytes);
        bed.daemon.leave(bed.now, client.id, why);
    }
    let malformed = bed.join();
    bed.send(malformed, away(), &bytes);
    bed.daemon.hear(bed.now, malformed.id, b"nonsense");
    assert!(!bed.is_there(malformed));
    for _ in 0..3 {
        let outward = bed.daemon.next_outward().expect("it leaves");
        assert_eq!((outward.dst, outward.bytes), (away(), &bytes[..]));
        bed.daemon.outward_sent();
    }
    assert_eq!(bed.daemon.next_outward(), None);
    assert_eq!(bed.daemon.counters().lost_outward, 0);
}

/// Goal: connections between two clients, and with a peer of the network, by the messages of the connection manager;
/// when a client dies, its peers are informed, once, and nothing of it is left.
#[test]
fn peers_of_a_dead_client_are_told() {
    let mut bed = Bed::new();
    let [server, client, third] = [0; 3].map(|_| bed.join());
    bed.say(server, &Message::Listen(1, service_of(7174)));
    assert_eq!(bed.told(server), [Message::Listening(1, Ok(()))]);
    let [ours, theirs] = [CommId(0x1111), CommId(0x2222)];
    let [our_qpn, their_qpn] = [client, server].map(|of| Qpn::new(of.block.qpns().start + 0x30));

    bed.send_cm(client, HERE, &req(ours, 7174, our_qpn));
    assert_eq!(bed.messages(server), [req(ours, 7174, our_qpn)]);
    bed.send_cm(server, HERE, &rep(theirs, ours, their_qpn));
    assert_eq!(bed.messages(client), [rep(theirs, ours, their_qpn)]);
    bed.send_cm(client, HERE, &rtu(ours, theirs));
    assert_eq!(bed.messages(server), [rtu(ours, theirs)]);
    // A client may neither end nor continue another's connection.
    bed.send_cm(third, HERE, &rtu(ours, theirs));
    assert!(bed.messages(server).is_empty());
    assert_eq!(bed.daemon.counters().refused, 1);

    // A connection with a peer of the network, which sends the request.
    let [remote, answer] = [CommId(0x3333), CommId(0x4444)];
    bed.arrive_cm(away(), &req(remote, 7174, Qpn::new(0x55)));
    assert_eq!(bed.messages(server).len(), 1);
    bed.send_cm(server, away(), &rep(answer, remote, their_qpn));
    bed.arrive_cm(away(), &rtu(remote, answer));
    assert_eq!(bed.messages(server), [rtu(remote, answer)]);

    bed.daemon.leave(bed.now, server.id, Ended::Died);
    let gone = [Message::Gone(vec![server.block.number()])];
    assert_eq!(bed.told(client), gone, "at once");
    assert!(bed.told(third).is_empty(), "it is no neighbour");
    // Unless it becomes one now.
    bed.send(third, HERE, &packet(their_qpn, b"hello"));
    assert_eq!(bed.told(third), gone);
    bed.others_hear();
    assert!(bed.told(client).is_empty(), "once");
    let mut told = Vec::new();
    while let Some(mad) = bed.daemon.poll_mad() {
        let (_, message) = CmMessage::parse(&mad.mad).expect("a message");
        let CmMessage::Dreq(dreq) = message else {
            panic!("{message:?}");
        };
        assert_eq!(mad.src, HERE);
        told.push((mad.dst, dreq.local_id, dreq.remote_id, dreq.remote_qpn));
        if mad.dst == HERE {
            bed.arrive_cm(HERE, &message);
        }
    }
    told.sort();
    let expected = [
        (HERE, theirs, ours, our_qpn),
        (away(), answer, remote, Qpn::new(0x55)),
    ];
    assert_eq!(told, expected);
    assert!(matches!(bed.messages(client)[..], [CmMessage::Dreq(_)]));
    assert_eq!(bed.daemon.counters().farewells, 2);

    // The daemon itself rejects a request that no client serves any longer.
    bed.arrive_cm(away(), &req(CommId(0x5555), 7174, Qpn::new(0x56)));
    let rejected = bed.daemon.poll_mad().expect("an answer");
    let (_, message) = CmMessage::parse(&rejected.mad).expect("a message");
    assert!(matches!(message, CmMessage::Rej(rej) if rej.remote_id == CommId(0x5555)));
    assert_eq!(rejected.dst, away());
}

/// Goal: two clients that draw the same id both connect, and each gets its own messages; a third gains nothing by it.
/// Method: the ids are equal on the side that asks, and on the side that is asked.
#[test]
fn two_clients_may_draw_the_same_id() {
    let mut bed = Bed::new();
    let [server, first, second, third] = [0; 4].map(|_| bed.join());
    bed.say(server, &Message::Listen(1, service_of(7174)));
    bed.told(server);
    let same = CommId(0x1111);
    let answers = [CommId(0x2221), CommId(0x2222)];
    let qpn = |of: Client| Qpn::new(of.block.qpns().start + 0x30);

    bed.send_cm(first, HERE, &req(same, 7174, qpn(first)));
    assert_eq!(bed.messages(server).len(), 1);
    // Its answer is not there yet, so nothing tells them apart: the next repetition gets through.
    bed.send_cm(second, away(), &req(same, 7174, qpn(second)));
    assert!(bed.daemon.next_outward().is_none());
    bed.send_cm(server, HERE, &rep(answers[0], same, qpn(server)));
    assert_eq!(bed.messages(first).len(), 1);
    bed.send_cm(second, away(), &req(same, 7174, qpn(second)));
    assert!(bed.daemon.next_outward().is_some());
    let answer = rep(answers[1], same, Qpn::new(0x77));
    bed.arrive_cm(away(), &answer);
    assert_eq!(bed.messages(second), [answer]);
    assert!(bed.messages(first).is_empty());

    // Neither ends the other's connection, and a third client ends none.
    let dreq = |remote_id, remote_qpn| {
        CmMessage::Dreq(Dreq {
            local_id: same,
            remote_id,
            remote_qpn,
            ..Dreq::default()
        })
    };
    bed.send_cm(second, HERE, &dreq(answers[0], qpn(server)));
    bed.send_cm(third, HERE, &dreq(answers[0], qpn(server)));
    bed.send_cm(third, HERE, &dreq(CommId(0x9999), qpn(server)));
    bed.send_cm(third, HERE, &rep(same, answers[0], qpn(third)));
    assert!(bed.messages(server).is_empty());
    let clients = bed.daemon.clients();
    let counts = clients.iter().map(|of| of.usage.of(Quota::Connections));
    assert!(counts.eq([1, 1, 1, 0]), "{clients:?}");

    // The end of one is not the other's.
    bed.daemon.leave(bed.now, first.id, Ended::Died);
    bed.told(server);
    let farewell = bed.daemon.poll_mad().expect("one peer");
    assert_eq!((farewell.dst, bed.daemon.poll_mad()), (HERE, None));
    let hello = rtu(answers[1], same);
    bed.arrive_cm(away(), &hello);
    assert!(bed.messages(second).contains(&hello));
    // An id of a connection that has ended is free.
    bed.send_cm(second, away(), &dreq(answers[1], Qpn::new(0x77)));
    bed.send_cm(third, HERE, &req(same, 7174, qpn(third)));
    assert_eq!(bed.messages(server), [req(same, 7174, qpn(third))]);
    bed.send_cm(server, HERE, &rep(CommId(0x2223), same, qpn(server)));
    assert_eq!(bed.messages(third).len(), 1);
}

/// Goal: 200 clients that connect and die in storms leave nothing: neither numbers, listeners nor memory. One that has had
/// nothing to do with them is told of all, and not woken by each.
#[test]
fn a_storm_of_deaths_leaves_nothing() {
    let mut bed = Bed::new();
    let witness = bed.join();
    let (mut alive, mut gone, mut wakes) = (Vec::new(), 0, 0);
    for round in 0..600_u16 {
        let client = bed.join();
        bed.say(client, &Message::Listen(1, service_of(round % 50)));
        bed.say(client, &Message::Lease(2));
        bed.say(
            client,
            &Message::Join("239.1.2.3".parse().expect("a group")),
        );
        alive.push(client);
        if alive.len() == 200 {
            // Any of them.
            let dies = alive.swap_remove(usize::from(round) * 7 % 200);
            bed.daemon.leave(bed.now, dies.id, Ended::Died);
        }
        bed.now += Duration::from_millis(10);
        bed.daemon.expire(bed.now);
        for told in bed.told(witness) {
            let Message::Gone(blocks) = told else {
                panic!("{told:?}");
            };
            gone += blocks.len();
            wakes += 1;
        }
    }
    // Of 401 that have died, within 4 s.
    assert!(
        gone > 2 * 380 && wakes <= 20,
        "{gone} blocks, {wakes} wakes"
    );
    for client in alive {
        bed.daemon.leave(bed.now, client.id, Ended::Died);
    }
    bed.told(witness);
    assert_eq!(bed.daemon.clients().len(), 1);
    assert_eq!(bed.daemon.waiting(), 0);
    let (leased, _) = bed.daemon.block_counts(bed.now);
    assert_eq!(leased, 1, "the witness has one");
    bed.now += Duration::from_secs(120);
    assert_eq!(bed.daemon.block_counts(bed.now), (1, 0));
    let mut joined = 0_i32;
    while let Some(change) = bed.daemon.poll_group() {
        joined += if change.joins { 1 } else { -1 };
    }
    assert_eq!(joined, 0);
    for port in 0..50 {
        bed.say(witness, &Message::Listen(1, service_of(port)));
        assert_eq!(bed.told(witness), [Message::Listening(1, Ok(()))]);
    }
}

/// Goal: packets to a group go to its members, each once.
#[test]
fn groups_have_members() {
    let mut bed = Bed::new();
    let [one, other, third] = [0; 3].map(|_| bed.join());
    let group = "239.1.2.3".parse().expect("a group");
    for (client, times) in [(one, 2), (other, 1)] {
        for _ in 0..times {
            bed.say(client, &Message::Join(group));
        }
    }
    assert!(bed.daemon.poll_group().is_some_and(|change| change.joins));
    assert_eq!(bed.daemon.poll_group(), None);
    let bytes = packet(Qpn::MULTICAST, b"all");
    bed.arrive_at(away(), group, &bytes);
    assert_eq!(
        [one, other, third].map(|client| bed.packets(client).len()),
        [1, 1, 0]
    );
    bed.say(one, &Message::Leave(group));
    bed.say(other, &Message::Leave(group));
    bed.arrive_at(away(), group, &bytes);
    assert_eq!([one, other].map(|client| bed.packets(client).len()), [1, 0]);
    bed.say(one, &Message::Leave(group));
    assert!(bed.daemon.poll_group().is_some_and(|change| !change.joins));
    // An address that is not a group ends the line.
    bed.say(one, &Message::Join(HERE));
    assert!(!bed.is_there(one));
}
