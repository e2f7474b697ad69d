//! `verbs sim --bottleneck`: hosts share the queue of a switch.

use std::fmt;
use std::io::Write;

use verbs_simulator::Shares;

use super::{SimArgs, SimError};

/// Runs the seeds that were asked for, a line for each.
///
/// # Errors
/// [`SimError`]; [`SimError::Broken`] if a run misses a bar.
pub(super) fn run(args: &SimArgs, out: &mut dyn Write) -> Result<(), SimError> {
    let (mut all, mut failed) = (0, 0);
    for seed in args.seeds() {
        let Some(bottleneck) = args.bottleneck(seed) else {
            break;
        };
        let shares = bottleneck.run()?;
        all += 1;
        failed += u64::from(!shares.is_good());
        writeln!(out, "seed {seed}: {}", Line(&shares))?;
        out.flush()?;
    }
    match failed {
        0 => Ok(()),
        failed => Err(SimError::Broken { failed, all }),
    }
}

/// What one run came to.
struct Line<'a>(&'a Shares);

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
