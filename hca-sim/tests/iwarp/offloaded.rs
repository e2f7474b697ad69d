//! An RNIC whose streams go past the host's TCP, with port numbers of the host (C7): the sockets of the host are bound and carry
//! nothing. What holds of numbers with software holds here as well (C1 to C6).
//!
//! The engine is a TCP of its own: that of this host, at other addresses than the device has.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};

use hca_sim::clock::{Due, Waiter};
use hca_sim::port_space::{PortError, ROUNDS_MAX, TcpPortSpace};
use hca_sim::stream::{Bound, Interest, Offloaded, Stream, StreamLink, Token};
use hca_sim::{Hca, Tcp, connected_qps};
use verbs_core::{CmReply, Error, Issued, PortCaps, Provider, QpState, Recv, Seed, Send, WcStatus};

use crate::support::{
    End, Host, PATIENCE, address, all, bind, connect, free, holds_nothing, param, refused, request,
};

/// Where the engine has an address.
fn there(at: SocketAddr) -> SocketAddr {
    moved(at, 7, 107)
}

/// What the engine has there.
fn here(at: SocketAddr) -> SocketAddr {
    moved(at, 107, 7)
}

fn moved(at: SocketAddr, from: u8, to: u8) -> SocketAddr {
    match at.ip() {
        IpAddr::V4(ip) if ip.octets()[1] == from => {
            let [first, _, third, fourth] = ip.octets();
            SocketAddr::from(([first, to, third, fourth], at.port()))
        }
        _ => at,
    }
}

#[derive(Debug)]
struct Engine(Tcp);

#[derive(Debug)]
struct EnginePort(Box<dyn Bound>);

#[derive(Debug)]
struct EngineStream(Box<dyn Stream>);

impl Engine {
    fn at(ips: &[IpAddr]) -> Self {
        let ips: Vec<_> = ips.iter().map(|&ip| there((ip, 0).into()).ip()).collect();
        Self(Tcp::on(&ips).unwrap())
    }
}

impl StreamLink for Engine {
    fn addresses(&self) -> Vec<IpAddr> {
        let own = self.0.addresses().into_iter();
        own.map(|ip| here((ip, 0).into()).ip()).collect()
    }

    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        let bound = self.0.bind(there(local))?;
        Ok(Box::new(EnginePort(bound)))
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        self.0.ready(tokens);
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        self.0.waiter()
    }

    fn attach(&self, listener: Weak<dyn Due>) {
        self.0.attach(listener);
    }

    fn seed(&self) -> Seed {
        self.0.seed()
    }
}

impl Bound for EnginePort {
    fn local(&self) -> SocketAddr {
        here(self.0.local())
    }

    fn listen(&mut self, backlog: u32, token: Token) -> Result<(), PortError> {
        self.0.listen(backlog, token)
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(EngineStream(self.0.accept()?)))
    }

    fn connect(self: Box<Self>, remote: SocketAddr, token: Token) -> io::Result<Box<dyn Stream>> {
        let stream = self.0.connect(there(remote), token)?;
        Ok(Box::new(EngineStream(stream)))
    }
}

impl Stream for EngineStream {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.receive(into)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes)
    }

    fn finish(&mut self) {
        self.0.finish();
    }

    fn connected(&mut self) -> io::Result<bool> {
        self.0.connected()
    }

    fn watch(&mut self, token: Token, interest: Interest) -> io::Result<()> {
        self.0.watch(token, interest)
    }

    fn segment_max(&self) -> usize {
        self.0.segment_max()
    }

    fn local(&self) -> SocketAddr {
        here(self.0.local())
    }

    fn peer(&self) -> SocketAddr {
        here(self.0.peer())
    }
}

fn host(ips: &[IpAddr]) -> Host {
    sharing(ips, TcpPortSpace::of(ips.iter().copied()))
}

/// A host whose numbers are of a space that other devices have as well.
fn sharing(ips: &[IpAddr], space: TcpPortSpace) -> Host {
    let link = Offloaded::new(Engine::at(ips), space);
    Host::of(ips[0], Hca::over_streams(link))
}

