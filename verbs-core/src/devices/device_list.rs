//! The devices that there are, as they come and go.
//!
//! The part of a program that has devices keeps a [`DeviceList`] and says what arrives and what goes, and why. Clients
//! [watch](DeviceList::watch) it as a stream, or have a [handler](DeviceList::on_change) called; both begin with what is
//! there. Nothing is taken from a client that holds on to a device: it is told by the device itself
//! ([`EventType::DeviceFatal`](crate::EventType::DeviceFatal), K15), here it learns the reason, and that the device is
//! back.
//!
//! ```
//! use std::sync::Arc;
//! use verbs_core::device_list::{Change, DeviceList, Gone};
//! use verbs_core::testing::Null;
//!
//! # futures::executor::block_on(async {
//! let list = DeviceList::new();
//! let mut changes = list.watch();
//! let card = list.arrived("null0", Arc::new(Null::default()));
//! let Change::Arrived(entry) = changes.next().await else { panic!("it has arrived") };
//! let device = entry.open().await?;
//! card.gone(Gone::Ejected);
//! assert!(matches!(changes.next().await, Change::Gone { reason: Gone::Ejected, .. }));
//! # device.close().await.unwrap();
//! # Ok::<(), verbs_core::Error>(())
//! # }).unwrap();
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use crate::command::AnyCommand;
use crate::device::{Device, OpenDevice};
use crate::error::Error;
use crate::provider::Provider;
use crate::request::Request;
use crate::routine;
use crate::sync::combiner::Combiner;
use crate::sync::{Arc, Mutex, Weak};
use crate::task::OwnWaker;

/// Changes that are kept for watchers that have not looked yet. One that stays away for longer is told that it
/// [missed](Change::Missed) some, so that its absence costs no memory.
pub const KEPT_MAX: usize = 256;

/// Names an entry of a list, never again used for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(u64);

/// A device that is there: it can be opened.
#[derive(Clone)]
pub struct Entry {
    /// Names it. A device that went and is back has another.
    pub id: EntryId,
    /// What people call it.
    pub name: Arc<str>,
    provider: Arc<dyn Provider>,
}

impl Entry {
    /// Opens the device.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::DeviceRemoved`](crate::Error::DeviceRemoved) if it has gone since.
    pub fn open(&self) -> Request<'static, OpenDevice> {
        Device::open(Arc::clone(&self.provider))
    }

    /// What implements it.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }
}

/// Whether both are the same entry.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Entry {}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.name, self.id)
    }
}

/// Why a device has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gone {
    /// It was taken out.
    Ejected,
    /// It failed by itself.
    Failed,
    /// It is not offered any longer; devices that are open on it go on.
    Withdrawn,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ejected => "taken out",
            Self::Failed => "failed",
            Self::Withdrawn => "no longer offered",
        })
    }
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A device is there, or was when the watch began.
    Arrived(Entry),
    /// A device has gone.
    Gone {
        /// Which.
        id: EntryId,
        /// Its name.
        name: Arc<str>,
        /// Why.
        reason: Gone,
    },
    /// A port of a device went into service or out of it.
    Port {
        /// Which device.
        id: EntryId,
        /// Number of the port, from 1.
        port: u8,
        /// Whether it is in service now.
        is_up: bool,
    },
    /// More changes came than are kept: what is there is told again after this, and what was known before is void.
    Missed,
}

/// The devices that there are. Clones are the same list.
#[derive(Clone, Default)]
pub struct DeviceList(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Held for a look or a change; never while foreign code runs (K4).
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    present: Vec<Entry>,
    /// The newest changes; the last one has the number `seen - 1`.
    log: VecDeque<Change>,
    seen: u64,
    next_id: u64,
    waiting: Vec<Waker>,
    handlers: Vec<Arc<Handler>>,
}

type Call = Box<dyn FnMut(Change) + Send>;

struct Handler {
    call: Mutex<Option<Call>>,
    changes: Mutex<Changes>,
    calls: Combiner,
}

impl DeviceList {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// A device is there from now on. The value says when it goes: dropping it [withdraws](Gone::Withdrawn) the device.
    #[must_use = "a device whose offer is dropped is withdrawn"]
    pub fn arrived(&self, name: &str, provider: Arc<dyn Provider>) -> Offer {
        let (id, forgotten) = {
            let mut state = self.0.state.lock();
            let id = EntryId(state.next_id);
            state.next_id += 1;
            let entry = Entry {
                id,
                name: name.into(),
                provider,
            };
            state.present.push(entry.clone());
            (id, state.note(Change::Arrived(entry)))
        };
        drop(forgotten);
        self.0.tell();
        Offer {
            list: Arc::downgrade(&self.0),
            id,
        }
    }

    /// The devices that are there now, in the order of their arrival.
    pub fn devices(&self) -> Vec<Entry> {
        self.0.state.lock().present.clone()
    }

    /// The device of that name, the first if there are several.
    pub fn find(&self, name: &str) -> Option<Entry> {
        let state = self.0.state.lock();
        let mut present = state.present.iter();
        present.find(|entry| &*entry.name == name).cloned()
    }

