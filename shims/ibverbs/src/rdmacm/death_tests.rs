//! Processes that die without a word.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use verbs_abi::rdmacm::{CmId, EventChannel, event};

use super::address::sockaddr;
use super::tests::{TCP, channel, expect, id, listener, next, param, with_qp};
use super::{accept, connect, disconnect, manager, resolve_addr, resolve_route};
use crate::process_tests::is_alone;

/// How a process may end.
const WAYS: [&str; 7] = [
    "exit",
    "_exit",
    "SIGINT",
    "SIGTERM",
    "SIGKILL",
    "abort",
    "exec of another program",
];

fn pipe() -> [c_int; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

fn read<const N: usize>(from: c_int) -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: room for that many bytes.
    let count = unsafe { libc::read(from, bytes.as_mut_ptr().cast(), N) };
    assert_eq!(usize::try_from(count), Ok(N));
    bytes
}

fn write(to: c_int, bytes: &[u8]) {
    // SAFETY: that many bytes.
    let count = unsafe { libc::write(to, bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(usize::try_from(count), Ok(bytes.len()));
}

/// A client that connects to `server`, waits for a word, and dies.
fn client(way: usize, server: SocketAddr, word: c_int) {
    let channel = channel();
    let asking = id(channel, TCP);
    let mut addr = sockaddr::storage(server);
    // SAFETY: the id and the address exist; signals have their usual actions; no core is written.
    unsafe {
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        let addr = (&raw mut addr).cast();
        assert_eq!(resolve_addr(asking, null_mut(), addr, 2000), 0);
        expect(channel, event::ADDR_RESOLVED);
        assert_eq!(resolve_route(asking, 2000), 0);
        expect(channel, event::ROUTE_RESOLVED);
        with_qp(asking, 2);
        let number = [way as u8];
        assert_eq!(connect(asking, &raw mut *Box::new(param(&number))), 0);
        expect(channel, event::ESTABLISHED);
        let [_word] = read(word);
        match WAYS[way] {
            "exit" => libc::exit(0),
            "_exit" => libc::_exit(0),
            "SIGINT" => libc::raise(libc::SIGINT),
            "SIGTERM" => libc::raise(libc::SIGTERM),
            "SIGKILL" => libc::raise(libc::SIGKILL),
            "abort" => libc::abort(),
            _ => {
                let (path, time) = (c"/bin/sleep".as_ptr(), c"5".as_ptr());
                libc::execl(path, path, time, null::<u8>())
            }
        };
    }
}

/// A process for each way, before this one has a device: each of them has its own.
fn children(places: c_int, words: c_int) -> Vec<libc::pid_t> {
    (0..WAYS.len())
        .map(|way| {
            // SAFETY: the child calls only this library and ends without returning.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let ended = std::panic::catch_unwind(|| {
                    let place: [u8; 6] = read(places);
                    let [a, b, c, d, high, low] = place;
                    let server = (IpAddr::from([a, b, c, d]), u16::from_be_bytes([high, low]));
                    client(way, server.into(), words);
                });
                // SAFETY: it ends the child.
                unsafe { libc::_exit(if ended.is_err() { 99 } else { 98 }) };
            }
            child
        })
        .collect()
}

/// The ids of all clients, by their ways, once they are connected.
fn established(channel: *mut EventChannel) -> [*mut CmId; WAYS.len()] {
    let (mut ids, mut established) = ([null_mut(); WAYS.len()], 0);
    while established < WAYS.len() {
        let told = next(channel).done();
        match told.event {
            event::CONNECT_REQUEST => {
                ids[usize::from(told.data[0])] = told.id;
                with_qp(told.id, 2);
                // SAFETY: the id exists.
                unsafe { assert_eq!(accept(told.id, &raw mut *Box::new(param(b""))), 0) };
            }
            event::ESTABLISHED => established += 1,
            other => panic!("event {other}"),
        }
    }
    ids
}

/// Goal: however a process ends, its peer is told within 2 s, and can disconnect: the queue pair goes to ERR. Method: a client
/// for each way, at idle connections with one server.
#[test]
fn a_peer_that_dies_in_any_way_is_noticed() {
    let name = "rdmacm::death_tests::a_peer_that_dies_in_any_way_is_noticed";
    if !is_alone(name, None, 0) {
        return;
    }
    let (places, words) = (pipe(), pipe());
    let children = children(places[0], words[0]);
    let channel = channel();
    let (_listening, port) = listener(channel, TCP);
    let IpAddr::V4(own) = manager::manager().expect("a device").addresses()[0] else {
        panic!("an address of 127.0.0.0/8")
    };
    for _ in WAYS {
        write(
            places[1],
            &[&own.octets()[..], &port.to_be_bytes()].concat(),
        );
    }
    let ids = established(channel);
    let died = Instant::now();
    write(words[1], &[0; WAYS.len()]);
    let mut left = WAYS.len();
    while left > 0 {
        // SAFETY: the channel exists.
        let fd = unsafe { (*channel).fd };
        let mut ready = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor.
        let count = unsafe { libc::poll(&raw mut ready, 1, 5000) };
        assert_eq!(count, 1, "a peer's end was not noticed");
        let told = next(channel).done();
        if told.event == event::TIMEWAIT_EXIT {
            continue;
        }
        left -= 1;
        let way = ids
            .iter()
            .position(|id| *id == told.id)
            .expect("a client's");
        assert_eq!((told.event, told.status), (event::DISCONNECTED, 0));
        let late = died.elapsed();
        assert!(late < Duration::from_secs(2), "{}: {late:?}", WAYS[way]);
        // SAFETY: the id exists, and so does its queue pair.
        unsafe {
            assert_eq!(disconnect(told.id), 0);
            assert_eq!((*(*told.id).qp).state, 6);
        }
    }
    for child in children {
        // SAFETY: own children; the last one sleeps.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            let failed = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) >= 98;
            assert!(!failed, "a client has failed");
        }
    }
}
