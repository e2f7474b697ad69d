//! The work requests that a session posts.

pub(crate) mod receives;

use std::ops::Range;

use verbs_core::{
    Access, FlushRange, Payload, Placement, PostError, Remote, SendFlags, SendOp, SendWr,
};

use crate::Ppm;
use crate::check::{Read, Rule, Sent};
use crate::coverage::Operation;
use crate::run::Mode;
use crate::run::area::{AREA, ATOMICS, Area, begin};
use crate::run::conn::{Message, Place, Seen, What};
use crate::run::machine::addresses;
use crate::run::rc::state::{End, Session};
use crate::run::rc::streams;
use crate::run::wr_builder::{WrBuilder, cut, number};

/// The operations that are preferably sent first.
const OPERATIONS: &[Operation] = &[
    Operation::Send,
    Operation::Send,
    Operation::SendImm,
    Operation::Write,
    Operation::Write,
    Operation::WriteImm,
    Operation::Read,
    Operation::Read,
    Operation::CompareSwap,
    Operation::FetchAdd,
    Operation::MaskedCompareSwap,
    Operation::MaskedFetchAdd,
    Operation::AtomicWrite,
    Operation::Flush,
    Operation::RegMr,
    Operation::LocalInv,
];

/// Posts a work request at that end.
pub(crate) fn post_send(session: &mut Session, index: usize, end: usize) {
    let conn = &session.conns[index];
    if !conn.live || conn.broken || session.world.is_spent() {
        return;
    }
    let operation = *session.draw.pick(OPERATIONS);
    if streams::lacks(session, operation) {
        return;
    }
    let Some(builder) = wr_builder(session, index, end, operation) else {
        return;
    };
    post(session, index, end, builder);
}

/// A work request that does nothing and makes a completion, if the last outstanding one makes none.
pub(crate) fn post_last(session: &mut Session, index: usize, end: usize) {
    if session.world.plan.mode == Mode::Streams && streams::post_probe(session, index, end) {
        return;
    }
    let conn = &session.conns[index];
    let lane = &conn.lanes[end];
    let quiet = lane.sends.iter().last().is_some_and(|last| !last.signaled);
    if conn.live && !conn.broken && quiet {
        let remote = remote(session, 1 - end, Place::Main, begin(index, Area::Target));
        let Some(remote) = remote else { return };
        let mut builder = WrBuilder::new(Operation::Write, SendOp::Write(remote));
        builder.flags = SendFlags::SIGNALED;
        builder.target = Some((Place::Main, 0..0));
        post(session, index, end, builder);
    }
}

pub(crate) fn remote(session: &Session, end: usize, place: Place, at: usize) -> Option<Remote> {
    let end = &session.ends[end];
    let region = match place {
        Place::Main => &end.main,
        Place::Spare => &end.spare,
        Place::ReadOnly => &end.read_only,
    };
    Some(region.mr.as_ref()?.remote(at))
}

fn wr_builder(
    session: &mut Session,
    index: usize,
    end: usize,
    operation: Operation,
) -> Option<WrBuilder> {
    let len = length(session, index, end, operation);
    let mut builder = match operation {
        Operation::Send | Operation::SendImm => WrBuilder::new(operation, SendOp::Send),
        Operation::Write | Operation::WriteImm | Operation::Read => {
            reach(session, index, end, operation, len)?
        }
        Operation::AtomicWrite => atomic_write(session, index, end)?,
        Operation::Flush | Operation::RegMr | Operation::LocalInv => {
            let mut builder = without_bytes(session, index, end, operation)?;
            flags(session, index, end, &mut builder);
            return Some(builder);
        }
        _ => atomic(session, index, end, operation)?,
    };
    if matches!(operation, Operation::SendImm | Operation::WriteImm) {
        let imm = session.draw.number() as u32;
        builder.imm = Some(imm);
        builder.op = match builder.op {
            SendOp::Write(remote) => SendOp::WriteWithImm(remote, imm),
            _ => SendOp::SendWithImm(imm),
        };
    }
    if operation == Operation::AtomicWrite {
        builder.len = 8;
        gather(session, index, end, &mut builder)?;
    } else if builder.back.is_some() {
        scatter(session, index, end, &mut builder)?;
    } else {
        builder.len = len;
        gather(session, index, end, &mut builder)?;
    }
    flags(session, index, end, &mut builder);
    Some(builder)
}

