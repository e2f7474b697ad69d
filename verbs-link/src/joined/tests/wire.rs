//! A port that has sockets of the network, with another host played by a link of its own.

use super::near::{PATIENCE, arrived, is_quiet, packet, say_with, start, texts, until};
use super::rejoin::{next_daemon, rejoining, welcome};
use super::*;
use crate::{LinkError, Steering, Udp};
use std::net::UdpSocket;
use verbs_core::host::message::SOCKETS;
use verbs_wire::ROCE_PORT;

/// The block of the port, and one of another program.
const OURS: u16 = 5;
const OTHERS: u16 = 9;

/// Rounds of two threads that wake each other.
const ROUNDS: u32 = 2000;

/// An address that this process has for itself; UDP tests have lower numbers.
fn own(number: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    [127, high | 0x80, low, 100 + number].into()
}

fn port_at(addresses: &[IpAddr]) -> Message<'static> {
    Message::Port(PortNews {
        addresses: addresses.to_vec(),
        ..port()
    })
}

/// A port with a socket at its address, what else is bound there, and another host.
struct Wired {
    bed: Bed,
    here: Udp,
    steering: Steering,
    away: Udp,
}

impl Wired {
    fn new(number: u8) -> Self {
        let Bed { link, daemon } = bed();
        Self::over(link, daemon, number)
    }

    fn over(link: Joined, daemon: OwnedFd, number: u8) -> Self {
        let [here, away] = [number, number + 1].map(own);
        let mut wired = Self {
            bed: Bed { link, daemon },
            here: Udp::bind(&[here]).expect("it is free"),
            steering: Steering::default(),
            away: Udp::bind(&[away]).expect("it is free"),
        };
        say(&wired.bed.daemon, &port_at(&[here]));
        // Both blocks, so that what is another's is misled to this port.
        wired.give(1, &[OURS, OTHERS]);
        assert!(texts(&mut wired.bed.link).is_empty());
        wired
    }

    fn addresses(&self) -> [IpAddr; 2] {
        [&self.here, &self.away].map(|link| link.addresses()[0])
    }

    /// The daemon gives the port a socket.
    fn give(&mut self, program: u32, blocks: &[u16]) {
        let blocks = blocks.iter().filter_map(|&number| Block::new(number));
        for given in self.steering.moved(&self.here, program, blocks.collect()) {
            let socket = given.socket.try_clone().expect("a descriptor");
            let (address, _) = given.seat;
            say_with(&self.bed.daemon, &Message::Socket(address), &[socket]);
        }
    }

    fn arrives(&mut self, qpn: u32, text: &[u8]) {
        let [here, away] = self.addresses();
        let sent = transmit(&mut self.away, away, here, &packet(qpn, text));
        assert_eq!(sent, Sent::Gone);
    }

    /// What the other host has received.
    fn away(&mut self) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        self.away
            .receive(&mut |arrival| got.push(arrival.bytes[12..].to_vec()));
        got
    }

    fn leaves(&mut self, dst: IpAddr, qpn: u32, text: &[u8]) {
        let [here, _] = self.addresses();
        let sent = transmit(&mut self.bed.link, here, dst, &packet(qpn, text));
        assert_eq!(sent, Sent::Gone);
    }
}

fn transmit(link: &mut dyn PacketLink, src: IpAddr, dst: IpAddr, bytes: &[u8]) -> Sent {
    link.transmit(&Burst {
        route: Route {
            src,
            dst,
            tclass: 0,
            hop_limit: 64,
            local: None,
        },
        segment: bytes.len(),
        bytes,
    })
}

/// The packet that the client has sent to the daemon: for whom, and its text.
fn relayed(bed: &Bed) -> (IpAddr, Vec<u8>) {
    let bytes = heard(&bed.daemon);
    let Ok(Message::Packets(packets)) = Message::decode(&bytes) else {
        panic!("packets");
    };
    (packets.dst, packets.bytes[12..].to_vec())
}

/// Goal: packets of other hosts come and go without the daemon, but for those of the connection manager and to groups; a packet
/// for another program is handed on, whole.
#[test]
fn packets_of_the_network_pass_by_the_daemon() {
    let mut wired = Wired::new(0);
    let [here, away] = wired.addresses();
    wired.arrives(qpn(OURS, 0x10), b"in");
    let came = arrived(&mut wired.bed.link);
    assert_eq!(came, [(Ident::Known(0), packet(qpn(OURS, 0x10), b"in"))]);
    wired.leaves(away, 0x77, b"out");
    assert_eq!(wired.away(), [b"out"]);
    let route = Route {
        src: here,
        dst: away,
        tclass: 0,
        hop_limit: 64,
        local: None,
    };
    assert!(wired.bed.link.burst_limit(&route) > 1);
    assert!(is_quiet(&wired.bed));

    wired.leaves(away, 1, b"connect");
    assert_eq!(relayed(&wired.bed), (away, b"connect".to_vec()));
    let group = "239.1.2.3".parse().expect("one");
    wired.leaves(group, 0xff_ffff, b"all");
    assert_eq!(relayed(&wired.bed), (group, b"all".to_vec()));
    assert!(wired.away().is_empty());

    wired.arrives(qpn(OTHERS, 3), b"misled");
    assert!(texts(&mut wired.bed.link).is_empty());
    let bytes = heard(&wired.bed.daemon);
    let Ok(Message::Arrived(packets)) = Message::decode(&bytes) else {
        panic!("a packet for another");
    };
    assert_eq!(
        (packets.src, packets.dst, packets.ident),
        (away, here, Some(0))
    );
    assert_eq!(packets.bytes, packet(qpn(OTHERS, 3), b"misled"));
    let counters = wired.bed.link.counters();
    assert_eq!((counters.packets_sent, counters.packets_received), (3, 1));
}

