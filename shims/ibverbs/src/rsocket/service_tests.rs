//! What the library does for a program that is elsewhere: it answers requests, and finishes what was closed. The peers here
//! are sometimes ids of librdmacm, which say less than a socket would.

use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use verbs_abi::rdmacm::{CmId, ConnParam, EventChannel, event};

use super::memory::Buffer;
use super::stream::wire::{Hello, Piece};
use super::tests::{
    INET, STREAM, close_both, connect_to, get, last, listener, listener_of, new, pair, put,
};
use super::*;
use crate::process_tests::is_alone;
use crate::rdmacm;
use crate::rdmacm::address::sockaddr::to_c;

#[path = "../../../../verbs-cli/examples/hostile/forge.rs"]
mod forge;

/// Until something that is bound to happen has happened.
const PATIENCE: Duration = Duration::from_secs(20);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What `rpoll` says of a socket within that time, in milliseconds.
fn polled(fd: c_int, events: i16, ms: c_int) -> i16 {
    let mut one = [libc::pollfd {
        fd,
        events,
        revents: 0,
    }];
    // SAFETY: one descriptor.
    unsafe { rpoll(one.as_mut_ptr(), 1, ms) };
    one[0].revents
}

fn accept(listening: c_int) -> c_int {
    // SAFETY: a listener.
    unsafe { raccept(listening, null_mut(), null_mut()) }
}

fn block(fd: c_int, blocks: bool) {
    let flags = if blocks { 0 } else { libc::O_NONBLOCK };
    // SAFETY: a socket.
    assert_eq!(unsafe { rfcntl(fd, libc::F_SETFL, flags.into()) }, 0);
}

fn close(fd: c_int) {
    // SAFETY: it is no longer used.
    assert_eq!(unsafe { rclose(fd) }, 0);
}

/// Descriptors of this process.
fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a list").count()
}

/// A client that keeps to the protocol so far as it says something, by calls of librdmacm.
struct Crude {
    channel: *mut EventChannel,
    id: *mut CmId,
    /// What the other end may write, after the queue pair has gone.
    _memory: Option<Buffer>,
}

impl Crude {
    fn next(&self) -> u32 {
        let mut told = null_mut();
        // SAFETY: its own channel; the event is not used after it is acknowledged.
        unsafe {
            assert_eq!(rdmacm::get_cm_event(self.channel, &raw mut told), 0);
            let kind = (*told).event;
            rdmacm::ack_cm_event(told);
            kind
        }
    }

    /// Sends a request, with a queue pair that has no receives. What comes back waits to be taken.
    fn asks(to: SocketAddr) -> Self {
        let mut addr = to_c(to).0;
        // SAFETY: all that is named exists.
        unsafe {
            let channel = rdmacm::create_event_channel();
            let mut id = null_mut();
            let code = rdmacm::create_id(channel, &raw mut id, null_mut(), 0x106);
            assert_eq!(code, 0);
            let mut crude = Self {
                channel,
                id,
                _memory: None,
            };
            let addr = (&raw mut addr).cast();
            assert_eq!(rdmacm::resolve_addr(id, null_mut(), addr, 2000), 0);
            assert_eq!(crude.next(), event::ADDR_RESOLVED);
            assert_eq!(rdmacm::resolve_route(id, 2000), 0);
            assert_eq!(crude.next(), event::ROUTE_RESOLVED);
            let mut init: verbs_abi::QpInitAttr = std::mem::zeroed();
            init.cap.max_send_wr = 4;
            init.cap.max_recv_wr = 4;
            init.qp_type = 2;
            assert_eq!(rdmacm::create_qp(id, null_mut(), &raw mut init), 0);
            let memory = Buffer::new((*id).pd, 1 << 17).expect("there is room");
            let ring = Piece {
                length: 2,
                ..memory.piece(0, 0)
            };
            let hello = Hello {
                is_big_endian: false,
                credits: 384,
                maps: 0,
                ring,
                first: memory.piece(4096, 1 << 16),
            };
            crude._memory = Some(memory);
            let hello = hello.emit();
            let mut param = ConnParam {
                private_data: hello.as_ptr().cast(),
                private_data_len: hello.len() as u8,
                responder_resources: 0,
                initiator_depth: 0,
                flow_control: 1,
                retry_count: 7,
                rnr_retry_count: 7,
                srq: 0,
                qp_num: 0,
            };
            assert_eq!(rdmacm::connect(id, &raw mut param), 0);
            crude
        }
    }

