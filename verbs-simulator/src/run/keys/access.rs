//! What the peer posts: it accesses memory through keys, and invalidates them.

use std::ops::Range;

use verbs_core::{Access, Dest, RKey, Remote, SendOp, WcOpcode, WindowType};

use crate::Ppm;
use crate::check::{Leads, Reach, Read, Verdict};
use crate::coverage::Operation;
use crate::run::endpoint::{BACK, MESSAGE_MAX};
use crate::run::keys::change;
use crate::run::keys::{Action, PAIRS, Session, Told, Whose, holder, peer};
use crate::run::pending_wr::{Data, PendingWr};
use crate::run::wr_builder::number;

/// The rights that an access can need.
const RIGHTS: [Access; 3] = [
    Access::REMOTE_WRITE,
    Access::REMOTE_READ,
    Access::REMOTE_ATOMIC,
];

/// Accesses memory through a key.
pub(super) fn access(session: &mut Session<'_>, pair: usize) -> Option<()> {
    if !session.is_healthy(pair) {
        return None;
    }
    let known = session.keys.known().filter(|(_, leads)| leads.via == pair);
    let known: Vec<_> = known.collect();
    let (key, leads) = *known.get(session.draw.below(known.len()))?;
    let reach = within(session, pair, key, &leads)?;
    if session.keys.judge(&reach).0 == Verdict::Never {
        // A denied access takes the connection down: enough of that is done on purpose.
        return None;
    }
    access_at(session, &reach)
}

