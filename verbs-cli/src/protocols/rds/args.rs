//! Arguments of `verbs rds`, by the letters of rds-tools.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use hca_sim::link::fabric::socket::default_path;

use crate::connecting::duration;
use crate::ipoib::{Place, place};
use crate::wire::{Network, SubnetNode, WireArgs, any_network};

pub(crate) const ABOUT: &str = "\
Reliable datagrams between sockets (RDS 3.1).

One reliable connection between two addresses carries the datagrams of all sockets, exactly once and in order, also when \
it is lost and made again. Either end can be Linux's (the modules rds and rds_rdma) with a RoCE v2 device. Both ends have \
to use the same network: RoCE v2, iWARP (--transport iwarp), or a hosted subnet (--node).";

pub(crate) const EXAMPLES: &str = "\
Exit codes:
  0  done
  1  an address could not be had
  2  the arguments are wrong
  3  a datagram came damaged, twice, or out of order
  5  a verb failed, or nobody answered";

const PING_EXAMPLES: &str = "\
Examples:
  verbs rds ping -c 3 192.0.2.1        three pings to Linux, or to another program of this command
  verbs rds ping -I 127.0.0.2 127.0.0.1
  verbs rds ping --node HcaA -I 10.0.0.1 10.0.0.2     from a node of the subnet that `verbs subnet` hosts";

const STRESS_EXAMPLES: &str = "\
Examples, in two terminals:
  verbs rds stress -r 127.0.0.1                                    wait for requests, and answer them
  verbs rds stress -s 127.0.0.1 -q 4096 -a 64 -t 4 -d 8 -T 5s      four tasks, eight requests each on their way

  verbs rds stress -s 127.0.0.1 -n 100000 --verify --kill 10ms     every byte checked, the connection dropped all the time

  verbs rds stress --transport iwarp -r 127.0.0.1                  the same over TCP
  verbs rds stress --node HcaB -r 10.0.0.2                         and at a node of a hosted subnet

Environment:
  VERBS_SUBNET  the subnet's socket, unless --subnet names one";

/// Bytes of a message that carries only its header.
pub(super) const REQUEST_MIN: u32 = super::message::HEADER as u32;

/// `verbs rds`.
#[derive(Args, Debug)]
pub(crate) struct RdsArgs {
    #[command(subcommand)]
    pub(super) command: RdsCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum RdsCommand {
    /// Ping an address: its RDS answers, no program is needed there
    #[command(after_help = PING_EXAMPLES)]
    Ping(PingArgs),
    /// Exchange requests and answers, measure, and check that each comes exactly once and in order
    #[command(after_help = STRESS_EXAMPLES)]
    Stress(StressArgs),
    /// Show connections, sockets and counters of the running programs of this command
    Info(InfoArgs),
}

#[derive(Args, Debug)]
pub(super) struct PingArgs {
    /// The address to ping
    pub(super) address: IpAddr,
    /// Address to ping from
    #[arg(short = 'I', long, value_name = "ADDR")]
    pub(super) interface: Option<IpAddr>,
    /// Pings; without it, until the program is told to end
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    /// The pause between pings, like 200ms or 1s
    #[arg(short = 'i', long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub(super) interval: Duration,
    /// How long an answer may take
    #[arg(short = 'W', long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(super) timeout: Duration,
    /// Type of service; each has a connection of its own
    #[arg(short = 'Q', long, value_name = "N", default_value_t = 0)]
    pub(super) tos: u8,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) net: NetArgs,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("role").required(true).args(["receive_address", "send_address"]).multiple(true))]
pub(super) struct StressArgs {
    /// Address of this end; alone, the program answers requests until it is told to end
    #[arg(short = 'r', long, value_name = "ADDR")]
    pub(super) receive_address: Option<IpAddr>,
    /// Send requests to there
    #[arg(short = 's', long, value_name = "ADDR")]
    pub(super) send_address: Option<IpAddr>,
    /// Port of the socket that answers
    #[arg(short, long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,
    /// Bytes of a request
    #[arg(short = 'q', long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(i64::from(REQUEST_MIN)..=1 << 20))]
    pub(super) request_bytes: u32,
    /// Bytes of an answer
    #[arg(short = 'a', long, value_name = "N", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(i64::from(REQUEST_MIN)..=1 << 20))]
    pub(super) ack_bytes: u32,
    /// Tasks, each with a socket of its own
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(super) tasks: u16,
    /// Requests of a task that may be on their way
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) depth: u32,
    /// Ends after this time
    #[arg(short = 'T', long, value_name = "DURATION", value_parser = duration)]
    pub(super) time: Option<Duration>,
    /// Ends after so many requests of each task
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    /// Check every byte that comes
    #[arg(short = 'v', long)]
    pub(super) verify: bool,
    /// Drop the connection from here, again and again after so long
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "send_address")]
    pub(super) kill: Option<Duration>,
    /// How long an answer may take; after it the program ends with an error
    #[arg(short = 'W', long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(super) timeout: Duration,
    /// Type of service; each has a connection of its own
    #[arg(short = 'Q', long, value_name = "N", default_value_t = 0)]
    pub(super) tos: u8,
    /// Print the sums at the end as JSON, and nothing before
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) net: NetArgs,
}

/// How this end gets to a network: as other commands do, or by a node of a hosted subnet.
#[derive(Args, Debug)]
pub(crate) struct NetArgs {
    /// The node of a subnet, hosted by `verbs subnet`, that this end stands at, and which of its ports. The addresses of
    /// this end are those that -r, -I and --bind name. A subnet manager has to run
    #[arg(long, value_name = "NODE[:PORT]", value_parser = place,
          conflicts_with_all = ["device", "transport", "loss"])]
    pub(super) node: Option<Place>,
    /// The socket that the subnet is hosted at
    #[arg(long, value_name = "SOCKET", requires = "node")]
    pub(super) subnet: Option<PathBuf>,
    #[command(flatten)]
    pub(super) wire: WireArgs,
}

impl NetArgs {
    /// The network that the options name.
    pub(super) fn network(&self) -> Box<dyn Network + '_> {
        match &self.node {
            Some(place) => Box::new(SubnetNode {
                path: self.subnet.clone().unwrap_or_else(default_path),
                node: &place.node,
                port: place.port,
                pcap: self.wire.pcap.as_deref(),
            }),
            None => any_network(&self.wire),
        }
    }
}

#[derive(Args, Debug)]
pub(super) struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}
