//! Arguments of the command line.

mod bench;
mod copy;
pub(crate) mod shell;

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use verbs_core::Mtu;

use self::shell::{CompletionsArgs, ManArgs};
use crate::address::listening;
use crate::connect_bench::{self, ConnectBenchArgs};
use crate::connecting::ConnectArgs;
use crate::connections::{self, ConnectionsArgs};
use crate::demo::{self, DemoArgs};
use crate::exit;
use crate::host::{self, HostArgs};
use crate::ipoib::{self, IpoibArgs};
use crate::logging;
use crate::perf::{self, PerfArgs};
use crate::rds::{self, RdsArgs};
use crate::rping::{self, RpingArgs};
use crate::run::{self, RunArgs};
use crate::sim::{self, SimArgs};
use crate::srp::{self, SrpArgs};
use crate::stats::{self, StatsArgs};
use crate::subnet::{self, SubnetArgs};
use crate::top::{self, TopArgs};
use crate::units::{chunk, mtu};
use crate::wire::{NicName, WireArgs};

pub(crate) use bench::{Bench, BenchArgs};
pub(crate) use copy::{CopyArgs, Fault, Origin, STREAM};

/// RDMA WRITEs outstanding at most. The device's own limit is asked for as well.
const WINDOW_MAX: i64 = (1 << 16) - 1;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  a file or device could not be read, written or opened, or a server not be reached
  2  the arguments are wrong
  3  what arrived has another digest than the source
  4  the source changed while it was being copied
  5  a device failed or was removed on the way
  6  a simulated run broke a rule
Errors are one sentence on stderr. Unless it says otherwise, DST is as it was before.";

const DEVINFO_EXAMPLES: &str = "\
Examples:
  verbs devinfo                          the device and its ports in short
  verbs devinfo -v                       all attributes
  verbs devinfo --json | jq .ports       all attributes for programs

Exit codes:
  0  done
  2  the arguments are wrong
  5  the device could not be opened or asked";

/// RDMA verbs on software HCAs: no hardware, no kernel module, no root.
#[derive(Debug, Parser)]
#[command(name = "verbs", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Say on stderr what happens: LEVEL, or targets with levels, such as debug, verbs::rc=debug or
    /// verbs=debug,verbs::cm=trace. Targets: verbs (each verb), verbs::cm (connections), verbs::rc (retries, NAKs,
    /// congestion), and the crates' names
    #[arg(long, global = true, value_name = "FILTER", env = "VERBS_LOG", value_parser = logging::filter)]
    pub(crate) log: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What Rust says of a number that is none, and what is said here.
const NUMBERS: [(&str, &str); 4] = [
    (
        "invalid digit found in string",
        "a whole number would be right",
    ),
    (
        "cannot parse integer from empty string",
        "a whole number would be right",
    ),
    (
        "number too large to fit in target type",
        "the number is too large",
    ),
    (
        "number too small to fit in target type",
        "the number is too small",
    ),
];

