//! Peers whose numbers a port mapper names (C13). Method: the mapper of the peer's host is one of this test's, at UDP port 3935 of
//! the peer's address, and says what a test wants; listeners are ordinary ones of ours.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use hca_sim::clock::Clock;
use hca_sim::port_space::TcpPortSpace;
use hca_sim::port_space::mapper::{MapperEvent, MapperSocket, PortMapper};
use hca_sim::wire::iwarp::{MAPPER_PORT, MapperKind, MapperMessage};
use hca_sim::{Hca, Tcp};
use verbs_core::{CmEndpoint, CmEvent, CmReply, Error, Issued, Qp};

use crate::support::{Host, PATIENCE, address, param, request};

fn asking(ip: IpAddr) -> Host {
    let link = Tcp::on(&[ip]).unwrap().with_port_mapper();
    Host::of(ip, Hca::over_streams(link))
}

fn listening(host: &Host) -> (CmEndpoint, Receiver<CmEvent>) {
    let (listener, requests) = host.bind(0);
    listener.listen(4).wait().unwrap();
    (listener, requests)
}

/// Takes the next request, and rejects it.
fn reject(requests: &Receiver<CmEvent>) {
    let rejecting = request(requests).endpoint;
    rejecting.reject(Vec::new()).wait().unwrap();
}

/// A connect under way.
struct Attempt {
    _endpoint: CmEndpoint,
    _qp: Qp,
    told: Receiver<Result<CmReply, Error>>,
}

impl Attempt {
    fn to(client: &Host, to: SocketAddr) -> Self {
        let (qp, (endpoint, _events)) = (client.qp(), client.bind(0));
        let (tell, told) = channel();
        let _ = endpoint
            .connect(&qp, to, param(), Vec::new())
            .issue(move |reply| tell.send(reply).unwrap());
        Self {
            _endpoint: endpoint,
            _qp: qp,
            told,
        }
    }

    fn reply(&self) -> Result<CmReply, Error> {
        self.told.recv_timeout(PATIENCE).expect("an answer")
    }
}

/// What a mapper makes of a message.
type Says = Box<dyn Fn(MapperMessage) -> Vec<MapperMessage> + Send>;

/// A mapper at that address, which answers each datagram with what `answer` makes of it.
fn mapper(ip: IpAddr, answer: impl Fn(MapperMessage) -> Vec<MapperMessage> + Send + 'static) {
    let socket = UdpSocket::bind((ip, MAPPER_PORT)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 256];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let asked = MapperMessage::parse(&bytes[..len]).unwrap();
            for message in answer(asked) {
                let len = message.emit(&mut bytes).unwrap();
                socket.send_to(&bytes[..len], from).unwrap();
            }
        }
    });
}

/// Goal: the number that a program names stands for another, which the peer's mapper holds; the connect gets to it, and the mapper
/// learns from which address.
#[test]
fn a_connect_goes_where_the_peers_mapper_says() {
    let (client, server) = (asking(address(70, 1)), Host::new(address(70, 2)));
    let (listener, requests) = listening(&server);
    let real = listener.local();
    // The service is known by a number that nobody listens at.
    let named = SocketAddr::new(server.ip, 7);
    let (tell, asked) = channel();
    mapper(server.ip, move |message| match message.kind {
        MapperKind::Request { .. } => {
            tell.send(message).unwrap();
            vec![MapperMessage {
                kind: MapperKind::Accept,
                accept_port: real.port(),
                ..message
            }]
        }
        _ => Vec::new(),
    });
    let attempt = Attempt::to(&client, named);
    let request = request(&requests);
    assert_eq!(request.endpoint.local(), real);
    let asked = asked.recv_timeout(PATIENCE).unwrap();
    let at = SocketAddr::new(asked.accept_addr, asked.accept_port);
    assert_eq!(at, named);
    // The number of the connect is real, and that of the connection.
    let from = SocketAddr::new(asked.connect_addr, asked.connect_port);
    assert_eq!(from, request.remote);
    let MapperKind::Request {
        mapped_port,
        mapped_addr,
    } = asked.kind
    else {
        panic!("{asked:?}");
    };
    assert_eq!(SocketAddr::new(mapped_addr, mapped_port), request.remote);
    request.endpoint.reject(b"seen".to_vec()).wait().unwrap();
    let seen = CmReply::Rejected(b"seen".as_slice().into());
    assert_eq!(attempt.reply(), Ok(seen));
}

