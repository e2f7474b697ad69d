//! Arguments of `verbs perf`, with perftest's names, and what follows from them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use verbs_core::{Mtu, QpCap};

use super::error::PerfError;
use crate::connecting::ConnectArgs;
use crate::units::{chunk, mtu};
use crate::wire::{Transport, WireArgs};

pub(crate) const ABOUT: &str = "\
Measure bandwidth and latency between two hosts.

Does what the programs of perftest do: send-bw is ib_send_bw, write-lat is ib_write_lat, and so on. It has their \
options, report and exchange over TCP, so that either end can be one of them, version 4.5 or newer, with the same \
options. `rpc`, which perftest does not have, measures requests and answers between two of this command. With --transport iwarp messages go over TCP, one connection for each queue pair, and both ends have to be this \
command. Only reliable connections are measured, and the ends meet by TCP (perftest's -c and -R are not here). Without \
HOST it waits for a client. Packets go over UDP port 4791, which one program at a time has on each address of a host. \
No privileges are needed.";

pub(crate) const EXAMPLES: &str = "\
Examples, each in two terminals:
  verbs perf write-bw                           wait for a client
  verbs perf write-bw 127.0.0.1                 be one, on the same host

  verbs perf send-bw -a --plot rates.svg HOST   all sizes, and a picture of the rates
  verbs perf read-lat --histogram HOST          how the latencies are spread
  verbs perf write-bw --transport iwarp         over TCP, as iWARP; a client with the same option

  verbs perf rpc -s 4k -t 64 HOST               calls a second of 4 KiB, 64 under way
  verbs perf write-bw -D 10 -q 4 --json HOST    ten seconds on four connections, for programs

  ib_write_bw                                   perftest waits
  verbs perf write-bw 192.0.2.1                 a client of it

Exit codes:
  0  done
  1  the peer could not be reached, the address could not be had, or a file not be written
  2  the arguments are wrong, or do not fit the peer's
  5  a verb or a message failed, or the peer has gone";

/// Bytes of the largest message of `--all`, as in perftest.
const ALL_MAX_SHIFT: u32 = 23;

/// Completions are asked for this seldom, as in perftest.
const CQ_MOD: u32 = 100;

/// Above this size every message has a completion, as in perftest.
const CQ_MOD_SIZE_MAX: u32 = 8192;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// Rate of SENDs (ib_send_bw)
    SendBw,
    /// Half a round trip of SENDs (ib_send_lat)
    SendLat,
    /// Rate of RDMA WRITEs (ib_write_bw)
    WriteBw,
    /// Half a round trip of RDMA WRITEs (ib_write_lat)
    WriteLat,
    /// Rate of RDMA READs (ib_read_bw)
    ReadBw,
    /// An RDMA READ (ib_read_lat)
    ReadLat,
    /// Rate of atomics (ib_atomic_bw)
    AtomicBw,
    /// An atomic (ib_atomic_lat)
    AtomicLat,
    /// Requests and answers by SENDs, many under way: calls a second, and how long each takes (both ends have to be this
    /// command)
    Rpc,
}

/// What the numbers are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Bandwidth,
    Latency,
    Calls,
}

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Send,
    Write,
    Read,
    Atomic,
}

/// Which atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AtomicType {
    /// Fetch and add
    #[value(name = "FETCH_AND_ADD")]
    FetchAndAdd,
    /// Compare and swap
    #[value(name = "CMP_AND_SWAP")]
    CmpAndSwap,
}

