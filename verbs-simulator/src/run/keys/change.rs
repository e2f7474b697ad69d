//! What the holder does to keys: by work requests, by direct calls and by verbs.

use verbs_core::wr::Binding;
use verbs_core::{
    Access, Dest, Error, Extent, Fmr, RKey, Refused, SendOp, WcOpcode, WcStatus, WindowType,
};

use crate::Ppm;
use crate::check::{Leads, Rule, Verdict};
use crate::coverage::Operation;
use crate::run::endpoint::{gone, is_busy};
use crate::run::keys::objects::{Fast, TYPES, WINDOWS, Window};
use crate::run::keys::{Action, SHOWN, Session, Whose, holder, peer};
use crate::run::pending_wr::{Data, PendingWr};

/// The addresses of the bytes of fast registrations, and of the pool.
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

/// Changes one of the keys.
pub(super) async fn change(session: &mut Session<'_>) {
    let _ = match session.draw.below(10) {
        0..=5 => change_window(session),
        6..=7 => change_fast(session),
        8 => map(session),
        _ => unmap(session).await,
    };
}

/// A range of the memory that keys of a connection give access to.
fn range(session: &mut Session<'_>, pair: usize) -> (usize, usize) {
    let len = session.draw.within(8..=SHOWN as u64) as usize;
    let at = session.draw.below(SHOWN - len + 1) & !7;
    (pair * SHOWN + at, len)
}

fn change_window(session: &mut Session<'_>) -> Option<()> {
    let slot = session.draw.below(WINDOWS);
    let window = session.objects.window(slot).filter(|window| !window.busy)?;
    let (bound, kind) = (window.bound, window.mw.window_type());
    match (kind, bound) {
        (WindowType::One, Some((key, _))) if session.draw.chance(Ppm::percent(25)) => {
            unbind(session, slot, key)
        }
        (WindowType::One, _) | (_, None) => bind(session, slot, kind),
        (_, Some((key, pair))) => end_key(session, Whose::Window(slot), key, pair),
    }
}

fn bind(session: &mut Session<'_>, slot: usize, kind: WindowType) -> Option<()> {
    let strange = kind == WindowType::TwoA && session.draw.chance(Ppm::percent(30));
    let via = usize::from(strange);
    let (at, len) = range(session, via);
    let mut access = *session.draw.pick(&GRANTS);
    let zero_based = kind != WindowType::One && session.draw.chance(Ppm::percent(30));
    access.set(Access::ZERO_BASED, zero_based);
    let piece = session.shown.mr.as_ref()?.slice(at..at + len);
    let window = session.objects.window(slot)?;
    let what = window.mw.bind(0, piece, access).binding()?;
    post_change(session, via, SendOp::BindMw(what), Operation::BindMw)?;
    let (old, key) = (what.mw.value(), what.rkey.value());
    let leads = Leads {
        iova: if zero_based { 0 } else { piece.addr },
        at,
        len,
        access: access & Access::REMOTE,
        via,
    };
    session.keys.coming(key, leads);
    going(session, old);
    let window = session.objects.window(slot)?;
    window.mw.set_rkey(what.rkey);
    // Until it has completed either key may be valid.
    (window.bound, window.busy) = (Some((key, via)), true);
    let action = Action::Bind {
        window: slot,
        key,
        old,
    };
    session.actions.insert(session.seq, action);
    Some(())
}

fn unbind(session: &mut Session<'_>, slot: usize, old: u32) -> Option<()> {
    let what = session.objects.window(slot)?.mw.unbind(0).binding()?;
    post_change(session, 0, SendOp::BindMw(what), Operation::BindMw)?;
    going(session, old);
    let window = session.objects.window(slot)?;
    window.mw.set_rkey(what.rkey);
    window.busy = true;
    session
        .actions
        .insert(session.seq, Action::Unbind { window: slot, old });
    Some(())
}

fn end_key(session: &mut Session<'_>, whose: Whose, key: u32, pair: usize) -> Option<()> {
    let op = SendOp::LocalInv(RKey::new(key));
    post_change(session, pair, op, Operation::LocalInv)?;
    going(session, key);
    match whose {
        Whose::Window(slot) => session.objects.window(slot)?.busy = true,
        Whose::Fast => session.objects.fast.as_mut()?.busy = true,
    }
    session
        .actions
        .insert(session.seq, Action::Invalidate { whose, key });
    Some(())
}

