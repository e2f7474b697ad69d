//! `verbs sim --flows`: many flows through a fat tree.

use std::fmt;
use std::io::Write;

use serde_json::{Value, json};
use verbs_simulator::{FlowReport, FlowRun, Spread};

use super::{SimArgs, SimError, Told};
use crate::report;

/// Runs the seeds that were asked for, some lines for each.
///
/// # Errors
/// [`SimError`].
pub(super) fn run(args: &SimArgs, out: &mut dyn Write) -> Result<(), SimError> {
    let told = Told::begin();
    let mut runs = Vec::new();
    for seed in args.seeds() {
        let Some(flows) = args.flows(seed).filter(|_| told.signal().is_none()) else {
            break;
        };
        let Some(report) = flows.run() else {
            let wanted =
                "--hosts is a square: 64, 256 or 1024, for instance, and not more than that";
            return Err(SimError::Misfit(wanted.into()));
        };
        let shown = Shown(&flows, &report);
        if args.json {
            runs.push(shown.json());
            continue;
        }
        report::line(out, &shown)?;
    }
    if args.json {
        report::json(out, &json!({ "runs": runs }))?;
    }
    if let Some(signal) = told.signal() {
        signal.obey();
    }
    Ok(())
}

/// What one run came to.
struct Shown<'a>(&'a FlowRun, &'a FlowReport);

impl Shown<'_> {
    fn json(&self) -> Value {
        let Self(run, report) = self;
        let spread = |bystanders| {
            report.spread(bystanders).map(|spread| {
                json!({
                    "flows": spread.count,
                    "mean": spread.mean,
                    "median": spread.median,
                    "percentile_99": spread.p99,
                    "max": spread.max,
                })
            })
        };
        json!({
            "seed": run.seed,
            "hosts": run.hosts,
            "bytes": run.bytes,
            "dcqcn": run.congestion.is_some(),
            "slowdown": spread(false),
            "slowdown_of_bystanders": spread(true),
            "pauses": report.pauses,
            "packets_marked": report.marked,
            "notifications": report.notified,
            "queue_bytes_max": report.longest,
            "seconds": report.took.as_secs_f64(),
            "digest": report.digest().to_string(),
        })
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(run, report) = self;
        let reaction = match run.congestion {
            Some(_) => "DCQCN",
            None => "no reaction",
        };
        writeln!(
            f,
            "seed {}: {} hosts, {} flows of {} bytes, {reaction}: {:.3} ms",
            run.seed,
            run.hosts,
            report.flows.len(),
            run.bytes,
            report.took.as_secs_f64() * 1e3,
        )?;
        let groups = [(false, "slowdown"), (true, "of bystanders")];
        for (bystanders, name) in groups {
            let Some(spread) = report.spread(bystanders) else {
                continue;
            };
            let Spread {
                mean,
                median,
                p99,
                max,
                ..
            } = spread;
            writeln!(
                f,
                "  {name:<14} mean {mean:.2}, median {median:.2}, 99 % {p99:.2}, max {max:.2}"
            )?;
        }
        write!(
            f,
            "  {} pauses, {} packets marked, {} notifications, queue up to {} kB, digest {}",
            report.pauses,
            report.marked,
            report.notified,
            report.longest / 1000,
            report.digest(),
        )
    }
}
