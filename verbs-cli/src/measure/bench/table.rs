//! What a benchmark shows: rows for people and for programs.

use std::fmt;

use serde::Serialize;

use super::method::{Figures, KEPT_MIN};
use crate::cli::Bench;
use crate::ending::Signal;

/// What was measured, and on what.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    /// Processors that the process may use.
    pub(crate) processors: usize,
    /// Each thread was kept on a processor of its own.
    pub(crate) pinned: bool,
    /// Repetitions in which a thread was interrupted could be told from the others.
    pub(crate) filtered: bool,
    /// The build has optimisations; figures without say nothing about the product.
    pub(crate) optimized: bool,
    pub(crate) seconds: f64,
    pub(crate) rows: Vec<Row>,
    /// What has ended it before it was complete.
    #[serde(skip)]
    pub(crate) signal: Option<Signal>,
}

/// One figure: nanoseconds for one message or verb, over the repetitions that were kept.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) bench: Bench,
    pub(crate) operation: &'static str,
    pub(crate) threads: u32,
    /// Bytes of one message, or of the memory that is registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<usize>,
    /// Work requests posted with one doorbell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<usize>,
    /// Connections that are used in turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<usize>,
    pub(crate) ns_median: f64,
    pub(crate) ns_min: f64,
    pub(crate) ns_p90: f64,
    /// Messages or verbs in a second, from the median.
    pub(crate) per_second: f64,
    /// 10^9 bytes in a second, from the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gigabytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<Beside>,
    /// Repetitions without an interruption; if there was none, the figures are those of all.
    pub(crate) kept: usize,
    pub(crate) taken: usize,
}

/// What a row is compared with; it was measured in turns with it.
#[derive(Debug, Serialize)]
pub(crate) struct Beside {
    what: &'static str,
    ns_median: f64,
    /// The row's median by this one.
    ratio: f64,
    kept: usize,
    taken: usize,
}

impl Beside {
    /// `ours` compared with a limit or peer.
    pub(crate) fn new(what: &'static str, limit: Figures, ours: Figures) -> Self {
        Self {
            what,
            ns_median: limit.median,
            ratio: ours.median / limit.median,
            kept: limit.kept,
            taken: limit.taken,
        }
    }
}

impl Row {
    /// A row of one thread.
    pub(crate) fn new(bench: Bench, operation: &'static str, figures: Figures) -> Self {
        Self {
            bench,
            operation,
            threads: 1,
            bytes: None,
            batch: None,
            connections: None,
            ns_median: figures.median,
            ns_min: figures.min,
            ns_p90: figures.p90,
            per_second: 1e9 / figures.median,
            gigabytes_per_second: None,
            beside: None,
            kept: figures.kept,
            taken: figures.taken,
        }
    }

    pub(crate) fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// The bytes are moved one message after another, so that a bandwidth means something.
    pub(crate) fn bandwidth(mut self) -> Self {
        self.gigabytes_per_second = self.bytes.map(|bytes| bytes as f64 / self.ns_median);
        self
    }

    pub(crate) fn batch(mut self, batch: usize) -> Self {
        self.batch = Some(batch);
        self
    }

    pub(crate) fn connections(mut self, connections: usize) -> Self {
        self.connections = Some(connections);
        self
    }

    pub(crate) fn threads(mut self, threads: u32) -> Self {
        self.threads = threads;
        self
    }

    pub(crate) fn beside(mut self, beside: Beside) -> Self {
        self.beside = Some(beside);
        self
    }

    /// Whether too few repetitions were quiet, of this or of what it is compared with.
    fn is_noisy(&self) -> bool {
        let beside = self.beside.as_ref().map_or(self.kept, |beside| beside.kept);
        self.kept.min(beside) < KEPT_MIN
    }

