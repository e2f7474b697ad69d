//! What a pingpong measured.

use std::fmt;
use std::time::Duration;

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
        let Self { bytes, iters, .. } = self;
        let seconds = self.elapsed.as_secs_f64();
        // A clock that has not moved yet would make rates without end.
        let micros = (seconds * 1e6).max(f64::MIN_POSITIVE);
        let rate = *bytes as f64 * 8.0 / micros;
        writeln!(
            f,
            "{bytes} bytes in {seconds:.2} seconds = {rate:.2} Mbit/sec"
        )?;
        let each = micros / f64::from(*iters);
        write!(
            f,
            "{iters} iters in {seconds:.2} seconds = {each:.2} usec/iter"
        )
    }
}
