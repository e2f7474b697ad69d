//! Packets in parts and in a row, more of them than there is room for, and what a face hears of it. Method: two
//! interfaces in virtual time, one of them with a face that notes every call.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ulp_ipoib::wire::Ip;
use ulp_ipoib::{Face, Interface, Mode, SendError};
use verbs_core::sync::Mutex;

use crate::datagrams::run;
use crate::node::{Node, World, address};
use crate::peer::packet;

const SECOND: Duration = Duration::from_secs(1);

/// What a face was told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Packet(Vec<u8>),
    NoMore,
    Writable,
}

#[derive(Default)]
struct Notes(Mutex<Vec<Told>>);

impl Face for Notes {
    fn deliver(&self, packet: &[u8]) {
        self.0.lock().push(Told::Packet(packet.to_vec()));
    }

    fn delivered(&self) {
        self.0.lock().push(Told::NoMore);
    }

    fn writable(&self) {
        self.0.lock().push(Told::Writable);
    }
}

impl Notes {
    fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *self.0.lock())
    }

    /// The packets since the last call.
    fn packets(&self) -> Vec<Vec<u8>> {
        let packets = self.take().into_iter().filter_map(|told| match told {
            Told::Packet(packet) => Some(packet),
            Told::NoMore | Told::Writable => None,
        });
        packets.collect()
    }
}

/// An interface of that number with a face that notes, and a node to hold its device.
async fn noting(world: &World, number: u8, mode: Mode) -> (Arc<Notes>, Interface, Node) {
    let node = world.node(number, mode, false).await;
    let notes = Arc::new(Notes::default());
    let face: Arc<dyn Face> = Arc::<Notes>::clone(&notes);
    let admin = Arc::new(world.admin.clone());
    let config = address(number + 100, mode, false);
    let interface = Interface::new(&node.device, admin, face, config);
    let interface = interface.await.unwrap();
    while !interface.link().is_up {
        world.sim.sleep(SECOND / 10).await;
    }
    (notes, interface, node)
}

fn own(interface: &Interface) -> IpAddr {
    interface.config().addresses[0].0
}

/// A packet with a number in its last bytes.
fn numbered(from: &Interface, to: &Interface, len: usize, number: u16) -> Vec<u8> {
    let mut packet = packet(own(from), own(to), len, 0);
    packet[len - 2..].copy_from_slice(&number.to_be_bytes());
    packet
}

/// Goal: a writer that sends more than there is room for is refused and told when to go on, and nothing is lost, twice
/// there or out of order. Method: ten times as many packets as the queues hold. Those over a connection wait for the
/// acknowledgement of the other end; a datagram only for the link, which has room for all.
#[test]
fn a_writer_that_is_too_fast_waits_and_loses_nothing() {
    const COUNT: u16 = 1280;
    for (seed, mode, len) in [
        (71, Mode::Datagram, 60),
        (72, Mode::Connected, 60),
        (73, Mode::Connected, 20_000),
    ] {
        run(seed, async move |world| {
            let (writer, a, _a) = noting(&world, 1, mode).await;
            let (reader, b, _b) = noting(&world, 2, mode).await;
            // The neighbour is found, and a connection is made.
            for _ in 0..3 {
                a.send(&numbered(&a, &b, len, 0)).unwrap();
                world.sim.sleep(SECOND).await;
            }
            writer.take();
            reader.take();
            let (mut next, mut refused, mut got) = (0, 0, Vec::new());
            let end = world.sim.now() + 60 * SECOND;
            while got.len() < usize::from(COUNT) {
                assert!(
                    world.sim.now() < end,
                    "{next} were sent: {:?}",
                    a.counters()
                );
                let mut batch = a.batch();
                let mut is_full = false;
                while next < COUNT && !is_full {
                    match batch.send(&numbered(&a, &b, len, next)) {
                        Ok(()) => next += 1,
                        Err(error) => {
                            assert_eq!(error, SendError::Full);
                            is_full = true;
                        }
                    }
                }
                drop(batch);
                refused += u32::from(is_full);
                // Once it was refused, it is told when there is room.
                while is_full && !writer.take().contains(&Told::Writable) {
                    world.sim.sleep(SECOND / 100_000).await;
                    assert!(world.sim.now() < end, "the writer is never told");
                }
                world.sim.sleep(SECOND / 1000).await;
                got.extend(reader.packets());
            }
            let waits = mode == Mode::Connected;
            assert_eq!(refused > 5, waits, "{mode:?}: refused {refused} times");
            let numbers = got.iter().map(|packet| {
                assert_eq!(packet.len(), len);
                u16::from_be_bytes(*packet.last_chunk().unwrap())
            });
            assert!(numbers.eq(0..COUNT), "{mode:?}");
            let counters = a.counters();
            let lost = counters.unreachable + counters.pushed_out + counters.send_errors;
            assert_eq!((lost, b.counters().receive_errors), (0, 0));
        });
    }
}

