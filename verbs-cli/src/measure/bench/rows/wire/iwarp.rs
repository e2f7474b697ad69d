//! iWARP over TCP on the loopback interface, beside TCP itself.
//!
//! Bandwidth: both ends in one thread, beside `write` and `read` of as many bytes out of one buffer and into another.
//! Latency: two threads that poll, half a round trip, beside as many bytes of TCP. Connections: connect, accept and close
//! in one thread, each end with its queue pair that is reset afterwards, beside the three calls of TCP.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use futures::executor::block_on;
use hca_sim::{Adopted, Builder, Hca, adopt};
use verbs_core::sync::Arc;
use verbs_core::{
    CmEndpoint, CmEvent, CmParam, CmReply, CmRequest, CmSink, Cq, Error, Qp, QpAttr, QpInit,
    QpState, Recv, Write,
};

use crate::bench::bed::{Bed, RIGHTS};
use crate::bench::duel::{self, Duel};
use crate::bench::error::BenchError;
use crate::bench::far::{End, MTU, SMALL, sends};
use crate::bench::machine::Patience;
use crate::bench::method::Subject;
use crate::bench::stage::Stage;
use crate::bench::table::{Beside, Row};
use crate::bench::tcp;

/// Bytes of the WRITEs.
const SIZES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The other subject of every row.
const TCP: &str = "TCP";

/// Measures WRITE by size, a small SEND one way, and connections.
pub(crate) fn run(stage: &Stage) -> Result<Vec<Row>, BenchError> {
    let method = stage.method.part_of(SIZES.len() + 2);
    let mut rows = Vec::new();
    for bytes in SIZES {
        let subjects = &mut [
            Subject::alone(1, pass(bytes)?),
            Subject::alone(1, write(ends(bytes)?, bytes)),
        ];
        let figures = method.measure(subjects)?;
        let row = Row::new(stage.bench, "RDMA WRITE over iWARP, CQE", figures[1]);
        let beside = Beside::new(TCP, figures[0], figures[1]);
        rows.push(row.bytes(bytes).bandwidth().beside(beside));
    }
    let duels: Vec<Duel<'_>> = vec![tcp::streams(SMALL)?, sends(ends(2 * MTU)?)?];
    let figures = duel::measure(method, &stage.machine, duels)?;
    let row = Row::new(stage.bench, "SEND over iWARP, one way", figures[1]);
    let beside = Beside::new(TCP, figures[0], figures[1]);
    rows.push(row.bytes(SMALL).threads(2).beside(beside));

    let listener = TcpListener::bind((HERE, 0)).map_err(BenchError::Tcp)?;
    let mut connects = Connects::new()?;
    let subjects = &mut [
        Subject::alone(1, |times| {
            (0..times).try_for_each(|_| connect_tcp(&listener).map_err(BenchError::Tcp))
        }),
        Subject::alone(1, |times| (0..times).try_for_each(|_| connects.one())),
    ];
    let figures = method.measure(subjects)?;
    let row = Row::new(stage.bench, "connect, accept, close", figures[1]);
    rows.push(row.beside(Beside::new(TCP, figures[0], figures[1])));
    Ok(rows)
}

/// An HCA over the TCP of the loopback interface.
fn builder() -> Result<Builder, BenchError> {
    Hca::iwarp(&[IpAddr::V4(HERE)]).map_err(BenchError::Tcp)
}

/// Two ends with so many bytes of memory each, on a TCP connection that both ends take over, with CRCs.
fn ends(bytes: usize) -> Result<[End; 2], BenchError> {
    let [a, b] = tcp::connected().map_err(BenchError::Tcp)?.into();
    let end = |stream: TcpStream, is_initiator| {
        let end = End::on(&Bed::on(builder()?)?, bytes)?;
        adopt(&end.qp, stream, Adopted::new(is_initiator))
            .map_err(BenchError::verb("take over a TCP connection"))?;
        Ok::<_, BenchError>(end)
    };
    // Either may send at once: who takes over a connection has agreed on that before.
    Ok([end(a, true)?, end(b, true)?])
}

/// WRITEs of so many bytes. Each is over when the peer, which the immediate data tell, has it.
fn write(mut ends: [End; 2], bytes: usize) -> impl FnMut(u64) -> Result<(), BenchError> {
    move |times| {
        let [a, b] = &mut ends;
        for _ in 0..times {
            b.qp.post_recv(Recv::new(0))?;
            let write = Write::new(1, b.mr.remote(0)).from(a.mr.slice(0..bytes));
            a.qp.post_send(write.imm(0).signaled())?;
            let mut patience = Patience::new("a WRITE");
            let mut done = 0;
            while done < 2 {
                done += a.cq.poll(1)?.len() + b.cq.poll(1)?.len();
                patience.lose()?;
            }
        }
        Ok(())
    }
}

