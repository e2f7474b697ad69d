//! Listeners at wildcards.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use verbs_abi::rdmacm::{CmId, EventChannel, event};

use super::address::sockaddr;
use super::tests::{TCP, at, channel, expect, id, last, param, resolved, with_qp};
use super::*;

/// `RDMA_OPTION_ID`, `RDMA_OPTION_ID_AFONLY`.
const AFONLY: (c_int, c_int) = (0, 2);

/// An id that is to listen at that wildcard, for its own family alone if it says so.
fn wildcard(channel: *mut EventChannel, ip: IpAddr, port: u16, family_only: bool) -> *mut CmId {
    let listening = id(channel, TCP);
    let mut addr = sockaddr::storage((ip, port).into());
    let mut only = c_int::from(family_only);
    // SAFETY: all exist.
    unsafe {
        let value = (&raw mut only).cast();
        assert_eq!(set_option(listening, AFONLY.0, AFONLY.1, value, 4), 0);
        assert_eq!(bind_addr(listening, (&raw mut addr).cast()), 0);
    }
    listening
}

/// Goal: a server listens at the wildcards of both families with one port number, as tgt does, in either order; a client
/// reaches the one of its family.
#[test]
fn a_server_listens_at_the_wildcards_of_both_families() {
    let (theirs, ours) = (channel(), channel());
    let four = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let six = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    for (port, order) in [(3260, [six, four]), (3261, [four, six])] {
        let listening = order.map(|ip| wildcard(theirs, ip, port, true));
        // SAFETY: they exist.
        unsafe {
            assert_eq!(listening.map(|one| listen(one, 0)), [0, 0]);
            let asking = resolved(ours, TCP, port);
            with_qp(asking, 2);
            assert_eq!(connect(asking, &raw mut *Box::new(param(b""))), 0);
            let request = expect(theirs, event::CONNECT_REQUEST);
            let of_four = order.iter().position(|ip| ip.is_ipv4());
            assert_eq!(Some(request.listener), of_four.map(|n| listening[n]));
            assert_eq!(destroy_id(request.id), 0);
            assert_eq!(destroy_id(asking), 0);
            assert_eq!(listening.map(|one| destroy_id(one)), [0, 0]);
        }
    }
    // SAFETY: nobody uses them any more.
    unsafe {
        destroy_event_channel(theirs);
        destroy_event_channel(ours);
    }
}

/// Goal: a wildcard of IPv6 that does not say so stands for both families, and its number is taken.
#[test]
fn a_wildcard_of_both_families_has_its_number_alone() {
    let theirs = channel();
    let both = wildcard(theirs, Ipv6Addr::UNSPECIFIED.into(), 3262, false);
    let one = id(theirs, TCP);
    let mut addr = at(3262);
    // SAFETY: all exist.
    unsafe {
        assert_eq!(bind_addr(one, (&raw mut addr).cast()), -1);
        assert_eq!(last(), libc::EADDRINUSE);
        assert_eq!([one, both].map(|it| destroy_id(it)), [0, 0]);
        destroy_event_channel(theirs);
    }
}
