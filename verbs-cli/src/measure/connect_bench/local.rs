//! Both ends in one process.

use std::cell::Cell;
use std::fmt;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::executor::block_on;
use futures::future::{Either, select, try_join_all};
use futures::stream::FuturesUnordered;
use hca_sim::command::{CommandConfig, CommandTime};
use hca_sim::{Hca, Loopback};
use serde::Serialize;
use verbs_cm::resolver::Fixed;
use verbs_cm::{Counts, Listener, Manager, Modify};
use verbs_core::sync::{Arc, thread};
use verbs_core::{Cq, Device, Pd, Qp, QpInit};

use super::{BenchError, ConnectBenchArgs, median, show};

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 7174);

/// What drives connections.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drive {
    Completions,
    Worker,
}

/// A host: a device with what queue pairs are made of.
struct Side {
    // Dropped in this order.
    manager: Manager,
    cq: Cq,
    pd: Pd,
    device: Device,
}

pub(super) fn measure(args: &ConnectBenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let count = args.count;
    let mut times: [Vec<Duration>; 2] = Default::default();
    let mut left = Counts::default();
    for _ in 0..args.repeats {
        for (drive, times) in [Drive::Completions, Drive::Worker]
            .into_iter()
            .zip(&mut times)
        {
            let (time, counts) = round(args, drive)?;
            times.push(time);
            left = counts;
        }
    }
    let [completions, worker] = times.each_mut().map(|times| median(times));
    let rate = |time: Duration| f64::from(count) / time.as_secs_f64();
    let rates = Rates {
        connections: count,
        parallel: args.parallel,
        command_us: args.command_us,
        repeats: args.repeats,
        completions_per_second: rate(completions),
        worker_per_second: rate(worker),
        ratio: rate(completions) / rate(worker),
        left_handles: left.handles,
        left_ports: left.ports,
        left_in_timewait: left.connections,
    };
    show(args, &rates, out)
}

/// How many connections are made in a second, and what is left of them.
#[derive(Serialize)]
struct Rates {
    connections: u32,
    parallel: u32,
    command_us: u64,
    repeats: u32,
    completions_per_second: f64,
    worker_per_second: f64,
    ratio: f64,
    left_handles: usize,
    left_ports: usize,
    left_in_timewait: usize,
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} connections made and ended, {} at a time, commands of {} us, medians of {}:",
            self.connections, self.parallel, self.command_us, self.repeats
        )?;
        for (what, rate) in [
            ("driven by completions", self.completions_per_second),
            ("through a waiting worker", self.worker_per_second),
        ] {
            writeln!(f, "  {what:25} {rate:>10.0} per second")?;
        }
        writeln!(f, "  {:25} {:>10.2}", "ratio", self.ratio)?;
        write!(
            f,
            "left: {} connections with a handle, {} port numbers; {} connections in timewait",
            self.left_handles, self.left_ports, self.left_in_timewait
        )
    }
}

/// Makes and ends all connections; the time, and what the client's manager keeps afterwards.
fn round(args: &ConnectBenchArgs, drive: Drive) -> Result<(Duration, Counts), BenchError> {
    let link = Loopback::default();
    let hcas = [(); 2].map(|()| {
        let builder = Hca::on(&link);
        match args.command_us {
            0 => builder.build(),
            us => builder
                .commands(CommandConfig {
                    time: CommandTime::Fixed(Duration::from_micros(us)),
                    ..CommandConfig::default()
                })
                .build(),
        }
    });
    let table = [1, 2]
        .into_iter()
        .zip(&hcas)
        .fold(Fixed::new(), |table, (n, hca)| {
            table.way(IpAddr::from([10, 0, 0, n]), hca.gid(), Some(hca.lid()))
        });
    let table = Arc::new(table);
    let (worker, jobs) = mpsc::channel::<Modify>();
    let thread = thread::spawn(move || jobs.into_iter().for_each(Modify::wait));
    let sides = block_on(try_join_all(hcas.iter().map(|hca| {
        let (table, worker) = (Arc::clone(&table), worker.clone());
        async move {
            let side = Side::open(hca).await?;
            side.manager.use_resolver(table).await?;
            if drive == Drive::Worker {
                let modifier = move |modify| {
                    // The thread ends after the last sender has gone.
                    let _ = worker.send(modify);
                };
                side.manager.modify_by(Arc::new(modifier)).await?;
            }
            Ok::<_, BenchError>(side)
        }
    })))?;
    drop(worker);
    let [client, server] = &sides[..] else {
        unreachable!("there are two");
    };
    let time = block_on(run(args, client, server))?;
    let counts = settled(client)?;
    for side in sides {
        side.close(counts)?;
    }
    // It has nothing left to do.
    let _ = thread.join();
    Ok((time, counts))
}

