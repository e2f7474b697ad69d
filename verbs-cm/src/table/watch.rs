//! Whether peers of established connections are still there.
//!
//! A process that dies sends no DREQ. Its socket goes with it, and its host refuses what comes afterwards (ICMP port
//! unreachable), so something has to be sent to a peer that is silent. Each address of a peer is asked about one of its
//! connections at a time, in turn, since all of them end together:
//!
//! - the side that was asked for the connection repeats its REP, which the peer confirms again (IBTA vol. 1, 12.9.8.3);
//! - the side that asked offers an alternate path (LAP), which a port of RoCE declines (APR).
//!
//! Neither changes anything at a peer that has the connection. One that has been started again at the same address says
//! that it does not know it, and then the next connection is asked about at once.
//!
//! A report of a refusal is a hint, which a host that sees the datagrams can forge. A peer is gone when several questions in
//! a row were refused, with nothing from its address in between. Silence means nothing, unless [`Watch::silence`] says
//! otherwise: a process may be stopped, and not every peer answers these questions. Only one that has answered before is
//! expected to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use verbs_core::addr::Gid;
use verbs_core::mad::TransactionId;
use verbs_core::time::Instant;

use crate::config::Watch;
use crate::machine::question::Question;

/// After a refusal the next question goes out that much later.
const REFUSED_PAUSE: Duration = Duration::from_millis(250);
/// So many questions in a row have to be refused, over that time at least.
const REFUSALS: u32 = 3;
const REFUSED_TIME: Duration = Duration::from_millis(500);
/// At least so many questions have to be without an answer, whatever the time that a peer may be silent.
const UNANSWERED: u32 = 3;

/// The question that a peer was asked last.
#[derive(Clone, Copy, Debug)]
struct Asked {
    slot: usize,
    tid: TransactionId,
    question: Question,
    /// One question may be reported twice.
    was_refused: bool,
}

/// A peer's address.
#[derive(Debug)]
struct Neighbour {
    /// The established connections with it.
    conns: BTreeSet<usize>,
    due: Instant,
    asked: Option<Asked>,
    /// Since something has come from it: the first refusal, and how many there were.
    refused: Option<(Instant, u32)>,
    /// The first question that it did not answer, of a kind that it has answered before, and how many there were.
    unanswered: Option<(Instant, u32)>,
    /// By kind of question.
    answers: [bool; 2],
}

/// What is known of all peers' addresses. Empty as long as nothing is watched.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    all: BTreeMap<Gid, Neighbour>,
    due: BTreeSet<(Instant, Gid)>,
    /// The address that an established connection is with, by slot.
    of: BTreeMap<usize, Gid>,
}

impl Neighbours {
    /// A connection is established with that peer, or with none any longer.
    pub(super) fn settle(&mut self, slot: usize, peer: Option<Gid>, due: Instant) {
        let before = self.of.get(&slot).copied();
        if before == peer {
            return;
        }
        if let Some(gid) = before {
            self.of.remove(&slot);
            self.part(slot, gid);
        }
        if let Some(gid) = peer {
            self.of.insert(slot, gid);
            let neighbour = self.all.entry(gid).or_insert_with(|| {
                self.due.insert((due, gid));
                Neighbour {
                    conns: BTreeSet::new(),
                    due,
                    asked: None,
                    refused: None,
                    unanswered: None,
                    answers: [false; 2],
                }
            });
            neighbour.conns.insert(slot);
        }
    }

    fn part(&mut self, slot: usize, gid: Gid) {
        let Some(neighbour) = self.all.get_mut(&gid) else {
            return;
        };
        neighbour.conns.remove(&slot);
        if neighbour.asked.is_some_and(|asked| asked.slot == slot) {
            neighbour.asked = None;
        }
        if neighbour.conns.is_empty() {
            self.due.remove(&(neighbour.due, gid));
            self.all.remove(&gid);
        }
    }

