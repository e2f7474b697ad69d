//! Connections by address: this provider, the C library's connection manager, the software HCA's messages, and back.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{
    Access, CmEndpoint, CmEvent, CmParam, CmReply, CmRequest, CmSink, Cq, Device, Error, Issued,
    Memory, Mr, Pd, PortCaps, Provider, Qp, QpInit, QpState, Recv, Send, TransportType, Wc,
    WcStatus, Why,
};

use crate::rdma_core::{address, is_our_own, nic};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Puts events where a test can take them.
struct Told(Mutex<Sender<CmEvent>>);

impl CmSink for Told {
    fn event(&self, event: CmEvent) {
        // A test that has ended takes nothing.
        let _ = self.0.lock().send(event);
    }
}

fn told() -> (Arc<Told>, Receiver<CmEvent>) {
    let (sender, receiver) = channel();
    (Arc::new(Told(Mutex::new(sender))), receiver)
}

/// A NIC with the objects that queue pairs are made from.
struct Host {
    // Dropped in this order.
    mr: Mr,
    cq: Cq,
    pd: Pd,
    device: Device,
    nic: Arc<hca_rdma::Nic>,
    address: IpAddr,
}

impl Host {
    fn new() -> Self {
        let nic = nic();
        let device = Device::open(Arc::clone(&nic) as Arc<_>).wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let cq = device.create_cq(256).wait().unwrap();
        let memory = Memory::alloc(4096).unwrap();
        let mr = pd.register(memory, Access::LOCAL_WRITE).wait().unwrap();
        Self {
            mr,
            cq,
            pd,
            device,
            address: address(&nic),
            nic,
        }
    }

    fn qp(&self) -> Qp {
        let init = QpInit::rc(&self.cq, &self.cq).depth(4, 4).inline(16);
        self.pd.create_qp(init).wait().unwrap()
    }

    fn any(&self) -> SocketAddr {
        SocketAddr::new(self.address, 0)
    }

    fn bind(&self) -> (CmEndpoint, Receiver<CmEvent>) {
        let (sink, events) = told();
        (
            self.device.bind_cm(self.any(), sink).wait().unwrap(),
            events,
        )
    }

    fn listen(&self) -> (CmEndpoint, Receiver<CmEvent>) {
        let (endpoint, events) = self.bind();
        endpoint.listen(16).wait().unwrap();
        (endpoint, events)
    }

    fn completion(&mut self) -> Wc {
        let start = Instant::now();
        loop {
            if let [wc] = self.cq.poll(&mut [Wc::default()]) {
                return *wc;
            }
            assert!(start.elapsed() < PATIENCE, "no completion comes");
            std::thread::yield_now();
        }
    }
}

fn request(events: &Receiver<CmEvent>) -> CmRequest {
    loop {
        match events.recv_timeout(PATIENCE).expect("a request comes") {
            CmEvent::ConnectRequest(request) => return request,
            // The peer has withdrawn its request: its events are delivered like the listener's.
            CmEvent::Closed => {}
            other => panic!("{other:?} is no request"),
        }
    }
}

/// The reply of a connect, when it arrives.
fn asks(
    endpoint: &CmEndpoint,
    qp: &Qp,
    to: SocketAddr,
    data: &[u8],
) -> Receiver<Result<CmReply, Error>> {
    let (sender, reply) = channel();
    let _ = endpoint
        .connect(qp, to, wanted(), data.to_vec())
        .issue(move |result| tell(&sender, result));
    reply
}

/// A test that has ended takes nothing.
fn tell<T>(sender: &Sender<T>, result: T) {
    let _ = sender.send(result);
}

fn wanted() -> CmParam {
    CmParam {
        responder_resources: 4,
        initiator_depth: 4,
        ..CmParam::default()
    }
}

#[track_caller]
fn taken<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).expect("it comes in time")
}

fn state(qp: &Qp) -> QpState {
    qp.query().wait().unwrap().state
}

#[track_caller]
fn until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited in vain");
        std::thread::yield_now();
    }
}

fn starts_with(data: &[u8], said: &[u8]) -> bool {
    data.starts_with(said) && data[said.len()..].iter().all(|&byte| byte == 0)
}

/// Two queue pairs that are connected, with their endpoints and events.
struct Connected {
    active: (CmEndpoint, Qp, Receiver<CmEvent>),
    passive: (CmEndpoint, Qp, Receiver<CmEvent>),
    // Dropped last: the listener is not part of the connection.
    _listener: CmEndpoint,
}

