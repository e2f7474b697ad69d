//! The port space on loopback, with real sockets: every conflict in both directions.

mod forced;
mod matrix;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use verbs_core::sync::plain::Mutex;
use verbs_core::sync::{Arc, thread};

use super::host::{BindFlags, HostSockets, Sockets};
use super::*;

const A: &str = "127.0.0.1";
const B: &str = "127.0.0.2";
const C: &str = "127.0.0.3";

/// Held by each test: they take numbers of one host, and some count on one being free.
static ALONE: Mutex<()> = Mutex::new(());

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn addr(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// A device with three addresses of loopback.
fn three() -> TcpPortSpace {
    TcpPortSpace::of([A, B, C].map(ip))
}

/// A number that is free on loopback, most likely until the caller binds it.
fn free_port() -> u16 {
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    plain.local_addr().unwrap().port()
}

fn accept(port: &mut BoundPort) -> Accepted {
    loop {
        if let Some(accepted) = port.accept().unwrap() {
            return accepted;
        }
        thread::yield_now();
    }
}

fn blocking(stream: TcpStream) -> TcpStream {
    stream.set_nonblocking(false).unwrap();
    stream
}

/// Goal: C3, the conflict matrix. Method: for both uses and for bind and listen, a number that one side has is
/// refused to the other: ordinary listener, ordinary bound socket, ordinary connection, our endpoint, our
/// reservation.
#[test]
fn a_used_number_is_refused_to_either_side() {
    let _alone = ALONE.lock();
    for usage in [PortUse::Connection, PortUse::Reserve] {
        let space = three();
        // Theirs first.
        let plain = TcpListener::bind((A, 0)).unwrap();
        let theirs = plain.local_addr().unwrap();
        let error = space.bind(theirs, usage).unwrap_err();
        assert_eq!(error.in_use(), Some(theirs));
        let text = error.to_string();
        assert!(
            text.contains(A) && text.contains(&theirs.port().to_string()),
            "{text}"
        );
        assert!(text.contains("a TCP socket of this host"), "{text}");
        // A socket that is bound and does no more, and one that has connected.
        let (bound, at) = HostSockets
            .bind(
                addr(A, 0),
                BindFlags {
                    v6_only: true,
                    reuse: false,
                },
            )
            .unwrap();
        assert_eq!(space.bind(at, usage).unwrap_err().in_use(), Some(at));
        drop(bound);
        let stream = TcpStream::connect(theirs).unwrap();
        let at = stream.local_addr().unwrap();
        assert_eq!(space.bind(at, usage).unwrap_err().in_use(), Some(at));

        // Ours first: bound, then listening.
        let mut ours = space.bind(addr(A, 0), usage).unwrap();
        let local = ours.local();
        let refused = |local: SocketAddr| {
            let error = TcpListener::bind(local).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        };
        refused(local);
        refused(addr("0.0.0.0", local.port()));
        let error = space.bind(local, usage).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("another endpoint of this device"),
            "{error}"
        );
        assert!(space.reserve(local).is_err());
        if usage == PortUse::Connection {
            ours.listen(4).unwrap();
            refused(local);
        }
        drop(ours);
        drop(TcpListener::bind(local).unwrap());
        assert!(space.is_empty(), "{:?}", space.held());
    }
}

/// Goal: C2. Method: many connects without bind; no two have the same number, none has one that an ordinary
/// socket has, and an ordinary connection never gets one of theirs.
#[test]
fn connect_takes_a_number_that_no_socket_shares() {
    let _alone = ALONE.lock();
    let listener = TcpListener::bind((A, 0)).unwrap();
    let remote = listener.local_addr().unwrap();
    let space = TcpPortSpace::host();
    let mut held = Vec::new();
    let mut numbers = Vec::new();
    for _ in 0..100 {
        let mut port = space.bind_for(remote, PortUse::Connection).unwrap();
        assert_eq!(port.local().ip(), ip(A));
        let stream = blocking(port.connect(remote).unwrap());
        let plain = TcpStream::connect(remote).unwrap();
        let _taken = (listener.accept().unwrap(), listener.accept().unwrap());
        for stream in [&stream, &plain] {
            numbers.push(stream.local_addr().unwrap().port());
        }
        assert_eq!(stream.local_addr().unwrap(), port.local());
        let again = port.connect(remote).unwrap_err();
        assert!(again.to_string().contains("has connected"), "{again}");
        held.push((port, stream, plain));
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 200);
    assert_eq!(space.len(), 100);
    drop(held);
    assert!(space.is_empty());
}