/// A message from one end to the other.
fn message(from: (&mut Host, &mut End), to: (&mut Host, &mut End), byte: u8) {
    let recv = Recv::new(1).into(to.0.mr.slice(0..64));
    to.1.qp.post_recv(recv).unwrap();
    from.0.mr.write(0, &[byte; 64]).unwrap();
    let send = Send::new(2).from(from.0.mr.slice(0..64)).signaled();
    from.1.qp.post_send(send).unwrap();
    assert_eq!(from.0.completions(1)[0].status, WcStatus::Success);
    assert_eq!(to.0.completions(1)[0].status, WcStatus::Success);
    assert_eq!(to.0.bytes(0, 64), [byte; 64]);
}

/// Goal: C7, C2, C9. Method: connections that go past the host's TCP: their numbers are bound on the host, all different, and
/// carry nothing there; the device says so of itself, and of each connection.
#[test]
fn numbers_are_the_hosts_and_bytes_are_not() {
    let (mut client, mut server) = (host(&[address(60, 1)]), host(&[address(60, 2)]));
    let caps = client.hca.query_provider(1).caps;
    assert!(!caps.contains(PortCaps::SOFTWARE) && caps.contains(PortCaps::IW_CM));
    let mut ends = Vec::new();
    let mut numbers = BTreeSet::new();
    for _ in 0..20 {
        let (ours, theirs) = connect(&client, &server);
        let [local, remote] = [&ours, &theirs].map(|end| end.endpoint.local());
        refused(local);
        refused(remote);
        assert!(numbers.insert(local.port()));
        let shown = connected_qps(&client.hca);
        let shown = shown
            .iter()
            .find(|shown| shown.qpn == ours.qp.qpn())
            .unwrap();
        assert_eq!((shown.local, shown.remote), (Some(local), Some(remote)));
        assert_eq!(shown.state, QpState::Rts);
        ends.push((ours, theirs));
    }
    for (n, (ours, theirs)) in ends.iter_mut().enumerate() {
        message((&mut client, ours), (&mut server, theirs), n as u8);
        message((&mut server, theirs), (&mut client, ours), !(n as u8));
    }
    let tcp = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let [a, b] = [&client, &server].map(|host| match host.ip {
        IpAddr::V4(ip) => format!("{:08X}:", u32::from(ip).swap_bytes()),
        IpAddr::V6(_) => unreachable!("addresses of tests are of IPv4"),
    });
    let on_host: Vec<_> = tcp
        .lines()
        .filter(|line| line.contains(&a) || line.contains(&b))
        .filter(|line| !line.contains(" 00000000:0000 07 "))
        .collect();
    assert!(on_host.is_empty(), "bound and unused: {on_host:?}");
    let space = client.hca.port_space().unwrap();
    assert_eq!(space.len(), ends.len(), "{:?}", space.held());
    drop(ends);
    holds_nothing(&client);
    holds_nothing(&server);
}