    /// Confirms the connection.
    fn confirms(self) -> Self {
        assert_eq!(self.next(), event::ESTABLISHED);
        self
    }
}

impl Drop for Crude {
    fn drop(&mut self) {
        // SAFETY: its own.
        unsafe {
            rdmacm::destroy_qp(self.id);
            rdmacm::destroy_id(self.id);
            rdmacm::destroy_event_channel(self.channel);
        }
    }
}

/// Goal: one thread connects to its own listener before it accepts, as it does with TCP, and so does a client that does not
/// block. Method: without a service the first connect would wait for ever.
#[test]
fn one_thread_connects_to_itself() {
    let (listening, addr) = listener();
    let client = new();
    assert_eq!(connect_to(client, addr), 0);
    assert_eq!(put(client, b"early", 0), 5);
    let second = new();
    block(second, false);
    assert_eq!((connect_to(second, addr), last()), (-1, libc::EINPROGRESS));
    assert_eq!(polled(second, libc::POLLOUT, 20_000), libc::POLLOUT);
    assert_eq!(polled(listening, libc::POLLIN, 20_000), libc::POLLIN);
    let servers = [accept(listening), accept(listening)];
    let mut room = [0; 8];
    assert_eq!(get(servers[0], &mut room, 0), 5);
    // SAFETY: sockets.
    unsafe {
        let flags = servers.map(|fd| rfcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK);
        assert_eq!(
            flags,
            [0, 0],
            "they are not of their listener's or their peer's kind"
        );
    }
    close_both([client, servers[0]]);
    close_both([second, servers[1]]);
    close(listening);
}

/// Goal: a request that nobody confirms is not a connection: the program does not learn of it, and gets nothing to close;
/// there are so many at most, an honest client is served beside them, and nothing is left of them. Method: clients that
/// do not take the reply, more than there are places.
#[test]
fn a_request_is_not_a_connection() {
    let name = "rsocket::service_tests::a_request_is_not_a_connection";
    if !is_alone(name, None, 0) {
        return;
    }
    let (listening, addr) = listener();
    block(listening, false);
    // So that what is made once is there.
    drop(Crude::asks(addr));
    let before = files();
    let silent: Vec<_> = (0..100).map(|_| Crude::asks(addr)).collect();
    let own = silent.len() * 3;
    // The reply to the last one has come: all were answered.
    let last_one = silent.last().expect("there are some");
    until("the last is answered", || {
        rdmacm::has_event(last_one.channel)
    });
    assert_eq!(polled(listening, libc::POLLIN, 50), 0);
    assert_eq!((accept(listening), last()), (-1, libc::EAGAIN));
    let made = files() - before - own;
    assert!(made <= 64, "{made} descriptors for half-open connections");
    let client = new();
    assert_eq!(connect_to(client, addr), 0);
    assert_eq!(polled(listening, libc::POLLIN, 20_000), libc::POLLIN);
    let server = accept(listening);
    assert!(server >= 0);
    assert_eq!(put(server, b"banner", 0), 6);
    let mut room = [0; 8];
    assert_eq!(get(client, &mut room, 0), 6);
    close_both([client, server]);
    // They give up, and are rejected or forgotten.
    drop(silent);
    until("nothing is left of them", || files() <= before);
    assert_eq!((accept(listening), last()), (-1, libc::EAGAIN));
    close(listening);
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("it is there");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: usize| pages * 4096)
}