impl Connected {
    fn new(client: &Host, server: &Host) -> Self {
        let (listener, requests) = server.listen();
        let (active, active_events) = client.bind();
        let (ours, theirs) = (client.qp(), server.qp());
        let reply = asks(&active, &ours, listener.local(), b"hello");
        let asked = request(&requests);
        assert!(starts_with(&asked.private_data, b"hello"));
        assert_eq!(asked.remote, active.local());
        assert_eq!(asked.endpoint.local(), listener.local());
        assert_eq!(
            (asked.param.responder_resources, asked.param.initiator_depth),
            (4, 4)
        );
        let (sink, passive_events) = told();
        let passive = asked.endpoint;
        passive.events_to(sink);
        let accept = passive.accept(&theirs, wanted(), b"welcome".to_vec());
        accept.wait().unwrap();
        match taken(&reply).unwrap() {
            CmReply::Established(data) => assert!(starts_with(&data, b"welcome")),
            other => panic!("{other:?}"),
        }
        Self {
            active: (active, ours, active_events),
            passive: (passive, theirs, passive_events),
            _listener: listener,
        }
    }
}

fn ends(events: &Receiver<CmEvent>) {
    assert!(matches!(taken(events), CmEvent::Disconnected));
    assert!(matches!(taken(events), CmEvent::Closed));
    assert!(events.try_recv().is_err(), "nothing follows the end");
}

#[test]
fn a_connection_carries_data_both_ways_and_ends_at_either_side() {
    let (mut client, mut server) = (Host::new(), Host::new());
    for client_ends in [true, false] {
        let mut connected = Connected::new(&client, &server);
        let (active, passive) = (&mut connected.active, &mut connected.passive);
        for _ in 0..2 {
            passive
                .1
                .post_recv(Recv::new(1).into(server.mr.slice(0..64)))
                .unwrap();
            active
                .1
                .post_send(Send::new(2).inline(b"there").signaled())
                .unwrap();
            assert_eq!(client.completion().status, WcStatus::Success);
            assert_eq!(server.completion().byte_len, 5);
        }
        // Moving the queue pair to ERR ends the connection, as its user's disconnect does.
        let ending = if client_ends { &active.1 } else { &passive.1 };
        ending.to_error().wait().unwrap();
        ends(&active.2);
        ends(&passive.2);
        for qp in [&active.1, &passive.1] {
            until(|| state(qp) == QpState::Err);
        }
        let Connected {
            active, passive, ..
        } = connected;
        // K10: an endpoint holds its queue pair until it is unbound.
        let busy = active.1.destroy().wait().expect_err("it has an endpoint");
        let qp = busy.handle.unwrap();
        active.0.unbind().wait().unwrap();
        qp.destroy().wait().unwrap();
        passive.0.unbind().wait().unwrap();
        passive.1.destroy().wait().unwrap();
    }
}

/// Goal: who finds work flushed knows already that the peer has closed the connection. Method: whoever hears of the end polls.
#[test]
fn the_end_is_told_before_work_is_flushed() {
    struct Polls(Mutex<(Cq, Sender<usize>)>);
    impl CmSink for Polls {
        fn event(&self, event: CmEvent) {
            if matches!(event, CmEvent::Disconnected) {
                let (cq, sender) = &mut *self.0.lock();
                let flushed = cq.poll(&mut [Wc::default()]).len();
                tell(sender, flushed);
            }
        }
    }
    let (client, server) = (Host::new(), Host::new());
    let mut connected = Connected::new(&client, &server);
    let Host {
        mr, cq, pd, nic, ..
    } = server;
    let passive = &mut connected.passive;
    let recv = Recv::new(1).into(mr.slice(0..64));
    passive.1.post_recv(recv).unwrap();
    let (sender, polled) = channel();
    let sink = Arc::new(Polls(Mutex::new((cq, sender))));
    passive.0.events_to(Arc::clone(&sink) as _);
    connected.active.1.to_error().wait().unwrap();
    let early = taken(&polled);
    // Over TCP the kernel flushes first.
    if nic.query_provider(1).transport != TransportType::Iwarp {
        assert_eq!(early, 0);
    }
    until(|| state(&passive.1) == QpState::Err);
    let flushed = || sink.0.lock().0.poll(&mut [Wc::default()]).len() == 1;
    until(|| early == 1 || flushed());
    drop((connected, sink, mr, pd));
}

#[test]
fn an_endpoint_that_is_dropped_ends_its_connection() {
    let (client, server) = (Host::new(), Host::new());
    let Connected {
        active, passive, ..
    } = Connected::new(&client, &server);
    active.0.unbind().wait().unwrap();
    assert_eq!(state(&active.1), QpState::Err);
    ends(&passive.2);
    assert!(active.2.try_recv().is_err(), "K11");
}