/// Bandwidth and latency.
#[derive(Args, Debug)]
pub(crate) struct PerfArgs {
    /// What is measured
    #[arg(value_enum)]
    pub(crate) test: Test,
    /// Connect to a server there; without it, be the server
    pub(crate) host: Option<String>,
    /// TCP port on which the two find each other
    #[arg(short, long, value_name = "N", default_value_t = 18515,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Bytes of a message, at most 2g; k, m and g stand for KiB, MiB and GiB [default: 65536; latency: 2; atomics:
    /// 8; rpc: 4096]
    #[arg(short, long, value_name = "N", value_parser = chunk)]
    size: Option<u32>,
    /// Messages of 2 bytes to 8 MiB, one size after the other
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Messages of each connection and size [default: 1000; write-bw: 5000; rpc: 100000]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(5..=100_000_000))]
    iters: Option<u32>,
    /// For so many seconds rather than so many messages; both ends need it
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with_all = ["iters", "all"],
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    duration: Option<u32>,
    /// Seconds at the beginning and the end of --duration that do not count [default: a quarter of it]
    #[arg(short = 'f', long, value_name = "SECONDS", requires = "duration")]
    margin: Option<u32>,
    /// Connections (bandwidth, rpc)
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    qp: Option<u32>,
    /// Messages under way on each connection (bandwidth, rpc) [default: 128; rpc: 64]
    #[arg(short, long, visible_alias = "tx_depth", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=16_384))]
    tx_depth: Option<u32>,
    /// Receives posted on each connection
    #[arg(short, long, visible_alias = "rx_depth", value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..=16_384))]
    rx_depth: u32,
    /// Bytes of a packet's payload at most: 256, 512, 1024, 2048 or 4096; the smaller one of both ends' counts
    /// [default: the port's]
    #[arg(short, long, value_name = "N", value_parser = mtu)]
    pub(super) mtu: Option<Mtu>,
    /// Messages for each completion (bandwidth, rpc) [default: 100; 1 above 8 KiB]
    #[arg(short = 'Q', long, visible_alias = "cq_mod", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=16_384))]
    cq_mod: Option<u32>,
    /// Messages up to so many bytes are copied when they are posted (not READs, not atomics) [default: 0; latency: as
    /// many as perftest has, if the device can]
    #[arg(short = 'I', long, visible_alias = "inline_size", value_name = "N")]
    inline_size: Option<u32>,
    /// Both ways at a time (bandwidth); both ends need it
    #[arg(short, long)]
    pub(super) bidirectional: bool,
    /// READs and atomics under way that the peer remembers [default: as many as the device can]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(super) outs: Option<u8>,
    /// How long to wait for an acknowledgement before sending again, 7 times at most: 4.096 us * 2^CODE, 0 for ever
    #[arg(short = 'u', long, value_name = "CODE", default_value_t = 14,
          value_parser = clap::value_parser!(u8).range(..=31))]
    pub(super) qp_timeout: u8,
    /// Which of our GIDs: addresses of --bind are counted from 0. Default: the first that has a way to the peer
    #[arg(short = 'x', long, visible_alias = "gid-idx", value_name = "N")]
    pub(super) gid_index: Option<u16>,
    /// Traffic class of the packets (RoCE): 2 says that switches may mark them for congestion, 48 and more are classes of
    /// service; both ends send with their own [default: 0]
    #[arg(long, value_name = "N")]
    pub(super) tclass: Option<u8>,
    /// Which atomic
    #[arg(short = 'A', long, visible_alias = "atomic_type", value_enum)]
    atomic_type: Option<AtomicType>,
    /// Rates in Gb/s rather than MiB/s
    #[arg(long, visible_alias = "report_gbits")]
    pub(super) report_gbits: bool,
    /// Print the results as JSON, with perftest's names
    #[arg(long)]
    pub(super) json: bool,
    /// Show how the latencies are spread (latency, rpc)
    #[arg(long)]
    pub(super) histogram: bool,
    /// Draw rate or latency by size as an SVG picture
    #[arg(long, value_name = "FILE", requires = "all")]
    pub(super) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
}

impl Test {
    /// As perftest calls it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::SendBw => "Send BW Test",
            Self::SendLat => "Send Latency Test",
            Self::WriteBw => "RDMA_Write BW Test",
            Self::WriteLat => "RDMA_Write Latency Test",
            Self::ReadBw => "RDMA_Read BW Test",
            Self::ReadLat => "RDMA_Read Latency Test",
            Self::AtomicBw => "Atomic BW Test",
            Self::AtomicLat => "Atomic Latency Test",
            Self::Rpc => "RPC Test",
        }
    }

    fn operation(self) -> Operation {
        match self {
            Self::SendBw | Self::SendLat | Self::Rpc => Operation::Send,
            Self::WriteBw | Self::WriteLat => Operation::Write,
            Self::ReadBw | Self::ReadLat => Operation::Read,
            Self::AtomicBw | Self::AtomicLat => Operation::Atomic,
        }
    }

    pub(super) fn measures(self) -> Measure {
        match self {
            Self::SendBw | Self::WriteBw | Self::ReadBw | Self::AtomicBw => Measure::Bandwidth,
            Self::SendLat | Self::WriteLat | Self::ReadLat | Self::AtomicLat => Measure::Latency,
            Self::Rpc => Measure::Calls,
        }
    }
}

