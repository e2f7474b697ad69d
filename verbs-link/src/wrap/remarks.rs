//! What a link tells another one about a packet.

use verbs_core::sync::Arc;
use verbs_core::sync::atomic::{AtomicU8, Ordering::Relaxed};

const LOST: u8 = 1;
const REPEATED: u8 = 2;
const HELD: u8 = 4;
const DAMAGED: u8 = 8;

/// What a [`Faulty`](crate::Faulty) link does to the packet that it was handed last, for the
/// [`Captured`](crate::Captured) link that it is around. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Remarks(Arc<AtomicU8>);

impl Remarks {
    pub(super) fn tell(&self, fate: Fate) {
        let bits = match fate {
            Fate { is_lost: true, .. } => LOST,
            Fate { is_held: true, .. } => HELD,
            Fate { is_repeated, .. } => u8::from(is_repeated) * REPEATED,
        };
        let is_damaged = fate.is_changed && !fate.is_lost;
        // One thread at a time has the links.
        self.0
            .store(bits | (u8::from(is_damaged) * DAMAGED), Relaxed);
    }

    /// What was told since the last call, in words; empty if nothing was.
    pub(super) fn take(&self) -> String {
        let bits = self.0.swap(0, Relaxed);
        let words = [
            (LOST, "lost"),
            (REPEATED, "repeated"),
            (HELD, "held back"),
            (DAMAGED, "damaged"),
        ];
        let met: Vec<_> = words
            .into_iter()
            .filter(|(bit, _)| bits & bit != 0)
            .map(|(_, word)| word)
            .collect();
        match met.is_empty() {
            true => String::new(),
            false => format!("{} on purpose", met.join(", ")),
        }
    }
}

/// The faults that a packet meets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    pub(super) is_lost: bool,
    pub(super) is_repeated: bool,
    pub(super) is_held: bool,
    pub(super) is_changed: bool,
}
