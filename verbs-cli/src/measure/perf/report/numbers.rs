//! What was measured, from points in time.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::perf::args::Span;

/// Beyond so many messages the peak is not looked for, as in perftest: it takes their square.
const PEAK_MAX: u64 = 20_000;

const MIB: f64 = 1_048_576.0;

/// Rates of one size, under perftest's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Bandwidth {
    #[serde(rename = "MsgSize")]
    pub(crate) size: u64,
    #[serde(rename = "n_iterations")]
    pub(crate) iterations: u64,
    /// The best run of messages, in MiB/s; 0 if that was not looked for.
    #[serde(rename = "BW_peak")]
    pub(crate) peak_mib: f64,
    #[serde(rename = "BW_average")]
    pub(crate) average_mib: f64,
    /// Messages in a microsecond.
    #[serde(rename = "MsgRate")]
    pub(crate) rate_m: f64,
}

/// When messages were posted and have completed.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    span: Option<Span>,
    /// Whether each point in time is kept, for the peak.
    keeps_all: bool,
    /// The first post, or the first completion of who posts nothing.
    begin: Option<Instant>,
    posted: Vec<Instant>,
    /// And how many had by then.
    completed: Vec<(Instant, u64)>,
}

impl Course {
    /// Of so many messages in all, or of those that there are in a span.
    pub(crate) fn new(messages: u64, span: Option<Span>) -> Self {
        Self {
            span,
            keeps_all: span.is_none() && messages <= PEAK_MAX,
            begin: None,
            posted: Vec::new(),
            completed: Vec::new(),
        }
    }

    /// A message is posted.
    pub(crate) fn post(&mut self, at: impl FnOnce() -> Instant) {
        if !self.keeps_all && self.begin.is_some() {
            return;
        }
        let at = at();
        self.begin.get_or_insert(at);
        if self.keeps_all {
            self.posted.push(at);
        }
    }

    /// So many messages have completed.
    pub(crate) fn complete(&mut self, at: Instant, all: u64) {
        let begin = *self.begin.get_or_insert(at);
        let part = |at: Instant| match self.span {
            Some(span) if at - begin > span.whole - span.margin => 2,
            Some(span) if at - begin > span.margin => 1,
            _ => 0,
        };
        match self.completed.last_mut() {
            // The last of each part says all.
            Some(last) if !self.keeps_all && part(last.0) == part(at) => *last = (at, all),
            _ => self.completed.push((at, all)),
        }
    }

    /// Whether the span is over.
    pub(crate) fn is_over(&self) -> bool {
        let last = self.completed.last().map(|(at, _)| *at);
        let took = self.begin.zip(last).map(|(begin, last)| last - begin);
        self.span
            .zip(took)
            .is_some_and(|(span, took)| took > span.whole)
    }

    /// The rates of messages of that size. With a span, of those that completed in the middle of it.
    pub(crate) fn bandwidth(&self, size: u32) -> Bandwidth {
        let (Some(begin), Some(&(last, all))) = (self.begin, self.completed.last()) else {
            return Bandwidth {
                size: size.into(),
                ..Bandwidth::default()
            };
        };
        let (iterations, time) = match self.span {
            None => (all, last - begin),
            Some(span) => {
                let until = |span: Duration| {
                    let had = |(at, _): &(Instant, u64)| *at <= begin + span;
                    let count = self.completed.partition_point(had);
                    count
                        .checked_sub(1)
                        .map_or(0, |index| self.completed[index].1)
                };
                let (from, to) = (span.margin, span.whole - span.margin);
                (until(to) - until(from), to - from)
            }
        };
        let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
        Bandwidth {
            size: size.into(),
            iterations,
            peak_mib: self.peak() * f64::from(size) / MIB,
            average_mib: iterations as f64 * f64::from(size) / seconds / MIB,
            rate_m: iterations as f64 / seconds / 1e6,
        }
    }

    /// The most messages a second, from the post of any to the completion of any later one.
    fn peak(&self) -> f64 {
        let mut best = 0.0_f64;
        for (index, &posted) in (0_u64..).zip(&self.posted) {
            let after = self.completed.partition_point(|(_, count)| *count <= index);
            for &(at, count) in &self.completed[after..] {
                let seconds = at.saturating_duration_since(posted).as_secs_f64();
                if seconds > 0.0 {
                    best = best.max((count - index) as f64 / seconds);
                }
            }
        }
        best
    }
}

impl Bandwidth {
    /// Both directions together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            peak_mib: self.peak_mib + other.peak_mib,
            average_mib: self.average_mib + other.average_mib,
            rate_m: self.rate_m + other.rate_m,
            ..self
        }
    }
}

/// Gigabits, of MiB.
pub(crate) fn gigabits(mib: f64) -> f64 {
    mib * MIB * 8.0 / 1e9
}

