//! What a pingpong measured.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// What a pingpong measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Report {
    /// Bytes that went over the wire, both ways.
    pub(super) bytes: u64,
    /// Messages each way.
    pub(super) iters: u32,
    pub(super) elapsed: Duration,
}

/// The lines that the programs end with.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary {
            bytes,
            iterations,
            seconds,
            mbit_per_second,
            us_per_iteration,
        } = Summary::of(self);
        writeln!(
            f,
            "{bytes} bytes in {seconds:.2} seconds = {mbit_per_second:.2} Mbit/sec"
        )?;
        write!(
            f,
            "{iterations} iters in {seconds:.2} seconds = {us_per_iteration:.2} usec/iter"
        )
    }
}

/// The same for programs.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    bytes: u64,
    iterations: u32,
    seconds: f64,
    mbit_per_second: f64,
    us_per_iteration: f64,
}

impl Summary {
    pub(super) fn of(report: &Report) -> Self {
        let seconds = report.elapsed.as_secs_f64();
        // A clock that has not moved yet would make rates without end.
        let micros = (seconds * 1e6).max(f64::MIN_POSITIVE);
        Self {
            bytes: report.bytes,
            iterations: report.iters,
            seconds,
            mbit_per_second: report.bytes as f64 * 8.0 / micros,
            us_per_iteration: micros / f64::from(report.iters),
        }
    }
}
