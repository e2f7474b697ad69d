//! The state that all channels of a session share.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use verbs_cm::Manager;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst,
};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::task::OwnWaker;
use verbs_core::{Device, Extent, Mr, Pd, Remote, Timer, task};

use crate::initiator::address::Target;
use crate::initiator::channel::{Channel, Formats};
use crate::initiator::config::{Event, Options};
use crate::initiator::error::Error;
use crate::initiator::restore::{Pace, restore};
use crate::initiator::table::Counters;
use crate::iu::{Lun, PortId, TaskFunction};

/// The listener for events.
pub(super) type Listener = Arc<dyn Fn(Event<'_>) + Send + Sync>;

/// The state that all channels of a session share.
pub(crate) struct Shared {
    // Dropped in this order: regions before the protection domain that they are in.
    pub(super) published: Mutex<Vec<Mr>>,
    pub(super) channels: Mutex<Channels>,
    pub(super) pd: Pd,
    pub(super) manager: Manager,
    pub(super) device: Arc<Device>,
    pub(super) options: Options,
    pub(super) target: Target,
    pub(super) listener: Option<Listener>,
    /// This end's name.
    pub(super) initiator: PortId,
    /// Set after `over`.
    pub(super) is_closed: AtomicBool,
    /// Why the session is over.
    pub(super) over: Mutex<Option<Error>>,
    /// When the next attempt to log in again is made.
    pub(super) pace: Mutex<Pace>,
    /// Where the search for a channel begins next.
    pub(super) turn: AtomicU32,
    /// Commands that have ended, and channels that were lost or restored: each may have made room.
    pub(super) ends: AtomicU64,
    /// Tasks that wait for another end.
    pub(super) waiting: Mutex<Vec<Waker>>,
    /// The counters of channels that no longer exist.
    pub(super) past: Mutex<(Counters, Formats)>,
}

/// The current channels: those of one login, or none.
#[derive(Default)]
pub(super) struct Channels {
    pub(super) all: Vec<Arc<Channel>>,
    /// Logins before this one.
    pub(super) login: u64,
}

impl Shared {
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    pub(crate) fn manager(&self) -> &Manager {
        &self.manager
    }

    pub(crate) fn initiator(&self) -> PortId {
        self.initiator
    }

    pub(super) fn timer(&self) -> Option<Arc<dyn Timer>> {
        self.device.target().provider_of().timer()
    }

    /// The remote address of published memory.
    pub(crate) fn published(&self, extent: &Extent<'_>) -> Option<Remote> {
        let published = self.published.lock();
        let mut of = published
            .iter()
            .filter(|mr| Arc::ptr_eq(mr.memory(), extent.memory));
        let fits = extent.offset.checked_add(extent.len as usize)? <= extent.memory.len();
        of.next()
            .filter(|_| fits)
            .map(|mr| mr.remote(extent.offset))
    }

    /// A channel that takes commands, in turn, preferring those with room; only of that login, if one is given.
    pub(super) fn channel(&self, login: Option<u64>) -> Result<Arc<Channel>, Error> {
        if self.is_closed.load(Relaxed) {
            return Err(self.why_over());
        }
        let channels = self.channels.lock();
        if login.is_some_and(|login| login != channels.login) {
            return Err(Error::Reconnecting);
        }
        let all = &channels.all;
        if let [only] = &all[..] {
            return Ok(Arc::clone(only));
        }
        let turn = self.turn.fetch_add(1, Relaxed) as usize;
        let mut open = None;
        for at in 0..all.len() {
            let channel = &all[turn.wrapping_add(at) % all.len()];
            if channel.available() > 0 {
                return Ok(Arc::clone(channel));
            }
            if channel.is_open() {
                open = Some(Arc::clone(channel));
            }
        }
        open.ok_or(Error::Reconnecting)
    }

    /// The number of the login whose channels take commands.
    pub(super) fn login(&self) -> Option<u64> {
        let channels = self.channels.lock();
        let is_open = channels.all.iter().any(|channel| channel.is_open());
        is_open.then_some(channels.login)
    }

    /// Installs the channels of a login, the first or a later one.
    pub(super) fn enter(self: &Arc<Self>, all: Vec<Arc<Channel>>) {
        let mut channels = self.channels.lock();
        // The thread that ends the session sets `is_closed`, and then takes the channels.
        if self.is_closed.load(SeqCst) {
            drop(channels);
            return all.iter().for_each(|it| it.abandon(&self.why_over()));
        }
        channels.all.clone_from(&all);
        drop(channels);
        // If a channel was lost before this call, handle its loss now.
        if let Some(lost) = all.iter().find(|channel| !channel.is_open()) {
            self.lost(lost, &Error::ConnectionLost);
        }
    }

    pub(super) fn take_channels(&self) -> Vec<Arc<Channel>> {
        std::mem::take(&mut self.channels.lock().all)
    }

    /// Ends the session, for this reason unless it already has one.
    pub(super) fn close(&self, error: &Error) {
        self.end(error);
        for channel in self.take_channels() {
            channel.abandon(error);
        }
        self.room();
    }

    /// Marks the session as over; its channels must still be taken.
    pub(super) fn end(&self, error: &Error) {
        self.over.lock().get_or_insert_with(|| error.clone());
        self.is_closed.store(true, SeqCst);
    }

    /// Why the session is over.
    pub(super) fn why_over(&self) -> Error {
        self.over.lock().clone().unwrap_or(Error::LoggedOut)
    }

    pub(super) fn tell(&self, event: Event<'_>) {
        if let Some(listener) = &self.listener {
            listener(event);
        }
    }

    pub(crate) fn asynchronous(&self, lun: Lun, sense: &[u8]) {
        self.tell(Event::Asynchronous { lun, sense });
    }

    /// A command or channel has ended: wakes the waiting tasks.
    pub(crate) fn room(&self) {
        self.ends.fetch_add(1, SeqCst);
        // One at a time: the lock is released while a waker is called.
        while let Some(waker) = self.next_waiting() {
            task::wake(waker);
        }
    }

    fn next_waiting(&self) -> Option<Waker> {
        self.waiting.lock().pop()
    }

    /// The number of ends so far.
    pub(super) fn ends(&self) -> u64 {
        self.ends.load(SeqCst)
    }

    /// Waits until that number has grown beyond `seen`. `false`: nothing is in flight that could end.
    pub(super) async fn another_end(&self, seen: u64) -> bool {
        self.until(|shared| match shared.ends() != seen {
            true => Some(true),
            false if shared.is_working() => None,
            false => Some(shared.ends() != seen),
        })
        .await
    }

    /// Waits until `look` returns a value; calls it whenever a command has ended, and when the session was lost,
    /// restored or ended.
    pub(super) async fn until<T>(&self, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        poll_fn(|cx| {
            // First, so that no change is missed.
            let mut waker = OwnWaker::of(cx.waker());
            waker.join(&mut self.waiting.lock());
            look(self).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Whether something is in flight whose end makes room.
    fn is_working(&self) -> bool {
        let depth = usize::from(self.options.queue_depth);
        let channels = self.channels.lock();
        let mut open = channels.all.iter();
        open.any(|channel| channel.is_open() && channel.available() < depth)
    }

    /// Task management on one channel affects the commands of the others too.
    pub(crate) fn reset(&self, by: &Arc<Channel>, function: TaskFunction, lun: Lun) {
        let channels = self.channels.lock().all.clone();
        for channel in &channels {
            if !Arc::ptr_eq(channel, by) {
                channel.was_reset(function, lun);
            }
        }
    }

    /// A channel is lost: closes the others, and restores all of them, unless the session is over.
    pub(crate) fn lost(self: &Arc<Self>, channel: &Arc<Channel>, error: &Error) {
        let mut channels = self.channels.lock();
        if !channels.all.iter().any(|it| Arc::ptr_eq(it, channel)) {
            // It belongs to a login that was given up, or whose channels are not complete yet.
            return;
        }
        let all = std::mem::take(&mut channels.all);
        channels.login += 1;
        drop(channels);
        let is_replaced = matches!(error, Error::Replaced(_));
        if is_replaced {
            self.end(error);
        }
        for other in &all {
            let why = if is_replaced {
                error
            } else {
                &Error::ConnectionLost
            };
            other.abandon(why);
            let mut past = self.past.lock();
            *past = add(*past, other.counters());
        }
        self.room();
        if is_replaced {
            return self.tell(Event::GivenUp { error });
        }
        if self.is_closed.load(Relaxed) {
            return;
        }
        self.tell(Event::Lost { error });
        let weak = Arc::downgrade(self);
        let error = error.clone();
        task::detach(async move { restore(weak, error).await });
    }
}

pub(super) fn add(a: (Counters, Formats), b: (Counters, Formats)) -> (Counters, Formats) {
    let counters = Counters {
        sent: a.0.sent + b.0.sent,
        answered: a.0.answered + b.0.answered,
        late: a.0.late + b.0.late,
        waited: a.0.waited + b.0.waited,
    };
    let formats = Formats {
        none: a.1.none + b.1.none,
        direct: a.1.direct + b.1.direct,
        indirect: a.1.indirect + b.1.indirect,
        immediate: a.1.immediate + b.1.immediate,
        published: a.1.published + b.1.published,
        entries: a.1.entries + b.1.entries,
    };
    (counters, formats)
}
