//! Goal: the engine's thread rests while another thread drives the port and a socket has something: it would find the same
//! again at once. Method: a link whose look at its sockets takes long, and which counts how its thread waits.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hca_sim::link::Waiter;
use hca_sim::port_space::PortError;
use hca_sim::stream::{Bound, Stream, StreamLink, Token};
use hca_sim::{Hca, Tcp};
use verbs_core::{CmEvent, CmSink, Seed};

const PATIENCE: Duration = Duration::from_secs(20);
/// How long the look takes.
const LONG: Duration = Duration::from_millis(200);

/// How the thread has waited while a look took long.
#[derive(Debug)]
struct Waits {
    inner: Arc<dyn Waiter>,
    is_counting: AtomicBool,
    with_packets: AtomicUsize,
    resting: AtomicUsize,
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

#[derive(Debug)]
struct Slow {
    tcp: Tcp,
    waits: Arc<Waits>,
    /// The next look takes long, and says when it has begun.
    next: Arc<Mutex<Option<Sender<()>>>>,
}

impl StreamLink for Slow {
    fn addresses(&self) -> Vec<IpAddr> {
        self.tcp.addresses()
    }

    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        self.tcp.bind(local)
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        let began = self.next.lock().unwrap().take();
        if let Some(began) = began {
            self.waits.is_counting.store(true, SeqCst);
            began.send(()).unwrap();
            thread::sleep(LONG);
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
    let next = Arc::default();
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
    let mut counts = [0, 0];
    // Now and then the thread itself is the one that looks.
    for _ in 0..50 {
        let (begin, began) = channel();
        *next.lock().unwrap() = Some(begin);
        let driver = thread::spawn({
            let hca = Arc::clone(&hca);
            move || hca.turn()
        });
        began.recv_timeout(PATIENCE).expect("somebody looks");
        // From here on the sockets have something.
        let client = TcpStream::connect(listener.local()).unwrap();
        driver.join().unwrap();
        drop(client);
        counts = [&waits.with_packets, &waits.resting].map(|count| count.load(SeqCst));
        if counts != [0, 0] {
            break;
        }
    }
    let [with_packets, resting] = counts;
    assert!(
        resting > 0 && with_packets <= resting + 3,
        "the thread waited {with_packets} times for what was there, and rested {resting} times"
    );
}
