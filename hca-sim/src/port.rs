//! A port: its addresses, its tables, and what it counts.

use std::fmt;

use verbs_core::mem::MrTable;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Gid, Guid, Lid, PKey, PortState};

use crate::engine::Engine;
use crate::link::Fabric;

/// One HCA's port.
pub(crate) struct Port {
    pub(crate) lid: Lid,
    pub(crate) guid: Guid,
    pub(crate) link: Arc<Fabric>,
    pub(crate) mrs: Arc<MrTable>,
    pub(crate) engine: Engine,
    pub(crate) counters: Counters,
    /// Taken alone or under the lock of the link; nothing is locked under it.
    sheet: Mutex<Sheet>,
    /// The HCA was removed.
    removed: AtomicBool,
}

/// What management changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sheet {
    /// The GID table's only entry.
    pub(crate) gid: Gid,
    /// The P_Key table's only entry.
    pub(crate) pkey: PKey,
    pub(crate) state: PortState,
    /// `PortInfo.CapabilityMask`, as clients have set it.
    pub(crate) capability_mask: u32,
}

/// What a port counts. Nothing here is counted where a message goes through as it should, so that
/// counting costs such a message nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) rnr_naks: Count,
    pub(crate) timeouts: Count,
    /// Requests that had come before.
    pub(crate) duplicates: Count,
    /// Requests before which something is missing.
    pub(crate) out_of_sequence: Count,
    /// Answers that say so, or that show it.
    pub(crate) sequence_naks: Count,
    pub(crate) remote_errors: Count,
    pub(crate) local_errors: Count,
    pub(crate) overruns: Count,
    pub(crate) link_downed: Count,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Port {
    /// A port in service, in the default partition.
    pub(crate) fn new(
        (lid, gid, guid): (Lid, Gid, Guid),
        link: Arc<Fabric>,
        mrs: Arc<MrTable>,
        engine: Engine,
    ) -> Self {
        let sheet = Sheet {
            gid,
            pkey: PKey::DEFAULT,
            state: PortState::Active,
            capability_mask: 0,
        };
        Self {
            lid,
            guid,
            link,
            mrs,
            engine,
            counters: Counters::default(),
            sheet: Mutex::new(sheet),
            removed: AtomicBool::new(false),
        }
    }

    pub(crate) fn sheet(&self) -> Sheet {
        *self.sheet.lock()
    }

    /// Changes the tables or the state; whether that made a difference is for `change` to say.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Sheet) -> T) -> T {
        change(&mut self.sheet.lock())
    }

    /// Whether messages can go from here to that port and back: both in service, in one partition.
    pub(crate) fn reaches(&self, other: &Self) -> bool {
        let (here, there) = (self.sheet(), other.sheet());
        here.state == PortState::Active
            && there.state == PortState::Active
            && here.pkey.matches(there.pkey)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Acquire)
    }

    pub(crate) fn set_removed(&self) {
        self.removed.store(true, Release);
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("lid", &self.lid)
            .field("sheet", &self.sheet())
            .finish_non_exhaustive()
    }
}