/// Goal: C3, with ordinary sockets, software and another engine, in all directions; C10: software and hardware of one space at
/// one address, each connection by the choice of the device.
#[test]
fn a_number_in_use_is_refused_whoever_has_it() {
    let ip = address(61, 1);
    let mut software = Host::new(ip);
    let space = software.hca.port_space().unwrap().clone();
    let mut hardware = sharing(&[ip], space);
    let apart = host(&[ip]);
    let plain = TcpListener::bind((ip, 0)).unwrap();
    let taken = plain.local_addr().unwrap();
    for host in [&software, &hardware, &apart] {
        for at in [taken, all(taken.port())] {
            let port = taken.port();
            assert_eq!(bind(host, at).unwrap_err(), Error::AddrInUse { port });
        }
    }
    for first in [&software, &hardware, &apart] {
        for listens in [false, true] {
            let (endpoint, _events) = first.bind(0);
            let at = endpoint.local();
            if listens {
                endpoint.listen(1).wait().unwrap();
            }
            refused(at);
            for second in [&software, &hardware, &apart] {
                let port = at.port();
                assert_eq!(bind(second, at).unwrap_err(), Error::AddrInUse { port });
            }
            endpoint.unbind().wait().unwrap();
            free(at);
        }
    }
    // Both carry, at once.
    let peers = (Host::new(address(61, 2)), host(&[address(61, 2)]));
    let (mut soft_peer, mut hard_peer) = peers;
    let (mut a, mut b) = connect(&software, &soft_peer);
    let (mut c, mut d) = connect(&hardware, &hard_peer);
    assert_eq!(software.hca.port_space().unwrap().len(), 2);
    message((&mut software, &mut a), (&mut soft_peer, &mut b), 1);
    message((&mut hardware, &mut c), (&mut hard_peer, &mut d), 2);
    // A software connection is one that the host shows; that of the engine is not there.
    assert!(TcpStream::connect(a.endpoint.local()).is_err());
    drop((a, b, c, d));
    holds_nothing(&software);
}

/// Goal: C4, C5. Method: an ordinary listener has the number at one address; then many of the numbers that the host picks are
/// taken, at one address of the host and elsewhere at the engine.
#[test]
fn a_wildcard_is_on_all_addresses_or_on_none() {
    let ips: Vec<IpAddr> = (1..=3).map(|n| address(62, n)).collect();
    let host = host(&ips);
    let plain = TcpListener::bind((ips[1], 0)).unwrap();
    let port = plain.local_addr().unwrap().port();
    assert_eq!(
        bind(&host, all(port)).unwrap_err(),
        Error::AddrInUse { port }
    );
    holds_nothing(&host);
    free(SocketAddr::new(ips[0], port));
    drop(plain);
    let bound = bind(&host, all(port)).unwrap();
    ips.iter()
        .for_each(|&ip| refused(SocketAddr::new(ip, port)));
    bound.unbind().wait().unwrap();

    let taken =
        |at: SocketAddr| -> Vec<_> { (0..400).map_while(|_| TcpListener::bind(at).ok()).collect() };
    let here = taken((ips[1], 0).into());
    let engines = taken(there((ips[2], 0).into()));
    for _ in 0..100 {
        let bound = bind(&host, all(0)).unwrap();
        let port = bound.local().port();
        ips.iter()
            .for_each(|&ip| refused(SocketAddr::new(ip, port)));
        ips.iter()
            .for_each(|&ip| refused(there(SocketAddr::new(ip, port))));
        bound.unbind().wait().unwrap();
        ips.iter().for_each(|&ip| free(SocketAddr::new(ip, port)));
    }
    drop((here, engines));
    holds_nothing(&host);
}

/// Goal: C6. Method: the verb, with an endpoint in each of its states: bound, listening, connecting in vain, refused and bound
/// again, connected.
#[test]
fn unbinding_gives_the_number_back() {
    let (client, server) = (host(&[address(63, 1)]), host(&[address(63, 2)]));
    for listens in [false, true] {
        let (endpoint, _events) = server.bind(0);
        let at = endpoint.local();
        if listens {
            endpoint.listen(1).wait().unwrap();
        }
        refused(at);
        endpoint.unbind().wait().unwrap();
        free(at);
    }
    let silent = TcpListener::bind(there((server.ip, 0).into())).unwrap();
    let to = here(silent.local_addr().unwrap());
    let nobody = SocketAddr::new(server.ip, 1);
    let (qp, (endpoint, _events)) = (client.qp(), client.bind(0));
    let (at, (tell, told)) = (endpoint.local(), channel());
    let attempt = |to| {
        let tell = tell.clone();
        endpoint
            .connect(&qp, to, param(), Vec::new())
            .issue(move |reply| tell.send(reply).unwrap())
    };
    // The endpoint has its number for each attempt.
    for _ in 0..3 {
        let _ = attempt(nobody);
        let reply = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(reply, Ok(CmReply::Refused));
        free(at);
    }
    let connecting = attempt(to);
    let (stream, from) = silent.accept().unwrap();
    assert_eq!(here(from), at);
    refused(at);
    let Issued::Pending(connecting) = connecting else {
        panic!("it waits for the peer");
    };
    assert!(connecting.cancel());
    let reply = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(reply, Err(Error::Cancelled));
    endpoint.unbind().wait().unwrap();
    drop(stream);
    holds_nothing(&client);
    free(at);
    let (ours, theirs) = connect(&client, &server);
    let at = ours.endpoint.local();
    ours.endpoint.unbind().wait().unwrap();
    assert!(theirs.events.recv_timeout(PATIENCE).is_ok());
    drop((ours.qp, theirs));
    holds_nothing(&client);
    free(at);
}