/// Goal: numbers mean what they say where there is no mapper, which is known at once; where the mapper rejects the question;
/// where it says nothing, after two seconds; and where it names another host, or answers what was not asked.
#[test]
fn a_number_is_real_unless_the_mapper_says_otherwise() {
    let client = asking(address(71, 1));
    let other = address(71, 9);
    let accept = move |message: MapperMessage| MapperMessage {
        kind: MapperKind::Accept,
        accept_port: 9,
        ..message
    };
    let answers: [(u8, Says); 4] = [
        (3, Box::new(|_| Vec::new())),
        (
            4,
            Box::new(|message| {
                let kind = MapperKind::Reject;
                vec![MapperMessage { kind, ..message }]
            }),
        ),
        (
            5,
            Box::new(move |message| {
                vec![MapperMessage {
                    accept_addr: other,
                    ..accept(message)
                }]
            }),
        ),
        (
            6,
            Box::new(move |message| {
                let answer = accept(message);
                // Of other questions, by association and by endpoint.
                let mut wrong = [answer; 2];
                wrong[0].association ^= 1;
                wrong[1].connect_port ^= 1;
                wrong.to_vec()
            }),
        ),
    ];
    let mut servers = vec![(Host::new(address(71, 2)), false)];
    for (n, answer) in answers {
        let server = Host::new(address(71, n));
        mapper(server.ip, answer);
        servers.push((server, n == 3 || n == 6));
    }
    for (server, is_silent) in &servers {
        let (listener, requests) = listening(server);
        let since = Instant::now();
        let attempt = Attempt::to(&client, listener.local());
        reject(&requests);
        let waited = since.elapsed() >= Duration::from_secs(2);
        // A busy machine may take long for either.
        assert!(waited || !is_silent, "{:?}", since.elapsed());
        let reply = attempt.reply();
        assert!(matches!(reply, Ok(CmReply::Rejected(_))), "{reply:?}");
    }
}

/// Goal: a connect that waits for a mapper ends with its endpoint, and its number is free again.
#[test]
fn a_question_ends_with_its_endpoint() {
    let (client, ip) = (asking(address(72, 1)), address(72, 2));
    let silent = UdpSocket::bind((ip, MAPPER_PORT)).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let (qp, (endpoint, _events)) = (client.qp(), client.bind(0));
    let (at, (tell, told)) = (endpoint.local(), channel());
    let connecting = endpoint
        .connect(&qp, SocketAddr::new(ip, 7), param(), Vec::new())
        .issue(move |reply| tell.send(reply).unwrap());
    silent.recv_from(&mut [0; 256]).unwrap();
    let Issued::Pending(connecting) = connecting else {
        panic!("it waits for the mapper");
    };
    assert!(connecting.cancel());
    let reply = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(reply, Err(Error::Cancelled));
    endpoint.unbind().wait().unwrap();
    assert!(client.hca.port_space().unwrap().is_empty());
    drop(std::net::TcpListener::bind(at).unwrap());
}

