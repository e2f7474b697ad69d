//! What the administrator keeps for this port: memberships, services, subscriptions.
//!
//! The administrator knows a port once, however many here have asked for the same. So users are counted:
//! the first is told to the administrator and all that follow too (they may say more), the last that
//! leaves is told. One request at a time goes out about one registration, so that a leave never
//! overtakes a join. When the subnet has another manager, or it asks for that, all is told again.

use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::channel::oneshot;
use verbs_core::Gid;
use verbs_core::mad::Retry;
use verbs_core::mad::sa::DATA_LEN;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::task::{self, OwnWaker};

use crate::error::Error;
use crate::sa::client::{Core, pause};
use crate::sa::error::SaError;
use crate::sa::record::{Question, Record};

/// Between attempts to renew a registration: at first, and at most.
const RENEW_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// Group, member, kind of membership.
    Group(Gid, Gid, u8),
    /// Number of the event.
    Trap(u16),
    /// Service, port, partition.
    Service(u64, Gid, u16),
}

/// What has become of a registration without the program's doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The administrator was told again, after the port or the subnet's manager had changed. What it
    /// keeps, for one the group's LID, may have changed too.
    Renewed,
    /// It could not be told, and is asked again and again.
    Lost(Error),
}

/// A registration.
pub(super) struct Held {
    key: Key,
    /// Its holder talks to the administrator about this registration.
    turn: futures::lock::Mutex<()>,
    inner: Mutex<Inner>,
}

struct Inner {
    users: usize,
    set: Question,
    undo: Question,
    retry: Retry,
    /// The administrator knows, or may.
    told: bool,
    /// What it has answered.
    record: [u8; DATA_LEN],
    watchers: Vec<(u64, Watcher)>,
    next_watcher: u64,
    change: Option<Change>,
    changes: u64,
    wakers: Vec<Waker>,
}

pub(super) type Watcher = Arc<dyn Fn(&Change) + Send + Sync>;

/// How to register, and how to end it.
pub(super) struct Terms {
    pub(super) key: Key,
    pub(super) set: Question,
    pub(super) undo: Question,
    /// Within what time it has to be told again.
    pub(super) period: Option<Duration>,
}

/// A user's share of a registration; the last one to go ends it.
pub(super) struct Hold {
    core: Arc<Core>,
    held: Arc<Held>,
    watcher: Option<u64>,
    seen: u64,
    is_over: bool,
}

impl Hold {
    /// Tells the administrator; dropped before the answer, takes it back.
    pub(super) async fn take(core: Arc<Core>, terms: Terms, retry: Retry) -> Result<Self, Error> {
        let hold = Self::enter(core, &terms, retry);
        let _turn = hold.held.turn.lock().await;
        let was_told = std::mem::replace(&mut hold.held.inner.lock().told, true);
        let asked = hold.core.ask(&terms.set, retry).await;
        let mut inner = hold.held.inner.lock();
        match asked {
            Ok(answer) => {
                inner.record = answer.bytes();
                // A member that says more can make again what has gone.
                if terms.set.components() >= inner.set.components() {
                    inner.set = terms.set;
                }
            }
            Err(error) => {
                // A refusal changes nothing over there.
                if matches!(error, Error::Sa(SaError::Refused(_) | SaError::Status(_))) {
                    inner.told = was_told;
                }
                drop(inner);
                return Err(error);
            }
        }
        drop(inner);
        drop(_turn);
        Ok(hold)
    }

    /// Becomes one of the registration's users.
    fn enter(core: Arc<Core>, terms: &Terms, retry: Retry) -> Self {
        let (held, is_new) = {
            let mut state = core.state.lock();
            let mut is_new = false;
            let held = state.held.entry(terms.key).or_insert_with(|| {
                is_new = true;
                Arc::new(Held::new(terms, retry))
            });
            held.inner.lock().users += 1;
            (Arc::clone(held), is_new)
        };
        if let (true, Some(period)) = (is_new, terms.period) {
            Held::repeat(&core, &held, period);
        }
        Self {
            core,
            held,
            watcher: None,
            seen: 0,
            is_over: false,
        }
    }

    /// The record as the administrator has it.
    pub(super) fn record<R: Record>(&self) -> Option<R> {
        R::from_bytes(&self.held.inner.lock().record)
    }

    /// Has every change told; replaces the earlier receiver.
    pub(super) fn on_change(&mut self, watcher: Watcher) {
        let mut inner = self.held.inner.lock();
        let id = inner.next_watcher;
        inner.next_watcher += 1;
        inner.watchers.push((id, watcher));
        drop(inner);
        let before = self.watcher.replace(id);
        self.ignore(before);
    }

