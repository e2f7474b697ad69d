//! Goal: iWARP holds on streams that split, merge, delay, half-close and reset. Method: runs of seeds, and the streams by
//! themselves.

use std::net::SocketAddr;
use std::time::Duration;

use hca_sim::Hca;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{
    Access, CmEvent, CmParam, CmReply, CmRequest, CmSink, Cq, Device, Memory, Mr, Pd, Qp, QpInit,
    Send,
};
use verbs_link::stream::{Interest, Stream, StreamLink, Token};
use verbs_simulator::{Mode, Operation, Options, Ppm, Sim, StreamConfig, run};

/// What is sent in each test.
const LEN: usize = 20_000;

fn options(seed: u64) -> Options {
    Options {
        mode: Some(Mode::Streams),
        ..Options::new(seed)
    }
}

#[test]
fn seeds_are_clean_and_meet_the_faults_of_streams() {
    let mut coverage = verbs_simulator::Coverage::default();
    let (mut splits, mut breaks, mut strangers) = (0, 0, 0);
    for seed in 1..=15 {
        let report = run(&options(seed));
        assert_eq!(report.violation, None, "{}", report.options);
        coverage += &report.coverage;
        splits += u32::from(report.plan.stream_faults.splits);
        breaks += u32::from(report.plan.stream_faults.breaks());
        strangers += u32::from(report.plan.hostile);
    }
    assert!(splits > 2 && breaks > 2 && strangers > 2);
    let lacking = |operation: &&Operation| {
        matches!(
            operation,
            Operation::SendImm | Operation::AtomicWrite | Operation::Flush
        )
    };
    let reliable = Operation::ALL[..Operation::UcSend as usize].iter();
    for &operation in reliable.filter(|operation| !lacking(operation)) {
        let clean = coverage.of(operation, verbs_simulator::Cell::Clean);
        assert_ne!(clean, 0, "{}", operation.name());
    }
}

/// Two ends of a connection.
fn connected(sim: &Sim, config: StreamConfig) -> [Box<dyn Stream>; 2] {
    sim.streams().configure(config);
    let links = ["10.0.0.1", "10.0.0.2"].map(|address| {
        let address = address.parse().unwrap();
        (
            sim.streams().attach(&[address]),
            SocketAddr::new(address, 0),
        )
    });
    let [(a, from), (b, to)] = &links;
    let mut listener = b.bind(*to).unwrap();
    listener.listen(1, Token(1)).unwrap();
    let port = a.bind(*from).unwrap();
    let mut ours = port.connect(listener.local(), Token(2)).unwrap();
    let error = listener.accept().unwrap_err().kind();
    assert_eq!(error, std::io::ErrorKind::WouldBlock);
    let sent = sim.run(sim.sleep(Duration::from_millis(1)));
    sent.unwrap();
    assert!(ours.connected().unwrap());
    [ours, listener.accept().unwrap()]
}

/// Sends bytes until all have left or the connection is lost, and returns what came, and how it ended.
fn carry(
    sim: &Sim,
    [ours, theirs]: &mut [Box<dyn Stream>; 2],
) -> (Vec<u8>, Option<std::io::Error>) {
    let bytes: Vec<u8> = (0..LEN).map(|at| at as u8).collect();
    let (mut sent, mut came, mut finished) = (0, Vec::new(), false);
    for _ in 0..10_000 {
        if sent < LEN {
            match ours.send(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => sent = LEN,
            }
        } else if !std::mem::replace(&mut finished, true) {
            ours.finish();
        }
        sim.run(sim.sleep(Duration::from_micros(50))).unwrap();
        let mut buffer = [0; 3000];
        match theirs.receive(&mut buffer) {
            Ok(0) => return (came, None),
            Ok(count) => came.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return (came, Some(error)),
        }
    }
    panic!("{} of {LEN} bytes came, and no end", came.len());
}

#[test]
fn bytes_arrive_whole_and_in_order_however_they_are_cut() {
    let config = StreamConfig {
        window: 1000,
        segment: 128,
        splits: true,
        delays: Ppm::percent(20),
        ..StreamConfig::default()
    };
    let sim = Sim::new(5);
    let (came, error) = carry(&sim, &mut connected(&sim, config));
    assert!(error.is_none(), "{error:?}");
    assert!(came.len() == LEN && came.iter().enumerate().all(|(at, &byte)| byte == at as u8));
    let hits = sim.streams().hits();
    assert!(hits.split > 20 && hits.delayed > 5, "{hits:?}");
    assert_eq!((hits.reset, hits.half_closed), (0, 0));
}