/// Goal: a packet of the network that claims to come from this host's own address is dropped, whomever it is for: what programs of
/// the host send each other does not come from there.
#[test]
fn a_forged_packet_of_a_neighbour_is_dropped() {
    let mut wired = Wired::new(30);
    let [here, _] = wired.addresses();
    // From another port number, as any process of the machine can.
    let forger = UdpSocket::bind((here, 0)).expect("it is free");
    for number in [qpn(OURS, 3), qpn(OTHERS, 3)] {
        let bytes = packet(number, b"forged");
        forger
            .send_to(&bytes, (here, ROCE_PORT))
            .expect("it is sent");
    }
    until("two packets that are dropped", || {
        assert!(texts(&mut wired.bed.link).is_empty());
        wired.bed.link.counters().receive_errors == 2
    });
    assert!(is_quiet(&wired.bed));
}

/// Goal: a burst with a datagram of management passes through the daemon as a whole, as its packets are numbered.
#[test]
fn a_burst_with_a_datagram_of_management_stays_whole() {
    let mut wired = Wired::new(2);
    let [here, away] = wired.addresses();
    let bytes = [(0x77, b"one"), (1, b"two"), (0x78, b"tri")].map(|(qpn, text)| packet(qpn, text));
    let burst = Burst {
        route: Route {
            src: here,
            dst: away,
            tclass: 0,
            hop_limit: 64,
            local: None,
        },
        segment: bytes[0].len(),
        bytes: &bytes.concat(),
    };
    assert_eq!(wired.bed.link.transmit(&burst), Sent::Gone);
    let heard = heard(&wired.bed.daemon);
    let Ok(Message::Packets(packets)) = Message::decode(&heard) else {
        panic!("packets");
    };
    assert!(packets.packets().eq(&bytes));
    assert!(wired.away().is_empty());
}

/// Goal: without a socket for its address, a port sends and receives through the daemon again.
#[test]
fn sockets_go_with_their_address() {
    let mut wired = Wired::new(8);
    let [here, away] = wired.addresses();
    let other = own(10);
    say(&wired.bed.daemon, &port_at(&[other]));
    texts(&mut wired.bed.link);
    wired.leaves(away, 0x77, b"out");
    assert_eq!(relayed(&wired.bed), (away, b"out".to_vec()));
    // Nobody but the daemon has it now.
    drop((wired.here, wired.steering));
    Udp::bind(&[here]).expect("it is free");
}

/// Goal: sockets stay while the daemon is started again, and the next ones take their place; if nobody keeps the place of a
/// daemon, the addresses are free for the next one.
#[test]
fn sockets_stay_with_a_daemon_that_comes_back() {
    let Bed { link, daemon } = bed();
    let (link, sockets) = rejoining(link);
    let mut wired = Wired::over(link, daemon, 11);
    let [here, away] = wired.addresses();
    let (theirs, ours) = pair();
    sockets.lock().push_back(theirs);
    drop(std::mem::replace(&mut wired.bed.daemon, ours));
    wired.arrives(qpn(OURS, 0x10), b"meanwhile");
    assert_eq!(texts(&mut wired.bed.link), [b"meanwhile"]);
    wired.leaves(away, 0x77, b"out");
    assert_eq!(wired.away(), [b"out"]);

    let mut hello = Vec::new();
    until("the port to come", || {
        texts(&mut wired.bed.link);
        let mut bytes = vec![0; MESSAGE_MAX];
        let came = recv(&wired.bed.daemon, &mut bytes, RecvFlags::DONTWAIT);
        came.is_ok_and(|(len, _)| {
            hello = bytes[..len].to_vec();
            true
        })
    });
    let hello = Message::decode(&hello);
    assert!(matches!(&hello, Ok(Message::Hello(hello)) if hello.features & SOCKETS != 0));
    welcome(&wired.bed.daemon, OURS);
    say(&wired.bed.daemon, &port_at(&[here]));
    // As its predecessor, of which this one knows nothing.
    wired.give(2, &[OURS]);
    texts(&mut wired.bed.link);
    wired.steering.moved(&wired.here, 1, Vec::new());
    wired.arrives(qpn(OURS, 0x10), b"after");
    assert_eq!(texts(&mut wired.bed.link), [b"after"]);

    // Now nobody listens there any longer.
    let Wired {
        bed,
        here: own,
        steering,
        ..
    } = wired;
    let Bed { mut link, daemon } = bed;
    drop((own, steering, daemon));
    let counted = link.counters();
    assert!(counted.packets_sent >= 1 && counted.packets_received >= 2);
    let taken = Udp::bind(&[here]).expect_err("the port has its socket");
    assert!(matches!(taken, LinkError::InUse { .. }), "{taken}");
    until("the port to notice", || {
        texts(&mut link);
        Udp::bind(&[here]).is_ok()
    });
    assert_eq!(link.counters(), counted, "counters never go back");
    let (daemon, _) = next_daemon(&mut link, &sockets);
    welcome(&daemon, OURS);
}

