//! Sockets for datagrams as a C program uses them, on a device at a free address of 127.0.0.0/8.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ptr::{null, null_mut};
use std::time::Duration;

use super::wire::{NOTE_MAX, Note};
use crate::call::Errno;
use crate::rdmacm::address::sockaddr::{from_c, to_c};
use crate::rsocket::socket::{self, Any};
use crate::rsocket::*;

const DGRAM: c_int = libc::SOCK_DGRAM;

fn new() -> c_int {
    // SAFETY: plain numbers.
    let fd = unsafe { rsocket(libc::AF_INET, DGRAM, 0) };
    assert!(fd >= 0);
    fd
}

fn last() -> c_int {
    Errno::last().0
}

/// The device's own address.
fn own() -> IpAddr {
    let made = crate::device::hca().expect("a device");
    IpAddr::from(made.hca.gid()).to_canonical()
}

fn name_of(fd: c_int) -> SocketAddr {
    let (mut room, mut length) = (to_c(SocketAddr::from(([0, 0, 0, 0], 0))).0, 128);
    // SAFETY: room for any address.
    unsafe {
        assert_eq!(rgetsockname(fd, (&raw mut room).cast(), &raw mut length), 0);
        from_c((&raw const room).cast()).expect("an address")
    }
}

fn bind(fd: c_int, addr: SocketAddr) -> c_int {
    let to = to_c(addr).0;
    // SAFETY: a complete address.
    unsafe { rbind(fd, (&raw const to).cast(), 16) }
}

/// A socket that is bound to all addresses, and its own.
fn bound() -> (c_int, SocketAddr) {
    let fd = new();
    assert_eq!(bind(fd, SocketAddr::from(([0, 0, 0, 0], 0))), 0);
    let name = name_of(fd);
    assert_eq!(name.ip(), own(), "a wildcard is the device's address");
    assert_ne!(name.port(), 0);
    (fd, name)
}

fn connect(fd: c_int, addr: SocketAddr) -> c_int {
    let to = to_c(addr).0;
    // SAFETY: a complete address.
    unsafe { rconnect(fd, (&raw const to).cast(), 16) }
}

fn send_to(fd: c_int, data: &[u8], addr: SocketAddr) -> isize {
    let to = to_c(addr).0;
    // SAFETY: that many bytes, and a complete address.
    unsafe {
        rsendto(
            fd,
            data.as_ptr().cast(),
            data.len(),
            0,
            (&raw const to).cast(),
            16,
        )
    }
}

fn send(fd: c_int, data: &[u8]) -> isize {
    // SAFETY: that many bytes.
    unsafe { rsend(fd, data.as_ptr().cast(), data.len(), 0) }
}

fn receive(fd: c_int, room: &mut [u8], flags: c_int) -> (isize, Option<SocketAddr>) {
    let (mut from, mut length) = (to_c(SocketAddr::from(([0, 0, 0, 0], 0))).0, 128);
    // SAFETY: that many bytes, and room for any address.
    unsafe {
        let got = rrecvfrom(
            fd,
            room.as_mut_ptr().cast(),
            room.len(),
            flags,
            (&raw mut from).cast(),
            &raw mut length,
        );
        let from = from_c((&raw const from).cast()).ok();
        (got, from.filter(|_| got >= 0))
    }
}

fn close(fds: &[c_int]) {
    for &fd in fds {
        // SAFETY: it is no longer used.
        assert_eq!(unsafe { rclose(fd) }, 0);
    }
}

fn knows(fd: c_int, peer: SocketAddr) -> bool {
    match socket::any(fd) {
        Ok(Any::Datagrams(socket)) => socket.inner.lock().peers.contains_key(&peer),
        _ => false,
    }
}

