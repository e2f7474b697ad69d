//! What the same bytes cost without verbs: through sockets of the loopback interface, both ends in one thread.

use std::hint::black_box;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// The longest datagram here: a message that is longer is several.
const DATAGRAM: usize = 32 << 10;

/// Two sockets of UDP, each connected to the other.
#[derive(Debug)]
pub struct Udp {
    ends: [UdpSocket; 2],
    bytes: Vec<u8>,
    into: Vec<u8>,
}

impl Udp {
    /// For messages of so many bytes.
    ///
    /// # Panics
    /// If the system has no sockets.
    pub fn new(bytes: usize) -> Self {
        let ends = [(); 2].map(|()| UdpSocket::bind(HERE).expect("a port"));
        for (one, other) in [(0, 1), (1, 0)] {
            let to = ends[other].local_addr().expect("it is bound");
            ends[one].connect(to).expect("an address");
        }
        Self {
            ends,
            bytes: vec![7; bytes],
            into: vec![0; DATAGRAM],
        }
    }

    /// That many messages, each sent and received, in datagrams of 32 KiB at most.
    pub fn send(&mut self, times: u64) {
        let [from, to] = &self.ends;
        for _ in 0..times {
            for part in self.bytes.chunks(DATAGRAM) {
                from.send(black_box(part)).expect("it is connected");
                let got = to.recv(&mut self.into).expect("it was sent");
                assert_eq!(got, part.len());
            }
        }
    }
}

/// Two ends of one connection of TCP.
#[derive(Debug)]
pub struct Tcp {
    ends: [TcpStream; 2],
    bytes: Vec<u8>,
    into: Vec<u8>,
}

impl Tcp {
    /// For messages of so many bytes.
    ///
    /// # Panics
    /// If the system has no sockets.
    pub fn new(bytes: usize) -> Self {
        let listener = TcpListener::bind(HERE).expect("a port");
        let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let theirs = listener.accept().expect("the peer has connected").0;
        for stream in [&ours, &theirs] {
            stream.set_nodelay(true).expect("an option");
            stream.set_nonblocking(true).expect("an option");
        }
        Self {
            ends: [ours, theirs],
            bytes: vec![7; bytes],
            into: vec![0; bytes],
        }
    }

    /// That many messages, each written and read whole.
    pub fn send(&mut self, times: u64) {
        for _ in 0..times {
            let [from, to] = &mut self.ends;
            carry(from, to, &self.bytes, &mut self.into);
        }
    }

    /// That many requests of so many bytes, each with a message as its answer.
    pub fn ask(&mut self, request: usize, times: u64) {
        let (question, mut asked) = (vec![1; request], vec![0; request]);
        for _ in 0..times {
            let [a, b] = &mut self.ends;
            carry(a, b, &question, &mut asked);
            carry(b, a, &self.bytes, &mut self.into);
        }
    }
}

/// Writes all, and reads it at the other end.
fn carry(from: &mut TcpStream, to: &mut TcpStream, mut bytes: &[u8], mut into: &mut [u8]) {
    while !into.is_empty() {
        if !bytes.is_empty() {
            let n = waited(from.write(black_box(bytes)));
            bytes = &bytes[n..];
        }
        let n = waited(to.read(into));
        into = &mut into[n..];
    }
}

/// Bytes that were moved; none when the other end must move first.
fn waited(moved: std::io::Result<usize>) -> usize {
    match moved {
        Ok(n) => n,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("a stream within this host failed: {error}"),
    }
}

/// That many connections of TCP, each made, accepted and closed at both ends.
///
/// The listener is new each time: ports of ends that were closed stay taken for a while, but only towards it.
///
/// # Panics
/// If the system has no sockets.
pub fn connections(times: u64) {
    let listener = TcpListener::bind(HERE).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    for _ in 0..times {
        let ours = TcpStream::connect(address).expect("it listens");
        drop((ours, listener.accept().expect("it has connected")));
    }
}
