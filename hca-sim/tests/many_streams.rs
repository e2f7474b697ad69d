//! Goal: an RNIC over TCP has as many connections at once as the host has descriptors for, all of them alive, and nothing
//! is left of them. Method: two processes, as each connection takes a descriptor at either end; each runs this test, and
//! the one that was begun by the other is the client. `VERBS_CONNECTIONS` says how many: 1,000 otherwise.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use hca_sim::Hca;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use verbs_core::{
    Access, CmEndpoint, CmEvent, CmParam, CmReply, CmSink, Cq, Device, Memory, Mr, Pd, Qp, QpInit,
    Recv, Send, Wc,
};

const PATIENCE: Duration = Duration::from_secs(120);
const CONNECTIONS: usize = 1000;
/// How many there are to be.
const COUNT: &str = "VERBS_CONNECTIONS";
/// Where the client finds the server.
const SERVER: &str = "VERBS_CONNECTIONS_TO";
/// Descriptors for everything but the connections.
const OWN: u64 = 100;
/// Bytes of a message.
const LEN: usize = 8;

#[test]
fn connections_are_open_at_once_and_leave_nothing() {
    let count = env::var(COUNT).map_or(CONNECTIONS, |count| count.parse().unwrap());
    claim(count);
    match env::var(SERVER) {
        Ok(at) => client(at.parse().unwrap(), count),
        Err(_) => server(count),
    }
}

/// Raises the limit of open files.
fn claim(count: usize) {
    let need = count as u64 + OWN;
    let before = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, most).unwrap();
    let limit = most.current.unwrap_or(u64::MAX);
    assert!(
        limit >= need,
        "{count} connections need RLIMIT_NOFILE to be {need}, and it may only be {limit}: raise it with `ulimit -Hn {need}`"
    );
}

/// One end, with all of its connections.
struct Host {
    // Dropped in this order.
    ends: Vec<(Qp, CmEndpoint)>,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    device: Device,
    hca: Arc<Hca>,
    ip: IpAddr,
}

impl Host {
    fn new(ip: IpAddr, count: usize) -> Self {
        let hca = Hca::iwarp(&[ip]).unwrap().build();
        let device = hca.open().wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let memory = Memory::alloc(count * LEN).unwrap();
        let depth = u32::try_from(2 * count).unwrap();
        Self {
            ends: Vec::new(),
            cq: device.create_cq(depth).wait().unwrap(),
            mr: pd.register(memory, Access::LOCAL_WRITE).wait().unwrap(),
            pd,
            device,
            hca,
            ip,
        }
    }

    fn bind(&self) -> (CmEndpoint, Receiver<CmEvent>) {
        let (sender, events) = channel();
        let local = SocketAddr::new(self.ip, 0);
        let endpoint = self.device.bind_cm(local, Arc::new(Events(sender)));
        (endpoint.wait().unwrap(), events)
    }

    /// A queue pair for one more connection, which expects a message.
    fn qp(&self) -> Qp {
        let init = QpInit::rc(&self.cq, &self.cq).depth(2, 2).inline(8);
        let mut qp = self.pd.create_qp(init).wait().unwrap();
        qp.init(1, Access::empty()).wait().unwrap();
        let number = self.ends.len();
        let place = self.mr.slice(number * LEN..(number + 1) * LEN);
        qp.post_recv(Recv::new(number as u64).into(place)).unwrap();
        qp
    }

    /// Sends a number on every connection, each its own.
    fn send(&mut self) {
        for (number, (qp, _)) in self.ends.iter_mut().enumerate() {
            let bytes = (number as u64).to_be_bytes();
            qp.post_send(Send::new(0).inline(&bytes)).unwrap();
        }
    }

    /// Waits for a number on every connection: all of them have come, each once.
    fn receive(&mut self) {
        let count = self.ends.len();
        let until = Instant::now() + PATIENCE;
        let mut came = 0;
        while came < count {
            let mut wcs = [Wc::default(); 64];
            let polled = self.cq.poll(&mut wcs);
            assert!(polled.iter().all(Wc::is_ok), "{polled:?}");
            came += polled.len();
            assert!(Instant::now() < until, "{came} of {count} messages");
        }
        let mut bytes = vec![0; count * LEN];
        self.mr.read(0, &mut bytes).unwrap();
        let (numbers, _) = bytes.as_chunks();
        let mut numbers: Vec<_> = numbers
            .iter()
            .map(|bytes| u64::from_be_bytes(*bytes))
            .collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..count as u64), "each came once");
    }

    /// What there is of connections: queue pairs, endpoints, port numbers.
    fn counts(&self) -> [usize; 3] {
        let space = self.hca.port_space().unwrap();
        let queue_pairs = self.hca.object_counts()[4];
        [queue_pairs, self.hca.cm_endpoints(), space.len()]
    }

    /// Ends all connections and destroys their objects: no count is above zero any more.
    fn end(mut self, descriptors_before: usize) {
        self.ends.clear();
        until("no object, endpoint or number is left", || {
            self.counts() == [0; 3]
        });
        // A socket lives until the peer has closed as well.
        until("no descriptor is left", || {
            descriptors() <= descriptors_before
        });
    }
}

struct Events(Sender<CmEvent>);

impl CmSink for Events {
    fn event(&self, event: CmEvent) {
        // Nobody may wait for it any more.
        let _ = self.0.send(event);
    }
}

fn param() -> CmParam {
    CmParam {
        responder_resources: 1,
        initiator_depth: 1,
        ..CmParam::default()
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn server(count: usize) {
    let mut host = Host::new(IpAddr::from([127, 7, 60, 2]), count);
    let before = descriptors();
    let (listener, events) = host.bind();
    listener.listen(128).wait().unwrap();
    let mut client = Command::new(env::current_exe().unwrap())
        .args(["--exact", "connections_are_open_at_once_and_leave_nothing"])
        .env(SERVER, listener.local().to_string())
        .env(COUNT, count.to_string())
        .spawn()
        .unwrap();
    while host.ends.len() < count {
        let request = match events.recv_timeout(PATIENCE).expect("a request") {
            CmEvent::ConnectRequest(request) => request,
            other => panic!("{other:?}"),
        };
        let qp = host.qp();
        let accepting = request.endpoint.accept(&qp, param(), Vec::new());
        accepting.wait().unwrap();
        host.ends.push((qp, request.endpoint));
    }
    // The client sends when all of its connections are there.
    host.receive();
    let [queue_pairs, endpoints, _] = host.counts();
    assert_eq!((queue_pairs, endpoints), (count, count + 1));
    assert!(descriptors() >= before + count, "each has its socket");
    host.send();
    assert!(client.wait().unwrap().success(), "the client says why");
    drop((listener, events));
    host.end(before);
}

fn client(server: SocketAddr, count: usize) {
    let mut host = Host::new(IpAddr::from([127, 7, 60, 1]), count);
    let before = descriptors();
    while host.ends.len() < count {
        let (endpoint, _) = host.bind();
        let qp = host.qp();
        let connecting = endpoint.connect(&qp, server, param(), Vec::new());
        let reply = connecting.wait().unwrap();
        assert_eq!(reply, CmReply::Established(Box::default()));
        host.ends.push((qp, endpoint));
    }
    assert_eq!(host.counts(), [count; 3]);
    host.send();
    host.receive();
    host.end(before);
}
