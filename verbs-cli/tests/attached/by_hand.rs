//! The other end of a port's rings, by hand: one that reads late, and one that breaks them.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path as FilePath;
use std::thread;
use std::time::{Duration, Instant};

use hca_sim::link::fabric::RING_LEN;
use hca_sim::link::fabric::message::{BELL, Message, PACKETS_MAX};
use hca_sim::link::fabric::ring::{Bell, Rings};
use hca_sim::link::fabric::socket::{Take, connect_to, receive, ring, send, send_with};
use verbs_core::wr::Datagram;
use verbs_core::{Av, Lid, PortState, PostError, Qpn, Send, Wc};

use super::manager::{ADAPTERS, Manager};
use super::{End, Hosted, Node, QKEY, STUCK, eventually};

/// Goal: who does not read holds up its sender for a while, nothing is lost, and what has waited for room leaves by
/// itself. Method: datagrams to a port whose process does not read before all buffers on the way are full; then
/// nobody polls or posts any more.
#[test]
fn a_late_reader_gets_all() {
    let hosted = Hosted::new();
    let a = Node::attach(&hosted.socket, "A").unwrap();
    let (reader, mut rings) = attach_by_hand(&hosted.socket, "B");
    Manager::on(&a.device).bring_up();
    a.wait_for(PortState::Active);
    let mut end = End::datagrams(&a);
    let there = Datagram {
        av: Av::to_lid(1, Lid(2)),
        qpn: Qpn::new(5),
        qkey: QKEY,
        pkey_index: 0,
    };
    let (mut sent, begin) = (0, Instant::now());
    let mut wcs = [Wc::default(); 16];
    while a.blocked() == 0 {
        let is_held_up = sent < 10_000 && begin.elapsed() < STUCK;
        assert!(is_held_up, "nobody is held up by {sent} datagrams");
        let send = Send::new(0).from(end.mr.slice(0..2048)).to(&there);
        // Datagrams leave when the link's thread has its turn: a full queue says nothing about the reader.
        match end.qp.post_send(send.signaled()) {
            Ok(()) => sent += 1,
            Err(PostError::Full { .. }) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        end.cq.poll(&mut wcs);
    }
    // Longer than a poller is taken to be one.
    thread::sleep(Duration::from_millis(50));
    let reading = thread::spawn(move || {
        let (mut count, mut message) = (0, vec![0; PACKETS_MAX]);
        let watch = rings.reader.watch();
        while count < sent {
            if let Some(len) = rings.reader.read(&mut message).unwrap() {
                count += len / 2048;
            } else if watch.sleep() {
                // The bell, or what is said otherwise.
                receive(reader.as_fd(), Take::Away, true).unwrap().unwrap();
                watch.wake();
            }
            if rings.reader.bell() == Bell::Ring {
                ring(reader.as_fd());
            }
        }
    });
    eventually(|| reading.is_finished());
    reading.join().unwrap();
}

/// An HCA by hand: its connection, which the answer is still to come over, and its rings.
fn attach_by_hand(socket: &FilePath, node: &str) -> (OwnedFd, Rings) {
    let connection = connect_to(socket).unwrap();
    let attach = Message::Attach {
        host: node.into(),
        adapter: 0,
        port: 1,
    };
    let (file, rings) = Rings::create(RING_LEN).unwrap();
    send_with(connection.as_fd(), &attach.encode(), file.as_fd(), true).unwrap();
    (connection, rings)
}

/// Waits until the host has closed a connection.
fn is_closed_at_last(connection: &OwnedFd) {
    while receive(connection.as_fd(), Take::Away, true).is_ok_and(|said| said.is_some()) {}
}

/// Goal: an HCA that breaks the rules is disconnected, and nobody else is harmed. Method: one that comes without a
/// file, one whose file is no ring's, ones whose packets are none or too long, one that rings all the time.
#[test]
fn who_breaks_a_ring_is_disconnected() {
    let hosted = Hosted::new();
    let names = ADAPTERS.map(|(name, ..)| name);
    let [a, _b] = [names[0], names[2]].map(|name| Node::attach(&hosted.socket, name).unwrap());
    let manager = Manager::on(&a.device);
    let attach = Message::Attach {
        host: "B".into(),
        adapter: 0,
        port: 1,
    };
    let attach = attach.encode();
    let bare = connect_to(&hosted.socket).unwrap();
    send(bare.as_fd(), &attach, true).unwrap();
    is_closed_at_last(&bare);
    let other = connect_to(&hosted.socket).unwrap();
    let file = fs::File::open("/proc/self/exe").unwrap();
    send_with(other.as_fd(), &attach, file.as_fd(), true).unwrap();
    is_closed_at_last(&other);
    for bytes in [vec![0xff; 100], vec![0; PACKETS_MAX + 1]] {
        let (connection, mut rings) = attach_by_hand(&hosted.socket, "B");
        // The host has opened the rings when it answers.
        receive(connection.as_fd(), Take::Away, true)
            .unwrap()
            .unwrap();
        let written = rings.writer.write(bytes.len(), [&bytes[..]].into_iter());
        assert!(written.unwrap().is_some());
        ring(connection.as_fd());
        is_closed_at_last(&connection);
    }
    let (noisy, _rings) = attach_by_hand(&hosted.socket, "B");
    for _ in 0..10_000 {
        send(noisy.as_fd(), &BELL, true).unwrap();
    }
    manager.bring_up();
    a.wait_for(PortState::Active);
}
