//! Arguments of `verbs sim`.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use verbs_simulator::{Bottleneck, FlowRun, HostMutant, HostRun, Mode, Mutant, Options, Pattern};

use super::plot;
use crate::units;
use crate::wire::Congestion;

pub(crate) const ABOUT: &str = "\
Run the simulator: nodes, a network that fails, work on all verbs and operations, in virtual time.

One seed decides everything: topology, faults, timings, and what is done. Checkers that share no code \
with the HCA watch every byte, completion and verb. The same seed gives the same digest on every \
machine. A run that fails prints the line that repeats it, looks for a shorter one that fails alike, and \
leaves that one's packets in verbs-sim-SEED.pcapng.

With --mode host, the nodes are programs that share the address of one host, and its daemon: the seed \
kills programs in the middle of a transmit and daemons between any two steps, and starts others. \
--time is for how long it kills.

With --bottleneck, the nodes write to one host behind a switch of 10 Gbit/s that marks packets for \
congestion, as the paper on DCQCN has it: how they share it, and what it loses. A run is clean if \
Jain's index is at least 0.95, nine tenths of the capacity are used and no packet is lost.

With --flows there are no HCAs but senders that react to congestion as theirs do, in a fat tree of two levels at 40 Gbit/s \
that loses nothing: a switch without room tells those before it to pause. A slowdown is how many times as long a flow takes as \
alone.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  verbs sim --seed 7                      one run
  verbs sim --seed 7 --trace run.pcapng   the same, with its packets for Wireshark
  verbs sim --seeds 1..500                many runs, and which operation met which fault
  verbs sim --seeds 1..500 --json         the same for programs
  verbs sim --seed 7 --mutant stale-key   a run with an injected defect: exit code 6
  verbs sim --seeds 1..20 --mode host     programs and daemons of a host that are killed
  verbs sim --seeds 1..5 --bottleneck     eight connections through a switch that marks
  verbs sim --seed 1 --congestion --plot queue.svg   a picture of that
  verbs sim --seed 1 --flows incast --hosts 256   flows through a fat tree; --dcqcn off beside it

