//! What a session posts.

use std::ops::Range;

use verbs_core::{
    Access, FlushRange, Payload, Placement, PostError, Recv, Remote, SendFlags, SendOp, SendWr,
};

use crate::sim::Ppm;
use crate::sim::check::{Read, Rule, Sent};
use crate::sim::coverage::Operation;
use crate::sim::run::area::{AREA, ATOMICS, Area, begin};
use crate::sim::run::conn::{Message, Place, Seen, What, recv_id};
use crate::sim::run::draft::{Draft, cut, number};
use crate::sim::run::machine::addresses;
use crate::sim::run::session::{End, Session};

/// What is sent first by preference.
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

impl Session {
    /// Posts a work request at that end.
    pub(super) fn post_send(&mut self, index: usize, end: usize) {
        let conn = &self.conns[index];
        if !conn.live || conn.broken || self.world.is_spent() {
            return;
        }
        let operation = *self.draw.pick(OPERATIONS);
        let Some(draft) = self.draft(index, end, operation) else {
            return;
        };
        self.post(index, end, draft);
    }

    /// A work request that does nothing and makes a completion, if any is waited for that makes none.
    pub(super) fn post_last(&mut self, index: usize, end: usize) {
        let conn = &self.conns[index];
        let lane = &conn.lanes[end];
        let quiet = lane.sends.iter().last().is_some_and(|last| !last.signaled);
        if conn.live && !conn.broken && quiet {
            let remote = self.remote(1 - end, Place::Main, begin(index, Area::Target));
            let Some(remote) = remote else { return };
            let mut draft = Draft::new(Operation::Write, SendOp::Write(remote));
            draft.flags = SendFlags::SIGNALED;
            draft.target = Some((Place::Main, 0..0));
            self.post(index, end, draft);
        }
    }

    pub(super) fn remote(&self, end: usize, place: Place, at: usize) -> Option<Remote> {
        let end = &self.ends[end];
        let region = match place {
            Place::Main => &end.main,
            Place::Spare => &end.spare,
            Place::ReadOnly => &end.read_only,
        };
        Some(region.mr.as_ref()?.remote(at))
    }

    fn draft(&mut self, index: usize, end: usize, operation: Operation) -> Option<Draft> {
        let len = self.length(index, end, operation);
        let mut draft = match operation {
            Operation::Send | Operation::SendImm => Draft::new(operation, SendOp::Send),
            Operation::Write | Operation::WriteImm | Operation::Read => {
                self.reach(index, end, operation, len)?
            }
            Operation::AtomicWrite => self.atomic_write(index, end)?,
            Operation::Flush | Operation::RegMr | Operation::LocalInv => {
                let mut draft = self.without_bytes(index, end, operation)?;
                self.flags(index, end, &mut draft);
                return Some(draft);
            }
            _ => self.atomic(index, end, operation)?,
        };
        if matches!(operation, Operation::SendImm | Operation::WriteImm) {
            let imm = self.draw.number() as u32;
            draft.imm = Some(imm);
            draft.op = match draft.op {
                SendOp::Write(remote) => SendOp::WriteWithImm(remote, imm),
                _ => SendOp::SendWithImm(imm),
            };
        }
        if operation == Operation::AtomicWrite {
            draft.len = 8;
            self.gather(index, end, &mut draft)?;
        } else if draft.back.is_some() {
            self.scatter(index, end, &mut draft)?;
        } else {
            draft.len = len;
            self.gather(index, end, &mut draft)?;
        }
        self.flags(index, end, &mut draft);
        Some(draft)
    }

    fn length(&mut self, index: usize, end: usize, operation: Operation) -> usize {
        let mtu = self.conns[index].attrs.mtu.bytes() as usize;
        let len = match self.draw.below(8) {
            0 => 0,
            1..=3 => self.draw.within(1..=64) as usize,
            4 => mtu + self.draw.below(3) - 1,
            5 => 2 * mtu + self.draw.below(3) - 1,
            _ => self.draw.below(6000),
        };
        let max = match operation {
            Operation::Send | Operation::SendImm => self.ends[1 - end].slot,
            _ => AREA,
        };
        len.min(max)
    }