    /// The latest change, once there is one that was not told here.
    pub(super) async fn changed(&mut self) -> Change {
        let (held, seen) = (&self.held, &mut self.seen);
        poll_fn(|cx| {
            let mut waker = OwnWaker::of(cx.waker());
            let mut inner = held.inner.lock();
            match &inner.change {
                Some(change) if inner.changes > *seen => {
                    let change = change.clone();
                    *seen = inner.changes;
                    Poll::Ready(change)
                }
                _ => {
                    waker.join(&mut inner.wakers);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Ends this user's share, and the registration if it was the last; says how that went.
    pub(super) async fn leave(mut self) -> Result<(), Error> {
        match self.end() {
            // It goes on if no task waits for it any longer.
            Some(ended) => ended.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Option<oneshot::Receiver<Result<(), Error>>> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        let watcher = self.watcher.take();
        self.ignore(watcher);
        let is_last = {
            // Under the lock of the thread that enters.
            let _state = self.core.state.lock();
            let mut inner = self.held.inner.lock();
            inner.users -= 1;
            inner.users == 0
        };
        if !is_last {
            return None;
        }
        let (tell, told) = oneshot::channel();
        let (core, held) = (Arc::clone(&self.core), Arc::clone(&self.held));
        task::detach(async move {
            let left = held.release(&core).await;
            // There may be no waiting task.
            let _gone = tell.send(left);
        });
        Some(told)
    }

    fn ignore(&self, watcher: Option<u64>) {
        let mut inner = self.held.inner.lock();
        let at = inner
            .watchers
            .iter()
            .position(|(id, _)| Some(*id) == watcher);
        let gone = at.map(|at| inner.watchers.swap_remove(at));
        drop(inner);
        // What the watcher has is let go of under no lock (K4).
        drop(gone);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.end();
    }
}

impl Held {
    fn new(terms: &Terms, retry: Retry) -> Self {
        Self {
            key: terms.key,
            turn: futures::lock::Mutex::new(()),
            inner: Mutex::new(Inner {
                users: 0,
                set: terms.set,
                undo: terms.undo,
                retry,
                told: false,
                record: [0; DATA_LEN],
                watchers: Vec::new(),
                next_watcher: 0,
                change: None,
                changes: 0,
                wakers: Vec::new(),
            }),
        }
    }

    /// Takes it back, unless it is in use again.
    async fn release(&self, core: &Core) -> Result<(), Error> {
        let turn = self.turn.lock().await;
        let undo = {
            let mut inner = self.inner.lock();
            if inner.users > 0 {
                return Ok(());
            }
            let is_due = std::mem::take(&mut inner.told);
            is_due.then_some((inner.undo, inner.retry))
        };
        let mut left = Ok(());
        if let Some((undo, retry)) = undo {
            left = core.ask(&undo, retry).await.map(drop);
        }
        drop(turn);
        let gone = {
            let mut state = core.state.lock();
            let is_over = self.inner.lock().users == 0;
            is_over.then(|| state.held.remove(&self.key)).flatten()
        };
        drop(gone);
        left
    }

    /// Tells the administrator again, until it has heard it or there is a newer reason to.
    pub(super) fn renew(core: &Arc<Core>, held: &Arc<Self>, epoch: u64) {
        let (core, held) = (Arc::downgrade(core), Arc::downgrade(held));
        task::detach(async move {
            let (mut wait, longest) = RENEW_PAUSE;
            loop {
                let (Some(core), Some(held)) = (core.upgrade(), held.upgrade()) else {
                    return;
                };
                if core.state.lock().epoch != epoch || held.repeat_once(&core).await {
                    return;
                }
                let Some(timer) = core.service.timer().cloned() else {
                    return;
                };
                drop((core, held));
                pause(&*timer, wait).await;
                wait = longest.min(wait * 2);
            }
        });
    }

    /// Tells the administrator again twice in each period, which is when it forgets.
    fn repeat(core: &Arc<Core>, held: &Arc<Self>, period: Duration) {
        let Some(timer) = core.service.timer().cloned() else {
            return;
        };
        let (core, held) = (Arc::downgrade(core), Arc::downgrade(held));
        task::detach(async move {
            loop {
                pause(&*timer, period / 2).await;
                let (Some(core), Some(held)) = (core.upgrade(), held.upgrade()) else {
                    return;
                };
                held.repeat_once(&core).await;
            }
        });
    }

    /// Tells the administrator again, and the users what has come of it. Whether that is all.
    async fn repeat_once(&self, core: &Core) -> bool {
        let _turn = self.turn.lock().await;
        let (set, retry) = {
            let inner = self.inner.lock();
            // A client that has not got it yet asks anyway.
            if inner.users == 0 || !inner.told {
                return true;
            }
            (inner.set, inner.retry)
        };
        let asked = core.ask(&set, retry).await;
        let is_done = asked.is_ok();
        let (watchers, wakers, change) = {
            let mut inner = self.inner.lock();
            let change = match asked {
                Ok(answer) => {
                    inner.record = answer.bytes();
                    Change::Renewed
                }
                Err(error) => Change::Lost(error),
            };
            inner.changes += 1;
            inner.change = Some(change.clone());
            let watchers: Vec<_> = inner
                .watchers
                .iter()
                .map(|(_, who)| Arc::clone(who))
                .collect();
            (watchers, std::mem::take(&mut inner.wakers), change)
        };
        wakers.into_iter().for_each(task::wake);
        watchers.iter().for_each(|watcher| watcher(&change));
        is_done
    }
}