/// Nothing may be left but what is in timewait.
fn settled(side: &Side) -> Result<Counts, BenchError> {
    let patience = Instant::now() + Duration::from_secs(5);
    loop {
        let counts = block_on(async { side.manager.count().await })?;
        if counts.handles == 0 && counts.ports == 0 {
            return Ok(counts);
        }
        if Instant::now() > patience {
            return Err(BenchError::Left {
                connections: counts.handles,
                objects: side.device.objects(),
            });
        }
        // The worker may have the last modify in its hands.
        thread::yield_now();
    }
}

async fn run(
    args: &ConnectBenchArgs,
    client: &Side,
    server: &Side,
) -> Result<Duration, BenchError> {
    let listener = server.manager.listen(SERVER).backlog(1024).await?;
    let left = Cell::new(args.count);
    let start = Instant::now();
    let clients = try_join_all((0..args.parallel).map(|_| async {
        while left.get() > 0 {
            left.set(left.get() - 1);
            let connection = client.manager.connect(SERVER, client.qp().await?).await;
            connection.map_err(verbs_cm::Error::from)?.close().await?;
        }
        Ok::<_, BenchError>(())
    }));
    let serving = pin!(serve(listener, server));
    match select(pin!(clients), serving).await {
        Either::Left((done, _)) => done.map(|_| start.elapsed()),
        Either::Right((failed, _)) => Err(failed),
    }
}

/// Accepts every request, and waits for the client to end the connection. Ends by failing only.
async fn serve(mut listener: Listener, server: &Side) -> BenchError {
    let mut open = FuturesUnordered::new();
    loop {
        let request = match select(pin!(listener.next()), open.next()).await {
            Either::Left((Some(request), _)) => request,
            Either::Right((Some(Err(error)), _)) => return error,
            // All that were open are closed: only requests can come.
            Either::Right((None, listening)) => match listening.await {
                Some(request) => request,
                None => continue,
            },
            _ => continue,
        };
        open.push(async move {
            // The client may have ended it before it was there at this end.
            let Ok(connection) = request.accept(server.qp().await?).await else {
                return Ok(());
            };
            connection.closed().await?;
            connection.close().await?;
            Ok::<_, BenchError>(())
        });
    }
}

impl Side {
    async fn open(hca: &Arc<Hca>) -> Result<Self, BenchError> {
        let device = hca.open().await?;
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

    /// Closes everything: nothing may be left but the device, or it is said what.
    fn close(self, counts: Counts) -> Result<(), BenchError> {
        let Self {
            manager,
            cq,
            pd,
            device,
        } = self;
        drop((manager, cq, pd));
        let patience = Instant::now() + Duration::from_secs(5);
        while device.objects() > 0 {
            if Instant::now() > patience {
                return Err(BenchError::Left {
                    connections: counts.handles,
                    objects: device.objects(),
                });
            }
            // The engine's thread may be about to leave the manager.
            thread::yield_now();
        }
        device
            .close()
            .wait()
            .map_err(|refused| refused.error.into())
    }
}
