//! Goal: the engine's thread rests while another thread drives the port and a socket has something: it would find the same
//! again at once. Method: a link whose look at its sockets lasts until its thread has waited many times, and which counts how.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use hca_sim::link::Waiter;
use hca_sim::port_space::PortError;
use hca_sim::stream::{Bound, Stream, StreamLink, Token};
use hca_sim::{Hca, Tcp};
use verbs_core::{CmEvent, CmSink, Seed};

const PATIENCE: Duration = Duration::from_secs(60);
/// How often the thread waits during the look.
const WAITS: usize = 100;

/// How the thread has waited during the look.
#[derive(Debug)]
struct Waits {
    inner: Arc<dyn Waiter>,
    is_counting: AtomicBool,
    with_packets: AtomicUsize,
    resting: AtomicUsize,
}

impl Waits {
    fn count(&self) -> usize {
        self.with_packets.load(SeqCst) + self.resting.load(SeqCst)
    }
}

impl Waiter for Waits {
    fn wait(&self, timeout: Option<Duration>, packets: bool) {
        if self.is_counting.load(SeqCst) {
            let kind = if packets {
                &self.with_packets
            } else {
                &self.resting
            };
            kind.fetch_add(1, SeqCst);
        }
        self.inner.wait(timeout, packets);
    }

    fn wake(&self) {
        self.inner.wake();
    }
}

/// A look that takes long.
#[derive(Debug)]
struct Look {
    /// The thread that looks.
    by: ThreadId,
    /// Is told when it has begun.
    began: Sender<()>,
}

#[derive(Debug)]
struct Slow {
    tcp: Tcp,
    waits: Arc<Waits>,
    next: Arc<Mutex<Option<Look>>>,
}

impl StreamLink for Slow {
    fn addresses(&self) -> Vec<IpAddr> {
        self.tcp.addresses()
    }

    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        self.tcp.bind(local)
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        let me = thread::current().id();
        let next = self.next.lock().unwrap().take_if(|look| look.by == me);
        if let Some(Look { began, .. }) = next {
            self.waits.is_counting.store(true, SeqCst);
            began.send(()).unwrap();
            let end = Instant::now() + PATIENCE;
            while self.waits.count() < WAITS {
                assert!(Instant::now() < end, "{:?}", self.waits);
                thread::yield_now();
            }
            self.waits.is_counting.store(false, SeqCst);
        }
        self.tcp.ready(tokens);
    }

    fn adopt(&self, stream: TcpStream) -> io::Result<(Box<dyn Stream>, usize)> {
        self.tcp.adopt(stream)
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        Some(Arc::<Waits>::clone(&self.waits))
    }

    fn seed(&self) -> Seed {
        self.tcp.seed()
    }
}

struct Ignored;

impl CmSink for Ignored {
    fn event(&self, _: CmEvent) {}
}

#[test]
fn the_engines_thread_rests_while_another_one_drives() {
    let ip = IpAddr::from([127, 7, 61, 1]);
    let tcp = Tcp::on(&[ip]).unwrap();
    let waits = Arc::new(Waits {
        inner: tcp.waiter().unwrap(),
        is_counting: AtomicBool::new(false),
        with_packets: AtomicUsize::new(0),
        resting: AtomicUsize::new(0),
    });
    let next = Arc::<Mutex<Option<Look>>>::default();
    let link = Slow {
        tcp,
        waits: Arc::clone(&waits),
        next: Arc::clone(&next),
    };
    let hca = Hca::over_streams(link).build();
    let device = hca.open().wait().unwrap();
    let local = SocketAddr::new(ip, 0);
    let listener = device.bind_cm(local, Arc::new(Ignored)).wait().unwrap();
    listener.listen(4).wait().unwrap();
    let (tell, began) = channel();
    let driver = thread::spawn({
        let (hca, next) = (Arc::clone(&hca), Arc::clone(&next));
        move || {
            let by = thread::current().id();
            *next.lock().unwrap() = Some(Look { by, began: tell });
            // The engine's thread may be the one that looks.
            while next.lock().unwrap().is_some() {
                hca.turn();
            }
        }
    });
    began.recv_timeout(PATIENCE).expect("the driver looks");
    // From here on the sockets have something.
    let client = TcpStream::connect(listener.local()).unwrap();
    driver.join().unwrap();
    drop(client);
    let counts = [&waits.with_packets, &waits.resting].map(|count| count.load(SeqCst));
    let [with_packets, resting] = counts;
    assert!(
        resting > 0 && with_packets <= resting + 3,
        "the thread waited {with_packets} times for what was there, and rested {resting} times"
    );
}
