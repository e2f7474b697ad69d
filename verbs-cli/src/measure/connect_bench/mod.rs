//! `verbs connect-bench`: how fast connections are made and ended.

mod local;
mod remote;

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::connecting::ConnectArgs;
use crate::exit;
use crate::report::{self, line};
use crate::wire::{NicName, Transport, WireError};

pub(crate) const ABOUT: &str = "\
Measure how fast connections are made and ended by the connection manager.

In one process: connections between two software HCAs on a loopback link, driven by the completions of the \
modifies that they need, beside the same state machine and the same commands driven through one worker \
thread that waits for each. Every connection has a new queue pair at both ends, which is destroyed.

Between two processes (--serve, --to): one connection after the other, beside TCP connect, accept and close \
between the same two. Over TCP (--transport iwarp), the port numbers are those of ordinary TCP: the ordinary \
connections go to the next number.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  verbs connect-bench                            in one process
  verbs connect-bench --command-us 20            commands take 20 us, as hardware's do
  verbs connect-bench --count 50000              and what is left afterwards
  verbs connect-bench --json | jq .ratio         for programs

  verbs connect-bench --serve 127.0.0.1:7175     in one terminal
  verbs connect-bench --to 127.0.0.1:7175        in another
  verbs connect-bench --to 127.0.0.1:7175 --transport iwarp   where --serve has that option too

Exit codes:
  0  done
  1  an address could not be had, or the peer not be reached
  2  the arguments are wrong
  5  a verb failed, or something was left behind";

#[derive(Args, Debug)]
pub(crate) struct ConnectBenchArgs {
    /// Connections of each measurement
    #[arg(long, value_name = "N", default_value_t = 2000,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Connections that are being made at a time, in one process
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) parallel: u32,
    /// Microseconds that each command of the HCAs takes
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub(crate) command_us: u64,
    /// Measurements of each kind, in turns; the median counts
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeats: u32,
    /// Serve another process at that address, for ever
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "to", group = "peer")]
    pub(crate) serve: Option<SocketAddr>,
    /// Measure with the process that serves there
    #[arg(long, value_name = "ADDR:PORT", group = "peer")]
    pub(crate) to: Option<SocketAddr>,
    /// Between two processes, an RDMA NIC of this host instead of the software HCA: rdma:NAME, such as rdma:mlx5_0
    #[arg(long, value_name = "rdma:NAME")]
    pub(crate) device: Option<NicName>,
    /// Between two processes, what carries messages: roce, packets over UDP; or iwarp, streams over TCP
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "TRANSPORT",
        conflicts_with = "device",
        requires = "peer"
    )]
    pub(crate) transport: Transport,
    /// Between two processes, write all packets to a file for Wireshark, from their IP headers on (link type 101, raw IP)
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "device",
        requires = "peer"
    )]
    pub(crate) pcap: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long, conflicts_with = "serve")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Why a measurement failed. Each is one sentence without its full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("no connection: {0}")]
    Connection(verbs_cm::Error),
    #[error("cannot {doing}: {error}")]
    System {
        doing: &'static str,
        error: io::Error,
    },
    #[error("cannot write the result to stdout: {0}")]
    Stdout(io::Error),
    #[error("a verb failed: {0}")]
    Verb(verbs_core::Error),
    /// Something is still there.
    #[error("{connections} connections and {objects} objects are left behind")]
    Left { connections: usize, objects: u32 },
}

impl From<verbs_cm::Error> for BenchError {
    fn from(error: verbs_cm::Error) -> Self {
        Self::Connection(error)
    }
}

impl From<verbs_core::Error> for BenchError {
    fn from(error: verbs_core::Error) -> Self {
        Self::Verb(error)
    }
}

impl BenchError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Wire(_) | Self::Connection(_) | Self::System { .. } | Self::Stdout(_) => {
                exit::FILES
            }
            Self::Verb(_) | Self::Left { .. } => exit::DEVICE,
        }
    }

    fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { doing, error }
    }
}

/// Runs the command, printing as it goes. Blocks.
pub(crate) fn run(args: &ConnectBenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    match (args.serve, args.to) {
        (Some(at), _) => remote::serve(args, at, out),
        (None, Some(at)) => remote::measure(args, at, out),
        (None, None) => local::measure(args, out),
    }
}

fn say(out: &mut dyn Write, text: fmt::Arguments<'_>) -> Result<(), BenchError> {
    line(out, &text).map_err(BenchError::Stdout)
}

/// A result: for programs, or in the words of people.
fn show<T: Serialize + fmt::Display>(
    args: &ConnectBenchArgs,
    result: &T,
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    if args.json {
        return report::json(out, result).map_err(BenchError::Stdout);
    }
    say(out, format_args!("{result}"))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
