//! Two clients that share memory, and neighbours that break the rules of it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use verbs_core::host::channel::{FILES, Head, RING_LEN_MIN};

use super::*;
use crate::ring::{Bell, End, Rings, file};
use crate::time::{Instant, WallClock};

pub(super) const NUMBER: u32 = 9;
pub(super) const RING_LEN: usize = RING_LEN_MIN as usize;

/// Long enough for anything that happens at once, on any machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The files of the two ends of a channel.
pub(super) fn files() -> [[OwnedFd; FILES]; 2] {
    let one = file(RING_LEN).expect("there is memory");
    let other = one.try_clone().expect("a descriptor");
    let flags = SocketFlags::CLOEXEC;
    let bells = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (first, second) = bells.expect("a pair");
    [[one, first], [other, second]]
}

/// The daemon makes a channel for a client.
fn offer(daemon: &OwnedFd, end: u8, blocks: &[u16], files: &[OwnedFd]) {
    offer_of(daemon, end, blocks, true, files);
}

/// The daemon makes a channel for a client, or names one that there is.
pub(super) fn offer_of(daemon: &OwnedFd, end: u8, blocks: &[u16], is_new: bool, files: &[OwnedFd]) {
    offer_news(
        daemon,
        ChannelNews {
            number: NUMBER,
            end,
            ring_len: RING_LEN as u32,
            is_new,
            blocks: blocks.to_vec(),
        },
        files,
    );
}

/// The daemon makes a channel of that number for a client.
pub(super) fn offer_to(daemon: &OwnedFd, number: u32, blocks: &[u16], files: &[OwnedFd]) {
    let news = ChannelNews {
        number,
        end: 0,
        ring_len: RING_LEN as u32,
        is_new: true,
        blocks: blocks.to_vec(),
    };
    offer_news(daemon, news, files);
}

fn offer_news(daemon: &OwnedFd, news: ChannelNews, files: &[OwnedFd]) {
    say_with(daemon, &Message::Channel(news), files);
}

/// The daemon says something, and sends files with it.
pub(super) fn say_with(daemon: &OwnedFd, message: &Message<'_>, files: &[OwnedFd]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    let flags = SendFlags::empty();
    let bytes = message.encode();
    sendmsg(daemon, &[IoSlice::new(&bytes)], &mut control, flags).expect("there is room");
}

pub(super) fn packet(qpn: u32, text: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = qpn.to_be_bytes();
    let mut packet = vec![4, 0, 0xff, 0xff, 0, a, b, c, 0, 0, 0, 0];
    packet.extend_from_slice(text);
    packet
}

pub(super) fn send(link: &mut Joined, bytes: &[u8], segment: usize) -> Sent {
    let here = link.addresses()[0];
    link.transmit(&Burst {
        route: Route {
            src: here,
            dst: here,
            tclass: 3,
            hop_limit: 64,
            local: None,
        },
        segment,
        bytes,
    })
}

/// What has arrived, with identifications.
pub(super) fn arrived(link: &mut Joined) -> Vec<(Ident, Vec<u8>)> {
    let mut got = Vec::new();
    link.receive(&mut |arrival| got.push((arrival.ident, arrival.bytes.to_vec())));
    got
}

pub(super) fn texts(link: &mut Joined) -> Vec<Vec<u8>> {
    let got = arrived(link).into_iter();
    got.map(|(_, packet)| packet[12..].to_vec()).collect()
}

/// The next message to the daemon, which is for a channel.
pub(super) fn said(bed: &Bed) -> Message<'static> {
    let bytes: &'static [u8] = heard(&bed.daemon).leak();
    Message::decode(bytes).expect("a message")
}

/// Whether the client has said nothing to the daemon.
pub(super) fn is_quiet(bed: &Bed) -> bool {
    recv(&bed.daemon, &mut [0; 64], RecvFlags::DONTWAIT).is_err()
}

/// Two clients with a channel, over which the first has not sent anything yet.
pub(super) fn neighbours() -> [Bed; 2] {
    let [mut one, mut other] = [bed_of(5), bed_of(6)];
    let [first, second] = files();
    offer(&one.daemon, 0, &[6], &first);
    offer(&other.daemon, 1, &[5], &second);
    drop((first, second));
    for bed in [&mut one, &mut other] {
        assert!(arrived(&mut bed.link).is_empty());
        assert_eq!(said(bed), Message::ChangedOver(NUMBER));
        say(&bed.daemon, &Message::ChangedOver(NUMBER));
        assert!(arrived(&mut bed.link).is_empty());
    }
    [one, other]
}

