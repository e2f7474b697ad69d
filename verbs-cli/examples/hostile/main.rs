//! Strangers in a server's network, at a bounded rate: for `ci/hostile`, which looks at an honest client beside
//! them.
//!
//!     hostile ADDRESS:PORT SECONDS CLIENTS RATE [SOCKET]
//!
//! CLIENTS strangers, on a thread each, do RATE things a second together. They take turns with what strangers
//! do: connections of TCP that say nothing, or half of what is expected, or garbage; forged requests of the
//! connection manager, each from another address of 127.128.0.0/9; datagrams of garbage, and requests that are
//! damaged. With SOCKET they connect to that Unix socket too. Only addresses of 127.0.0.0/8 are taken.

mod forge;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// Connections that a stranger keeps open, the newest ones.
const KEPT_MAX: usize = 16;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(plan) = Plan::parse(&arguments) else {
        eprintln!("usage: hostile 127.A.B.C:PORT SECONDS CLIENTS RATE [SOCKET]");
        return ExitCode::from(2);
    };
    let done: u64 = thread::scope(|scope| {
        let plan = &plan;
        let strangers: Vec<_> = (0..plan.clients)
            .map(|n| scope.spawn(move || plan.stranger(n)))
            .collect();
        let done = strangers.into_iter().map(|one| one.join().unwrap_or(0));
        done.sum()
    });
    println!("{done} things in {} s", plan.time.as_secs());
    ExitCode::SUCCESS
}

/// What is done to whom.
struct Plan {
    to: SocketAddrV4,
    time: Duration,
    clients: u32,
    pause: Duration,
    socket: Option<String>,
}

impl Plan {
    fn parse(arguments: &[String]) -> Option<Self> {
        let [to, seconds, clients, rate, socket @ ..] = arguments else {
            return None;
        };
        let (to, clients): (SocketAddrV4, u32) = (to.parse().ok()?, clients.parse().ok()?);
        let (seconds, rate): (u64, u32) = (seconds.parse().ok()?, rate.parse().ok()?);
        let is_ours = to.ip().is_loopback() && (1..=1000).contains(&clients) && rate > 0;
        is_ours.then(|| Self {
            to,
            time: Duration::from_secs(seconds),
            clients,
            pause: Duration::from_secs(1) * clients / rate,
            socket: socket.first().cloned(),
        })
    }

    /// One of them; how much it did.
    fn stranger(&self, n: u32) -> u64 {
        let (until, mut dice) = (Instant::now() + self.time, u64::from(n) + 1);
        let (mut streams, mut sockets) = (Vec::new(), Vec::new());
        let mut done = 0;
        while Instant::now() < until {
            let number = n << 20 | u32::try_from(done % (1 << 20)).unwrap_or(0);
            // What fails is no matter: the system has no more, or the server has gone.
            match (u64::from(n) + done) % 6 {
                0 => keep(&mut streams, TcpStream::connect(self.to).ok()),
                1 => keep(&mut streams, self.half().ok()),
                2 => keep(&mut streams, self.garbage(&mut dice).ok()),
                3 => drop(self.forge(number, None)),
                4 => drop(self.forge(number, Some(&mut dice))),
                _ => drop(self.noise(&mut dice)),
            }
            if let Some(path) = &self.socket {
                keep(&mut sockets, self.unix(path, &mut dice).ok());
            }
            done += 1;
            thread::sleep(self.pause);
        }
        done
    }

    /// The first half of a message.
    fn half(&self) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.to)?;
        stream.write_all(b"VCPY\0\x01\0\x01\0\0")?;
        Ok(stream)
    }

    fn garbage(&self, dice: &mut u64) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.to)?;
        stream.write_all(&random(dice, 200))?;
        Ok(stream)
    }

    fn unix(&self, path: &str, dice: &mut u64) -> std::io::Result<UnixStream> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        if draw(dice).is_multiple_of(2) {
            stream.write_all(&random(dice, 64))?;
        }
        Ok(stream)
    }

    /// A request with an address of its own, whose owner hears nothing of it; with dice it is damaged.
    fn forge(&self, number: u32, dice: Option<&mut u64>) -> std::io::Result<()> {
        let from = Ipv4Addr::from(0x7f80_0000 | number & 0x007f_ffff);
        let mut request = forge::request(from, self.to, number, &[]);
        if let Some(dice) = dice {
            let at = draw(dice) as usize % request.len();
            request[at] ^= draw(dice) as u8 | 1;
        }
        let roce = SocketAddrV4::new(*self.to.ip(), 4791);
        forge::socket(from)?.send_to(&request, roce).map(drop)
    }

    fn noise(&self, dice: &mut u64) -> std::io::Result<()> {
        let len = draw(dice) as usize % 1500;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let roce = SocketAddrV4::new(*self.to.ip(), 4791);
        socket.send_to(&random(dice, len), roce).map(drop)
    }
}

/// Keeps what was opened, and lets the oldest go.
fn keep<T>(all: &mut Vec<T>, one: Option<T>) {
    all.extend(one);
    if all.len() > KEPT_MAX {
        all.remove(0);
    }
}

fn random(dice: &mut u64, len: usize) -> Vec<u8> {
    (0..len).map(|_| draw(dice) as u8).collect()
}

fn draw(dice: &mut u64) -> u64 {
    *dice ^= *dice << 13;
    *dice ^= *dice >> 7;
    *dice ^= *dice << 17;
    *dice >> 8
}