    /// A WRITE or a READ of a range of the peer's.
    fn reach(
        &mut self,
        index: usize,
        end: usize,
        operation: Operation,
        len: usize,
    ) -> Option<Draft> {
        let spare = index == 0 && end == 0 && self.draw.chance(Ppm::percent(15));
        let place = if spare { Place::Spare } else { Place::Main };
        let from = if spare { 0 } else { begin(index, Area::Target) };
        let at = from + self.draw.below(AREA - len + 1);
        let remote = self.remote(1 - end, place, at)?;
        let op = match operation {
            Operation::Read => SendOp::Read(remote),
            _ => SendOp::Write(remote),
        };
        let mut draft = Draft::new(operation, op);
        draft.target = Some((place, at..at + len));
        if operation == Operation::Read {
            draft.len = len;
            draft.back = Some(self.back(index, end, len)?);
        }
        Some(draft)
    }

    /// An ATOMIC WRITE to one of the words that atomics go to.
    fn atomic_write(&mut self, index: usize, end: usize) -> Option<Draft> {
        let at = begin(index, Area::Atomic) + self.draw.below(ATOMICS / 8) * 8;
        let remote = self.remote(1 - end, Place::Main, at)?;
        let mut draft = Draft::new(Operation::AtomicWrite, SendOp::AtomicWrite(remote));
        draft.target = Some((Place::Main, at..at + 8));
        Some(draft)
    }

    /// A FLUSH; or a fast registration of what is sent from, or the end of that, on the first connection.
    fn without_bytes(&mut self, index: usize, end: usize, operation: Operation) -> Option<Draft> {
        if operation == Operation::Flush {
            let remote = self.remote(1 - end, Place::Main, begin(index, Area::Target))?;
            let len = self
                .draw
                .chance(Ppm::percent(50))
                .then(|| self.draw.below(AREA) as u32);
            let what = FlushRange {
                remote,
                len,
                placement: Placement::GLOBAL,
            };
            return Some(Draft::new(operation, SendOp::Flush(what)));
        }
        let registered = &mut self.conns[0].lanes[end].registered;
        let fast = self.ends[end].fast.as_mut()?;
        if index != 0 || *registered != (operation == Operation::LocalInv) {
            return None;
        }
        let op = if *registered {
            SendOp::LocalInv(fast.rkey())
        } else {
            fast.next_key();
            fast.register(0, Access::empty()).wr.op
        };
        Some(Draft::new(operation, op))
    }