#[test]
fn what_the_peer_says_no_to_is_no_error() {
    let (client, server) = (Host::new(), Host::new());
    let (listener, requests) = server.listen();
    let (endpoint, events) = client.bind();
    let qp = client.qp();

    // The same endpoint and queue pair, repeatedly.
    let reply = asks(&endpoint, &qp, listener.local(), b"");
    request(&requests)
        .endpoint
        .reject(b"no room".to_vec())
        .wait()
        .unwrap();
    match taken(&reply).unwrap() {
        CmReply::Rejected(data) => assert!(starts_with(&data, b"no room")),
        other => panic!("{other:?}"),
    }
    let reply = asks(&endpoint, &qp, listener.local(), b"");
    drop(request(&requests));
    assert!(matches!(taken(&reply), Ok(CmReply::Rejected(_))));

    listener.unbind().wait().unwrap();
    let nobody = SocketAddr::new(server.address, 9);
    let reply = asks(&endpoint, &qp, nobody, b"");
    assert_eq!(taken(&reply), Ok(CmReply::Refused));
    assert!(
        events.try_recv().is_err(),
        "a failure is told by its result"
    );
    qp.destroy().wait().expect("nobody has it any more");
    endpoint.unbind().wait().unwrap();
    until(|| client.nic.objects() == 3);
}

#[test]
fn what_does_not_fit_is_refused_by_its_name() {
    let (client, server) = (Host::new(), Host::new());
    let (listener, requests) = server.listen();
    let mismatch = |error: Error| match error {
        Error::Mismatch { why, .. } => why,
        other => panic!("{other}"),
    };
    let (sink, _events) = told();
    let taken_port = server
        .device
        .bind_cm(listener.local(), Arc::clone(&sink) as _)
        .wait();
    let port = listener.local().port();
    assert_eq!(taken_port.unwrap_err(), Error::AddrInUse { port });
    let foreign = "192.0.2.77:0".parse().unwrap();
    let foreign = server.device.bind_cm(foreign, sink).wait();
    assert_eq!(foreign.unwrap_err(), Error::AddrNotAvailable);

    let qp = client.qp();
    listener.listen(1).wait().unwrap();
    let connects = listener
        .connect(&server.qp(), listener.local(), wanted(), Vec::new())
        .wait();
    assert_eq!(mismatch(connects.unwrap_err()), Why::State);
    let (endpoint, _events) = client.bind();
    let accepts = endpoint.accept(&qp, wanted(), Vec::new()).wait();
    assert_eq!(mismatch(accepts.unwrap_err()), Why::State);
    let rejects = endpoint.reject(Vec::new()).wait();
    assert_eq!(mismatch(rejects.unwrap_err()), Why::Missing);

    // The listener is unchanged.
    let reply = asks(&endpoint, &qp, listener.local(), b"");
    let asked = request(&requests).endpoint;
    let foreign = asked.accept(&qp, wanted(), Vec::new()).wait();
    assert_eq!(mismatch(foreign.unwrap_err()), Why::OtherDevice);
    let unready = server.qp();
    unready.init(1, Access::REMOTE).wait().unwrap();
    unready.to_error().wait().unwrap();
    let unready = asked.accept(&unready, wanted(), Vec::new()).wait();
    assert_eq!(mismatch(unready.unwrap_err()), Why::State);
    assert!(matches!(taken(&reply), Ok(CmReply::Rejected(_))));
    let late = asked.accept(&server.qp(), wanted(), Vec::new()).wait();
    assert_eq!(mismatch(late.unwrap_err()), Why::Missing);
}

#[test]
fn a_connect_that_is_cancelled_gives_the_queue_pair_back() {
    let (client, server) = (Host::new(), Host::new());
    let (listener, requests) = server.listen();
    let (endpoint, _events) = client.bind();
    let qp = client.qp();
    let (sender, reply) = channel();
    let issued = endpoint
        .connect(&qp, listener.local(), wanted(), Vec::new())
        .issue(move |result| tell(&sender, result));
    let Issued::Pending(handle) = issued else {
        panic!("the peer has not answered");
    };
    let asked = request(&requests);
    let busy = qp.destroy().wait().expect_err("a connect is under way");
    let qp = busy.handle.unwrap();
    assert!(handle.cancel());
    assert_eq!(taken(&reply), Err(Error::Cancelled));
    qp.destroy().wait().expect("it was let go of");
    // The listening side learns that the request was withdrawn, and can no longer accept it. Linux's kernel does not
    // report the withdrawal of a request that was not answered; there the failing accept is the only sign.
    if is_our_own() {
        assert!(matches!(taken(&requests), CmEvent::Closed));
    }
    let theirs = server.qp();
    let accepted = asked.endpoint.accept(&theirs, wanted(), Vec::new()).wait();
    assert!(accepted.is_err(), "{accepted:?}");
    // The endpoint can be used again.
    let qp = client.qp();
    let reply = asks(&endpoint, &qp, listener.local(), b"");
    drop(request(&requests));
    assert!(matches!(taken(&reply), Ok(CmReply::Rejected(_))));
}