/// How long messages of one size take, in microseconds, under perftest's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Latency {
    #[serde(rename = "MsgSize")]
    pub(crate) size: u64,
    #[serde(rename = "n_iterations")]
    pub(crate) iterations: u64,
    pub(crate) t_min: f64,
    /// The second longest: perftest leaves out the longest, which is often another program's doing.
    pub(crate) t_max: f64,
    /// The median.
    pub(crate) t_typical: f64,
    pub(crate) t_avg: f64,
    pub(crate) t_stdev: f64,
    #[serde(rename = "percentile_99")]
    pub(crate) p99: f64,
    #[serde(rename = "percentile_99.9")]
    pub(crate) p999: f64,
    /// Messages each way a second, of --duration alone; or calls a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tps: Option<f64>,
}

/// Samples at the upper end that averages leave out, as in perftest.
const TAIL: usize = 2;

impl Latency {
    /// Of samples in ascending order.
    pub(crate) fn of(size: u32, iterations: u64, sorted: &[Duration]) -> Self {
        let micros: Vec<_> = sorted.iter().map(|one| one.as_secs_f64() * 1e6).collect();
        let Some(&least) = micros.first() else {
            return Self {
                size: size.into(),
                iterations,
                ..Self::default()
            };
        };
        let counted = &micros[..micros.len().saturating_sub(TAIL).max(1)];
        let share = |part: f64| {
            let index = (part * counted.len() as f64).ceil() as usize;
            counted[index.clamp(1, counted.len()) - 1]
        };
        let average = counted.iter().sum::<f64>() / counted.len() as f64;
        let squares = counted.iter().map(|one| (one - average).powi(2));
        Self {
            size: size.into(),
            iterations,
            t_min: least,
            t_max: micros[micros.len().saturating_sub(TAIL)],
            t_typical: counted[counted.len() / 2],
            t_avg: average,
            t_stdev: (squares.sum::<f64>() / counted.len() as f64).sqrt(),
            p99: share(0.99),
            p999: share(0.999),
            tps: None,
        }
    }

    /// Of so many messages within that time, each of which took `halves` halves of a round trip.
    pub(crate) fn of_span(size: u32, iterations: u64, time: Duration, halves: u32) -> Self {
        let each = time.as_secs_f64() * 1e6 / iterations.max(1) as f64;
        Self {
            size: size.into(),
            iterations,
            t_avg: each * f64::from(halves) / 2.0,
            tps: Some(iterations as f64 / time.as_secs_f64()),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Goal: average from the first post to the last completion, peak from any post to any completion. Method: ten
    /// messages, of which the last five take half as long.
    #[test]
    fn rates_are_of_what_completed() {
        let begin = Instant::now();
        let course_of = |span| {
            let mut course = Course::new(10, span);
            for index in 0..10_u32 {
                let (took, done) = match index {
                    0..5 => (2 * index, 2 * index + 2),
                    _ => (5 + index, 6 + index),
                };
                course.post(|| begin + took * MS);
                course.complete(begin + done * MS, u64::from(index) + 1);
            }
            course
        };
        let rates = course_of(None).bandwidth(1 << 20);
        assert_eq!(rates.iterations, 10);
        assert!((rates.average_mib - 10.0 / 0.015).abs() < 1e-6, "{rates:?}");
        assert!((rates.peak_mib - 1000.0).abs() < 1e-6, "{rates:?}");
        assert!((rates.rate_m * 1e6 - rates.average_mib).abs() < 1e-6);
        let course = course_of(Some(Span {
            whole: 14 * MS,
            margin: 4 * MS,
        }));
        assert!(course.is_over());
        let rates = course.bandwidth(1 << 20);
        // Those of 6, 8 and 10 ms.
        assert_eq!((rates.iterations, rates.peak_mib), (3, 0.0));
        assert!((rates.average_mib - 3.0 / 0.006).abs() < 1e-6, "{rates:?}");
        assert_eq!(Course::new(1, None).bandwidth(8).average_mib, 0.0);
    }

    #[test]
    fn latencies_leave_the_longest_two_out() {
        let samples: Vec<_> = (1..=1002_u64).map(Duration::from_micros).collect();
        let latency = Latency::of(2, 1003, &samples);
        let about = |got: f64, wanted: f64| assert!((got - wanted).abs() < 1e-6, "{latency:?}");
        about(latency.t_min, 1.0);
        about(latency.t_max, 1001.0);
        about(latency.t_typical, 501.0);
        about(latency.t_avg, 500.5);
        about(latency.p99, 990.0);
        about(latency.p999, 999.0);
        assert!((latency.t_stdev - 288.67).abs() < 0.01, "{latency:?}");
        let one = Latency::of(2, 2, &samples[..1]);
        assert_eq!((one.t_typical, one.t_max, one.p999), (1.0, 1.0, 1.0));
        assert_eq!(Latency::of(2, 1, &[]).t_max, 0.0);
        let span = Latency::of_span(2, 1000, Duration::from_secs(1), 1);
        assert_eq!((span.t_avg, span.tps), (500.0, Some(1000.0)));
    }
}
