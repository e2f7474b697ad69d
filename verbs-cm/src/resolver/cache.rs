//! Answers that are kept until something changes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use verbs_core::mad::PortInfo;
use verbs_core::sync::{Arc, Mutex};

use crate::error::Error;
use crate::resolver::{Hop, Query, Resolver};

/// Ways that are kept at most; with more, all are forgotten.
pub const CACHE_MAX: usize = 1024;

type Key = (u8, Option<IpAddr>, IpAddr);

/// Keeps the answers of another resolver until the port's addresses or its link change. Failures are
/// not kept.
#[derive(Debug)]
pub struct Cached<R> {
    inner: R,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    ways: BTreeMap<Key, Hop>,
    /// Counts invalidations, so that an answer from before one is not kept after it.
    generation: u64,
}

impl<R: Resolver> Cached<R> {
    /// Keeps what `inner` answers.
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            kept: Arc::default(),
        }
    }

    /// Ways that are kept.
    pub fn len(&self) -> usize {
        self.kept.lock().ways.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<R: Resolver> Resolver for Cached<R> {
    fn resolve(&self, query: Query) -> BoxFuture<'static, Result<Hop, Error>> {
        let key = (query.port.number, query.local, query.remote);
        let generation = {
            let kept = self.kept.lock();
            if let Some(&hop) = kept.ways.get(&key) {
                return future::ready(Ok(hop)).boxed();
            }
            kept.generation
        };
        let kept = Arc::clone(&self.kept);
        let answer = self.inner.resolve(query);
        async move {
            let hop = answer.await?;
            let mut kept = kept.lock();
            if kept.generation == generation {
                if kept.ways.len() >= CACHE_MAX {
                    kept.ways.clear();
                }
                kept.ways.insert(key, hop);
            }
            Ok(hop)
        }
        .boxed()
    }

    fn is_local(&self, addr: IpAddr, port: &PortInfo) -> bool {
        self.inner.is_local(addr, port)
    }

    fn lookup(&self, name: &str) -> Option<IpAddr> {
        self.inner.lookup(name)
    }

    fn invalidate(&self) {
        let mut kept = self.kept.lock();
        kept.generation += 1;
        kept.ways.clear();
        drop(kept);
        self.inner.invalidate();
    }
}
