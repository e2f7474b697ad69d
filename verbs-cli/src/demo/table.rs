//! What is shown: a line for each step, as soon as it is done.

use std::io::Write;
use std::time::Duration;

use crate::demo::error::DemoError;
use crate::report::line;

/// Where the lines go.
pub(crate) struct Demo<'a> {
    out: &'a mut dyn Write,
}

/// A step that is done.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) took: Duration,
    pub(crate) says: String,
}

impl Row {
    /// Something that has moved so many bytes.
    pub(crate) fn rate(what: &'static str, took: Duration, bytes: usize) -> Self {
        let mb = bytes as f64 / 1e6;
        Self {
            what,
            took,
            says: format!(
                "{mb:.1} MB at {:.0} MB/s",
                mb / took.as_secs_f64().max(1e-9)
            ),
        }
    }
}

impl<'a> Demo<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self { out }
    }

    pub(crate) fn say(&mut self, text: &str) -> Result<(), DemoError> {
        line(self.out, &text).map_err(DemoError::Output)
    }

    pub(crate) fn row(&mut self, row: Row) -> Result<(), DemoError> {
        let Row { what, took, says } = row;
        let took = took.as_secs_f64() * 1e3;
        self.say(&format!("  {what:<28} {took:>9.1} ms   {says}"))
    }
}