/// Goal: a service that ends and begins again has its number although connections of it live on; until the last of them has
/// gone, nobody else has it. Once that number was another's, it is refused.
#[test]
fn a_listener_comes_back_over_its_connections() {
    let (mut client, mut server) = (host(&[address(64, 1)]), host(&[address(64, 2)]));
    let (listener, requests) = server.bind(0);
    let at = listener.local();
    listener.listen(4).wait().unwrap();
    let (ours, theirs) = (client.qp(), server.qp());
    let (endpoint, events) = client.bind(0);
    let (tell, told) = channel();
    let _ = endpoint
        .connect(&ours, at, param(), Vec::new())
        .issue(move |reply| tell.send(reply).unwrap());
    let asked = request(&requests);
    let accepting = asked.endpoint.accept(&theirs, param(), Vec::new());
    accepting.wait().unwrap();
    let reply = told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(matches!(reply, CmReply::Established(_)), "{reply:?}");
    let mut ours = End {
        qp: ours,
        endpoint,
        events,
    };
    let mut theirs = End {
        qp: theirs,
        endpoint: asked.endpoint,
        events: requests,
    };
    listener.unbind().wait().unwrap();
    for turn in 0..3 {
        let again = bind(&server, at).unwrap();
        again.listen(4).wait().unwrap();
        // Twice it is refused.
        let port = at.port();
        assert_eq!(bind(&server, at).unwrap_err(), Error::AddrInUse { port });
        again.unbind().wait().unwrap();
        refused(at);
        message((&mut client, &mut ours), (&mut server, &mut theirs), turn);
    }
    drop((ours, theirs));
    holds_nothing(&server);
    let plain = TcpListener::bind(at).unwrap();
    let port = at.port();
    assert_eq!(bind(&server, at).unwrap_err(), Error::AddrInUse { port });
    drop(plain);
}

/// An engine that has every number in use.
#[derive(Debug)]
struct Full(Engine, Arc<AtomicUsize>);

impl StreamLink for Full {
    fn addresses(&self) -> Vec<IpAddr> {
        self.0.addresses()
    }

    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        let at = SocketAddr::new(self.addresses()[0], local.port());
        let taken = TcpListener::bind(there(at)).unwrap();
        let refused = self.0.bind(local);
        self.1.fetch_add(1, Relaxed);
        drop(taken);
        refused
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        self.0.ready(tokens);
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        self.0.waiter()
    }

    fn seed(&self) -> Seed {
        self.0.seed()
    }
}

/// Goal: where engine and host have no number in common a bind gives up after a bounded number of rounds, and leaves nothing.
#[test]
fn a_bind_that_the_engine_refuses_gives_up() {
    let ip = address(65, 1);
    let space = TcpPortSpace::of([ip]);
    let refusals = Arc::default();
    let full = Full(Engine::at(&[ip]), Arc::clone(&refusals));
    let full = Offloaded::new(full, space.clone());
    for at in [SocketAddr::new(ip, 0), all(0)] {
        let error = full.bind(at).unwrap_err();
        assert!(matches!(error, PortError::AddrInUse { .. }), "{error}");
        assert!(space.is_empty(), "{:?}", space.held());
    }
    assert_eq!(refusals.load(Relaxed), ROUNDS_MAX * 2);
}
