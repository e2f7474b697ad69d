//! Sockets as a C program uses them, between threads of one process on a device at a free address of 127.0.0.0/8.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use super::*;
use crate::call::Errno;
use crate::rdmacm::address::sockaddr::{from_c, to_c};

pub(super) const INET: c_int = libc::AF_INET;
pub(super) const STREAM: c_int = libc::SOCK_STREAM;

pub(super) fn new() -> c_int {
    // SAFETY: plain numbers.
    let fd = unsafe { rsocket(INET, STREAM, 0) };
    assert!(fd >= 0);
    fd
}

pub(super) fn last() -> c_int {
    Errno::last().0
}

/// A listener on a free port, and its address.
pub(super) fn listener() -> (c_int, SocketAddr) {
    listener_of(8)
}

/// The same, with that backlog.
pub(super) fn listener_of(backlog: c_int) -> (c_int, SocketAddr) {
    let fd = new();
    let any = to_c("0.0.0.0:0".parse().expect("an address")).0;
    // SAFETY: a complete address.
    unsafe {
        assert_eq!(rbind(fd, (&raw const any).cast(), 16), 0);
        assert_eq!(rlisten(fd, backlog), 0);
    }
    let mut addr = name_of(fd, rgetsockname);
    // The device's own address, which a wildcard stands for.
    let ip = crate::device::hca()
        .map(|made| made.hca.gid())
        .expect("a device");
    addr.set_ip(std::net::IpAddr::from(ip).to_canonical());
    (fd, addr)
}

fn name_of(
    fd: c_int,
    call: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut u32) -> c_int,
) -> SocketAddr {
    let (mut room, mut length) = (to_c(SocketAddr::from(([0, 0, 0, 0], 0))).0, 128);
    // SAFETY: room for any address.
    unsafe {
        assert_eq!(call(fd, (&raw mut room).cast(), &raw mut length), 0);
        from_c((&raw const room).cast()).expect("an address")
    }
}

pub(super) fn connect_to(fd: c_int, addr: SocketAddr) -> c_int {
    let to = to_c(addr).0;
    // SAFETY: a complete address.
    unsafe { rconnect(fd, (&raw const to).cast(), 16) }
}

/// Two ends of a connection.
pub(super) fn pair() -> [c_int; 2] {
    let (listening, addr) = listener();
    let accepts = std::thread::spawn(move || {
        // SAFETY: a listener.
        let fd = unsafe { raccept(listening, null_mut(), null_mut()) };
        assert!(fd >= 0);
        fd
    });
    let client = new();
    assert_eq!(connect_to(client, addr), 0);
    let server = accepts.join().expect("no panic");
    assert_eq!(name_of(client, rgetpeername), addr);
    assert_eq!(name_of(client, rgetsockname), name_of(server, rgetpeername));
    // SAFETY: it is no longer used.
    assert_eq!(unsafe { rclose(listening) }, 0);
    [client, server]
}

pub(super) fn put(fd: c_int, data: &[u8], flags: c_int) -> isize {
    // SAFETY: there are that many bytes.
    unsafe { rsend(fd, data.as_ptr().cast(), data.len(), flags) }
}

pub(super) fn get(fd: c_int, room: &mut [u8], flags: c_int) -> isize {
    // SAFETY: there are that many bytes.
    unsafe { rrecv(fd, room.as_mut_ptr().cast(), room.len(), flags) }
}

pub(super) fn close_both(pair: [c_int; 2]) {
    let [one, other] = pair;
    // Each close waits for the other.
    let closes = std::thread::spawn(move || {
        // SAFETY: it is no longer used.
        assert_eq!(unsafe { rclose(other) }, 0);
    });
    // SAFETY: as above.
    assert_eq!(unsafe { rclose(one) }, 0);
    closes.join().expect("no panic");
}

/// Goal: bytes arrive in order, however many, in both directions at once.
#[test]
fn bytes_go_both_ways() {
    let [client, server] = pair();
    let data: Vec<u8> = (0..3_000_017_u32).map(|n| ((n * 31) >> 3) as u8).collect();
    std::thread::scope(|scope| {
        for (from, to) in [(client, server), (server, client)] {
            let data = &data;
            scope.spawn(move || assert_eq!(put(from, data, 0), data.len() as isize));
            scope.spawn(move || {
                let mut got = vec![0; data.len()];
                assert_eq!(get(to, &mut got, libc::MSG_WAITALL), data.len() as isize);
                assert!(got == *data);
            });
        }
    });
    close_both([client, server]);
}

