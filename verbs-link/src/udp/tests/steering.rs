//! Programs that share a link's addresses, each with sockets of its own.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{RecvFlags, recv};
use verbs_core::host::Block;
use verbs_core::sync::Arc;

use super::*;
use crate::{PROGRAMS_MAX, SHARED_MAX, Seat, SteeredSocket, Steering};

fn block(number: u16) -> Block {
    Block::new(number).expect("there is one")
}

/// A packet for a queue pair of that block, which nothing checks here.
fn packet_for(block: Block) -> [u8; 20] {
    let mut packet = [0; 20];
    packet[4..8].copy_from_slice(&(block.qpns().start + 3).to_be_bytes());
    packet
}

/// A link that sends such packets, and one that is shared.
struct Bed {
    away: Udp,
    link: Udp,
    steering: Steering,
}

impl Bed {
    fn new(away: u8, here: &[u8]) -> Self {
        let here: Vec<_> = here.iter().map(|&number| own(number)).collect();
        Self {
            away: Udp::bind(&[own(away)]).expect("it is free"),
            link: Udp::bind(&here).expect("they are free"),
            steering: Steering::default(),
        }
    }

    fn moved(&mut self, program: u32, blocks: &[u16]) -> Vec<SteeredSocket> {
        let blocks = blocks.iter().map(|&number| block(number)).collect();
        self.steering.moved(&self.link, program, blocks)
    }

    fn send(&mut self, to: IpAddr, number: u16) {
        let packet = packet_for(block(number));
        let burst = Burst {
            route: route(&self.away, to),
            segment: packet.len(),
            bytes: &packet,
        };
        assert_eq!(self.away.transmit(&burst), Sent::Gone);
    }

    /// The blocks of the packets that have come to the link's own sockets.
    fn came(&mut self) -> Vec<u16> {
        let mut came = Vec::new();
        while self
            .link
            .receive(&mut |arrival| came.push(number_of(arrival.bytes)))
            > 0
        {}
        came
    }
}

fn number_of(packet: &[u8]) -> u16 {
    let qpn = u32::from_be_bytes(packet[4..8].try_into().expect("four bytes"));
    let block = Block::of(Qpn::new(qpn));
    block.expect("of a program").number()
}

/// The blocks of the packets that have come to a socket.
fn came_to(socket: &OwnedFd) -> Vec<u16> {
    let mut came = Vec::new();
    let mut packet = [0; 64];
    while let Ok((len, _)) = recv(socket.as_fd(), &mut packet, RecvFlags::DONTWAIT) {
        came.push(number_of(&packet[..len]));
    }
    came
}

/// Goal: each program receives the packets of its own queue pairs, and the link all others, at each address, also when a
/// program gets or gives back blocks.
#[test]
fn each_program_receives_its_own() {
    let mut bed = Bed::new(40, &[41, 42]);
    let [a, b] = [own(41), own(42)];
    let one = bed.moved(1, &[5]);
    let other = bed.moved(2, &[6, 7]);
    for (program, sockets, place) in [(1, &one, 1), (2, &other, 2)] {
        let seats: Vec<Seat> = sockets.iter().map(|given| given.seat).collect();
        assert_eq!(seats, [(a, place), (b, place)]);
        assert!(
            sockets
                .iter()
                .all(|given| given.is_new && given.program == program)
        );
    }
    for number in [4, 5, 6, 7, 8] {
        bed.send(a, number);
        bed.send(b, number);
    }
    for given in &one {
        assert_eq!(came_to(&given.socket), [5]);
    }
    for given in &other {
        assert_eq!(came_to(&given.socket), [6, 7]);
    }
    let mut rest = bed.came();
    rest.sort_unstable();
    assert_eq!(rest, [4, 4, 8, 8]);

    assert!(bed.moved(1, &[5, 8]).is_empty(), "it has its sockets");
    assert!(bed.moved(2, &[7]).is_empty());
    for number in [4, 5, 6, 7, 8] {
        bed.send(a, number);
    }
    assert_eq!(came_to(&one[0].socket), [5, 8]);
    assert_eq!(came_to(&other[0].socket), [7]);
    assert_eq!(bed.came(), [4, 6]);
}