/// Goal: threads of a port without a daemon sleep, and do not ask all the time whether there is one. Method: a port with
/// sockets, and one without; nobody listens at the place of a daemon, whose end both ways to wait have reported.
#[test]
fn a_port_without_a_daemon_sleeps() {
    for has_sockets in [false, true] {
        let Bed { link, daemon } = bed();
        let (link, _sockets) = rejoining(link);
        let mut link = match has_sockets {
            false => {
                drop(daemon);
                link
            }
            true => Wired::over(link, daemon, 19).bed.link,
        };
        until("the port to notice", || {
            texts(&mut link);
            link.tie.is_alone()
        });
        link.waiter.leave_line();
        let (clock, begun) = start();
        let looks = 3;
        while clock.now().since(begun) < waiter::RETRY * looks {
            texts(&mut link);
            assert!(link.waiter.falls_asleep(false), "{has_sockets}");
            link.waiter.is_awake(false);
        }
    }
}

/// Goal: a thread that sleeps is woken by each packet of the network, and by nothing else. Method: either way to wait; both ends
/// sleep.
#[test]
fn packets_of_the_network_wake_a_thread_that_sleeps() {
    let waits: [fn(&dyn Waiter); 2] = [
        |waiter| waiter.wait(Some(PATIENCE), true),
        |waiter| {
            let waited = waiter.wait_beside(&[], Some(PATIENCE));
            waited.expect("there is a place").expect("no error");
        },
    ];
    for (number, wait) in [13, 15].into_iter().zip(waits) {
        let Wired {
            bed,
            here,
            steering,
            mut away,
        } = Wired::new(number);
        let Bed { mut link, daemon } = bed;
        let there = away.addresses()[0];
        let echo = thread::spawn(move || {
            let waiter = away.waiter().expect("there is one");
            for _ in 0..ROUNDS {
                let mut from = None;
                while from.is_none() {
                    away.receive(&mut |arrival| from = Some(arrival.src));
                    if from.is_none() {
                        waiter.wait(Some(PATIENCE), true);
                    }
                }
                let to = from.expect("it was waited for");
                transmit(&mut away, there, to, &packet(qpn(OURS, 0x10), b"echo"));
            }
        });
        let waiter = link.waiter().expect("there is one");
        let own = here.addresses()[0];
        let (clock, begun) = start();
        for _ in 0..ROUNDS {
            transmit(&mut link, own, there, &packet(0x77, b"call"));
            while texts(&mut link).is_empty() {
                wait(&*waiter);
                assert!(clock.now().since(begun) < PATIENCE, "a wake is lost");
            }
        }
        echo.join().expect("no panic");
        drop((steering, daemon));
    }
}

/// Goal: a port that is polled and gets nothing for long makes no system call, and still notices the next packet. Method: the
/// engine's thread waits beside, for everything but packets.
#[test]
fn a_port_that_was_idle_for_long_notices_the_next_packet() {
    let mut wired = Wired::new(17);
    let waiter = wired.bed.link.waiter().expect("there is one");
    let is_over = Arc::new(verbs_core::sync::atomic::AtomicBool::new(false));
    let engine = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            while !is_over.load(verbs_core::sync::atomic::Ordering::Relaxed) {
                waiter.wait(Some(PATIENCE), false);
            }
        }
    });
    for round in 0..20_u8 {
        for _ in 0..2 * LOOKS {
            assert!(texts(&mut wired.bed.link).is_empty());
        }
        assert_eq!(wired.bed.link.wire.looks(), 0);
        wired.arrives(qpn(OURS, 0x10), &[round]);
        let mut came = Vec::new();
        until("the packet", || {
            came = texts(&mut wired.bed.link);
            !came.is_empty()
        });
        assert_eq!(came, [[round]]);
    }
    is_over.store(true, verbs_core::sync::atomic::Ordering::Relaxed);
    wired.bed.link.waiter().expect("there is one").wake();
    engine.join().expect("no panic");
}
