//! Runs a target over the inputs of a mutator.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Mutator, Target};

/// The limits of a run of a target, and its seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed from which inputs are derived.
    pub seed: u64,
    /// The number of the first input.
    pub first: u64,
    /// The longest time.
    pub time: Duration,
    /// The most inputs.
    pub inputs: u64,
    /// The most steps.
    pub steps: u64,
    /// Where an input that fails is written.
    pub failures: PathBuf,
}

/// The result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Inputs that ran.
    pub inputs: u64,
    /// The number of inputs to the object: packets, units, messages, calls. Equals `inputs` where a target parses.
    pub steps: u64,
    /// Time that it took.
    pub time: Duration,
    /// The slowest input's time.
    pub slowest: Duration,
}

/// The stored inputs of a target, by name.
///
/// # Errors
/// The folder cannot be read.
pub fn corpus(target: &Target) -> io::Result<Vec<(String, Vec<u8>)>> {
    let folder = target.corpus();
    let mut inputs = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        inputs.push((name.into_owned(), fs::read(&path)?));
    }
    inputs.sort();
    Ok(inputs)
}

/// Runs a target as planned.
///
/// # Errors
/// The file that holds an input that failed.
pub fn drive(target: &Target, inputs: Vec<Vec<u8>>, plan: &Plan) -> Result<Report, PathBuf> {
    let mut mutator = Mutator::new(inputs, target.longest);
    let mut report = Report::default();
    let start = Instant::now();
    let mut input = Vec::new();
    let mut before = start;
    while report.inputs < plan.inputs && report.steps < plan.steps {
        mutator.input(plan.seed, plan.first + report.inputs, &mut input);
        let ran = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
        let Ok(steps) = ran else {
            return Err(keep(target, plan, plan.first + report.inputs, &input));
        };
        report.inputs += 1;
        report.steps += u64::from(steps);
        let now = Instant::now();
        report.slowest = report.slowest.max(now - before);
        before = now;
        if now - start >= plan.time {
            break;
        }
    }
    report.time = start.elapsed();
    Ok(report)
}

/// Writes an input that failed to a file.
fn keep(target: &Target, plan: &Plan, number: u64, input: &[u8]) -> PathBuf {
    let name = format!("{}-{}-{number}", target.name, plan.seed);
    let path = Path::new(&plan.failures).join(name);
    let written = fs::create_dir_all(&plan.failures).and_then(|()| fs::write(&path, input));
    if let Err(error) = written {
        eprintln!(
            "{} cannot be written: {error}; the input is {input:02x?}",
            path.display()
        );
    }
    path
}