/// Removal with endpoints in every state: waiting requests are answered, connections are reported as ended, and
/// everything can be dropped.
#[test]
fn a_nic_that_goes_leaves_no_connection_that_waits() {
    let server = Host::new();
    let (listener, requests) = server.listen();
    let client = Host::new();
    let (bound, _) = client.bind();
    let (listening, listening_events) = client.listen();
    let (connecting, _) = client.bind();
    let (ours, theirs) = (client.qp(), server.qp());
    let reply = asks(&connecting, &ours, listener.local(), b"");
    let asked = request(&requests);
    let connected = Connected::new(&client, &server);
    // A request without an answer.
    let (asking, _) = server.bind();
    let asked_of_client = asks(&asking, &theirs, listening.local(), b"");
    let unanswered = request(&listening_events);

    client.nic.remove();
    assert_eq!(taken(&reply), Err(Error::DeviceRemoved));
    assert!(matches!(taken(&connected.active.2), CmEvent::Closed));
    ends(&connected.passive.2);
    assert!(matches!(taken(&asked_of_client), Ok(CmReply::Rejected(_))));
    let refused = bound.listen(1).wait();
    assert_eq!(refused, Err(Error::DeviceRemoved));
    assert_eq!(block_on(client.device.fatal()), Error::DeviceRemoved);
    drop((
        asked, unanswered, connecting, listening, bound, connected, ours,
    ));
    let Host {
        mr, cq, pd, device, ..
    } = client;
    drop((mr, cq, pd));
    until(|| device.objects() == 0);
    device.close().wait().unwrap();
}

#[test]
fn a_thousand_connections() {
    /// Connects under way at a time: fewer than the listener's backlog.
    const AT_A_TIME: usize = 10;
    let (client, server) = (Host::new(), Host::new());
    let (listener, requests) = server.listen();
    let count = if is_our_own() { 1000 } else { 200 };
    let mut connections = Vec::new();
    while connections.len() < count {
        let mut asked = Vec::new();
        for _ in 0..AT_A_TIME {
            let ((endpoint, events), qp) = (client.bind(), client.qp());
            let reply = asks(&endpoint, &qp, listener.local(), b"one of many");
            asked.push((endpoint, events, qp, reply));
        }
        let (sender, accepted) = channel();
        let mut answered = Vec::new();
        for _ in 0..AT_A_TIME {
            let (endpoint, qp) = (request(&requests).endpoint, server.qp());
            let sender = sender.clone();
            let _ = endpoint
                .accept(&qp, wanted(), Vec::new())
                .issue(move |result| tell(&sender, result));
            answered.push((endpoint, qp));
        }
        for (endpoint, events, qp, reply) in asked {
            let reply = taken(&reply);
            assert!(matches!(reply, Ok(CmReply::Established(_))), "{reply:?}");
            taken(&accepted).unwrap();
            connections.push((endpoint, events, qp));
        }
        connections.extend(answered.into_iter().map(|(endpoint, qp)| {
            let (sink, events) = told();
            endpoint.events_to(sink);
            (endpoint, events, qp)
        }));
    }
    let halves = connections.len();
    assert!(halves >= count, "{halves} ends");
    drop(connections);
    drop(listener);
    until(|| client.nic.objects() == 3 && server.nic.objects() == 3);
}

#[test]
fn the_provider_says_how_connections_are_made() {
    let host = Host::new();
    let said = host.device.query_provider(1);
    let expected = match said.transport {
        TransportType::Iwarp => PortCaps::IW_CM,
        _ => PortCaps::RDMA_CM,
    };
    assert!(said.caps.contains(expected) && said.caps.has_cm_verbs());
    assert!(!said.caps.intersects(PortCaps::IB_CM | PortCaps::MAD));
    assert!(said.cm.private_data >= 56 && said.cm.max_ird > 0);
}
