//! C5 where every step can be made to fail: a host that is plain data, with strangers that take numbers at any moment,
//! interfaces that come and go, and descriptors that run out. Nothing here depends on time or on the kernel.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;

use super::*;
use crate::rng::Rng;

/// Numbers that the host has.
const NUMBERS: std::ops::Range<u16> = 40_000..40_200;

/// A host. Its sockets are ends of pairs, whose other ends see when they are closed.
#[derive(Debug)]
struct Host {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    /// Addresses that are there.
    up: BTreeSet<IpAddr>,
    /// Strangers' numbers.
    taken: BTreeSet<(IpAddr, u16)>,
    /// Ours, each with the other end of its pair.
    ours: Vec<(SocketAddr, UnixStream)>,
    /// In thousandths: how often a stranger takes, at another address, the number that was just picked.
    takes: u32,
    /// In thousandths: how often an address goes, or comes back, before a call.
    flaps: u32,
    /// Descriptors that are left.
    descriptors: usize,
    calls: usize,
    /// The numbers that were picked.
    picked: Vec<u16>,
}

impl Host {
    fn new(seed: u64, addresses: &[IpAddr]) -> Arc<Self> {
        let state = State {
            rng: Rng::new(seed),
            up: addresses.iter().copied().collect(),
            taken: BTreeSet::new(),
            ours: Vec::new(),
            takes: 0,
            flaps: 0,
            descriptors: usize::MAX,
            calls: 0,
            picked: Vec::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    fn space(self: &Arc<Self>, addresses: &[IpAddr]) -> TcpPortSpace {
        TcpPortSpace::with(Some(addresses.to_vec()), Box::new(Arc::clone(self)))
    }

    /// Our sockets that are open.
    fn held(&self) -> Vec<SocketAddr> {
        let mut state = self.state.lock();
        state.forget_closed();
        state.ours.iter().map(|(at, _)| *at).collect()
    }
}

impl State {
    fn often(&mut self, thousandths: u32) -> bool {
        self.rng.within(0..1000) < thousandths
    }

    fn forget_closed(&mut self) {
        self.ours.retain(|(_, other)| is_open(other));
    }

    fn is_free(&self, at: SocketAddr) -> bool {
        !self.taken.contains(&(at.ip(), at.port())) && !self.ours.iter().any(|(own, _)| *own == at)
    }

    /// A stranger, if there is one, takes that number at another address.
    fn strangers(&mut self, at: SocketAddr) {
        if !self.often(self.takes) {
            return;
        }
        let others: Vec<_> = self
            .up
            .iter()
            .copied()
            .filter(|&ip| ip != at.ip())
            .collect();
        if others.is_empty() {
            return;
        }
        let ip = others[self.rng.within(0..others.len() as u32) as usize];
        if self.is_free(SocketAddr::new(ip, at.port())) {
            self.taken.insert((ip, at.port()));
        }
    }
}

/// Whether the end that was given away is open.
fn is_open(mut other: &UnixStream) -> bool {
    let read = other.read(&mut [0]);
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

impl Sockets for Arc<Host> {
    fn bind(&self, addr: SocketAddr, _: BindFlags) -> io::Result<(OwnedFd, SocketAddr)> {
        let mut state = self.state.lock();
        state.forget_closed();
        state.calls += 1;
        if state.ours.len() >= state.descriptors {
            return Err(Errno::MFILE.into());
        }
        let flaps = state.flaps;
        if state.often(flaps) {
            let ip = addr.ip();
            if !state.up.remove(&ip) {
                state.up.insert(ip);
            }
        }
        if !state.up.contains(&addr.ip()) {
            return Err(Errno::ADDRNOTAVAIL.into());
        }
        let got = if addr.port() == 0 {
            let free: Vec<u16> = NUMBERS
                .filter(|&port| state.is_free(SocketAddr::new(addr.ip(), port)))
                .collect();
            if free.is_empty() {
                return Err(Errno::ADDRINUSE.into());
            }
            let port = free[state.rng.within(0..free.len() as u32) as usize];
            let got = SocketAddr::new(addr.ip(), port);
            state.picked.push(port);
            state.strangers(got);
            got
        } else if state.is_free(addr) {
            addr
        } else {
            return Err(Errno::ADDRINUSE.into());
        };
        let (given, other) = UnixStream::pair()?;
        other.set_nonblocking(true)?;
        state.ours.push((got, other));
        Ok((OwnedFd::from(given), got))
    }
}

fn own() -> Vec<IpAddr> {
    [A, B, C].map(ip).to_vec()
}

/// That all addresses have the number, and that nothing else is held.
fn has_all(bound: &BoundPort, host: &Host, held_before: usize) {
    let port = bound.local().port();
    let expected: Vec<_> = own()
        .into_iter()
        .map(|ip| SocketAddr::new(ip, port))
        .collect();
    assert_eq!(bound.addresses().collect::<Vec<_>>(), expected);
    let held = host.held();
    assert_eq!(held.len(), held_before + 3, "{held:?}");
    let state = host.state.lock();
    assert!(
        expected
            .iter()
            .all(|at| !state.taken.contains(&(at.ip(), at.port())))
    );
}

/// Goal: C5. Method: 1,000 hosts, from one on which no number is taken at one address only to one on which a stranger takes
/// each number as it is picked. Each bind has one number at all three addresses, or gives up after so many rounds with
/// nothing held; none tries a number twice, and both ends come about.
#[test]
fn a_thousand_forced_conflicts_converge_or_give_up() {
    let _alone = ALONE.lock();
    let (mut converged, mut gave_up, mut conflicts) = (0, 0, 0);
    for seed in 0..1000_u32 {
        let host = Host::new(u64::from(seed), &own());
        host.state.lock().takes = seed;
        let space = host.space(&own());
        let mut bound = Vec::new();
        for _ in 0..4 {
            let taken = host.state.lock().taken.len();
            let before = host.held().len();
            match space.bind(addr("0.0.0.0", 0), PortUse::Connection) {
                Ok(port) => {
                    has_all(&port, &host, before);
                    converged += 1;
                    bound.push(port);
                }
                Err(PortError::NoCommonPort {
                    rounds, addresses, ..
                }) => {
                    assert_eq!((rounds, addresses), (ROUNDS_MAX, 3));
                    assert_eq!(host.held().len(), before);
                    gave_up += 1;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
            let mut state = host.state.lock();
            let (calls, picked) = (state.calls, std::mem::take(&mut state.picked));
            state.calls = 0;
            let different: BTreeSet<_> = picked.iter().collect();
            assert_eq!(different.len(), picked.len(), "seed {seed}: {picked:?}");
            // Each of the three, and once more where connections of the past may have it.
            assert!(calls <= 4 * ROUNDS_MAX, "seed {seed}: {calls} calls");
            conflicts += state.taken.len() - taken;
        }
        assert_eq!(space.len(), bound.len());
        drop(bound);
        assert!(space.is_empty() && host.held().is_empty(), "seed {seed}");
    }
    assert!(conflicts >= 1000, "{conflicts} conflicts");
    assert!(converged >= 1000 && gave_up >= 10, "{converged}, {gave_up}");
}

/// Goal: an address that goes while a wildcard is bound is said by its name, and nothing is held; when it is there again the
/// bind works, and one that has come since is added. Method: 1,000 hosts whose interfaces come and go at any call.
#[test]
fn interfaces_that_come_and_go_leave_nothing_behind() {
    let _alone = ALONE.lock();
    let (mut all, mut none) = (0, 0);
    for seed in 0..1000_u32 {
        let host = Host::new(u64::from(seed), &own());
        {
            let mut state = host.state.lock();
            (state.takes, state.flaps) = (200, 10 + seed % 300);
        }
        let space = host.space(&own());
        match space.bind(addr("0.0.0.0", 0), PortUse::Connection) {
            Ok(port) => {
                has_all(&port, &host, 0);
                all += 1;
            }
            Err(PortError::AddrNotAvailable { addr }) => {
                assert!(own().contains(&addr.ip()), "seed {seed}: {addr}");
                none += 1;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
        assert!(space.is_empty() && host.held().is_empty(), "seed {seed}");
        // They stay, and a fourth comes.
        {
            let mut state = host.state.lock();
            (state.takes, state.flaps) = (0, 0);
            state.up.extend(own());
        }
        let mut port = space.bind(addr("0.0.0.0", 0), PortUse::Connection).unwrap();
        let fourth = ip("127.0.0.4");
        let error = port.extend(fourth).unwrap_err();
        assert!(
            matches!(error, PortError::AddrNotAvailable { .. }),
            "{error}"
        );
        assert_eq!(port.addresses().count(), 3);
        host.state.lock().up.insert(fourth);
        port.extend(fourth).unwrap();
        assert_eq!(host.held().len(), 4);
    }
    assert!(all >= 100 && none >= 100, "{all}, {none}");
}

/// Goal: descriptors that run out at any step are said, and nothing is lost: neither what was held before, nor a number.
#[test]
fn descriptors_that_run_out_are_said() {
    let _alone = ALONE.lock();
    for (seed, left) in (0..200).flat_map(|seed| (0..6).map(move |left| (seed, left))) {
        let host = Host::new(seed, &own());
        host.state.lock().takes = 300;
        let space = host.space(&own());
        let kept = space.bind(addr(A, 0), PortUse::Reserve).unwrap();
        host.state.lock().descriptors = 1 + left;
        match space.bind(addr("0.0.0.0", 0), PortUse::Connection) {
            Ok(port) => has_all(&port, &host, 1),
            Err(error) => {
                let PortError::System { error: why, .. } = &error else {
                    panic!("{left} left: {error}");
                };
                assert_eq!(why.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
                assert!(error.to_string().contains("bind"), "{error}");
            }
        }
        assert_eq!(host.held(), [kept.local()], "{left} left");
        assert_eq!(space.held(), [(kept.local(), Holder::Bound)]);
        host.state.lock().descriptors = usize::MAX;
        drop(space.bind(addr("0.0.0.0", 0), PortUse::Connection));
        drop(kept);
        assert!(space.is_empty());
    }
}
