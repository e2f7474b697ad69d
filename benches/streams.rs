//! iWARP beside TCP itself: the same bytes, the same memory, one thread at both ends, in turns in one run.
//!
//! `cargo bench -p verbs-benches --bench streams` prints, for each subject, both times and their ratio, of the best of
//! several rounds: what else runs on the machine only adds to them. The bars are those of docs/IWARP.md.
//!
//! It keeps a timer of its own, and is no bench of Criterion: the ratios hold only if both take turns. Criterion measures one
//! subject whole before the next, and reports what is typical, not what is best.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hca_sim::{Adopted, Hca, adopt};
use verbs_core::{
    Access, CmEndpoint, CmEvent, CmParam, CmReply, CmSink, Cq, Device, Memory, Mr, Pd, Qp, QpAttr,
    QpInit, QpState, Recv, Send, Sge, Wc, Write,
};

/// Rounds of each subject; the best one counts.
const ROUNDS: usize = 25;
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const LONGEST: usize = 1 << 20;

fn main() {
    let named = |what: &str| {
        let mut names = std::env::args().skip(1).filter(|arg| !arg.starts_with('-'));
        let first = names.next();
        first.is_none_or(|first| what.contains(&first))
    };
    // The interface of the test harness, for a look at whether it runs at all.
    let smoke = std::env::args().any(|arg| arg == "--test");
    let rounds = if smoke { 1 } else { ROUNDS };
    if named("write") {
        writes(rounds, smoke);
    }
    if named("ping") {
        let times = if smoke { 1 } else { 500 };
        let (mut ends, mut tcp) = (Ends::new(true), Tcp::new());
        let both = best(rounds, [&mut || tcp.ping(times), &mut || ends.ping(times)]);
        told("64 bytes one way", both, 2 * times);
    }
    if named("connect") {
        let times = if smoke { 1 } else { 50 };
        let mut connects = Connects::new();
        let listener = TcpListener::bind((HERE, 0)).expect("a port");
        let both = best(
            rounds,
            [&mut || connect_tcp(&listener, times), &mut || {
                connects.iwarp(times);
            }],
        );
        told("connect, accept, close", both, times);
    }
}

fn told(what: &str, [raw, ours]: [Duration; 2], times: u32) {
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(times) / 1000.0;
    println!(
        "{what}: TCP {:.2} us, iWARP {:.2} us, {:.2} times as long",
        each(raw),
        each(ours),
        each(ours) / each(raw)
    );
}

fn writes(rounds: usize, smoke: bool) {
    for len in [64 << 10, 256 << 10, 1 << 20] {
        for has_crc in [true, false] {
            let mut ends = Ends::new(has_crc);
            let mut tcp = Tcp::new();
            let times = if smoke { 1 } else { (16 << 20) / len };
            let [raw, ours] = best(
                rounds,
                [&mut || tcp.stream(len, times), &mut || {
                    ends.write(len, times);
                }],
            );
            let crc = if has_crc { "with CRC" } else { "without CRC" };
            let rate = |time: Duration| len as f64 / (time.as_nanos() as f64 / times as f64);
            println!(
                "WRITE of {:4} KiB, {crc:11}: TCP {:5.2} GB/s, iWARP {:5.2} GB/s, {:.2} of it",
                len >> 10,
                rate(raw),
                rate(ours),
                rate(ours) / rate(raw)
            );
        }
    }
}

/// The shortest times of each, taken in turns.
fn best(rounds: usize, mut subjects: [&mut dyn FnMut(); 2]) -> [Duration; 2] {
    let mut best = [Duration::MAX; 2];
    for _ in 0..rounds {
        for (best, subject) in best.iter_mut().zip(&mut subjects) {
            let begun = Instant::now();
            subject();
            *best = (*best).min(begun.elapsed());
        }
    }
    best
}

fn sockets() -> [TcpStream; 2] {
    let listener = TcpListener::bind((HERE, 0)).expect("a port");
    let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let theirs = listener.accept().expect("the peer has connected").0;
    for stream in [&ours, &theirs] {
        stream.set_nodelay(true).expect("an option");
        stream.set_nonblocking(true).expect("an option");
    }
    [ours, theirs]
}

