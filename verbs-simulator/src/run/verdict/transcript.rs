//! The data by which two runs are compared.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip128::{Hasher128, SipHasher24};
use verbs_core::Wc;

/// How long the run waits after each step, so that everything ends: longer than any retry takes.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);
/// Sessions that are compared, one after the other.
pub(crate) const SESSIONS: u64 = 4;

/// A queue: the session, the end, the connection (none for shared receives), and whether it is for receives.
type Name = (u64, usize, Option<usize>, bool);

/// What happened, as far as two runs must agree on it: completions by queue, and bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Transcript {
    queues: BTreeMap<Name, Vec<String>>,
    memories: Vec<u128>,
    pub(crate) session: u64,
}

impl Transcript {
    /// A completion. Fields that are only meaningful for a success are left out for failures.
    pub(crate) fn completion(&mut self, end: usize, conn: Option<usize>, receive: bool, wc: &Wc) {
        let name = (self.session, end, conn, receive);
        let (ok, id) = (wc.is_ok(), wc.wr_id);
        let line = match ok {
            true => format!("{id:#x} {} {} {:?}", wc.opcode, wc.byte_len, wc.immediate()),
            false => format!("{id:#x} {}", wc.status),
        };
        self.queues.entry(name).or_default().push(line);
    }

    /// All bytes of a region, at the end.
    pub(crate) fn memory(&mut self, bytes: &[u8]) {
        let mut hasher = SipHasher24::new();
        hasher.write(bytes);
        self.memories.push(hasher.finish128().as_u128());
    }

    pub(crate) fn completions(&self) -> usize {
        self.queues.values().map(Vec::len).sum()
    }

    /// The first difference.
    pub(crate) fn differs(&self, other: &Self) -> Option<String> {
        let names = self.queues.keys().chain(other.queues.keys());
        for name in names {
            let none = Vec::new();
            let mine = self.queues.get(name).unwrap_or(&none);
            let theirs = other.queues.get(name).unwrap_or(&none);
            let longer = mine.len().max(theirs.len());
            for at in 0..longer {
                let (mine, theirs) = (mine.get(at), theirs.get(at));
                if mine != theirs {
                    let (session, end, conn, receive) = name;
                    let kind = if *receive { "receives" } else { "sends" };
                    return Some(format!(
                        "session {session}, end {end}, connection {conn:?}, {kind}: completion {at} is {mine:?} as packets and {theirs:?} directly"
                    ));
                }
            }
        }
        let differ = self.memories != other.memories;
        differ.then(|| "the bytes in memory differ".to_owned())
    }
}
