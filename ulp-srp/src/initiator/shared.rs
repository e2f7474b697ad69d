//! What all channels of a session have in common, and how a channel that was lost is made again.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use verbs_cm::Manager;
use verbs_core::mad::Time;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst,
};
use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::task::OwnWaker;
use verbs_core::{Device, Extent, Mr, Pd, Remote, task};

use crate::initiator::address::Target;
use crate::initiator::channel::{Channel, Formats, channel_code};
use crate::initiator::config::{Event, Options};
use crate::initiator::error::Error;
use crate::initiator::table::Counters;
use crate::iu::{Lun, MultiChannel, TaskFunction};

/// Who is told of events.
pub(super) type Listener = Arc<dyn Fn(Event<'_>) + Send + Sync>;

/// What all channels of a session have in common.
pub(crate) struct Shared {
    // Dropped in this order: what is registered before what it is registered in.
    pub(super) published: Mutex<Vec<Mr>>,
    pub(super) channels: Mutex<Vec<Option<Arc<Channel>>>>,
    pub(super) pd: Pd,
    pub(super) manager: Manager,
    pub(super) device: Arc<Device>,
    pub(super) options: Options,
    pub(super) target: Target,
    pub(super) listener: Option<Listener>,
    pub(super) is_closed: AtomicBool,
    /// Where the search for a channel begins next.
    pub(super) turn: AtomicU32,
    /// Commands that have ended, and channels that were lost or restored: each may have made room.
    pub(super) ends: AtomicU64,
    /// Who waits for another one.
    pub(super) waiting: Mutex<Vec<Waker>>,
    /// What channels that are no more have counted.
    pub(super) past: Mutex<(Counters, Formats)>,
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

    /// What the next login says of the others.
    pub(crate) fn channel_code(&self) -> MultiChannel {
        let is_first = self.channels.lock().iter().all(Option::is_none);
        channel_code(self.options.channels, is_first)
    }

    /// Where published memory is reached.
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

    /// A channel that takes commands, each in its turn, those with room first.
    pub(super) fn channel(&self) -> Result<Arc<Channel>, Error> {
        if self.is_closed.load(Relaxed) {
            return Err(Error::LoggedOut);
        }
        let channels = self.channels.lock();
        let turn = match channels.len() {
            1 => 0,
            len => self.turn.fetch_add(1, Relaxed) as usize % len,
        };
        let mut open = None;
        for at in 0..channels.len() {
            let Some(channel) = &channels[(turn + at) % channels.len()] else {
                continue;
            };
            if channels.len() == 1 || channel.available() > 0 {
                return Ok(Arc::clone(channel));
            }
            if channel.is_open() {
                open = Some(Arc::clone(channel));
            }
        }
        open.ok_or(Error::Reconnecting)
    }

    pub(super) fn enter(&self, channel: Arc<Channel>) {
        let number = usize::from(channel.number());
        if self.is_closed.load(Relaxed) {
            return channel.abandon(&Error::LoggedOut);
        }
        if let Some(place) = self.channels.lock().get_mut(number) {
            *place = Some(channel);
        }
    }

    pub(super) fn take_channels(&self) -> Vec<Arc<Channel>> {
        let mut channels = self.channels.lock();
        channels.iter_mut().filter_map(Option::take).collect()
    }

    pub(super) fn close(&self, error: &Error) {
        self.is_closed.store(true, Relaxed);
        for channel in self.take_channels() {
            channel.abandon(error);
        }
    }

    fn tell(&self, event: Event<'_>) {
        if let Some(listener) = &self.listener {
            listener(event);
        }
    }

    pub(crate) fn asynchronous(&self, lun: Lun, sense: &[u8]) {
        self.tell(Event::Asynchronous { lun, sense });
    }

    /// Something has ended: who waits may try again.
    pub(crate) fn room(&self) {
        self.ends.fetch_add(1, SeqCst);
        // One at a time: the lock is not held while a waker is called.
        while let Some(waker) = self.next_waiting() {
            waker.wake();
        }
    }

    fn next_waiting(&self) -> Option<Waker> {
        self.waiting.lock().pop()
    }

    /// How much has ended.
    pub(super) fn ends(&self) -> u64 {
        self.ends.load(SeqCst)
    }

    /// Waits until more has ended than that. `false`: nothing is under way that could.
    pub(super) async fn another_end(&self, seen: u64) -> bool {
        poll_fn(|cx| {
            // First, so that no end is missed.
            let mut waker = OwnWaker::of(cx.waker());
            waker.join(&mut self.waiting.lock());
            match self.ends() != seen {
                true => Poll::Ready(true),
                false if self.is_working() => Poll::Pending,
                false => Poll::Ready(self.ends() != seen),
            }
        })
        .await
    }

    /// Whether something is under way whose end makes room.
    fn is_working(&self) -> bool {
        let depth = usize::from(self.options.queue_depth);
        let channels = self.channels.lock();
        let mut open = channels.iter().flatten();
        open.any(|channel| channel.is_open() && channel.available() < depth)
    }

    /// Task management by way of one channel concerns the commands of the others too.
    pub(crate) fn reset(&self, by: &Arc<Channel>, function: TaskFunction, lun: Lun) {
        let channels = self.channels.lock().clone();
        for channel in channels.iter().flatten() {
            if !Arc::ptr_eq(channel, by) {
                channel.was_reset(function, lun);
            }
        }
    }

    /// A channel is lost: makes it again, unless the session is over.
    pub(crate) fn lost(self: &Arc<Self>, channel: &Arc<Channel>) {
        let number = channel.number();
        if let Some(place) = self.channels.lock().get_mut(usize::from(number))
            && place.as_ref().is_some_and(|it| Arc::ptr_eq(it, channel))
        {
            *place = None;
        }
        let mut past = self.past.lock();
        *past = add(*past, channel.counters());
        drop(past);
        self.room();
        if self.is_closed.load(Relaxed) {
            return;
        }
        self.tell(Event::Lost { channel: number });
        let weak = Arc::downgrade(self);
        task::detach(async move { restore(weak, number).await });
    }
}

/// Logs a channel in again, with pauses that grow, until it is there, or often enough was tried.
async fn restore(session: Weak<Shared>, number: u8) {
    let Some(first) = session.upgrade() else {
        return;
    };
    let (mut pause, options) = (first.options.backoff, first.options.clone());
    let timer = first.device.target().provider_of().timer();
    drop(first);
    for attempts in 1..=options.reconnects_max {
        let Some(shared) = session.upgrade() else {
            return;
        };
        if shared.is_closed.load(Relaxed) || shared.device.target().is_removed() {
            break;
        }
        if let Ok(channel) = Channel::open(&shared, number).await {
            shared.enter(channel);
            shared.tell(Event::Restored {
                channel: number,
                attempts,
            });
            return shared.room();
        }
        drop(shared);
        if let Some(timer) = &timer {
            let until = timer.now() + pause;
            sleep(&**timer, until).await;
        }
        pause = (pause * 2).min(options.backoff_max);
    }
    if let Some(shared) = session.upgrade()
        && !shared.is_closed.load(Relaxed)
    {
        shared.tell(Event::GivenUp { channel: number });
    }
}

/// Waits for a time on the device's clock.
async fn sleep(timer: &dyn verbs_core::Timer, until: Time) {
    poll_fn(|cx| {
        if timer.now() >= until {
            return Poll::Ready(());
        }
        timer.wake_at(until, cx.waker().clone());
        Poll::Pending
    })
    .await;
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