/// A legal access through a key.
fn within(session: &mut Session<'_>, via: usize, key: u32, leads: &Leads) -> Option<Reach> {
    let rights: Vec<_> = RIGHTS
        .into_iter()
        .filter(|&right| leads.access.contains(right))
        .collect();
    let right = *rights.get(session.draw.below(rights.len()))?;
    let sizes = session.endpoints[peer(via)].sizes;
    let max = leads.len.min(BACK.len());
    let mut len = sizes.length(&mut session.draw, max).max(1);
    let mut offset = session.draw.below(leads.len - len + 1) as u64;
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

/// Attempts an access that must be denied.
pub(super) fn access_wrongly(session: &mut Session<'_>, pair: usize) -> Option<()> {
    if !session.is_healthy(pair) {
        return None;
    }
    let known: Vec<_> = session.keys.known().collect();
    let of_known = known.get(session.draw.below(known.len())).copied();
    let (key, leads) = match session.draw.below(3) {
        0 => *session.dead.get(session.draw.below(session.dead.len()))?,
        _ => of_known?,
    };
    let mut reach = within(session, leads.via, key, &leads)?;
    reach.via = pair;
    if leads.via == pair {
        match session.draw.below(4) {
            0 => reach.addr = leads.iova + leads.len as u64 - reach.len as u64 + 1,
            1 => reach.addr = leads.iova.wrapping_sub(1),
            2 => reach.right = *session.draw.pick(&RIGHTS),
            _ => {}
        }
    }
    if reach.right == Access::REMOTE_ATOMIC {
        (reach.addr, reach.len) = (reach.addr & !7, 8);
    }
    if session.keys.judge(&reach).0 != Verdict::Never {
        return None;
    }
    access_at(session, &reach)?;
    session.wrong[pair] = true;
    Some(())
}

fn access_at(session: &mut Session<'_>, reach: &Reach) -> Option<()> {
    let &Reach { key, via, len, .. } = reach;
    let at = peer(via);
    let waits = session.endpoints[at].sends.iter().any(|sent| {
        let action = session.actions.get(&sent.what.seq);
        matches!(action, Some(Action::Reach { reads: true, .. }))
    });
    let reads = reach.right != Access::REMOTE_WRITE;
    if reads && waits {
        // There is room for one result.
        return None;
    }
    let (verdict, range) = session.keys.judge(reach);
    let leads_in = verdict != Verdict::Never;
    let remote = Remote {
        addr: reach.addr,
        rkey: RKey::new(key),
    };
    session.seq += 1;
    let seq = session.seq;
    let lane = via as u64;
    let (op, opcode, data, written) = match reach.right {
        Access::REMOTE_WRITE => {
            let mut bytes = vec![0; len];
            session.draw.fill(&mut bytes);
            let (op, data) = (SendOp::Write(remote), Data::Bytes(bytes.clone()));
            (op, WcOpcode::RdmaWrite, data, Some(bytes))
        }
        Access::REMOTE_READ => {
            let data = Data::Into(BACK.start..BACK.start + len);
            (SendOp::Read(remote), WcOpcode::RdmaRead, data, None)
        }
        _ => {
            let add = session.draw.number();
            let op = SendOp::FetchAdd { remote, add };
            let now = leads_in.then(|| session.shown.model.predict(lane, range.clone()));
            let sum = now.map(|now| number(&now).wrapping_add(add));
            let data = Data::Into(BACK.start..BACK.start + 8);
            let written = sum.map(|sum| sum.to_ne_bytes().to_vec());
            (op, WcOpcode::FetchAdd, data, written)
        }
    };
    let read = (reads && leads_in).then(|| session.shown.model.read(lane, range.clone()));
    let pending = PendingWr {
        op,
        dest: Dest::Peer,
        operation: row(session, key),
        data,
        seq,
        to: holder(via),
        receives: false,
        fenced: false,
        read,
        seen: session.seen(),
    };
    session.endpoints[at].post(session.world, &mut session.draw, pending)?;
    if leads_in {
        expect(session, via, seq, reads.then_some(len), &range, written);
    }
    let action = Action::Reach {
        key,
        verdict,
        opcode,
        reads,
    };
    session.actions.insert(seq, action);
    Some(())
}

/// Enters an access into the models of memory.
fn expect(
    session: &mut Session<'_>,
    via: usize,
    seq: u64,
    result: Option<usize>,
    range: &Range<usize>,
    written: Option<Vec<u8>>,
) {
    let (lane, endpoint) = (via as u64, &mut session.endpoints[peer(via)]);
    if let Some(len) = result {
        endpoint.region.model.lend(lane, seq, BACK.start, len);
    }
    let Some(written) = written else { return };
    if result.is_none() {
        // A WRITE may take effect before READs that were posted earlier.
        let overtake = |read: &mut Read| read.overtake(range.start, &written);
        let reads = endpoint.sends.iter_mut().filter_map(|sent| {
            let (_, read) = sent.what.read.as_mut()?;
            Some(read)
        });
        reads.for_each(overtake);
    }
    session.shown.model.write(lane, seq, range.start, written);
}

/// The row of the table for accesses by a key.
fn row(session: &mut Session<'_>, key: u32) -> Operation {
    let windows = session.objects.windows.iter().flatten();
    let mut of_key = windows.filter(|window| window.mw.rkey().index() == key >> 8);
    let fast = session.objects.fast.as_ref();
    match of_key.next().map(|window| window.mw.window_type()) {
        Some(WindowType::One) => Operation::WindowOne,
        Some(WindowType::TwoA) => Operation::WindowTwoA,
        Some(WindowType::TwoB) => Operation::WindowTwoB,
        None if fast.is_some_and(|fast| fast.mr.rkey().index() == key >> 8) => Operation::FastKey,
        None => Operation::PoolKey,
    }
}

/// Invalidates a key by a SEND.
pub(super) fn invalidate(session: &mut Session<'_>, pair: usize) -> Option<()> {
    if !session.is_healthy(pair) {
        return None;
    }
    let all = session.objects.invalidable(pair);
    let (whose, key) = *all.get(session.draw.below(all.len()))?;
    let fenced = session.draw.chance(Ppm::percent(50));
    send(session, pair, key, Some((whose, fenced)), Action::SendInv)?;
    session.keys.going_behind(key, pair);
    if !fenced {
        weaken_reads(session, key);
    }
    match whose {
        Whose::Window(slot) => session.objects.window(slot)?.busy = true,
        Whose::Fast => session.objects.fast.as_mut()?.busy = true,
    }
    Some(())
}

/// Invalidates a key by a SEND that may not do so.
pub(super) fn invalidate_wrongly(session: &mut Session<'_>, pair: usize) -> Option<()> {
    if !session.is_healthy(pair) {
        return None;
    }
    let key = match session.draw.below(4) {
        0 => session.shown.mr.as_ref()?.rkey().value(),
        1 => {
            // Invalidating a key that has ended already is no error while it has no successor.
            let (key, _) = *session.dead.get(session.draw.below(session.dead.len()))?;
            let succeeds =
                |(valid, _)| session.keys.is_valid(valid) && valid >> 8 == key >> 8 && valid != key;
            let succeeded = session.keys.known().any(succeeds);
            (succeeded && row(session, key) != Operation::PoolKey).then_some(key)?
        }
        2 => {
            let other = session.objects.invalidable((pair + 1) % PAIRS);
            other.get(session.draw.below(other.len()))?.1
        }
        _ => {
            let mut windows = session.objects.windows.iter().flatten();
            let first = windows.find(|window| window.mw.window_type() == WindowType::One);
            first?.mw.rkey().value()
        }
    };
    let is_known = session.keys.known().any(|(known, _)| known == key);
    let other_pair = session
        .keys
        .known()
        .any(|(known, leads)| known == key && leads.via != pair && session.keys.is_valid(known));
    let is_first = session.objects.windows.iter().flatten().any(|window| {
        window.mw.window_type() == WindowType::One && window.mw.rkey().value() == key
    });
    if is_known && !other_pair && !is_first {
        return None;
    }
    send(session, pair, key, None, Action::Wrong { legal: &[] })?;
    session.wrong[pair] = true;
    Some(())
}

/// A SEND that ends the key was posted without a fence behind READs. If one of their responses is lost, they are
/// requested again, and the key may be invalid by then (IBTA vol. 1, 10.8.3.3 lets only a fence order the two). The
/// responder does not answer that, or refuses it.
fn weaken_reads(session: &mut Session<'_>, key: u32) {
    let is_read = |opcode: &WcOpcode| *opcode == WcOpcode::RdmaRead;
    change::weaken(session, key, is_read);
}

/// Posts a SEND with invalidate; `whose` is the key's owner and whether the SEND is fenced, `None` if no SEND may
/// end the key.
fn send(
    session: &mut Session<'_>,
    pair: usize,
    key: u32,
    whose: Option<(Whose, bool)>,
    action: Action,
) -> Option<()> {
    let endpoint = &mut session.endpoints[peer(pair)];
    let len = endpoint.sizes.length(&mut session.draw, MESSAGE_MAX);
    let tag = endpoint.next_tag();
    session.seq += 1;
    let (seq, seen) = (session.seq, session.seen());
    let pending = PendingWr {
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
    let endpoint = &mut session.endpoints[peer(pair)];
    endpoint.post(session.world, &mut session.draw, pending)?;
    session.told[pair].push_back(Told {
        seq,
        tag,
        len,
        key,
        whose: whose.map(|(whose, _)| whose),
        confirmed: false,
        seen,
    });
    session.actions.insert(seq, action);
    if session.draw.chance(Ppm::percent(70)) {
        session.post_receives(pair);
    }
    Some(())
}