    fn atomic(&mut self, index: usize, end: usize, operation: Operation) -> Option<Draft> {
        let cell = self.draw.below(ATOMICS / 8) * 8;
        let at = begin(index, Area::Atomic) + cell;
        let remote = self.remote(1 - end, Place::Main, at)?;
        let range = at..at + 8;
        let now = number(&self.predict(index, end, Place::Main, range.clone()));
        let op = match operation {
            Operation::FetchAdd => SendOp::FetchAdd {
                remote,
                add: self.draw.number(),
            },
            Operation::MaskedFetchAdd => SendOp::MaskedFetchAdd {
                remote,
                add: self.draw.number(),
                boundary: self.draw.number(),
            },
            Operation::MaskedCompareSwap => SendOp::MaskedCompareSwap {
                remote,
                compare: now ^ self.draw.number() & self.draw.number(),
                compare_mask: self.draw.number() & self.draw.number() & self.draw.number(),
                swap: self.draw.number(),
                swap_mask: self.draw.number(),
            },
            _ => {
                let right = self.draw.chance(Ppm::percent(70));
                let compare = if right { now } else { !now };
                let swap = self.draw.number();
                SendOp::CompareSwap {
                    remote,
                    compare,
                    swap,
                }
            }
        };
        let mut draft = Draft::new(operation, op);
        draft.target = Some((Place::Main, range));
        draft.len = 8;
        draft.back = Some(self.back(index, end, 8)?);
        draft.bytes = match op {
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
        Some(draft)
    }

    /// The peer's bytes as all that was posted will have made them.
    fn predict(&self, index: usize, end: usize, place: Place, range: Range<usize>) -> Vec<u8> {
        let lane = self.conns[index].lane(end);
        let peer = &self.ends[1 - end];
        let region = match place {
            Place::Main => &peer.main,
            Place::Spare => &peer.spare,
            Place::ReadOnly => &peer.read_only,
        };
        region.model.predict(lane, range)
    }

    /// Room for a result that nothing on its way has; `None` if there is none.
    fn back(&mut self, index: usize, end: usize, len: usize) -> Option<Range<usize>> {
        let lane = &mut self.conns[index].lanes[end];
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
    fn scatter(&mut self, index: usize, end: usize, draft: &mut Draft) -> Option<()> {
        let range = draft.back.clone()?;
        let mr = self.ends[end].main.mr.as_ref()?;
        let max = self.conns[index].attrs.sges as usize;
        let pieces = cut(&mut self.draw, range.len(), max);
        let mut at = range.start;
        for len in pieces {
            draft.sges.push(mr.slice(at..at + len));
            at += len;
        }
        Some(())
    }

    /// Several pieces of what is sent, or one, or a copy of it.
    fn gather(&mut self, index: usize, end: usize, draft: &mut Draft) -> Option<()> {
        let Self {
            draw, ends, conns, ..
        } = self;
        let End { main, fast, .. } = &ends[end];
        let fast = fast.as_ref().filter(|_| conns[0].lanes[end].registered);
        let out = begin(0, Area::Out);
        let attrs = conns[index].attrs;
        let mr = main.mr.as_ref()?;
        for len in cut(draw, draft.len, attrs.sges as usize) {
            let at = begin(index, Area::Out) + draw.below(AREA - len + 1);
            draft
                .bytes
                .extend_from_slice(main.model.settled(at..at + len));
            // The same bytes, by the key that the queue itself has made valid.
            draft.sges.push(match fast {
                Some(fast) if index == 0 => fast.slice(at - out..at - out + len),
                _ => mr.slice(at..at + len),
            });
        }
        if draft.len <= attrs.inline as usize && draw.chance(Ppm::percent(50)) {
            draft.inline = Some(draft.bytes.clone());
        }
        Some(())
    }

    fn flags(&mut self, index: usize, end: usize, draft: &mut Draft) {
        let conn = &self.conns[index];
        let quiet = conn.lanes[end].quiet + 1 >= (conn.attrs.send_depth as usize / 2).max(1);
        let draw = &mut self.draw;
        let third = Ppm::percent(33);
        draft
            .flags
            .set(SendFlags::SIGNALED, quiet || !draw.chance(third));
        draft
            .flags
            .set(SendFlags::FENCE, draw.chance(Ppm::percent(20)));
        let gathers = draft.back.is_none();
        draft
            .flags
            .set(SendFlags::SOLICITED, gathers && draw.chance(third));
        draft.flags.set(SendFlags::INLINE, draft.inline.is_some());
    }

    /// What has gone wrong so far on the way of that connection.
    pub(super) fn seen(&self) -> Seen {
        let [a, b] = &self.ends;
        let (from, to) = (addresses(a.lease.node), addresses(b.lease.node));
        Seen {
            hits: self.world.sim.network().hits(from[0], to[0]),
            flaps: a.lease.flaps.get() + b.lease.flaps.get(),
            rnr_naks: a.lease.hca.rnr_naks() + b.lease.hca.rnr_naks(),
        }
    }

    pub(super) fn post(&mut self, index: usize, end: usize, draft: Draft) -> bool {
        let at_post = self.seen();
        let conn = &mut self.conns[index];
        let lane = &mut conn.lanes[end];
        lane.seq += 1;
        let wr_id = conn.send_id(end);
        let payload = match (&draft.inline, draft.sges.as_slice()) {
            (Some(bytes), _) => Payload::Inline(bytes),
            (None, [one]) => Payload::One(*one),
            (None, several) => Payload::List(several),
        };
        let wr = SendWr {
            wr_id,
            op: draft.op,
            flags: draft.flags,
            payload,
            dest: verbs_core::Dest::Peer,
        };
        let Some(qp) = &mut conn.qps[end] else {
            return false;
        };
        // What is posted may be carried out at once, so the models have to know of it before.
        let waiting = conn.lanes[end].sends.len();
        match qp.post_send(wr) {
            Ok(()) => {
                match draft.operation {
                    Operation::RegMr => conn.lanes[end].registered = true,
                    Operation::LocalInv => conn.lanes[end].registered = false,
                    _ => {}
                }
                self.world.posted.set(self.world.posted.get() + 1);
                self.posted(index, end, wr_id, draft, at_post);
                true
            }
            Err(PostError::Full { .. }) if waiting >= conn.attrs.send_depth as usize => false,
            Err(PostError::DeviceRemoved) if self.ends[end].lease.removed.get() => false,
            Err(error) => {
                let what =
                    format!("a post with {waiting} work requests waiting was refused: {error}");
                self.world.accuse(Rule::Post, what);
                false
            }
        }
    }

    /// Enters a work request into the models.
    fn posted(&mut self, index: usize, end: usize, wr_id: u64, draft: Draft, at_post: Seen) {
        let conn = &mut self.conns[index];
        let lane_id = conn.lane(end);
        let signaled = conn.attrs.signal_all || draft.flags.contains(SendFlags::SIGNALED);
        let lane = &mut conn.lanes[end];
        let seq = lane.seq;
        lane.quiet = if signaled { 0 } else { lane.quiet + 1 };
        let ways = draft.ways();
        let Draft {
            operation,
            bytes,
            len,
            back,
            target,
            imm,
            flags,
            ..
        } = draft;
        let receives = matches!(
            operation,
            Operation::Send | Operation::SendImm | Operation::WriteImm
        );
        let is_write = matches!(operation, Operation::Write | Operation::WriteImm);
        let changes = target.is_some() && operation != Operation::Read;
        let (first, second) = self.ends.split_at_mut(1);
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
            ways,
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

    /// Posts some receives at that end.
    pub(super) fn post_receives(&mut self, index: usize, end: usize) {
        // A message that waits takes the first at once or a little later, and makes room or does not: what
        // is compared has to post one at a time.
        let several = if self.world.transcript.is_some() {
            1
        } else {
            4
        };
        for _ in 0..=self.draw.below(several) {
            if !self.post_receive(index, end) {
                return;
            }
        }
    }

    fn post_receive(&mut self, index: usize, end: usize) -> bool {
        let Self {
            draw,
            ends,
            conns,
            world,
        } = self;
        let (at, conn) = (&mut ends[end], &mut conns[index]);
        let shared = at.srq.is_some();
        let mut areas = at.free.iter_mut().enumerate();
        let usable = |(area, free): &(usize, &mut Vec<usize>)| {
            (shared || *area == index) && !free.is_empty()
        };
        let Some((area, slot)) = areas
            .find(usable)
            .and_then(|(area, free)| Some((area, *free.last()?)))
        else {
            return false;
        };
        if !conn.live {
            return false;
        }
        let (waiting, depth) = match shared {
            true => (at.shared.len(), super::session::SRQ_DEPTH),
            false => (conn.recvs[end].len(), conn.attrs.recv_depth),
        };
        at.seq += 1;
        let wr_id = recv_id(at.seq, (!shared).then_some(index));
        let begin = at.slot_at(slot);
        let Some(mr) = &at.main.mr else { return false };
        let mut sges = Vec::new();
        let mut from = begin;
        for len in cut(draw, at.slot, conn.attrs.sges as usize) {
            sges.push(mr.slice(from..from + len));
            from += len;
        }
        let recv = Recv::new(wr_id).scatter(&sges);
        let posted = match (&mut at.srq, &mut conn.qps[end]) {
            (Some(srq), _) => srq.post_recv(recv),
            (None, Some(qp)) => qp.post_recv(recv),
            (None, None) => return false,
        };
        match posted {
            Ok(()) => {
                at.free[area].pop();
                at.main.model.lend(wr_id, wr_id, begin, at.slot);
                match shared {
                    true => drop(at.shared.insert(wr_id, slot)),
                    false => conn.recvs[end].push_back((wr_id, slot)),
                }
                true
            }
            Err(PostError::Full { .. }) if waiting >= depth as usize => false,
            Err(PostError::DeviceRemoved) if at.lease.removed.get() => false,
            Err(error) => {
                let what = format!("a receive with {waiting} waiting was refused: {error}");
                world.accuse(Rule::Post, what);
                false
            }
        }
    }
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

/// Several numbers in one, added bit by bit: a carry out of a bit that is marked is lost.
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
