//! Instructions of a SEND of 64 bytes in iWARP over TCP, each with a budget that fails the run: those of this workspace, and
//! not the kernel's.
//!
//! Two HCAs on one address of the loopback interface, and one thread that posts and polls for both: the post sends the
//! FPDU and completes, a poll of the receiver reads and places it. `single` counts both together, with the post of the
//! receive, the poll of the sender and the calling code; the others count one of them, for 32 messages more than are
//! repeated: those that warm up. The engines' threads sleep, as for UDP.

use std::hint::black_box;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use gungraun::{library_benchmark, library_benchmark_group};
use hca_sim::link::Waiter;
use hca_sim::port_space::PortError;
use hca_sim::stream::{Bound, Stream, StreamLink, Token};
use hca_sim::{Adopted, Hca, Tcp, adopt};
use verbs_core::{Access, Cq, Device, Memory, Mr, Pd, Qp, QpInit, Recv, Seed, Send, Wc};

use crate::asleep::Asleep;
use crate::budget::{TIMES, budget, budget_of};

/// Bytes of a message.
const BYTES: usize = 64;
/// Polls of a queue before it counts as one that is polled all the time.
const POLLS: usize = 64;
/// Messages that warm up.
const WARM: u64 = 32;
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// TCP whose thread waits for nothing but its end.
#[derive(Debug)]
struct Quiet {
    tcp: Tcp,
    asleep: Arc<Asleep>,
}

impl StreamLink for Quiet {
    fn addresses(&self) -> Vec<IpAddr> {
        self.tcp.addresses()
    }

    fn bind(&self, local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        self.tcp.bind(local)
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        self.tcp.ready(tokens);
    }

    fn adopt(&self, stream: TcpStream) -> io::Result<(Box<dyn Stream>, usize)> {
        self.tcp.adopt(stream)
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        Some(Arc::<Asleep>::clone(&self.asleep))
    }

    fn seed(&self) -> Seed {
        self.tcp.seed()
    }
}

/// One end of a connection. Dropped in this order.
struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
    _device: Device,
    asleep: Arc<Asleep>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.asleep.end();
    }
}

impl End {
    fn new(stream: TcpStream) -> Self {
        let asleep = Arc::<Asleep>::default();
        let link = Quiet {
            tcp: Tcp::on(&[IpAddr::V4(HERE)]).expect("there are descriptors"),
            asleep: Arc::clone(&asleep),
        };
        let device = Hca::over_streams(link).open().wait().expect("a device");
        let pd = device.alloc_pd().wait().expect("a domain");
        let cq = device.create_cq(64).wait().expect("a queue");
        let memory = Memory::alloc(1 << 16).expect("memory");
        let mr = pd.register(memory, Access::LOCAL_WRITE).wait();
        let qp = pd.create_qp(QpInit::rc(&cq, &cq).depth(32, 32)).wait();
        let qp = qp.expect("a queue pair");
        qp.init(1, Access::empty()).wait().expect("it is new");
        adopt(&qp, stream, Adopted::new(true)).expect("nothing was sent");
        Self {
            qp,
            cq,
            mr: mr.expect("a region"),
            _pd: pd,
            _device: device,
            asleep,
        }
    }

    fn expect(&mut self) {
        let to = self.mr.slice(0..BYTES);
        let recv = Recv::new(1).into(*black_box(&to));
        self.qp.post_recv(recv).expect("there is room");
    }
}

/// Two queue pairs on one connection.
struct Subject {
    sender: End,
    receiver: End,
}

impl Subject {
    /// Connected, after every path has been taken often enough.
    fn new() -> Self {
        let listener = TcpListener::bind((HERE, 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        let ours = TcpStream::connect(address).expect("it listens");
        let theirs = listener.accept().expect("the peer has connected").0;
        let mut subject = Self {
            sender: End::new(ours),
            receiver: End::new(theirs),
        };
        for _ in 0..POLLS {
            for end in [&mut subject.sender, &mut subject.receiver] {
                assert!(end.cq.poll(&mut [Wc::default()]).is_empty());
            }
        }
        subject.messages(WARM);
        subject
    }

    fn messages(&mut self, times: u64) {
        for _ in 0..times {
            self.receiver.expect();
            post(&mut self.sender);
            receive(&mut self.receiver);
            take(&mut self.sender);
        }
    }
}

#[inline(never)]
fn post(end: &mut End) {
    let from = end.mr.slice(0..BYTES);
    let send = Send::new(2).from(*black_box(&from)).signaled();
    end.qp.post_send(send).expect("there is room");
}

#[inline(never)]
fn receive(end: &mut End) {
    take(end);
    black_box("not the same function as another");
}

fn take(end: &mut End) {
    let mut out = [Wc::default()];
    loop {
        if let [wc] = end.cq.poll(&mut out) {
            assert!(wc.is_ok());
            return;
        }
    }
}

#[library_benchmark(config = budget(5460))]
#[bench::counted(Subject::new())]
fn single(mut subject: Subject) -> Subject {
    subject.messages(TIMES);
    subject
}

#[library_benchmark(config = budget_of(2800, "counts::stream::post"))]
#[bench::counted(Subject::new())]
fn single_post(mut subject: Subject) -> Subject {
    subject.messages(TIMES);
    subject
}

#[library_benchmark(config = budget_of(2685, "counts::stream::receive"))]
#[bench::counted(Subject::new())]
fn single_receive(mut subject: Subject) -> Subject {
    subject.messages(TIMES);
    subject
}

library_benchmark_group!(
    name = streams,
    benchmarks = [single, single_post, single_receive]
);
