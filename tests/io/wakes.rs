//! How much work of the system an awaited request is, and that none waits for a poller that is not there.
//!
//! Goal: one packet and one wake a direction. Method: a link and a waiter that count their calls, each of which is one of
//! the system (a wait that was woken is two), and programs that count how often they were woken, which is two as well.
//! The waiter also counts the waits of the engine's thread in which it leaves packets to a consumer that polls.

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use hca_sim::link::{Arrival, Burst, PacketLink, Sent, Waiter, Wrap};
use hca_sim::{Hca, Udp};
use verbs_core::Access;
use verbs_io::{Connection, Endpoint};

/// Bytes of a request and of its answer.
const LEN: usize = 4096;
/// Requests before anything is counted: both ends have to see that the other one answers at once.
const WARM: usize = 50;
/// Requests that are counted together.
const LOT: usize = 20;
/// Lots of which one has to be undisturbed by whatever else the machine does.
const LOTS: usize = 300;
/// Calls of the system that a request and its answer may cost an end.
const CALLS_MAX: f64 = 6.0;

/// The shortest time for which packets are left to a consumer that polls: as [`hca_sim`] has it, or less.
const LEFT: Duration = Duration::from_micros(100);

/// Calls of the system.
#[derive(Debug, Default)]
struct Calls {
    all: AtomicU64,
    /// Waits of the engine's thread that packets do not end.
    left: AtomicU64,
}

impl Calls {
    fn count(&self, calls: u64) {
        self.all.fetch_add(calls, Relaxed);
    }
}

#[derive(Debug)]
struct Counted {
    link: Udp,
    calls: Arc<Calls>,
}

impl Wrap for Counted {
    fn inner(&self) -> &dyn PacketLink {
        &self.link
    }

    fn inner_mut(&mut self) -> &mut dyn PacketLink {
        &mut self.link
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        self.calls.count(1);
        self.link.transmit(burst)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        self.calls.count(1);
        self.link.receive(sink)
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        Some(Arc::new(CountedWaiter {
            waiter: self.link.waiter()?,
            calls: Arc::clone(&self.calls),
        }))
    }
}

#[derive(Debug)]
struct CountedWaiter {
    waiter: Arc<dyn Waiter>,
    calls: Arc<Calls>,
}

impl Waiter for CountedWaiter {
    fn wait(&self, timeout: Option<Duration>, packets: bool) {
        self.calls.count(1);
        if !packets && timeout.is_some_and(|timeout| timeout >= LEFT) {
            self.calls.left.fetch_add(1, Relaxed);
        }
        self.waiter.wait(timeout, packets);
    }

    fn wake(&self) {
        // The write, and the read of the thread that was woken.
        self.calls.count(2);
        self.waiter.wake();
    }
}

/// Wakes a thread that runs a program.
struct Unpark {
    thread: thread::Thread,
    calls: Arc<Calls>,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        // One to wake it; to sleep was the other.
        self.calls.count(2);
        self.thread.unpark();
    }
}

fn run<T>(calls: &Arc<Calls>, program: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark {
        thread: thread::current(),
        calls: Arc::clone(calls),
    }));
    let mut program = pin!(program);
    loop {
        match program.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

async fn open(host: u8, calls: &Arc<Calls>) -> Result<Endpoint, verbs_io::Error> {
    let calls = Arc::clone(calls);
    let opening = Endpoint::opening(async move {
        let link = Udp::bind(&[address(host)]).unwrap();
        Ok(Hca::over(Counted { link, calls }).open().await?)
    });
    opening.message_size(LEN as u32).window(4).open().await
}

fn address(host: u8) -> IpAddr {
    IpAddr::from([127, 0, 96, host])
}

/// Answers every request, of a client that comes when it is told that there is a listener.
async fn serve(calls: &Arc<Calls>, listens: Sender<()>) -> Result<(), verbs_io::Error> {
    let net = open(1, calls).await?;
    let mut clients = net.listen((address(1), 7471)).await?;
    listens.send(()).expect("a client waits");
    let client = clients.accept().await;
    while let Some(request) = client.recv().await? {
        client.send(request).posted().await?;
    }
    Ok(())
}

async fn requests(conn: &Connection, count: usize) -> Result<(), verbs_io::Error> {
    for _ in 0..count {
        let mut request = conn.buf().await;
        request.fill_from(&[7; LEN]);
        conn.send(request).posted().await?;
        let answer = conn.recv().await?.unwrap();
        assert_eq!(answer.len(), LEN);
    }
    Ok(())
}

#[test]
fn an_awaited_request_wakes_each_end_once_and_little_else() {
    let calls = Arc::new(Calls::default());
    let served = Arc::clone(&calls);
    let (listens, ready) = channel();
    let server = thread::spawn(move || run(&served, serve(&served, listens)));
    // Who asks before is refused.
    ready.recv().expect("it listens");
    let least = run(&calls, async {
        let net = open(2, &calls).await?;
        let conn = net.connect((address(1), 7471)).await?;
        requests(&conn, WARM).await?;
        let mut least = f64::INFINITY;
        for _ in 0..LOTS {
            let before = calls.all.load(Relaxed);
            requests(&conn, LOT).await?;
            let of_both = calls.all.load(Relaxed) - before;
            least = least.min(of_both as f64 / (2 * LOT) as f64);
            if least <= CALLS_MAX {
                break;
            }
        }
        conn.close().await?;
        Ok::<_, verbs_io::Error>(least)
    });
    let least = least.unwrap();
    server.join().unwrap().unwrap();
    assert!(least <= CALLS_MAX, "{least:.1} a request and end");
}

/// Goal: the engine's thread takes in packets while tasks wait, however they have looked before. Method: two ends in one
/// task, so that each looks for messages while the packets of the other one are under way: messages that are awaited
/// at both ends, operations that the peer's memory answers, and connections.
#[test]
fn no_packet_is_left_to_tasks_that_wait() {
    const MESSAGES: usize = 500;
    const CONNECTIONS: usize = 50;
    let calls = Arc::new(Calls::default());
    let done = run(&calls, async {
        let (client, server) = (open(3, &calls).await?, open(4, &calls).await?);
        let mut clients = server.listen((address(4), 7471)).await?;
        for _ in 0..CONNECTIONS {
            let asked = client.connect((address(4), 7471)).into_future();
            let accepted = async { Ok(clients.accept().await) };
            let (a, b) = futures::future::try_join(asked, accepted).await?;
            let region = server.region(LEN, Access::REMOTE).await?;
            let token = region.token(0..LEN).unwrap();
            let mut buf = a.buf().await;
            buf.fill_from(&[7; 64]);
            for _ in 0..MESSAGES / CONNECTIONS {
                buf = a.send(buf).await?;
                assert_eq!(b.recv().await?.unwrap().len(), 64);
                buf = a.write(buf, token).await?;
                buf = a.read(buf, token).await?;
            }
            drop(buf);
            a.close().await?;
            assert!(b.recv().await?.is_none());
        }
        Ok::<_, verbs_io::Error>(())
    });
    done.unwrap();
    // A look that finds nothing may happen often enough by chance, while the thread that runs the task has no processor.
    let left = calls.left.load(Relaxed) as usize;
    assert!(left * 50 <= MESSAGES, "{left} times");
}
