//! Servers under strangers: forged requests, connections that say nothing, addresses of third parties. Beside
//! them one honest client is served, and third parties get at most three times what was sent.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::{Hca, Udp};
use verbs_core::{Access, QpInit};

#[path = "../../examples/hostile/forge.rs"]
mod forge;

use crate::run::{PATIENCE, Place, content};
use crate::wire::{Background, Served, address, free_port};

/// Bytes of the IPv4 and UDP headers, which are counted with what they carry.
const HEADERS: usize = 28;

fn ip(n: u8) -> Ipv4Addr {
    address(n).parse().expect("an address")
}

/// Where a server that says its URL listens.
fn at(served: &Served) -> SocketAddrV4 {
    let at = served.file("");
    let at = at.trim_start_matches("roce://").trim_end_matches('/');
    at.parse().expect("an address")
}

/// Forges requests, from 16 addresses in turns, while `honest` runs; what was sent to the server, and what
/// came back to those addresses.
fn under_flood<T>(to: SocketAddrV4, first: u8, honest: impl FnOnce() -> T) -> (T, [usize; 2]) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let sources: Vec<_> = (first..first + 16)
                .map(|n| (ip(n), forge::socket(ip(n)).expect("a free address")))
                .collect();
            let (mut sent, mut came) = (0, 0);
            for (number, (from, socket)) in (0..).zip(sources.iter().cycle()) {
                let request = forge::request(*from, to, number, &[]);
                // What the system cannot take is lost, as on any network.
                if socket.send_to(&request, to_roce(to)).is_ok() {
                    sent += request.len() + HEADERS;
                }
                came += received(socket);
                if is_over.load(Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
            for (_, socket) in &sources {
                came += received(socket);
            }
            [sent, came]
        });
        let done = honest();
        is_over.store(true, Relaxed);
        (done, flood.join().expect("no panic"))
    })
}

/// Bytes that have come to a socket since it was last asked, with their headers.
fn received(socket: &UdpSocket) -> usize {
    let mut bytes = 0;
    let mut buffer = [0; 65536];
    while let Ok(len) = socket.recv(&mut buffer) {
        bytes += HEADERS + len;
    }
    bytes
}

fn to_roce(to: SocketAddrV4) -> SocketAddrV4 {
    SocketAddrV4::new(*to.ip(), 4791)
}

/// Goal: neither forged requests nor connections that say nothing keep an honest client from being served.
/// Method: as many of both as there are places, several times over, and a copy by each way.
#[test]
fn a_server_of_files_under_strangers() {
    let place = Place::new();
    let served = Served::start(&place, 60, &[]);
    place.write("dir/A", &content(100_000));
    let to = at(&served);
    let silent: Vec<_> = (0..64)
        .map(|_| TcpStream::connect(to).expect("it listens"))
        .collect();
    let ((), [sent, received]) = under_flood(to, 61, || {
        // As many as there are places have come before the first honest one.
        thread::sleep(Duration::from_millis(300));
        for (n, url) in [(80, served.file("A")), (81, served.managed("A"))] {
            let bind = address(n);
            let copy = ["copy", "--quiet", "--bind", &bind, &url, &bind];
            place.verbs(&copy).succeeded();
            assert!(place.read(&bind) == content(100_000));
        }
    });
    assert!(received > 0, "the requests were worth an answer");
    assert!(received <= 3 * sent, "{sent} bytes got {received}");
    drop(silent);
}

/// Goal: a client that names the address of a third party as its own makes the server send nothing of
/// weight there. Method: one that says GET and READY and has a socket where the data is to go.
#[test]
fn a_third_party_gets_no_data() {
    let place = Place::new();
    let served = Served::start(&place, 82, &[]);
    place.write("dir/f", &content(4 << 20));
    let victim = forge::socket(ip(83)).expect("a free address");
    let message = |kind: u16, body: &[u8]| {
        let len = u32::try_from(body.len()).expect("short").to_be_bytes();
        [b"VCPY\0\x01", &kind.to_be_bytes()[..], &len, body].concat()
    };
    let gid = verbs_core::Gid::from(ip(83)).0;
    let sizes = [(1_u32 << 20).to_be_bytes(), 64_u32.to_be_bytes()].concat();
    let get = message(1, &[&sizes, &gid[..], b"f"].concat());
    let end = [&gid[..], &[0, 0, 0x12, 0x34, 0, 0, 0, 1, 5]].concat();
    let ready = message(3, &[&end[..], &[0; 6], &[0x10, 0, 0, 0, 0, 7]].concat());
    let mut stream = TcpStream::connect(at(&served)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream.write_all(&get).expect("it reads");
    assert!(stream.read(&mut [0; 200]).expect("an offer") > 0);
    stream.write_all(&ready).expect("it reads");
    let mut said = Vec::new();
    stream.read_to_end(&mut said).expect("a sentence");
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("no device answers at"), "{said}");
    let (sent, received) = (get.len() + ready.len(), received(&victim));
    assert!(received > 0, "it was asked");
    assert!(received <= 3 * sent, "{sent} bytes got {received}");
}

/// Goal: `rping -s -P` serves an honest client beside forged requests and one that is connected and silent.
#[test]
fn a_ping_server_under_strangers() {
    let place = Place::new();
    let (server, port) = (address(84), free_port());
    let arguments = ["rping", "-s", "-P", "-a", &server, "-p", &port];
    let mut background = Background::start(&place, &arguments);
    let to: SocketAddrV4 = format!("{server}:{port}").parse().expect("an address");
    let ping = |n: u8| {
        let bind = address(n);
        let ping = ["rping", "-c", "-a", &server, "-p", &port, "-I", &bind];
        place.verbs(&[&ping[..], &["-C", "3", "-V"]].concat())
    };
    let since = Instant::now();
    while ping(85).code != Some(0) {
        assert!(!background.has_ended(), "{:?}", background.end());
        assert!(since.elapsed() < PATIENCE, "it does not serve");
    }
    // Connected, and says nothing.
    let silent = block_on(async {
        let link = Udp::bind(&[ip(86).into()]).expect("a free address");
        let device = Hca::over(link).build().open().await.expect("a device");
        let pd = device.alloc_pd().await.expect("a domain");
        let cq = device.create_cq(4).await.expect("a queue");
        let qp = pd.create_qp(QpInit::rc(&cq, &cq)).await.expect("a pair");
        qp.init(1, Access::empty()).await.expect("initialised");
        let connection = verbs_cm::connect(&device, SocketAddr::V4(to), qp).await;
        (connection.expect("connected"), cq, pd, device)
    });
    let ((), [sent, received]) = under_flood(to, 110, || {
        ping(87).succeeded();
        ping(88).succeeded();
    });
    assert!(received > 0 && received <= 3 * sent, "{sent}: {received}");
    drop(silent);
    background.kill();
}
