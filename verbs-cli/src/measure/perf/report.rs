//! What is shown: perftest's head and table, a histogram, or JSON.

pub(super) mod numbers;
pub(super) mod plot;

use std::fmt;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use self::numbers::{Bandwidth, Latency, gigabits};
use super::args::{Measure, PerfArgs, Plan};
use super::error::PerfError;
use super::exchange::Agreed;
use super::key::Key;
use super::latency::Measured;
use crate::report::{json, line};

/// Where the text goes, and the results for what comes at the end.
pub(super) struct Report<'a> {
    out: &'a mut dyn Write,
    args: &'a PerfArgs,
    pub(super) bandwidths: Vec<Bandwidth>,
    pub(super) latencies: Vec<Latency>,
}

/// As perftest's `--out_json` has it, where it has it.
#[derive(Serialize)]
struct Json<'a, R> {
    test_info: Info,
    results: &'a [R],
}

#[derive(Serialize)]
struct Info {
    test: &'static str,
    role: &'static str,
    qps: usize,
    tx_depth: u32,
    cq_mod: u32,
    mtu: u32,
    gid_index: u16,
    bidirectional: bool,
}

impl<'a> Report<'a> {
    pub(super) fn new(out: &'a mut dyn Write, args: &'a PerfArgs) -> Self {
        Self {
            out,
            args,
            bandwidths: Vec::new(),
            latencies: Vec::new(),
        }
    }

    fn say(&mut self, text: &dyn fmt::Display) -> Result<(), PerfError> {
        if self.args.json {
            return Ok(());
        }
        line(self.out, text).map_err(PerfError::Stdout)
    }

    pub(super) fn waiting(&mut self) -> Result<(), PerfError> {
        let stars = "*".repeat(36);
        self.say(&format_args!(
            "\n{stars}\n* Waiting for client to connect... *\n{stars}"
        ))
    }

    pub(super) fn head(
        &mut self,
        plan: &Plan,
        agreed: Agreed,
        index: u16,
    ) -> Result<(), PerfError> {
        let (title, size) = (self.args.test.title(), plan.size_max());
        let both = if plan.both_ways { " Bidirectional" } else { "" };
        let (qps, mtu, cq_mod) = (plan.qps, agreed.mtu.bytes(), plan.cq_mod(size));
        let (tx, rx) = (plan.tx_depth, plan.rx_depth);
        self.say(&format_args!(
            "{RULE}\n                    {title}{both}\n \
             Number of qps   : {qps}\t\tConnection type : RC\n \
             TX depth        : {tx}\t\tRX depth        : {rx}\n \
             CQ Moderation   : {cq_mod}\t\tMtu             : {mtu}[B]\n \
             Link type       : Ethernet\tGID index       : {index}\n \
             Data ex. method : Ethernet\n{RULE}"
        ))
    }

    pub(super) fn keys(&mut self, ours: &[Key], theirs: &[Key]) -> Result<(), PerfError> {
        for key in ours {
            self.say(&format_args!(" local address: {key}"))?;
        }
        for key in theirs {
            self.say(&format_args!(" remote address: {key}"))?;
        }
        self.say(&RULE)?;
        match self.args.test.measures() {
            Measure::Bandwidth => {}
            Measure::Latency if self.args.is_timed() => {
                return self.say(&" #bytes     #iterations    t_avg[usec]    tps average");
            }
            Measure::Latency => {
                return self.say(
                    &" #bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                     t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]",
                );
            }
            Measure::Calls => {
                return self.say(
                    &" #bytes     #calls         calls/s        t_min[usec]    t_typical[usec]    t_avg[usec]    \
                     99% percentile[usec]   99.9% percentile[usec]   t_max[usec]",
                );
            }
        }
        let unit = if self.args.report_gbits {
            "Gb/sec"
        } else {
            "MiB/sec"
        };
        self.say(&format_args!(
            " #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"
        ))
    }

    pub(super) fn bandwidth(&mut self, rates: &Bandwidth) -> Result<(), PerfError> {
        let in_unit = |mib| match self.args.report_gbits {
            true => gigabits(mib),
            false => mib,
        };
        let (peak, average) = (in_unit(rates.peak_mib), in_unit(rates.average_mib));
        let digits = if self.args.report_gbits && average < 0.1 {
            6
        } else {
            2
        };
        let Bandwidth {
            size,
            iterations,
            rate_m,
            ..
        } = rates;
        self.say(&format_args!(
            " {size:<10} {iterations:<14} {peak:<18.digits$} {average:<19.digits$}  {rate_m:.6}"
        ))?;
        self.bandwidths.push(*rates);
        Ok(())
    }

