//! Listeners under strangers: a request may be forged, and may never be confirmed. Programs see connections that are
//! established, and nothing else.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;

use futures::executor::block_on;
use futures::future::{Either, join, select};
use futures::{FutureExt, StreamExt};
use hca_sim::{Hca, Udp};
use verbs_io::{Connection, Endpoint, Error, Listener, Opening};

use crate::pair::{AT, endpoints, message, text};

#[path = "../../verbs-cli/examples/hostile/forge.rs"]
mod forge;

/// Bytes of the IPv4 and UDP headers, which are counted with what they carry.
const HEADERS: usize = 28;
const PORT: u16 = 7471;

fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 191, n)
}

/// An endpoint over UDP of the machine's loopback interface.
async fn endpoint(n: u8, options: impl Fn(Opening) -> Opening) -> (Endpoint, Arc<Hca>) {
    let hca = Hca::over(Udp::bind(&[IpAddr::from(ip(n))]).unwrap()).build();
    let opening = Endpoint::on(hca.open().await.unwrap());
    (options(opening).open().await.unwrap(), hca)
}

/// Addresses of third parties, in whose names requests are sent.
struct Forger {
    sockets: Vec<(Ipv4Addr, UdpSocket)>,
    to: SocketAddrV4,
    number: u32,
    sent: usize,
    came: usize,
}

impl Forger {
    fn new(addresses: std::ops::Range<u8>, to: Ipv4Addr) -> Self {
        let socket = |n| (ip(n), forge::socket(ip(n)).unwrap());
        Self {
            sockets: addresses.map(socket).collect(),
            to: SocketAddrV4::new(to, PORT),
            number: 0,
            sent: 0,
            came: 0,
        }
    }

    /// One request in the name of each of them.
    fn send(&mut self) {
        for (from, socket) in &self.sockets {
            let request = forge::request(*from, self.to, self.number, &[]);
            self.number += 1;
            // What the system cannot take is lost, as on any network.
            let to = SocketAddrV4::new(*self.to.ip(), 4791);
            if socket.send_to(&request, to).is_ok() {
                self.sent += request.len() + HEADERS;
            }
        }
    }

    /// Waits until each of the addresses has got something: their requests are half open, or were refused.
    fn wait(&mut self) {
        let mut buffer = [0; 2048];
        for (_, socket) in &self.sockets {
            socket.set_nonblocking(false).unwrap();
            self.came += HEADERS + socket.recv(&mut buffer).unwrap();
            socket.set_nonblocking(true).unwrap();
        }
    }

    /// Bytes that were sent, and bytes that have come.
    fn bytes(&mut self) -> [usize; 2] {
        let mut buffer = [0; 2048];
        for (_, socket) in &self.sockets {
            while let Ok(len) = socket.recv(&mut buffer) {
                self.came += HEADERS + len;
            }
        }
        [self.sent, self.came]
    }
}

/// The loop that programs write: one client after the other, each until it has gone.
async fn serve(clients: &mut Listener, mut count: u32) -> Result<(), Error> {
    loop {
        let client = clients.accept().await;
        while let Some(message) = client.recv().await? {
            client.send(message).await?;
        }
        count -= 1;
        if count == 0 {
            break;
        }
    }
    Ok(())
}

/// An honest client: connects, asks and closes.
async fn ask(net: &Endpoint) -> Result<(), Error> {
    let conn = net.connect((IpAddr::from(ip(1)), PORT)).await?;
    conn.send(message(&conn, "honest").await).await?;
    assert_eq!(text(&conn).await.unwrap(), "honest");
    conn.close().await
}

/// Goal: forged requests neither end the loop that programs write, nor hold it up, nor take places or buffers,
/// nor have more than three times their bytes sent to third parties. Method: an endpoint with two places,
/// one forged request, then far more than there are places or half-open ones; honest clients in between.
#[test]
fn forged_requests_take_nothing_from_honest_clients() {
    block_on(async {
        let (server, _hca) = endpoint(1, |opening| opening.connections(2)).await;
        let (client, _other) = endpoint(2, |opening| opening).await;
        let at = (IpAddr::from(ip(1)), PORT);
        let mut clients = server.listen(at).half_open(16).await.unwrap();
        let mut one = Forger::new(3..4, ip(1));
        let mut many = Forger::new(4..12, ip(1));
        // What a connection takes for good is there after the first.
        let (asked, served) = join(ask(&client), serve(&mut clients, 1)).await;
        asked.and(served).unwrap();
        let buffers = server.usage().buffers;

        one.send();
        one.wait();
        assert_eq!(clients.stats().half_open, 1);
        let (asked, served) = join(ask(&client), serve(&mut clients, 1)).await;
        asked.and(served).unwrap();

        for round in 0..10 {
            (0..10).for_each(|_| many.send());
            many.wait();
            let (asked, served) = join(ask(&client), serve(&mut clients, 1)).await;
            asked
                .and(served)
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert!(server.usage().connections <= 2, "{:?}", server.usage());
        }
        let stats = clients.stats();
        assert!(stats.half_open <= 16, "{stats:?}");
        assert!(stats.gave_way > 0, "{stats:?}");
        assert_eq!((stats.established, stats.no_place), (12, 0), "{stats:?}");
        assert_eq!(server.usage().buffers, buffers, "they have none");
        for forger in [&mut one, &mut many] {
            let [sent, came] = forger.bytes();
            assert!(came > 0, "the requests were worth an answer");
            assert!(came <= 3 * sent, "{sent} bytes got {came}");
        }
    });
}

