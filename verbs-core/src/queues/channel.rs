//! Channels: events of completion queues and devices as something to wait for with a file
//! descriptor, for epoll, mio, tokio and programs with a loop of their own.
//!
//! A channel's descriptor is readable while events wait in it (level-triggered). An event of a
//! completion queue is acknowledged by dropping it; the queue's destroy waits for that (K11), as
//! `ibv_destroy_cq` does. Programs that poll, or that await queues directly, need no channel, and
//! pay no system call.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::Poll;

use atomic_waker::AtomicWaker;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::cq::{CqNotify, CreateCq};
use crate::device::Device;
use crate::error::Error;
use crate::event::AsyncEvent;
use crate::object::header::User;
use crate::object::{InUse, Target};
use crate::request::Request;
use crate::routine::{no_block, wake};
use crate::sync::plain::Mutex;
use crate::sync::{Arc, Weak};

/// A queue of events with a descriptor that is readable while there are some.
struct Inbox<T> {
    /// An eventfd that counts the events.
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
    waker: AtomicWaker,
}

impl<T> Inbox<T> {
    fn new() -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
        let (fd, events) = (eventfd(0, flags)?, Mutex::new(VecDeque::with_capacity(16)));
        Ok(Arc::new(Self {
            fd,
            events,
            waker: AtomicWaker::new(),
        }))
    }

    fn push(&self, event: T) {
        self.events.lock().push_back(event);
        // The counter holds 2^64 - 2 events, more than there is memory for, so the write succeeds.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        if let Some(waker) = self.waker.take() {
            wake(waker);
        }
    }

    fn take(&self) -> Option<T> {
        let event = self.events.lock().pop_front()?;
        self.count_down();
        Some(event)
    }

    /// Takes the events out that `unwanted` says.
    fn purge(&self, unwanted: impl Fn(&T) -> bool) -> VecDeque<T> {
        let mut events = self.events.lock();
        let (purged, kept) = std::mem::take(&mut *events).into_iter().partition(unwanted);
        *events = kept;
        let purged: VecDeque<T> = purged;
        purged.iter().for_each(|_| self.count_down());
        purged
    }

    fn count_down(&self) {
        // A pusher counts after it has queued: the count may be behind for a moment, and then the
        // descriptor is readable once without an event, which level-triggered waiting tolerates.
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }

    async fn next(&self) -> T {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            self.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn wait(&self) -> Result<T, Error> {
        if no_block() {
            return Err(Error::WouldBlock);
        }
        loop {
            if let Some(event) = self.take() {
                return Ok(event);
            }
            // A signal ends the wait early; look again.
            let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None);
        }
    }
}

/// Collects the events of any number of completion queues.
///
/// Create queues with [`Request::channel`], arm them, wait here, drop the event, poll.
///
/// ```
/// use verbs_core::testing::Null;
/// use verbs_core::{CompletionChannel, Device};
///
/// let device = Device::open(std::sync::Arc::new(Null::default())).wait()?;
/// let channel = CompletionChannel::new()?;
/// let cq = device.create_cq(16).channel(&channel, 7).wait()?;
/// assert!(channel.try_next().is_none(), "nothing was armed");
/// # drop(cq);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CompletionChannel(Arc<Inbox<CqEvent>>);

/// An armed completion queue has fired. Dropping it acknowledges it.
#[must_use = "dropping an event acknowledges it"]
pub struct CqEvent {
    token: u64,
    notify: Arc<CqNotify>,
}

impl CqEvent {
    /// The number that the queue was created with.
    pub fn token(&self) -> u64 {
        self.token
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        self.notify.acknowledge();
    }
}

impl fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqEvent({})", self.token)
    }
}

impl CompletionChannel {
    /// A channel without queues.
    ///
    /// # Errors
    /// The system's, when there are no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Inbox::new()?))
    }

    /// The oldest event, if there is one. Never blocks; legal in any context.
    pub fn try_next(&self) -> Option<CqEvent> {
        self.0.take()
    }

    /// Waits for an event without blocking the thread. One task at a time.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&self) -> CqEvent {
        self.0.next().await
    }

    /// Blocks the thread until there is an event.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] under NoBlock, at once.
    pub fn wait(&self) -> Result<CqEvent, Error> {
        self.0.wait()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// For what takes descriptors by number, as tokio's `AsyncFd` does.
impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionChannel({:?})", self.0.fd)
    }
}

impl Request<'_, CreateCq> {
    /// Has the queue's events go to `channel`, each with `token` to tell queues apart. A handler and
    /// a task that awaits the queue hear of them as well.
    pub fn channel(self, channel: &CompletionChannel, token: u64) -> Self {
        self.args.notify.attach(Attached {
            inbox: Arc::clone(&channel.0),
            token,
        });
        self
    }
}

/// Where a completion queue's events go, and how many of them have not been acknowledged.
pub(crate) struct Attached {
    inbox: Arc<Inbox<CqEvent>>,
    token: u64,
}

impl Attached {
    pub(crate) fn push(&self, notify: &Arc<CqNotify>) {
        self.inbox.push(CqEvent {
            token: self.token,
            notify: Arc::clone(notify),
        });
    }

    /// The queue's destroy was accepted: events that were not taken are gone with it.
    pub(crate) fn purge(&self, notify: &CqNotify) {
        drop(
            self.inbox
                .purge(|event| std::ptr::eq(&*event.notify, notify)),
        );
    }
}

/// Counts events that were not acknowledged; while there are any, the queue is in use (K11).
#[derive(Default)]
pub(crate) struct Unacknowledged(Mutex<(u64, Option<InUse>)>);

impl Unacknowledged {
    /// Counts one event; `false` if the queue's destroy was accepted and nothing may be delivered.
    pub(crate) fn count(&self, target: &Weak<impl Target>) -> bool {
        let mut held = self.0.lock();
        if held.0 == 0 {
            let Some(target) = target.upgrade() else {
                return false;
            };
            held.1 = InUse::try_enter(target, User::Handler);
            if held.1.is_none() {
                return false;
            }
        }
        held.0 += 1;
        true
    }

    pub(crate) fn acknowledge(&self) {
        let in_use = {
            let mut held = self.0.lock();
            held.0 -= 1;
            if held.0 == 0 { held.1.take() } else { None }
        };
        // May continue a destroy that waited for this.
        drop(in_use);
    }
}

/// Collects a device's asynchronous events.
#[derive(Clone)]
pub struct EventChannel(Arc<Inbox<AsyncEvent>>);

impl Device {
    /// Has the device's asynchronous events go to a channel, in place of a handler or of
    /// [`Device::next_event`].
    ///
    /// # Errors
    /// The system's, when there are no descriptors left.
    pub fn event_channel(&self) -> io::Result<EventChannel> {
        let inbox = Inbox::new()?;
        let theirs = Arc::clone(&inbox);
        self.on_event(move |event| theirs.push(event));
        Ok(EventChannel(inbox))
    }
}

impl EventChannel {
    /// The oldest event, if there is one. Never blocks; legal in any context.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.0.take()
    }

    /// Waits for an event without blocking the thread. One task at a time.
    pub async fn next(&self) -> AsyncEvent {
        self.0.next().await
    }

    /// Blocks the thread until there is an event.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] under NoBlock, at once.
    pub fn wait(&self) -> Result<AsyncEvent, Error> {
        self.0.wait()
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// For what takes descriptors by number, as tokio's `AsyncFd` does.
impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventChannel({:?})", self.0.fd)
    }
}
