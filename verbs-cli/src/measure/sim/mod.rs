//! `verbs sim`: runs seeds of the simulator, says what they came to, and how to repeat what failed.

mod args;
mod bottleneck;
mod flows;
mod host;
mod plot;
mod shown;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use verbs_simulator::{Coverage, Mode, Options, Report, run, run_with, shrink};

use crate::ending::{Ending, Signal};
use crate::report::{self, Steps};
use crate::svg::SvgError;
pub(crate) use args::{ABOUT, EXAMPLES, SimArgs};
use shown::{Failed, One, Several};

/// Why the command did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimError {
    /// A rule was broken; everything about it has been printed.
    #[error("{failed} of {all} seeds failed")]
    Broken {
        /// Seeds that failed.
        failed: u64,
        /// Seeds that were run.
        all: u64,
    },
    /// Arguments that do not go together.
    #[error("{0}")]
    Misfit(String),
    /// A verb has failed where none may.
    #[error("a verb of the run has failed: {0}")]
    Verb(verbs_core::Error),
    /// The capture could not be written.
    #[error("cannot write {}: {error}", path.display())]
    Trace {
        /// Where to.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The picture could not be made.
    #[error("cannot draw {0}")]
    Plot(SvgError),
    /// The result could not be written.
    #[error("cannot write the result to stdout: {0}")]
    Stdout(io::Error),
}

impl From<verbs_core::Error> for SimError {
    fn from(error: verbs_core::Error) -> Self {
        Self::Verb(error)
    }
}

impl From<io::Error> for SimError {
    fn from(error: io::Error) -> Self {
        Self::Stdout(error)
    }
}

impl SimError {
    /// See [`crate::exit`].
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Broken { .. } | Self::Verb(_) => crate::exit::BROKEN,
            Self::Misfit(_) => crate::exit::USAGE,
            Self::Trace { .. } | Self::Plot(_) | Self::Stdout(_) => crate::exit::FILES,
        }
    }
}

/// Hears that the process is told to end, between runs. Where the system has nothing to hear it by, a signal ends the process
/// as ever.
struct Told(Option<Ending>);

impl Told {
    fn begin() -> Self {
        Self(Ending::begin().ok())
    }

    fn signal(&self) -> Option<Signal> {
        self.0.as_ref().and_then(Ending::signal)
    }
}

/// Runs the seeds that were asked for and prints what they came to.
///
/// # Errors
/// [`SimError`].
pub(crate) fn run_seeds(args: &SimArgs, out: &mut dyn Write) -> Result<(), SimError> {
    let seeds = args.seeds();
    if args.flows(0).is_some() {
        return flows::run(args, out);
    }
    if args.bottleneck(0).is_some() {
        return bottleneck::run(args, out);
    }
    if let Some(why) = args.misfit() {
        return Err(SimError::Misfit(why));
    }
    if args.host(0).is_some() {
        return host::run(args, out);
    }
    if seeds.start() == seeds.end() {
        return one(args, *seeds.start(), out);
    }
    // The table so far is worth having, whenever it is ended.
    let told = Told::begin();
    let steps = Steps::new(seeds.end() - seeds.start() + 1);
    let mut coverage = Coverage::default();
    let (mut all, mut failed, mut operations) = (0, 0, 0);
    let mut failures = Vec::new();
    for seed in seeds.clone() {
        if told.signal().is_some() {
            break;
        }
        steps.say(format!("{failed} failed"));
        let report = run(&args.options(seed));
        steps.advance();
        all += 1;
        operations += report.operations;
        coverage += &report.coverage;
        if report.violation.is_some() {
            failed += 1;
            let failure = examine(&report, None)?;
            if args.json {
                failures.push(failure.json());
            } else {
                steps.hidden(|| write!(out, "{failure}"))?;
            }
        }
    }
    steps.finish();
    let several = Several {
        seeds: &seeds,
        all,
        failed,
        operations,
        coverage: &coverage,
    };
    if args.json {
        report::json(out, &several.json(failures))?;
    } else {
        write!(out, "{several}")?;
        out.flush()?;
    }
    if let Some(signal) = told.signal() {
        signal.obey();
    }
    match failed {
        0 => Ok(()),
        failed => Err(SimError::Broken { failed, all }),
    }
}

fn one(args: &SimArgs, seed: u64, out: &mut dyn Write) -> Result<(), SimError> {
    let options = args.options(seed);
    let report = match args.trace() {
        None => run(&options),
        Some(path) => traced(&options, path)?,
    };
    if !args.json {
        write!(out, "{}", One(&report))?;
    }
    let failed = report.violation.is_some();
    let failure = failed.then(|| examine(&report, args.trace())).transpose()?;
    if args.json {
        report::json(out, &One(&report).json(failure.as_ref()))?;
    } else if let Some(failure) = &failure {
        write!(out, "{failure}")?;
    }
    out.flush()?;
    match failed {
        true => Err(SimError::Broken { failed: 1, all: 1 }),
        false => Ok(()),
    }
}

/// How a run failed, how to repeat it and the shortest one like it. Writes a capture of that.
fn examine<'r>(report: &'r Report, trace: Option<&Path>) -> Result<Failed<'r>, SimError> {
    let smaller = shrink(report);
    let mut capture = None;
    if report.plan.mode == Mode::Packets && trace.is_none() {
        let path = PathBuf::from(format!("verbs-sim-{}.pcapng", report.options.seed));
        traced(&smaller, &path)?;
        capture = Some(path);
    }
    Ok(Failed {
        report,
        smaller,
        capture,
    })
}

/// A run whose packets are written to a file.
fn traced(options: &Options, path: &Path) -> Result<Report, SimError> {
    let error = |error| SimError::Trace {
        path: path.to_owned(),
        error,
    };
    let file = File::create(path).map_err(error)?;
    Ok(run_with(options, Some(Box::new(BufWriter::new(file)))))
}