/// Goal: peers that ask are answered that a listener is where it says, one at all addresses too, and that others are not there;
/// when the last listener has gone, the next mapper of the host has the port.
#[test]
fn listeners_are_answered_for() {
    let server = asking(address(73, 1));
    let (listener, _requests) = listening(&server);
    let (events, _) = crate::support::Events::new();
    let all = server
        .device
        .bind_cm(([0; 4], 0).into(), events)
        .wait()
        .unwrap();
    all.listen(1).wait().unwrap();
    let here = address(73, 2);
    let mapper = PortMapper::new(TcpPortSpace::host(), 1);
    let mut peer = MapperSocket::at((here, 0).into(), mapper, Clock::wall()).unwrap();
    let caller = SocketAddr::new(here, 4000);
    peer.mapper.map(caller).unwrap();
    let mut ask = |port: u16| {
        let to = SocketAddr::new(server.ip, port);
        let now = peer.now();
        peer.mapper.ask(caller, to, now).unwrap();
        let since = Instant::now();
        loop {
            peer.turn().unwrap();
            match peer.mapper.poll_event() {
                Some(MapperEvent::Mapped { mapped, .. }) => break Some(mapped),
                Some(MapperEvent::Rejected { .. }) => break None,
                Some(other) => panic!("{other:?}"),
                None => assert!(since.elapsed() < PATIENCE, "{to} is not answered for"),
            }
            thread::yield_now();
        }
    };
    let at = |port| Some(SocketAddr::new(server.ip, port));
    assert_eq!(ask(listener.local().port()), at(listener.local().port()));
    assert_eq!(ask(all.local().port()), at(all.local().port()));
    assert_eq!(ask(9), None);
    let gone = listener.local().port();
    listener.unbind().wait().unwrap();
    assert_eq!(ask(gone), None);
    assert!(UdpSocket::bind((server.ip, MAPPER_PORT)).is_err());
    all.unbind().wait().unwrap();
    drop(UdpSocket::bind((server.ip, MAPPER_PORT)).unwrap());
}

/// Goal: where another program answers at the port of mappers, listeners work as without.
#[test]
fn another_mapper_of_the_host_is_left_alone() {
    let ip = address(74, 1);
    let _other = UdpSocket::bind((ip, MAPPER_PORT)).unwrap();
    let (client, server) = (Host::new(address(74, 2)), asking(ip));
    let (listener, requests) = listening(&server);
    let attempt = Attempt::to(&client, listener.local());
    reject(&requests);
    assert!(attempt.reply().is_ok());
}

/// Goal: whoever sends to the port of mappers gets no more bytes than it has sent, and keeps nobody else from an answer, nor the
/// device from its work. Method: nonsense, messages of every kind that answer nothing, and questions without end, of which none
/// is acknowledged.
#[test]
fn strangers_at_the_mappers_port_keep_nobody_out() {
    let (server, client) = (asking(address(75, 1)), asking(address(75, 2)));
    let (listener, requests) = listening(&server);
    let at = SocketAddr::new(server.ip, MAPPER_PORT);
    let stranger = UdpSocket::bind((address(75, 9), 0)).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let question = |association: u64, kind| MapperMessage {
        kind,
        accept_port: listener.local().port(),
        connect_port: 9,
        association,
        connect_addr: address(75, 9),
        accept_addr: server.ip,
    };
    let request_kind = MapperKind::Request {
        mapped_port: 9,
        mapped_addr: address(75, 9),
    };
    let (mut sent, mut got, mut bytes) = (0, 0, [0; 256]);
    for n in 0..20_000_u64 {
        let len = match n % 5 {
            0 => n as usize % 200,
            kind => {
                let kinds = [
                    request_kind,
                    MapperKind::Accept,
                    MapperKind::Ack,
                    MapperKind::Reject,
                ];
                let message = question(n, kinds[kind as usize - 1]);
                message.emit(&mut bytes).unwrap()
            }
        };
        // What finds no room is lost, as on any network.
        if stranger.send_to(&bytes[..len], at).is_ok() {
            sent += len;
        }
        while let Ok((len, _)) = stranger.recv_from(&mut bytes) {
            got += len;
        }
    }
    assert!(got <= sent, "{got} bytes for {sent}");
    let attempt = Attempt::to(&client, listener.local());
    reject(&requests);
    assert!(matches!(attempt.reply(), Ok(CmReply::Rejected(_))));
}
