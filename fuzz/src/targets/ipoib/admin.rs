//! An administrator of a network without LIDs, which refuses when the script says so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use futures::future::{BoxFuture, ready};
use ulp_ipoib::{Administration, Membership};
use verbs_cm::Error;
use verbs_cm::sa::{Change, Join, PathQuery, SaError};
use verbs_core::mad::Bits;
use verbs_core::mad::sa::{McMemberRecord, PathRecord, SaStatus};
use verbs_core::{Gid, Lid, Mtu, PKey, QKey};

/// The Q_Key of all groups.
pub(super) const KEY: QKey = QKey(0x0b1c);

type Handler = Arc<dyn Fn(&Change) + Send + Sync>;

#[derive(Default)]
pub(super) struct Admin {
    refuses: AtomicBool,
    members: Arc<AtomicUsize>,
    handlers: Arc<Mutex<BTreeMap<u64, Handler>>>,
    next: AtomicUsize,
}

impl Admin {
    /// Paths and groups are refused from now on, or not.
    pub(super) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Relaxed);
    }

    /// How many memberships exist.
    pub(super) fn members(&self) -> usize {
        self.members.load(Relaxed)
    }

    /// All members have joined again.
    pub(super) fn restart(&self) {
        let handlers: Vec<Handler> = {
            let handlers = self.handlers.lock().expect("nobody panics with it");
            handlers.values().map(Arc::clone).collect()
        };
        for handler in handlers {
            handler(&Change::Renewed);
        }
    }
}

impl Administration for Admin {
    fn path(&self, query: PathQuery) -> BoxFuture<'static, Result<PathRecord, Error>> {
        if self.refuses.load(Relaxed) {
            return Box::pin(ready(Err(SaError::Refused(SaStatus::NoRecords).into())));
        }
        let (asked, _) = query.parts();
        let record = PathRecord {
            hop_limit: 64,
            mtu: Bits::truncated(Mtu::B2048 as u32),
            packet_lifetime: Bits::truncated(10),
            ..asked
        };
        Box::pin(ready(Ok(record)))
    }

    fn join(&self, join: Join) -> BoxFuture<'static, Result<Box<dyn Membership>, Error>> {
        let (asked, _) = join.parts();
        if self.refuses.load(Relaxed) {
            return Box::pin(ready(Err(SaError::Refused(SaStatus::NoRecords).into())));
        }
        self.members.fetch_add(1, Relaxed);
        let member: Box<dyn Membership> = Box::new(Member {
            mgid: asked.mgid,
            members: Arc::clone(&self.members),
            handlers: Arc::clone(&self.handlers),
            number: self.next.fetch_add(1, Relaxed) as u64,
        });
        Box::pin(ready(Ok(member)))
    }
}

struct Member {
    mgid: Gid,
    members: Arc<AtomicUsize>,
    handlers: Arc<Mutex<BTreeMap<u64, Handler>>>,
    number: u64,
}

impl Membership for Member {
    fn record(&self) -> McMemberRecord {
        McMemberRecord {
            mgid: self.mgid,
            pkey: PKey::DEFAULT,
            qkey: KEY,
            mlid: Lid(0),
            mtu: Bits::truncated(Mtu::B2048 as u32),
            hop_limit: 64,
            ..McMemberRecord::default()
        }
    }

    fn on_change(&mut self, handler: Box<dyn Fn(&Change) + Send + Sync>) {
        let mut handlers = self.handlers.lock().expect("nobody panics with it");
        handlers.insert(self.number, Arc::from(handler));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.members.fetch_sub(1, Relaxed);
        let mut handlers = self.handlers.lock().expect("nobody panics with it");
        let handler = handlers.remove(&self.number);
        drop(handlers);
        drop(handler);
    }
}
