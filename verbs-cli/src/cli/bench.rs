//! Arguments of `verbs bench`.

use std::fmt;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::units;
use crate::wire::Transport;

pub(super) const EXAMPLES: &str = "\
Examples:
  verbs bench                            everything, about 20 s
  verbs bench --only send --only write   two of the benchmarks
  verbs bench --only latency --time 30   longer, for a busy machine
  verbs bench --transport iwarp          only what goes over TCP, beside TCP itself
  verbs bench --quick                    everything in about 2 s, with less precision
  verbs bench --json | jq '.rows[] | [.operation, .bytes, .ns_median]'

Exit codes:
  0  done
  1  the result could not be written
  2  the arguments are wrong
  5  a device failed";

pub(super) const ABOUT: &str = "\
Measure what verbs and messages cost on this machine, on the loopback link of a software HCA.

Every figure is the median of many short repetitions, with the least and the 90th percentile. \
Repetitions in which the scheduler interrupted a thread are dropped, and so is the next; the table \
says how many were kept. What is compared is measured in turns in the same run. Rates and ratios are \
those of the medians.";

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Measure only this; may be repeated
    #[arg(long, value_name = "NAME", value_enum)]
    only: Vec<Bench>,
    /// Measure only what that carries on the loopback interface: roce, packets over UDP; or iwarp, streams over TCP
    #[arg(long, value_enum, value_name = "TRANSPORT", conflicts_with = "only")]
    transport: Option<Transport>,
    /// Measure for so long in all, 100ms to 1h; up to twice as long where others disturb
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = seconds)]
    pub(crate) time: f64,
    /// About 2 s in all
    #[arg(long, conflicts_with = "time")]
    pub(crate) quick: bool,
    /// Report in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchArgs {
    /// What is to be measured, each once.
    pub(crate) fn benches(&self) -> Vec<Bench> {
        let all = Bench::value_variants().iter().copied();
        all.filter(|bench| match self.transport {
            Some(Transport::Roce) => *bench == Bench::Wire,
            Some(Transport::Iwarp) => *bench == Bench::Iwarp,
            None => self.only.is_empty() || self.only.contains(bench),
        })
        .collect()
    }
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bench {
    /// Control verbs: queries, queue pairs to RTS, registration
    Control,
    /// SEND/RECV in one thread, by size
    Send,
    /// RDMA WRITE in one thread, by size
    Write,
    /// RDMA READ in one thread, by size
    Read,
    /// Fast registration and local invalidate through the send queue
    Registration,
    /// One way between two threads, half a round trip
    Latency,
    /// From one thread to another, as fast as it goes
    Stream,
    /// Many queue pairs round robin
    Qps,
    /// Messages beside 100,000 control verbs a second
    Load,
    /// RoCEv2 over UDP on the loopback interface
    Wire,
    /// iWARP over TCP on the loopback interface, beside TCP itself
    Iwarp,
    /// Programs of one `verbs host` that share memory, beside UDP
    Near,
    /// Reliable datagrams beside a bare SEND, and beside TCP
    Rds,
}

impl Bench {
    /// What it measures, for a heading.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Control => "verbs awaited in turn",
            Self::Send | Self::Write | Self::Read | Self::Registration => "one thread",
            Self::Latency => "two threads, one way",
            Self::Stream => "two threads, window of 64",
            Self::Qps => "connections in turn",
            Self::Load => "messages and control verbs",
            Self::Wire => "RoCEv2 over UDP",
            Self::Iwarp => "iWARP beside TCP",
            Self::Near => "programs of one host",
            Self::Rds => "nodes of one process",
        }
    }
}

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value()
            .map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// Seconds of a benchmark.
fn seconds(text: &str) -> Result<f64, String> {
    let sensible = Duration::from_millis(100)..=Duration::from_secs(3600);
    units::time_within(text, sensible, "from 100ms to 1h").map(|time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_takes_a_while_but_not_forever() {
        for (text, right) in [
            ("0.1", 0.1),
            ("3600", 3600.0),
            ("20s", 20.0),
            ("1h", 3600.0),
        ] {
            assert_eq!(seconds(text), Ok(right));
        }
        for text in ["", "0", "0.05", "-1", "3601", "nan", "inf", "99ms"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
