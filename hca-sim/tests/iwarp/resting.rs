//! Listeners when the system has no descriptors left.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;

use hca_sim::link::Waiter;
use hca_sim::port_space::PortError;
use hca_sim::stream::{Bound, Stream, StreamLink, Token};
use hca_sim::{Hca, Tcp};
use verbs_core::{CmReply, Seed};

use crate::support::{Host, PATIENCE, address, param, request, until};

/// What the listeners of a link meet.
#[derive(Debug, Default)]
struct Shortage {
    is_there: AtomicBool,
    /// How often a connection was to be taken.
    accepts: AtomicUsize,
}

/// TCP on a system that may have no descriptors.
#[derive(Debug)]
struct Short {
    tcp: Tcp,
    shortage: Arc<Shortage>,
}

#[derive(Debug)]
struct ShortPort {
    port: Box<dyn Bound>,
    shortage: Arc<Shortage>,
}

impl StreamLink for Short {
    fn addresses(&self) -> Vec<IpAddr> {
        self.tcp.addresses()
    }

    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        Ok(Box::new(ShortPort {
            port: self.tcp.bind(local)?,
            shortage: Arc::clone(&self.shortage),
        }))
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        self.tcp.ready(tokens);
    }

    fn adopt(&self, stream: TcpStream) -> io::Result<(Box<dyn Stream>, usize)> {
        self.tcp.adopt(stream)
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        self.tcp.waiter()
    }

    fn seed(&self) -> Seed {
        self.tcp.seed()
    }
}

impl Bound for ShortPort {
    fn local(&self) -> SocketAddr {
        self.port.local()
    }

    fn listen(&mut self, backlog: u32, token: Token) -> Result<(), PortError> {
        self.port.listen(backlog, token)
    }

    fn rest(&mut self, token: Token, rests: bool) -> io::Result<()> {
        self.port.rest(token, rests)
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        self.shortage.accepts.fetch_add(1, Relaxed);
        match self.shortage.is_there.load(Relaxed) {
            // EMFILE
            true => Err(io::Error::from_raw_os_error(24)),
            false => self.port.accept(),
        }
    }

    fn connect(self: Box<Self>, remote: SocketAddr, token: Token) -> io::Result<Box<dyn Stream>> {
        self.port.connect(remote, token)
    }
}

/// Goal: a listener without descriptors looks for some ten times a second, not without end, and takes the connections that
/// have waited when there are some again.
#[test]
fn a_listener_without_descriptors_rests() {
    let client = Host::new(address(40, 1));
    let shortage = Arc::new(Shortage::default());
    let link = Short {
        tcp: Tcp::on(&[address(40, 2)]).unwrap(),
        shortage: Arc::clone(&shortage),
    };
    let server = Host::of(address(40, 2), Hca::over_streams(link));
    let (listener, requests) = server.bind(0);
    listener.listen(4).wait().unwrap();
    shortage.is_there.store(true, Relaxed);
    let (endpoint, _) = client.bind(0);
    let (tell, told) = channel();
    let qp = client.qp();
    let connecting = endpoint.connect(&qp, listener.local(), param(), Vec::new());
    let _ = connecting.issue(move |reply| tell.send(reply.unwrap()).unwrap());
    let rests = || server.hca.counters().streams.unwrap().rests;
    until("five rests", || rests() >= 5);
    let accepts = shortage.accepts.load(Relaxed) as u64;
    assert!(accepts <= 2 * rests() + 2, "{accepts} in {} rests", rests());
    shortage.is_there.store(false, Relaxed);
    request(&requests)
        .endpoint
        .reject(Vec::new())
        .wait()
        .unwrap();
    let reply = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(reply, CmReply::Rejected(Box::default()));
}
