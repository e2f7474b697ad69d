//! `verbs bench`: what verbs and messages cost on the loopback link of a software HCA.
//!
//! Each benchmark makes its own objects ([`bed`]) and describes what is done as subjects or, for two
//! threads, as duels ([`duel`]); [`method`] measures them in turns; [`table`] shows the figures.

mod bed;
mod duel;
mod error;
mod far;
mod machine;
mod method;
mod rows;
mod stage;
mod table;
mod tcp;

use std::time::{Duration, Instant};

use crate::cli::{Bench, BenchArgs};
use crate::ending::Ending;
use crate::report::Steps;

use self::error::BenchError;
use self::machine::{Machine, preemptions};
use self::method::Method;
use self::rows::message::Operation;
use self::rows::{control, latency, load, many, message, near, rds, registration, stream, wire};
use self::stage::Stage;
use self::table::{Report, Row};

/// Length of a repetition: long against the clock's own cost, short against the scheduler's slices.
const REPETITION: Duration = Duration::from_millis(2);
/// The same when there is little time.
const REPETITION_QUICK: Duration = Duration::from_micros(500);
/// Seconds of measuring with `--quick`; making the objects comes on top.
const SECONDS_QUICK: f64 = 1.5;

/// Runs the benchmarks that were asked for. Blocks, and keeps the thread on one processor.
pub(crate) fn run(args: &BenchArgs) -> Result<Report, BenchError> {
    let started = Instant::now();
    let benches = args.benches();
    let (repetition, seconds) = if args.quick {
        (REPETITION_QUICK, SECONDS_QUICK)
    } else {
        (REPETITION, args.time)
    };
    let method = Method::new(repetition, Duration::from_secs_f64(seconds)).part_of(benches.len());
    let machine = Machine::new();
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        processors: machine.processors(),
        pinned: machine.pin(0),
        filtered: preemptions().is_some(),
        optimized: !cfg!(debug_assertions),
        seconds: 0.0,
        rows: Vec::new(),
        signal: None,
    };
    let mut stage = Stage {
        bench: Bench::Control,
        machine,
        method,
        quick: args.quick,
    };
    // The rows so far are worth having, whenever it is ended.
    let ending = Ending::begin().ok();
    let steps = Steps::new(benches.len() as u64);
    for bench in benches {
        steps.say(format!("{bench:?}").to_lowercase());
        stage.bench = bench;
        report.rows.extend(perform(&stage)?);
        steps.advance();
        report.signal = ending.as_ref().and_then(Ending::signal);
        if report.signal.is_some() {
            break;
        }
    }
    steps.finish();
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

fn perform(stage: &Stage) -> Result<Vec<Row>, BenchError> {
    match stage.bench {
        Bench::Control => control::run(stage),
        Bench::Send => message::run(stage, Operation::Send),
        Bench::Write => message::run(stage, Operation::Write),
        Bench::Read => message::run(stage, Operation::Read),
        Bench::Registration => registration::run(stage),
        Bench::Latency => latency::run(stage),
        Bench::Stream => stream::run(stage),
        Bench::Qps => many::run(stage),
        Bench::Load => load::run(stage),
        Bench::Wire => wire::run(stage),
        Bench::Iwarp => wire::iwarp::run(stage),
        Bench::Near => near::run(stage),
        Bench::Rds => rds::run(stage),
    }
}
