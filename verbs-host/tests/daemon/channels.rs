//! Channels: the daemon hands memory to two clients, and to no third.

use verbs_core::Qpn;
use verbs_core::host::channel::FEATURE;
use verbs_core::host::message::Hello;
use verbs_core::host::number::REST;
use verbs_core::host::quota::Quota;
use verbs_core::host::{Block, Channel, Message};
use verbs_host::{ChannelEnd, Ended, Files};

use crate::bed::{Bed, Client, HERE, USER, first_words, packet};

/// A client that knows channels.
pub(crate) fn join(bed: &mut Bed) -> Client {
    let id = bed.daemon.enter(USER);
    let hello = Message::Hello(Hello {
        features: FEATURE | 1 << 60,
        ..first_words()
    });
    bed.daemon.hear(bed.now, id, &hello.encode());
    let told = bed.told_of(id);
    let [Message::Welcome(welcome)] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(welcome.features, FEATURE, "the daemon knows no other");
    let block = Block::new(welcome.block).expect("a block");
    let token = welcome.token;
    Client { id, block, token }
}

/// The next message for a client, and the files that go with it.
fn next(bed: &mut Bed, client: Client) -> (Message<'static>, Option<Files>) {
    let files = bed.daemon.files_for_next(client.id);
    let bytes = bed.daemon.next_for(client.id).expect("something waits");
    let bytes: &'static [u8] = bytes.to_vec().leak();
    bed.daemon.sent(client.id);
    (Message::decode(bytes).expect("a message"), files)
}

pub(crate) fn open(bed: &mut Bed, one: Client, other: Client) -> u32 {
    bed.say(one, &Message::OpenChannel(other.block.number()));
    let channel = bed.daemon.poll_channel().expect("a channel");
    assert_eq!(channel.ends, [one.id, other.id]);
    assert!(bed.daemon.channel_made(channel.number, true));
    channel.number
}

/// Goal: two clients get the two ends of one channel, whichever asks, once; and the word that one has changed over is
/// passed on behind the packets that it has sent before.
#[test]
fn two_clients_get_the_ends_of_one_channel() {
    let mut bed = Bed::new();
    let [one, other] = [0; 2].map(|_| join(&mut bed));
    bed.say(one, &Message::OpenChannel(other.block.number()));
    // Both ask at the same time.
    bed.say(other, &Message::OpenChannel(one.block.number()));
    let channel = bed.daemon.poll_channel().expect("a channel");
    assert_eq!(bed.daemon.poll_channel(), None);
    assert!(bed.daemon.channel_made(channel.number, true));
    assert!(!bed.daemon.channel_made(channel.number, true), "it is made");
    let number = channel.number;
    for (end, client, peer) in [(0, one, other), (1, other, one)] {
        let (message, files) = next(&mut bed, client);
        assert_eq!(
            message,
            Message::Channel(Channel {
                number,
                end,
                ring_len: channel.ring_len as u32,
                is_new: true,
                blocks: vec![peer.block.number()],
            })
        );
        assert_eq!(files, Some(Files::Channel(ChannelEnd { number, end })));
    }
    let qpn = Qpn::new(other.block.qpns().start + 1);
    bed.send(one, HERE, &packet(qpn, b"before"));
    bed.say(one, &Message::ChangedOver(number));
    bed.say(other, &Message::Lease(5));
    let told = bed.told(other);
    assert!(matches!(told[0], Message::Packets(_)));
    assert_eq!(told[1], Message::ChangedOver(number));
    let Message::Leased(5, Ok(further)) = told[2] else {
        panic!("{told:?}");
    };
    // A further block of the other's: the same channel, without files.
    bed.say(one, &Message::OpenChannel(further));
    let (message, files) = next(&mut bed, one);
    let Message::Channel(news) = message else {
        panic!("{message:?}");
    };
    assert_eq!(
        (news.number, news.end, news.is_new, files),
        (number, 0, false, None)
    );
    assert!(news.blocks.contains(&further) && news.blocks.len() == 2);
    assert_eq!(bed.daemon.poll_channel(), None);
    assert_eq!(bed.daemon.channel_count(), 1);
}