fn length(session: &mut Session, index: usize, end: usize, operation: Operation) -> usize {
    let mtu = session.conns[index].attrs.mtu.bytes() as usize;
    let len = match session.draw.below(8) {
        0 => 0,
        1..=3 => session.draw.within(1..=64) as usize,
        4 => mtu + session.draw.below(3) - 1,
        5 => 2 * mtu + session.draw.below(3) - 1,
        _ => session.draw.below(6000),
    };
    let max = match operation {
        Operation::Send | Operation::SendImm => session.ends[1 - end].slot,
        _ => AREA,
    };
    len.min(max)
}

/// A WRITE or a READ of a range of the peer's memory.
fn reach(
    session: &mut Session,
    index: usize,
    end: usize,
    operation: Operation,
    len: usize,
) -> Option<WrBuilder> {
    let spare = index == 0 && end == 0 && session.draw.chance(Ppm::percent(15));
    let place = if spare { Place::Spare } else { Place::Main };
    let from = if spare { 0 } else { begin(index, Area::Target) };
    let at = from + session.draw.below(AREA - len + 1);
    let remote = remote(session, 1 - end, place, at)?;
    let op = match operation {
        Operation::Read => SendOp::Read(remote),
        _ => SendOp::Write(remote),
    };
    let mut builder = WrBuilder::new(operation, op);
    builder.target = Some((place, at..at + len));
    if operation == Operation::Read {
        builder.len = len;
        builder.back = Some(back(session, index, end, len)?);
    }
    Some(builder)
}

/// An ATOMIC WRITE to one of the words that atomics go to.
fn atomic_write(session: &mut Session, index: usize, end: usize) -> Option<WrBuilder> {
    let at = begin(index, Area::Atomic) + session.draw.below(ATOMICS / 8) * 8;
    let remote = remote(session, 1 - end, Place::Main, at)?;
    let mut builder = WrBuilder::new(Operation::AtomicWrite, SendOp::AtomicWrite(remote));
    builder.target = Some((Place::Main, at..at + 8));
    Some(builder)
}

/// A FLUSH; or a fast registration of the source area, or its invalidation, on the first connection.
fn without_bytes(
    session: &mut Session,
    index: usize,
    end: usize,
    operation: Operation,
) -> Option<WrBuilder> {
    if operation == Operation::Flush {
        let remote = remote(session, 1 - end, Place::Main, begin(index, Area::Target))?;
        let len = session
            .draw
            .chance(Ppm::percent(50))
            .then(|| session.draw.below(AREA) as u32);
        let what = FlushRange {
            remote,
            len,
            placement: Placement::GLOBAL,
        };
        return Some(WrBuilder::new(operation, SendOp::Flush(what)));
    }
    let registered = &mut session.conns[0].lanes[end].registered;
    let fast = session.ends[end].fast.as_mut()?;
    if index != 0 || *registered != (operation == Operation::LocalInv) {
        return None;
    }
    let op = if *registered {
        SendOp::LocalInv(fast.rkey())
    } else {
        fast.next_key();
        fast.register(0, Access::empty()).wr.op
    };
    Some(WrBuilder::new(operation, op))
}

fn atomic(
    session: &mut Session,
    index: usize,
    end: usize,
    operation: Operation,
) -> Option<WrBuilder> {
    let cell = session.draw.below(ATOMICS / 8) * 8;
    let at = begin(index, Area::Atomic) + cell;
    let remote = remote(session, 1 - end, Place::Main, at)?;
    let range = at..at + 8;
    let now = number(&predict(session, index, end, Place::Main, range.clone()));
    let op = match operation {
        Operation::FetchAdd => SendOp::FetchAdd {
            remote,
            add: session.draw.number(),
        },
        Operation::MaskedFetchAdd => SendOp::MaskedFetchAdd {
            remote,
            add: session.draw.number(),
            boundary: session.draw.number(),
        },
        Operation::MaskedCompareSwap => SendOp::MaskedCompareSwap {
            remote,
            compare: now ^ session.draw.number() & session.draw.number(),
            compare_mask: session.draw.number() & session.draw.number() & session.draw.number(),
            swap: session.draw.number(),
            swap_mask: session.draw.number(),
        },
        _ => {
            let right = session.draw.chance(Ppm::percent(70));
            let compare = if right { now } else { !now };
            let swap = session.draw.number();
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            }
        }
    };
    let mut builder = WrBuilder::new(operation, op);
    builder.target = Some((Place::Main, range));
    builder.len = 8;
    builder.back = Some(back(session, index, end, 8)?);
    builder.bytes = match op {
        SendOp::FetchAdd { add, .. } => now.wrapping_add(add),
        SendOp::MaskedFetchAdd { add, boundary, .. } => add_fields(now, add, boundary),
        SendOp::MaskedCompareSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
            ..
        } if (now ^ compare) & compare_mask == 0 => now & !swap_mask | swap & swap_mask,
        SendOp::CompareSwap { compare, swap, .. } if compare == now => swap,
        _ => now,
    }
    .to_ne_bytes()
    .to_vec();
    Some(builder)
}