/// The arguments of this process. Ends it if they are wrong.
pub(crate) fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        if error.kind() != ErrorKind::ValueValidation {
            error.exit();
        }
        let text = error.render();
        let mut text = match io::stderr().is_terminal() {
            true => text.ansi().to_string(),
            false => text.to_string(),
        };
        for (theirs, ours) in NUMBERS {
            text = text.replace(theirs, ours);
        }
        // There is no one to tell that stderr is closed.
        let _ = write!(io::stderr(), "{text}");
        std::process::exit(i32::from(exit::USAGE));
    })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copy a file from one software HCA to another by RDMA WRITEs, also from another host
    #[command(long_about = COPY_ABOUT, after_help = format!("{}\n\n{EXIT_CODES}", copy::EXAMPLES))]
    Copy(CopyArgs),
    /// Measure what verbs and messages cost on this machine
    #[command(long_about = bench::ABOUT, after_help = bench::EXAMPLES)]
    Bench(BenchArgs),
    /// Print what completes the words of this command in a shell
    #[command(after_help = shell::COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Measure how fast connections are made
    #[command(long_about = connect_bench::ABOUT, after_help = connect_bench::EXAMPLES)]
    ConnectBench(ConnectBenchArgs),
    /// Show the connections of running programs
    #[command(long_about = connections::ABOUT, after_help = connections::EXAMPLES)]
    Connections(ConnectionsArgs),
    /// Show what all this is: a subnet, IP and RDMA, in this process and in a few seconds
    #[command(long_about = demo::ABOUT, after_help = demo::EXAMPLES)]
    Demo(DemoArgs),
    /// Show what a device can do, as ibv_devinfo does
    #[command(after_help = DEVINFO_EXAMPLES)]
    Devinfo(DevinfoArgs),
    /// Share addresses of this host among processes
    #[command(long_about = host::ABOUT, after_help = host::EXAMPLES)]
    Host(HostArgs),
    /// IP over a simulated InfiniBand subnet: interfaces for ping, iperf3 and ssh
    #[command(long_about = ipoib::ABOUT, after_help = ipoib::EXAMPLES)]
    Ipoib(IpoibArgs),
    /// Print manual pages
    #[command(after_help = shell::MAN_EXAMPLES)]
    Man(ManArgs),
    /// Measure bandwidth and latency between two hosts, as perftest does
    #[command(long_about = perf::ABOUT, after_help = perf::EXAMPLES)]
    Perf(PerfArgs),
    /// Send messages back and forth, as ibv_rc_pingpong and its siblings do
    #[command(long_about = PINGPONG_ABOUT, after_help = PINGPONG_EXAMPLES)]
    Pingpong(PingpongArgs),
    /// Reliable datagrams (RDS): ping, stress and info, as rds-tools have them
    #[command(long_about = rds::ABOUT, after_help = rds::EXAMPLES)]
    Rds(RdsArgs),
    /// Ping over RDMA through the connection manager, as rping does
    #[command(long_about = rping::ABOUT, after_help = rping::EXAMPLES)]
    Rping(RpingArgs),
    /// Run a program that uses libibverbs or librdmacm on a software HCA, unmodified
    #[command(long_about = run::ABOUT, after_help = run::EXAMPLES)]
    Run(RunArgs),
    /// Serve the files of a directory to verbs copy on other hosts
    #[command(long_about = SERVE_ABOUT, after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Run the simulator: nodes, a network that fails, and checkers, all decided by a seed
    #[command(long_about = sim::ABOUT, after_help = sim::EXAMPLES)]
    Sim(SimArgs),
    /// Serve and use disks by the SCSI RDMA Protocol
    #[command(long_about = srp::ABOUT, after_help = srp::EXAMPLES)]
    Srp(SrpArgs),
    /// Show what the software HCAs of running programs have counted
    #[command(long_about = stats::ABOUT, after_help = stats::EXAMPLES)]
    Stats(StatsArgs),
    /// Host a simulated InfiniBand subnet that OpenSM and other tools work on
    #[command(long_about = subnet::ABOUT, after_help = subnet::EXAMPLES)]
    Subnet(SubnetArgs),
    /// Show what running programs do, renewed all the time
    #[command(long_about = top::ABOUT, after_help = top::EXAMPLES)]
    Top(TopArgs),
}

impl Command {
    /// Whether its own process has connections.
    pub(crate) fn has_connections(&self) -> bool {
        matches!(
            self,
            Self::Copy(_)
                | Self::ConnectBench(_)
                | Self::Ipoib(_)
                | Self::Perf(_)
                | Self::Pingpong(_)
                | Self::Rds(_)
                | Self::Rping(_)
                | Self::Serve(_)
                | Self::Srp(_)
        )
    }
}

const COPY_ABOUT: &str = "\
Copy a file from one software HCA to another by RDMA WRITEs.

