//! `verbs sim --bottleneck`: hosts share the queue of a switch.

use std::fmt;
use std::io::Write;

use serde_json::{Value, json};
use verbs_simulator::Shares;

use super::{SimArgs, SimError, Told, plot};
use crate::report;

/// Runs the seeds that were asked for, a line for each.
///
/// # Errors
/// [`SimError`]; [`SimError::Broken`] if a run misses a bar.
pub(super) fn run(args: &SimArgs, out: &mut dyn Write) -> Result<(), SimError> {
    let (mut all, mut failed) = (0, 0);
    let told = Told::begin();
    let mut runs = Vec::new();
    for seed in args.seeds() {
        let Some(bottleneck) = args.bottleneck(seed).filter(|_| told.signal().is_none()) else {
            break;
        };
        let shares = bottleneck.run()?;
        if let Some(path) = &args.plot {
            plot::draw(path, &bottleneck, &shares.course)?;
        }
        all += 1;
        failed += u64::from(!shares.is_good());
        if args.json {
            runs.push(Line(&shares).json(seed));
            continue;
        }
        writeln!(out, "seed {seed}: {}", Line(&shares))?;
        out.flush()?;
    }
    if args.json {
        report::json(out, &json!({ "runs": runs, "failed": failed }))?;
    }
    if let Some(signal) = told.signal() {
        signal.obey();
    }
    match failed {
        0 => Ok(()),
        failed => Err(SimError::Broken { failed, all }),
    }
}

/// What one run came to.
struct Line<'a>(&'a Shares);

impl Line<'_> {
    fn json(&self, seed: u64) -> Value {
        let Self(shares) = self;
        json!({
            "seed": seed,
            "connections": shares.bytes.len(),
            "bytes": shares.bytes,
            "jain_percent": shares.fairness(),
            "capacity_percent": shares.used(),
            "queue_bytes_max": shares.queue.longest,
            "packets": shares.queue.passed,
            "packets_marked": shares.queue.marked,
            "packets_lost": shares.queue.dropped,
            "work_requests_failed": shares.failed,
            "is_good": shares.is_good(),
            "digest": shares.digest.to_string(),
        })
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(shares) = self;
        let (index, queue) = (shares.fairness(), shares.queue);
        write!(
            f,
            "{} connections, Jain's index {}.{:02}, {} % of the capacity, queue up to {} kB, \
             {} of {} packets marked, {} lost, ",
            shares.bytes.len(),
            index / 100,
            index % 100,
            shares.used(),
            queue.longest / 1000,
            queue.marked,
            queue.passed,
            queue.dropped,
        )?;
        if shares.failed != 0 {
            write!(f, "{} work requests failed, ", shares.failed)?;
        }
        let verdict = if shares.is_good() { "clean" } else { "missed" };
        write!(f, "{verdict}, digest {}", shares.digest)
    }
}