/// Goal: a client hears of another one's end behind all that this one had sent, and knows then that nothing is under way.
#[test]
fn the_end_of_a_client_is_told_behind_its_packets() {
    for changes_over in [true, false] {
        let mut bed = Bed::new();
        let [one, other] = [0; 2].map(|_| join(&mut bed));
        let number = open(&mut bed, one, other);
        let qpn = Qpn::new(other.block.qpns().start + 1);
        bed.send(one, HERE, &packet(qpn, b"before"));
        if changes_over {
            bed.say(one, &Message::ChangedOver(number));
        }
        bed.daemon.leave(bed.now, one.id, Ended::Died);
        let told = bed.told(other);
        assert!(matches!(told[0], Message::Channel(_)), "{told:?}");
        assert!(matches!(told[1], Message::Packets(_)), "{told:?}");
        let gone = Message::Gone(vec![one.block.number()]);
        match changes_over {
            true => assert_eq!(told[2..], [Message::ChangedOver(number), gone]),
            false => assert_eq!(told[2..], [gone]),
        }
    }
}

/// Goal: what waits for a client that does not read is bounded, however many others come and go; it is ended, they are not.
#[test]
fn ends_that_nobody_reads_of_are_bounded() {
    let mut bed = Bed::new();
    let [deaf, sender] = [0; 2].map(|_| join(&mut bed));
    let qpn = Qpn::new(deaf.block.qpns().start + 1);
    let long = packet(qpn, &[7; 4000]);
    while bed.daemon.counters().lost_inward == 0 {
        bed.send(sender, HERE, &long);
    }
    let full = bed.daemon.waiting();
    for _ in 0..100_000 {
        let short = join(&mut bed);
        bed.daemon.leave(bed.now, short.id, Ended::Died);
        // Blocks rest.
        bed.now += REST;
        bed.daemon.expire(bed.now);
        bed.told(sender);
        if !bed.is_there(deaf) {
            break;
        }
        assert!(bed.daemon.waiting() <= full + (1 << 20));
    }
    assert_eq!(bed.daemon.poll_ended(), Some((deaf.id, Ended::Deaf)));
    assert!(bed.is_there(sender));
}

#[test]
fn there_is_no_channel_to_oneself_to_nobody_or_to_who_knows_none() {
    let mut bed = Bed::new();
    let one = join(&mut bed);
    let older = bed.join();
    let unused = (1..4000).find(|n| ![one.block.number(), older.block.number()].contains(n));
    for block in [
        one.block.number(),
        older.block.number(),
        unused.expect("one"),
    ] {
        bed.say(one, &Message::OpenChannel(block));
        assert_eq!(bed.told(one), [Message::NoChannel(block)]);
    }
    bed.say(older, &Message::OpenChannel(one.block.number()));
    assert_eq!(bed.told(older), [Message::NoChannel(one.block.number())]);
    assert_eq!(bed.daemon.poll_channel(), None);
    // The system has no memory: packets pass through the daemon, and it can be tried again.
    let other = join(&mut bed);
    bed.told(one);
    for _ in 0..3 {
        bed.say(one, &Message::OpenChannel(other.block.number()));
        let channel = bed.daemon.poll_channel().expect("a channel");
        assert!(!bed.daemon.channel_made(channel.number, false));
        assert_eq!(bed.told(one), [Message::NoChannel(other.block.number())]);
    }
    open(&mut bed, one, other);
}