    /// What was done, in one cell.
    fn subject(&self) -> String {
        let mut subject = self.operation.to_owned();
        if let Some(connections) = self.connections {
            subject += &format!(", {connections}");
        }
        if let Some(batch) = self.batch {
            subject += &if batch == 1 {
                ", single".into()
            } else {
                format!(", batch of {batch}")
            };
        }
        subject
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes.map_or_else(String::new, size);
        let bandwidth = self.gigabytes_per_second;
        let bandwidth = bandwidth.map_or_else(String::new, |rate| format!("{rate:.2}"));
        write!(
            f,
            "{:<46} {bytes:>7} {:>10} {:>10} {:>10} {:>8} {bandwidth:>7}  ",
            self.subject(),
            ns(self.ns_median),
            ns(self.ns_min),
            ns(self.ns_p90),
            rate(self.per_second),
        )?;
        let beside = self.beside.as_ref().map_or_else(String::new, |beside| {
            let Beside {
                what,
                ns_median,
                ratio,
                ..
            } = beside;
            format!("{ratio:.2} x {what} {}", ns(*ns_median))
        });
        let mark = if self.is_noisy() { " !" } else { "" };
        let kept = format!("{}/{}", self.kept, self.taken);
        write!(f, "{beside:<30} {kept:>8}{mark}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bench = None;
        for row in &self.rows {
            if bench != Some(row.bench) {
                bench = Some(row.bench);
                heading(f, row.bench)?;
            }
            writeln!(f, "{row}")?;
        }
        if self.rows.iter().any(Row::is_noisy) {
            writeln!(
                f,
                "! fewer than {KEPT_MIN} quiet repetitions: the machine was busy, measure again"
            )?;
        }
        if !self.filtered {
            writeln!(
                f,
                "interruptions cannot be seen without /proc: all repetitions were kept"
            )?;
        }
        if !self.pinned {
            writeln!(
                f,
                "threads were not kept on processors of their own, {} can be used",
                self.processors
            )?;
        }
        if !self.optimized {
            writeln!(
                f,
                "this build is not optimised: its figures say nothing about the product"
            )?;
        }
        write!(
            f,
            "ns are for one message or verb: median, least and 90th percentile of the repetitions \
             kept, of those taken; {:.1} s in all",
            self.seconds
        )
    }
}

fn heading(f: &mut fmt::Formatter<'_>, bench: Bench) -> fmt::Result {
    writeln!(
        f,
        "{:<46} {:>7} {:>10} {:>10} {:>10} {:>8} {:>7}  {:<30} {:>8}",
        format!("{bench}: {}", bench.about()),
        "bytes",
        "ns",
        "min",
        "p90",
        "per s",
        "GB/s",
        "beside, ns",
        "kept"
    )
}

/// Nanoseconds with as many digits as mean something.
fn ns(ns: f64) -> String {
    if ns < 100.0 {
        format!("{ns:.1}")
    } else {
        format!("{ns:.0}")
    }
}

/// A rate in thousands or millions.
fn rate(per_second: f64) -> String {
    if per_second >= 1e6 {
        format!("{:.2} M", per_second / 1e6)
    } else {
        format!("{:.1} k", per_second / 1e3)
    }
}

/// Bytes in the largest unit that leaves no fraction.
fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes != 0 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes != 0 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(median: f64, kept: usize) -> Figures {
        Figures {
            median,
            min: median / 2.0,
            p90: median * 2.0,
            kept,
            taken: 20,
        }
    }

    fn report(rows: Vec<Row>) -> Report {
        Report {
            version: "0",
            processors: 2,
            pinned: true,
            filtered: true,
            optimized: true,
            seconds: 1.25,
            rows,
            signal: None,
        }
    }

    #[test]
    fn rows_say_what_was_compared() {
        let (ours, limit) = (figures(50.0, 20), figures(40.0, 19));
        let row = Row::new(Bench::Write, "WRITE", ours)
            .bytes(4096)
            .batch(16)
            .bandwidth()
            .beside(Beside::new("memcpy", limit, ours));
        let text = report(vec![row]).to_string();
        for part in [
            "write: ",
            "WRITE, batch of 16",
            "4 KiB",
            "50.0",
            "20.00 M",
            "81.92",
            "1.25 x memcpy 40.0",
            "20/20",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains('!'), "{text}");
    }

    #[test]
    fn noise_is_marked() {
        let quiet = figures(50.0, 5);
        for (ours, limit, noisy) in [(5, 5, false), (4, 5, true), (5, 4, true)] {
            let limit = Beside::new("memcpy", figures(40.0, limit), quiet);
            let row = Row::new(Bench::Send, "SEND", figures(50.0, ours)).beside(limit);
            let text = report(vec![row]).to_string();
            assert_eq!(text.contains("! fewer"), noisy, "{text}");
        }
    }

    #[test]
    fn sizes_and_rates_have_units() {
        assert_eq!(
            [8, 1000, 1024, 3 << 20].map(size),
            ["8 B", "1000 B", "1 KiB", "3 MiB"]
        );
        assert_eq!([2.5e7, 1234.0].map(rate), ["25.00 M", "1.2 k"]);
        assert_eq!([99.94, 100.4].map(ns), ["99.9", "100"]);
    }
}