/// Goal: the first datagram goes over UDP and teaches both sides; those after it, in both directions, go over the queue
/// pairs, and each arrives whole with its sender's address.
#[test]
fn datagrams_go_both_ways_over_the_queue_pairs() {
    let (server, addr) = bound();
    let client = new();
    assert_eq!(connect(client, addr), 0);
    let own_name = name_of(client);
    let mut room = [0; 4000];
    assert_eq!(send(client, b"first"), 5);
    assert!(!knows(client, addr), "it has not heard of the server's");
    assert_eq!(receive(server, &mut room, 0), (5, Some(own_name)));
    assert!(knows(server, own_name));
    for length in [0, 1, 56, 57, 1000, 2040] {
        let data: Vec<u8> = (0..length).map(|n| n as u8).collect();
        assert_eq!(send(client, &data), length as isize);
        assert!(knows(client, addr));
        assert_eq!(
            receive(server, &mut room, 0),
            (length as isize, Some(own_name))
        );
        assert_eq!(room[..length], data);
        assert_eq!(send_to(server, &data, own_name), length as isize);
        assert_eq!(receive(client, &mut room, 0), (length as isize, Some(addr)));
        assert_eq!(room[..length], data);
    }
    close(&[client, server]);
}

/// Goal: more datagrams than there are places go through, one after the other.
#[test]
fn places_are_used_again() {
    let (server, addr) = bound();
    let client = new();
    assert_eq!(connect(client, addr), 0);
    for n in 0..500_u32 {
        let data = n.to_be_bytes();
        assert_eq!(send(client, &data), 4);
        let mut room = [0; 8];
        assert_eq!(receive(server, &mut room, 0).0, 4);
        assert_eq!(room[..4], data);
    }
    close(&[client, server]);
}

/// Goal: a peek leaves a datagram; a short buffer gets its beginning, and the rest is lost; pieces are one datagram.
#[test]
fn a_datagram_is_read_once() {
    let (server, addr) = bound();
    let (client, _) = bound();
    let parts = [b"ab".as_slice(), b"cde"].map(|part| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    });
    // By UDP, and by queue pair.
    for _ in 0..2 {
        let mut to = to_c(addr).0;
        // SAFETY: plain numbers and pointers; the pieces and the address exist.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_name, message.msg_namelen) = ((&raw mut to).cast(), 16);
            (message.msg_iov, message.msg_iovlen) = (parts.as_ptr().cast_mut(), 2);
            assert_eq!(rsendmsg(client, &raw const message, 0), 5);
        }
        assert_eq!(send_to(client, b"next", addr), 4);
        let mut room = [0; 3];
        assert_eq!(receive(server, &mut room, libc::MSG_PEEK).0, 3);
        assert_eq!(&room, b"abc");
        assert_eq!(receive(server, &mut room, 0).0, 3);
        assert_eq!(&room, b"abc");
        let mut room = [0; 9];
        assert_eq!(receive(server, &mut room, 0).0, 4);
        assert_eq!(&room[..4], b"next");
    }
    close(&[client, server]);
}

/// Goal: `rpoll` reports datagrams that come over UDP and those that come over the queue pair.
#[test]
fn sockets_for_datagrams_are_polled() {
    let (server, addr) = bound();
    let client = new();
    assert_eq!(connect(client, addr), 0);
    let poll = |events, timeout| {
        let mut fds = [libc::pollfd {
            fd: server,
            events,
            revents: 0,
        }];
        // SAFETY: one descriptor.
        let ready = unsafe { rpoll(fds.as_mut_ptr(), 1, timeout) };
        (ready, fds[0].revents)
    };
    assert_eq!(poll(libc::POLLIN, 10), (0, 0));
    assert_eq!(poll(libc::POLLIN | libc::POLLOUT, -1), (1, libc::POLLOUT));
    for _ in 0..3 {
        let sends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(send(client, b"x"), 1);
        });
        assert_eq!(poll(libc::POLLIN, 10_000), (1, libc::POLLIN));
        assert_eq!(receive(server, &mut [0; 4], 0).0, 1);
        sends.join().expect("no panic");
    }
    close(&[client, server]);
}