/// Goal: threads that wait on one socket, for the same or for different things, all go on as soon as what they wait for is there:
/// the one that waits at the descriptors wakes the others. Method: two readers, and then a reader and a writer; without the wake
/// each round takes half a second.
#[test]
fn every_thread_that_waits_on_a_socket_goes_on_at_once() {
    const ROUNDS: u32 = 8;
    // Half of what a thread waits that is not woken.
    const LATE: Duration = Duration::from_millis(250);
    // So that the threads wait in this order, and have stopped polling.
    let pause = || std::thread::sleep(Duration::from_millis(20));
    let [client, server] = pair();
    // How long it takes until what two threads do has been done, once something has happened.
    let timed = |first: &(dyn Fn() + Sync), second: &(dyn Fn() + Sync), happens: &dyn Fn()| {
        std::thread::scope(|scope| {
            let threads = [first, second].map(|thread| {
                let thread = scope.spawn(thread);
                pause();
                thread
            });
            let since = Instant::now();
            happens();
            for thread in threads {
                thread.join().expect("no panic");
            }
            since.elapsed()
        })
    };
    let read = || assert_eq!(get(server, &mut [0], 0), 1);
    let write = |byte| assert_eq!(put(client, &[byte], 0), 1);
    let readers = (0..ROUNDS).map(|_| timed(&read, &read, &|| (1..3).for_each(write)));
    let readers: Duration = readers.sum();
    assert!(readers < ROUNDS * LATE, "two readers: {readers:?}");
    // The peer's buffer is full: a writer waits for room, behind a reader that waits at the descriptors.
    let fill = || {
        let mut sent = 0;
        let mut room = [libc::pollfd {
            fd: server,
            events: libc::POLLOUT,
            revents: 0,
        }];
        // SAFETY: one descriptor.
        while unsafe { rpoll(room.as_mut_ptr(), 1, 50) } == 1 {
            sent += put(server, &[3; 50_000], libc::MSG_DONTWAIT).max(0);
        }
        sent
    };
    let both = (0..ROUNDS).map(|_| {
        let sent = fill();
        let answer = || assert_eq!(put(server, &[4], 0), 1);
        let makes_room = || {
            let mut all = vec![0; sent as usize + 1];
            assert_eq!(get(client, &mut all, libc::MSG_WAITALL), sent + 1);
            write(5);
        };
        timed(&read, &answer, &makes_room)
    });
    let both: Duration = both.sum();
    assert!(both < ROUNDS * LATE, "a reader and a writer: {both:?}");
    close_both([client, server]);
}

