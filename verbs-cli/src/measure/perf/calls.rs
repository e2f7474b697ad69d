//! Requests and their answers, many under way: what a call of another process takes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::args::{Plan, Span};
use super::bed::Bed;
use super::error::PerfError;
use super::exchange::{Role, Talk};
use super::latency::Measured;
use super::pace::Pace;
use super::report::numbers::Latency;

/// Samples that are kept at most: beyond that, of each two one is left out.
const SAMPLES_MAX: usize = 1 << 22;

/// Runs the test. The client shows what calls of each size take; the server only answers.
pub(super) fn run(
    bed: &mut Bed,
    plan: &Plan,
    role: Role,
    talk: &mut Talk,
    show: &mut dyn FnMut(Measured) -> Result<(), PerfError>,
) -> Result<(), PerfError> {
    let ours = bed.ours()[0];
    for &size in &plan.sizes {
        let mut run = Run::new(plan, size, role);
        run.post_first_receives(bed)?;
        talk.handshake_after_test(&ours)?;
        run.run(bed, talk)?;
        if role == Role::Client {
            show(run.measured())?;
        }
    }
    Ok(())
}

/// One size.
struct Run {
    role: Role,
    size: u32,
    /// Calls of each connection; without end when time is measured.
    iters: u64,
    span: Option<Span>,
    cq_mod: u64,
    tx_depth: u64,
    rx_depth: u64,
    connections: Vec<Connection>,
    /// The first request.
    began: Option<Instant>,
    ended: Option<Instant>,
    /// Answers that count.
    answered: u64,
    samples: Samples,
}

#[derive(Default)]
struct Connection {
    receives: u64,
    received: u64,
    sent: u64,
    /// Of the messages sent, those that have completed.
    done: u64,
    /// When requests were posted whose answers are still to come: these come in order.
    asked: VecDeque<Instant>,
}

impl Run {
    fn new(plan: &Plan, size: u32, role: Role) -> Self {
        Self {
            role,
            size,
            iters: match plan.span {
                Some(_) => u64::MAX,
                None => plan.iters.into(),
            },
            span: plan.span,
            cq_mod: plan.cq_mod(size).into(),
            tx_depth: plan.tx_depth.into(),
            rx_depth: plan.rx_depth.into(),
            connections: (0..plan.qps).map(|_| Connection::default()).collect(),
            began: None,
            ended: None,
            answered: 0,
            samples: Samples::default(),
        }
    }

    fn post_first_receives(&mut self, bed: &mut Bed) -> Result<(), PerfError> {
        for (number, connection) in self.connections.iter_mut().enumerate() {
            while connection.receives < self.rx_depth.min(self.iters) {
                bed.post_recv(number, self.size)?;
                connection.receives += 1;
            }
        }
        Ok(())
    }

