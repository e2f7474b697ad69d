//! The completions that both ends poll, and whether they are as required.

use verbs_core::{Wc, WcOpcode, WcStatus};

use crate::check::{Rule, Verdict};
use crate::coverage::Operation;
use crate::run::keys::change;
use crate::run::keys::{Action, PAIRS, Session, Told, Whose, holder, peer};
use crate::run::service;

/// Polls everything, and judges the completions.
pub(super) fn reap(session: &mut Session<'_>) {
    let mut polled: Vec<(usize, Wc)> = Vec::new();
    for at in 0..2 * PAIRS {
        let of_endpoint = session.endpoints[at].poll(session.world);
        polled.extend(of_endpoint.into_iter().map(|wc| (at, wc)));
    }
    if polled.is_empty() {
        return;
    }
    let qpns = session.endpoints.each_ref().map(|endpoint| endpoint.qpn);
    polled.retain(|(at, wc)| session.endpoints[*at].is_mine(session.world, wc, qpns[*at]));
    // A failure explains the flushes of others, which may have been polled before it.
    for (at, wc) in &polled {
        if !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr) {
            fail(session, *at, wc);
        }
    }
    for (at, wc) in &polled {
        match wc.wr_id & 1 {
            1 => received(session, *at, wc),
            _ => sent(session, *at, wc),
        }
    }
    if let Err(what) = session.shown.model.check() {
        session.world.violated(Rule::Memory, what);
    }
    for pair in 0..PAIRS {
        session.endpoints[peer(pair)].look(session.world);
    }
}

/// An operation ended in an error: checks whether there is a cause for it.
fn fail(session: &mut Session<'_>, at: usize, wc: &Wc) {
    let pair = at / 2;
    let before = session.failed[pair] || session.is_orphaned();
    let mut sends = session.endpoints[at].sends.iter();
    let sent = sends.find(|sent| sent.wr_id == wc.wr_id);
    let action = sent.and_then(|sent| session.actions.get(&sent.what.seq));
    let explained = match (wc.status, action) {
        (WcStatus::RemInvReqErr, None) => {
            let mut told = session.told[pair].iter();
            at == holder(pair) && (before || told.any(|told| told.whose.is_none()))
        }
        (WcStatus::RetryExcErr, _) => {
            before || session.is_shaky(pair) || session.world.plan.loses()
        }
        (WcStatus::RemAccessErr, Some(Action::Reach { verdict, .. })) => {
            before || *verdict != Verdict::Must
        }
        (status, Some(Action::Wrong { legal })) => legal.contains(&status),
        // What it changes was removed at the end.
        (WcStatus::MwBindErr | WcStatus::LocQpOpErr, Some(_)) => before,
        _ => false,
    };
    if !explained {
        let ends = session.told[pair].front().map(|told| told.key);
        let what = format!(
            "{:#x} ended without cause: {}, {action:?}, next key to end {ends:x?}",
            wc.wr_id, wc.status
        );
        session.world.violated(Rule::Status, what);
    }
    session.failed[pair] = true;
}

fn sent(session: &mut Session<'_>, at: usize, wc: &Wc) {
    let (pair, orphaned) = (at / 2, session.is_orphaned());
    if !wc.is_ok() {
        session.endpoints[at].broken |= session.is_shaky(pair) || orphaned;
        session.failed[pair] = true;
    }
    let ended = session.endpoints[at].ended(session.world, wc);
    let (seen, last) = (session.seen(), ended.len());
    for (number, out) in ended.into_iter().enumerate() {
        let is_last = number + 1 == last;
        let failed = !wc.is_ok() && is_last;
        let rows = std::iter::once(out.operation);
        let mut coverage = session.world.coverage.borrow_mut();
        seen.note(&mut coverage, rows, out.seen, failed && !orphaned, orphaned);
        drop(coverage);
        let Some(action) = session.actions.remove(&out.seq) else {
            continue;
        };
        if failed {
            undone(session, pair, out.seq, &action);
            continue;
        }
        if is_last {
            check_opcode(session, wc, &action);
        }
        if let (Action::Reach { reads: true, .. }, Some((_, read))) = (&action, &out.read) {
            let model = &mut session.endpoints[at].region.model;
            if let Some(offset) = read.differs(&model.reclaim(pair as u64, out.seq)) {
                let what = format!("byte {offset} of a result is one that never was there");
                session.world.violated(Rule::Result, what);
            }
        }
        done(session, pair, out.seq, &action);
    }
}

fn check_opcode(session: &Session<'_>, wc: &Wc, action: &Action) {
    let opcode = match action {
        Action::Reach { opcode, .. } => *opcode,
        Action::Bind { .. } | Action::Unbind { .. } => WcOpcode::BindMw,
        Action::Register { .. } => WcOpcode::RegMr,
        Action::Invalidate { .. } => WcOpcode::LocalInv,
        Action::SendInv | Action::Wrong { .. } => WcOpcode::Send,
        Action::Nudge => WcOpcode::RdmaWrite,
    };
    if wc.opcode != opcode {
        let what = format!("{:#x} is {}, not {opcode}: {action:?}", wc.wr_id, wc.opcode);
        session.world.violated(Rule::Result, what);
    }
}