    /// What changes from now on, what is there first.
    pub fn watch(&self) -> Changes {
        let state = self.0.state.lock();
        Changes {
            list: Arc::clone(&self.0),
            first: state.present.clone().into(),
            at: state.seen,
        }
    }

    /// Calls `handler` with what is there, and then with every change: under NoBlock, one call at a time, on the thread
    /// that brings the change about when that is done with what it is doing. It stays for the life of the list.
    pub fn on_change(&self, handler: impl FnMut(Change) + Send + 'static) {
        let handler = Arc::new(Handler {
            call: Mutex::new(Some(Box::new(handler))),
            changes: Mutex::new(self.watch()),
            calls: Combiner::default(),
        });
        self.0.state.lock().handlers.push(Arc::clone(&handler));
        handler.run();
    }
}

impl fmt::Debug for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices()).finish()
    }
}

/// The side of a list that has put a device there.
#[derive(Debug)]
pub struct Offer {
    list: Weak<Shared>,
    id: EntryId,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl Offer {
    /// The entry.
    pub fn id(&self) -> EntryId {
        self.id
    }

    /// The device has gone, for that reason: the list does not keep its provider any longer. Further calls do nothing.
    pub fn gone(&self, reason: Gone) {
        self.change(|state| {
            let place = state.present.iter().position(|entry| entry.id == self.id)?;
            let entry = state.present.remove(place);
            let (id, name) = (entry.id, Arc::clone(&entry.name));
            let noted = state.forget_provider(id);
            Some((Change::Gone { id, name, reason }, [Some(entry), noted]))
        });
    }

    /// A port of it went into service or out of it.
    pub fn port(&self, port: u8, is_up: bool) {
        let id = self.id;
        self.change(|state| {
            let is_there = state.present.iter().any(|entry| entry.id == id);
            is_there.then_some((Change::Port { id, port, is_up }, [None, None]))
        });
    }

    /// Makes a change, if there is one. What it ends is dropped when the lock is free: a provider may go with it (K4).
    fn change(&self, change: impl FnOnce(&mut State) -> Option<(Change, [Option<Entry>; 2])>) {
        let Some(list) = self.list.upgrade() else {
            return;
        };
        let ended = {
            let mut state = list.state.lock();
            let change = change(&mut state);
            change.map(|(change, entry)| (state.note(change), entry))
        };
        if ended.is_some() {
            drop(ended);
            list.tell();
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.gone(Gone::Withdrawn);
    }
}

/// The changes of a list, oldest first: a stream that never ends.
pub struct Changes {
    list: Arc<Shared>,
    /// What was there.
    first: VecDeque<Entry>,
    /// The number of the next change.
    at: u64,
}

impl Changes {
    /// The next change; waits for one.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Change {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The polling form of [`Changes::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Change> {
        let mut waker = OwnWaker::of(cx.waker());
        let list = Arc::clone(&self.list);
        let mut state = list.state.lock();
        match self.take(&state) {
            Some(change) => Poll::Ready(change),
            None => {
                waker.join(&mut state.waiting);
                Poll::Pending
            }
        }
    }

    /// The next change, if there is one already.
    pub fn try_next(&mut self) -> Option<Change> {
        let list = Arc::clone(&self.list);
        let state = list.state.lock();
        self.take(&state)
    }

    fn take(&mut self, state: &State) -> Option<Change> {
        if let Some(entry) = self.first.pop_front() {
            return Some(Change::Arrived(entry));
        }
        let behind = state.seen - self.at;
        if behind == 0 {
            return None;
        }
        let kept = state.log.len();
        match kept.checked_sub(usize::try_from(behind).unwrap_or(usize::MAX)) {
            Some(place) => {
                self.at += 1;
                state.log.get(place).cloned()
            }
            None => {
                (self.at, self.first) = (state.seen, state.present.clone().into());
                Some(Change::Missed)
            }
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

/// Stands for a device that has gone, in changes that nobody has looked at yet.
struct Absent;

impl Provider for Absent {
    fn issue(&self, command: AnyCommand<'_>) {
        command.refuse(Error::DeviceRemoved);
    }
}

impl State {
    /// Takes the provider of a device out of what is told of its arrival, which may be kept for long.
    fn forget_provider(&mut self, gone: EntryId) -> Option<Entry> {
        let arrival = self.log.iter_mut().find_map(|change| match change {
            Change::Arrived(entry) if entry.id == gone => Some(entry),
            _ => None,
        })?;
        let absent = Entry {
            provider: Arc::new(Absent),
            ..arrival.clone()
        };
        Some(std::mem::replace(arrival, absent))
    }

    /// Adds a change; the one that is kept no longer, if that is so, is to be dropped under no lock.
    #[must_use]
    fn note(&mut self, change: Change) -> Option<Change> {
        let full = self.log.len() == KEPT_MAX;
        let forgotten = if full { self.log.pop_front() } else { None };
        self.log.push_back(change);
        self.seen += 1;
        forgotten
    }
}

impl Shared {
    /// Tells the watchers that wait. Outside the lock.
    fn tell(&self) {
        let (waiting, handlers) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.waiting), state.handlers.clone())
        };
        waiting.into_iter().for_each(routine::wake);
        handlers.iter().for_each(Handler::run);
    }
}

impl Handler {
    /// Calls it for what there is, when the present thread is done; one call at a time.
    fn run(self: &Arc<Self>) {
        if !self.calls.enter() {
            return;
        }
        let this = Arc::clone(self);
        routine::defer(move || {
            loop {
                this.call_all();
                if !this.calls.again() {
                    break;
                }
            }
        });
    }

