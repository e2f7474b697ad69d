//! `verbs rping`: pings over RDMA, as with `rping` of librdmacm, whose messages it speaks: either end can
//! be that program.
//!
//! ```text
//! client                                   server
//!   │ ── REQ, REP, RTU of the connection manager ──▶ │
//!   │ ── SEND: where the ping is ───────────────────▶ │ READ
//!   │ ◀── SEND: go on ─────────────────────────────── │
//!   │ ── SEND: where it may be written to ──────────▶ │ WRITE
//!   │ ◀── SEND: done ──────────────────────────────── │
//! ```

mod args;
mod end;
mod error;
mod server;

use std::fmt;
use std::future::IntoFuture;
use std::io::Write;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{Either, select};
use serde::Serialize;
use verbs_cm::Manager;
use verbs_core::Device;

use crate::ending::{Ending, GOODBYE, within};
use crate::report::{self, line};
use crate::wire::{Network, Wire};

pub(crate) use self::args::{ABOUT, EXAMPLES, RpingArgs};
use self::end::End;
pub(crate) use self::error::RpingError;

/// Runs the command, printing as it goes. Blocks until the pings are done.
pub(crate) fn run(
    args: &RpingArgs,
    network: &dyn Network,
    out: &mut (dyn Write + Send),
) -> Result<(), RpingError> {
    let wire = match args.peer() {
        Some(peer) => Wire::open_for(network, &args.wire.bind, args.interface, peer)?,
        None => match (&args.wire.bind[..], args.address) {
            ([], Some(address)) => network.attach(&[address])?,
            ([], None) => network.attach_all()?,
            (named, _) => network.attach(named)?,
        },
    };
    let ending = Ending::begin().map_err(|error| RpingError::System {
        doing: "be told of INT and TERM",
        error,
    })?;
    let device = block_on(wire.device());
    let device = device.map_err(RpingError::verb("open the device"))?;
    let done = match args.peer() {
        Some(peer) => {
            let asking = pin!(ask(args, &device, peer, out));
            match block_on(select(asking, pin!(ending.told()))) {
                Either::Left((done, _)) => Ok(done),
                // What asks is not dropped before: its connection is ended, and the peer told.
                Either::Right((signal, _asking)) => {
                    goodbye(&device);
                    Err(signal)
                }
            }
        }
        None => server::serve(args, &device, &ending, out),
    };
    let captured = wire.finish_capture().map_err(RpingError::from);
    match done {
        Ok(done) => done.and(captured),
        Err(signal) => signal.obey(),
    }
}

/// Ends all connections: the peers hear of it, and have a moment to answer.
fn goodbye(device: &Device) {
    let goodbye = Manager::of(device).disconnect_all();
    let _unanswered = within(Instant::now() + GOODBYE, goodbye);
}

/// The client.
async fn ask(
    args: &RpingArgs,
    device: &Device,
    peer: SocketAddr,
    out: &mut dyn Write,
) -> Result<(), RpingError> {
    let mut end = End::new(device, args.size).await?;
    let mut connecting = verbs_cm::connect(device, peer, end.queue_pair().await?)
        .timeout(args.connect.connect_timeout)
        .responder_resources(1)
        .initiator_depth(1);
    if let Some(from) = args.interface {
        connecting = connecting.bind(SocketAddr::new(from, 0));
    }
    let connecting = connecting.into_future();
    let connected = args.connect.await_connection(device, peer, connecting);
    end.connection = Some(connected.await.map_err(verbs_cm::Error::from)?);
    let asked = ping(args, &mut end, out).await;
    end.leave(device, asked).await
}

/// Pings until it was often enough.
async fn ping(args: &RpingArgs, end: &mut End, out: &mut dyn Write) -> Result<(), RpingError> {
    let mut ping = 0;
    let mut times = Times::default();
    while args.count.is_none_or(|count| ping < count) {
        let begun = Instant::now();
        let text = content(ping, args.size as usize);
        end.prepare(&text)?;
        for from_start in [true, false] {
            end.announce(from_start).await?;
            if end.receive().await?.is_none() {
                return Err(RpingError::Ended(ping));
            }
        }
        let came = end.fetched()?;
        if args.validate {
            check(ping, &text, &came)?;
        }
        if args.verbose {
            say(out, &format_args!("ping data: {}", readable(&came)))?;
        }
        ping += 1;
        times.add(begun.elapsed());
    }
    if args.json {
        let result = times.result(args.size);
        return report::json(out, &result).map_err(RpingError::Stdout);
    }
    Ok(())
}

