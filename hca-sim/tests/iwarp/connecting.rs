//! Connections: made, refused, rejected, ended.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hca_sim::clock::VirtualClock;
use rustix::net::{AddressFamily, SocketType};
use verbs_core::{Access, CmEndpoint, CmEvent, CmReply, CmSink, QpAttr, QpState, Recv, WcStatus};

use crate::support::{Events, Host, PATIENCE, address, connect, param, request, until};

#[test]
fn an_end_that_is_closed_is_told() {
    let mut client = Host::new(address(20, 1));
    let mut server = Host::new(address(20, 2));
    let (ours, mut theirs) = connect(&client, &server);
    let recv = Recv::new(1).into(server.mr.slice(0..64));
    theirs.qp.post_recv(recv).unwrap();
    ours.qp.to_error().wait().unwrap();
    for end in [&ours, &theirs] {
        let event = end.events.recv_timeout(PATIENCE).expect("the end");
        assert!(matches!(event, CmEvent::Disconnected), "{event:?}");
        let event = end.events.recv_timeout(PATIENCE).expect("the last");
        assert!(matches!(event, CmEvent::Closed), "{event:?}");
    }
    assert_eq!(server.completions(1)[0].status, WcStatus::WrFlushErr);
    assert_eq!(theirs.qp.query().wait().unwrap().state, QpState::Err);
    drop((ours, theirs));
    until("nothing is left", || {
        client.hca.cm_endpoints() + server.hca.cm_endpoints() == 0
    });
    let _ = client.completions(0);
}

#[test]
fn connects_are_refused_and_rejected() {
    let client = Host::new(address(21, 1));
    let server = Host::new(address(21, 2));
    let qp = client.qp();
    // There is no listener.
    let (endpoint, _) = client.bind(0);
    let nobody = SocketAddr::new(server.ip, 9);
    let reply = endpoint.connect(&qp, nobody, param(), Vec::new()).wait();
    assert_eq!(reply.unwrap(), CmReply::Refused);
    // The service rejects, and says why.
    let (listener, requests) = server.bind(0);
    listener.listen(4).wait().unwrap();
    let taken = server.device.bind_cm(listener.local(), Events::new().0);
    let taken = taken.wait().map(|endpoint| endpoint.listen(1).wait());
    assert!(!matches!(taken, Ok(Ok(()))), "the port is taken");
    let ask = |text: &[u8]| {
        let (endpoint, _) = client.bind(0);
        let (tell, told) = channel();
        let connecting = endpoint.connect(&qp, listener.local(), param(), text.to_vec());
        let _ = connecting.issue(move |reply| tell.send(reply.unwrap()).unwrap());
        (endpoint, told)
    };
    let (_endpoint, told) = ask(b"please");
    let asked = request(&requests);
    let depths = |param: verbs_core::CmParam| (param.responder_resources, param.initiator_depth);
    assert_eq!(depths(asked.param), depths(param()));
    asked.endpoint.reject(b"no".to_vec()).wait().unwrap();
    let reply = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(reply, CmReply::Rejected(b"no".as_slice().into()));
    // The request is not answered: dropping it rejects it.
    let (_endpoint, told) = ask(b"please");
    drop(request(&requests));
    let reply = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(reply, CmReply::Rejected(Box::default()));
    // More wait than may: two are rejected, and the service answers the others.
    let many: Vec<_> = (0..6).map(|_| ask(b"many")).collect();
    let kept: Vec<_> = (0..4).map(|_| request(&requests)).collect();
    let is_kept = |endpoint: &CmEndpoint| kept.iter().any(|it| it.remote == endpoint.local());
    let (waiting, rejected): (Vec<_>, Vec<_>) = many.iter().partition(|(it, _)| is_kept(it));
    assert_eq!((waiting.len(), rejected.len()), (4, 2));
    for (_, told) in rejected {
        let reply = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(reply, CmReply::Rejected(Box::default()));
    }
    for asked in &kept {
        asked.endpoint.reject(b"later".to_vec()).wait().unwrap();
    }
    for (_, told) in waiting {
        let reply = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(reply, CmReply::Rejected(b"later".as_slice().into()));
    }
}