/// How long a test runs, and the part of it that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) whole: Duration,
    pub(super) margin: Duration,
}

/// What is to be done, with all defaults filled in.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) operation: Operation,
    pub(super) compare_swap: bool,
    pub(super) measures: Measure,
    pub(super) sizes: Vec<u32>,
    /// Messages of each connection.
    pub(super) iters: u32,
    pub(super) span: Option<Span>,
    pub(super) qps: usize,
    pub(super) tx_depth: u32,
    pub(super) rx_depth: u32,
    cq_mod: Option<u32>,
    all: bool,
    inline: Option<u32>,
    pub(super) both_ways: bool,
}

impl Plan {
    /// # Errors
    /// [`PerfError::Option`] for what does not fit the test.
    pub(super) fn of(args: &PerfArgs) -> Result<Self, PerfError> {
        let (operation, measures) = (args.test.operation(), args.test.measures());
        args.check(operation, measures)?;
        let default_size = match (operation, measures) {
            (Operation::Atomic, _) => 8,
            (_, Measure::Latency) => 2,
            (_, Measure::Calls) => 4096,
            (_, Measure::Bandwidth) => 65_536,
        };
        let default_iters = match args.test {
            Test::WriteBw => 5000,
            Test::Rpc => 100_000,
            _ => 1000,
        };
        let iters = args.iters.unwrap_or(default_iters);
        let seconds = |count: u32| Duration::from_secs(u64::from(count));
        let span = args.duration.map(|whole| Span {
            whole: seconds(whole),
            margin: seconds(args.margin.unwrap_or(whole / 4)),
        });
        let bounded = |depth: u32| match span {
            Some(_) => depth,
            None => depth.min(iters),
        };
        Ok(Self {
            operation,
            compare_swap: args.atomic_type == Some(AtomicType::CmpAndSwap),
            measures,
            sizes: match args.all {
                true => (1..=ALL_MAX_SHIFT).map(|shift| 1 << shift).collect(),
                false => vec![args.size.unwrap_or(default_size)],
            },
            iters,
            span,
            qps: args.qp.unwrap_or(1) as usize,
            tx_depth: match measures {
                Measure::Latency => 1,
                Measure::Calls => bounded(args.tx_depth.unwrap_or(64)),
                Measure::Bandwidth => bounded(args.tx_depth.unwrap_or(128)),
            },
            rx_depth: bounded(args.rx_depth),
            cq_mod: args.cq_mod,
            all: args.all,
            inline: args.inline_size,
            both_ways: args.bidirectional,
        })
    }

    pub(super) fn size_max(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Messages for each completion.
    pub(super) fn cq_mod(&self, size: u32) -> u32 {
        let default = match self.all || size <= CQ_MOD_SIZE_MAX {
            true => CQ_MOD,
            false => 1,
        };
        self.cq_mod.unwrap_or(default).min(self.tx_depth)
    }

    /// Whether one end only answers, without a completion of its own.
    pub(super) fn is_one_sided(&self) -> bool {
        self.operation != Operation::Send
    }

    /// READs and atomics, which the responder remembers.
    pub(super) fn is_remembered(&self) -> bool {
        matches!(self.operation, Operation::Read | Operation::Atomic)
    }

    /// Bytes that are copied at the post, of a device that can do so many.
    pub(super) fn inline(&self, device_max: u32) -> Result<u32, PerfError> {
        let default = match (self.measures, self.operation) {
            (Measure::Bandwidth, _) => 0,
            (_, Operation::Write) => 220,
            (_, Operation::Send) => 236,
            _ => 0,
        };
        match self.inline {
            Some(got) if got > device_max => Err(PerfError::Inline {
                got,
                max: device_max,
            }),
            Some(wanted) => Ok(wanted),
            None => Ok(default.min(device_max)),
        }
    }

    pub(super) fn cap(&self, inline: u32) -> QpCap {
        QpCap {
            max_send_wr: self.tx_depth,
            max_recv_wr: match self.operation {
                Operation::Send => self.rx_depth,
                _ => 1,
            },
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline,
        }
    }
}

impl PerfArgs {
    pub(super) fn is_timed(&self) -> bool {
        self.duration.is_some()
    }

