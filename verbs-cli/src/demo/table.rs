//! What is shown: a line for each step, as soon as it is done; or all of them at the end, as JSON.

use std::io::Write;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::demo::error::DemoError;
use crate::demo::file::Payload;
use crate::report::{self, line};

/// Where the lines go.
pub(crate) struct Demo<'a> {
    out: &'a mut dyn Write,
    /// The steps so far, if they are shown as JSON.
    steps: Option<Vec<Row>>,
}

/// A step that is done.
#[derive(Serialize)]
pub(crate) struct Row {
    #[serde(rename = "step")]
    pub(crate) what: &'static str,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub(crate) took: Duration,
    #[serde(rename = "result")]
    pub(crate) says: String,
}

/// All that is shown, as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    steps: &'a [Row],
    file: String,
    bytes: usize,
    /// BLAKE3 of the file, as it arrived both times.
    digest: String,
    #[serde(serialize_with = "seconds")]
    seconds: Duration,
}

fn seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
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
    pub(crate) fn new(out: &'a mut dyn Write, json: bool) -> Self {
        let steps = json.then(Vec::new);
        Self { out, steps }
    }

    /// Words between the steps, for people.
    pub(crate) fn say(&mut self, text: &str) -> Result<(), DemoError> {
        match self.steps {
            Some(_) => Ok(()),
            None => line(self.out, &text).map_err(DemoError::Output),
        }
    }

    /// All steps are done, and the file has arrived both times.
    pub(crate) fn end(&mut self, payload: &Payload, took: Duration) -> Result<(), DemoError> {
        let (name, bytes) = (payload.name().to_string(), payload.len());
        let digest = payload.digest().to_string();
        if let Some(steps) = &self.steps {
            let shown = Shown {
                steps,
                file: name,
                bytes,
                digest,
                seconds: took,
            };
            return report::json(self.out, &shown).map_err(DemoError::Output);
        }
        let mib = bytes as f64 / f64::from(1 << 20);
        self.say(&format!(
            "{name}, {mib:.1} MiB, arrived both times: {digest}"
        ))?;
        self.say(&format!("done in {:.1} s", took.as_secs_f64()))
    }

    pub(crate) fn row(&mut self, row: Row) -> Result<(), DemoError> {
        if let Some(steps) = &mut self.steps {
            steps.push(row);
            return Ok(());
        }
        let Row { what, took, says } = row;
        let took = took.as_secs_f64() * 1e3;
        self.say(&format!("  {what:<28} {took:>9.1} ms   {says}"))
    }
}