/// The peer's bytes after everything that was posted has taken effect.
fn predict(
    session: &Session,
    index: usize,
    end: usize,
    place: Place,
    range: Range<usize>,
) -> Vec<u8> {
    let lane = session.conns[index].lane(end);
    let peer = &session.ends[1 - end];
    let region = match place {
        Place::Main => &peer.main,
        Place::Spare => &peer.spare,
        Place::ReadOnly => &peer.read_only,
    };
    region.model.predict(lane, range)
}

/// Room for a result that no operation under way uses; `None` if there is none.
pub(crate) fn back(
    session: &mut Session,
    index: usize,
    end: usize,
    len: usize,
) -> Option<Range<usize>> {
    let lane = &mut session.conns[index].lanes[end];
    let from = begin(index, Area::Back);
    // Results of atomics need not be aligned, but are on most hardware.
    let mut at = lane.back.next_multiple_of(8);
    if at + len > AREA {
        at = 0;
    }
    let range = from + at..from + at + len;
    let overlaps = |back: &Range<usize>| back.start < range.end && range.start < back.end;
    if lane
        .sends
        .iter()
        .any(|sent| sent.what.back.as_ref().is_some_and(overlaps))
    {
        return None;
    }
    lane.back = at + len;
    Some(range)
}

/// Several pieces of the room for a result, or one.
pub(crate) fn scatter(
    session: &mut Session,
    index: usize,
    end: usize,
    builder: &mut WrBuilder,
) -> Option<()> {
    let range = builder.back.clone()?;
    let mr = session.ends[end].main.mr.as_ref()?;
    let max = streams::sink_pieces(session, index);
    let pieces = cut(&mut session.draw, range.len(), max);
    let mut at = range.start;
    for len in pieces {
        builder.sges.push(mr.slice(at..at + len));
        at += len;
    }
    Some(())
}

/// Several pieces of the bytes to send, or one, or a copy of them.
fn gather(session: &mut Session, index: usize, end: usize, builder: &mut WrBuilder) -> Option<()> {
    let Session {
        draw, ends, conns, ..
    } = session;
    let End { main, fast, .. } = &ends[end];
    let fast = fast.as_ref().filter(|_| conns[0].lanes[end].registered);
    let out = begin(0, Area::Out);
    let attrs = conns[index].attrs;
    let mr = main.mr.as_ref()?;
    for len in cut(draw, builder.len, attrs.sges as usize) {
        let at = begin(index, Area::Out) + draw.below(AREA - len + 1);
        builder
            .bytes
            .extend_from_slice(main.model.settled(at..at + len));
        // The same bytes, by the key that the queue itself has made valid.
        builder.sges.push(match fast {
            Some(fast) if index == 0 => fast.slice(at - out..at - out + len),
            _ => mr.slice(at..at + len),
        });
    }
    if builder.len <= attrs.inline as usize && draw.chance(Ppm::percent(50)) {
        builder.inline = Some(builder.bytes.clone());
    }
    Some(())
}

fn flags(session: &mut Session, index: usize, end: usize, builder: &mut WrBuilder) {
    let conn = &session.conns[index];
    let quiet = conn.lanes[end].quiet + 1 >= (conn.attrs.send_depth as usize / 2).max(1);
    let draw = &mut session.draw;
    let third = Ppm::percent(33);
    builder
        .flags
        .set(SendFlags::SIGNALED, quiet || !draw.chance(third));
    builder
        .flags
        .set(SendFlags::FENCE, draw.chance(Ppm::percent(20)));
    let gathers = builder.back.is_none();
    builder
        .flags
        .set(SendFlags::SOLICITED, gathers && draw.chance(third));
    builder
        .flags
        .set(SendFlags::INLINE, builder.inline.is_some());
}

/// The faults that have occurred so far on the path of that connection.
pub(crate) fn seen(session: &Session) -> Seen {
    let [a, b] = &session.ends;
    let (from, to) = (addresses(a.lease.node), addresses(b.lease.node));
    Seen {
        hits: session.world.sim.network().hits(from[0], to[0]),
        flaps: a.lease.flaps.get() + b.lease.flaps.get(),
        rnr_naks: a.lease.hca.rnr_naks() + b.lease.hca.rnr_naks(),
    }
}

