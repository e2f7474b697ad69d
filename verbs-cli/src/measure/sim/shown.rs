//! What `verbs sim` prints.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::{Value, json};
use verbs_core::time::Instant;
use verbs_simulator::{Coverage, Options, Report};

/// One run.
pub(super) struct One<'a>(pub(super) &'a Report);

impl fmt::Display for One<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = self;
        let counts = report.counts;
        writeln!(f, "seed {}: {}", report.options.seed, report.plan)?;
        writeln!(
            f,
            "{} work requests, {} completions, {} verbs, {} events, {} packets, {} steps in {}",
            report.operations,
            counts.completions,
            counts.verbs,
            counts.events,
            counts.packets,
            counts.timers,
            report.end,
        )?;
        if report.violation.is_none() {
            writeln!(f, "clean")?;
        }
        writeln!(f, "digest {}", report.digest)
    }
}

impl One<'_> {
    pub(super) fn json(&self, failure: Option<&Failed<'_>>) -> Value {
        let Self(report) = self;
        let counts = report.counts;
        json!({
            "seed": report.options.seed,
            "plan": report.plan.to_string(),
            "work_requests": report.operations,
            "completions": counts.completions,
            "verbs": counts.verbs,
            "events": counts.events,
            "packets": counts.packets,
            "steps": counts.timers,
            "virtual_seconds": report.end.since(Instant::ZERO).as_secs_f64(),
            "digest": report.digest.to_string(),
            "failure": failure.map(Failed::json),
        })
    }
}

/// A run that failed.
pub(super) struct Failed<'a> {
    pub(super) report: &'a Report,
    /// The shortest that was found of those that fail alike.
    pub(super) smaller: Options,
    pub(super) capture: Option<PathBuf>,
}

impl Failed<'_> {
    pub(super) fn json(&self) -> Value {
        let options = self.report.options;
        let violation = self.report.violation.as_ref();
        let shorter = (self.smaller != options).then(|| format!("verbs sim {}", self.smaller));
        json!({
            "seed": options.seed,
            "violation": violation.map(ToString::to_string),
            "replay": format!("verbs sim {options}"),
            "shorter": shorter,
            "packets": self.capture,
        })
    }
}

impl fmt::Display for Failed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.report.options;
        if let Some(violation) = &self.report.violation {
            writeln!(f, "seed {} failed: {violation}", options.seed)?;
        }
        writeln!(f, "  replay:  verbs sim {options}")?;
        if self.smaller != options {
            writeln!(f, "  shorter: verbs sim {}", self.smaller)?;
        }
        if let Some(path) = &self.capture {
            writeln!(f, "  packets: {}", path.display())?;
        }
        Ok(())
    }
}

/// Many runs.
pub(super) struct Several<'a> {
    pub(super) seeds: &'a RangeInclusive<u64>,
    pub(super) all: u64,
    pub(super) failed: u64,
    pub(super) operations: u64,
    pub(super) coverage: &'a Coverage,
}

impl Several<'_> {
    pub(super) fn json(&self, failures: Vec<Value>) -> Value {
        let missing = self.coverage.missing();
        let pairs = missing
            .iter()
            .map(|(operation, cell)| [operation.name(), cell.name()]);
        let verbs = self.coverage.missing_verbs();
        json!({
            "from": self.seeds.start(),
            "to": self.seeds.end(),
            "runs": self.all,
            "work_requests": self.operations,
            "failed": self.failed,
            "failures": failures,
            "never_met": pairs.collect::<Vec<_>>(),
            "verbs_never_issued": verbs.iter().map(|verb| verb.name()).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Several<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.coverage)?;
        let missing = self.coverage.missing();
        if !missing.is_empty() {
            let name =
                |&(operation, cell): &(verbs_simulator::Operation, verbs_simulator::Cell)| {
                    format!("{} x {}", operation.name(), cell.name())
                };
            let names: Vec<String> = missing.iter().map(name).collect();
            writeln!(f, "\nnever met: {}", names.join(", "))?;
        }
        let verbs = self.coverage.missing_verbs();
        if !verbs.is_empty() {
            let names: Vec<&str> = verbs.iter().map(|verb| verb.name()).collect();
            writeln!(f, "\nverbs never issued: {}", names.join(", "))?;
        }
        let (from, to) = (self.seeds.start(), self.seeds.end());
        writeln!(
            f,
            "\nseeds {from}..{to}: {} runs, {} work requests, {} failed",
            self.all, self.operations, self.failed
        )
    }
}