/// Goal: one address has its share of the half-open ones, and no more. Method: one that fills it, beside one request
/// of another, which keeps its place.
#[test]
fn one_address_does_not_take_the_room_of_others() {
    block_on(async {
        let (server, _hca) = endpoint(21, |opening| opening).await;
        let at = (IpAddr::from(ip(21)), PORT);
        let clients = server.listen(at).half_open(8).await.unwrap();
        let mut other = Forger::new(22..23, ip(21));
        let mut greedy = Forger::new(23..24, ip(21));
        other.send();
        other.wait();
        for _ in 0..12 {
            greedy.send();
            greedy.wait();
        }
        // Refusals of those that gave way have been received among the answers.
        while clients.stats().gave_way < 4 {
            greedy.send();
            greedy.wait();
        }
        assert_eq!(clients.stats().half_open, 5, "{:?}", clients.stats());
    });
}

/// Two endpoints on a loopback link, and a listener of the second.
async fn listening(options: impl Fn(Opening) -> Opening) -> ([Endpoint; 2], Listener) {
    let (nets, _hcas) = endpoints(options).await;
    let clients = nets[1].listen(AT).await.unwrap();
    (nets, clients)
}

/// Goal: connections are made while the program is busy elsewhere, as many as there are places; what comes then is
/// refused, until a place is free.
#[test]
fn connections_are_made_without_the_loop() {
    block_on(async {
        let (nets, mut clients) = listening(|opening| opening.connections(2).window(1)).await;
        let first = nets[0].connect(AT).await.unwrap();
        first.send(message(&first, "early").await).await.unwrap();
        let second = nets[0].connect(AT).await.unwrap();
        assert_eq!(clients.stats().established, 2);
        let seen = clients.accept().await;
        assert_eq!(text(&seen).await.unwrap(), "early");
        drop((first, seen));
        while nets.iter().any(|net| net.usage().connections > 1) {
            std::thread::yield_now();
        }
        let third = nets[0].connect(AT).await.unwrap();
        assert_eq!(clients.stats().established, 3);
        drop((second, third));
    });
}

/// Goal: a client that there is no place for is told, at once, and the listener goes on.
#[test]
fn a_client_without_a_place_is_refused() {
    block_on(async {
        let places = Cell::new(4);
        let (nets, _hcas) = endpoints(|opening| opening.connections(places.replace(1))).await;
        let mut clients = nets[1].listen(AT).await.unwrap();
        let first = nets[0].connect(AT).await.unwrap();
        let error = nets[0].connect(AT).await.unwrap_err();
        assert!(matches!(error, Error::Connect(_)), "{error}");
        assert_eq!(clients.stats().no_place, 1);
        drop(clients.accept().await);
        first.closed().await;
        while nets[1].usage().connections > 0 {
            std::thread::yield_now();
        }
        let _second = nets[0].connect(AT).await.unwrap();
        assert!(clients.next().now_or_never().is_some());
    });
}

/// Goal: a program sees requests before they are answered, if it wants to: it refuses one by its private data, and
/// answers another; the connection has what the peer said.
#[test]
fn a_screen_sees_requests() {
    block_on(async {
        let (nets, _hcas) = endpoints(|opening| opening).await;
        let screened = nets[1].listen(AT).screen(|request| {
            match request.private_data().starts_with(b"right") {
                true => request.accept_with(b"welcome"),
                false => request.refuse(b"wrong word"),
            }
        });
        let mut clients = screened.await.unwrap();
        let wrong = nets[0].connect(AT).private_data(b"wrong").await;
        let Err(Error::Connect(why)) = wrong else {
            panic!("{wrong:?}");
        };
        let verbs_cm::Error::Rejected(why) = *why else {
            panic!("{why}");
        };
        assert!(why.private_data.starts_with(b"wrong word"), "{why:?}");
        let right = nets[0].connect(AT).private_data(b"right").await.unwrap();
        assert!(right.private_data().starts_with(b"welcome"));
        let client: Connection = clients.accept().await;
        assert!(client.private_data().starts_with(b"right"));
        let stats = clients.stats();
        assert_eq!((stats.refused, stats.established), (1, 1));
    });
}

/// Goal: with a listener go its address, its half-open connections and those that were not taken.
#[test]
fn a_listener_that_is_dropped_leaves_nothing() {
    block_on(async {
        let (nets, clients) = listening(|opening| opening).await;
        let conn = nets[0].connect(AT).await.unwrap();
        drop(clients);
        assert!(conn.recv().await.unwrap().is_none(), "it was closed");
        let mut clients = nets[1].listen(AT).await.unwrap();
        let _conn = nets[0].connect(AT).await.unwrap();
        let late = std::pin::pin!(clients.next());
        assert!(matches!(
            select(late, std::future::ready(())).await,
            Either::Left(_)
        ));
    });
}