Exit codes:
  0  every run was clean
  1  a capture, a picture or the result could not be written
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
    /// Share the queue of a switch instead: writes of --nodes hosts to one
    #[arg(long, visible_alias = "congestion", conflicts_with_all = ["mode", "operations", "mutant", "trace"])]
    bottleneck: bool,
    /// Send flows through a fat tree of --hosts hosts instead, each of --size bytes, and say how much longer they take than
    /// alone
    #[arg(long, value_enum, value_name = "PATTERN", conflicts_with_all = ["bottleneck", "mode", "operations", "mutant", "trace"])]
    flows: Option<PatternArg>,
    /// With --flows: the hosts of the tree, a square
    #[arg(long, value_name = "N", requires = "flows", default_value_t = 64)]
    hosts: usize,
    /// With --flows: bytes of each; k, m and g stand for KiB, MiB and GiB
    #[arg(long, value_name = "N", requires = "flows", default_value = "4m", value_parser = units::chunk)]
    size: u32,
    /// With --flows incast: how many hosts send to the one
    #[arg(long, value_name = "N", requires = "flows", default_value_t = 16)]
    fan_in: usize,
    /// With --bottleneck: draw the queue and the rates over time as an SVG picture
    #[arg(
        long,
        value_name = "FILE",
        requires = "bottleneck",
        conflicts_with = "seeds"
    )]
    pub(super) plot: Option<PathBuf>,
    /// With --bottleneck and --flows, how senders react to congestion: off, or parameters of DCQCN to set, as in `verbs perf`
    #[arg(long, value_name = "off|NAME=VALUE,..")]
    dcqcn: Option<Congestion>,
    /// For how long faults happen, or the shares are measured, in virtual time: 500us, 20ms, 1s, at most 60s
    #[arg(
        long,
        value_name = "TIME",
        default_value = "20ms",
        default_value_ifs([("bottleneck", "true", "100ms"), ("mode", "host", "10ms")]),
        value_parser = time
    )]
    time: Duration,
    /// Nodes; drawn by default, 8 with --bottleneck
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
    /// Print the result as JSON when the runs are over, and nothing else
    #[arg(long)]
    pub(super) json: bool,
    /// Inject this defect, which the checkers have to find
    #[arg(long, value_name = "NAME", hide_possible_values = true, value_parser = mutants())]
    mutant: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PatternArg {
    /// --fan-in hosts to one, and each other host to another one
    Incast,
    /// Each host to another one
    Permutation,
    /// Each host to every other
    AllToAll,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeArg {
    /// As packets over a network
    Packets,
    /// Placed by the sender itself
    Direct,
    /// As streams, which is iWARP
    Streams,
    /// Between programs of one host, whose daemon and programs are killed
    Host,
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

    /// The switch that is shared with that seed, if that is asked for.
    pub(crate) fn bottleneck(&self, seed: u64) -> Option<Bottleneck> {
        let all = Bottleneck::new(seed);
        let asked = self.bottleneck.then_some(Bottleneck {
            flows: self.nodes.map_or(all.flows, usize::from),
            time: self.time,
            congestion: self.dcqcn.map_or(all.congestion, |Congestion(dcqcn)| dcqcn),
            ..all
        });
        match self.plot {
            Some(_) => asked.map(plot::observed),
            None => asked,
        }
    }

    /// The flows with that seed, if they are asked for.
    pub(crate) fn flows(&self, seed: u64) -> Option<FlowRun> {
        let pattern = match self.flows? {
            PatternArg::Incast => Pattern::Incast(self.fan_in),
            PatternArg::Permutation => Pattern::Permutation,
            PatternArg::AllToAll => Pattern::AllToAll,
        };
        let all = FlowRun::new(seed, self.hosts, pattern);
        Some(FlowRun {
            bytes: self.size.into(),
            congestion: self.dcqcn.map_or(all.congestion, |Congestion(dcqcn)| dcqcn),
            ..all
        })
    }

    /// The host that is run with that seed, if that is asked for.
    pub(crate) fn host(&self, seed: u64) -> Option<HostRun> {
        matches!(self.mode, Some(ModeArg::Host)).then(|| HostRun {
            time: self.time,
            programs: self.nodes.map(usize::from),
            mutant: self.mutant.as_deref().and_then(|name| name.parse().ok()),
            ..HostRun::new(seed)
        })
    }

    /// Why these arguments do not go together, if they do not.
    pub(crate) fn misfit(&self) -> Option<String> {
        if self.dcqcn.is_some() {
            return Some("--dcqcn is for --bottleneck and --flows".into());
        }
        let is_host = self.host(0).is_some();
        let name = self.mutant.as_deref().unwrap_or_default();
        if is_host && (self.trace.is_some() || self.operations.is_some()) {
            return Some("--mode host has neither --trace nor --operations".into());
        }
        let is_hosts = name.parse::<HostMutant>().is_ok();
        (!name.is_empty() && is_host != is_hosts).then(|| {
            let mode = if is_hosts { "" } else { "not " };
            format!("--mutant {name} is {mode}one of --mode host")
        })
    }

    /// What a seed is run with.
    pub(crate) fn options(&self, seed: u64) -> Options {
        Options {
            time: self.time,
            nodes: self.nodes.map(usize::from),
            mode: self.mode.and_then(|mode| match mode {
                ModeArg::Packets => Some(Mode::Packets),
                ModeArg::Direct => Some(Mode::Direct),
                ModeArg::Streams => Some(Mode::Streams),
                ModeArg::Host => None,
            }),
            operations: self.operations,
            mutant: self.mutant.as_deref().and_then(|name| name.parse().ok()),
            ..Options::new(seed)
        }
    }
}

/// The names of the defects.
fn mutants() -> PossibleValuesParser {
    let hosts = HostMutant::ALL.iter().map(|mutant| mutant.name());
    let all = Mutant::ALL.iter().map(|mutant| mutant.name());
    PossibleValuesParser::new(all.chain(hosts))
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

/// A virtual time.
fn time(text: &str) -> Result<Duration, String> {
    match units::time(text) {
        None => Err(units::TIMES.into()),
        Some(Duration::ZERO) => Err("nothing happens in no time".into()),
        Some(time) if time > Duration::from_secs(60) => Err("at most 60s".into()),
        Some(time) => Ok(time),
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
    fn a_run_takes_some_time_and_a_minute_at_most() {
        assert_eq!(time("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(time("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(time("1.5"), Ok(Duration::from_millis(1500)));
        for text in ["", "0ms", "61", "61s", "2m", "ms", "-1s"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
