//! What the holder does to keys: by work requests, by direct calls and by verbs.

use verbs_core::wr::Binding;
use verbs_core::{
    Access, Dest, Error, Extent, Fmr, RKey, Refused, SendOp, WcOpcode, WcStatus, WindowType,
};

use crate::sim::Ppm;
use crate::sim::check::{Leads, Rule, Verdict};
use crate::sim::coverage::Operation;
use crate::sim::run::keys::objects::{Fast, TYPES, WINDOWS, Window};
use crate::sim::run::keys::{Deed, SHOWN, Session, Whose, holder, peer};
use crate::sim::run::parcel::{Data, Parcel};
use crate::sim::run::stand::{gone, is_busy};

/// Where the bytes of fast registrations are reached at, and those of the pool.
const FAST: u64 = 0x7_0000_0000;
const POOL: u64 = 0x8_0000_0000;
/// What windows and registrations grant.
const GRANTS: [Access; 5] = [
    Access::REMOTE,
    Access::REMOTE_WRITE,
    Access::REMOTE_READ,
    Access::REMOTE_WRITE.union(Access::REMOTE_READ),
    Access::REMOTE_ATOMIC,
];

impl Session<'_> {
    /// Changes one of the keys.
    pub(super) async fn change(&mut self) {
        let _ = match self.draw.below(10) {
            0..=5 => self.change_window(),
            6..=7 => self.change_fast(),
            8 => self.map(),
            _ => self.unmap().await,
        };
    }

    /// A range of what is shown for a connection.
    fn range(&mut self, pair: usize) -> (usize, usize) {
        let len = self.draw.within(8..=SHOWN as u64) as usize;
        let at = self.draw.below(SHOWN - len + 1) & !7;
        (pair * SHOWN + at, len)
    }

    fn change_window(&mut self) -> Option<()> {
        let slot = self.draw.below(WINDOWS);
        let window = self.objects.window(slot).filter(|window| !window.busy)?;
        let (bound, kind) = (window.bound, window.mw.window_type());
        match (kind, bound) {
            (WindowType::One, Some((key, _))) if self.draw.chance(Ppm::percent(25)) => {
                self.unbind(slot, key)
            }
            (WindowType::One, _) | (_, None) => self.bind(slot, kind),
            (_, Some((key, pair))) => self.end_key(Whose::Window(slot), key, pair),
        }
    }

    fn bind(&mut self, slot: usize, kind: WindowType) -> Option<()> {
        let strange = kind == WindowType::TwoA && self.draw.chance(Ppm::percent(30));
        let via = usize::from(strange);
        let (at, len) = self.range(via);
        let mut access = *self.draw.pick(&GRANTS);
        let zero_based = kind != WindowType::One && self.draw.chance(Ppm::percent(30));
        access.set(Access::ZERO_BASED, zero_based);
        let piece = self.shown.mr.as_ref()?.slice(at..at + len);
        let window = self.objects.window(slot)?;
        let what = window.mw.bind(0, piece, access).binding()?;
        self.post_change(via, SendOp::BindMw(what), Operation::BindMw)?;
        let (old, key) = (what.mw.value(), what.rkey.value());
        let leads = Leads {
            iova: if zero_based { 0 } else { piece.addr },
            at,
            len,
            access: access & Access::REMOTE,
            via,
        };
        self.keys.coming(key, leads);
        self.going(old);
        let window = self.objects.window(slot)?;
        window.mw.set_rkey(what.rkey);
        // Until it has completed the key may be either.
        (window.bound, window.busy) = (Some((key, via)), true);
        let deed = Deed::Bind {
            window: slot,
            key,
            old,
        };
        self.deeds.insert(self.seq, deed);
        Some(())
    }

    fn unbind(&mut self, slot: usize, old: u32) -> Option<()> {
        let what = self.objects.window(slot)?.mw.unbind(0).binding()?;
        self.post_change(0, SendOp::BindMw(what), Operation::BindMw)?;
        self.going(old);
        let window = self.objects.window(slot)?;
        window.mw.set_rkey(what.rkey);
        window.busy = true;
        self.deeds
            .insert(self.seq, Deed::Unbind { window: slot, old });
        Some(())
    }

    fn end_key(&mut self, whose: Whose, key: u32, pair: usize) -> Option<()> {
        let op = SendOp::LocalInv(RKey::new(key));
        self.post_change(pair, op, Operation::LocalInv)?;
        self.going(key);
        match whose {
            Whose::Window(slot) => self.objects.window(slot)?.busy = true,
            Whose::Fast => self.objects.fast.as_mut()?.busy = true,
        }
        self.deeds.insert(self.seq, Deed::Invalidate { whose, key });
        Some(())
    }

    fn change_fast(&mut self) -> Option<()> {
        let fast = self.objects.fast.as_ref().filter(|fast| !fast.busy)?;
        if let Some(key) = fast.valid {
            return self.end_key(Whose::Fast, key, 0);
        }
        let (at, len) = self.range(0);
        // A number that lies in two pieces is none for an atomic.
        let mid = self.draw.below(len + 1) & !7;
        let access = *self.draw.pick(&GRANTS);
        let pieces = [(at, mid), (at + mid, len - mid)];
        let extents = pieces.map(|(offset, len)| Extent {
            memory: &self.shown.memory,
            offset,
            len: len as u32,
        });
        let extents = extents.into_iter().filter(|extent| extent.len != 0);
        let fast = self.objects.fast.as_mut()?;
        if let Err(error) = fast.mr.map(extents) {
            let what = format!("a region for fast registration takes no pieces: {error}");
            self.world.accuse(Rule::Verb, what);
            return None;
        }
        let key = fast.mr.next_key().value();
        let iova = FAST + at as u64;
        let op = fast
            .mr
            .register_at(0, access | Access::LOCAL_WRITE, iova)
            .wr
            .op;
        self.post_change(0, op, Operation::RegMr)?;
        let leads = Leads {
            iova,
            at,
            len,
            access,
            via: 0,
        };
        self.keys.coming(key, leads);
        let fast = self.objects.fast.as_mut()?;
        (fast.valid, fast.busy) = (Some(key), true);
        self.deeds.insert(self.seq, Deed::Register { key });
        Some(())
    }

    /// Posts what changes a key, under the next number.
    fn post_change(&mut self, pair: usize, op: SendOp, operation: Operation) -> Option<u64> {
        if !self.is_healthy(pair) {
            return None;
        }
        self.seq += 1;
        let parcel = Parcel {
            op,
            dest: Dest::Peer,
            operation,
            data: Data::Nothing,
            seq: self.seq,
            to: holder(pair),
            receives: false,
            fenced: false,
            read: None,
            seen: self.seen(),
        };
        self.stands[holder(pair)].post(self.world, &mut self.draw, parcel)
    }

    /// Writes no bytes to the peer, so that changes behind it wait for the network.
    pub(super) fn nudge(&mut self, pair: usize) -> Option<()> {
        let remote = self.stands[peer(pair)].region.mr.as_ref()?.remote(0);
        self.post_change(pair, SendOp::Write(remote), Operation::Write)?;
        self.deeds.insert(self.seq, Deed::Nudge);
        self.nudged[pair] = true;
        Some(())
    }

    /// Gives a key of the pool pages.
    fn map(&mut self) -> Option<()> {
        let (at, len) = self.range(0);
        let page = verbs_core::Layout::PAGE as usize;
        let border = (at / page + 1) * page;
        // Pieces may only meet where a page ends.
        let cut = border < at + len && self.draw.chance(Ppm::percent(50));
        let first = if cut { border - at } else { len };
        let pieces = [(at, first), (at + first, len - first)];
        let extents = pieces.map(|(offset, len)| Extent {
            memory: &self.shown.memory,
            offset,
            len: len as u32,
        });
        let iova = POOL + at as u64;
        let pool = self.objects.pool.as_mut()?;
        let taken = if cut { 2 } else { 1 };
        let mapped = pool.map_at(extents.into_iter().take(taken), iova);
        let fmr = match mapped {
            Ok(fmr) => fmr,
            // All keys are in use, or wait for a flush.
            Err(Error::Exhausted { .. }) => return None,
            Err(error) => {
                let what = format!("a pool does not map {len} bytes: {error}");
                self.world.accuse(Rule::Verb, what);
                return None;
            }
        };
        self.was_mapped(fmr, at, len);
        Some(())
    }

    fn was_mapped(&mut self, fmr: Fmr, at: usize, len: usize) {
        let key = fmr.rkey.value();
        // What its index stood for before is out of reach at once.
        let of_index = |&unused: &u32| unused >> 8 == key >> 8;
        let unused = std::mem::take(&mut self.objects.unused);
        let (over, left) = unused.into_iter().partition::<Vec<_>, _>(of_index);
        self.objects.unused = left;
        over.into_iter().for_each(|key| self.gone(key));
        let leads = Leads {
            iova: fmr.addr,
            at,
            len,
            access: Access::REMOTE,
            via: 0,
        };
        self.keys.coming(key, leads);
        self.keys.valid(key);
        self.objects.mappings.push(fmr);
    }

    /// Gives a mapping back, and flushes the pool if that is due, or by chance.
    async fn unmap(&mut self) -> Option<()> {
        let mappings = &mut self.objects.mappings;
        if mappings.is_empty() {
            return None;
        }
        let fmr = mappings.swap_remove(self.draw.below(mappings.len()));
        let key = fmr.rkey.value();
        let due = self.objects.pool.as_mut()?.unmap(fmr);
        // It may lead there still, until somebody flushes or the pages are others.
        self.going(key);
        self.objects.unused.push(key);
        if due || self.draw.chance(Ppm::percent(60)) {
            let lease = &self.stands[holder(0)].lease;
            let flushed = self
                .world
                .verb(lease, self.objects.pool.as_ref()?.flush())
                .await;
            if flushed.is_ok() {
                let unused = std::mem::take(&mut self.objects.unused);
                unused.into_iter().for_each(|key| self.gone(key));
            }
        }
        Some(())
    }

    /// A key may end at any time from now on, so accesses that are on their way may be refused.
    fn going(&mut self, key: u32) {
        self.keys.going(key);
        self.weaken(key, |_| true);
    }

    /// Accesses of those kinds that are on their way through a key may be refused.
    pub(super) fn weaken(&mut self, key: u32, of_kind: impl Fn(&WcOpcode) -> bool) {
        for deed in self.deeds.values_mut() {
            if let Deed::Reach {
                key: through,
                verdict: verdict @ Verdict::Must,
                opcode,
                ..
            } = deed
                && *through == key
                && of_kind(opcode)
            {
                *verdict = Verdict::May;
            }
        }
    }

    /// A key has ended: what is on its way through it takes effect no more, if it has not.
    pub(super) fn gone(&mut self, key: u32) {
        let known = self.keys.known().find(|&(known, _)| known == key);
        self.dead.extend(known);
        self.keys.gone(key);
        let through =
            |deed: &Deed| matches!(deed, Deed::Reach { key: through, .. } if *through == key);
        let ended = self.deeds.iter().filter(|(_, deed)| through(deed));
        for (&seq, _) in ended {
            let lane = known.map_or(0, |(_, leads)| leads.via as u64);
            if let Err(what) = self.shown.model.freeze(lane, seq) {
                self.world.accuse(Rule::Memory, what);
            }
        }
    }

    /// Deallocates a window, bound or not, or allocates one; and what nobody knows the state of.
    pub(super) async fn deallocate(&mut self) {
        let doubted = |fast: &mut Fast| fast.doubted.is_some();
        if let Some(fast) = self.objects.fast.take_if(doubted) {
            let stand = &self.stands[holder(0)];
            gone(
                self.world,
                self.world.verb(&stand.lease, fast.mr.free()).await,
            );
            if let Some(pd) = &stand.pd {
                let made = self.objects.allocate_fast(self.world, &stand.lease, pd);
                let _ = made.await;
            }
            fast.doubted.into_iter().for_each(|key| self.gone(key));
        }
        let slot = self.draw.below(WINDOWS);
        let kind = *self.draw.pick(&TYPES);
        let Some(window) = &self.objects.windows[slot] else {
            let stand = &self.stands[holder(0)];
            let Some(pd) = &stand.pd else { return };
            let made = self.world.verb(&stand.lease, pd.alloc_mw(kind)).await;
            self.objects.windows[slot] = made.ok().map(Window::new);
            return;
        };
        if window.busy && window.doubted.is_empty() {
            return;
        }
        let Some(window) = self.objects.windows[slot].take() else {
            return;
        };
        let mut keys = window.doubted.clone();
        keys.extend(window.bound.map(|(key, _)| key));
        keys.iter().for_each(|&key| self.going(key));
        let lease = &self.stands[holder(0)].lease;
        gone(
            self.world,
            self.world.verb(lease, window.mw.dealloc()).await,
        );
        keys.into_iter().for_each(|key| self.gone(key));
    }

    /// What holds windows answers Busy, and is as it was (K10).
    pub(super) async fn try_too_early(&mut self, pair: usize) {
        let type_2 =
            |window: &Window, via| window.mw.window_type() != WindowType::One && via == pair;
        let lease = &self.stands[holder(0)].lease;
        if self.objects.is_bound(|_, _| true)
            && let Some(mr) = self.shown.mr.take()
        {
            match self.world.verb_or(lease, mr.dereg(), is_busy).await {
                Err(Refused {
                    handle: Some(mr), ..
                }) => self.shown.mr = Some(mr),
                _ if self.is_orphaned() => {}
                _ => self
                    .world
                    .accuse(Rule::Busy, "a region with a window was deregistered"),
            }
        }
        if self.objects.is_bound(type_2)
            && let Some(qp) = self.stands[holder(pair)].qp.take()
        {
            match self.world.verb_or(lease, qp.destroy(), is_busy).await {
                Err(Refused {
                    handle: Some(qp), ..
                }) => self.stands[holder(pair)].qp = Some(qp),
                _ if self.is_orphaned() => {}
                _ => self
                    .world
                    .accuse(Rule::Busy, "a queue pair with a window was destroyed"),
            }
        }
    }

    /// Breaks one of the rules of binding, registering and invalidating.
    pub(super) fn change_wrongly(&mut self, pair: usize) -> Option<()> {
        let slot = self.draw.below(WINDOWS);
        let how = self.draw.below(9);
        let foreign = self.stands[holder(0)].region.mr.as_ref()?.lkey();
        let whole = self.shown.mr.as_ref()?.all();
        let window = self.objects.window(slot).filter(|window| !window.busy)?;
        let (kind, bound) = (window.mw.window_type(), window.bound);
        let current = window.mw.rkey();
        let mut what: Binding = window.mw.bind(0, whole, Access::REMOTE).binding()?;
        let one = kind == WindowType::One;
        let mut op = None;
        match how {
            0 => what.addr += 1,
            1 => what.addr -= 1,
            2 => what.lkey = foreign,
            3 => what.mw = what.mw.next(),
            4 if one => what.access |= Access::ZERO_BASED,
            4 => what.len = 0,
            // Bound already, or of another domain.
            5 if !one && bound.is_some() => {}
            5 if pair == 1 && kind != WindowType::TwoA => {}
            6 if one => op = Some(SendOp::LocalInv(current)),
            7 => op = Some(SendOp::LocalInv(RKey::new(foreign.value()))),
            8 => {
                let fast = self.objects.fast.as_mut().filter(|fast| !fast.busy)?;
                fast.valid?;
                let iova = FAST;
                op = Some(fast.mr.register_at(0, Access::LOCAL_WRITE, iova).wr.op);
            }
            _ => return None,
        }
        let (op, operation, legal): (_, _, &'static [WcStatus]) = match op {
            Some(op @ SendOp::RegMr(_)) => (op, Operation::RegMr, &[WcStatus::LocQpOpErr]),
            Some(op) => (op, Operation::LocalInv, &[WcStatus::LocQpOpErr]),
            None => (
                SendOp::BindMw(what),
                Operation::BindMw,
                &[WcStatus::MwBindErr],
            ),
        };
        self.post_change(pair, op, operation)?;
        self.deeds.insert(self.seq, Deed::Wrong { legal });
        self.wrong[pair] = true;
        Some(())
    }
}
