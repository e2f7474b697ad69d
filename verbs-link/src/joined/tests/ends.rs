//! Neighbours that have ended: what they had written is read first, whatever the client hears first.

use super::near::{arrived, beside, is_quiet, offer_of, packet, said, send, texts, write};
use super::*;
use crate::ring::Rings;

/// More messages than are read of a channel in one turn.
const MESSAGES: u8 = 10;

/// Writes messages for the client's queue pairs.
fn write_all(bed: &Bed, rings: &mut Rings) {
    let here = bed.link.addresses()[0];
    for k in 0..MESSAGES {
        let _ = write(
            rings,
            &near::message(here, here, 64, &packet(qpn(5, 0x10), &[k])),
        );
    }
}

/// Reads until the numbers of that block are reported as gone. Returns the messages before.
fn until_gone(link: &mut Joined, block: u16) -> Vec<u8> {
    let mut got = Vec::new();
    for _ in 0..=MESSAGES {
        got.extend(texts(link).concat());
        match link.gone() {
            Some(gone) => {
                assert_eq!(gone, qpns(block));
                return got;
            }
            None => assert!(got.len() <= MESSAGES.into()),
        }
    }
    panic!("after {got:?} nothing is gone");
}

fn all() -> Vec<u8> {
    (0..MESSAGES).collect()
}

/// Goal: a neighbour that dies before its message arrives that it has changed over is read to the end. Method: the
/// message never comes, because it waited for room in the socket of a program that was killed.
#[test]
fn a_neighbour_that_dies_while_it_changes_over_is_heard() {
    let (mut bed, mut rings, bell) = beside(false);
    write_all(&bed, &mut rings);
    drop((rings, bell));
    let here = bed.link.addresses()[0];
    let relayed = packet(qpn(5, 0x10), &[0xff]);
    say(
        &bed.daemon,
        &Message::Packets(Packets {
            src: here,
            dst: here,
            tclass: 0,
            hop_limit: 64,
            sport: 4791,
            ident: Some(0),
            segment: 64,
            bytes: &relayed,
        }),
    );
    say(&bed.daemon, &Message::Gone(vec![6]));
    let got = until_gone(&mut bed.link, 6);
    assert_eq!(got, [vec![0xff], all()].concat());
    assert!(bed.link.channels.get_mut(near::NUMBER).is_none());
}

/// Goal: a thread that waits while there is something to be read of a neighbour that has ended does not sleep.
#[test]
fn a_thread_does_not_sleep_while_last_words_wait() {
    let (mut bed, mut rings, bell) = beside(false);
    write_all(&bed, &mut rings);
    say(&bed.daemon, &Message::Gone(vec![6]));
    assert_eq!(texts(&mut bed.link).concat(), all()[..4]);
    assert_eq!(bed.link.gone(), None);
    let waiter = bed.link.waiter().expect("there is one");
    // The first wait may be a wake for the message of the daemon.
    waiter.wait(Some(Duration::ZERO), true);
    let _ = bed.link.waiter.take_heard();
    waiter.wait(Some(near::PATIENCE), true);
    assert!(bed.link.waiter.take_heard().is_some(), "it has slept");
    assert_eq!(until_gone(&mut bed.link, 6), all()[4..]);
    drop((rings, bell));
}

/// Goal: the end of a neighbour's bell is noticed before the message that it has changed over, and nothing is lost. Until
/// then packets to it pass through the daemon.
#[test]
fn a_bell_that_ends_before_the_neighbour_has_changed_over_loses_nothing() {
    for is_told in [true, false] {
        let (mut bed, mut rings, bell) = beside(false);
        write_all(&bed, &mut rings);
        drop((rings, bell));
        let waiter = bed.link.waiter().expect("there is one");
        near::until("the end", || {
            waiter.wait(Some(Duration::from_millis(10)), true);
            arrived(&mut bed.link);
            let channel = bed.link.channels.get_mut(near::NUMBER);
            channel.is_none_or(|channel| channel.is_over)
        });
        assert!(arrived(&mut bed.link).is_empty());
        send(&mut bed.link, &packet(qpn(6, 0x10), b"there"), 64);
        assert!(matches!(said(&bed), Message::Packets(_)));
        // The daemon may name the channel once more.
        offer_of(&bed.daemon, 0, &[6, 7], false, &[]);
        assert!(arrived(&mut bed.link).is_empty());
        for dest in [qpn(6, 0x10), qpn(7, 0x10)] {
            send(&mut bed.link, &packet(dest, b"there"), 64);
            assert!(matches!(said(&bed), Message::Packets(_)));
        }
        assert!(is_quiet(&bed));
        if is_told {
            say(&bed.daemon, &Message::ChangedOver(near::NUMBER));
        }
        say(&bed.daemon, &Message::Gone(vec![6, 7]));
        assert_eq!(until_gone(&mut bed.link, 6), all());
        assert_eq!(bed.link.gone(), Some(qpns(7)));
        assert!(bed.link.channels.get_mut(near::NUMBER).is_none());
    }
}