fn change_fast(session: &mut Session<'_>) -> Option<()> {
    let fast = session.objects.fast.as_ref().filter(|fast| !fast.busy)?;
    if let Some(key) = fast.valid {
        return end_key(session, Whose::Fast, key, 0);
    }
    let (at, len) = range(session, 0);
    // An atomic cannot use a number that lies in two pieces.
    let mid = session.draw.below(len + 1) & !7;
    let access = *session.draw.pick(&GRANTS);
    let pieces = [(at, mid), (at + mid, len - mid)];
    let extents = pieces.map(|(offset, len)| Extent {
        memory: &session.shown.memory,
        offset,
        len: len as u32,
    });
    let extents = extents.into_iter().filter(|extent| extent.len != 0);
    let fast = session.objects.fast.as_mut()?;
    if let Err(error) = fast.mr.map(extents) {
        let what = format!("a region for fast registration takes no pieces: {error}");
        session.world.violated(Rule::Verb, what);
        return None;
    }
    let key = fast.mr.next_key().value();
    let iova = FAST + at as u64;
    let op = fast
        .mr
        .register_at(0, access | Access::LOCAL_WRITE, iova)
        .wr
        .op;
    post_change(session, 0, op, Operation::RegMr)?;
    let leads = Leads {
        iova,
        at,
        len,
        access,
        via: 0,
    };
    session.keys.coming(key, leads);
    let fast = session.objects.fast.as_mut()?;
    (fast.valid, fast.busy) = (Some(key), true);
    session
        .actions
        .insert(session.seq, Action::Register { key });
    Some(())
}

/// Posts a work request that changes a key, under the next number.
fn post_change(
    session: &mut Session<'_>,
    pair: usize,
    op: SendOp,
    operation: Operation,
) -> Option<u64> {
    if !session.is_healthy(pair) {
        return None;
    }
    session.seq += 1;
    let pending = PendingWr {
        op,
        dest: Dest::Peer,
        operation,
        data: Data::Nothing,
        seq: session.seq,
        to: holder(pair),
        receives: false,
        fenced: false,
        read: None,
        seen: session.seen(),
    };
    session.endpoints[holder(pair)].post(session.world, &mut session.draw, pending)
}

/// Writes no bytes to the peer, so that changes behind it wait for the network.
pub(super) fn nudge(session: &mut Session<'_>, pair: usize) -> Option<()> {
    let remote = session.endpoints[peer(pair)].region.mr.as_ref()?.remote(0);
    post_change(session, pair, SendOp::Write(remote), Operation::Write)?;
    session.actions.insert(session.seq, Action::Nudge);
    session.nudged[pair] = true;
    Some(())
}

/// Maps pages under a key of the pool.
fn map(session: &mut Session<'_>) -> Option<()> {
    let (at, len) = range(session, 0);
    let page = verbs_core::Layout::PAGE as usize;
    let border = (at / page + 1) * page;
    // Pieces may only meet where a page ends.
    let cut = border < at + len && session.draw.chance(Ppm::percent(50));
    let first = if cut { border - at } else { len };
    let pieces = [(at, first), (at + first, len - first)];
    let extents = pieces.map(|(offset, len)| Extent {
        memory: &session.shown.memory,
        offset,
        len: len as u32,
    });
    let iova = POOL + at as u64;
    let pool = session.objects.pool.as_mut()?;
    let taken = if cut { 2 } else { 1 };
    let mapped = pool.map_at(extents.into_iter().take(taken), iova);
    let fmr = match mapped {
        Ok(fmr) => fmr,
        // All keys are in use, or wait for a flush.
        Err(Error::Exhausted { .. }) => return None,
        Err(error) => {
            let what = format!("a pool does not map {len} bytes: {error}");
            session.world.violated(Rule::Verb, what);
            return None;
        }
    };
    was_mapped(session, fmr, at, len);
    Some(())
}

fn was_mapped(session: &mut Session<'_>, fmr: Fmr, at: usize, len: usize) {
    let key = fmr.rkey.value();
    // Keys with that index that were valid before are invalid at once.
    let of_index = |&unused: &u32| unused >> 8 == key >> 8;
    let unused = std::mem::take(&mut session.objects.unused);
    let (over, left) = unused.into_iter().partition::<Vec<_>, _>(of_index);
    session.objects.unused = left;
    over.into_iter().for_each(|key| key_gone(session, key));
    let leads = Leads {
        iova: fmr.addr,
        at,
        len,
        access: Access::REMOTE,
        via: 0,
    };
    session.keys.coming(key, leads);
    session.keys.valid(key);
    session.objects.mappings.push(fmr);
}

/// Unmaps a mapping, and flushes the pool if that is due, or by chance.
async fn unmap(session: &mut Session<'_>) -> Option<()> {
    let mappings = &mut session.objects.mappings;
    if mappings.is_empty() {
        return None;
    }
    let fmr = mappings.swap_remove(session.draw.below(mappings.len()));
    let key = fmr.rkey.value();
    let due = session.objects.pool.as_mut()?.unmap(fmr);
    // It may still give access, until the pool is flushed or the pages change.
    going(session, key);
    session.objects.unused.push(key);
    if due || session.draw.chance(Ppm::percent(60)) {
        let lease = &session.endpoints[holder(0)].lease;
        let flushed = session
            .world
            .verb(lease, session.objects.pool.as_ref()?.flush())
            .await;
        if flushed.is_ok() {
            let unused = std::mem::take(&mut session.objects.unused);
            unused.into_iter().for_each(|key| key_gone(session, key));
        }
    }
    Some(())
}

