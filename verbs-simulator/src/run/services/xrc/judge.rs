//! The completions that the initiator and the processes poll, and whether they are as required.

use verbs_core::{Wc, WcOpcode, WcStatus};

use crate::check::{Arrived, Rule};
use crate::coverage::Operation;
use crate::run::posted::Out;
use crate::run::service;
use crate::run::xrc::{About, ENDPOINTS, INI, LANE, Session};

/// Polls everything, and judges the completions.
pub(super) fn reap(session: &mut Session<'_>) {
    let polled: Vec<(usize, Wc)> = (0..ENDPOINTS)
        .flat_map(|at| {
            let polled = session.endpoints[at].poll(session.world);
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
            fail(session, wc);
        }
    }
    for (at, wc) in &polled {
        let qpn = if *at == INI {
            session.endpoints[INI].qpn
        } else {
            session.target
        };
        if !session.endpoints[*at].is_mine(session.world, wc, qpn) {
            continue;
        }
        if *at == INI {
            sent(session, wc);
        } else {
            received(session, *at, wc);
        }
    }
    for process in 1..ENDPOINTS {
        let (confirmed, told) = (session.confirmed[process], session.told[process]);
        if told < confirmed {
            let what = format!("{confirmed} messages were acknowledged, and {told} told of");
            session.world.violated(Rule::Completion, what);
        }
    }
    session
        .endpoints
        .iter_mut()
        .for_each(|endpoint| endpoint.look(session.world));
}

/// A request ended in an error: checks whether there is a cause for it.
fn fail(session: &mut Session<'_>, wc: &Wc) {
    let orphaned = session.is_orphaned();
    let ini = &mut session.endpoints[INI];
    let explained = match wc.status {
        WcStatus::RetryExcErr => session.world.plan.loses() || orphaned || ini.broken,
        WcStatus::RnrRetryExcErr => session.rnr_retry < 7,
        status => ini.failing == Some((wc.wr_id, status)),
    };
    if !explained {
        let what = format!(
            "work request {:#x} ended without cause: {}",
            wc.wr_id, wc.status
        );
        session.world.violated(Rule::Status, what);
    }
    ini.broken = true;
}

fn sent(session: &mut Session<'_>, wc: &Wc) {
    let ended = session.endpoints[INI].ended(session.world, wc);
    let last = ended.len();
    let (seen, orphaned) = (
        service::seen(session.world, &session.endpoints, true),
        session.is_orphaned(),
    );
    for (number, out) in ended.into_iter().enumerate() {
        let failed = !wc.is_ok() && number + 1 == last;
        let rows = std::iter::once(out.operation);
        let mut coverage = session.world.coverage.borrow_mut();
        seen.note(&mut coverage, rows, out.seen, failed && !orphaned, orphaned);
        drop(coverage);
        if failed {
            continue;
        }
        done(session, &out, (number + 1 == last).then_some(wc));
    }
}

/// A request has had its effect.
fn done(session: &mut Session<'_>, out: &Out, wc: Option<&Wc>) {
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
        session.world.violated(Rule::Result, what);
    }
    session.confirmed[out.to] += u64::from(out.receives);
    session.endpoints[out.to].region.model.settle(LANE, out.seq);
    if let Some((_, read)) = &out.read {
        let got = session.endpoints[INI].region.model.reclaim(LANE, out.seq);
        if let Some(at) = read.differs(&got) {
            let what = format!("byte {at} of a READ is one that the process never had there");
            session.world.violated(Rule::Result, what);
        }
    }
}

fn received(session: &mut Session<'_>, process: usize, wc: &Wc) {
    let orphaned = session.is_orphaned();
    let broken = session.endpoints[INI].broken;
    let endpoint = &mut session.endpoints[process];
    let Some(received) = endpoint.received(session.world, wc) else {
        return;
    };
    if !wc.is_ok() {
        if wc.status != WcStatus::WrFlushErr || !(broken || orphaned) {
            let what = format!("receive {:#x} ended without cause: {}", wc.wr_id, wc.status);
            session.world.violated(Rule::Status, what);
        }
        return service::failed(session.world, Operation::XrcReceive, orphaned);
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
    let tag = match session.messages.tell(endpoint.id, &arrived, may) {
        Ok(tag) => tag,
        Err(what) => return session.world.violated(Rule::Delivery, what),
    };
    let behind = if carries { end } else { 0 };
    if received.after[behind..] != received.before[behind..] {
        let what = format!("receive {:#x} has bytes behind its message", wc.wr_id);
        session.world.violated(Rule::Memory, what);
    }
    // What was sent before it to that process is in place.
    endpoint.region.model.settle(LANE, u64::from(tag.seq));
    session.told[process] += 1;
    if session.expected[process].pop_front() != Some(tag) {
        let what = format!("{tag:?} was told of, and one before it was not");
        session.world.violated(Rule::Delivery, what);
    }
    let was = session.messages.about(tag).map(|about| about.at_post);
    let seen = service::seen(session.world, &session.endpoints, true);
    let rows = std::iter::once(Operation::XrcReceive);
    let mut coverage = session.world.coverage.borrow_mut();
    seen.note(
        &mut coverage,
        rows,
        was.unwrap_or_default(),
        false,
        orphaned,
    );
}