/// Goal: an endpoint whose connect failed connects from the same address when the service has come.
#[test]
fn a_failed_connect_is_tried_again() {
    let client = Host::new(address(24, 1));
    let server = Host::new(address(24, 2));
    let qp = client.qp();
    let (endpoint, events) = client.bind(0);
    let (listener, requests) = server.bind(0);
    let ask = || endpoint.connect(&qp, listener.local(), param(), Vec::new());
    for _ in 0..3 {
        assert_eq!(ask().wait().unwrap(), CmReply::Refused);
    }
    listener.listen(4).wait().unwrap();
    let (tell, told) = channel();
    let _ = ask().issue(move |reply| tell.send(reply.unwrap()).unwrap());
    let asked = request(&requests);
    assert_eq!(asked.remote, endpoint.local());
    let theirs = server.qp();
    let accepting = asked.endpoint.accept(&theirs, param(), Vec::new());
    accepting.wait().unwrap();
    let reply = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(reply, CmReply::Established(Box::default()));
    assert!(events.try_recv().is_err(), "the failures left nothing");
}

/// Whether the peer has closed, and not only been silent for [`PATIENCE`].
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    match stream.read(&mut [0; 16]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Goal: peers that are not RDMA are closed, and keep no others out.
#[test]
fn strangers_are_closed_and_keep_nobody_out() {
    let client = Host::new(address(22, 1));
    let server = Host::new(address(22, 2));
    let (listener, requests) = server.bind(0);
    listener.listen(4).wait().unwrap();
    let at = listener.local();
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(at).unwrap()).collect();
    let mut wrong = TcpStream::connect(at).unwrap();
    wrong.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert!(is_closed(&mut wrong));
    // Another one asks and is heard.
    let qp = client.qp();
    let (endpoint, _) = client.bind(0);
    let _ = endpoint.connect(&qp, at, param(), Vec::new()).issue(drop);
    let asked = request(&requests);
    drop(asked);
    // The silent ones end by themselves.
    for mut stream in silent {
        assert!(is_closed(&mut stream));
    }
}

/// Goal: a service that does not speak MPA, or nothing at all, ends a connect.
#[test]
fn services_of_other_kinds_end_a_connect() {
    let client = Host::new(address(23, 1));
    let listener = TcpListener::bind((address(23, 2), 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let qp = client.qp();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail\r\n").unwrap();
        let (stream, _) = listener.accept().unwrap();
        drop(stream);
    });
    for _ in 0..2 {
        let (endpoint, _) = client.bind(0);
        let reply = endpoint.connect(&qp, at, param(), Vec::new()).wait();
        assert_eq!(reply.unwrap(), CmReply::Rejected(Box::default()));
    }
    other.join().unwrap();
}

/// Goal: a connect whose peer says nothing ends after 10 s at either step: the peer takes no connection, or it takes one, at once
/// or later, and sends no Reply. Method: services of all three kinds. The late one has a full queue at first, and takes the
/// connection when the system asks it again.
#[test]
fn services_that_say_nothing_end_a_connect() {
    let clock = VirtualClock::new();
    let client = Host::in_turns(address(26, 1), &clock);
    let mute = TcpListener::bind((address(26, 2), 0)).unwrap();
    let (full, _callers) = full_service(address(26, 3));
    let (late, _others) = full_service(address(26, 4));
    let services = [&mute, &full, &late].map(|service| service.local_addr().unwrap());
    let qp = client.qp();
    let (tell, told) = channel();
    let _asked = services.map(|at| {
        let ((endpoint, _), tell) = (client.bind(0), tell.clone());
        let connecting = endpoint.connect(&qp, at, param(), Vec::new());
        let _ = connecting.issue(move |reply| tell.send((at, reply.unwrap())).unwrap());
        endpoint
    });
    let _first = taken_from(&client, &mute);
    clock.advance(Duration::from_secs(3));
    let _second = taken_from(&client, &late);
    let ended = |after| {
        clock.advance(Duration::from_millis(after));
        client.hca.turn();
        let mut ended: Vec<_> = told.try_iter().collect();
        ended.sort_by_key(|&(at, _)| at);
        ended
    };
    let timed_out = |at: SocketAddr| (at, CmReply::TimedOut);
    assert_eq!(ended(6_999), []);
    assert_eq!(ended(1), [services[0], services[1]].map(timed_out));
    assert_eq!(ended(2_999), []);
    assert_eq!(ended(1), [timed_out(services[2])]);
}

