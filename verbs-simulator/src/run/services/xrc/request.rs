//! The requests that the initiator posts, and their places at the processes.

use verbs_core::{Dest, SendOp, Srqn, WcStatus};

use crate::Ppm;
use crate::check::Tag;
use crate::coverage::Operation;
use crate::run::endpoint::{BACK, MESSAGE_MAX, TARGET};
use crate::run::pending_wr::{Data, PendingWr};
use crate::run::posted::Out;
use crate::run::service;
use crate::run::xrc::{About, INI, LANE, Session};

pub(super) fn srqn(session: &Session<'_>, process: usize) -> Option<Srqn> {
    Some(session.endpoints[process].srq.as_ref()?.srqn())
}

/// Posts a request that names the queue of that process.
pub(super) fn request(session: &mut Session<'_>, process: usize) {
    if !session.endpoints[INI].is_healthy() {
        return;
    }
    let len = session.endpoints[INI]
        .sizes
        .length(&mut session.draw, MESSAGE_MAX);
    let _ = match session.draw.below(10) {
        0..=5 => send(session, process, len),
        6..=7 => write(session, process, len),
        _ => read(session, process, len),
    };
}

fn send(session: &mut Session<'_>, process: usize, len: usize) -> Option<()> {
    let tag = session.endpoints[INI].next_tag();
    let named = len < Tag::LEN || session.draw.chance(Ppm::percent(30));
    let imm = named.then(|| tag.number());
    let op = imm.map_or(SendOp::Send, SendOp::SendWithImm);
    let data = Data::Bytes(tag.compose(len));
    post(session, process, tag, op, Operation::XrcSend, data, true)?;
    tell_later(session, process, tag, len, imm, false);
    Some(())
}

fn write(session: &mut Session<'_>, process: usize, len: usize) -> Option<()> {
    let len = len.min(TARGET.len());
    let at = TARGET.start + session.draw.below(TARGET.len() - len + 1);
    let remote = session.endpoints[process].region.mr.as_ref()?.remote(at);
    let tag = session.endpoints[INI].next_tag();
    let imm = session.draw.chance(Ppm::percent(50)).then(|| tag.number());
    let op = match imm {
        Some(imm) => SendOp::WriteWithImm(remote, imm),
        None => SendOp::Write(remote),
    };
    let bytes = tag.compose(len);
    let data = Data::Bytes(bytes.clone());
    post(
        session,
        process,
        tag,
        op,
        Operation::XrcWrite,
        data,
        imm.is_some(),
    )?;
    if imm.is_some() {
        tell_later(session, process, tag, len, imm, true);
    }
    // It may take effect before READs that were posted earlier.
    for sent in session.endpoints[INI].sends.iter_mut() {
        if let (Some((_, read)), true) = (&mut sent.what.read, sent.what.to == process) {
            read.overtake(at, &bytes);
        }
    }
    let model = &mut session.endpoints[process].region.model;
    model.write(LANE, u64::from(tag.seq), at, bytes);
    Some(())
}

fn read(session: &mut Session<'_>, process: usize, len: usize) -> Option<()> {
    let waits = |out: &Out| out.read.is_some();
    if session.endpoints[INI]
        .sends
        .iter()
        .any(|sent| waits(&sent.what))
    {
        // There is room for one result.
        return None;
    }
    let len = len.min(TARGET.len());
    let at = TARGET.start + session.draw.below(TARGET.len() - len + 1);
    let remote = session.endpoints[process].region.mr.as_ref()?.remote(at);
    let tag = session.endpoints[INI].next_tag();
    let back = BACK.start..BACK.start + len;
    let data = Data::Into(back.clone());
    let op = SendOp::Read(remote);
    post(session, process, tag, op, Operation::XrcRead, data, false)?;
    let model = &mut session.endpoints[INI].region.model;
    model.lend(LANE, u64::from(tag.seq), back.start, len);
    Some(())
}

/// A message that takes a receive was posted.
fn tell_later(
    session: &mut Session<'_>,
    to: usize,
    tag: Tag,
    len: usize,
    imm: Option<u32>,
    writes: bool,
) {
    let at_post = service::seen(session.world, &session.endpoints, true);
    let about = About {
        to,
        writes,
        at_post,
    };
    session.messages.post(tag, len, imm, about);
    session.expected[to].push_back(tag);
}

fn post(
    session: &mut Session<'_>,
    process: usize,
    tag: Tag,
    op: SendOp,
    operation: Operation,
    data: Data,
    receives: bool,
) -> Option<u64> {
    let srqn = srqn(session, process)?;
    let read = match (&op, &data) {
        (SendOp::Read(remote), Data::Into(back)) => {
            let region = &session.endpoints[process].region;
            let at = usize::try_from(remote.addr - region.iova).ok()?;
            Some(region.model.read(LANE, at..at + back.len()))
        }
        _ => None,
    };
    let pending = PendingWr {
        op,
        dest: Dest::Srq(srqn),
        operation,
        data,
        seq: u64::from(tag.seq),
        to: process,
        receives,
        fenced: false,
        read,
        seen: service::seen(session.world, &session.endpoints, true),
    };
    session.endpoints[INI].post(session.world, &mut session.draw, pending)
}

pub(super) fn post_receives(session: &mut Session<'_>, process: usize) {
    for _ in 0..=session.draw.below(4) {
        let endpoint = &mut session.endpoints[process];
        if !endpoint.post_receive(session.world, &mut session.draw, MESSAGE_MAX) {
            return;
        }
    }
}

/// Posts a request that has to fail, and takes the connection down.
pub(super) fn post_failing(session: &mut Session<'_>, process: usize) {
    if !session.endpoints[INI].is_healthy() {
        return;
    }
    let other = 3 - process;
    let (Some(named), Some(mr)) = (srqn(session, process), &session.endpoints[other].region.mr)
    else {
        return;
    };
    let (op, srqn, status) = match session.draw.below(3) {
        // No queue, or one of another target.
        0 => (SendOp::Send, Srqn::new(0xff_fff0), WcStatus::RemInvReqErr),
        // The memory of the process that is not named.
        1 => (SendOp::Write(mr.remote(0)), named, WcStatus::RemAccessErr),
        _ => (SendOp::Read(mr.remote(0)), named, WcStatus::RemAccessErr),
    };
    let data = match op {
        SendOp::Read(_) => Data::Into(BACK.start..BACK.start + 8),
        _ => Data::Bytes(vec![0; 8]),
    };
    let pending = PendingWr {
        op,
        dest: Dest::Srq(srqn),
        operation: Operation::XrcSend,
        data,
        seq: 0,
        to: process,
        receives: false,
        fenced: false,
        read: None,
        seen: service::seen(session.world, &session.endpoints, true),
    };
    let ini = &mut session.endpoints[INI];
    let posted = ini.post(session.world, &mut session.draw, pending);
    ini.failing = posted.map(|wr_id| (wr_id, status));
    ini.broken |= posted.is_some();
}