/// A work request has had its effect.
pub(super) fn done(session: &mut Session<'_>, pair: usize, seq: u64, action: &Action) {
    match *action {
        Action::Reach { key, verdict, .. } => {
            if verdict == Verdict::Never {
                let what = format!("somebody got in by the key {key:#x}, which is none");
                session.world.violated(Rule::Status, what);
            }
            session.shown.model.settle(pair as u64, seq);
        }
        Action::Bind { window, key, old } => {
            session.keys.valid(key);
            change::key_gone(session, old);
            if let Some(window) = session.objects.window(window) {
                window.busy = false;
            }
        }
        Action::Unbind { window, old } => {
            change::key_gone(session, old);
            if let Some(window) = session.objects.window(window) {
                (window.bound, window.busy) = (None, false);
            }
        }
        Action::Register { key } => {
            session.keys.valid(key);
            session.objects.idle(Whose::Fast);
        }
        Action::Invalidate { whose, key } => {
            change::key_gone(session, key);
            session.objects.unbound(whose);
        }
        Action::SendInv => {
            let mut told = session.told[pair].iter_mut();
            if let Some(told) = told.find(|told| told.seq == seq) {
                told.confirmed = true;
            }
        }
        Action::Wrong { legal: [] } | Action::Nudge => {}
        Action::Wrong { legal } => {
            let what = format!("a work request succeeded that has to end in {legal:?}");
            session.world.violated(Rule::Status, what);
        }
    }
}

/// A work request was flushed, or has failed: what it should have changed is unchanged. Behind a work request that
/// waited for its answer it may have been carried out nevertheless (IBTA vol. 1, 10.3.1.7).
fn undone(session: &mut Session<'_>, pair: usize, seq: u64, action: &Action) {
    let doubtful = session.nudged[pair];
    match *action {
        Action::Reach { reads, .. } => {
            if reads {
                let model = &mut session.endpoints[peer(pair)].region.model;
                model.give_up(pair as u64, seq);
            }
        }
        Action::Bind { window, key, old } if doubtful => {
            session.objects.doubt(Whose::Window(window), &[old, key]);
        }
        Action::Bind { window, key, old } => {
            session.keys.gone(key);
            session.keys.valid(old);
            rebound(session, window, old);
        }
        Action::Unbind { window, old } if doubtful => {
            session.objects.doubt(Whose::Window(window), &[old]);
        }
        Action::Unbind { window, old } => {
            session.keys.valid(old);
            rebound(session, window, old);
        }
        Action::Register { key } if doubtful => session.objects.doubt(Whose::Fast, &[key]),
        Action::Register { key } => {
            session.keys.gone(key);
            session.objects.unbound(Whose::Fast);
        }
        Action::Invalidate { whose, key } if doubtful => session.objects.doubt(whose, &[key]),
        Action::Invalidate { whose, key } => {
            session.keys.valid(key);
            session.objects.idle(whose);
        }
        // Whether it was reported to the receiver shows when the receive is flushed.
        Action::SendInv | Action::Wrong { .. } | Action::Nudge => {}
    }
}

/// A window has its previous key.
fn rebound(session: &mut Session<'_>, slot: usize, old: u32) {
    let was = session.keys.known().find(|&(key, _)| key == old);
    if let Some(window) = session.objects.window(slot) {
        window.bound = was.map(|(key, leads)| (key, leads.via));
        window.busy = false;
        window.mw.set_rkey(verbs_core::RKey::new(old));
    }
}

/// A SEND with invalidate is reported to the holder.
fn received(session: &mut Session<'_>, at: usize, wc: &Wc) {
    let (pair, orphaned) = (at / 2, session.is_orphaned());
    let shaky = session.is_shaky(pair) || session.endpoints[at].broken;
    let endpoint = &mut session.endpoints[at];
    let Some(received) = endpoint.received(session.world, wc) else {
        return;
    };
    if !wc.is_ok() {
        let legal = match wc.status {
            WcStatus::WrFlushErr => shaky || orphaned,
            _ => session.told[pair].pop_front().is_some(),
        };
        if !legal {
            let what = format!("receive {:#x} ended without cause: {}", wc.wr_id, wc.status);
            session.world.violated(Rule::Status, what);
        }
        return service::failed(session.world, Operation::Receive, orphaned);
    }
    let Some(told) = session.told[pair].pop_front() else {
        let what = format!("receive {:#x} completed, and nothing was sent", wc.wr_id);
        return session.world.violated(Rule::Completion, what);
    };
    if let Err(what) = judge_message(wc, &told, &received.after) {
        return session.world.violated(Rule::Result, what);
    }
    // What was sent before it is in place, and the key no longer gives access.
    session.shown.model.settle(pair as u64, told.seq);
    change::key_gone(session, told.key);
    if let Some(whose) = told.whose {
        session.objects.unbound(whose);
    }
    let rows = std::iter::once(Operation::Receive);
    let mut coverage = session.world.coverage.borrow_mut();
    session
        .seen()
        .note(&mut coverage, rows, told.seen, false, orphaned);
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