/// Goal: one that does not take what it asks for, or asks for everything, is bounded; what a client had comes back.
#[test]
fn channels_are_bounded_and_come_back() {
    let mut bed = Bed::new();
    let greedy = join(&mut bed);
    let others: Vec<_> = (0..300).map(|_| join(&mut bed)).collect();
    let asked = |bed: &mut Bed, other: Client| {
        bed.say(greedy, &Message::OpenChannel(other.block.number()));
        bed.daemon.poll_channel()
    };
    let new_max = Quota::NewChannels.max() as usize;
    let mut open = Vec::new();
    for (k, &other) in others.iter().enumerate() {
        let channel = asked(&mut bed, other);
        assert_eq!(channel.is_some(), k < new_max);
        open.extend(channel);
    }
    let told = bed.told(greedy);
    assert_eq!(told.len(), others.len() - new_max);
    assert!(told.iter().all(|it| matches!(it, Message::NoChannel(_))));
    // It changes over, and may have more, up to the limit of all.
    for channel in open {
        assert!(bed.daemon.channel_made(channel.number, true));
        bed.say(greedy, &Message::ChangedOver(channel.number));
    }
    let mut count = new_max;
    for &other in &others[new_max..] {
        if let Some(channel) = asked(&mut bed, other) {
            bed.daemon.channel_made(channel.number, true);
            bed.say(greedy, &Message::ChangedOver(channel.number));
            count += 1;
        }
    }
    assert_eq!(count, Quota::Channels.max() as usize);
    assert_eq!(bed.daemon.channel_count(), count);
    // One that had none is as good as before when the greedy one has gone.
    bed.daemon.leave(bed.now, greedy.id, Ended::Died);
    assert_eq!(bed.daemon.channel_count(), 0);
    let infos = bed.daemon.clients();
    assert!(infos.iter().all(|info| {
        info.usage.of(Quota::Channels) == 0 && info.usage.of(Quota::NewChannels) == 0
    }));
}

/// Goal: a report that a neighbour breaks the rules ends their channel for good, and costs the neighbour nothing else.
#[test]
fn a_broken_channel_is_not_made_again() {
    let mut bed = Bed::new();
    let [one, other, third] = [0; 3].map(|_| join(&mut bed));
    open(&mut bed, one, other);
    for client in [one, other] {
        bed.told(client);
    }
    bed.say(one, &Message::Broken(other.block.number()));
    for (from, to) in [(one, other), (other, one)] {
        bed.say(from, &Message::OpenChannel(to.block.number()));
        assert_eq!(bed.told(from), [Message::NoChannel(to.block.number())]);
    }
    assert!(bed.is_there(other));
    open(&mut bed, third, other);
    assert_eq!(bed.daemon.counters().broken_neighbours, 1);
    // A client that dies while the files are being made.
    let [late, gone] = [0; 2].map(|_| join(&mut bed));
    bed.say(late, &Message::OpenChannel(gone.block.number()));
    let channel = bed.daemon.poll_channel().expect("a channel");
    bed.daemon.leave(bed.now, gone.id, Ended::Died);
    assert!(!bed.daemon.channel_made(channel.number, true));
    assert_eq!(bed.told(late), [Message::Gone(vec![gone.block.number()])]);
}

#[test]
fn who_says_nonsense_of_channels_loses_its_own() {
    for what in 0..4 {
        let mut bed = Bed::new();
        let [one, other, bad] = [0; 3].map(|_| join(&mut bed));
        let number = open(&mut bed, one, other);
        match what {
            0 => bed.say(bad, &Message::ChangedOver(number)),
            1 => bed.say(bad, &Message::OpenChannel(0x3fff)),
            2 => bed.say(bad, &Message::NoChannel(1)),
            _ => {
                let number = open(&mut bed, bad, one);
                bed.say(bad, &Message::ChangedOver(number));
                bed.say(bad, &Message::ChangedOver(number));
            }
        }
        assert_eq!(
            bed.daemon.poll_ended().map(|(id, _)| id),
            Some(bad.id),
            "{what}"
        );
        assert!(bed.is_there(one) && bed.is_there(other));
    }
}