/// Forges requests from addresses that have sockets here, until that is over; what was sent, and what came back.
fn flood(to: SocketAddrV4, is_over: &AtomicBool) -> [usize; 2] {
    /// Bytes of the headers of IPv4 and UDP.
    const HEADERS: usize = 28;
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address = |n: u8| Ipv4Addr::new(127, 40 + high % 8, low, n);
    let socket = |n: u8| {
        (
            address(n),
            forge::socket(address(n)).expect("a free address"),
        )
    };
    let sources: Vec<_> = (1..17).map(socket).collect();
    let hello = Hello {
        is_big_endian: false,
        credits: 384,
        maps: 0,
        ring: Piece {
            addr: 0x10000,
            key: 0x1234,
            length: 2,
        },
        first: Piece {
            addr: 0x20000,
            key: 0x1234,
            length: 1 << 20,
        },
    };
    let hello = hello.emit();
    let came = || {
        let mut room = [0; 9000];
        let of_one = |(_, socket): &(Ipv4Addr, UdpSocket)| {
            let all = std::iter::from_fn(|| socket.recv(&mut room).ok());
            all.map(|length| length + HEADERS).sum::<usize>()
        };
        sources.iter().map(of_one).sum::<usize>()
    };
    let mut counts = [0, 0];
    for (number, (from, socket)) in (0..).zip(sources.iter().cycle()) {
        let request = forge::request(*from, to, number, &hello);
        let at = SocketAddrV4::new(*to.ip(), 4791);
        if socket.send_to(&request, at).is_ok() {
            counts[0] += request.len() + HEADERS;
        }
        counts[1] += came();
        if is_over.load(Ordering::Relaxed) {
            // What the server has to say at its end is there by then.
            std::thread::sleep(Duration::from_millis(100));
            counts[1] += came();
            return counts;
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    counts
}

/// Ends the flood, also if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Goal: forged requests get at most three times their bytes, and neither places nor memory nor descriptors of the server, which
/// serves an honest client beside them, and says something first. Method: some hundred requests from 16 addresses that
/// confirm nothing; after each honest client the descriptors are no more than half-open places have.
#[test]
fn strangers_get_nothing() {
    if !is_alone("rsocket::service_tests::strangers_get_nothing", None, 0) {
        return;
    }
    let (listening, SocketAddr::V4(to)) = listener() else {
        panic!("an address of IPv4");
    };
    // A client whose place was needed for a newer one asks again, as TCP does.
    let serve = || {
        let since = Instant::now();
        let [client, server] = loop {
            let client = new();
            if connect_to(client, to.into()) == 0 && polled(listening, libc::POLLIN, 200) != 0 {
                break [client, accept(listening)];
            }
            close(client);
            assert!(since.elapsed() < PATIENCE, "an honest client is served");
        };
        assert_eq!(put(server, &[7; 60_000], 0), 60_000);
        let is_heard = polled(client, libc::POLLIN, 20_000) != 0;
        assert!(is_heard, "it was the honest one that was accepted");
        let mut room = vec![0; 60_000];
        assert_eq!(get(client, &mut room, libc::MSG_WAITALL), 60_000);
        assert_eq!(put(client, b"thanks", 0), 6);
        assert_eq!(get(server, &mut room, 0), 6);
        close_both([client, server]);
    };
    serve();
    // Connections are closed in the background, so descriptors of the last one may be there for a while.
    let few = (0..50).map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        files()
    });
    // Half-open connections have one each, and there are places for 64.
    let few = few.min().expect("some") + 64 + 24;
    let is_over = AtomicBool::new(false);
    let (bytes, [sent, came]) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(to, &is_over));
        let _ends = Ends(&is_over);
        let mut seen = Vec::new();
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(2400) {
            serve();
            let closed = Instant::now();
            while files() > few {
                let all = files();
                assert!(closed.elapsed() < PATIENCE, "{all} descriptors, not {few}");
                std::thread::sleep(Duration::from_millis(1));
            }
            seen.push(resident());
        }
        is_over.store(true, Ordering::Relaxed);
        close(listening);
        let (half, last) = (seen[seen.len() / 2], seen[seen.len() - 1]);
        (last.saturating_sub(half), flood.join().expect("no panic"))
    });
    assert!(
        sent > 30_000 && came > 0,
        "they were worth an answer: {sent}, {came}"
    );
    assert!(came <= 3 * sent, "{sent} bytes got {came}");
    assert!(bytes < 16 << 20, "{bytes} bytes more");
}

