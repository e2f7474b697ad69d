//! Ends in two processes, beside TCP.

use std::collections::VecDeque;
use std::fmt;
use std::future::IntoFuture;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::executor::block_on;
use futures::future::{AbortHandle, Abortable, Either, select};
use futures::stream::FuturesUnordered;
use serde::Serialize;
use verbs_cm::{ConnectRequest, Manager};
use verbs_core::sync::thread;
use verbs_core::{Cq, Device, Pd, Qp, QpInit};

use super::{BenchError, ConnectBenchArgs, median, say, show};
use crate::ending::{Ending, GOODBYE, within};
use crate::wire::{Transport, Wire, WireArgs, any_network};

/// Connections that are there, or on their way, at the same time; beyond that the oldest gives way. Clients
/// of ours have one.
const OPEN_MAX: usize = 256;

/// How long to wait when the system has no more descriptors.
const BREATH: Duration = Duration::from_millis(100);

struct End {
    // Dropped in this order.
    manager: Manager,
    cq: Cq,
    pd: Pd,
    device: Device,
}

impl End {
    async fn open(wire: &Wire) -> Result<Self, BenchError> {
        let device = wire.device().await?;
        let manager = Manager::of(&device);
        manager.open().await?;
        Ok(Self {
            manager,
            cq: device.create_cq(64).await?,
            pd: device.alloc_pd().await?,
            device,
        })
    }

    async fn qp(&self) -> Result<Qp, BenchError> {
        Ok(self.pd.create_qp(QpInit::rc(&self.cq, &self.cq)).await?)
    }
}

fn wire_args(args: &ConnectBenchArgs) -> WireArgs {
    WireArgs {
        device: args.device.clone(),
        transport: args.transport,
        pcap: args.pcap.clone(),
        ..WireArgs::default()
    }
}

/// Where ordinary connections of TCP go: iWARP has its number for itself.
fn ordinary(args: &ConnectBenchArgs, at: SocketAddr) -> SocketAddr {
    let mut ordinary = at;
    if args.transport == Transport::Iwarp {
        ordinary.set_port(at.port().wrapping_add(1).max(1));
    }
    ordinary
}

/// Accepts, over both, until it is interrupted.
pub(super) fn serve(
    args: &ConnectBenchArgs,
    at: SocketAddr,
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    let wire = any_network(&wire_args(args)).attach(&[at.ip()])?;
    let tcp = TcpListener::bind(ordinary(args, at));
    let tcp = tcp.map_err(BenchError::system("listen for TCP"))?;
    thread::spawn(move || {
        for stream in tcp.incoming() {
            if stream.is_err() {
                // No descriptors, for now.
                thread::sleep(BREATH);
            }
            // Accepted, and closed at once.
            drop(stream);
        }
    });
    let ending = Ending::begin().map_err(BenchError::system("be told of INT and TERM"))?;
    let end = block_on(End::open(&wire))?;
    let served = block_on(ending.unless_told(accept_all(&end, at, out)));
    served.unwrap_or_else(|signal| {
        let goodbye = end.manager.disconnect_all();
        let _unanswered = within(Instant::now() + GOODBYE, goodbye);
        wire.finish_capture()?;
        signal.obey()
    })
}

/// Accepts every request, and waits for the client to end the connection. Ends by failing only.
async fn accept_all(end: &End, at: SocketAddr, out: &mut dyn Write) -> Result<(), BenchError> {
    let mut listener = end.manager.listen(at).await?;
    say(out, format_args!("serving at {}", listener.local_addr()))?;
    let mut open = FuturesUnordered::new();
    // In the order in which they came; some have ended.
    let mut oldest = VecDeque::with_capacity(OPEN_MAX);
    loop {
        let request = match select(pin!(listener.next()), open.next()).await {
            Either::Left((Some(request), _)) => request,
            // Never ends.
            Either::Left((None, _)) => return Ok(()),
            // A client that fails, or gave way, is not the server's failure.
            Either::Right((Some(_ended), _)) => continue,
            Either::Right((None, listening)) => match listening.await {
                Some(request) => request,
                None => return Ok(()),
            },
        };
        if oldest.len() == OPEN_MAX
            && let Some(longest) = oldest.pop_front()
        {
            AbortHandle::abort(&longest);
        }
        let (handle, registration) = AbortHandle::new_pair();
        oldest.push_back(handle);
        open.push(Abortable::new(one(end, request), registration));
    }
}

async fn one(end: &End, request: ConnectRequest) -> Result<(), BenchError> {
    // The queue pair is made when it is needed, as a server would.
    let accepted = request.accept(end.qp().await?).await;
    let connection = accepted.map_err(verbs_cm::Error::from)?;
    connection.closed().await?;
    Ok(connection.close().await?)
}

/// Measures both, in turns.
pub(super) fn measure(
    args: &ConnectBenchArgs,
    at: SocketAddr,
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    let wire = Wire::open_for(&*any_network(&wire_args(args)), &[], None, at)?;
    let (mut made, mut whole, mut tcp) = (Vec::new(), Vec::new(), Vec::new());
    block_on(async {
        let end = End::open(&wire).await?;
        for _ in 0..args.count {
            let start = Instant::now();
            let connecting = end.manager.connect(at, end.qp().await?);
            let connecting = connecting.timeout(args.connect.connect_timeout);
            let waiting = args
                .connect
                .await_connection(&end.device, at, connecting.into_future());
            let connection = waiting.await;
            let connection = connection.map_err(verbs_cm::Error::from)?;
            made.push(start.elapsed());
            connection.close().await?;
            whole.push(start.elapsed());
            tcp.push(one_tcp(args, ordinary(args, at))?);
        }
        Ok::<_, BenchError>(())
    })?;
    wire.finish_capture()?;
    let [made, whole, tcp] = [&mut made, &mut whole, &mut tcp].map(|times| median(times));
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let medians = Medians {
        connections: args.count,
        peer: at,
        connected_us: micros(made),
        destroyed_us: micros(whole),
        tcp_us: micros(tcp),
        ratio: micros(made) / micros(tcp),
    };
    show(args, &medians, out)
}

/// What connections one after the other take, beside TCP's.
#[derive(Serialize)]
struct Medians {
    connections: u32,
    peer: SocketAddr,
    connected_us: f64,
    destroyed_us: f64,
    tcp_us: f64,
    ratio: f64,
}

impl fmt::Display for Medians {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            connections, peer, ..
        } = self;
        write!(
            f,
            "{connections} connections with {peer}, one after the other, medians:"
        )?;
        for (what, micros) in [
            ("queue pair made and connected", self.connected_us),
            ("and disconnected and destroyed", self.destroyed_us),
            ("TCP connect, accept, close", self.tcp_us),
        ] {
            write!(f, "\n  {what:32} {micros:>8.1} us")?;
        }
        write!(f, "\n  {:32} {:>8.2}", "set-up over TCP", self.ratio)
    }
}

/// Connects and waits until the server, which has accepted, has closed.
fn one_tcp(args: &ConnectBenchArgs, at: SocketAddr) -> Result<Duration, BenchError> {
    let failed = BenchError::system("connect by TCP");
    let start = Instant::now();
    let ended = args
        .connect
        .connect_tcp(&at)
        .and_then(|mut stream| stream.read(&mut [0]));
    ended.map_err(failed)?;
    Ok(start.elapsed())
}