SRC is read into registered memory of one HCA and moved by WRITEs over a reliable connection into \
registered memory of another: both in this process, or the first in a `verbs serve` that a URL names, \
roce:// to find it over TCP or rdma:// by the connection manager of RDMA. There, PATH is relative to the directory that is served; % and two hexadecimal digits stand for \
a byte. The receiver takes the digest (BLAKE3) of what \
arrived and writes it to DST, which appears under its name only when it is complete and the digest \
is that of the source. Memory use is bounded by 2 * chunk * window, whatever the size of the file.";

const PINGPONG_ABOUT: &str = "\
Send messages back and forth between two hosts.

Does what ibv_rc_pingpong does (uc, ud, srq: what the programs of those names do), with the same text \
protocol over TCP, so that either end can be that program on Linux with a RoCE v2 device: run it there \
with -g and the index of a RoCE v2 GID. xrc speaks as ibv_xsrq_pingpong with one client does; no other \
software device has such connections, so that was never tried against it. Without \
HOST it waits for a client. Packets go over UDP port 4791, which one program at a time has on each \
address of a host. No privileges are needed.";

const PINGPONG_EXAMPLES: &str = "\
Examples, each in two terminals:
  verbs pingpong rc                                    wait for a client
  verbs pingpong rc 127.0.0.1                          be one, on the same host

  verbs pingpong rc -e -s 65536 -m 4096                with events, 64 KiB messages, path MTU 4096
  ibv_rc_pingpong -g 1 -e -s 65536 -m 4096 192.0.2.1   the same, from Linux's side

  verbs pingpong ud -s 2000 127.0.0.1                  datagrams
  verbs pingpong srq -q 4 127.0.0.1                    four connections, one receive queue

  ibv_rc_pingpong -g 2                                 Linux waits; -g 2 is an IPv6 GID
  verbs pingpong rc --bind fd77::1 192.0.2.2           TCP over IPv4, packets over IPv6

Exit codes:
  0  done
  1  the peer could not be reached, or the address could not be had
  2  the arguments are wrong, or do not fit the peer's
  3  the last message is damaged (with --chk)
  5  a verb or a message failed, or the peer has gone";

/// Messages of a pingpong.
#[derive(Args, Debug)]
pub(crate) struct PingpongArgs {
    /// What carries the messages
    #[arg(value_enum)]
    pub(crate) kind: Kind,
    /// Connect to a server there; without it, be the server
    pub(crate) host: Option<String>,
    /// TCP port on which the two find each other
    #[arg(short, long, value_name = "N", default_value_t = 18515,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Bytes of a message, at most 2g, of a datagram at most the port's MTU; k, m and g stand for KiB,
    /// MiB and GiB [default: 4096; ud: 1024]
    #[arg(short, long, value_name = "N", value_parser = chunk)]
    pub(crate) size: Option<u32>,
    /// Queue pairs that share a receive queue (srq only)
    #[arg(short = 'q', long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..SRQ_QPS_MAX as i64))]
    pub(crate) num_qp: u32,
    /// Bytes of a packet's payload at most: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "N", default_value = "1024", value_parser = mtu)]
    pub(crate) mtu: Mtu,
    /// Receives posted at a time
    #[arg(short, long, value_name = "N", default_value_t = 500,
          value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    pub(crate) rx_depth: u32,
    /// Messages each way
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iters: u32,
    /// How long to wait for an acknowledgement before sending again, 7 times at most: 4.096 us * 2^CODE,
    /// 0 for ever. 14 is 67 ms, as in the programs; 18 is a second, for a peer that is slow, such as an
    /// emulated machine (not uc, ud)
    #[arg(long, value_name = "CODE", default_value_t = 14,
          value_parser = clap::value_parser!(u8).range(..=31))]
    pub(crate) timeout: u8,
    /// Which of our GIDs: addresses of --bind are counted from 0. Default: the first that has a way to the peer
    #[arg(short, long, value_name = "N")]
    pub(crate) gid_idx: Option<u16>,
    /// Sleep until an event says that there are completions, rather than poll all the time
    #[arg(short, long)]
    pub(crate) events: bool,
    /// Receive packets by a thread that polls for a while before it sleeps, if other threads leave it the processor:
    /// with --events, shorter times for more of the processor
    #[arg(long)]
    pub(crate) low_latency: bool,
    /// Check at the end what the last message was
    #[arg(short, long)]
    pub(crate) chk: bool,
    /// Print the result as JSON, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
}