/// Goal: a server that speaks first is heard at once. Method: as soon as it is accepted; what reaches a client that is not
/// there yet would come a second time only after seconds.
#[test]
fn a_server_that_speaks_first_is_heard() {
    let (listening, addr) = listener();
    for _ in 0..12 {
        std::thread::scope(|scope| {
            let served = scope.spawn(move || {
                let server = accept(listening);
                assert_eq!(put(server, b"welcome", 0), 7);
                server
            });
            let client = new();
            let since = Instant::now();
            assert_eq!(connect_to(client, addr), 0);
            assert_eq!(get(client, &mut [0; 8], 0), 7);
            let took = since.elapsed();
            assert!(took < Duration::from_millis(1500), "after {took:?}");
            close_both([client, served.join().expect("no panic")]);
        });
    }
    close(listening);
}

/// Goal: as many connections as the backlog says are made before the program accepts; others wait until it does.
#[test]
fn others_wait_for_the_backlog() {
    let (listening, addr) = listener_of(2);
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let client = new();
            block(client, false);
            connect_to(client, addr);
            client
        })
        .collect();
    let connected = |fds: &[c_int]| {
        let is_one = |fd: &&c_int| polled(**fd, libc::POLLOUT, 0) == libc::POLLOUT;
        fds.iter().filter(is_one).count()
    };
    until("the backlog fills", || connected(&clients) >= 2);
    let mut accepted = Vec::new();
    until("all are accepted", || {
        // The clients are this thread's too: each confirms its connection in a call of its own.
        connected(&clients);
        if polled(listening, libc::POLLIN, 1) != 0 {
            accepted.push(accept(listening));
            assert!(accepted.last() >= Some(&0));
        }
        accepted.len() == clients.len()
    });
    until("all are connected", || connected(&clients) == clients.len());
    clients.into_iter().chain(accepted).for_each(close);
    close(listening);
}

/// Goal: a listener that is closed tells those that wait, and leaves nothing.
#[test]
fn a_listener_goes_with_what_waits_for_it() {
    let name = "rsocket::service_tests::a_listener_goes_with_what_waits_for_it";
    if !is_alone(name, None, 0) {
        return;
    }
    let (listening, addr) = listener();
    close(listening);
    let before = files();
    let (listening, again) = listener();
    assert_ne!(again, addr);
    let silent: Vec<_> = (0..3).map(|_| Crude::asks(again)).collect();
    let client = new();
    assert_eq!(connect_to(client, again), 0);
    assert_eq!(polled(listening, libc::POLLIN, 20_000), libc::POLLIN);
    close(listening);
    assert_eq!(get(client, &mut [0; 4], 0), 0, "the end");
    drop(silent);
    close(client);
    until("nothing is left of it", || files() <= before);
}

/// Goal: a peer that takes nothing does not hold the close of a socket, whatever the socket says of waiting; and what is left
/// goes when the time is over. Method: a peer without receives.
#[test]
fn a_peer_that_takes_nothing_does_not_hold_a_close() {
    let (listening, addr) = listener();
    let set = |fd: c_int, on: c_int, seconds: c_int| {
        let linger = libc::linger {
            l_onoff: on,
            l_linger: seconds,
        };
        let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
        // SAFETY: a socket and an option.
        unsafe {
            let size = size_of_val(&linger) as u32;
            let value = (&raw const linger).cast();
            assert_eq!(rsetsockopt(fd, level, name, value, size), 0);
        }
    };
    let mut times = Vec::new();
    let mut peers = Vec::new();
    for how in 0..4 {
        peers.push(Crude::asks(addr).confirms());
        let server = accept(listening);
        assert_eq!(put(server, b"hello", 0), 5);
        match how {
            1 => block(server, false),
            2 => set(server, 1, 0),
            3 => set(server, 1, 1),
            _ => {}
        }
        let since = Instant::now();
        close(server);
        times.push(since.elapsed());
    }
    let second = Duration::from_secs(1);
    assert!(times[..3].iter().all(|&took| took < second), "{times:?}");
    assert!(times[3] >= second && times[3] < 8 * second, "{times:?}");
    close(listening);
}

