//! Paths that are kept until something changes.

use std::collections::BTreeMap;
use std::fmt;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use verbs_core::mad::sa::PathRecord;
use verbs_core::mad::sm::TrapNumber;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Gid, PKey};

use crate::error::Error;
use crate::sa::SaClient;
use crate::sa::notice::Subscription;
use crate::sa::path::PathQuery;
use crate::step::Step;

/// Paths that are kept at most; with more, all are forgotten.
pub const PATHS_MAX: usize = 4096;

/// From which GID of this port, to which, in which partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(Gid, Gid, u16);

type Asking = Shared<BoxFuture<'static, Result<PathRecord, Error>>>;

/// Keeps paths until the port or the subnet's manager changes. Who asks for a path that is being asked
/// for waits for the same answer. Failures are not kept.
#[derive(Clone)]
pub struct PathCache {
    client: SaClient,
    kept: Arc<Kept>,
}

/// What is kept.
#[derive(Default)]
pub(super) struct Kept {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    paths: BTreeMap<Key, PathRecord>,
    asking: BTreeMap<Key, WeakShared<BoxFuture<'static, Result<PathRecord, Error>>>>,
    /// Counts invalidations, so that an answer from before one is not kept after it.
    generation: u64,
    watching: Option<Subscription>,
}

impl PathCache {
    /// Keeps what that client's administrator answers.
    pub fn new(client: &SaClient) -> Self {
        let kept = Arc::<Kept>::default();
        client.core.state.lock().caches.push(Arc::downgrade(&kept));
        Self {
            client: client.clone(),
            kept,
        }
    }

    /// A path that is known. Never waits, and asks nobody.
    pub fn get(&self, from: Gid, to: Gid, pkey: PKey) -> Option<PathRecord> {
        let inner = self.kept.inner.lock();
        inner.paths.get(&Key(from, to, pkey.0)).copied()
    }

    /// A path: the one that is known, or what the administrator says.
    ///
    /// # Errors
    /// As [`SaClient::path`].
    pub fn path(&self, from: Gid, to: Gid, pkey: PKey) -> Step<PathRecord> {
        let cache = self.clone();
        Step::new(async move {
            match cache.get(from, to, pkey) {
                Some(path) => Ok(path),
                None => cache.ask(Key(from, to, pkey.0)).await,
            }
        })
    }

    /// From now on, also forgets paths to ports that the administrator reports to have gone.
    ///
    /// # Errors
    /// As [`SaClient::subscribe`].
    pub fn watch(&self) -> Step<()> {
        let cache = self.clone();
        Step::new(async move {
            let subscribing = cache.client.subscribe(TrapNumber::GID_OUT_OF_SERVICE);
            let subscription = subscribing.await?;
            let kept = Arc::downgrade(&cache.kept);
            subscription.on_notice(move |notice| {
                if let (Some(kept), Some(gid)) = (kept.upgrade(), notice.gid()) {
                    kept.forget(gid);
                }
            });
            let before = cache.kept.inner.lock().watching.replace(subscription);
            drop(before);
            Ok(())
        })
    }

    /// Forgets all paths.
    pub fn invalidate(&self) {
        self.kept.invalidate();
    }

    /// Forgets the paths to a port.
    pub fn forget(&self, to: Gid) {
        self.kept.forget(to);
    }

    /// Paths that are kept.
    pub fn len(&self) -> usize {
        self.kept.inner.lock().paths.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The question that is under way, or a new one.
    fn ask(&self, key: Key) -> Asking {
        let mut inner = self.kept.inner.lock();
        if let Some(asking) = inner.asking.get(&key).and_then(WeakShared::upgrade) {
            return asking;
        }
        let Key(from, to, pkey) = key;
        let query = PathQuery::to_gid(to).from_gid(from).pkey(PKey(pkey));
        let answer = self.client.path(query).into_future();
        let generation = inner.generation;
        let kept = Arc::downgrade(&self.kept);
        let asking = async move {
            let answer = answer.await;
            if let Some(kept) = kept.upgrade() {
                kept.answered(key, generation, &answer);
            }
            answer
        };
        let asking = asking.boxed().shared();
        if let Some(weak) = asking.downgrade() {
            inner.asking.insert(key, weak);
        }
        asking
    }
}

impl Kept {
    fn answered(&self, key: Key, generation: u64, answer: &Result<PathRecord, Error>) {
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

    pub(super) fn invalidate(&self) {
        let mut inner = self.inner.lock();
        inner.generation += 1;
        inner.paths.clear();
        let gone = std::mem::take(&mut inner.asking);
        drop(inner);
        drop(gone);
    }

    fn forget(&self, to: Gid) {
        let mut inner = self.inner.lock();
        inner.paths.retain(|key, _| key.1 != to);
    }
}

impl fmt::Debug for PathCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathCache")
            .field("paths", &self.len())
            .finish_non_exhaustive()
    }
}
