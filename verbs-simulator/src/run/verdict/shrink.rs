//! Makes a failing run smaller.

use std::time::Duration;

use crate::run::{Options, Report, run};

/// The most runs of a search.
const RUNS_MAX: u32 = 40;

/// Looks for a shorter run of the same seed that breaks the same rule: less time, and fewer work requests. Returns the
/// options of the shortest that was found, or those of `failed` itself.
pub fn shrink(failed: &Report) -> Options {
    let Some(violation) = &failed.violation else {
        return failed.options;
    };
    let mut best = failed.options;
    let mut left = RUNS_MAX;
    let mut try_out = |options: Options| {
        if left == 0 {
            return None;
        }
        left -= 1;
        let report = run(&options);
        let same = report
            .violation
            .as_ref()
            .is_some_and(|found| found.rule == violation.rule);
        same.then_some(report)
    };
    // Less time: by halves as long as it fails, then closer by quarters.
    for (part, of) in [(1, 2), (3, 4)] {
        loop {
            let time = best.time * part / of;
            let shorter = Options { time, ..best };
            if time < Duration::from_micros(50) || try_out(shorter).is_none() {
                break;
            }
            best = shorter;
        }
    }
    // Fewer work requests.
    let mut operations = failed.operations;
    for (part, of) in [(1, 2), (3, 4), (9, 10)] {
        loop {
            let fewer = operations * part / of;
            let smaller = Options {
                operations: Some(fewer),
                ..best
            };
            if fewer == operations || try_out(smaller).is_none() {
                break;
            }
            (operations, best) = (fewer, smaller);
        }
    }
    best
}