/// Goal: C4. Method: one address of three has the number; the wildcard is refused and names that address, and
/// the others are free at once; then it binds all three, which keeps ordinary sockets from each.
#[test]
fn a_wildcard_with_a_number_is_bound_on_all_or_none() {
    let _alone = ALONE.lock();
    let space = three();
    let plain = TcpListener::bind((C, 0)).unwrap();
    let port = plain.local_addr().unwrap().port();
    let error = space
        .bind(addr("0.0.0.0", port), PortUse::Connection)
        .unwrap_err();
    assert_eq!(error.in_use(), Some(addr(C, port)));
    assert!(space.is_empty());
    drop(TcpListener::bind((A, port)).unwrap());
    drop(TcpListener::bind((B, port)).unwrap());
    drop(plain);
    let bound = space
        .bind(addr("0.0.0.0", port), PortUse::Connection)
        .unwrap();
    assert_eq!(bound.local(), addr("0.0.0.0", port));
    assert_eq!(
        bound.addresses().collect::<Vec<_>>(),
        [A, B, C].map(|ip| addr(ip, port))
    );
    for ip in [A, B, C] {
        assert!(TcpListener::bind((ip, port)).is_err());
        assert!(space.bind(addr(ip, port), PortUse::Reserve).is_err());
    }
    // An address of the host that is not the device's is still free.
    drop(TcpListener::bind(("127.0.0.4", port)).unwrap());
}

/// A host on which each number that the kernel picks is taken at the second address, `conflicts` times.
#[derive(Debug)]
struct Conflicts {
    left: Mutex<usize>,
    taken: Mutex<Vec<TcpListener>>,
}

