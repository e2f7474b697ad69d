//! Requests and answers of 4 KiB, awaited: over RoCEv2 beside TCP, in turns in one run.
//!
//! `cargo bench -p verbs-benches --bench requests [udp|tcp] [one|many] [ROUNDS]` prints requests per second, the medians of
//! several turns. Server and client are threads with a runtime each, of one thread. With a carrier named, it alone runs: to
//! be traced, for instance.
//!
//! It keeps a timer of its own, and is no bench of Criterion: the figure is the ratio of two programs that take turns, so that
//! what else the machine does affects both. Criterion measures one subject whole before the next.

use std::error::Error;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use verbs::prelude::*;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LEN: usize = 4096;
const MANY: u32 = 64;
const TURNS: usize = 15;
const PORT: u16 = 7471;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let smoke = has("--test");
    let rounds = args.iter().find_map(|arg| arg.parse().ok());
    let rounds = rounds.unwrap_or(if smoke { 100 } else { 5_000 });
    let turns = if smoke { 1 } else { TURNS };
    let only = ["udp", "tcp"].into_iter().find(|name| has(name));
    for (hosts, name, count) in [([1, 2], "one", 1), ([3, 4], "many", MANY as usize)] {
        let is_named = has(name) || !(has("one") || has("many"));
        if is_named {
            run(only, hosts, count, rounds, turns)?;
        }
    }
    Ok(())
}

/// Turns with that many requests under way.
fn run(
    only: Option<&str>,
    hosts: [u8; 2],
    count: usize,
    rounds: usize,
    turns: usize,
) -> Result<()> {
    let [server, client] = hosts.map(here);
    let udp = own_thread(move |ready| udp_server(server, ready));
    let tcp = own_thread(tcp_server);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let net = open(client).await?;
        let server = udp.recv()?;
        let conn = net.connect((server, PORT)).await?;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, tcp.recv()?)).await?;
        stream.set_nodelay(true)?;
        let (mut over_udp, mut over_tcp, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..turns {
            if only != Some("tcp") {
                over_udp.push(rate(rounds, udp_requests(&conn, count, rounds)).await?);
            }
            if only != Some("udp") {
                over_tcp.push(rate(rounds, tcp_requests(&mut stream, count, rounds)).await?);
            }
            ratios.extend(over_udp.last().zip(over_tcp.last()).map(|(a, b)| a / b));
        }
        println!(
            "{count:2} under way: UDP {:6.0} requests/s, TCP {:6.0}, {:.2} of it ({:.2} to {:.2})",
            median(&mut over_udp),
            median(&mut over_tcp),
            median(&mut ratios),
            ratios.first().unwrap_or(&f64::NAN),
            ratios.last().unwrap_or(&f64::NAN),
        );
        conn.close().await?;
        Ok(())
    })
}

/// An address of this process.
fn here(last: u8) -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high, low, last).into()
}

/// Runs that on a thread with a runtime of its own.
fn own_thread<T, F>(
    server: impl FnOnce(Sender<T>) -> F + Send + 'static,
) -> std::sync::mpsc::Receiver<T>
where
    T: Send + 'static,
    F: Future<Output = Result<()>>,
{
    let (ready, wait) = channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let served = runtime.map(|runtime| runtime.block_on(server(ready)));
        match served {
            Ok(Ok(())) => {}
            failed => eprintln!("the server ends: {failed:?}"),
        }
    });
    wait
}

/// Rounds per second.
async fn rate(rounds: usize, work: impl Future<Output = Result<()>>) -> Result<f64> {
    let begun = Instant::now();
    work.await?;
    Ok(rounds as f64 / begun.elapsed().as_secs_f64())
}

/// The median; the values are sorted then.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

async fn open(address: IpAddr) -> Result<Endpoint> {
    let endpoint = Endpoint::udp(address);
    Ok(endpoint
        .message_size(LEN as u32)
        .window(MANY)
        .open()
        .await?)
}

async fn udp_server(address: IpAddr, ready: Sender<IpAddr>) -> Result<()> {
    let net = open(address).await?;
    let mut clients = net.listen((address, PORT)).await?;
    ready.send(address)?;
    let conn = clients.accept().await;
    while let Some(request) = conn.recv().await? {
        conn.send(request).posted().await?;
    }
    Ok(())
}

async fn udp_requests(conn: &Connection, count: usize, rounds: usize) -> Result<()> {
    for _ in 0..count {
        let mut first = conn.buf().await;
        first.fill_from(&[7; LEN]);
        conn.send(first).posted().await?;
    }
    for round in 1..=rounds {
        let answer = conn.recv().await?.ok_or("closed")?;
        assert_eq!(answer.len(), LEN);
        if round + count <= rounds {
            conn.send(answer).posted().await?;
        }
    }
    Ok(())
}

async fn tcp_server(ready: Sender<u16>) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    ready.send(listener.local_addr()?.port())?;
    let (mut client, _) = listener.accept().await?;
    client.set_nodelay(true)?;
    let mut request = vec![0; LEN];
    loop {
        if let Err(error) = client.read_exact(&mut request).await {
            let is_over = error.kind() == std::io::ErrorKind::UnexpectedEof;
            return if is_over { Ok(()) } else { Err(error.into()) };
        }
        client.write_all(&request).await?;
    }
}

async fn tcp_requests(stream: &mut TcpStream, count: usize, rounds: usize) -> Result<()> {
    let mut bytes = vec![7; LEN];
    for _ in 0..count {
        stream.write_all(&bytes).await?;
    }
    for round in 1..=rounds {
        stream.read_exact(&mut bytes).await?;
        if round + count <= rounds {
            stream.write_all(&bytes).await?;
        }
    }
    Ok(())
}
