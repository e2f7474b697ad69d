//! Messages one after the other, as many under way as the queues hold.

use std::time::Instant;

use super::args::{Operation, Plan};
use super::bed::Bed;
use super::error::PerfError;
use super::exchange::{Role, Talk};
use super::pace::Pace;
use super::report::numbers::{Bandwidth, Course};

/// Runs the test, and shows the rates of each size.
pub(super) fn run(
    bed: &mut Bed,
    plan: &Plan,
    role: Role,
    talk: &mut Talk,
    show: &mut dyn FnMut(&Bandwidth) -> Result<(), PerfError>,
) -> Result<(), PerfError> {
    let ours = bed.ours()[0];
    let one_way = !plan.both_ways;
    if plan.is_one_sided() && one_way && role == Role::Server {
        talk.handshake_after_test(&ours)?;
        let theirs = talk.reports(&Bandwidth::default())?;
        return show(&theirs);
    }
    let (is_send, all) = (plan.operation == Operation::Send, plan.sizes.len() > 1);
    let mut last = Bandwidth::default();
    for &size in &plan.sizes {
        let mut run = Run::new(plan, size, role);
        if run.receives {
            run.post_first_receives(bed)?;
        }
        if is_send || plan.both_ways {
            talk.handshake_after_test(&ours)?;
        }
        last = run.run(bed, talk)?.bandwidth(size);
        if all && (is_send || plan.both_ways) {
            talk.handshake_after_test(&ours)?;
        }
        if plan.both_ways && plan.span.is_none() {
            let theirs = talk.reports(&last)?;
            show(&last.and(theirs))?;
        } else {
            show(&last)?;
        }
    }
    if plan.is_one_sided() && one_way {
        talk.handshake_after_test(&ours)?;
        talk.reports(&last)?;
    }
    Ok(())
}

/// One size.
struct Run {
    size: u32,
    /// Messages of each connection; without end when time is measured.
    iters: u64,
    is_timed: bool,
    cq_mod: u64,
    tx_depth: u64,
    rx_depth: u64,
    sends: bool,
    receives: bool,
    /// Of each connection: posted, completed.
    sent: Vec<[u64; 2]>,
    received: Vec<[u64; 2]>,
    /// Of what is sent, and of what is received.
    courses: [Course; 2],
}

impl Run {
    fn new(plan: &Plan, size: u32, role: Role) -> Self {
        let is_send = plan.operation == Operation::Send;
        let messages = u64::from(plan.iters) * plan.qps as u64;
        Self {
            size,
            iters: match plan.span {
                Some(_) => u64::MAX,
                None => plan.iters.into(),
            },
            is_timed: plan.span.is_some(),
            cq_mod: plan.cq_mod(size).into(),
            tx_depth: plan.tx_depth.into(),
            rx_depth: plan.rx_depth.into(),
            sends: plan.both_ways || role == Role::Client,
            receives: is_send && (plan.both_ways || role == Role::Server),
            sent: vec![[0; 2]; plan.qps],
            received: vec![[0; 2]; plan.qps],
            courses: [messages; 2].map(|messages| Course::new(messages, plan.span)),
        }
    }

    /// Before the peer is told to begin.
    fn post_first_receives(&mut self, bed: &mut Bed) -> Result<(), PerfError> {
        for (number, [posted, _]) in self.received.iter_mut().enumerate() {
            while *posted < self.rx_depth.min(self.iters) {
                bed.post_recv(number, self.size)?;
                *posted += 1;
            }
        }
        Ok(())
    }

    /// To the end; when what was sent, or else received, has completed.
    fn run(mut self, bed: &mut Bed, talk: &Talk) -> Result<Course, PerfError> {
        let mut pace = Pace::new();
        while !self.is_over() {
            if self.sends {
                self.post(bed)?;
            }
            let came = self.poll(bed)?;
            // A sender's time is over after the span.
            if self.sends && self.courses.iter().any(Course::is_over) {
                break;
            }
            if came {
                pace.moved();
                continue;
            }
            let done = self
                .sent
                .iter()
                .chain(&self.received)
                .map(|[_, done]| *done);
            let some_time_passed = pace.idle(done.sum(), self.iters)?;
            // Who only receives goes on until the sender has had its time, and says so.
            let only_receives = self.is_timed && !self.sends;
            if some_time_passed && only_receives && talk.connection.has_news() {
                break;
            }
        }
        let [sent, received] = self.courses;
        Ok(if self.sends { sent } else { received })
    }

    fn is_over(&self) -> bool {
        let all = |ends: &[[u64; 2]]| ends.iter().all(|[_, done]| *done >= self.iters);
        (!self.sends || all(&self.sent)) && (!self.receives || all(&self.received))
    }

    fn post(&mut self, bed: &mut Bed) -> Result<(), PerfError> {
        for number in 0..self.sent.len() {
            let [posted, done] = &mut self.sent[number];
            while *posted < self.iters && *posted - *done < self.tx_depth {
                let is_signaled = (*posted + 1) % self.cq_mod == 0 || *posted + 1 == self.iters;
                self.courses[0].post(Instant::now);
                bed.post(number, *posted, self.size, is_signaled)?;
                *posted += 1;
            }
        }
        Ok(())
    }

    /// Takes completions; whether there were any.
    fn poll(&mut self, bed: &mut Bed) -> Result<bool, PerfError> {
        let (cq_mod, iters) = (self.cq_mod, self.iters);
        let mut came = 0;
        if self.sends {
            let sent = &mut self.sent;
            let before = bed.poll_sent(|number| {
                let [_, done] = &mut sent[number];
                *done = (*done + cq_mod).min(iters);
            })?;
            if before > 0 {
                came += before;
                let all = self.sent.iter().map(|[_, done]| *done).sum();
                self.courses[0].complete(Instant::now(), all);
            }
        }
        if self.receives {
            let ends = &mut self.received;
            let mut room = Vec::new();
            let taken = bed.poll_received(|number| {
                ends[number][1] += 1;
                room.push(number);
            })?;
            if taken > 0 {
                came += taken;
                let all = ends.iter().map(|[_, done]| *done).sum();
                self.courses[1].complete(Instant::now(), all);
            }
            for number in room {
                let [posted, _] = &mut ends[number];
                if *posted < iters {
                    bed.post_recv(number, self.size)?;
                    *posted += 1;
                }
            }
        }
        Ok(came > 0)
    }
}
