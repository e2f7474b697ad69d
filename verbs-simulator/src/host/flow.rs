//! The connections of a run, as both ends have them, and what has to be true of each.

use std::time::Duration;

use verbs_link::time::Instant;

use super::place::{Place, Program, TOLD};

/// The end of a flow that is no program of the host.
pub(super) const ELSEWHERE: Program = 0;

/// One connection: the end that has asked for it, which sends, and the one that has accepted it.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) ends: [Program; 2],
    /// The daemon when it was asked for.
    daemon: Option<u32>,
    established: [Option<Instant>; 2],
    /// When an end learned that it is over, or ended it itself.
    over: [Option<Instant>; 2],
    /// Messages whose sends have completed, and those received.
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// All connections of a run, by number.
#[derive(Debug, Default)]
pub(super) struct Flows(Vec<Flow>);

impl Flows {
    /// A connection is asked for.
    pub(super) fn begin(&mut self, ends: [Program; 2], daemon: Option<u32>) -> u32 {
        self.0.push(Flow {
            ends,
            daemon,
            established: [None; 2],
            over: [None; 2],
            sent: 0,
            received: 0,
        });
        self.0.len() as u32 - 1
    }

    pub(super) fn get(&mut self, flow: u32) -> Option<&mut Flow> {
        self.0.get_mut(flow as usize)
    }

    pub(super) fn established(&mut self, flow: u32, end: usize, now: Instant) {
        if let Some(flow) = self.get(flow) {
            flow.established[end] = Some(now);
        }
    }

    pub(super) fn over(&mut self, flow: u32, end: usize, now: Instant) {
        if let Some(flow) = self.get(flow) {
            flow.over[end].get_or_insert(now);
        }
    }

    /// Connections that both ends have had.
    pub(super) fn count(&self) -> u64 {
        let both = |flow: &&Flow| flow.established.iter().all(Option::is_some);
        self.0.iter().filter(both).count() as u64
    }

    pub(super) fn messages(&self) -> u64 {
        self.0.iter().map(|flow| flow.received).sum()
    }

    /// A program has died [`TOLD`] ago: those who are alive know, unless the daemon that knew has ended too.
    pub(super) fn judge_death(
        &self,
        place: &Place,
        (program, died, now): (Program, Instant, Instant),
        is_alive: impl Fn(Program) -> bool,
    ) {
        for (number, flow) in self.0.iter().enumerate() {
            let Some(end) = flow.ends.iter().position(|&end| end == program) else {
                continue;
            };
            let other = 1 - end;
            let peer = flow.ends[other];
            let knew = |at: Option<Instant>| at.is_some_and(|at| at < died);
            let is_same = flow.daemon.is_some() && flow.daemon == place.daemon();
            let had = knew(flow.established[other]) && knew(flow.established[end]);
            if !had || !is_same || !(peer == ELSEWHERE || is_alive(peer)) {
                continue;
            }
            if flow.over[other].is_none() {
                let what = format!(
                    "connection {number}: program {program} died at {died}, and program {peer} does not know \
                     {TOLD:?} later"
                );
                place.violated(now, what);
            }
        }
    }

    /// What was confirmed to a sender has arrived, if the receiver has had the time to look.
    pub(super) fn judge_arrivals(
        &self,
        place: &Place,
        now: Instant,
        is_alive: impl Fn(Program) -> bool,
    ) {
        for (number, flow) in self.0.iter().enumerate() {
            let receiver = flow.ends[1];
            let looks = receiver == ELSEWHERE || is_alive(receiver);
            let is_over = flow.over[1].is_some() || flow.established[1].is_none();
            if looks && !is_over && flow.received < flow.sent {
                let what = format!(
                    "connection {number}: {} messages were confirmed, {} have arrived",
                    flow.sent, flow.received
                );
                place.violated(now, what);
            }
        }
    }
}

/// How long after the last death everything has settled.
pub(super) const SETTLED: Duration = Duration::from_millis(25);
