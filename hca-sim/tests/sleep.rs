//! Goal: a consumer that sleeps at the port handles packets itself, for all of the port, and nobody's packets wait while it
//! does, or when it does not come back.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::link::Udp;
use hca_sim::{Hca, Tcp, connect};
use rustix::event::{EventfdFlags, eventfd};
use verbs_core::{Access, Arm, Armed, Cq, Memory, Mr, Pd, Qp, QpInit, Recv, Send, Wc, WcStatus};

const PATIENCE: Duration = Duration::from_secs(30);

/// The handler of a completion queue: it writes to a descriptor, and notes the thread that calls it.
struct Bell {
    fd: OwnedFd,
    by: Mutex<Vec<ThreadId>>,
}

impl Bell {
    fn ring(&self) {
        self.by.lock().unwrap().push(thread::current().id());
        rustix::io::write(&self.fd, &1_u64.to_ne_bytes()).unwrap();
    }

    fn hush(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

struct End {
    qp: Qp,
    cq: Cq,
    bell: Arc<Bell>,
    mr: Mr,
    _pd: Pd,
    hca: Arc<Hca>,
}

/// An address that this process has for itself.
fn own(number: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    [127, high | 0x80, low, number].into()
}

fn end(number: u8) -> End {
    let hca = Hca::over(Udp::bind(&[own(number)]).unwrap()).build();
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    let bell = Arc::new(Bell {
        fd: eventfd(0, flags).unwrap(),
        by: Mutex::default(),
    });
    block_on(async {
        let device = hca.open().await.unwrap();
        let pd = device.alloc_pd().await.unwrap();
        let rings = Arc::clone(&bell);
        let cq = device.create_cq(64).handler(move || rings.ring());
        let cq = cq.await.unwrap();
        let memory = Memory::alloc(4096).unwrap();
        let mr = pd.register(memory, Access::LOCAL_WRITE).await.unwrap();
        let qp = pd.create_qp(QpInit::rc(&cq, &cq)).await.unwrap();
        End {
            qp,
            cq,
            bell,
            mr,
            _pd: pd,
            hca,
        }
    })
}

fn pair(number: u8) -> [End; 2] {
    let (mut a, mut b) = (end(number), end(number + 1));
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    [a, b]
}

impl End {
    /// Waits for the next completion, a success; the thread sleeps at the port if it may. Returns how often it did.
    fn next(&mut self) -> u32 {
        let mut slept = 0;
        let until = Instant::now() + PATIENCE;
        loop {
            let mut one = [Wc::default()];
            if let [wc] = self.cq.poll(&mut one) {
                assert_eq!(wc.status, WcStatus::Success);
                return slept;
            }
            self.bell.hush();
            if self.cq.arm(Arm::Next) == Armed::Waiting {
                continue;
            }
            assert!(Instant::now() < until, "no completion");
            match self.hca.sleep(&[self.bell.fd.as_fd()], Some(PATIENCE)) {
                Some(waited) => {
                    waited.unwrap();
                    slept += 1;
                }
                None => thread::yield_now(),
            }
        }
    }

    fn receive(&mut self, wr_id: u64) {
        let receive = Recv::new(wr_id).into(self.mr.slice(0..64));
        self.qp.post_recv(receive).unwrap();
    }

    fn send(&mut self, wr_id: u64) {
        let send = Send::new(wr_id).from(self.mr.slice(0..64)).signaled();
        self.qp.post_send(send).unwrap();
    }
}

/// Method: messages back and forth between two threads, until handlers have run on the threads that slept.
#[test]
fn a_consumer_that_sleeps_handles_packets_itself() {
    let [mut a, mut b] = pair(1);
    let until = Instant::now() + PATIENCE;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let echo = thread::spawn(move || {
        b.receive(0);
        for n in 0.. {
            b.next();
            if stopped.try_recv().is_ok() {
                return;
            }
            b.receive(n + 1);
            b.send(n);
            b.next();
        }
    });
    let me = thread::current().id();
    let (mut by_me, mut slept) = (0, 0);
    let mut rounds = 0;
    while rounds < 200 || by_me < 10 {
        assert!(
            Instant::now() < until,
            "{by_me} handlers after {slept} sleeps"
        );
        a.receive(rounds);
        a.send(rounds);
        slept += a.next() + a.next();
        by_me = a
            .bell
            .by
            .lock()
            .unwrap()
            .iter()
            .filter(|&&by| by == me)
            .count();
        rounds += 1;
    }
    stop.send(()).unwrap();
    a.send(rounds);
    a.next();
    echo.join().unwrap();
}

/// Method: a thread sleeps at the port for ever, for a descriptor of its own; another one's messages arrive meanwhile, and
/// are acknowledged. Then it stays away, and they still are.
#[test]
fn what_others_wait_for_goes_on_while_one_sleeps_and_when_it_stays_away() {
    let [mut a, mut b] = pair(3);
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sleeper = thread::spawn({
        let (hca, bell) = (Arc::clone(&b.hca), bell.try_clone().unwrap());
        let over = Arc::clone(&over);
        move || {
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                if hca.sleep(&[bell.as_fd()], Some(PATIENCE)).is_none() {
                    thread::yield_now();
                }
            }
        }
    });
    let mut exchange = |rounds: std::ops::Range<u64>| {
        for n in rounds {
            b.receive(n);
            a.send(n);
            for end in [&mut a, &mut b] {
                let mut one = [Wc::default()];
                while end.cq.poll(&mut one).is_empty() {
                    thread::yield_now();
                }
                assert_eq!(one[0].status, WcStatus::Success);
            }
        }
    };
    exchange(0..100);
    over.store(true, std::sync::atomic::Ordering::SeqCst);
    rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
    sleeper.join().unwrap();
    exchange(100..200);
}

/// Goal: where there is no place for another thread, packets are not left to one.
#[test]
fn no_thread_sleeps_where_there_is_no_place_for_it() {
    let streams = Hca::over_streams(Tcp::on(&[own(5)]).unwrap()).build();
    assert!(streams.sleep(&[], Some(Duration::ZERO)).is_none());
    let packets = Hca::over(Udp::bind(&[own(6)]).unwrap()).build();
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let many = [fd.as_fd(); 17];
    assert!(packets.sleep(&many, Some(Duration::ZERO)).is_none());
    assert!(packets.sleep(&many[..16], Some(Duration::ZERO)).is_some());
}
