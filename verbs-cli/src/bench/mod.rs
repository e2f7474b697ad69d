//! `verbs bench`: what verbs and messages cost on the loopback link of a software HCA.
//!
//! Each benchmark makes its own objects ([`bed`]) and describes what is done as subjects or, for two
//! threads, as duels ([`duel`]); [`method`] measures them in turns; [`table`] shows the figures.

mod bed;
mod control;
mod duel;
mod error;
mod latency;
mod load;
mod machine;
mod many;
mod message;
mod method;
mod registration;
mod stream;
mod table;
mod wire;

use std::time::{Duration, Instant};

use crate::cli::{Bench, BenchArgs};

use self::error::BenchError;
use self::machine::{Machine, preemptions};
use self::message::Operation;
use self::method::Method;
use self::table::{Report, Row};

/// Length of a repetition: long against the clock's own cost, short against the scheduler's slices.
const REPETITION: Duration = Duration::from_millis(2);
/// The same when there is little time.
const REPETITION_QUICK: Duration = Duration::from_micros(500);
/// Seconds of measuring with `--quick`; making the objects comes on top.
const SECONDS_QUICK: f64 = 1.5;

/// What a benchmark gets.
pub(crate) struct Stage {
    bench: Bench,
    machine: Machine,
    /// For the whole benchmark.
    method: Method,
    quick: bool,
}

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
    };
    let mut stage = Stage {
        bench: Bench::Control,
        machine,
        method,
        quick: args.quick,
    };
    for bench in benches {
        stage.bench = bench;
        report.rows.extend(perform(&stage)?);
    }
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
    }
}