    /// To the end: the last answer; or the end of the time, which the client tells the server.
    fn run(&mut self, bed: &mut Bed, talk: &Talk) -> Result<(), PerfError> {
        let mut pace = Pace::new();
        while !self.is_over() {
            let is_timed = self.span.is_some();
            if self.is_out_of_time() {
                return Ok(());
            }
            let has_sent = self.send(bed)?;
            if self.take(bed)? || has_sent {
                pace.moved();
                continue;
            }
            let done = self.connections.iter().map(|it| it.received).sum();
            let some_time_passed = pace.idle(done, self.iters)?;
            let is_server = self.role == Role::Server;
            if some_time_passed && is_timed && is_server && talk.connection.has_news() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let is_done = |it: &Connection| it.received >= self.iters && it.done >= self.iters;
        self.connections.iter().all(is_done)
    }

    fn is_out_of_time(&self) -> bool {
        let over = |(began, span): (Instant, Span)| began.elapsed() > span.whole;
        self.role == Role::Client && self.began.zip(self.span).is_some_and(over)
    }

    /// Sends requests, or the answers that are due. Whether there were any.
    fn send(&mut self, bed: &mut Bed) -> Result<bool, PerfError> {
        let is_client = self.role == Role::Client;
        // The peer has a receive for each.
        let under_way = self.tx_depth.min(self.rx_depth);
        let mut has_sent = false;
        for (number, connection) in self.connections.iter_mut().enumerate() {
            let due = match is_client {
                true => self
                    .iters
                    .min(connection.received.saturating_add(under_way)),
                false => connection.received,
            };
            let room = connection.done.saturating_add(self.tx_depth);
            while connection.sent < due.min(room) {
                let nth = connection.sent + 1;
                let is_signaled = nth.is_multiple_of(self.cq_mod) || nth == self.iters;
                if is_client {
                    let now = Instant::now();
                    self.began.get_or_insert(now);
                    connection.asked.push_back(now);
                }
                bed.post(number, connection.sent, self.size, is_signaled)?;
                connection.sent = nth;
                has_sent = true;
            }
        }
        Ok(has_sent)
    }

    /// Takes completions. Whether there were any.
    fn take(&mut self, bed: &mut Bed) -> Result<bool, PerfError> {
        let Self {
            connections,
            cq_mod,
            iters,
            ..
        } = self;
        let sent = bed.poll_sent(|number| {
            let done = &mut connections[number].done;
            *done = done.saturating_add(*cq_mod).min(*iters);
        })?;
        let mut came = Vec::new();
        let received = bed.poll_received(|number| came.push(number))?;
        for number in came {
            self.received(bed, number)?;
        }
        Ok(sent + received > 0)
    }

    /// A message has come on a connection.
    fn received(&mut self, bed: &mut Bed, number: usize) -> Result<(), PerfError> {
        let connection = &mut self.connections[number];
        connection.received += 1;
        if connection.receives < self.iters {
            bed.post_recv(number, self.size)?;
            connection.receives += 1;
        }
        let (Some(asked), Some(began)) = (connection.asked.pop_front(), self.began) else {
            return Ok(());
        };
        let now = Instant::now();
        let counts = self.span.is_none_or(|Span { whole, margin }| {
            let since = now - began;
            since > margin && since <= whole - margin
        });
        if counts {
            self.answered += 1;
            self.ended = Some(now);
            self.samples.add(now - asked);
        }
        Ok(())
    }

    fn measured(mut self) -> Measured {
        let took = match (self.span, self.began, self.ended) {
            (Some(span), ..) => span.whole - 2 * span.margin,
            (None, Some(began), Some(ended)) => ended - began,
            _ => Duration::ZERO,
        };
        self.samples.kept.sort_unstable();
        let rate = self.answered as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE);
        let latency = Latency {
            tps: Some(rate),
            ..Latency::of(self.size, self.answered, &self.samples.kept)
        };
        Measured {
            latency,
            samples: self.samples.kept,
        }
    }
}

/// Samples, as many of them as there is room for, evenly spread.
#[derive(Default)]
struct Samples {
    kept: Vec<Duration>,
    /// Of 2 to that power one is kept.
    thinned: u32,
    seen: u64,
}

impl Samples {
    fn add(&mut self, sample: Duration) {
        self.seen += 1;
        if !self.seen.is_multiple_of(1 << self.thinned) {
            return;
        }
        self.kept.push(sample);
        if self.kept.len() == SAMPLES_MAX {
            let mut nth = 0_usize;
            self.kept.retain(|_| {
                nth += 1;
                nth.is_multiple_of(2)
            });
            self.thinned += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a run of days keeps samples of all its time. Method: ascending ones, as many as fill it several times.
    #[test]
    fn samples_that_are_kept_are_spread_over_all() {
        let mut samples = Samples::default();
        let count = 5 * SAMPLES_MAX as u64;
        for nth in 1..=count {
            samples.add(Duration::from_nanos(nth));
        }
        let kept = &samples.kept;
        assert!((SAMPLES_MAX / 2..SAMPLES_MAX).contains(&kept.len()));
        let steps: Vec<_> = kept.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.iter().all(|step| *step == Duration::from_nanos(8)));
        assert_eq!(kept.last(), Some(&Duration::from_nanos(count)));
    }
}
