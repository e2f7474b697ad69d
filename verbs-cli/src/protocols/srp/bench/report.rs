//! What a benchmark of a disk shows.

use std::fmt;

use serde::Serialize;
use ulp_srp::initiator::Formats;

use super::load::Measured;
use super::{BenchArgs, Way};

/// What was done, and how fast it went.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    disk: String,
    mechanism: Way,
    depth: u16,
    channels: u8,
    block_bytes: u64,
    fragments: u32,
    read_percent: u32,
    seconds: f64,
    reads: u64,
    writes: u64,
    /// Commands a second.
    iops: f64,
    /// Commands for each second of a processor that this process took: both ends, if the disk is in it.
    iops_per_core: f64,
    /// Commands a second without a protocol, where the disk is in this process: function calls.
    calls_per_second: Option<f64>,
    bytes_per_second: f64,
    latency_us_mean: f64,
    latency_us_p50: f64,
    latency_us_p99: f64,
    /// Commands by the format of their data buffer.
    direct: u64,
    indirect: u64,
    immediate: u64,
    /// Memory descriptors of a command with data, on average.
    descriptors: f64,
}

impl Report {
    pub(super) fn new(
        args: &BenchArgs,
        mechanism: Way,
        measured: &Measured,
        formats: Formats,
        calls: Option<f64>,
    ) -> Self {
        let commands = measured.reads + measured.writes;
        let latencies = &measured.latencies;
        let sum: f64 = latencies.iter().map(|&nanos| f64::from(nanos)).sum();
        let at = |part: usize| {
            let index = latencies.len().saturating_sub(1) * part / 100;
            latencies
                .get(index)
                .map_or(0.0, |&nanos| f64::from(nanos) / 1e3)
        };
        let with_data = formats.direct + formats.indirect + formats.immediate;
        let iops = commands as f64 / measured.seconds;
        Self {
            disk: args
                .target
                .as_ref()
                .map_or_else(|| "memory of this process".into(), ToString::to_string),
            mechanism,
            depth: args.depth,
            channels: args.channels,
            block_bytes: args.block,
            fragments: args.fragments,
            read_percent: args.read,
            seconds: measured.seconds,
            reads: measured.reads,
            writes: measured.writes,
            iops,
            iops_per_core: commands as f64 / measured.cpu_seconds.max(1e-9),
            calls_per_second: calls,
            bytes_per_second: iops * args.block as f64,
            latency_us_mean: sum / 1e3 / latencies.len().max(1) as f64,
            latency_us_p50: at(50),
            latency_us_p99: at(99),
            direct: formats.direct,
            indirect: formats.indirect,
            immediate: formats.immediate,
            descriptors: (formats.direct + formats.entries) as f64 / with_data.max(1) as f64,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            disk,
            depth,
            block_bytes,
            fragments,
            read_percent,
            ..
        } = self;
        writeln!(
            f,
            "{disk}: {depth} commands of {block_bytes} bytes in {fragments} fragments, {read_percent} % reads, {:.1} s",
            self.seconds
        )?;
        writeln!(
            f,
            "{:>10} {:>10} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10} {:>11}",
            "commands/s",
            "MB/s",
            "mean us",
            "50 % us",
            "99 % us",
            "direct",
            "indirect",
            "immediate",
            "descriptors"
        )?;
        writeln!(
            f,
            "{:>10.0} {:>10.1} {:>9.1} {:>9.1} {:>9.1} {:>10} {:>10} {:>10} {:>11.2}",
            self.iops,
            self.bytes_per_second / 1e6,
            self.latency_us_mean,
            self.latency_us_p50,
            self.latency_us_p99,
            self.direct,
            self.indirect,
            self.immediate,
            self.descriptors
        )?;
        write!(
            f,
            "{:>10.0} commands for each second of a processor",
            self.iops_per_core
        )?;
        match self.calls_per_second {
            Some(calls) => writeln!(f, "; {calls:.0} a second by function calls on the disk"),
            None => writeln!(f),
        }
    }
}