/// Goal: a face is told once that no packet follows, behind those that came together, and never without a packet.
#[test]
fn a_face_is_told_when_no_packet_follows() {
    const COUNT: u16 = 40;
    run(74, async |world| {
        let (_, a, _a) = noting(&world, 1, Mode::Datagram).await;
        let (reader, b, _b) = noting(&world, 2, Mode::Datagram).await;
        a.send(&numbered(&a, &b, 60, 0)).unwrap();
        world.sim.sleep(SECOND).await;
        let first = reader.take();
        assert!(
            matches!(first[..], [Told::Packet(_), Told::NoMore]),
            "{first:?}"
        );
        let mut batch = a.batch();
        for number in 0..COUNT {
            batch.send(&numbered(&a, &b, 60, number)).unwrap();
        }
        drop(batch);
        world.sim.sleep(SECOND).await;
        let told = reader.take();
        let ends = told.iter().filter(|&told| *told == Told::NoMore).count();
        assert_eq!(told.len() - ends, usize::from(COUNT));
        assert_eq!(told.last(), Some(&Told::NoMore));
        let twice = told
            .windows(2)
            .any(|pair| pair == [Told::NoMore, Told::NoMore]);
        assert!(!twice);
    });
}

/// Goal: a packet in two parts arrives as one, wherever it is cut; one that is too long is quoted to its sender from
/// both; one whose first part is no header is refused.
#[test]
fn a_packet_in_parts_is_one_packet() {
    run(75, async |world| {
        let (writer, a, _a) = noting(&world, 1, Mode::Datagram).await;
        let (reader, b, _b) = noting(&world, 2, Mode::Datagram).await;
        let whole = numbered(&a, &b, 500, 7);
        a.send(&whole).unwrap();
        world.sim.sleep(SECOND).await;
        reader.take();
        for cut in [20, 28, 52, 499, 500] {
            let (head, body) = whole.split_at(cut);
            a.batch().send_parts(head, body).unwrap();
            world.sim.sleep(SECOND).await;
            assert_eq!(
                reader.packets(),
                std::slice::from_ref(&whole),
                "cut at {cut}"
            );
        }
        let (head, body) = whole.split_at(19);
        let refused = a.batch().send_parts(head, body);
        assert!(matches!(refused, Err(SendError::NotIp(_))));

        writer.take();
        let long = numbered(&a, &b, 3000, 7);
        let (head, body) = long.split_at(40);
        a.batch().send_parts(head, body).unwrap();
        let told = writer.take();
        let [Told::Packet(message), Told::NoMore] = &told[..] else {
            panic!("{told:?}");
        };
        let ip = Ip::parse(message).unwrap();
        assert_eq!((ip.destination, ip.next), (own(&a), 1));
        assert_eq!(message[28..], long[..message.len() - 28]);
        assert_eq!(a.counters().too_big, 1);
        world.sim.sleep(SECOND).await;
        assert!(reader.packets().is_empty());
    });
}
