//! Arguments of `verbs sim`.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use hca_sim::sim::{Mode, Options, Plant};

pub(crate) const ABOUT: &str = "\
Run the simulator: nodes, a network that fails, work on all verbs and operations, in virtual time.

One seed decides everything: topology, faults, timings, and what is done. Checkers that share no code \
with the HCA watch every byte, completion and verb. The same seed gives the same digest on every \
machine. A run that fails prints the line that repeats it, looks for a shorter one that fails alike, and \
leaves that one's packets in verbs-sim-SEED.pcap.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  verbs sim --seed 7                     one run
  verbs sim --seed 7 --trace run.pcap    the same, with its packets for Wireshark
  verbs sim --seeds 1..500               many runs, and which operation met which fault
  verbs sim --seed 7 --plant stale-key   a run with a planted defect: exit code 6

Exit codes:
  0  every run was clean
  1  a capture or the result could not be written
  2  the arguments are wrong
  6  a run broke a rule";

#[derive(Args, Debug)]
pub(crate) struct SimArgs {
    /// The seed
    #[arg(
        long,
        value_name = "N",
        required_unless_present = "seeds",
        conflicts_with = "seeds"
    )]
    seed: Option<u64>,
    /// All seeds from A to B, both included
    #[arg(long, value_name = "A..B", value_parser = range)]
    seeds: Option<RangeInclusive<u64>>,
    /// For how long faults happen, in virtual time: 500us, 20ms, 1s, at most 60s
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = time)]
    time: Duration,
    /// Nodes; drawn by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=16))]
    nodes: Option<u8>,
    /// How messages travel; drawn by default
    #[arg(long, value_enum)]
    mode: Option<ModeArg>,
    /// Work requests posted at most
    #[arg(long, value_name = "N")]
    operations: Option<u64>,
    /// Write every packet to this file
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    trace: Option<PathBuf>,
    /// A defect to find
    #[arg(long, value_name = "NAME", hide_possible_values = true, value_parser = plants())]
    plant: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeArg {
    /// As packets over a network
    Packets,
    /// Placed by the sender itself
    Direct,
}

impl SimArgs {
    /// The seeds to run.
    pub(crate) fn seeds(&self) -> RangeInclusive<u64> {
        let seed = self.seed.unwrap_or(0);
        self.seeds.clone().unwrap_or(seed..=seed)
    }

    /// Where the packets go.
    pub(crate) fn trace(&self) -> Option<&Path> {
        self.trace.as_deref()
    }

    /// What a seed is run with.
    pub(crate) fn options(&self, seed: u64) -> Options {
        Options {
            time: self.time,
            nodes: self.nodes.map(usize::from),
            mode: self.mode.map(|mode| match mode {
                ModeArg::Packets => Mode::Packets,
                ModeArg::Direct => Mode::Direct,
            }),
            operations: self.operations,
            plant: self.plant.as_deref().and_then(|name| name.parse().ok()),
            ..Options::new(seed)
        }
    }
}

/// The names of the defects.
fn plants() -> PossibleValuesParser {
    PossibleValuesParser::new(Plant::ALL.iter().map(|plant| plant.name()))
}

/// Seeds from the first to the last.
fn range(text: &str) -> Result<RangeInclusive<u64>, String> {
    let right = "A..B would be right, with numbers and A not above B";
    let (from, to) = text.split_once("..").ok_or(right)?;
    let to = to.strip_prefix('=').unwrap_or(to);
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) if from <= to => Ok(from..=to),
        _ => Err(right.into()),
    }
}

/// A virtual time with its unit.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let micros = match &text[digits.len()..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        _ => return Err("a number with us, ms or s would be right, such as 20ms".into()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("`{digits}` is no number"))?;
    let time = Duration::from_micros(number.saturating_mul(micros));
    match time {
        Duration::ZERO => Err("nothing happens in no time".into()),
        time if time > Duration::from_secs(60) => Err("at most 60s".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_include_both_ends() {
        assert_eq!(range("1..500"), Ok(1..=500));
        assert_eq!(range("3..=3"), Ok(3..=3));
        for text in ["", "1", "2..1", "a..b", "1..", "..1", "-1..2"] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(time("60s"), Ok(Duration::from_secs(60)));
        for text in ["", "20", "0ms", "61s", "1m", "ms", "1.5s", "-1s"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
