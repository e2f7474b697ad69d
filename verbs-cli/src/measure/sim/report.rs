//! What `verbs sim` prints.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

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

/// A run that failed.
pub(super) struct Failed<'a> {
    pub(super) report: &'a Report,
    /// The shortest that was found of those that fail alike.
    pub(super) smaller: &'a Options,
    pub(super) capture: Option<&'a Path>,
}

impl fmt::Display for Failed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.report.options;
        if let Some(violation) = &self.report.violation {
            writeln!(f, "seed {} failed: {violation}", options.seed)?;
        }
        writeln!(f, "  replay:  verbs sim {options}")?;
        if *self.smaller != options {
            writeln!(f, "  shorter: verbs sim {}", self.smaller)?;
        }
        if let Some(path) = self.capture {
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
