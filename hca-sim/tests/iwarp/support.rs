//! Hosts, and connections between them.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use hca_sim::clock::VirtualClock;
use hca_sim::{Builder, Hca};
use verbs_core::{
    Access, CmEndpoint, CmEvent, CmParam, CmReply, CmRequest, CmSink, Cq, Device, Error, Memory,
    Mr, Pd, Qp, QpInit, Wc,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An address of its own for each test, so that tests do not meet.
pub(crate) fn address(test: u8, host: u8) -> IpAddr {
    IpAddr::from([127, 7, test, host])
}

/// A host with an RNIC, and objects on it.
pub(crate) struct Host {
    // Dropped in this order.
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
    pub(crate) device: Device,
    pub(crate) hca: Arc<Hca>,
    pub(crate) ip: IpAddr,
}

pub(crate) const MEMORY: usize = 4 << 20;

impl Host {
    pub(crate) fn new(ip: IpAddr) -> Self {
        Self::at(&[ip])
    }

    /// With several addresses; the first is the one it binds.
    pub(crate) fn at(ips: &[IpAddr]) -> Self {
        Self::of(ips[0], Hca::iwarp(ips).unwrap())
    }

    /// Without a thread of its own: what happens, happens in turns of its HCA, and at times of that clock.
    pub(crate) fn in_turns(ip: IpAddr, clock: &VirtualClock) -> Self {
        Self::of(ip, Hca::iwarp(&[ip]).unwrap().clock(clock.clone()))
    }

    pub(crate) fn of(ip: IpAddr, builder: Builder) -> Self {
        let hca = builder.build();
        let device = hca.open().wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let memory = Memory::alloc(MEMORY).unwrap();
        let mr = pd.register(memory, access).wait().unwrap();
        Self {
            cq: device.create_cq(256).wait().unwrap(),
            mr,
            pd,
            device,
            hca,
            ip,
        }
    }

    pub(crate) fn qp(&self) -> Qp {
        let init = QpInit::rc(&self.cq, &self.cq).depth(64, 64).inline(64);
        let qp = self.pd.create_qp(init).wait().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        qp.init(1, access).wait().unwrap();
        qp
    }

    pub(crate) fn bind(&self, port: u16) -> (CmEndpoint, Receiver<CmEvent>) {
        let (sink, events) = Events::new();
        let local = SocketAddr::new(self.ip, port);
        (self.device.bind_cm(local, sink).wait().unwrap(), events)
    }

    /// Polls until there are so many completions.
    pub(crate) fn completions(&mut self, count: usize) -> Vec<Wc> {
        let until = Instant::now() + PATIENCE;
        let mut all = Vec::new();
        while all.len() < count {
            let mut wcs = [Wc::default(); 16];
            all.extend(self.cq.poll(&mut wcs).iter().copied());
            assert!(
                Instant::now() < until,
                "{} of {count} completions: {all:?}",
                all.len()
            );
        }
        all
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read(offset, &mut bytes).unwrap();
        bytes
    }
}

/// Events of an endpoint, one after the other.
pub(crate) struct Events(Sender<CmEvent>);

impl Events {
    pub(crate) fn new() -> (Arc<Self>, Receiver<CmEvent>) {
        let (sender, receiver) = channel();
        (Arc::new(Self(sender)), receiver)
    }
}

impl CmSink for Events {
    fn event(&self, event: CmEvent) {
        // The test may have ended.
        let _ = self.0.send(event);
    }
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) qp: Qp,
    /// Keeps the connection.
    pub(crate) endpoint: CmEndpoint,
    pub(crate) events: Receiver<CmEvent>,
}

pub(crate) fn request(events: &Receiver<CmEvent>) -> CmRequest {
    match events.recv_timeout(PATIENCE).expect("a request") {
        CmEvent::ConnectRequest(request) => request,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn param() -> CmParam {
    CmParam {
        responder_resources: 8,
        initiator_depth: 8,
        ..CmParam::default()
    }
}

/// A connection from one host to another.
pub(crate) fn connect(client: &Host, server: &Host) -> (End, End) {
    let (listener, requests) = server.bind(0);
    listener.listen(4).wait().unwrap();
    let (ours, theirs) = (client.qp(), server.qp());
    let (endpoint, events) = client.bind(0);
    let (tell, told) = channel();
    let to = listener.local();
    let _ = endpoint
        .connect(&ours, to, param(), b"hello".to_vec())
        .issue(move |reply| tell.send(reply).unwrap());
    let asked = request(&requests);
    assert_eq!(asked.private_data, b"hello");
    let (sink, their_events) = Events::new();
    asked.endpoint.events_to(sink);
    let accepting = asked.endpoint.accept(&theirs, param(), b"welcome".to_vec());
    accepting.wait().unwrap();
    let reply = told.recv_timeout(PATIENCE).expect("an answer").unwrap();
    assert_eq!(reply, CmReply::Established(b"welcome".as_slice().into()));
    let theirs = End {
        qp: theirs,
        endpoint: asked.endpoint,
        events: their_events,
    };
    let ours = End {
        qp: ours,
        endpoint,
        events,
    };
    (ours, theirs)
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

pub(crate) fn bind(host: &Host, local: SocketAddr) -> Result<CmEndpoint, Error> {
    host.device.bind_cm(local, Events::new().0).wait()
}

/// The wildcard of IPv4, with that number.
pub(crate) fn all(port: u16) -> SocketAddr {
    SocketAddr::from(([0; 4], port))
}

/// That an ordinary socket cannot have that address.
pub(crate) fn refused(at: SocketAddr) {
    let error = TcpListener::bind(at).expect_err("it is taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{at}");
}

/// That an ordinary socket can have it.
pub(crate) fn free(at: SocketAddr) {
    drop(TcpListener::bind(at).expect("it is free"));
}

/// That no number is held, or soon none is.
pub(crate) fn holds_nothing(host: &Host) {
    let space = host.hca.port_space().expect("it is over TCP");
    until("no number is held", || space.is_empty());
}