    /// Something has come from that address. The connection that it was asked about.
    pub(super) fn heard(&mut self, from: Gid) -> Option<usize> {
        let neighbour = self.all.get_mut(&from)?;
        (neighbour.refused, neighbour.unanswered) = (None, None);
        Some(neighbour.asked?.slot)
    }

    /// The peer of that connection has answered the question about it.
    pub(super) fn answered(&mut self, slot: usize) {
        let gid = self.of.get(&slot);
        let Some(neighbour) = gid.and_then(|gid| self.all.get_mut(gid)) else {
            return;
        };
        if let Some(asked) = neighbour.asked {
            neighbour.answers[asked.question as usize] = true;
        }
    }

    /// The network reports a message as refused. Whether it was the question, and whether the peer is gone with it.
    pub(super) fn refused(&mut self, now: Instant, to: Gid, tid: TransactionId) -> Option<bool> {
        let neighbour = self.all.get_mut(&to)?;
        let asked = neighbour.asked.as_mut().filter(|asked| asked.tid == tid)?;
        if std::mem::replace(&mut asked.was_refused, true) {
            return None;
        }
        let (since, count) = neighbour.refused.get_or_insert((now, 0));
        *count += 1;
        let is_gone = *count >= REFUSALS && now.since(*since) >= REFUSED_TIME;
        self.ask_at(to, now + REFUSED_PAUSE);
        Some(is_gone)
    }

    /// The next question to that address goes out then.
    pub(super) fn ask_at(&mut self, gid: Gid, due: Instant) {
        if let Some(neighbour) = self.all.get_mut(&gid) {
            self.due.remove(&(neighbour.due, gid));
            self.due.insert((due, gid));
            neighbour.due = due;
        }
    }

    /// When the next question is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|&(due, _)| due)
    }

    /// An address that is to be asked now.
    pub(super) fn due(&self, now: Instant) -> Option<Gid> {
        let first = self.due.first().filter(|first| first.0 <= now);
        first.map(|&(_, gid)| gid)
    }

    /// The address that a connection is with.
    pub(super) fn address(&self, slot: usize) -> Option<Gid> {
        self.of.get(&slot).copied()
    }

    /// Whether that address has been silent for too long.
    pub(super) fn is_silent(&self, gid: Gid, now: Instant, watch: &Watch) -> bool {
        let neighbour = self.all.get(&gid);
        neighbour.is_some_and(|neighbour| neighbour.is_silent(now, watch))
    }

    /// The connection that the next question to that address is about.
    pub(super) fn next(&self, gid: Gid) -> Option<usize> {
        self.all.get(&gid)?.next()
    }

    /// The question has left.
    pub(super) fn asked(
        &mut self,
        gid: Gid,
        now: Instant,
        slot: usize,
        question: Question,
        tid: TransactionId,
    ) {
        let Some(neighbour) = self.all.get_mut(&gid) else {
            return;
        };
        if neighbour.answers[question as usize] {
            let (_, count) = neighbour.unanswered.get_or_insert((now, 0));
            *count += 1;
        }
        neighbour.asked = Some(Asked {
            slot,
            tid,
            question,
            was_refused: false,
        });
    }

    /// The established connections with that address.
    pub(super) fn conns(&self, gid: Gid) -> Vec<usize> {
        let neighbour = self.all.get(&gid);
        neighbour.map_or_else(Vec::new, |neighbour| {
            neighbour.conns.iter().copied().collect()
        })
    }
}

impl Neighbour {
    /// The connection that the next question is about.
    fn next(&self) -> Option<usize> {
        let last = self.asked.map(|asked| asked.slot);
        let after = last.and_then(|last| self.conns.range(last + 1..).next());
        after.or_else(|| self.conns.first()).copied()
    }

    /// Whether it has been silent for too long.
    fn is_silent(&self, now: Instant, watch: &Watch) -> bool {
        let too_long = |(since, count)| {
            watch
                .silence
                .is_some_and(|silence| count >= UNANSWERED && now.since(since) >= silence)
        };
        self.unanswered.is_some_and(too_long)
    }
}