    fn call_all(&self) {
        // Taken out while it runs, so that no lock is held then (K4).
        let Some(mut call) = self.call.lock().take() else {
            return;
        };
        loop {
            let change = self.changes.lock().try_next();
            match change {
                Some(change) => call(change),
                None => break,
            }
        }
        *self.call.lock() = Some(call);
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use futures::executor::block_on;

    use super::*;
    use crate::testing::Null;

    fn null() -> Arc<dyn Provider> {
        Arc::new(Null::default())
    }

    fn told(change: &Change) -> String {
        match change {
            Change::Arrived(entry) => format!("+{}", entry.name),
            Change::Gone { name, reason, .. } => format!("-{name}: {reason}"),
            Change::Port { port, is_up, .. } => format!("port {port} {is_up}"),
            Change::Missed => "missed".into(),
        }
    }

    #[test]
    fn streams_and_handlers_are_told_the_same() {
        let list = DeviceList::new();
        let first = list.arrived("a", null());
        let mut changes = list.watch();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&seen);
        list.on_change(move |change| theirs.lock().push(told(&change)));
        assert_eq!(*seen.lock(), ["+a"], "what is there comes first");
        let second = list.arrived("b", null());
        first.gone(Gone::Failed);
        first.gone(Gone::Ejected);
        first.port(1, true);
        second.port(1, false);
        second.port(1, true);
        let back = list.arrived("a", null());
        assert_ne!(back.id(), first.id());
        drop(second);
        let all = [
            "+a",
            "+b",
            "-a: failed",
            "port 1 false",
            "port 1 true",
            "+a",
            "-b: no longer offered",
        ];
        assert_eq!(*seen.lock(), all);
        let streamed: Vec<_> = all
            .iter()
            .map(|_| told(&block_on(changes.next())))
            .collect();
        assert_eq!(streamed, all);
        assert_eq!(changes.try_next(), None);
        assert_eq!(list.devices().len(), 1);
        assert_eq!(list.find("a").map(|entry| entry.id), Some(back.id()));
        assert!(list.find("b").is_none());
    }

    #[test]
    fn a_device_that_is_gone_is_not_kept_for_watchers() {
        let list = DeviceList::new();
        let mut changes = list.watch();
        let provider = null();
        let card = list.arrived("a", Arc::clone(&provider));
        card.gone(Gone::Ejected);
        assert_eq!(Arc::strong_count(&provider), 1);
        let Some(Change::Arrived(entry)) = changes.try_next() else {
            panic!("it has been there");
        };
        assert_eq!(entry.open().wait().unwrap_err(), Error::DeviceRemoved);
        assert_eq!(
            changes.try_next().as_ref().map(told).as_deref(),
            Some("-a: taken out")
        );
    }

    #[test]
    fn a_watcher_that_stays_away_is_told_that_it_missed_some() {
        let list = DeviceList::new();
        let stays = list.arrived("stays", null());
        let mut changes = list.watch();
        assert_eq!(
            changes.try_next().as_ref().map(told).as_deref(),
            Some("+stays")
        );
        for _ in 0..KEPT_MAX / 2 {
            drop(list.arrived("passes", null()));
        }
        stays.port(1, true);
        assert_eq!(changes.try_next(), Some(Change::Missed));
        assert_eq!(
            changes.try_next().as_ref().map(told).as_deref(),
            Some("+stays")
        );
        assert_eq!(changes.try_next(), None);
        assert_eq!(list.0.state.lock().log.len(), KEPT_MAX);
    }

    #[test]
    fn a_stream_wakes_who_waits() {
        let list = DeviceList::new();
        let mut changes = list.watch();
        let counted = Arc::new(crate::sync::plain::AtomicU64::new(0));
        struct Count(Arc<crate::sync::plain::AtomicU64>);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, crate::sync::plain::Ordering::Relaxed);
            }
        }
        let waker = Waker::from(Arc::new(Count(Arc::clone(&counted))));
        let mut cx = Context::from_waker(&waker);
        assert!(changes.poll_next(&mut cx).is_pending());
        let offer = list.arrived("a", null());
        assert_eq!(counted.load(crate::sync::plain::Ordering::Relaxed), 1);
        assert!(changes.poll_next(&mut cx).is_ready());
        drop(offer);
    }
}