/// A client whose neighbour, with block 6, is the test: the neighbour's rings and bell. The neighbour has changed over, or
/// is about to.
pub(super) fn beside(has_changed: bool) -> (Bed, Rings, OwnedFd) {
    let mut bed = bed_of(5);
    let [first, [file, bell]] = files();
    offer(&bed.daemon, 0, &[6], &first);
    drop(first);
    arrived(&mut bed.link);
    assert_eq!(said(&bed), Message::ChangedOver(NUMBER));
    if has_changed {
        say(&bed.daemon, &Message::ChangedOver(NUMBER));
        arrived(&mut bed.link);
    }
    let rings = Rings::open(&file, RING_LEN, End::Second).expect("it is such a file");
    (bed, rings, bell)
}

/// Packets as the neighbour writes them.
pub(super) fn message(src: IpAddr, dst: IpAddr, segment: u16, bytes: &[u8]) -> Vec<u8> {
    let head = Head {
        addresses: Some((src, dst)),
        tclass: 0,
        ident: 0,
        segment,
    };
    let (head, len) = head.bytes();
    [&head[..len], bytes].concat()
}

pub(super) fn write(rings: &mut Rings, message: &[u8]) -> Bell {
    let written = rings.writer.write(message.len(), [message].into_iter());
    written.expect("it makes sense").expect("there is room")
}

pub(super) fn start() -> (WallClock, Instant) {
    let clock = WallClock::default();
    (clock, clock.now())
}

pub(super) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let (clock, start) = start();
    while !done() {
        assert!(clock.now().since(start) < PATIENCE, "waited for {what}");
        thread::yield_now();
    }
}

/// Goal: the first packets pass through the daemon, the following ones do not, and all arrive in order.
#[test]
fn packets_change_over_to_shared_memory_in_order() {
    let [mut one, mut other] = [bed_of(5), bed_of(6)];
    let to = |text: &[u8]| packet(qpn(6, 0x10), text);
    assert_eq!(send(&mut one.link, &to(b"first"), 64), Sent::Gone);
    assert_eq!(said(&one), Message::OpenChannel(6));
    let first = heard(&one.daemon);
    assert_eq!(send(&mut one.link, &to(b"second"), 64), Sent::Gone);
    let second = heard(&one.daemon);
    assert!(is_quiet(&one), "a channel is asked for once");

    let [files_one, files_other] = files();
    offer(&one.daemon, 0, &[6], &files_one);
    offer(&other.daemon, 1, &[5], &files_other);
    arrived(&mut one.link);
    assert_eq!(said(&one), Message::ChangedOver(NUMBER));
    assert_eq!(send(&mut one.link, &to(b"third"), 64), Sent::Gone);
    assert!(is_quiet(&one));
    // The daemon is slow with what it got before.
    assert!(texts(&mut other.link).is_empty());
    assert!(other.link.waiter.take_heard().is_none());
    for datagram in [&first, &second] {
        line::send(other.daemon.as_fd(), datagram).expect("there is room");
    }
    say(&other.daemon, &Message::ChangedOver(NUMBER));
    assert_eq!(texts(&mut other.link), [&b"first"[..], b"second", b"third"]);
    // Several packets at once keep their places; the traffic class arrives, too.
    let burst = [to(b"abcd"), to(b"efgh"), to(b"ij")].concat();
    assert_eq!(send(&mut one.link, &burst, 16), Sent::Gone);
    let idents: Vec<_> = arrived(&mut other.link)
        .into_iter()
        .map(|it| it.0)
        .collect();
    assert_eq!(idents, [0, 1, 2].map(Ident::Known));
    let counters = [one.link.counters(), other.link.counters()];
    assert_eq!((counters[0].packets_sent, counters[0].shared_sent), (6, 4));
    assert_eq!(
        (counters[1].packets_received, counters[1].shared_received),
        (6, 4)
    );
    // The other way, and management datagrams: those are for the daemon.
    assert_eq!(said(&other), Message::ChangedOver(NUMBER));
    say(&one.daemon, &Message::ChangedOver(NUMBER));
    send(&mut other.link, &packet(qpn(5, 0x10), b"back"), 64);
    assert_eq!(texts(&mut one.link), [b"back"]);
    send(&mut other.link, &packet(1, b"management"), 64);
    assert!(matches!(said(&other), Message::Packets(_)));
}

