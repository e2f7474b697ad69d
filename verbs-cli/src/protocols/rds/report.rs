//! What is printed.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use super::RdsError;
use crate::report::{json, line};

/// Prints a line.
pub(super) fn write(out: &mut (dyn Write + Send), text: &dyn fmt::Display) -> Result<(), RdsError> {
    line(out, text).map_err(RdsError::Stdout)
}

/// Prints JSON.
pub(super) fn show_json(
    out: &mut (dyn Write + Send),
    value: &impl Serialize,
) -> Result<(), RdsError> {
    json(out, value).map_err(RdsError::Stdout)
}

/// What was exchanged within a time: of one second for a line, of all of it for the sum.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Exchanged {
    pub(super) tasks: u16,
    pub(super) seconds: f64,
    pub(super) requests: u64,
    pub(super) answers: u64,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    /// The sum of the times from a request to its answer.
    #[serde(skip)]
    pub(super) waited: Duration,
    pub(super) rtt_us: f64,
    /// Connections that were lost.
    pub(super) losses: u64,
}

impl Exchanged {
    /// The names of the columns, as rds-stress has them.
    pub(super) const COLUMNS: &str = "tsks      tx/s      rx/s  tx+rx K/s    rtt us  lost";

    /// What came since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        let waited = self.waited.saturating_sub(before.waited);
        let answers = self.answers - before.answers;
        Self {
            tasks: self.tasks,
            seconds: self.seconds - before.seconds,
            requests: self.requests - before.requests,
            answers,
            bytes_sent: self.bytes_sent - before.bytes_sent,
            bytes_received: self.bytes_received - before.bytes_received,
            waited,
            rtt_us: average_us(waited, answers),
            losses: self.losses - before.losses,
        }
    }
}

fn average_us(waited: Duration, count: u64) -> f64 {
    match count {
        0 => 0.0,
        count => waited.as_secs_f64() * 1e6 / count as f64,
    }
}

impl fmt::Display for Exchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |count: u64| match self.seconds > 0.0 {
            true => count as f64 / self.seconds,
            false => 0.0,
        };
        write!(
            f,
            "{:4}{:10.0}{:10.0}{:11.2}{:10.2}{:6}",
            self.tasks,
            rate(self.requests),
            rate(self.answers),
            rate(self.bytes_sent + self.bytes_received) / 1024.0,
            self.rtt_us,
            self.losses
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_came_since_the_one_before() {
        let first = Exchanged {
            tasks: 2,
            seconds: 1.0,
            requests: 100,
            answers: 99,
            bytes_sent: 102_400,
            bytes_received: 0,
            waited: Duration::from_millis(99),
            ..Exchanged::default()
        };
        let second = Exchanged {
            seconds: 2.0,
            requests: 400,
            answers: 399,
            bytes_sent: 409_600,
            waited: Duration::from_millis(699),
            ..first
        };
        let line = second.since(first);
        assert_eq!(
            line.to_string(),
            "   2       300       300     300.00   2000.00     0"
        );
        assert_eq!(Exchanged::COLUMNS.len(), line.to_string().len());
        assert_eq!(Exchanged::default().since(Exchanged::default()).rtt_us, 0.0);
    }
}
