//! What the peer posts: it reaches for what keys lead to, and ends them.

use std::ops::Range;

use verbs_core::{Access, Dest, RKey, Remote, SendOp, WcOpcode, WindowType};

use crate::sim::Ppm;
use crate::sim::check::{Leads, Reach, Read, Verdict};
use crate::sim::coverage::Operation;
use crate::sim::run::draft::number;
use crate::sim::run::keys::{Deed, PAIRS, Session, Told, Whose, holder, peer};
use crate::sim::run::parcel::{Data, Parcel};
use crate::sim::run::stand::{BACK, MESSAGE_MAX};

/// The rights that an access can need.
const RIGHTS: [Access; 3] = [
    Access::REMOTE_WRITE,
    Access::REMOTE_READ,
    Access::REMOTE_ATOMIC,
];

impl Session<'_> {
    /// Reaches for something that a key leads to.
    pub(super) fn access(&mut self, pair: usize) -> Option<()> {
        if !self.is_healthy(pair) {
            return None;
        }
        let known = self.keys.known().filter(|(_, leads)| leads.via == pair);
        let known: Vec<_> = known.collect();
        let (key, leads) = *known.get(self.draw.below(known.len()))?;
        let reach = self.within(pair, key, &leads)?;
        if self.keys.judge(&reach).0 == Verdict::Never {
            // What is denied takes the connection down: enough of that is done on purpose.
            return None;
        }
        self.reach(&reach)
    }

    /// A legal access to what a key leads to.
    fn within(&mut self, via: usize, key: u32, leads: &Leads) -> Option<Reach> {
        let rights: Vec<_> = RIGHTS
            .into_iter()
            .filter(|&right| leads.access.contains(right))
            .collect();
        let right = *rights.get(self.draw.below(rights.len()))?;
        let sizes = self.stands[peer(via)].sizes;
        let max = leads.len.min(BACK.len());
        let mut len = sizes.length(&mut self.draw, max).max(1);
        let mut offset = self.draw.below(leads.len - len + 1) as u64;
        if right == Access::REMOTE_ATOMIC {
            len = 8;
            offset = (leads.iova + offset).next_multiple_of(8) - leads.iova;
            if offset as usize + len > leads.len {
                return None;
            }
        }
        let addr = leads.iova + offset;
        Some(Reach {
            key,
            via,
            addr,
            len,
            right,
        })
    }

    /// Reaches for something that it must not get.
    pub(super) fn access_wrongly(&mut self, pair: usize) -> Option<()> {
        if !self.is_healthy(pair) {
            return None;
        }
        let known: Vec<_> = self.keys.known().collect();
        let of_known = known.get(self.draw.below(known.len())).copied();
        let (key, leads) = match self.draw.below(3) {
            0 => *self.dead.get(self.draw.below(self.dead.len()))?,
            _ => of_known?,
        };
        let mut reach = self.within(leads.via, key, &leads)?;
        reach.via = pair;
        if leads.via == pair {
            match self.draw.below(4) {
                0 => reach.addr = leads.iova + leads.len as u64 - reach.len as u64 + 1,
                1 => reach.addr = leads.iova.wrapping_sub(1),
                2 => reach.right = *self.draw.pick(&RIGHTS),
                _ => {}
            }
        }
        if reach.right == Access::REMOTE_ATOMIC {
            (reach.addr, reach.len) = (reach.addr & !7, 8);
        }
        if self.keys.judge(&reach).0 != Verdict::Never {
            return None;
        }
        self.reach(&reach)?;
        self.wrong[pair] = true;
        Some(())
    }

    fn reach(&mut self, reach: &Reach) -> Option<()> {
        let &Reach { key, via, len, .. } = reach;
        let at = peer(via);
        let waits = self.stands[at].sends.iter().any(|sent| {
            let deed = self.deeds.get(&sent.what.seq);
            matches!(deed, Some(Deed::Reach { reads: true, .. }))
        });
        let reads = reach.right != Access::REMOTE_WRITE;
        if reads && waits {
            // There is room for one result.
            return None;
        }
        let (verdict, range) = self.keys.judge(reach);
        let leads_in = verdict != Verdict::Never;
        let remote = Remote {
            addr: reach.addr,
            rkey: RKey::new(key),
        };
        self.seq += 1;
        let seq = self.seq;
        let lane = via as u64;
        let (op, opcode, data, written) = match reach.right {
            Access::REMOTE_WRITE => {
                let mut bytes = vec![0; len];
                self.draw.fill(&mut bytes);
                let (op, data) = (SendOp::Write(remote), Data::Bytes(bytes.clone()));
                (op, WcOpcode::RdmaWrite, data, Some(bytes))
            }
            Access::REMOTE_READ => {
                let data = Data::Into(BACK.start..BACK.start + len);
                (SendOp::Read(remote), WcOpcode::RdmaRead, data, None)
            }
            _ => {
                let add = self.draw.number();
                let op = SendOp::FetchAdd { remote, add };
                let now = leads_in.then(|| self.shown.model.predict(lane, range.clone()));
                let sum = now.map(|now| number(&now).wrapping_add(add));
                let data = Data::Into(BACK.start..BACK.start + 8);
                let written = sum.map(|sum| sum.to_ne_bytes().to_vec());
                (op, WcOpcode::FetchAdd, data, written)
            }
        };
        let read = (reads && leads_in).then(|| self.shown.model.read(lane, range.clone()));
        let parcel = Parcel {
            op,
            dest: Dest::Peer,
            operation: self.row(key),
            data,
            seq,
            to: holder(via),
            receives: false,
            fenced: false,
            read,
            seen: self.seen(),
        };
        self.stands[at].post(self.world, &mut self.draw, parcel)?;
        if leads_in {
            self.expect(via, seq, reads.then_some(len), &range, written);
        }
        let deed = Deed::Reach {
            key,
            verdict,
            opcode,
            reads,
        };
        self.deeds.insert(seq, deed);
        Some(())
    }

    /// Enters an access into the models of memory.
    fn expect(
        &mut self,
        via: usize,
        seq: u64,
        result: Option<usize>,
        range: &Range<usize>,
        written: Option<Vec<u8>>,
    ) {
        let (lane, stand) = (via as u64, &mut self.stands[peer(via)]);
        if let Some(len) = result {
            stand.region.model.lend(lane, seq, BACK.start, len);
        }
        let Some(written) = written else { return };
        if result.is_none() {
            // A WRITE may take effect before READs that were posted earlier.
            let overtake = |read: &mut Read| read.overtake(range.start, &written);
            let reads = stand.sends.iter_mut().filter_map(|sent| {
                let (_, read) = sent.what.read.as_mut()?;
                Some(read)
            });
            reads.for_each(overtake);
        }
        self.shown.model.write(lane, seq, range.start, written);
    }

    /// The row of the table for accesses by a key.
    fn row(&mut self, key: u32) -> Operation {
        let windows = self.objects.windows.iter().flatten();
        let mut of_key = windows.filter(|window| window.mw.rkey().index() == key >> 8);
        let fast = self.objects.fast.as_ref();
        match of_key.next().map(|window| window.mw.window_type()) {
            Some(WindowType::One) => Operation::WindowOne,
            Some(WindowType::TwoA) => Operation::WindowTwoA,
            Some(WindowType::TwoB) => Operation::WindowTwoB,
            None if fast.is_some_and(|fast| fast.mr.rkey().index() == key >> 8) => {
                Operation::FastKey
            }
            None => Operation::PoolKey,
        }
    }

    /// Ends a key by a SEND.
    pub(super) fn invalidate(&mut self, pair: usize) -> Option<()> {
        if !self.is_healthy(pair) {
            return None;
        }
        let all = self.objects.invalidable(pair);
        let (whose, key) = *all.get(self.draw.below(all.len()))?;
        let fenced = self.draw.chance(Ppm::percent(50));
        self.send(pair, key, Some((whose, fenced)), Deed::SendInv)?;
        self.keys.going_behind(key, pair);
        if !fenced {
            self.weaken_reads(key);
        }
        match whose {
            Whose::Window(slot) => self.objects.window(slot)?.busy = true,
            Whose::Fast => self.objects.fast.as_mut()?.busy = true,
        }
        Some(())
    }

    /// Ends a key by a SEND that it cannot be ended by.
    pub(super) fn invalidate_wrongly(&mut self, pair: usize) -> Option<()> {
        if !self.is_healthy(pair) {
            return None;
        }
        let key = match self.draw.below(4) {
            0 => self.shown.mr.as_ref()?.rkey().value(),
            1 => {
                // To end a key that has ended already is no mistake while it has no successor.
                let (key, _) = *self.dead.get(self.draw.below(self.dead.len()))?;
                let succeeds = |(valid, _)| {
                    self.keys.is_valid(valid) && valid >> 8 == key >> 8 && valid != key
                };
                let succeeded = self.keys.known().any(succeeds);
                (succeeded && self.row(key) != Operation::PoolKey).then_some(key)?
            }
            2 => {
                let other = self.objects.invalidable((pair + 1) % PAIRS);
                other.get(self.draw.below(other.len()))?.1
            }
            _ => {
                let mut windows = self.objects.windows.iter().flatten();
                let first = windows.find(|window| window.mw.window_type() == WindowType::One);
                first?.mw.rkey().value()
            }
        };
        let is_known = self.keys.known().any(|(known, _)| known == key);
        let other_pair = self
            .keys
            .known()
            .any(|(known, leads)| known == key && leads.via != pair && self.keys.is_valid(known));
        let is_first = self.objects.windows.iter().flatten().any(|window| {
            window.mw.window_type() == WindowType::One && window.mw.rkey().value() == key
        });
        if is_known && !other_pair && !is_first {
            return None;
        }
        self.send(pair, key, None, Deed::Wrong { legal: &[] })?;
        self.wrong[pair] = true;
        Some(())
    }

    /// A SEND that ends the key was posted without a fence behind READs. If a response of theirs is lost, they are
    /// asked for again, and the key may be none by then (IBTA vol. 1, 10.8.3.3 lets only a fence order the two).
    /// The responder says nothing to that, or refuses it.
    fn weaken_reads(&mut self, key: u32) {
        let is_read = |opcode: &WcOpcode| *opcode == WcOpcode::RdmaRead;
        self.weaken(key, is_read);
    }

    /// Posts a SEND with invalidate; `whose` is the key's owner and whether the SEND is fenced, `None` if nobody
    /// may end the key by it.
    fn send(
        &mut self,
        pair: usize,
        key: u32,
        whose: Option<(Whose, bool)>,
        deed: Deed,
    ) -> Option<()> {
        let stand = &mut self.stands[peer(pair)];
        let len = stand.sizes.length(&mut self.draw, MESSAGE_MAX);
        let tag = stand.next_tag();
        self.seq += 1;
        let (seq, seen) = (self.seq, self.seen());
        let parcel = Parcel {
            op: SendOp::SendWithInv(RKey::new(key)),
            dest: Dest::Peer,
            operation: Operation::SendInv,
            data: Data::Bytes(tag.compose(len)),
            seq,
            to: holder(pair),
            receives: true,
            fenced: whose.is_some_and(|(_, fenced)| fenced),
            read: None,
            seen,
        };
        let stand = &mut self.stands[peer(pair)];
        stand.post(self.world, &mut self.draw, parcel)?;
        self.told[pair].push_back(Told {
            seq,
            tag,
            len,
            key,
            whose: whose.map(|(whose, _)| whose),
            confirmed: false,
            seen,
        });
        self.deeds.insert(seq, deed);
        if self.draw.chance(Ppm::percent(70)) {
            self.post_receives(pair);
        }
        Some(())
    }
}