/// Goal: a burst to several processes is taken apart, and each packet keeps the identification that its check sum covers.
#[test]
fn a_burst_to_several_processes_is_taken_apart() {
    let [mut one, mut other] = neighbours();
    let burst = [
        packet(qpn(6, 0x10), b"abcd"),
        packet(qpn(7, 0x10), b"efgh"),
        packet(qpn(6, 0x11), b"ijkl"),
        packet(qpn(6, 0x12), b"mn"),
    ];
    assert_eq!(send(&mut one.link, &burst.concat(), 16), Sent::Gone);
    let idents: Vec<_> = arrived(&mut other.link)
        .into_iter()
        .map(|it| it.0)
        .collect();
    assert_eq!(idents, [0, 2, 3].map(Ident::Known));
    assert_eq!(said(&one), Message::OpenChannel(7));
    let Message::Packets(relayed) = said(&one) else {
        panic!("packets");
    };
    assert_eq!((relayed.ident, relayed.bytes), (Some(1), &burst[1][..]));
    say(&one.daemon, &Message::NoChannel(7));
    arrived(&mut one.link);
    send(&mut one.link, &burst[1], 16);
    assert!(matches!(said(&one), Message::Packets(_)));
    assert!(is_quiet(&one), "it does not ask again soon");
}

/// Goal: a neighbour cannot send what the daemon would not have delivered, and that alone ends nothing.
#[test]
fn what_a_neighbour_may_not_send_is_dropped() {
    let (mut bed, mut rings, _bell) = beside(true);
    let here = bed.link.addresses()[0];
    let away: IpAddr = "192.0.2.1".parse().expect("one");
    let good = packet(qpn(5, 0x10), b"good");
    let refused = [
        message(away, here, 16, &good),
        message(here, away, 16, &good),
        message(here, here, 16, &packet(1, b"management")),
        message(here, here, 16, &packet(qpn(6, 0x10), b"its own")),
        message(
            here,
            here,
            16,
            &[good.clone(), packet(qpn(7, 0x10), b"third")].concat(),
        ),
        message(here, here, 5, &good),
    ];
    for bytes in refused {
        let _ = write(&mut rings, &bytes);
        assert!(texts(&mut bed.link).is_empty());
    }
    let _ = write(&mut rings, &message(here, here, 16, &good));
    assert_eq!(texts(&mut bed.link), [b"good"]);
    assert_eq!(bed.link.counters().receive_errors, 6);
    assert_eq!(bed.link.gone(), None);
}

/// What a neighbour writes.
type Harm = fn(&mut Rings, IpAddr);

/// Goal: a neighbour that breaks the rules of the memory loses its connections here; the port goes on.
#[test]
fn a_neighbour_that_writes_nonsense_is_broken_off() {
    let here = port().addresses[0];
    let nonsense: [(&str, Harm); 5] = [
        ("no message", |rings, _| {
            let _ = write(rings, b"short");
        }),
        ("more packets than a burst has", |rings, here| {
            let burst = vec![0; 65 * 16];
            let _ = write(rings, &message(here, here, 16, &burst));
        }),
        ("two families", |rings, here| {
            let there = "::1".parse().expect("one");
            let _ = write(rings, &message(here, there, 16, &[0; 16]));
        }),
        ("a longer message than any", |rings, _| {
            let _ = write(rings, &vec![0; RING_LEN / 2 - 8]);
        }),
        ("no packets", |rings, here| {
            let _ = write(rings, &message(here, here, 16, &[]));
        }),
    ];
    for (what, harm) in nonsense {
        let (mut bed, mut rings, _bell) = beside(true);
        assert_eq!(
            send(&mut bed.link, &packet(qpn(6, 0x10), b"there"), 64),
            Sent::Gone
        );
        harm(&mut rings, here);
        assert!(texts(&mut bed.link).is_empty(), "{what}");
        assert_eq!(said(&bed), Message::Broken(6), "{what}");
        assert_eq!(bed.link.gone(), Some(qpns(6)), "{what}");
        assert_eq!(bed.link.gone(), None, "{what}");
        // Whatever it writes now is not read, and packets to it pass through the daemon.
        let _ = write(
            &mut rings,
            &message(here, here, 16, &packet(qpn(5, 0x10), b"late")),
        );
        assert!(texts(&mut bed.link).is_empty(), "{what}");
        send(&mut bed.link, &packet(qpn(6, 0x10), b"there"), 64);
        assert!(matches!(said(&bed), Message::Packets(_)), "{what}");
        assert_eq!(bed.link.change(), None, "the port is as it was");
    }
}