impl PingpongArgs {
    /// Bytes of a message.
    pub(crate) fn size(&self) -> u32 {
        self.size.unwrap_or(match self.kind {
            Kind::Ud => 1024,
            _ => 4096,
        })
    }

    /// Connections that are played on.
    pub(crate) fn connections(&self) -> u32 {
        match self.kind {
            Kind::Srq => self.num_qp,
            _ => 1,
        }
    }
}

/// Addresses that `ibv_srq_pingpong` tells, one for each queue pair that there might be.
pub(crate) const SRQ_QPS_MAX: usize = 256;

/// What carries the messages of a pingpong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A reliable connection
    Rc,
    /// An unreliable connection
    Uc,
    /// Unreliable datagrams
    Ud,
    /// Reliable connections that share a receive queue
    Srq,
    /// Extended reliable connections, one each way
    Xrc,
}

const SERVE_ABOUT: &str = "\
Serve the files of a directory to `verbs copy roce://HOST:PORT/PATH DST` on this and other hosts.

Clients find the server over TCP (roce://), or by the connection manager of RDMA (rdma://) where \
--listen or --bind names an address of this host; the files go by RDMA WRITEs over reliable connections, in UDP packets \
to port 4791, which one program at a time has on each address of a host. With --transport iwarp (iwarp://) they find it \
at the same port of TCP and the files go over TCP as well, by RDMA WRITEs of iWARP. Only regular files beneath \
DIR are served; symbolic links are followed as long as they stay there. Everybody who reaches the port \
can read them. A client takes 64 MiB of memory at most. Ends when it is interrupted.";

const SERVE_EXAMPLES: &str = "\
Examples:
  verbs serve DIR                              serve DIR on all addresses, TCP port 7174
  verbs copy roce://127.0.0.1/A B              fetch DIR/A, in another terminal

  verbs serve DIR --listen 192.0.2.1:7000      on one address and another port
  verbs copy rdma://192.0.2.1:7000/A B         fetch DIR/A without TCP
  verbs serve DIR --transport iwarp            over TCP, port 7174 of all addresses
  verbs copy iwarp://192.0.2.1/A B             fetch DIR/A from it

  verbs serve DIR --bind fd77::1 --bind 192.0.2.1
                                               on all addresses, but packets to and from these

Exit codes:
  1  DIR or an address could not be had
  2  the arguments are wrong
Errors of clients are one sentence each on stderr.";

/// What is served to whom.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The directory whose files are served
    pub(crate) dir: PathBuf,
    /// Address and port, of TCP and of the connection manager, on which clients come; default: port 7174
    /// of TCP on all
    #[arg(long, value_name = "ADDR:PORT", value_parser = listening)]
    pub(crate) listen: Option<SocketAddr>,
    /// Clients served at the same time; others are told to come again
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) max_clients: u32,
    /// Of these, clients of one address; default: half of --max-clients
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) max_clients_per_address: Option<u32>,
    /// No line for each client
    #[arg(long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DevinfoArgs {
    /// An RDMA NIC of this host instead of the software HCA: rdma:NAME, such as rdma:mlx5_0. VERBS_DEVICE names one
    /// as well
    #[arg(long, value_name = "rdma:NAME")]
    pub(crate) device: Option<NicName>,
    /// All attributes
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// All attributes in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
