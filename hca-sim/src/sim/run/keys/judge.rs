//! What both ends poll, and whether it is as it has to be.

use verbs_core::{Wc, WcOpcode, WcStatus};

use crate::sim::check::{Rule, Verdict};
use crate::sim::coverage::Operation;
use crate::sim::run::keys::{Deed, PAIRS, Session, Told, Whose, holder, peer};
use crate::sim::run::service;

impl Session<'_> {
    /// Polls everything, and judges what came.
    pub(super) fn reap(&mut self) {
        let mut polled: Vec<(usize, Wc)> = Vec::new();
        for at in 0..2 * PAIRS {
            let of_stand = self.stands[at].poll(self.world);
            polled.extend(of_stand.into_iter().map(|wc| (at, wc)));
        }
        if polled.is_empty() {
            return;
        }
        let qpns = self.stands.each_ref().map(|stand| stand.qpn);
        polled.retain(|(at, wc)| self.stands[*at].is_mine(self.world, wc, qpns[*at]));
        // A failure explains the flushes of others, which may have been polled before it.
        for (at, wc) in &polled {
            if !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr) {
                self.fail(*at, wc);
            }
        }
        for (at, wc) in &polled {
            match wc.wr_id & 1 {
                1 => self.received(*at, wc),
                _ => self.sent(*at, wc),
            }
        }
        if let Err(what) = self.shown.model.check() {
            self.world.accuse(Rule::Memory, what);
        }
        for pair in 0..PAIRS {
            self.stands[peer(pair)].look(self.world);
        }
    }

    /// Something ended in an error: whether there is cause for that one.
    fn fail(&mut self, at: usize, wc: &Wc) {
        let pair = at / 2;
        let before = self.failed[pair] || self.is_orphaned();
        let mut sends = self.stands[at].sends.iter();
        let sent = sends.find(|sent| sent.wr_id == wc.wr_id);
        let deed = sent.and_then(|sent| self.deeds.get(&sent.what.seq));
        let explained = match (wc.status, deed) {
            (WcStatus::RemInvReqErr, None) => {
                let mut told = self.told[pair].iter();
                at == holder(pair) && (before || told.any(|told| told.whose.is_none()))
            }
            (WcStatus::RetryExcErr, _) => before || self.is_shaky(pair) || self.world.plan.loses(),
            (WcStatus::RemAccessErr, Some(Deed::Reach { verdict, .. })) => {
                before || *verdict != Verdict::Must
            }
            (status, Some(Deed::Wrong { legal })) => legal.contains(&status),
            // What it changes was taken away at the end.
            (WcStatus::MwBindErr | WcStatus::LocQpOpErr, Some(_)) => before,
            _ => false,
        };
        if !explained {
            let ends = self.told[pair].front().map(|told| told.key);
            let what = format!(
                "{:#x} ended without cause: {}, {deed:?}, next key to end {ends:x?}",
                wc.wr_id, wc.status
            );
            self.world.accuse(Rule::Status, what);
        }
        self.failed[pair] = true;
    }

    fn sent(&mut self, at: usize, wc: &Wc) {
        let (pair, orphaned) = (at / 2, self.is_orphaned());
        if !wc.is_ok() {
            self.stands[at].broken |= self.is_shaky(pair) || orphaned;
            self.failed[pair] = true;
        }
        let ended = self.stands[at].ended(self.world, wc);
        let (seen, last) = (self.seen(), ended.len());
        for (number, out) in ended.into_iter().enumerate() {
            let is_last = number + 1 == last;
            let failed = !wc.is_ok() && is_last;
            let rows = std::iter::once(out.operation);
            let mut coverage = self.world.coverage.borrow_mut();
            seen.note(&mut coverage, rows, out.seen, failed && !orphaned, orphaned);
            drop(coverage);
            let Some(deed) = self.deeds.remove(&out.seq) else {
                continue;
            };
            if failed {
                self.undone(pair, out.seq, &deed);
                continue;
            }
            if is_last {
                self.check_opcode(wc, &deed);
            }
            if let (Deed::Reach { reads: true, .. }, Some((_, read))) = (&deed, &out.read) {
                let model = &mut self.stands[at].region.model;
                if let Some(offset) = read.differs(&model.reclaim(pair as u64, out.seq)) {
                    let what = format!("byte {offset} of a result is one that never was there");
                    self.world.accuse(Rule::Result, what);
                }
            }
            self.done(pair, out.seq, &deed);
        }
    }

    fn check_opcode(&self, wc: &Wc, deed: &Deed) {
        let opcode = match deed {
            Deed::Reach { opcode, .. } => *opcode,
            Deed::Bind { .. } | Deed::Unbind { .. } => WcOpcode::BindMw,
            Deed::Register { .. } => WcOpcode::RegMr,
            Deed::Invalidate { .. } => WcOpcode::LocalInv,
            Deed::SendInv | Deed::Wrong { .. } => WcOpcode::Send,
            Deed::Nudge => WcOpcode::RdmaWrite,
        };
        if wc.opcode != opcode {
            let what = format!("{:#x} is {}, not {opcode}: {deed:?}", wc.wr_id, wc.opcode);
            self.world.accuse(Rule::Result, what);
        }
    }

    /// A work request did what it was to do.
    pub(super) fn done(&mut self, pair: usize, seq: u64, deed: &Deed) {
        match *deed {
            Deed::Reach { key, verdict, .. } => {
                if verdict == Verdict::Never {
                    let what = format!("somebody got in by the key {key:#x}, which is none");
                    self.world.accuse(Rule::Status, what);
                }
                self.shown.model.settle(pair as u64, seq);
            }
            Deed::Bind { window, key, old } => {
                self.keys.valid(key);
                self.gone(old);
                if let Some(window) = self.objects.window(window) {
                    window.busy = false;
                }
            }
            Deed::Unbind { window, old } => {
                self.gone(old);
                if let Some(window) = self.objects.window(window) {
                    (window.bound, window.busy) = (None, false);
                }
            }
            Deed::Register { key } => {
                self.keys.valid(key);
                self.objects.idle(Whose::Fast);
            }
            Deed::Invalidate { whose, key } => {
                self.gone(key);
                self.objects.unbound(whose);
            }
            Deed::SendInv => {
                let mut told = self.told[pair].iter_mut();
                if let Some(told) = told.find(|told| told.seq == seq) {
                    told.confirmed = true;
                }
            }
            Deed::Wrong { legal: [] } | Deed::Nudge => {}
            Deed::Wrong { legal } => {
                let what = format!("a work request succeeded that has to end in {legal:?}");
                self.world.accuse(Rule::Status, what);
            }
        }
    }

    /// A work request was flushed, or has failed: what it was to change is as it was. Behind one that
    /// waited for its answer it may have been carried out all the same (IBTA vol. 1, 10.3.1.7).
    fn undone(&mut self, pair: usize, seq: u64, deed: &Deed) {
        let doubtful = self.nudged[pair];
        match *deed {
            Deed::Reach { reads, .. } => {
                if reads {
                    let model = &mut self.stands[peer(pair)].region.model;
                    model.give_up(pair as u64, seq);
                }
            }
            Deed::Bind { window, key, old } if doubtful => {
                self.objects.doubt(Whose::Window(window), &[old, key]);
            }
            Deed::Bind { window, key, old } => {
                self.keys.gone(key);
                self.keys.valid(old);
                self.rebound(window, old);
            }
            Deed::Unbind { window, old } if doubtful => {
                self.objects.doubt(Whose::Window(window), &[old]);
            }
            Deed::Unbind { window, old } => {
                self.keys.valid(old);
                self.rebound(window, old);
            }
            Deed::Register { key } if doubtful => self.objects.doubt(Whose::Fast, &[key]),
            Deed::Register { key } => {
                self.keys.gone(key);
                self.objects.unbound(Whose::Fast);
            }
            Deed::Invalidate { whose, key } if doubtful => self.objects.doubt(whose, &[key]),
            Deed::Invalidate { whose, key } => {
                self.keys.valid(key);
                self.objects.idle(whose);
            }
            // Whether the receiver was told of it shows when it is flushed.
            Deed::SendInv | Deed::Wrong { .. } | Deed::Nudge => {}
        }
    }

    /// A window has the key that it had.
    fn rebound(&mut self, slot: usize, old: u32) {
        let was = self.keys.known().find(|&(key, _)| key == old);
        if let Some(window) = self.objects.window(slot) {
            window.bound = was.map(|(key, leads)| (key, leads.via));
            window.busy = false;
            window.mw.set_rkey(verbs_core::RKey::new(old));
        }
    }

    /// The holder is told of a SEND with invalidate.
    fn received(&mut self, at: usize, wc: &Wc) {
        let (pair, orphaned) = (at / 2, self.is_orphaned());
        let shaky = self.is_shaky(pair) || self.stands[at].broken;
        let stand = &mut self.stands[at];
        let Some(received) = stand.received(self.world, wc) else {
            return;
        };
        if !wc.is_ok() {
            let legal = match wc.status {
                WcStatus::WrFlushErr => shaky || orphaned,
                _ => self.told[pair].pop_front().is_some(),
            };
            if !legal {
                let what = format!("receive {:#x} ended without cause: {}", wc.wr_id, wc.status);
                self.world.accuse(Rule::Status, what);
            }
            return service::failed(self.world, Operation::Receive, orphaned);
        }
        let Some(told) = self.told[pair].pop_front() else {
            let what = format!("receive {:#x} completed, and nothing was sent", wc.wr_id);
            return self.world.accuse(Rule::Completion, what);
        };
        if let Err(what) = judge_message(wc, &told, &received.after) {
            return self.world.accuse(Rule::Result, what);
        }
        // What was sent before it is in place, and nobody gets in by the key any more.
        self.shown.model.settle(pair as u64, told.seq);
        self.gone(told.key);
        if let Some(whose) = told.whose {
            self.objects.unbound(whose);
        }
        let rows = std::iter::once(Operation::Receive);
        let mut coverage = self.world.coverage.borrow_mut();
        self.seen()
            .note(&mut coverage, rows, told.seen, false, orphaned);
    }
}

/// Whether a receive says what was sent.
fn judge_message(wc: &Wc, told: &Told, bytes: &[u8]) -> Result<(), String> {
    let sent = told.tag.compose(told.len);
    if told.whose.is_none() {
        return Err(format!(
            "a SEND has ended the key {:#x}, which it must not",
            told.key
        ));
    }
    let invalidated = wc.invalidated().map(|key| key.value());
    if (wc.byte_len as usize, invalidated) != (told.len, Some(told.key)) {
        return Err(format!(
            "receive {:#x} has {} bytes and has ended {invalidated:x?}, not {} and {:#x}",
            wc.wr_id, wc.byte_len, told.len, told.key
        ));
    }
    match bytes.get(..sent.len()) {
        Some(got) if got == sent => Ok(()),
        _ => Err(format!("receive {:#x} has other bytes", wc.wr_id)),
    }
}