/// Goal: the messages over UDP are those of librdmacm: a datagram is answered with the number of the queue pair, and
/// what is none of its messages with nothing.
#[test]
fn the_other_end_may_be_librdmacm() {
    let (server, addr) = bound();
    let peer = UdpSocket::bind((own(), 0)).expect("a free port");
    peer.set_read_timeout(Some(Duration::from_secs(10)))
        .expect("it is so long");
    let mut note = vec![0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0, 0, 0x7b];
    let IpAddr::V4(ip) = own() else {
        panic!("it is of 127.0.0.0/8")
    };
    note.extend(ip.octets());
    let mut wrong = note.clone();
    wrong[0] = 0x54;
    for junk in [&wrong[..], &note[..15], b""] {
        peer.send_to(junk, addr).expect("it is sent");
    }
    let data = [&note[..], b"hello"].concat();
    peer.send_to(&data, addr).expect("it is sent");
    let mut room = [0; 16];
    let name = peer.local_addr().expect("it is bound");
    assert_eq!(receive(server, &mut room, 0), (5, Some(name)));
    assert_eq!(&room[..5], b"hello");
    let mut answer = [0; NOTE_MAX];
    let (length, from) = peer.recv_from(&mut answer).expect("an answer");
    assert_eq!((length, from), (16, addr));
    let (told, _) = Note::parse(&answer[..length]).expect("of the protocol");
    assert!(!told.has_data && told.qpn > 1 && told.ip == own());
    assert!(knows(server, name));
    close(&[server]);
}

/// Goal: a server that is started again, with another queue pair, is found again.
#[test]
fn a_peer_that_begins_again_is_learned_again() {
    let (server, addr) = bound();
    let (client, name) = bound();
    let mut room = [0; 8];
    for _ in 0..2 {
        assert_eq!(send_to(client, b"ping", addr), 4);
        assert_eq!(receive(server, &mut room, 0).0, 4);
        assert_eq!(send_to(server, b"pong", name), 4);
        assert_eq!(receive(client, &mut room, 0).0, 4);
    }
    close(&[server]);
    let server = new();
    assert_eq!(bind(server, addr), 0);
    assert_eq!(send_to(server, b"anew", name), 4);
    assert_eq!(receive(client, &mut room, 0), (4, Some(addr)));
    assert_eq!(send_to(client, b"seen", addr), 4);
    assert_eq!(receive(server, &mut room, 0), (4, Some(name)));
    assert_eq!(&room[..4], b"seen");
    close(&[client, server]);
}

/// Goal: wrong calls return error numbers.
#[test]
fn wrong_calls_are_refused() {
    let (server, addr) = bound();
    let one = new();
    let refused = |code: isize, errno: c_int| assert_eq!((code, last()), (-1, errno));
    // SAFETY: arguments are checked first.
    unsafe {
        refused(send(one, b"x"), libc::EDESTADDRREQ);
        refused(receive(one, &mut [0; 4], 0).0, libc::EINVAL);
        refused(rlisten(one, 1) as isize, libc::EOPNOTSUPP);
        refused(
            raccept(one, null_mut(), null_mut()) as isize,
            libc::EOPNOTSUPP,
        );
        refused(
            rgetpeername(one, null_mut(), null_mut()) as isize,
            libc::ENOTCONN,
        );
        refused(bind(one, addr) as isize, libc::EADDRINUSE);
        let elsewhere = SocketAddr::from(([127, 250, 250, 250], 0));
        refused(bind(one, elsewhere) as isize, libc::EADDRNOTAVAIL);
        assert_eq!(bind(one, SocketAddr::from(([0, 0, 0, 0], 0))), 0);
        refused(
            bind(one, SocketAddr::from(([0, 0, 0, 0], 0))) as isize,
            libc::EINVAL,
        );
        refused(
            receive(one, &mut [0; 4], libc::MSG_DONTWAIT).0,
            libc::EAGAIN,
        );
        assert_eq!(rfcntl(one, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
        refused(receive(one, &mut [0; 4], 0).0, libc::EAGAIN);
        // More than a message over UDP carries, and more than a packet does.
        refused(send_to(one, &[1; 2033], addr), libc::EMSGSIZE);
        assert_eq!(send_to(one, &[1; 2032], addr), 2032);
        assert_eq!(receive(server, &mut [0; 4], 0).0, 4);
        refused(send_to(one, &[1; 2041], addr), libc::EMSGSIZE);
        refused(rsend(one, null(), 4, 0), libc::EFAULT);
        let (mut kind, mut size) = (0_i32, 4);
        let at = (&raw mut kind).cast();
        let code = rgetsockopt(one, libc::SOL_SOCKET, libc::SO_TYPE, at, &raw mut size);
        assert_eq!((code, kind), (0, DGRAM));
        assert_eq!(rshutdown(one, libc::SHUT_RDWR), 0);
    }
    close(&[one, server]);
}