/// Takes the client's connection from a service's queue, and waits for its Request.
fn taken_from(client: &Host, service: &TcpListener) -> TcpStream {
    let mut stream = loop {
        let (stream, from) = service.accept().unwrap();
        if from.ip() == client.ip {
            break stream;
        }
    };
    stream.set_nonblocking(true).unwrap();
    turns_until(client, "a Request", || stream.read(&mut [0; 64]).ok());
    stream
}

/// A service whose queue is full: it answers no further connection. With it the callers that fill it.
fn full_service(ip: IpAddr) -> (TcpListener, Vec<TcpStream>) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(ip, 0)).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let service = TcpListener::from(socket);
    let at = service.local_addr().unwrap();
    let wait = Duration::from_millis(300);
    let callers = std::iter::from_fn(|| TcpStream::connect_timeout(&at, wait).ok());
    let callers = callers.take(64).collect();
    (service, callers)
}

/// Tells when the first event comes, and keeps its thread until it is told to go on.
struct Keeps {
    told: Sender<CmEvent>,
    go_on: Mutex<Receiver<()>>,
}

impl CmSink for Keeps {
    fn event(&self, event: CmEvent) {
        // The test is over with the first one.
        if self.told.send(event).is_ok() {
            let _ = self.go_on.lock().unwrap().recv_timeout(PATIENCE);
        }
    }
}

/// Goal: the end of a connection does not take a queue pair to ERR that its client has reset in the meantime: it may be
/// about to be another connection's. Method: the thread that has found the end is kept in the handler of its event. It is one of the
/// test, which takes the turns of an HCA that has no thread, so that it is known when it has done what it has left to do.
#[test]
fn the_end_of_a_connection_is_not_that_of_the_next() {
    let client = Host::in_turns(address(25, 1), &VirtualClock::new());
    let server = Host::new(address(25, 2));
    let (listener, requests) = server.bind(0);
    listener.listen(4).wait().unwrap();
    let (told, events) = channel();
    let (go_on, goes_on) = channel();
    let go = Mutex::new(goes_on);
    let sink = Arc::new(Keeps { told, go_on: go });
    let local = SocketAddr::new(client.ip, 0);
    let endpoint = client.device.bind_cm(local, sink).wait().unwrap();
    let (ours, theirs) = (client.qp(), server.qp());
    let (tell, answer) = channel();
    let _ = endpoint
        .connect(&ours, listener.local(), param(), Vec::new())
        .issue(move |reply| tell.send(reply).unwrap());
    let asked = turns_until(&client, "a request", || requests.try_recv().ok());
    let CmEvent::ConnectRequest(asked) = asked else {
        panic!("{asked:?}");
    };
    let accepting = asked.endpoint.accept(&theirs, param(), Vec::new());
    accepting.wait().unwrap();
    turns_until(&client, "an answer", || answer.try_recv().ok()).unwrap();
    theirs.modify(QpAttr::to(QpState::Err)).wait().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let finder = thread::spawn({
        let (hca, is_over) = (Arc::clone(&client.hca), Arc::clone(&is_over));
        move || {
            while !is_over.load(Acquire) {
                hca.turn();
                thread::yield_now();
            }
        }
    });
    let event = events.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(event, CmEvent::Disconnected | CmEvent::Closed),
        "{event:?}"
    );
    for state in [QpState::Err, QpState::Reset] {
        ours.modify(QpAttr::to(state)).wait().unwrap();
    }
    ours.init(1, Access::LOCAL_WRITE).wait().unwrap();
    drop(events);
    drop(go_on);
    is_over.store(true, Release);
    finder.join().unwrap();
    assert_eq!(ours.query().wait().unwrap().state, QpState::Init);
}

/// Takes turns of an HCA that has no thread until there is something.
fn turns_until<T>(host: &Host, what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    until(what, || {
        host.hca.turn();
        found = there();
        found.is_some()
    });
    found.unwrap()
}