pub(crate) fn post(session: &mut Session, index: usize, end: usize, builder: WrBuilder) -> bool {
    let at_post = seen(session);
    let conn = &mut session.conns[index];
    let lane = &mut conn.lanes[end];
    lane.seq += 1;
    let wr_id = conn.send_id(end);
    let payload = match (&builder.inline, builder.sges.as_slice()) {
        (Some(bytes), _) => Payload::Inline(bytes),
        (None, [one]) => Payload::One(*one),
        (None, several) => Payload::List(several),
    };
    let wr = SendWr {
        wr_id,
        op: builder.op,
        flags: builder.flags,
        payload,
        dest: verbs_core::Dest::Peer,
    };
    let Some(qp) = &mut conn.qps[end] else {
        return false;
    };
    // What is posted may be carried out at once, so the models have to know of it first.
    let waiting = conn.lanes[end].sends.len();
    match qp.post_send(wr) {
        Ok(()) => {
            match builder.operation {
                Operation::RegMr => conn.lanes[end].registered = true,
                Operation::LocalInv => conn.lanes[end].registered = false,
                _ => {}
            }
            session.world.posted.set(session.world.posted.get() + 1);
            posted(session, index, end, builder, at_post);
            true
        }
        Err(PostError::Full { .. }) if waiting >= conn.attrs.send_depth as usize => false,
        Err(PostError::DeviceRemoved) if session.ends[end].lease.removed.get() => false,
        Err(error) => {
            let what = format!("a post with {waiting} work requests waiting was refused: {error}");
            session.world.violated(Rule::Post, what);
            false
        }
    }
}

/// Enters a work request into the models.
fn posted(session: &mut Session, index: usize, end: usize, builder: WrBuilder, at_post: Seen) {
    let conn = &mut session.conns[index];
    let wr_id = conn.send_id(end);
    let lane_id = conn.lane(end);
    let signaled = conn.attrs.signal_all || builder.flags.contains(SendFlags::SIGNALED);
    let lane = &mut conn.lanes[end];
    let seq = lane.seq;
    lane.quiet = if signaled { 0 } else { lane.quiet + 1 };
    if builder.back.is_none() {
        lane.unsettled = Some(seq);
    }
    let variants = builder.variants();
    let WrBuilder {
        operation,
        bytes,
        len,
        back,
        target,
        imm,
        flags,
        ..
    } = builder;
    let receives = matches!(
        operation,
        Operation::Send | Operation::SendImm | Operation::WriteImm
    );
    let is_write = matches!(operation, Operation::Write | Operation::WriteImm);
    let changes = target.is_some() && operation != Operation::Read;
    let (first, second) = session.ends.split_at_mut(1);
    let (mine, peer) = match end {
        0 => (&mut first[0], &mut second[0]),
        _ => (&mut second[0], &mut first[0]),
    };
    let mut read = None;
    if let (Some(range), Some((place, target))) = (&back, &target) {
        let model = &peer.region(*place).model;
        read = Some(Read::of(model.predict(lane_id, target.clone())));
        mine.main.model.lend(lane_id, seq, range.start, range.len());
    }
    if let (true, Some((place, range))) = (changes, &target) {
        if is_write && !flags.contains(SendFlags::FENCE) {
            overtake(lane.sends.iter_mut(), *place, range, &bytes);
        }
        let model = &mut peer.region(*place).model;
        model.write(lane_id, seq, range.start, bytes.clone());
    }
    if receives {
        lane.messages.push_back(Message {
            seq,
            imm,
            len,
            bytes: (operation != Operation::WriteImm).then_some(bytes),
        });
    }
    let what = What {
        seq,
        operation,
        variants,
        receives,
        back,
        read,
        target,
        at_post,
    };
    lane.sends.post(Sent {
        wr_id,
        signaled,
        what,
    });
}

/// A WRITE may take effect before READs that were posted earlier, unless it is fenced.
fn overtake<'a>(
    sends: impl Iterator<Item = &'a mut Sent<What>>,
    place: Place,
    range: &Range<usize>,
    bytes: &[u8],
) {
    for sent in sends {
        let (Some(read), Some((read_place, target))) = (&mut sent.what.read, &sent.what.target)
        else {
            continue;
        };
        let (start, end) = (range.start.max(target.start), range.end.min(target.end));
        if *read_place == place && start < end {
            let bytes = bytes[start - range.start..end - range.start].to_vec();
            read.later.push((start - target.start, bytes));
        }
    }
}

/// Several numbers in one, added bit by bit: a carry out of a marked bit is lost.
fn add_fields(a: u64, b: u64, boundary: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..u64::BITS {
        let total = (a >> bit & 1) + (b >> bit & 1) + carry;
        sum |= (total & 1) << bit;
        carry = if boundary >> bit & 1 == 1 {
            0
        } else {
            total >> 1
        };
    }
    sum
}
