//! What the initiator and the processes poll, and whether it is as it has to be.

use verbs_core::{Wc, WcOpcode, WcStatus};

use crate::sim::check::{Arrived, Rule};
use crate::sim::coverage::Operation;
use crate::sim::run::posted::Out;
use crate::sim::run::service;
use crate::sim::run::xrc::{About, INI, LANE, STANDS, Session};

impl Session<'_> {
    /// Polls everything, and judges what came.
    pub(super) fn reap(&mut self) {
        let polled: Vec<(usize, Wc)> = (0..STANDS)
            .flat_map(|at| {
                let polled = self.stands[at].poll(self.world);
                polled.into_iter().map(move |wc| (at, wc))
            })
            .collect();
        if polled.is_empty() {
            return;
        }
        // A failure explains the flushes of others, which may have been polled before it.
        let fails = |wc: &Wc| !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr);
        for (at, wc) in &polled {
            if *at == INI && fails(wc) {
                self.fail(wc);
            }
        }
        for (at, wc) in &polled {
            let qpn = if *at == INI {
                self.stands[INI].qpn
            } else {
                self.target
            };
            if !self.stands[*at].is_mine(self.world, wc, qpn) {
                continue;
            }
            if *at == INI {
                self.sent(wc);
            } else {
                self.received(*at, wc);
            }
        }
        for process in 1..STANDS {
            let (confirmed, told) = (self.confirmed[process], self.told[process]);
            if told < confirmed {
                let what = format!("{confirmed} messages were acknowledged, and {told} told of");
                self.world.accuse(Rule::Completion, what);
            }
        }
        self.stands
            .iter_mut()
            .for_each(|stand| stand.look(self.world));
    }

    /// A request ended in an error: whether there is cause for that one.
    fn fail(&mut self, wc: &Wc) {
        let orphaned = self.is_orphaned();
        let ini = &mut self.stands[INI];
        let explained = match wc.status {
            WcStatus::RetryExcErr => self.world.plan.loses() || orphaned || ini.broken,
            WcStatus::RnrRetryExcErr => self.rnr_retry < 7,
            status => ini.evil == Some((wc.wr_id, status)),
        };
        if !explained {
            let what = format!(
                "work request {:#x} ended without cause: {}",
                wc.wr_id, wc.status
            );
            self.world.accuse(Rule::Status, what);
        }
        ini.broken = true;
    }

    fn sent(&mut self, wc: &Wc) {
        let ended = self.stands[INI].ended(self.world, wc);
        let last = ended.len();
        let (seen, orphaned) = (
            service::seen(self.world, &self.stands, true),
            self.is_orphaned(),
        );
        for (number, out) in ended.into_iter().enumerate() {
            let failed = !wc.is_ok() && number + 1 == last;
            let rows = std::iter::once(out.operation);
            let mut coverage = self.world.coverage.borrow_mut();
            seen.note(&mut coverage, rows, out.seen, failed && !orphaned, orphaned);
            drop(coverage);
            if failed {
                continue;
            }
            self.done(&out, (number + 1 == last).then_some(wc));
        }
    }

    /// A request did what it was to do.
    fn done(&mut self, out: &Out, wc: Option<&Wc>) {
        let opcode = match out.operation {
            Operation::XrcSend => WcOpcode::Send,
            Operation::XrcWrite => WcOpcode::RdmaWrite,
            _ => WcOpcode::RdmaRead,
        };
        if let Some(wc) = wc.filter(|wc| wc.opcode != opcode) {
            let what = format!(
                "work request {:#x} is {}, not {opcode}",
                wc.wr_id, wc.opcode
            );
            self.world.accuse(Rule::Result, what);
        }
        self.confirmed[out.to] += u64::from(out.receives);
        self.stands[out.to].region.model.settle(LANE, out.seq);
        if let Some((_, read)) = &out.read {
            let got = self.stands[INI].region.model.reclaim(LANE, out.seq);
            if let Some(at) = read.differs(&got) {
                let what = format!("byte {at} of a READ is one that the process never had there");
                self.world.accuse(Rule::Result, what);
            }
        }
    }

    fn received(&mut self, process: usize, wc: &Wc) {
        let orphaned = self.is_orphaned();
        let broken = self.stands[INI].broken;
        let stand = &mut self.stands[process];
        let Some(received) = stand.received(self.world, wc) else {
            return;
        };
        if !wc.is_ok() {
            if wc.status != WcStatus::WrFlushErr || !(broken || orphaned) {
                let what = format!("receive {:#x} ended without cause: {}", wc.wr_id, wc.status);
                self.world.accuse(Rule::Status, what);
            }
            return service::failed(self.world, Operation::XrcReceive, orphaned);
        }
        let len = wc.byte_len as usize;
        let carries = wc.opcode == WcOpcode::Recv;
        let end = len.min(received.after.len());
        let arrived = Arrived {
            bytes: carries.then(|| &received.after[..end]),
            len,
            imm: wc.immediate(),
        };
        let may = |about: &About| match about {
            About { to, .. } if *to != process => Err("it named the other queue"),
            About { writes, .. } if *writes == carries => Err("it is the other operation"),
            About { .. } => Ok(()),
        };
        let tag = match self.messages.tell(stand.id, &arrived, may) {
            Ok(tag) => tag,
            Err(what) => return self.world.accuse(Rule::Delivery, what),
        };
        let behind = if carries { end } else { 0 };
        if received.after[behind..] != received.before[behind..] {
            let what = format!("receive {:#x} has bytes behind its message", wc.wr_id);
            self.world.accuse(Rule::Memory, what);
        }
        // What was sent before it to that process is in place.
        stand.region.model.settle(LANE, u64::from(tag.seq));
        self.told[process] += 1;
        if self.expected[process].pop_front() != Some(tag) {
            let what = format!("{tag:?} was told of, and one before it was not");
            self.world.accuse(Rule::Delivery, what);
        }
        let was = self.messages.about(tag).map(|about| about.at_post);
        let seen = service::seen(self.world, &self.stands, true);
        let rows = std::iter::once(Operation::XrcReceive);
        let mut coverage = self.world.coverage.borrow_mut();
        seen.note(
            &mut coverage,
            rows,
            was.unwrap_or_default(),
            false,
            orphaned,
        );
    }
}