/// Goal: what a program that does not block is told, and what it may look at first.
#[test]
fn calls_that_do_not_wait_say_so() {
    let [client, server] = pair();
    let mut room = [0; 8];
    assert_eq!(
        (get(server, &mut room, libc::MSG_DONTWAIT), last()),
        (-1, libc::EAGAIN)
    );
    // SAFETY: a socket.
    unsafe {
        assert_eq!(rfcntl(client, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
        assert_eq!(
            rfcntl(client, libc::F_GETFL, 0),
            libc::O_RDWR | libc::O_NONBLOCK
        );
    }
    let mut sent = 0;
    let mut fds = [libc::pollfd {
        fd: client,
        events: libc::POLLOUT,
        revents: 0,
    }];
    // Data under way make room when they have arrived; then there is none.
    // SAFETY: one descriptor.
    while unsafe { rpoll(fds.as_mut_ptr(), 1, 50) } == 1 {
        match put(client, &[7; 50_000], 0) {
            -1 => assert_eq!(last(), libc::EAGAIN),
            count => sent += count,
        }
    }
    assert_eq!(sent, 1 << 20, "all of the peer's buffer");
    assert_eq!(get(server, &mut room, libc::MSG_PEEK), 8);
    let mut all = vec![0; sent as usize];
    assert_eq!(get(server, &mut all, libc::MSG_WAITALL), sent);
    assert!(all.iter().all(|&byte| byte == 7));
    // SAFETY: as above.
    assert_eq!(unsafe { rpoll(fds.as_mut_ptr(), 1, 5000) }, 1);
    assert_eq!(fds[0].revents, libc::POLLOUT);
    close_both([client, server]);
}

/// Goal: the end of one direction arrives behind the data before it, and the other direction continues.
#[test]
fn a_direction_ends_behind_its_data() {
    let [client, server] = pair();
    assert_eq!(put(client, b"last words", 0), 10);
    // SAFETY: a socket.
    assert_eq!(unsafe { rshutdown(client, libc::SHUT_WR) }, 0);
    let mut room = [0; 32];
    assert_eq!(get(server, &mut room, libc::MSG_WAITALL), 10);
    assert_eq!(
        (&room[..10], get(server, &mut room.clone(), 0)),
        (&b"last words"[..], 0)
    );
    assert_eq!((put(client, b"more", 0), last()), (-1, libc::ECONNRESET));
    assert_eq!(put(server, b"answer", 0), 6);
    assert_eq!(get(client, &mut room, 0), 6);
    close_both([client, server]);
}

/// Goal: a program that polls learns of a request, of data and of the end, alongside other descriptors.
#[test]
fn all_kinds_of_descriptors_are_polled_together() {
    let (listening, addr) = listener();
    let mut pipe = [0; 2];
    // SAFETY: room for two.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let poll_in = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut fds = [poll_in(listening), poll_in(pipe[0])];
    // SAFETY: that many descriptors; a pipe's end.
    unsafe {
        assert_eq!(rpoll(fds.as_mut_ptr(), 2, 10), 0);
        assert_eq!(libc::write(pipe[1], b"x".as_ptr().cast(), 1), 1);
        assert_eq!(rpoll(fds.as_mut_ptr(), 2, -1), 1);
        assert_eq!((fds[0].revents, fds[1].revents), (0, libc::POLLIN));
        pipe.iter().for_each(|&fd| assert_eq!(libc::close(fd), 0));
    }
    let client = std::thread::spawn(move || {
        let client = new();
        assert_eq!(connect_to(client, addr), 0);
        assert_eq!(put(client, b"hi", 0), 2);
        client
    });
    // SAFETY: as above.
    let server = unsafe {
        assert_eq!(rpoll(fds.as_mut_ptr(), 1, 5000), 1);
        raccept(listening, null_mut(), null_mut())
    };
    let client = client.join().expect("no panic");
    let mut fds = [poll_in(server)];
    let mut room = [0; 8];
    // SAFETY: as above.
    unsafe {
        assert_eq!(
            (rpoll(fds.as_mut_ptr(), 1, 5000), fds[0].revents),
            (1, libc::POLLIN)
        );
        assert_eq!(get(server, &mut room, 0), 2);
        assert_eq!(rclose(client), 0);
        assert_eq!(rpoll(fds.as_mut_ptr(), 1, 5000), 1);
        assert_eq!(fds[0].revents, libc::POLLIN | libc::POLLHUP);
        assert_eq!(get(server, &mut room, 0), 0);
        assert_eq!((rclose(server), rclose(listening)), (0, 0));
    }
}

/// Goal: memory that one side maps is written by the other, by offset, and nothing else is.
#[test]
fn mapped_memory_is_written() {
    let (listening, addr) = listener();
    let (level, name, maps) = (0x10000, 3, 4_i32);
    let accepts = std::thread::spawn(move || {
        // SAFETY: a listener.
        unsafe { raccept(listening, null_mut(), null_mut()) }
    });
    let client = new();
    let mut memory = vec![0_u8; 256];
    // SAFETY: a number; the memory lives longer than its map.
    unsafe {
        assert_eq!(
            rsetsockopt(client, level, name, (&raw const maps).cast(), 4),
            0
        );
        assert_eq!(connect_to(client, addr), 0);
        let server = accepts.join().expect("no panic");
        assert_eq!(
            riomap(
                server,
                memory.as_mut_ptr().cast(),
                128,
                libc::PROT_WRITE,
                0,
                1000
            ),
            1000
        );
        assert_eq!(put(server, b"mapped", 0), 6);
        let mut room = [0; 8];
        assert_eq!(get(client, &mut room, 0), 6);
        let data = [9_u8; 64].as_ptr().cast::<c_void>();
        assert_eq!(riowrite(client, data, 64, 1032, 0), 64);
        assert_eq!(
            (riowrite(client, data, 64, 2000, 0), last()),
            (usize::MAX, libc::EINVAL),
            "not mapped"
        );
        assert_eq!(put(client, b"written", 0), 7);
        assert_eq!(get(server, &mut room, 0), 7);
        let written = |at: usize| (32..96).contains(&at);
        let seen = memory.iter().enumerate();
        assert!(
            seen.clone()
                .all(|(at, &byte)| byte == if written(at) { 9 } else { 0 })
        );
        // The client has no room for maps of the server, so the other direction has none.
        assert_eq!(
            (
                riomap(client, memory.as_mut_ptr().cast(), 8, 2, 0, -1),
                last()
            ),
            (-1, libc::ENOMEM)
        );
        assert_eq!(riounmap(server, memory.as_mut_ptr().cast(), 128), 0);
        assert_eq!(
            (riounmap(server, memory.as_mut_ptr().cast(), 128), last()),
            (-1, libc::EINVAL)
        );
        close_both([client, server]);
        assert_eq!(rclose(listening), 0);
    }
}

/// Goal: wrong calls return error numbers.
#[test]
fn wrong_calls_are_refused() {
    let (listening, mut addr) = listener();
    // SAFETY: arguments are checked first.
    unsafe {
        let refused = |code: isize, errno: c_int| assert_eq!((code, last()), (-1, errno));
        refused(rsocket(INET, libc::SOCK_RAW, 0) as isize, libc::EOPNOTSUPP);
        refused(rsocket(libc::AF_UNIX, STREAM, 0) as isize, libc::EOPNOTSUPP);
        refused(rlisten(-1, 1) as isize, libc::EBADF);
        refused(rclose(0) as isize, libc::EBADF);
        let one = new();
        refused(put(one, b"x", 0), libc::ENOTCONN);
        refused(get(one, &mut [0; 4], 0), libc::ENOTCONN);
        refused(raccept(one, null_mut(), null_mut()) as isize, libc::EINVAL);
        refused(rshutdown(one, libc::SHUT_WR) as isize, libc::ENOTCONN);
        refused(rsend(one, std::ptr::null(), 4, 0), libc::EFAULT);
        addr.set_port(1);
        refused(connect_to(one, addr) as isize, libc::ECONNREFUSED);
        assert_eq!((rclose(one), rclose(listening)), (0, 0));
    }
}

/// Goal: a peer that reports more than it may breaks its own connection, and nothing else.
#[test]
fn a_peer_that_lies_is_cut_off() {
    let [client, server] = pair();
    let socket = socket::of(server).expect("a socket");
    {
        let mut inner = socket.inner.lock();
        let stream = inner.open().expect("it is open");
        for lie in [u32::MAX >> 3, 1 << 20 | 1] {
            stream.hear_for_tests(lie, None);
            assert_eq!(stream.error, Some(Errno(libc::EPROTO)));
        }
    }
    assert_eq!((get(server, &mut [0; 4], 0), last()), (-1, libc::EPROTO));
    assert_eq!(get(server, &mut [0; 4], 0), 0);
    close_both([client, server]);
}

/// Goal: whatever parameters and messages a peer sends, nothing here is written or read outside its place; the
/// connection ends or continues.
#[test]
fn any_words_of_a_peer_are_survived() {
    let mut random = oorandom::Rand64::new(2005);
    for _ in 0..24 {
        let [client, server] = pair();
        let socket = socket::of(server).expect("a socket");
        for _ in 0..64 {
            let mut inner = socket.inner.lock();
            let stream = inner.open().expect("it is there");
            let mut number = || random.rand_u64();
            let piece = stream::wire::Piece {
                addr: number(),
                key: number() as u32,
                length: number() as u32,
            };
            if number() % 16 == 0 {
                let mut bytes = [1; stream::wire::HELLO];
                bytes[1..]
                    .iter_mut()
                    .for_each(|byte| *byte = number() as u8);
                stream.begin(&stream::wire::Hello::parse(&bytes).expect("of this version"));
            }
            // Mostly data for which there may be room.
            let imm = if number() % 4 == 0 {
                number() as u32
            } else {
                (number() % 4096) as u32
            };
            stream.hear_for_tests(imm, (number() % 8 == 0).then_some(piece));
            drop(inner);
            put(server, &[1; 3000], libc::MSG_DONTWAIT);
            get(server, &mut [0; 5000], libc::MSG_DONTWAIT);
        }
        close_both([client, server]);
    }
}
