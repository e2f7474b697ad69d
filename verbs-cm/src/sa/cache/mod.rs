//! Paths that are kept until something changes.

pub(super) mod kept;

use std::fmt;

use futures::FutureExt;
use futures::future::WeakShared;
use verbs_core::mad::sa::PathRecord;
use verbs_core::mad::sm::TrapNumber;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Gid, PKey};

use self::kept::{Asking, Kept, Key};
use crate::sa::SaClient;
use crate::sa::notice::Subscription;
use crate::sa::path::PathQuery;
use crate::step::Step;

pub use self::kept::PATHS_MAX;

/// Keeps paths until the port or the subnet's manager changes. A task that asks for a path that is being asked
/// for waits for the same answer. Failures are not kept.
#[derive(Clone)]
pub struct PathCache {
    client: SaClient,
    kept: Arc<Kept>,
    /// Where the administrator is to report ports that have gone.
    watching: Arc<Mutex<Option<Subscription>>>,
}

impl PathCache {
    /// Keeps what that client's administrator answers.
    pub fn new(client: &SaClient) -> Self {
        let kept = Arc::<Kept>::default();
        client.core.state.lock().caches.push(Arc::downgrade(&kept));
        Self {
            client: client.clone(),
            kept,
            watching: Arc::default(),
        }
    }

    /// A path that is known. Never waits, and sends nothing.
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
            let before = cache.watching.lock().replace(subscription);
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

impl fmt::Debug for PathCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathCache")
            .field("paths", &self.len())
            .finish_non_exhaustive()
    }
}