/// Goal: what is sent to a program that has gone comes to the link; the next program has its socket, and gets nothing that was
/// sent to it; places of others do not change.
#[test]
fn the_socket_of_a_program_that_has_gone_is_the_next_ones() {
    let mut bed = Bed::new(43, &[44]);
    let to = own(44);
    let first = bed.moved(1, &[5]);
    let second = bed.moved(2, &[6]);
    bed.send(to, 5);
    assert!(bed.moved(1, &[]).is_empty());
    bed.send(to, 5);
    bed.send(to, 6);
    assert_eq!(bed.came(), [5], "what came before has gone with it");
    let third = bed.moved(3, &[5]);
    assert_eq!((third[0].seat, third[0].is_new), (first[0].seat, false));
    bed.send(to, 5);
    assert_eq!(came_to(&third[0].socket), [5]);
    assert_eq!(came_to(&second[0].socket), [6]);
    // One that was never there.
    assert!(bed.moved(4, &[]).is_empty());
    assert_eq!(bed.moved(5, &[9])[0].seat, (to, 3));
}

/// Goal: the address is the link's and its programs', and of nobody else, though the system could let others join.
#[test]
fn an_address_stays_with_its_link() {
    let mut bed = Bed::new(45, &[46]);
    assert_eq!(bed.moved(1, &[5]).len(), 1);
    let error = Udp::bind(&[own(46)]).expect_err("it is taken");
    assert!(matches!(error, LinkError::InUse { .. }), "{error}");
}

/// Goal: programs beyond the limit have no sockets, and neither have those of a link with many addresses; their packets come
/// to the link.
#[test]
fn programs_and_addresses_are_bounded() {
    let mut bed = Bed::new(47, &[48]);
    let most = PROGRAMS_MAX as u32;
    let sockets: Vec<_> = (1..=most).flat_map(|n| bed.moved(n, &[n as u16])).collect();
    assert_eq!(sockets.len(), PROGRAMS_MAX);
    assert!(bed.moved(most + 1, &[500]).is_empty());
    bed.send(own(48), 500);
    bed.send(own(48), most as u16);
    assert_eq!(bed.came(), [500]);
    assert_eq!(came_to(&sockets[PROGRAMS_MAX - 1].socket), [most as u16]);
    assert!(bed.moved(1, &[]).is_empty());
    assert_eq!(bed.moved(most + 1, &[500]).len(), 1);

    let many: Vec<_> = (0..=SHARED_MAX as u8).map(|n| 60 + n).collect();
    let mut bed = Bed::new(49, &many);
    assert!(bed.moved(1, &[5]).is_empty());
}

/// Goal: a process that takes over the sockets of one that has crashed has them in their places: what was steered before
/// stays steered, and new programs get the old sockets.
#[test]
fn sockets_outlive_their_process() {
    let (here, to) = ([51], own(51));
    let mut bed = Bed::new(50, &here);
    let sockets = [(1, 5), (2, 6)].map(|(program, number)| bed.moved(program, &[number]));
    let sockets: Vec<_> = sockets.into_iter().flatten().collect();
    let copy = |socket: &Arc<OwnedFd>| socket.try_clone().expect("a descriptor");
    let seats = |sockets: &[SteeredSocket]| -> BTreeMap<Seat, OwnedFd> {
        let seats = sockets
            .iter()
            .map(|given| (given.seat, copy(&given.socket)));
        seats.collect()
    };
    let kept = seats(&sockets);
    let bound: BTreeMap<_, _> = bed
        .link
        .sockets()
        .map(|(at, socket)| (at, copy(socket)))
        .collect();
    drop(bed.link);
    bed.link = Udp::bind_again(&[to], bound).expect("it has them");
    bed.steering = Steering::restored(&bed.link, kept);
    for number in [5, 6, 7] {
        bed.send(to, number);
    }
    assert_eq!(bed.came(), [7]);
    assert_eq!(
        sockets
            .iter()
            .flat_map(|given| came_to(&given.socket))
            .collect::<Vec<_>>(),
        [5, 6]
    );
    let again = bed.moved(9, &[6]).pop().expect("one address");
    assert_eq!((again.seat, again.is_new), ((to, 1), false));
    bed.send(to, 6);
    assert_eq!(came_to(&again.socket), [6]);

    // Of an address that the link no longer has, nothing is of use.
    let strange = Udp::bind(&[own(52)]).expect("it is free");
    let strange = strange
        .sockets()
        .map(|(at, socket)| ((at, 1), copy(socket)));
    bed.steering = Steering::restored(&bed.link, strange.collect());
    // Nobody has the old ones any longer.
    drop((sockets, again));
    let again = bed.moved(9, &[6]).pop().expect("one address");
    assert_eq!((again.seat, again.is_new), ((to, 1), true));
}