impl Sockets for Arc<Conflicts> {
    fn bind(&self, addr: SocketAddr, flags: BindFlags) -> io::Result<(OwnedFd, SocketAddr)> {
        let mut left = self.left.lock();
        if addr.port() != 0 || *left == 0 {
            return HostSockets.bind(addr, flags);
        }
        *left -= 1;
        // A number that a stranger has at the second address already is passed over: its end is not ours to tell.
        let mut strangers = Vec::new();
        loop {
            let bound = HostSockets.bind(addr, flags)?;
            match TcpListener::bind((B, bound.1.port())) {
                Ok(plain) => {
                    self.taken.lock().push(plain);
                    return Ok(bound);
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => strangers.push(bound),
                Err(error) => return Err(error),
            }
        }
    }
}

fn conflicting(conflicts: usize) -> (TcpPortSpace, Arc<Conflicts>) {
    let sockets = Arc::new(Conflicts {
        left: Mutex::new(conflicts),
        taken: Mutex::new(Vec::new()),
    });
    let addresses = [A, B, C].map(ip).to_vec();
    let space = TcpPortSpace::with(Some(addresses), Box::new(Arc::clone(&sockets)));
    (space, sockets)
}

/// Goal: C5. Method: an ordinary listener takes the number at the second address after each pick, one time less
/// than there are rounds, and then each time.
#[test]
fn a_wildcard_without_a_number_converges_or_gives_up() {
    let _alone = ALONE.lock();
    let (space, _taken) = conflicting(ROUNDS_MAX - 1);
    let bound = space.bind(addr("0.0.0.0", 0), PortUse::Connection).unwrap();
    let port = bound.local().port();
    assert_eq!(
        bound.addresses().collect::<Vec<_>>(),
        [A, B, C].map(|ip| addr(ip, port))
    );
    drop(bound);

    let (space, taken) = conflicting(usize::MAX);
    let error = space
        .bind(addr("0.0.0.0", 0), PortUse::Connection)
        .unwrap_err();
    let PortError::NoCommonPort {
        addresses,
        rounds,
        last,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((addresses, rounds, last.ip()), (3, ROUNDS_MAX, ip(B)));
    assert!(space.is_empty());
    // Every number that was tried is free again but for what took it, and none was tried twice.
    let taken = taken.taken.lock();
    assert_eq!(taken.len(), ROUNDS_MAX);
    for plain in taken.iter() {
        let port = plain.local_addr().unwrap().port();
        drop(TcpListener::bind((A, port)).unwrap());
        drop(TcpListener::bind((C, port)).unwrap());
    }
}

/// Goal: C7, both uses hold the number; only one of them has sockets that do something.
#[test]
fn a_reserved_port_neither_listens_nor_connects() {
    let _alone = ALONE.lock();
    let space = three();
    let mut port = space.bind(addr(A, 0), PortUse::Reserve).unwrap();
    let error = port.listen(1).unwrap_err().to_string();
    assert!(
        error.contains("cannot listen: it is only reserved"),
        "{error}"
    );
    assert!(port.connect(addr(A, 9)).is_err() && port.accept().is_err());
    // A peer that tries is refused by the host.
    let refused = TcpStream::connect(port.local()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

/// Goal: C8. Method: a reservation keeps others of its space away and ordinary sockets not; it becomes a port, or
/// says who took the number and stays.
#[test]
fn a_reservation_holds_a_number_without_a_socket() {
    let _alone = ALONE.lock();
    let space = three();
    let reservation = space.reserve(addr(B, 0)).unwrap();
    let local = reservation.local();
    assert_eq!(space.held(), [(local, Holder::Reserved)]);
    assert!(space.bind(local, PortUse::Connection).is_err());
    assert!(
        space
            .bind(addr("0.0.0.0", local.port()), PortUse::Connection)
            .is_err()
    );
    // Another address is another number.
    drop(
        space
            .bind(addr(A, local.port()), PortUse::Connection)
            .unwrap(),
    );

    let plain = TcpListener::bind(local).unwrap();
    let failed = reservation.bind(PortUse::Connection).unwrap_err();
    assert_eq!(failed.error.in_use(), Some(local));
    drop(plain);
    assert_eq!(space.held(), [(local, Holder::Reserved)]);
    let mut port = failed.reservation.bind(PortUse::Connection).unwrap();
    assert_eq!(space.held(), [(local, Holder::Bound)]);
    port.listen(1).unwrap();
    drop(port);
    assert!(space.is_empty());

    // Dropped, the number is free; all numbers stay different.
    let many: Vec<_> = (0..50)
        .map(|_| space.reserve(addr(A, 0)).unwrap())
        .collect();
    assert_eq!(space.len(), 50);
    drop(many);
    assert!(space.is_empty());
}

/// Goal: C10. Method: ordinary listeners, connections and ours live at one address, move bytes, and neither takes
/// what was meant for the other.
#[test]
fn ordinary_streams_and_ours_share_an_address() {
    let _alone = ALONE.lock();
    let space = TcpPortSpace::of([ip(A)]);
    let plain = TcpListener::bind((A, 0)).unwrap();
    let mut ours = space.bind(addr(A, 0), PortUse::Connection).unwrap();
    ours.listen(16).unwrap();
    for turn in 0..20u8 {
        // An ordinary client of ours, and a client of ours to the ordinary listener.
        let mut client = TcpStream::connect(ours.local()).unwrap();
        let mut served = blocking(accept(&mut ours).stream);
        let mut port = space
            .bind_for(plain.local_addr().unwrap(), PortUse::Connection)
            .unwrap();
        let mut out = blocking(port.connect(plain.local_addr().unwrap()).unwrap());
        let (mut taken, from) = plain.accept().unwrap();
        assert_eq!(from, port.local());
        for (a, b) in [(&mut client, &mut served), (&mut out, &mut taken)] {
            a.write_all(&[turn]).unwrap();
            let mut got = [0];
            b.read_exact(&mut got).unwrap();
            assert_eq!(got, [turn]);
        }
    }
    assert!(ours.accept().unwrap().is_none());
}

/// Goal: a server that ends and begins again gets its number although connections of the past are kept, and what
/// was accepted lives on.
#[test]
fn a_listener_comes_back_over_connections_of_the_past() {
    let _alone = ALONE.lock();
    let space = three();
    let port = free_port();
    let mut kept = Vec::new();
    for turn in 0..3 {
        let mut ours = space.bind(addr(A, port), PortUse::Connection).unwrap();
        ours.listen(4).unwrap();
        let client = TcpStream::connect(ours.local()).unwrap();
        let served = blocking(accept(&mut ours).stream);
        ours.unbind();
        let refused = TcpStream::connect(addr(A, port)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        if turn == 0 {
            // Closed here first: it is in TIME_WAIT from then on.
            drop(served);
        } else {
            kept.push((client, served));
        }
    }
    for (client, served) in &mut kept {
        client.write_all(b"x").unwrap();
        served.read_exact(&mut [0]).unwrap();
    }
    // A port that is only reserved is stricter.
    assert!(space.bind(addr(A, port), PortUse::Reserve).is_err());
}

/// Goal: a wildcard listens at every address, or connects from the right one.
#[test]
fn a_wildcard_listens_and_connects() {
    let _alone = ALONE.lock();
    let space = three();
    let mut port = space.bind(addr("0.0.0.0", 0), PortUse::Connection).unwrap();
    let number = port.local().port();
    port.listen(4).unwrap();
    assert!(port.listen(4).is_err() && port.connect(addr(A, number)).is_err());
    for ip in [A, B, C] {
        let _client = TcpStream::connect((ip, number)).unwrap();
        assert_eq!(accept(&mut port).local, addr(ip, number));
    }
    drop(port);

    let space = TcpPortSpace::of([B, C].map(ip));
    let mut port = space.bind(addr("0.0.0.0", 0), PortUse::Connection).unwrap();
    let listener = TcpListener::bind((C, 0)).unwrap();
    let remote = listener.local_addr().unwrap();
    let stream = blocking(port.connect(remote).unwrap());
    let local = stream.local_addr().unwrap();
    assert_eq!(local.port(), port.local().port());
    assert_eq!(listener.accept().unwrap().1, local);
    assert_eq!(space.source_for(remote).unwrap(), local.ip());
}

/// Goal: connections at one address do not keep those at the others waiting: each address has its turn. Method: many wait at
/// one of three addresses, each of them once, and one waits at either of the others.
#[test]
fn the_addresses_of_a_listener_are_accepted_from_in_turn() {
    let _alone = ALONE.lock();
    for crowded in [A, B, C] {
        let mut port = three()
            .bind(addr("0.0.0.0", 0), PortUse::Connection)
            .unwrap();
        let number = port.local().port();
        port.listen(8).unwrap();
        let others = [A, B, C].into_iter().filter(|&ip| ip != crowded);
        let callers: Vec<_> = std::iter::repeat_n(crowded, 6)
            .chain(others)
            .map(|ip| TcpStream::connect((ip, number)).unwrap())
            .collect();
        for socket in port.sockets() {
            let mut one = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
            assert_eq!(poll(&mut one, None).unwrap(), 1);
        }
        let mut first: Vec<_> = (0..3).map(|_| accept(&mut port).local.ip()).collect();
        first.sort();
        assert_eq!(first, [A, B, C].map(ip), "many at {crowded}");
        // The rest of them, when no other address has one.
        for _ in 0..5 {
            assert_eq!(accept(&mut port).local.ip(), ip(crowded));
        }
        assert!(port.accept().unwrap().is_none());
        drop(callers);
    }
}

/// Goal: two that share a number by `SO_REUSEADDR` cannot both listen; the later one has no socket left.
#[test]
fn a_listener_that_is_late_keeps_nothing() {
    let _alone = ALONE.lock();
    let reuse = BindFlags {
        v6_only: true,
        reuse: true,
    };
    let (plain, local) = HostSockets.bind(addr(B, 0), reuse).unwrap();
    let space = three();
    let all = addr("0.0.0.0", local.port());
    let mut port = space.bind(all, PortUse::Connection).unwrap();
    host::listen(&plain, 1).unwrap();
    assert_eq!(port.listen(1).unwrap_err().in_use(), Some(local));
    assert!(!port.is_listening() && port.addresses().count() == 0);
    let error = port.listen(1).unwrap_err().to_string();
    assert!(error.contains("listening failed"), "{error}");
    drop(TcpListener::bind((A, local.port())).unwrap());
}

/// Goal: a wildcard follows the device to an address that it gets later, or stays as it was.
#[test]
fn a_wildcard_is_extended() {
    let _alone = ALONE.lock();
    let space = TcpPortSpace::of([ip(A), ip(B)]);
    let mut port = space.bind(addr("0.0.0.0", 0), PortUse::Connection).unwrap();
    let number = port.local().port();
    port.listen(4).unwrap();
    let plain = TcpListener::bind((C, number)).unwrap();
    assert_eq!(
        port.extend(ip(C)).unwrap_err().in_use(),
        Some(addr(C, number))
    );
    drop(plain);
    assert!(port.extend(ip("::1")).is_err());
    port.extend(ip(C)).unwrap();
    port.extend(ip(C)).unwrap();
    assert_eq!(port.addresses().count(), 3);
    let _client = TcpStream::connect((C, number)).unwrap();
    assert_eq!(accept(&mut port).local, addr(C, number));
}

/// Goal: IPv6, with and without IPv4 beside it (`IPV6_V6ONLY`).
#[test]
fn both_families() {
    let _alone = ALONE.lock();
    for space in [TcpPortSpace::host(), TcpPortSpace::of([A, "::1"].map(ip))] {
        let six = space.bind(addr("::", 0), PortUse::Connection).unwrap();
        let number = six.local().port();
        assert!(TcpListener::bind(("::1", number)).is_err());
        // Alone, IPv6 leaves the number of IPv4 free, for ours and for ordinary sockets.
        let four = space
            .bind(addr("0.0.0.0", number), PortUse::Connection)
            .unwrap();
        drop((six, four));
        // With both, IPv4 is taken as well, and a taken IPv4 refuses.
        let mut both = space.bind_dual(addr("::", 0), PortUse::Connection).unwrap();
        let number = both.local().port();
        assert!(TcpListener::bind((A, number)).is_err());
        assert!(space.bind(addr(A, number), PortUse::Connection).is_err());
        both.listen(4).unwrap();
        let _four = TcpStream::connect((A, number)).unwrap();
        let got = accept(&mut both);
        assert_eq!(got.local.ip().to_canonical(), ip(A));
        let _six = TcpStream::connect(("::1", number)).unwrap();
        assert_eq!(accept(&mut both).local.ip(), ip("::1"));
        drop(both);
        let plain = TcpListener::bind((A, 0)).unwrap();
        let number = plain.local_addr().unwrap().port();
        assert!(
            space
                .bind_dual(addr("::", number), PortUse::Reserve)
                .is_err()
        );
        // An IPv4 address that is written as one of IPv6 is one of IPv4.
        let mapped = space
            .bind(addr("::ffff:127.0.0.1", 0), PortUse::Reserve)
            .unwrap();
        assert_eq!(mapped.local().ip(), ip(A));
        assert_eq!(space.len(), 1);
    }
}

/// Goal: what is not the device's, or not the host's, is said.
#[test]
fn foreign_addresses_are_refused() {
    let _alone = ALONE.lock();
    let space = TcpPortSpace::of([ip(A)]);
    for (space, foreign) in [(space.clone(), B), (TcpPortSpace::host(), "192.0.2.1")] {
        let error = space
            .bind(addr(foreign, 4711), PortUse::Connection)
            .unwrap_err();
        assert!(
            matches!(error, PortError::AddrNotAvailable { addr } if addr.port() == 4711),
            "{error}"
        );
        assert!(error.to_string().contains(foreign), "{error}");
    }
    assert!(space.bind(addr("::", 0), PortUse::Connection).is_err());
    let nowhere = addr("0.0.0.0", 7);
    assert!(matches!(
        space.bind_for(nowhere, PortUse::Connection),
        Err(PortError::NoRoute { remote }) if remote == nowhere
    ));
}

/// Goal: two processes' worth of spaces meet in the kernel, and one with threads at once hands each number out
/// once.
#[test]
fn spaces_and_threads_meet_in_the_kernel() {
    let _alone = ALONE.lock();
    let (one, other) = (three(), three());
    let bound = one.bind(addr(B, 0), PortUse::Reserve).unwrap();
    let error = other.bind(bound.local(), PortUse::Connection).unwrap_err();
    assert_eq!(error.in_use(), Some(bound.local()));
    drop(bound);

    let port = free_port();
    let bound: Vec<_> = thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| one.bind(addr("0.0.0.0", port), PortUse::Connection)))
            .collect();
        let got = tries.into_iter().map(|thread| thread.join().unwrap());
        got.flatten().collect()
    });
    assert_eq!(bound.len(), 1);
    assert_eq!(one.len(), 1);
}
