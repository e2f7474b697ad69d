//! Ends in two processes, beside TCP.

use std::future::IntoFuture;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use verbs_cm::Manager;
use verbs_core::sync::thread;
use verbs_core::{Cq, Device, Pd, Qp, QpInit};

use super::{BenchError, ConnectBenchArgs, median, say};
use crate::cli::WireArgs;
use crate::wire::{Network, Roce, Wire};

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

/// Accepts, over both, until it is interrupted.
pub(super) fn serve(at: SocketAddr, out: &mut dyn Write) -> Result<(), BenchError> {
    let args = WireArgs::default();
    let wire = Roce::new(&args).attach(&[at.ip()])?;
    let tcp = TcpListener::bind(at).map_err(BenchError::system("listen for TCP"))?;
    thread::spawn(move || {
        for stream in tcp.incoming() {
            // Accepted, and closed at once.
            drop(stream);
        }
    });
    block_on(async {
        let end = End::open(&wire).await?;
        let mut listener = end.manager.listen(at).await?;
        say(out, format_args!("serving at {}", listener.local_addr()))?;
        loop {
            let request = listener.accept().await;
            // The next one's queue pair is made when it is needed, as a server would.
            let accepted = request.accept(end.qp().await?).await;
            let Ok(connection) = accepted else { continue };
            connection.closed().await?;
            connection.close().await?;
        }
    })
}

/// Measures both, in turns.
pub(super) fn measure(
    args: &ConnectBenchArgs,
    at: SocketAddr,
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    let wires = WireArgs::default();
    let wire = Wire::open_towards(&Roce::new(&wires), &[], at.ip(), at.ip())?;
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
            tcp.push(one_tcp(args, at)?);
        }
        Ok::<_, BenchError>(())
    })?;
    let [made, whole, tcp] = [&mut made, &mut whole, &mut tcp].map(|times| median(times));
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    say(
        out,
        format_args!(
            "{} connections with {at}, one after the other, medians:",
            args.count
        ),
    )?;
    for (what, time) in [
        ("queue pair made and connected", made),
        ("and disconnected and destroyed", whole),
        ("TCP connect, accept, close", tcp),
    ] {
        say(out, format_args!("  {what:32} {:>8.1} us", micros(time)))?;
    }
    let ratio = micros(made) / micros(tcp);
    say(out, format_args!("  {:32} {ratio:>8.2}", "set-up over TCP"))
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
