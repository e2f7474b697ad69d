//! Memory that peers may reach: keys of a pool of fast memory regions where the device has one, and registrations
//! otherwise.
//!
//! A pool's keys are mapped by a direct call. A mapping that has ended leaves its key valid until a flush, which makes all such
//! keys invalid at once; Linux's RDS does the same with its pools. A mapping that is to be invalid at once is flushed when it
//! ends, another one with those after it.

use futures::channel::oneshot;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{
    Access, DeviceAttr, Error, Extent, Fmr, FmrPool, FmrPoolAttr, Layout, Memory, Mr, Pd, Raise,
};

use crate::wire::Cookie;

/// Rights of peers.
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
/// Pages of a mapping from the pool: 1 MiB that begins anywhere in a page, as the larger one of Linux's pools has them.
const PAGES: u32 = 257;

type Told = oneshot::Sender<Result<(), Error>>;

/// The pool of a node.
pub(crate) struct Maps {
    keys: u32,
    pages: u32,
    /// Locked for a few steps, under NoBlock.
    pool: Mutex<Pool>,
}

/// Made for the first mapping.
enum Pool {
    Untried,
    Absent,
    There(Box<Keys>),
}

struct Keys {
    pool: FmrPool,
    /// The memory of mappings that have ended since the last flush, which peers may still reach.
    ended: Vec<Arc<Memory>>,
}

/// What a mapping holds.
pub(crate) enum Kept {
    Region(Mr),
    Pooled(Pooled),
}

/// A key of the pool; goes back when it is dropped.
pub(crate) struct Pooled {
    maps: Arc<Maps>,
    fmr: Option<Fmr>,
    memory: Arc<Memory>,
    /// Whether the key may stay valid until others are flushed.
    pub(crate) lazily: bool,
}

impl Maps {
    pub(crate) fn new(keys: u32, attr: &DeviceAttr) -> Self {
        Self {
            keys,
            pages: PAGES.min(attr.max_fast_reg_pages),
            pool: Mutex::new(Pool::Untried),
        }
    }

    /// Lets peers reach that memory.
    pub(crate) async fn map(
        self: &Arc<Self>,
        pd: &Pd,
        memory: &Arc<Memory>,
    ) -> Result<(Cookie, Kept), Error> {
        if self.is_there(pd).await
            && let Some((cookie, pooled)) = self.take(memory)
        {
            return Ok((cookie, Kept::Pooled(pooled)));
        }
        // Peers count from its first byte.
        let mr = pd.register(Arc::clone(memory), ACCESS).iova(0).await?;
        let (rkey, offset) = (mr.rkey(), 0);
        Ok((Cookie { rkey, offset }, Kept::Region(mr)))
    }

    /// Whether there is a pool; makes it if that was not tried.
    async fn is_there(&self, pd: &Pd) -> bool {
        match &*self.pool.lock() {
            Pool::Untried if self.keys > 0 && self.pages > 0 => {}
            pool => return matches!(pool, Pool::There(_)),
        }
        let attr = FmrPoolAttr::new(self.keys, self.pages, ACCESS);
        let made = match pd.create_fmr_pool(attr).await {
            Ok(pool) => Pool::There(Box::new(Keys {
                pool,
                ended: Vec::new(),
            })),
            Err(error) => {
                tracing::debug!(%error, "mappings come from no pool");
                Pool::Absent
            }
        };
        let mut pool = self.pool.lock();
        let is_first = matches!(*pool, Pool::Untried);
        // Two tasks may have made one; the second one is dropped when nothing is locked.
        let other = match is_first {
            true => std::mem::replace(&mut *pool, made),
            false => made,
        };
        let is_there = matches!(*pool, Pool::There(_));
        drop(pool);
        drop(other);
        is_there
    }

    /// A key of the pool for that memory, if one is free and it is not too long.
    fn take(self: &Arc<Self>, memory: &Arc<Memory>) -> Option<(Cookie, Pooled)> {
        let len = u32::try_from(memory.len()).ok()?;
        // A page's offset stays what it is.
        let offset = memory.addr() % u64::from(Layout::PAGE);
        let extent = Extent {
            memory,
            offset: 0,
            len,
        };
        let _level = Raise::new();
        let mut pool = self.pool.lock();
        let Pool::There(keys) = &mut *pool else {
            return None;
        };
        let fmr = match keys.pool.map_at([extent], offset) {
            Ok(fmr) => fmr,
            Err(error) => {
                tracing::debug!(%error, "a mapping comes from no pool");
                return None;
            }
        };
        let (rkey, offset) = (fmr.rkey, offset as u32);
        let pooled = Pooled {
            maps: Arc::clone(self),
            fmr: Some(fmr),
            memory: Arc::clone(memory),
            lazily: false,
        };
        Some((Cookie { rkey, offset }, pooled))
    }

    /// A mapping has ended: flushes, and tells so, or leaves that for later.
    fn give_back(&self, fmr: Fmr, memory: Arc<Memory>, lazily: bool, told: Option<Told>) {
        let _level = Raise::new();
        let mut pool = self.pool.lock();
        let Pool::There(keys) = &mut *pool else {
            return;
        };
        let is_due = keys.pool.unmap(fmr);
        keys.ended.push(memory);
        // A tenth, as in Linux.
        let are_many = keys.ended.len() > self.keys as usize / 10;
        let ended = (!lazily || is_due || are_many).then(|| keys.flush(told));
        drop(pool);
        drop(ended);
    }

    /// Makes the keys of mappings that have ended invalid.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        let (tell, told) = oneshot::channel();
        {
            let _level = Raise::new();
            let mut pool = self.pool.lock();
            let Pool::There(keys) = &mut *pool else {
                return Ok(());
            };
            let ended = keys.flush(Some(tell));
            drop(pool);
            drop(ended);
        }
        told.await.unwrap_or(Err(Error::Dropped))
    }
}

impl Keys {
    /// Begins a flush. What is returned is dropped where nothing is locked.
    fn flush(&mut self, told: Option<Told>) -> Vec<Arc<Memory>> {
        let _issued = self.pool.flush().issue(move |result| {
            if let Some(told) = told {
                // The task may be gone.
                let _ = told.send(result);
            }
        });
        std::mem::take(&mut self.ended)
    }
}

impl Pooled {
    /// Ends it, and waits until the key is invalid.
    pub(crate) async fn free(mut self) -> Result<(), Error> {
        let Some(fmr) = self.fmr.take() else {
            return Ok(());
        };
        let (tell, told) = oneshot::channel();
        let memory = Arc::clone(&self.memory);
        self.maps.give_back(fmr, memory, false, Some(tell));
        drop(self);
        told.await.unwrap_or(Err(Error::Dropped))
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(fmr) = self.fmr.take() {
            let memory = Arc::clone(&self.memory);
            self.maps.give_back(fmr, memory, self.lazily, None);
        }
    }
}