/// Goal: a neighbour that has no memory for the channel, and lives, costs nothing: its bell ends, and the ring is empty.
#[test]
fn a_channel_that_the_neighbour_never_opened_ends() {
    let (mut bed, rings, bell) = beside(false);
    drop((rings, bell));
    let waiter = bed.link.waiter().expect("there is one");
    near::until("the end", || {
        waiter.wait(Some(Duration::from_millis(10)), true);
        arrived(&mut bed.link);
        bed.link.channels.get_mut(near::NUMBER).is_none()
    });
    send(&mut bed.link, &packet(qpn(6, 0x10), b"there"), 64);
    assert!(matches!(said(&bed), Message::Packets(_)));
    assert_eq!(bed.link.gone(), None, "it lives");
}

/// Goal: blocks of a neighbour of which this process has not heard end with it, not before what it had written is read.
#[test]
fn blocks_that_nobody_has_heard_of_end_with_their_neighbour() {
    let (mut bed, mut rings, bell) = beside(true);
    write_all(&bed, &mut rings);
    drop((rings, bell));
    say(&bed.daemon, &Message::Gone(vec![7, 6]));
    assert_eq!(until_gone(&mut bed.link, 6), all());
    assert_eq!(bed.link.gone(), Some(qpns(7)));
    assert_eq!(bed.link.gone(), None);
}

/// Goal: a neighbour that gives back one of its blocks has not ended: its ring is read when it has changed over.
#[test]
fn a_neighbour_that_gives_back_a_block_goes_on() {
    let (mut bed, mut rings, _bell) = beside(false);
    offer_of(&bed.daemon, 0, &[6, 7], false, &[]);
    write_all(&bed, &mut rings);
    say(&bed.daemon, &Message::Gone(vec![7]));
    for _ in 0..3 {
        assert!(
            arrived(&mut bed.link).is_empty(),
            "packets may be under way through the daemon"
        );
        assert_eq!(bed.link.gone(), None);
    }
    say(&bed.daemon, &Message::ChangedOver(near::NUMBER));
    assert_eq!(until_gone(&mut bed.link, 7), all());
    assert!(bed.link.channels.get_mut(near::NUMBER).is_some());
    let here = bed.link.addresses()[0];
    let _ = write(
        &mut rings,
        &near::message(here, here, 64, &packet(qpn(5, 0x10), b"more")),
    );
    assert_eq!(texts(&mut bed.link), [b"more"]);
}

/// Goal: a neighbour that is said to be gone, lives and writes without end does not keep others from hearing of ends.
#[test]
fn a_neighbour_that_writes_without_end_is_gone_all_the_same() {
    for changes_over in [true, false] {
        let (mut bed, mut rings, _bell) = beside(changes_over);
        let here = bed.link.addresses()[0];
        let text = packet(qpn(5, 0x10), b"and on");
        let words = near::message(here, here, 64, &text);
        while let Ok(Some(_)) = rings.writer.write(words.len(), [&words[..]].into_iter()) {}
        say(&bed.daemon, &Message::Gone(vec![9, 6]));
        let mut turns = 0;
        while bed.link.gone().is_none() {
            arrived(&mut bed.link);
            while let Ok(Some(_)) = rings.writer.write(words.len(), [&words[..]].into_iter()) {}
            turns += 1;
            assert!(turns < near::RING_LEN / 64, "it goes on for ever");
        }
        assert!(bed.link.gone().is_some());
        assert!(bed.link.channels.get_mut(near::NUMBER).is_none());
    }
}

/// Goal: when many neighbours end at once, each end is told, though a port reads few channels in a turn.
#[test]
fn many_neighbours_that_end_at_once_are_all_gone() {
    const COUNT: u16 = 40;
    let mut bed = bed_of(5);
    let here = bed.link.addresses()[0];
    let mut others = Vec::new();
    for k in 0..COUNT {
        let [first, [file, bell]] = near::files();
        let number = near::NUMBER + u32::from(k);
        near::offer_to(&bed.daemon, number, &[10 + k], &first);
        say(&bed.daemon, &Message::ChangedOver(number));
        arrived(&mut bed.link);
        assert_eq!(said(&bed), Message::ChangedOver(number));
        let rings = Rings::open(&file, near::RING_LEN, crate::ring::End::Second);
        others.push((rings.expect("it is such a file"), bell));
    }
    for (rings, _) in &mut others {
        let _ = write(
            rings,
            &near::message(here, here, 64, &packet(qpn(5, 0x10), b"last")),
        );
    }
    for k in 0..COUNT {
        say(&bed.daemon, &Message::Gone(vec![10 + k]));
    }
    let (mut came, mut gone) = (0, 0);
    // A port is called for as long as something comes, and not again.
    loop {
        let count = arrived(&mut bed.link).len();
        came += count;
        while bed.link.gone().is_some() {
            gone += 1;
        }
        if count == 0 {
            break;
        }
    }
    assert_eq!((came, gone), (COUNT.into(), COUNT));
}