/// Goal: what was sent before a close arrives, also of a socket that does not block, and with all the room full.
#[test]
fn what_was_sent_arrives_after_the_close() {
    for blocks in [true, false] {
        let [client, server] = pair();
        block(client, blocks);
        let mut sent = 0;
        while polled(client, libc::POLLOUT, 50) == libc::POLLOUT {
            sent += put(client, &[9; 50_000], libc::MSG_DONTWAIT).max(0);
        }
        close(client);
        assert_eq!((put(client, b"x", 0), last()), (-1, libc::EBADF));
        let mut all = vec![0; sent as usize + 1];
        assert_eq!(get(server, &mut all, libc::MSG_WAITALL), sent);
        assert!(all[..sent as usize].iter().all(|&byte| byte == 9));
        close(server);
    }
}

/// Goal: what was sent arrives although the process ends by `exit` as soon as its socket, which does not block, is closed; or
/// not closed at all. Method: children of a fork, which have devices of their own.
#[test]
fn what_was_sent_arrives_after_exit() {
    let name = "rsocket::service_tests::what_was_sent_arrives_after_exit";
    if !is_alone(name, None, 0) {
        return;
    }
    let (listening, addr) = listener();
    for closes in [true, false] {
        // SAFETY: the child calls only this library, and ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let client = new();
            let is_connected = connect_to(client, addr) == 0;
            block(client, false);
            let sent = put(client, &[5; 300_000], 0);
            if closes {
                close(client);
            }
            let is_right = is_connected && sent == 300_000;
            // SAFETY: it has no other threads of its own.
            unsafe { libc::exit(c_int::from(!is_right)) };
        }
        let server = accept(listening);
        let mut all = vec![0; 300_001];
        assert_eq!(get(server, &mut all, libc::MSG_WAITALL), 300_000);
        close(server);
        let mut status = 0;
        // SAFETY: its own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
    close(listening);
}

/// Goal: a thread that waits on a socket goes on when another one closes it.
#[test]
fn a_close_ends_the_waits_of_others() {
    for _ in 0..8 {
        let [client, server] = pair();
        std::thread::scope(|scope| {
            let reads = scope.spawn(move || get(client, &mut [0; 4], 0));
            std::thread::sleep(Duration::from_millis(15));
            close(client);
            assert!(reads.join().expect("no panic") <= 0);
        });
        close(server);
    }
}

/// Goal: `SO_LINGER` is read as it was set, and the flags of the descriptor are those of the system.
#[test]
fn lingers_and_flags_are_read() {
    // SAFETY: plain numbers; room for what is read.
    unsafe {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = rsocket(INET, STREAM | flags, 0);
        assert_eq!(rfcntl(fd, libc::F_GETFD, 0), libc::FD_CLOEXEC);
        assert_eq!(rfcntl(fd, libc::F_SETFD, 0), 0);
        assert_eq!(rfcntl(fd, libc::F_GETFD, 0), 0);
        let (set, mut got) = ([1, 5], [9, 9]);
        let mut size = size_of_val(&got) as u32;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
        let to = (&raw mut got).cast();
        assert_eq!(rgetsockopt(fd, level, name, to, &raw mut size), 0);
        assert_eq!(got, [0, 0]);
        assert_eq!(
            rsetsockopt(fd, level, name, (&raw const set).cast(), size),
            0
        );
        let to = (&raw mut got).cast();
        assert_eq!(rgetsockopt(fd, level, name, to, &raw mut size), 0);
        assert_eq!((got, size), (set, 8));
        let wrong = rsetsockopt(fd, level, name, (&raw const set).cast(), 4);
        assert_eq!((wrong, last()), (-1, libc::EINVAL));
        let time = libc::timeval {
            tv_sec: 0,
            tv_usec: 300_000,
        };
        let code = rsetsockopt(fd, level, libc::SO_RCVTIMEO, (&raw const time).cast(), 16);
        assert_eq!((code, last()), (-1, libc::ENOTSUP), "as librdmacm");
        close(fd);
    }
}