#[test]
fn a_reset_and_a_half_close_end_a_stream_early() {
    let base = StreamConfig {
        splits: true,
        ..StreamConfig::default()
    };
    for (is_reset, config) in [
        (
            true,
            StreamConfig {
                resets: Ppm::percent(20),
                ..base
            },
        ),
        (
            false,
            StreamConfig {
                half_closes: Ppm::percent(20),
                ..base
            },
        ),
    ] {
        let sim = Sim::new(9);
        let mut ends = connected(&sim, config);
        let from = ends[0].local();
        let (came, error) = carry(&sim, &mut ends);
        assert!(came.len() < LEN, "{is_reset}: it ended early");
        assert_eq!(error.is_some(), is_reset, "{error:?}");
        assert!(sim.streams().is_broken(from));
        // The other direction is open after a half close.
        assert_eq!(ends[1].send(b"still here").is_ok(), !is_reset);
    }
}

#[test]
fn an_address_is_taken_once_and_nobody_refuses_a_connect() {
    let sim = Sim::new(1);
    let address = "10.0.0.1".parse().unwrap();
    let link = sim.streams().attach(&[address]);
    let bound = link.bind(SocketAddr::new(address, 7174)).unwrap();
    assert!(link.bind(bound.local()).is_err());
    assert!(link.bind(SocketAddr::from(([10, 0, 0, 9], 0))).is_err());
    let port = link.bind(SocketAddr::new(address, 0)).unwrap();
    let mut refused = port.connect(bound.local(), Token(1)).unwrap();
    refused.watch(Token(1), Interest::Both).unwrap();
    assert!(!refused.connected().unwrap());
    sim.run(sim.sleep(Duration::from_millis(1))).unwrap();
    let error = refused.connected().unwrap_err().kind();
    assert_eq!(error, std::io::ErrorKind::ConnectionRefused);
    let mut tokens = Vec::new();
    link.ready(&mut tokens);
    assert_eq!(tokens, [Token(1)]);
    drop(bound);
    assert!(link.bind(SocketAddr::new(address, 7174)).is_ok());
}

/// An end of a connection, and the requests that have come.
struct End {
    device: Device,
    _pd: Pd,
    _cq: Cq,
    qp: Qp,
    mr: Mr,
    requests: Arc<Requests>,
}

#[derive(Default)]
struct Requests(Mutex<Vec<CmRequest>>);

impl CmSink for Requests {
    fn event(&self, event: CmEvent) {
        if let CmEvent::ConnectRequest(request) = event {
            self.0.lock().push(request);
        }
    }
}

async fn end(sim: &Sim, at: SocketAddr) -> End {
    let link = sim.streams().attach(&[at.ip()]);
    let hca = Hca::over_streams(link).clock(sim.clock().clone()).build();
    let device = hca.open().await.unwrap();
    let pd = device.alloc_pd().await.unwrap();
    let cq = device.create_cq(16).await.unwrap();
    let qp = pd.create_qp(QpInit::rc(&cq, &cq)).await.unwrap();
    qp.init(1, Access::REMOTE).await.unwrap();
    let memory = Memory::alloc(LEN).unwrap();
    let mr = pd.register(memory, Access::LOCAL_WRITE).await.unwrap();
    End {
        device,
        _pd: pd,
        _cq: cq,
        qp,
        mr,
        requests: Arc::default(),
    }
}

/// Goal: a queue pair whose stream is full waits for room, and does not come again and again for what is due meanwhile.
/// Method: the peer, which has never sent anything, has no receive, so it reads nothing, and reminders for it become due.
#[test]
fn a_full_stream_is_waited_for() {
    let sim = Sim::new(3);
    sim.streams().configure(StreamConfig {
        window: 700,
        ..StreamConfig::default()
    });
    let waits = async {
        let [from, to] = [1, 2].map(|host| SocketAddr::from(([10, 0, 0, host], 0)));
        let (mut a, b) = (end(&sim, from).await, end(&sim, to).await);
        let sink = Arc::clone(&b.requests) as Arc<dyn CmSink>;
        let listener = b.device.bind_cm(to, sink).await.unwrap();
        listener.listen(1).await.unwrap();
        let sink = Arc::clone(&a.requests) as Arc<dyn CmSink>;
        let endpoint = a.device.bind_cm(from, sink).await.unwrap();
        let connect = endpoint.connect(&a.qp, listener.local(), CmParam::default(), vec![]);
        let said = Arc::new(Mutex::new(None));
        let tell = Arc::clone(&said);
        let _ = connect.issue(move |reply| *tell.lock() = Some(reply));
        sim.sleep(Duration::from_millis(1)).await;
        let request = b.requests.0.lock().pop().unwrap();
        let accept = request.endpoint.accept(&b.qp, CmParam::default(), vec![]);
        accept.await.unwrap();
        sim.sleep(Duration::from_millis(1)).await;
        let reply = said.lock().take().unwrap().unwrap();
        assert!(matches!(reply, CmReply::Established(_)), "{reply:?}");
        let send = Send::new(7).from(a.mr.slice(0..LEN)).signaled();
        a.qp.post_send(send).unwrap();
        let before = sim.counts().timers;
        sim.sleep(Duration::from_secs(3)).await;
        sim.counts().timers - before
    };
    // The peer looks for a receive every 5 ms.
    let steps = sim.run(waits).unwrap();
    assert!(steps < 1500, "{steps} steps in three seconds");
}
