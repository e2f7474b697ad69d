//! One message at a time: there and back, or an operation that completes with its answer.

use std::time::{Duration, Instant};

use super::args::{Operation, Plan, Span};
use super::bed::Bed;
use super::error::PerfError;
use super::exchange::{Role, Talk};
use super::pace::Pace;
use super::report::numbers::Latency;

/// What was measured of one size: the numbers, and all samples in ascending order.
pub(super) struct Measured {
    pub(super) latency: Latency,
    pub(super) samples: Vec<Duration>,
}

/// Runs the test, and shows what each size takes.
pub(super) fn run(
    bed: &mut Bed,
    plan: &Plan,
    role: Role,
    talk: &mut Talk,
    show: &mut dyn FnMut(Measured) -> Result<(), PerfError>,
) -> Result<(), PerfError> {
    let ours = bed.ours()[0];
    if plan.is_remembered() && role == Role::Server {
        // It only answers, and the peer says when that is over.
        return Ok(());
    }
    for &size in &plan.sizes {
        let mut run = Run::new(plan, size, role);
        if plan.operation == Operation::Send {
            run.post_first_receives(bed)?;
            talk.handshake_after_test(&ours)?;
        }
        match plan.operation {
            Operation::Send | Operation::Write => run.play(bed, talk)?,
            Operation::Read | Operation::Atomic => run.ask(bed)?,
        }
        show(run.measured(plan))?;
    }
    Ok(())
}

/// One size.
struct Run {
    size: u32,
    /// Messages; without end when time is measured.
    iters: u64,
    span: Option<Span>,
    operation: Operation,
    /// Sends the first message.
    begins: bool,
    receives: u64,
    rx_depth: u64,
    sent: u64,
    received: u64,
    /// The first post.
    began: Option<Instant>,
    /// Every post; none when time is measured.
    posted: Vec<Instant>,
    /// Posts in the middle of the span.
    counted: u64,
}

impl Run {
    fn new(plan: &Plan, size: u32, role: Role) -> Self {
        Self {
            size,
            iters: match plan.span {
                Some(_) => u64::MAX,
                None => plan.iters.into(),
            },
            span: plan.span,
            operation: plan.operation,
            // So it is in perftest.
            begins: match plan.operation {
                Operation::Write => role == Role::Server,
                _ => role == Role::Client,
            },
            receives: 0,
            rx_depth: plan.rx_depth.into(),
            sent: 0,
            received: 0,
            began: None,
            posted: Vec::new(),
            counted: 0,
        }
    }

    fn post_first_receives(&mut self, bed: &mut Bed) -> Result<(), PerfError> {
        while self.receives < self.rx_depth.min(self.iters) {
            bed.post_recv(0, self.size)?;
            self.receives += 1;
        }
        Ok(())
    }

    /// Messages in turn.
    fn play(&mut self, bed: &mut Bed, talk: &Talk) -> Result<(), PerfError> {
        while self.sent < self.iters || self.received < self.iters {
            let waits = self.received < self.iters && !(self.sent == 0 && self.begins);
            if waits && !self.wait_for_message(bed, talk)? {
                return Ok(());
            }
            if self.sent < self.iters {
                if self.operation == Operation::Write {
                    bed.stamp(self.size, (self.sent + 1) as u8)?;
                }
                self.post(bed)?;
            }
            if self.is_out_of_time() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// READs or atomics, each after the last has completed.
    fn ask(&mut self, bed: &mut Bed) -> Result<(), PerfError> {
        while self.sent < self.iters && !self.is_out_of_time() {
            self.post(bed)?;
        }
        Ok(())
    }

    /// Posts a message and waits until it has completed.
    fn post(&mut self, bed: &mut Bed) -> Result<(), PerfError> {
        let now = Instant::now();
        let since = now - *self.began.get_or_insert(now);
        match self.span {
            None => self.posted.push(now),
            Some(Span { whole, margin }) => {
                self.counted += u64::from(since > margin && since <= whole - margin);
            }
        }
        bed.post(0, self.sent, self.size, true)?;
        let mut pace = Pace::new();
        while bed.poll_sent(|_| ())? == 0 {
            pace.idle(self.sent, self.iters)?;
        }
        self.sent += 1;
        Ok(())
    }

    /// `false`: there is none; the peer's time is over, or this end's.
    fn wait_for_message(&mut self, bed: &mut Bed, talk: &Talk) -> Result<bool, PerfError> {
        let mut pace = Pace::new();
        while !self.has_come(bed)? {
            let some_time_passed = pace.idle(self.received, self.iters)?;
            let ends = self.span.is_some() && (self.is_out_of_time() || talk.connection.has_news());
            if some_time_passed && ends {
                return Ok(false);
            }
        }
        self.received += 1;
        if self.operation == Operation::Send && self.receives < self.iters {
            bed.post_recv(0, self.size)?;
            self.receives += 1;
        }
        Ok(true)
    }

    fn has_come(&self, bed: &mut Bed) -> Result<bool, PerfError> {
        match self.operation {
            Operation::Write => {
                // Who polls has the packets taken in.
                bed.poll_sent(|_| ())?;
                Ok(bed.arrived_stamp(self.size)? == (self.received + 1) as u8)
            }
            _ => Ok(bed.poll_received(|_| ())? > 0),
        }
    }

    fn is_out_of_time(&self) -> bool {
        let over = |(began, span): (Instant, Span)| began.elapsed() > span.whole;
        self.began.zip(self.span).is_some_and(over)
    }

    fn measured(&self, plan: &Plan) -> Measured {
        // A SEND or WRITE is half of what its answer takes.
        let halves = if plan.is_remembered() { 2 } else { 1 };
        if let Some(span) = plan.span {
            let time = span.whole - 2 * span.margin;
            return Measured {
                latency: Latency::of_span(self.size, self.counted, time, halves),
                samples: Vec::new(),
            };
        }
        let between = self
            .posted
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) * halves / 2);
        let mut samples: Vec<_> = between.collect();
        samples.sort_unstable();
        Measured {
            latency: Latency::of(self.size, self.sent, &samples),
            samples,
        }
    }
}