    fn check(&self, operation: Operation, measures: Measure) -> Result<(), PerfError> {
        let is_latency = measures == Measure::Latency;
        let is_remembered = matches!(operation, Operation::Read | Operation::Atomic);
        let of_queues = [
            ("--qp", self.qp.is_some()),
            ("--tx-depth", self.tx_depth.is_some()),
            ("--cq-mod", self.cq_mod.is_some()),
        ];
        let of_queues = of_queues
            .map(|(option, is_given)| (option, is_given && is_latency, "a bandwidth test, or rpc"));
        let others = [
            (
                "--bidirectional",
                self.bidirectional && measures != Measure::Bandwidth,
                "a bandwidth test",
            ),
            (
                "--histogram",
                self.histogram
                    && match measures {
                        Measure::Bandwidth => true,
                        Measure::Latency => self.duration.is_some(),
                        Measure::Calls => false,
                    },
                "a latency test without --duration, or rpc",
            ),
            (
                "--tclass",
                self.tclass.is_some() && self.wire.transport == Transport::Iwarp,
                "packets of RoCE",
            ),
            (
                "--inline-size",
                self.inline_size.is_some() && is_remembered,
                "SENDs and WRITEs",
            ),
            (
                "--outs",
                self.outs.is_some() && !is_remembered,
                "READs and atomics",
            ),
            (
                "--atomic-type",
                self.atomic_type.is_some() && operation != Operation::Atomic,
                "atomics",
            ),
            (
                "--size or --all",
                (self.size.is_some_and(|size| size != 8) || self.all)
                    && operation == Operation::Atomic,
                "what is not an atomic, which has 8 bytes",
            ),
            (
                "--margin",
                self.duration
                    .zip(self.margin)
                    .is_some_and(|(whole, margin)| 2 * u64::from(margin) >= u64::from(whole)),
                "a --duration of more than twice as long",
            ),
        ];
        let mut all = of_queues.into_iter().chain(others);
        match all.find(|(_, is_wrong, _)| *is_wrong) {
            Some((option, _, is_for)) => Err(PerfError::Option { option, is_for }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PerfArgs,
    }

    fn plan(words: &str) -> Result<Plan, PerfError> {
        let line = ["perf"].into_iter().chain(words.split_whitespace());
        Plan::of(&Line::try_parse_from(line).expect(words).args)
    }

    /// Goal: what perftest takes when nothing is said, which both ends have to take alike.
    #[test]
    fn defaults_are_perftests() {
        let of = |words| {
            let plan = plan(words).expect(words);
            let size = plan.sizes[0];
            (size, plan.iters, plan.tx_depth, plan.cq_mod(size))
        };
        assert_eq!(of("write-bw"), (65_536, 5000, 128, 1));
        assert_eq!(of("send-bw -s 4096"), (4096, 1000, 128, 100));
        assert_eq!(of("send-bw -s 64 -n 50"), (64, 50, 50, 50));
        assert_eq!(of("read-lat"), (2, 1000, 1, 1));
        assert_eq!(of("atomic-bw"), (8, 1000, 128, 100));
        assert_eq!(of("rpc"), (4096, 100_000, 64, 64));
        assert_eq!(of("rpc -s 64k -t 4 -n 7"), (65_536, 7, 4, 1));
        assert!(plan("rpc --histogram -D 4").is_ok());
        let all = plan("send-bw -a").expect("right");
        assert_eq!((all.sizes[0], all.size_max()), (2, 8 << 20));
        assert_eq!(all.cq_mod(8 << 20), 100);
        let span = plan("write-bw -D 8").expect("right").span.expect("given");
        assert_eq!((span.whole.as_secs(), span.margin.as_secs()), (8, 2));
        assert_eq!(
            plan("write-lat").expect("right").inline(400).ok(),
            Some(220)
        );
        assert_eq!(plan("write-lat").expect("right").inline(64).ok(), Some(64));
    }

    #[test]
    fn options_of_other_tests_are_refused() {
        for words in [
            "read-lat -q 2",
            "send-lat -b",
            "write-bw --histogram",
            "send-lat --histogram -D 4",
            "read-bw -I 8",
            "send-bw -o 4",
            "write-bw -A CMP_AND_SWAP",
            "atomic-lat -s 16",
            "write-bw -D 8 -f 4",
            "rpc -b",
            "rpc -o 4",
            "send-bw --tclass 2 --transport iwarp",
        ] {
            let refused = plan(words).expect_err(words);
            assert!(matches!(refused, PerfError::Option { .. }), "{refused}");
        }
        assert!(plan("write-lat -I 65").expect("right").inline(64).is_err());
    }
}