/// A key may end at any time from now on, so accesses under way may be refused.
fn going(session: &mut Session<'_>, key: u32) {
    session.keys.going(key);
    weaken(session, key, |_| true);
}

/// Accesses of those kinds under way through a key may be refused.
pub(super) fn weaken(session: &mut Session<'_>, key: u32, of_kind: impl Fn(&WcOpcode) -> bool) {
    for action in session.actions.values_mut() {
        if let Action::Reach {
            key: through,
            verdict: verdict @ Verdict::Must,
            opcode,
            ..
        } = action
            && *through == key
            && of_kind(opcode)
        {
            *verdict = Verdict::May;
        }
    }
}

/// A key has ended: accesses under way through it no longer take effect, if they have not.
pub(super) fn key_gone(session: &mut Session<'_>, key: u32) {
    let known = session.keys.known().find(|&(known, _)| known == key);
    session.dead.extend(known);
    session.keys.gone(key);
    let through =
        |action: &Action| matches!(action, Action::Reach { key: through, .. } if *through == key);
    let ended = session.actions.iter().filter(|(_, action)| through(action));
    for (&seq, _) in ended {
        let lane = known.map_or(0, |(_, leads)| leads.via as u64);
        if let Err(what) = session.shown.model.freeze(lane, seq) {
            session.world.violated(Rule::Memory, what);
        }
    }
}

/// Deallocates a window, bound or not, or allocates one; and deallocates objects whose state is unknown.
pub(super) async fn deallocate(session: &mut Session<'_>) {
    let doubted = |fast: &mut Fast| fast.doubted.is_some();
    if let Some(fast) = session.objects.fast.take_if(doubted) {
        let endpoint = &session.endpoints[holder(0)];
        gone(
            session.world,
            session.world.verb(&endpoint.lease, fast.mr.free()).await,
        );
        if let Some(pd) = &endpoint.pd {
            let made = session
                .objects
                .allocate_fast(session.world, &endpoint.lease, pd);
            let _ = made.await;
        }
        fast.doubted
            .into_iter()
            .for_each(|key| key_gone(session, key));
    }
    let slot = session.draw.below(WINDOWS);
    let kind = *session.draw.pick(&TYPES);
    let Some(window) = &session.objects.windows[slot] else {
        let endpoint = &session.endpoints[holder(0)];
        let Some(pd) = &endpoint.pd else { return };
        let made = session.world.verb(&endpoint.lease, pd.alloc_mw(kind)).await;
        session.objects.windows[slot] = made.ok().map(Window::new);
        return;
    };
    if window.busy && window.doubted.is_empty() {
        return;
    }
    let Some(window) = session.objects.windows[slot].take() else {
        return;
    };
    let mut keys = window.doubted.clone();
    keys.extend(window.bound.map(|(key, _)| key));
    keys.iter().for_each(|&key| going(session, key));
    let lease = &session.endpoints[holder(0)].lease;
    gone(
        session.world,
        session.world.verb(lease, window.mw.dealloc()).await,
    );
    keys.into_iter().for_each(|key| key_gone(session, key));
}

/// An object that holds windows answers Busy, and is unchanged (K10).
pub(super) async fn try_too_early(session: &mut Session<'_>, pair: usize) {
    let type_2 = |window: &Window, via| window.mw.window_type() != WindowType::One && via == pair;
    let lease = &session.endpoints[holder(0)].lease;
    if session.objects.is_bound(|_, _| true)
        && let Some(mr) = session.shown.mr.take()
    {
        match session.world.verb_or(lease, mr.dereg(), is_busy).await {
            Err(Refused {
                handle: Some(mr), ..
            }) => session.shown.mr = Some(mr),
            _ if session.is_orphaned() => {}
            _ => session
                .world
                .violated(Rule::Busy, "a region with a window was deregistered"),
        }
    }
    if session.objects.is_bound(type_2)
        && let Some(qp) = session.endpoints[holder(pair)].qp.take()
    {
        match session.world.verb_or(lease, qp.destroy(), is_busy).await {
            Err(Refused {
                handle: Some(qp), ..
            }) => session.endpoints[holder(pair)].qp = Some(qp),
            _ if session.is_orphaned() => {}
            _ => session
                .world
                .violated(Rule::Busy, "a queue pair with a window was destroyed"),
        }
    }
}

/// Breaks one of the rules of binding, registering and invalidating.
pub(super) fn change_wrongly(session: &mut Session<'_>, pair: usize) -> Option<()> {
    let slot = session.draw.below(WINDOWS);
    let how = session.draw.below(9);
    let foreign = session.endpoints[holder(0)].region.mr.as_ref()?.lkey();
    let whole = session.shown.mr.as_ref()?.all();
    let window = session.objects.window(slot).filter(|window| !window.busy)?;
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
            let fast = session.objects.fast.as_mut().filter(|fast| !fast.busy)?;
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
    post_change(session, pair, op, operation)?;
    session.actions.insert(session.seq, Action::Wrong { legal });
    session.wrong[pair] = true;
    Some(())
}