/// So many bytes of TCP from one buffer to another.
fn pass(bytes: usize) -> Result<impl FnMut(u64) -> Result<(), BenchError>, BenchError> {
    let (mut out, mut into) = tcp::connected().map_err(BenchError::Tcp)?;
    let (from, mut to) = (vec![0x5a; bytes], vec![0; bytes]);
    Ok(move |times| {
        for _ in 0..times {
            let mut patience = Patience::new("bytes of a TCP connection");
            let (mut sent, mut got) = (0, 0);
            while got < bytes {
                if sent < bytes {
                    sent += some(out.write(&from[sent..]))?;
                }
                got += some(into.read(&mut to[got..]))?;
                patience.lose()?;
            }
        }
        Ok(())
    })
}

/// How many bytes there were, or room for.
fn some(moved: std::io::Result<usize>) -> Result<usize, BenchError> {
    match moved {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        moved => moved.map_err(BenchError::Tcp),
    }
}

/// A connection of TCP itself, made and closed.
fn connect_tcp(listener: &TcpListener) -> std::io::Result<()> {
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let theirs = listener.accept()?;
    drop((ours, theirs));
    Ok(())
}

/// One host of connections: its queue pair is used again and again.
struct Host {
    qp: Qp,
    _cq: Cq,
    bed: Bed,
    hca: Arc<Hca>,
}

impl Host {
    fn new() -> Result<Self, BenchError> {
        let hca = builder()?.build();
        let device =
            block_on(async { hca.open().await }).map_err(BenchError::verb("open a device"))?;
        let bed = Bed::of(device)?;
        let cq = bed.cq(16)?;
        let init = QpInit::rc(&cq, &cq);
        let qp = block_on(async { bed.pd.create_qp(init).await })
            .map_err(BenchError::verb("create a queue pair"))?;
        let host = Self {
            qp,
            _cq: cq,
            bed,
            hca,
        };
        host.init().map_err(again())?;
        Ok(host)
    }

    fn init(&self) -> Result<(), Error> {
        self.qp.init(1, RIGHTS).wait()
    }

    /// Ends the connection, for the next one.
    fn reset(&self) -> Result<(), Error> {
        for state in [QpState::Err, QpState::Reset] {
            self.qp.modify(QpAttr::to(state)).wait()?;
        }
        self.init()
    }
}

fn again() -> impl Fn(Error) -> BenchError {
    BenchError::verb("reset a queue pair")
}

/// Events of an endpoint, one after the other.
struct Events(Sender<CmEvent>);

impl CmSink for Events {
    fn event(&self, event: CmEvent) {
        // Those of a connection that has ended are of no interest.
        let _ = self.0.send(event);
    }
}

/// Connections that are made and closed, by one thread that drives both ends.
struct Connects {
    client: Host,
    server: Host,
    listener: CmEndpoint,
    events: Receiver<CmEvent>,
}

impl Connects {
    fn new() -> Result<Self, BenchError> {
        let (client, server) = (Host::new()?, Host::new()?);
        let (sink, events) = channel();
        let listener = bind(&server, sink)?;
        let listening = listener.listen(16).wait();
        listening.map_err(BenchError::verb("listen"))?;
        Ok(Self {
            client,
            server,
            listener,
            events,
        })
    }

    fn one(&mut self) -> Result<(), BenchError> {
        let param = CmParam {
            responder_resources: 8,
            initiator_depth: 8,
            ..CmParam::default()
        };
        // Nobody looks at what happens to it afterwards.
        let (sink, _events) = channel();
        let endpoint = bind(&self.client, sink)?;
        let (tell, told) = channel();
        let to = self.listener.local();
        let connecting = endpoint.connect(&self.client.qp, to, param, Vec::new());
        // The answer is waited for below.
        let _ = connecting.issue(move |reply| drop(tell.send(reply)));
        let request = self.request()?;
        let accepting = request.endpoint.accept(&self.server.qp, param, Vec::new());
        accepting
            .wait()
            .map_err(BenchError::verb("accept a connection"))?;
        let mut patience = Patience::new("a connection");
        let reply = loop {
            self.client.hca.turn();
            if let Ok(reply) = told.try_recv() {
                break reply.map_err(BenchError::verb("connect"))?;
            }
            patience.lose()?;
        };
        let CmReply::Established(_) = reply else {
            return Err(BenchError::PeerGone);
        };
        drop((endpoint, request));
        self.client.reset().map_err(again())?;
        self.server.reset().map_err(again())
    }

    /// The next request; other events are of the connection before.
    fn request(&self) -> Result<CmRequest, BenchError> {
        let mut patience = Patience::new("a request for a connection");
        loop {
            self.server.hca.turn();
            if let Ok(CmEvent::ConnectRequest(request)) = self.events.try_recv() {
                return Ok(request);
            }
            patience.lose()?;
        }
    }
}

/// An address of that host, with any port number that is free.
fn bind(host: &Host, sink: Sender<CmEvent>) -> Result<CmEndpoint, BenchError> {
    let local = SocketAddr::from((HERE, 0));
    let binding = host.bed.device.bind_cm(local, Arc::new(Events(sink)));
    binding.wait().map_err(BenchError::verb("bind an address"))
}
