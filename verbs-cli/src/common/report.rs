//! What commands show: a line of text; of a copy, a bar on a terminal while it runs, and its sums at the end.

use std::fmt;
use std::io::{self, IsTerminal, Write, stderr};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::Serialize;

const BAR: &str =
    "{bar:32} {bytes:>11} of {total_bytes}  {binary_bytes_per_sec:>13}  {eta:>4} left";

/// Prints a line at once, in one piece: some readers take the first line and leave.
pub(crate) fn line(out: &mut (impl Write + ?Sized), what: &dyn fmt::Display) -> io::Result<()> {
    out.write_all(format!("{what}\n").as_bytes())?;
    out.flush()
}

/// Prints a value as JSON, over several lines.
pub(crate) fn json(
    out: &mut (impl Write + ?Sized),
    what: &(impl Serialize + ?Sized),
) -> io::Result<()> {
    let text = serde_json::to_string_pretty(what)?;
    line(out, &text)
}

/// A progress bar on stderr, if that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new(bytes: u64, quiet: bool) -> Self {
        if quiet || !stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style =
            ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::new(bytes).with_style(style))
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// Says something on stderr. There is no one to tell that nobody reads that: a program whose terminal or parent has gone goes
/// on with its work.
pub(crate) fn remark(text: fmt::Arguments<'_>) {
    let _ = writeln!(stderr(), "{text}");
}

/// Pieces of long work, on stderr if that is a terminal: how many are done, what there is to say of them, the time left.
#[derive(Debug)]
pub(crate) struct Steps(ProgressBar);

impl Steps {
    pub(crate) fn new(all: u64) -> Self {
        if !stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("[{pos:>5}/{len}] {msg}, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::new(all).with_style(style))
    }

    /// What is said beside the count.
    pub(crate) fn say(&self, what: String) {
        self.0.set_message(what);
    }

    /// Another one is done.
    pub(crate) fn advance(&self) {
        self.0.inc(1);
    }

    /// Takes it away while something is printed.
    pub(crate) fn hidden<R>(&self, print: impl FnOnce() -> R) -> R {
        self.0.suspend(print)
    }

    /// Takes it away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// What a copy did.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) source: String,
    pub(crate) destination: String,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Bytes of one WRITE, at most.
    pub(crate) chunk: u32,
    /// WRITEs outstanding at most.
    pub(crate) window: u32,
    /// RDMA WRITEs that have completed.
    pub(crate) writes: u64,
    /// Posts of a WRITE or its announcement that found the send queue full and were repeated. The
    /// queue has room for the window, so anything but 0 means that the device frees entries late.
    pub(crate) retries: u64,
    /// From opening the devices until the file was durable under its name.
    pub(crate) seconds: f64,
    /// The part of it that the system took to make the file durable.
    pub(crate) sync_seconds: f64,
    /// BLAKE3 of what arrived, in hexadecimal.
    pub(crate) digest: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            bytes,
            writes,
            seconds,
            sync_seconds,
            digest,
            ..
        } = self;
        // An empty file takes no time that could be divided by.
        let rate = if *seconds > 0.0 {
            *bytes as f64 / seconds
        } else {
            0.0
        };
        writeln!(
            f,
            "{bytes} bytes ({}) in {writes} WRITEs, {seconds:.3} s \
             ({sync_seconds:.3} s to make it durable), {:.1} MiB/s",
            HumanBytes(*bytes),
            rate / f64::from(1 << 20)
        )?;
        write!(f, "blake3 {digest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            source: "A".into(),
            destination: "B".into(),
            bytes: 3 << 20,
            chunk: 1 << 20,
            window: 16,
            writes: 3,
            retries: 0,
            seconds: 0.5,
            sync_seconds: 0.25,
            digest: "ab".repeat(32),
        }
    }

    #[test]
    fn people_see_the_throughput() {
        let text = report().to_string();
        assert!(
            text.starts_with(
                "3145728 bytes (3.00 MiB) in 3 WRITEs, 0.500 s (0.250 s to make it durable), 6.0 MiB/s\nblake3 abab"
            ),
            "{text}"
        );
        let empty = Report {
            bytes: 0,
            seconds: 0.0,
            ..report()
        };
        assert!(empty.to_string().contains("0.0 MiB/s"));
    }

    #[test]
    fn a_hidden_bar_takes_everything() {
        let progress = Progress::new(10, true);
        progress.advance(u64::MAX);
        progress.finish();
    }
}