/// TCP itself.
struct Tcp {
    ends: [TcpStream; 2],
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Tcp {
    fn new() -> Self {
        Self {
            ends: sockets(),
            from: vec![7; LONGEST],
            to: vec![1; LONGEST],
        }
    }

    /// Bytes from one buffer to the other.
    fn stream(&mut self, len: usize, times: usize) {
        let [out, into] = &mut self.ends;
        for _ in 0..times {
            let (mut sent, mut got) = (0, 0);
            while got < len {
                if sent < len {
                    sent += some(out.write(&self.from[sent..len]));
                }
                got += some(into.read(&mut self.to[got..len]));
            }
        }
    }

    fn ping(&mut self, times: u32) {
        let [a, b] = &mut self.ends;
        forth_and_back(a, b, times, |from, to| {
            assert_eq!(some(from.write(&self.from[..64])), 64);
            let mut got = 0;
            while got < 64 {
                got += some(to.read(&mut self.to[got..64]));
            }
        });
    }
}

/// Sends from the one to the other and back, so many times.
fn forth_and_back<E>(a: &mut E, b: &mut E, times: u32, mut send: impl FnMut(&mut E, &mut E)) {
    for _ in 0..times {
        send(a, b);
        send(b, a);
    }
}

/// How many bytes there were, or room for.
fn some(moved: std::io::Result<usize>) -> usize {
    match moved {
        Ok(count) => count,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

/// An RNIC.
struct Host {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
    device: Device,
    hca: Arc<Hca>,
}

impl Host {
    fn new() -> Self {
        let hca = Hca::iwarp(&[IpAddr::V4(HERE)])
            .expect("descriptors")
            .build();
        let device = hca.open().wait().expect("a device");
        let pd = device.alloc_pd().wait().expect("a domain");
        let cq = device.create_cq(256).wait().expect("a queue");
        let memory = Memory::alloc(LONGEST).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = pd.register(memory, access).wait().expect("a region");
        mr.memory().fill(0..LONGEST, 7).expect("it is in range");
        let init = QpInit::rc(&cq, &cq).depth(64, 64);
        let qp = pd.create_qp(init).wait().expect("a queue pair");
        qp.init(1, access).wait().expect("it is new");
        Self {
            qp,
            cq,
            mr,
            _pd: pd,
            device,
            hca,
        }
    }

    fn poll(&mut self) -> usize {
        let mut wcs = [Wc::default(); 4];
        let polled = self.cq.poll(&mut wcs);
        assert!(polled.iter().all(Wc::is_ok), "{polled:?}");
        polled.len()
    }
}

/// Two of them, connected.
struct Ends {
    a: Host,
    b: Host,
}

impl Ends {
    fn new(has_crc: bool) -> Self {
        let (a, b) = (Host::new(), Host::new());
        for (host, stream) in [&a, &b].into_iter().zip(sockets()) {
            let mut adopted = Adopted::new(true);
            adopted.has_crc = has_crc;
            adopt(&host.qp, stream, adopted).expect("a connection");
        }
        Self { a, b }
    }

    /// WRITEs, of which the receiver is told the last byte.
    fn write(&mut self, len: usize, times: usize) {
        let Self { a, b } = self;
        for _ in 0..times {
            b.qp.post_recv(Recv::new(1)).expect("there is room");
            let write = Write::new(2, b.mr.remote(0)).from(a.mr.slice(0..len));
            a.qp.post_send(write.imm(3).signaled())
                .expect("there is room");
            let (mut sent, mut told) = (0, 0);
            while sent + told < 2 {
                sent += a.poll();
                told += b.poll();
            }
        }
    }

    fn ping(&mut self, times: u32) {
        forth_and_back(&mut self.a, &mut self.b, times, |from, to| {
            let place: Sge = to.mr.slice(64..128);
            let recv = Recv::new(1).into(place);
            to.qp.post_recv(recv).expect("there is room");
            let send = Send::new(2).from(from.mr.slice(0..64)).signaled();
            from.qp.post_send(send).expect("there is room");
            while to.poll() == 0 {}
            while from.poll() == 0 {}
        });
    }
}

/// Events of an endpoint.
struct Events(std::sync::mpsc::Sender<CmEvent>);

impl CmSink for Events {
    fn event(&self, event: CmEvent) {
        // The receiver may have been dropped.
        let _ = self.0.send(event);
    }
}

/// Connections of TCP itself that are made and closed.
fn connect_tcp(listener: &TcpListener, times: u32) {
    let address = listener.local_addr().expect("bound");
    for _ in 0..times {
        let ours = TcpStream::connect(address).expect("it listens");
        let theirs = listener.accept().expect("the peer has connected");
        drop((ours, theirs));
    }
}

/// Connections that are made and closed.
struct Connects {
    a: Host,
    b: Host,
    listener: CmEndpoint,
    requests: std::sync::mpsc::Receiver<CmEvent>,
}

impl Connects {
    fn new() -> Self {
        let (a, b) = (Host::new(), Host::new());
        let (sender, requests) = channel();
        let local = SocketAddr::from((HERE, 0));
        let listener = b.device.bind_cm(local, Arc::new(Events(sender)));
        let listener = listener.wait().expect("an address");
        listener.listen(16).wait().expect("it is bound");
        Self {
            a,
            b,
            listener,
            requests,
        }
    }

    fn iwarp(&mut self, times: u32) {
        let Self { a, b, requests, .. } = self;
        let param = CmParam {
            responder_resources: 8,
            initiator_depth: 8,
            ..CmParam::default()
        };
        let to = self.listener.local();
        for _ in 0..times {
            let (sender, _ended) = channel();
            let local = SocketAddr::from((HERE, 0));
            let endpoint = a.device.bind_cm(local, Arc::new(Events(sender)));
            let endpoint = endpoint.wait().expect("an address");
            let (tell, told) = channel();
            let _ = endpoint
                .connect(&a.qp, to, param, Vec::new())
                .issue(move |reply| drop(tell.send(reply)));
            let request = loop {
                b.hca.turn();
                // Others are of the connection before.
                if let Ok(CmEvent::ConnectRequest(request)) = requests.try_recv() {
                    break request;
                }
            };
            let accepted = request.endpoint.accept(&b.qp, param, Vec::new());
            accepted.wait().expect("it is asked for");
            let reply = loop {
                a.hca.turn();
                if let Ok(reply) = told.try_recv() {
                    break reply.expect("a connection");
                }
            };
            assert!(matches!(reply, CmReply::Established(_)), "{reply:?}");
            drop((endpoint, request));
            for host in [&*a, &*b] {
                for state in [QpState::Err, QpState::Reset] {
                    let change = host.qp.modify(QpAttr::to(state));
                    change.wait().expect("any state goes there");
                }
                let access = Access::LOCAL_WRITE | Access::REMOTE;
                host.qp.init(1, access).wait().expect("it is reset");
            }
        }
    }
}
