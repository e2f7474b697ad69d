//! What a cache of paths keeps, without what it asks with.

use std::collections::BTreeMap;

use futures::future::{BoxFuture, Shared, WeakShared};
use verbs_core::Gid;
use verbs_core::mad::sa::PathRecord;
use verbs_core::sync::Mutex;

use crate::error::Error;

/// Paths that are kept at most; with more, all are forgotten.
pub const PATHS_MAX: usize = 4096;

/// From which GID of this port, to which, in which partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(pub(super) Gid, pub(super) Gid, pub(super) u16);

pub(super) type Asking = Shared<BoxFuture<'static, Result<PathRecord, Error>>>;

/// What is kept.
#[derive(Default)]
pub(in crate::sa) struct Kept {
    pub(super) inner: Mutex<Inner>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) paths: BTreeMap<Key, PathRecord>,
    pub(super) asking: BTreeMap<Key, WeakShared<BoxFuture<'static, Result<PathRecord, Error>>>>,
    /// Counts invalidations, so that an answer from before one is not kept after it.
    pub(super) generation: u64,
}

impl Kept {
    pub(super) fn answered(&self, key: Key, generation: u64, answer: &Result<PathRecord, Error>) {
        let mut inner = self.inner.lock();
        if inner.generation != generation {
            return;
        }
        let gone = inner.asking.remove(&key);
        if let Ok(path) = answer {
            if inner.paths.len() >= PATHS_MAX {
                inner.paths.clear();
            }
            inner.paths.insert(key, *path);
        }
        drop(inner);
        drop(gone);
    }

    pub(in crate::sa) fn invalidate(&self) {
        let mut inner = self.inner.lock();
        inner.generation += 1;
        inner.paths.clear();
        let gone = std::mem::take(&mut inner.asking);
        drop(inner);
        drop(gone);
    }

    pub(super) fn forget(&self, to: Gid) {
        let mut inner = self.inner.lock();
        inner.paths.retain(|key, _| key.1 != to);
    }
}