#[test]
fn files_that_are_no_channel_are_refused() {
    let [[good, bell], [_, other]] = files();
    let short = file(4096).expect("there is memory");
    let clone = |fd: &OwnedFd| fd.try_clone().expect("a descriptor");
    let news = |end, ring_len| ChannelNews {
        number: NUMBER,
        end,
        ring_len,
        is_new: true,
        blocks: vec![6],
    };
    let len = RING_LEN as u32;
    let pair = |file: &OwnedFd| vec![clone(file), clone(&bell)];
    for (news, files) in [
        (news(0, len), vec![]),
        (news(0, len), vec![clone(&good)]),
        (news(2, len), pair(&good)),
        (news(0, len), pair(&short)),
        (news(0, len), pair(&other)),
        (news(0, len + 4096), pair(&good)),
        (news(0, 1 << 30), pair(&good)),
        (news(0, 0), pair(&good)),
    ] {
        assert!(Channel::open(&news, files).is_none(), "{news:?}");
    }
    assert!(Channel::open(&news(1, len), pair(&good)).is_some());
}

/// Goal: what a program has sent before it was killed arrives, and then its end is reported.
#[test]
fn the_last_words_of_a_neighbour_are_heard() {
    let (mut bed, mut rings, bell) = beside(true);
    let here = bed.link.addresses()[0];
    for k in 0..10 {
        let _ = write(
            &mut rings,
            &message(here, here, 64, &packet(qpn(5, 0x10), &[k])),
        );
    }
    drop((rings, bell));
    say(&bed.daemon, &Message::Gone(vec![6]));
    let mut got = Vec::new();
    while got.len() < 10 {
        assert_eq!(bed.link.gone(), None, "after {got:?}");
        got.extend(texts(&mut bed.link).concat());
    }
    assert_eq!(got, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    arrived(&mut bed.link);
    assert_eq!(bed.link.gone(), Some(qpns(6)));
    assert!(bed.link.channels.get_mut(NUMBER).is_none());
}

/// Goal: a process that has ended is noticed by the bell's end, before the daemon says anything; until then packets to it
/// are lost or wait, and block nothing.
#[test]
fn a_dead_neighbour_is_noticed_by_its_bell() {
    let (mut bed, rings, bell) = beside(true);
    drop((rings, bell));
    let waiter = bed.link.waiter().expect("there is one");
    until("the end", || {
        waiter.wait(Some(Duration::from_millis(10)), true);
        arrived(&mut bed.link);
        bed.link.channels.get_mut(NUMBER).is_none()
    });
    assert_eq!(
        bed.link.gone(),
        None,
        "the daemon says which numbers are gone"
    );
    send(&mut bed.link, &packet(qpn(6, 0x10), b"there"), 64);
    assert!(matches!(said(&bed), Message::Packets(_)));
}

/// Goal: a neighbour that does not read holds the port for a moment only, and goes on when it reads again.
#[test]
fn a_neighbour_that_does_not_read_holds_nobody_up() {
    let [mut one, mut other] = neighbours();
    let burst = packet(qpn(6, 0x10), &[7; 4000]);
    let (clock, start) = start();
    let mut sent = 0;
    loop {
        match send(&mut one.link, &burst, 4096) {
            Sent::Gone if one.link.counters().shared_lost > 0 => break,
            Sent::Gone => sent += 1,
            Sent::Blocked => thread::yield_now(),
        }
        assert!(clock.now().since(start) < PATIENCE);
    }
    assert!(one.link.counters().blocked > 0, "it is waited for, first");
    assert!(sent >= RING_LEN / 2 / 4096, "{sent}");
    // Others are served in the meantime.
    send(&mut one.link, &packet(qpn(7, 0x10), b"other"), 64);
    assert_eq!(said(&one), Message::OpenChannel(7));
    // It reads, and rings for the writer who waits.
    let mut came = 0;
    until("all of them", || {
        came += arrived(&mut other.link).len();
        came == sent
    });
    let waiter = one.link.waiter().expect("there is one");
    until("the bell", || {
        waiter.wait(Some(Duration::from_millis(10)), false);
        one.link.waiter.take_heard().is_some()
    });
    assert_eq!(send(&mut one.link, &burst, 4096), Sent::Gone);
    assert_eq!(arrived(&mut other.link).len(), 1);
}

#[test]
fn a_neighbour_that_rings_without_end_is_broken_off() {
    let (mut bed, rings, bell) = beside(true);
    let waiter = bed.link.waiter().expect("there is one");
    until("the end", || {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&bell, &[1; 64], flags);
        waiter.wait(Some(Duration::from_millis(10)), true);
        arrived(&mut bed.link);
        bed.link.channels.get_mut(NUMBER).is_none()
    });
    assert_eq!(said(&bed), Message::Broken(6));
    drop(rings);
}