/// How long the pings took.
#[derive(Debug, Default)]
struct Times {
    count: u64,
    sum: Duration,
    shortest: Option<Duration>,
    longest: Duration,
}

/// The result for programs. Times are in microseconds, and those of whole pings: a READ, a WRITE and four messages.
#[derive(Debug, Serialize)]
struct Pings {
    pings: u64,
    bytes: u32,
    seconds: f64,
    min_us: Option<f64>,
    mean_us: Option<f64>,
    max_us: Option<f64>,
}

impl Times {
    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.sum += took;
        self.shortest = Some(self.shortest.map_or(took, |least| least.min(took)));
        self.longest = self.longest.max(took);
    }

    fn result(&self, bytes: u32) -> Pings {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let any = self.shortest.is_some();
        Pings {
            pings: self.count,
            bytes,
            seconds: self.sum.as_secs_f64(),
            min_us: self.shortest.map(us),
            mean_us: any.then(|| us(self.sum) / self.count as f64),
            max_us: any.then(|| us(self.longest)),
        }
    }
}

/// The bytes of a ping: its number, then characters from the next one of the alphabet on.
fn content(ping: u64, size: usize) -> Vec<u8> {
    const FIRST: u8 = b'A';
    const LAST: u8 = b'z';
    let mut bytes = format!("rdma-ping-{ping}: ").into_bytes();
    let span = u64::from(LAST - FIRST) + 1;
    let start = FIRST + u8::try_from(ping % span).unwrap_or(0);
    let letters = (start..=LAST).chain((FIRST..=LAST).cycle());
    bytes.extend(letters.take(size.saturating_sub(bytes.len())));
    bytes.truncate(size);
    if let Some(last) = bytes.last_mut() {
        *last = 0;
    }
    bytes
}

fn check(ping: u64, sent: &[u8], came: &[u8]) -> Result<(), RpingError> {
    let wrong = (0..).zip(sent.iter().zip(came));
    let wrong = wrong.into_iter().find(|(_, (sent, came))| sent != came);
    wrong.map_or(Ok(()), |(at, (&expected, &got))| {
        Err(RpingError::Content {
            ping,
            at,
            got,
            expected,
        })
    })
}

/// What is before the zero at the end, for people to read.
fn readable(bytes: &[u8]) -> impl fmt::Display + use<> {
    let end = bytes.iter().position(|&byte| byte == 0);
    let text = &bytes[..end.unwrap_or(bytes.len())];
    let shown = |&byte: &u8| match byte {
        b' '..=b'~' => char::from(byte).to_string(),
        other => other.escape_ascii().to_string(),
    };
    text.iter().map(shown).collect::<String>()
}

fn say(out: &mut dyn Write, text: &dyn fmt::Display) -> Result<(), RpingError> {
    line(out, text).map_err(RpingError::Stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_those_of_the_program() {
        let first = content(0, 64);
        assert_eq!(
            readable(&first).to_string(),
            "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr"
        );
        assert_eq!(readable(&content(1, 20)).to_string(), "rdma-ping-1: BCDEFG");
        assert!(
            readable(&content(57, 32))
                .to_string()
                .starts_with("rdma-ping-57: z")
        );
        assert!(
            readable(&content(58, 32))
                .to_string()
                .starts_with("rdma-ping-58: A")
        );
        assert_eq!(
            check(7, &first, &first)
                .err()
                .map(|error| error.to_string()),
            None
        );
        let damaged = check(7, &first, &content(1, 64)).expect_err("they differ");
        assert!(
            damaged
                .to_string()
                .starts_with("ping 7 came back damaged: byte 10")
        );
    }
}