    pub(super) fn latency(&mut self, measured: &Measured) -> Result<(), PerfError> {
        let one = &measured.latency;
        let Latency {
            size, iterations, ..
        } = one;
        match one.tps {
            Some(tps) if self.args.test.measures() == Measure::Calls => self.say(&format_args!(
                " {size:<10} {iterations:<14} {tps:<14.0} {:<14.2} {:<18.2} {:<14.2} {:<22.2} {:<24.2} {:.2}",
                one.t_min, one.t_typical, one.t_avg, one.p99, one.p999, one.t_max
            ))?,
            Some(tps) => self.say(&format_args!(
                " {size:<10} {iterations:<14} {:<14.2} {tps:.2}",
                one.t_avg
            ))?,
            None => self.say(&format_args!(
                " {size:<10} {iterations:<14} {:<14.2} {:<12.2} {:<18.2} {:<14.2} {:<15.2} {:<22.2} {:.2}",
                one.t_min, one.t_max, one.t_typical, one.t_avg, one.t_stdev, one.p99, one.p999
            ))?,
        }
        if self.args.histogram {
            self.say(&Histogram(&measured.samples))?;
        }
        self.latencies.push(*one);
        Ok(())
    }

    /// The end: JSON, if that was asked for.
    pub(super) fn end(
        &mut self,
        role: &'static str,
        plan: &Plan,
        agreed: Agreed,
        gid_index: u16,
    ) -> Result<(), PerfError> {
        self.say(&RULE)?;
        if !self.args.json {
            return Ok(());
        }
        let test_info = Info {
            test: self.args.test.title(),
            role,
            qps: plan.qps,
            tx_depth: plan.tx_depth,
            cq_mod: plan.cq_mod(plan.size_max()),
            mtu: agreed.mtu.bytes(),
            gid_index,
            bidirectional: plan.both_ways,
        };
        let said = match self.args.test.measures() {
            Measure::Bandwidth => {
                let results = &self.bandwidths;
                json(self.out, &Json { test_info, results })
            }
            Measure::Latency | Measure::Calls => {
                let results = &self.latencies;
                json(self.out, &Json { test_info, results })
            }
        };
        said.map_err(PerfError::Stdout)
    }
}

const RULE: &str =
    "---------------------------------------------------------------------------------------";

/// Parts of an octave that a row of a histogram has.
const PARTS: f64 = 4.0;

/// Characters of the longest bar.
const BAR: f64 = 40.0;

/// Samples in ascending order, in rows each of which is a fifth longer than the one before.
struct Histogram<'a>(&'a [Duration]);

impl Histogram<'_> {
    /// Which row a sample is in.
    fn row(sample: Duration) -> i64 {
        let micros = sample.as_secs_f64().max(1e-9) * 1e6;
        (micros.log2() * PARTS).floor() as i64
    }

    fn edge(row: i64) -> f64 {
        2_f64.powf(row as f64 / PARTS)
    }
}

impl fmt::Display for Histogram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> = self
            .0
            .chunk_by(|a, b| Self::row(*a) == Self::row(*b))
            .collect();
        let most = rows.iter().map(|row| row.len()).max().unwrap_or(1) as f64;
        let all = self.0.len().max(1) as f64;
        write!(f, "\n          usec              count    share")?;
        for row in rows {
            let number = Self::row(row[0]);
            let (from, to) = (Self::edge(number), Self::edge(number + 1));
            let (count, share) = (row.len(), 100.0 * row.len() as f64 / all);
            let bar = "#".repeat((BAR * count as f64 / most).ceil() as usize);
            write!(
                f,
                "\n  {from:>9.2} to {to:>9.2} {count:>9} {share:>7.2} %  {bar}"
            )?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every sample is in one row, between its edges.
    #[test]
    fn histograms_count_every_sample_once() {
        let samples: Vec<_> = [90, 100, 1000, 1001, 1002, 50_000]
            .map(Duration::from_nanos)
            .into();
        let text = Histogram(&samples).to_string();
        let rows: Vec<Vec<_>> = text
            .lines()
            .filter(|line| line.contains('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let counts: Vec<usize> = rows
            .iter()
            .map(|row| row[3].parse().expect("a count"))
            .collect();
        assert_eq!(counts.iter().sum::<usize>(), samples.len(), "{text}");
        for sample in samples {
            let micros = sample.as_secs_f64() * 1e6;
            let row = Histogram::row(sample);
            assert!(
                Histogram::edge(row) <= micros * 1.000_001 && micros < Histogram::edge(row + 1)
            );
        }
    }
}
