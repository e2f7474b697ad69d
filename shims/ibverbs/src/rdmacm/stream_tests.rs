//! The calls as a C program makes them, on a device that makes connections itself: iWARP over TCP. A process has one
//! device, so each test runs in a process of its own.

use std::net::{SocketAddr, TcpListener};
use std::ptr::null_mut;

use verbs_abi::rdmacm::{ConnParam, event};

use super::address::sockaddr;
use super::tests::{
    TCP, UDP, at, channel, expect, id, last, listener, next, param, resolved, with_qp,
};
use super::*;
use crate::process_tests::is_alone;

/// Whether this is the process with the device. Otherwise runs the test of that name in one.
fn is_over_iwarp(name: &str) -> bool {
    is_alone(&format!("rdmacm::stream_tests::{name}"), Some("iwarp"), 0)
}

/// Goal: a connection from its first call to its last event, and queue pairs that are destroyed by either library's call.
#[test]
fn a_connection_lives_and_ends() {
    if !is_over_iwarp("a_connection_lives_and_ends") {
        return;
    }
    let (ours, theirs) = (channel(), channel());
    let (listening, port) = listener(theirs, TCP);
    let asking = resolved(ours, TCP, port);
    assert_ne!(
        // SAFETY: it exists.
        unsafe { get_src_port(asking) },
        0,
        "it has a number before it connects"
    );
    with_qp(asking, 2);
    // SAFETY: all ids exist until they are destroyed.
    unsafe {
        assert_eq!(connect(asking, &raw mut *Box::new(param(b"hello"))), 0);
        let request = expect(theirs, event::CONNECT_REQUEST);
        assert_eq!(request.data, b"hello");
        assert_eq!(
            (
                request.conn.responder_resources,
                request.conn.initiator_depth
            ),
            (2, 3)
        );
        let child = request.id;
        assert_eq!(get_dst_port(child), get_src_port(asking));
        assert_eq!(u16::from_be(get_src_port(child)), port);
        with_qp(child, 2);
        assert_eq!(accept(child, &raw mut *Box::new(param(b"welcome"))), 0);
        let there = expect(ours, event::ESTABLISHED);
        assert_eq!(there.data, b"welcome");
        expect(theirs, event::ESTABLISHED);
        for one in [asking, child] {
            assert_eq!((*(*one).qp).state, 3, "it shows that it is connected");
        }
        assert_eq!(disconnect(asking), 0);
        assert_eq!((*(*asking).qp).state, 6);
        expect(ours, event::DISCONNECTED);
        expect(theirs, event::DISCONNECTED);
        assert_eq!(disconnect(child), 0, "after the peer's");
        destroy_qp(asking);
        // As a program may that has not made it for the id.
        assert_eq!(crate::qp::destroy_qp((*child).qp), 0);
        for one in [asking, child, listening] {
            assert_eq!(destroy_id(one), 0);
        }
        destroy_event_channel(ours);
        destroy_event_channel(theirs);
    }
}

/// Goal: a peer that is destroyed without a disconnect, one that rejects, and none at all, are each reported.
#[test]
fn ends_that_nobody_asked_for_are_reported() {
    if !is_over_iwarp("ends_that_nobody_asked_for_are_reported") {
        return;
    }
    let (ours, theirs) = (channel(), channel());
    let (listening, port) = listener(theirs, TCP);
    // SAFETY: all ids exist until they are destroyed.
    unsafe {
        let asking = resolved(ours, TCP, port);
        with_qp(asking, 2);
        assert_eq!(connect(asking, null_mut()), 0);
        let request = expect(theirs, event::CONNECT_REQUEST);
        assert_eq!(reject(request.id, b"no".as_ptr().cast(), 2), 0);
        let told = next(ours).done();
        assert_eq!(
            (told.event, told.status),
            (event::REJECTED, -libc::ECONNREFUSED)
        );
        assert_eq!(told.data, b"no");
        for one in [request.id, asking] {
            destroy_qp(one);
            assert_eq!(destroy_id(one), 0);
        }

        let asking = resolved(ours, TCP, port);
        with_qp(asking, 2);
        assert_eq!(connect(asking, null_mut()), 0);
        let child = expect(theirs, event::CONNECT_REQUEST).id;
        with_qp(child, 2);
        assert_eq!(accept(child, null_mut()), 0);
        expect(ours, event::ESTABLISHED);
        expect(theirs, event::ESTABLISHED);
        // The id first, as some programs do.
        let qp = (*asking).qp;
        assert_eq!(destroy_id(asking), 0);
        expect(theirs, event::DISCONNECTED);
        assert_eq!(crate::qp::destroy_qp(qp), 0);
        destroy_qp(child);
        assert_eq!((destroy_id(child), destroy_id(listening)), (0, 0));

        let asking = resolved(ours, TCP, port);
        with_qp(asking, 2);
        assert_eq!(connect(asking, null_mut()), 0);
        let told = next(ours).done();
        assert_eq!(
            (told.event, told.status),
            (event::REJECTED, -libc::ECONNREFUSED),
            "nobody listens"
        );
        destroy_qp(asking);
        assert_eq!(destroy_id(asking), 0);
    }
}

/// Goal: what TCP's port numbers do not allow, and what iWARP has not, is refused with an error number.
#[test]
fn what_iwarp_has_not_is_refused() {
    if !is_over_iwarp("what_iwarp_has_not_is_refused") {
        return;
    }
    let events = channel();
    let one = id(events, TCP);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let SocketAddr::V4(place) = taken.local_addr().expect("an address") else {
        panic!("IPv4");
    };
    let mut addr = at(place.port());
    let mut wish: ConnParam = param(b"");
    // SAFETY: all ids exist until they are destroyed.
    unsafe {
        let refused = |code, errno| assert_eq!((code, last()), (-1, errno));
        refused(bind_addr(one, (&raw mut addr).cast()), libc::EADDRINUSE);
        drop(taken);
        assert_eq!(bind_addr(one, (&raw mut addr).cast()), 0, "it came back");
        refused(bind_addr(one, (&raw mut addr).cast()), libc::EINVAL);
        refused(connect(one, &raw mut wish), libc::EINVAL);
        refused(accept(one, &raw mut wish), libc::EINVAL);
        refused(disconnect(one), libc::EINVAL);
        refused(establish(one), libc::EINVAL);
        let mut group = sockaddr::storage("239.9.8.7:0".parse().expect("an address"));
        refused(
            join_multicast(one, (&raw mut group).cast(), null_mut()),
            libc::ENOSYS,
        );
        assert_eq!(destroy_id(one), 0);

        let datagrams = id(events, UDP);
        let mut any = at(0);
        refused(bind_addr(datagrams, (&raw mut any).cast()), libc::ENODEV);
        assert_eq!(destroy_id(datagrams), 0);
        // A queue pair of the program's own, of which it gives the number.
        let (listening, port) = listener(events, TCP);
        let asking = resolved(events, TCP, port);
        wish.qp_num = 7;
        refused(connect(asking, &raw mut wish), libc::EINVAL);
        for one in [asking, listening] {
            assert_eq!(destroy_id(one), 0);
        }
        destroy_event_channel(events);
    }
}
