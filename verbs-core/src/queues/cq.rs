//! Completion queues: creation and destruction as verbs, poll and arm as direct calls.

mod handler;

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use atomic_waker::AtomicWaker;

use crate::channel::{Attached, Unacknowledged};
use crate::command::{AnyCommand, Command, Kind};
use crate::device::{Device, DeviceCore};
use crate::error::{Attr, Error};
use crate::object::header::{IfBusy, User};
use crate::object::{Base, Child, InUse, ObjectKind, Private, Target, core, destroy, handle};
use crate::panics::FirstPanic;
use crate::queue::{Arm, Armed, RawCq};
use crate::request::Request;
use crate::routine::{self, no_block};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::sync::park;
use crate::sync::{Arc, OnceLock, Weak};
use crate::verb::{Admit, Verb, verb};
use crate::wc::Wc;
use handler::CqHandler;

/// A completion queue. Single-owner: polling takes `&mut self`, which is its lock.
///
/// Dropping it destroys it when no queue pair uses it any longer (K12).
pub struct Cq {
    core: Arc<CqCore>,
    raw: Box<dyn RawCq>,
}

/// What a completion queue's requests act on.
#[derive(Debug)]
pub struct CqCore {
    base: Base,
    device: Child<DeviceCore>,
    /// Entries; changed by a resize.
    cqe: AtomicU32,
    notify: Arc<CqNotify>,
}

core!(CqCore { device }, |core| core.notify.purge(), |core| core
    .notify
    .fire());
handle!(Cq, CqCore, DestroyCq);

/// Creates a completion queue; arguments of the verb.
#[derive(Debug)]
pub struct CreateCq {
    device: Child<DeviceCore>,
    /// Entries wanted, at least.
    pub cqe: u32,
    /// Completion vector: which of the device's event threads delivers, where it has several.
    pub comp_vector: u32,
    /// Whether completions carry the time at which they were made.
    pub timestamps: bool,
    /// What the provider fires when the armed queue has an event.
    pub notify: Arc<CqNotify>,
}

/// Changes the depth; arguments of the verb.
#[derive(Debug)]
pub struct ResizeCq {
    /// Entries wanted, at least.
    pub cqe: u32,
}

/// Changes the moderation of events; arguments of the verb.
#[derive(Debug)]
pub struct ModifyCq {
    /// Completions that make an event.
    pub count: u16,
    /// Microseconds after which a single completion makes an event, whatever `count` is; at most 65,535.
    pub period_us: u32,
}

verb!(CreateCq, DeviceCore => Cq, |cq| Some(Arc::<CqCore>::clone(&cq.core)));
verb!(ResizeCq, CqCore => u32);

impl Verb for ModifyCq {
    type Target = CqCore;
    type Output = ();
    type Error = Error;
    const KIND: Kind = Kind::ModifyCq;

    fn command(command: Command<'_, Self>) -> AnyCommand<'_> {
        AnyCommand::ModifyCq(command)
    }

    fn admit(&mut self, _cq: &CqCore) -> Admit<Error> {
        let (attr, got, max) = (Attr::Moderation, self.period_us, u32::from(u16::MAX));
        match got > max {
            true => Admit::Refuse(Error::Invalid { attr, got, max }),
            false => Admit::Go,
        }
    }
}

impl ResizeCq {
    /// Of a queue that may be shared.
    pub(crate) fn request(cq: &Arc<CqCore>, cqe: u32) -> Request<'_, Self> {
        Request::new(cq, Self { cqe })
    }
}

impl ModifyCq {
    /// Of a queue that may be shared.
    pub(crate) fn request(cq: &Arc<CqCore>, count: u16, period: Duration) -> Request<'_, Self> {
        let period_us = u32::try_from(period.as_micros()).unwrap_or(u32::MAX);
        Request::new(cq, Self { count, period_us })
    }
}

impl CreateCq {
    /// On a device that the caller keeps from closing.
    pub(crate) fn request(device: &Arc<DeviceCore>, cqe: u32) -> Request<'_, Self> {
        let args = Self {
            device: Child::new(device, ObjectKind::Cq),
            cqe,
            comp_vector: 0,
            timestamps: false,
            notify: Arc::new(CqNotify::default()),
        };
        Request::new(device, args)
    }

    /// The queue, for a provider that has created it under that number with `cqe` entries.
    pub fn build(self, number: u32, cqe: u32, private: Private, raw: Box<dyn RawCq>) -> Cq {
        let base = Base::new(self.device.get(), ObjectKind::Cq, number, private);
        let core = Arc::new(CqCore {
            base,
            device: self.device,
            cqe: AtomicU32::new(cqe),
            notify: self.notify,
        });
        // The notifier is new, so this has not been set.
        let _ = core.notify.target.set(Arc::downgrade(&core));
        let device = core.base.device();
        let queue: Weak<CqCore> = Arc::downgrade(&core);
        if device.fatal.watch(queue) {
            // No thread has the queue yet: it is told of this when its create has been delivered.
            device.hold_end(&*core);
        }
        Cq { core, raw }
    }
}

impl Device {
    /// Creates a completion queue with room for at least `cqe` completions.
    ///
    /// Choose it large enough for all that may complete: a completion that finds no room is lost,
    /// the queue is in error and its queue pairs go to Error (IBTA vol. 1, 11.2.6.1).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0 or beyond the device's `max_cqe`,
    /// [`Error::Exhausted`] at the device's `max_cq`.
    pub fn create_cq(&self, cqe: u32) -> Request<'_, CreateCq> {
        CreateCq::request(self.core(), cqe)
    }
}

impl Request<'_, CreateCq> {
    /// Calls `handler` at every event of the armed queue: under NoBlock, one call at a time (K14),
    /// once per arm. It usually polls, arms again, and polls once more.
    ///
    /// It is called once more, armed or not, when the device becomes unusable.
    pub fn handler(self, handler: impl FnMut() + Send + 'static) -> Self {
        self.args.notify.handler.set(Box::new(handler));
        self
    }

    /// Has completions carry the time at which they were made, in nanoseconds of the device's clock.
    pub fn timestamps(mut self) -> Self {
        self.args.timestamps = true;
        self
    }

    /// The completion vector, below the device's number of them.
    pub fn comp_vector(mut self, vector: u32) -> Self {
        self.args.comp_vector = vector;
        self
    }
}

pub(crate) mod sealed {
    use super::{Arc, CqCore};

    /// Names a completion queue.
    pub trait NamesCq {
        fn cq_core(&self) -> &Arc<CqCore>;
    }
}

/// What names a completion queue when a queue pair is created: a [`Cq`], or a [shared](crate::Shared) one.
pub trait CqRef: sealed::NamesCq {}

impl CqRef for Cq {}

impl sealed::NamesCq for Cq {
    fn cq_core(&self) -> &Arc<CqCore> {
        self.core()
    }
}

impl Cq {
    /// Takes completions, oldest first, into `out`; yields those that it wrote. A direct call: no
    /// lock, no allocation, no system call, never blocks.
    #[inline]
    pub fn poll<'o>(&mut self, out: &'o mut [Wc]) -> &'o mut [Wc] {
        let n = self.raw.poll(out);
        &mut out[..n]
    }

    /// Asks for one event. A direct call, legal in handlers and routines.
    ///
    /// The answer says whether completions wait already; the loop that loses none is poll until
    /// empty, arm, poll once more.
    #[inline]
    pub fn arm(&mut self, when: Arm) -> Armed {
        self.raw.arm(when)
    }

    /// Says that this queue is not polled for a while, although it is not armed, or was armed before: its owner has polled
    /// several queues and now waits for an event of one of them. A direct call, legal in handlers and routines.
    ///
    /// It changes no completion and no event. A provider in software takes in packets where a consumer polls all the
    /// time, and hears in this way that it does no longer; without it, packets may wait some milliseconds. A call of
    /// [`Cq::arm`] says as much.
    #[inline]
    pub fn pause(&mut self) {
        self.raw.pause();
    }

    /// Waits until there is something to poll.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`] or [`Error::DeviceFailed`] when nothing is there to poll and the device
    /// cannot be used any longer: a loop of this and [`Cq::poll`] ends instead of waiting for ever.
    ///
    /// # Cancel safety
    /// Nothing is taken from the queue; dropping the future loses nothing.
    ///
    /// # Context
    /// Needs no executor of a particular kind. The waker is called on the thread that makes the completion, when
    /// that thread is done with what it is doing.
    pub async fn ready(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// Blocks the thread until there is something to poll.
    ///
    /// # Errors
    /// As [`Cq::ready`]; and [`Error::WouldBlock`] under NoBlock, at once and without side effects (K3).
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(mut cq: verbs_core::Cq) -> Result<(), verbs_core::Error> {
    /// use verbs_core::Wc;
    ///
    /// cq.wait()?;
    /// for wc in cq.poll(&mut [Wc::default(); 16]) {
    ///     println!("{}: {}", wc.wr_id, wc.status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&mut self) -> Result<(), Error> {
        if no_block() {
            return Err(Error::WouldBlock);
        }
        park::block_on(self.ready())
    }

    /// The polling form of [`Cq::ready`].
    ///
    /// # Errors
    /// As [`Cq::ready`].
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // Register first: an event between arm and registration would wake no task.
        self.core.notify.waker.register(cx.waker());
        match self.arm_next() {
            Ok(Armed::Waiting) => Poll::Ready(Ok(())),
            Ok(Armed::Empty) => Poll::Pending,
            Err(reason) => Poll::Ready(Err(reason)),
        }
    }

    /// Arms for the next completion, for the queue's handler: as [`Cq::poll_ready`], without a waker.
    ///
    /// # Errors
    /// As [`Cq::ready`].
    #[doc(hidden)]
    pub fn arm_next(&mut self) -> Result<Armed, Error> {
        if self.raw.arm(Arm::Next) == Armed::Waiting {
            return Ok(Armed::Waiting);
        }
        match self.core.base.device().fatal.reason() {
            None => Ok(Armed::Empty),
            // What was flushed may have come between the two looks.
            Some(_) if self.raw.arm(Arm::Next) == Armed::Waiting => Ok(Armed::Waiting),
            Some(reason) => Err(reason),
        }
    }

    /// How many completions wait, counted up to `most`, without taking any; `None` if the device cannot tell. A
    /// direct call, as [`Cq::poll`].
    ///
    /// ```
    /// # use verbs_core::{Device, testing::Null};
    /// # let device = Device::open(std::sync::Arc::new(Null::default())).wait()?;
    /// let mut cq = device.create_cq(16).wait()?;
    /// assert_eq!(cq.peek(16), Some(0));
    /// # Ok::<(), verbs_core::Error>(())
    /// ```
    pub fn peek(&mut self, most: u32) -> Option<u32> {
        self.raw.peek(most)
    }

    /// Entries that the queue has room for.
    pub fn depth(&self) -> u32 {
        self.core.cqe()
    }

    /// Changes the depth to at least `cqe`; yields the new one. Completions that wait are kept.
    ///
    /// Takes the queue exclusively, so that it does not change while its owner polls. Other threads that share the
    /// queue may poll while it is resized ([`Shared::resize`](crate::Shared::resize)).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0 or beyond the device's `max_cqe`, [`Error::Mismatch`] if
    /// more completions wait than would fit, [`Error::Unsupported`] where queues cannot be resized.
    pub fn resize(&mut self, cqe: u32) -> Request<'_, ResizeCq> {
        ResizeCq::request(&self.core, cqe)
    }

    /// Moderates events: an armed queue fires at `count` completions or `period` after the first,
    /// whichever comes first. Both 0, as at the start: at the first.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a period beyond 65,535 microseconds, [`Error::Unsupported`] where there
    /// is no moderation.
    pub fn moderate(&self, count: u16, period: Duration) -> Request<'_, ModifyCq> {
        ModifyCq::request(&self.core, count, period)
    }

    /// Destroys the queue: Busy while queue pairs use it (K10). Completions that were not polled are
    /// gone with it.
    ///
    /// Legal in the queue's own handler; completes after that has returned (K11).
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back.
    pub fn destroy(self) -> Request<'static, DestroyCq> {
        destroy(self, IfBusy::Refuse)
    }

    /// As [`Cq::destroy`], but waits for the last queue pair instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn destroy_when_idle(self) -> Request<'static, DestroyCq> {
        destroy(self, IfBusy::Wait)
    }

    pub(crate) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }
}

impl CqCore {
    /// Entries that the queue has room for.
    pub fn cqe(&self) -> u32 {
        self.cqe.load(Relaxed)
    }

    /// Takes over a new depth, for a provider that has resized the queue.
    pub fn resized(&self, cqe: u32) {
        self.cqe.store(cqe, Relaxed);
    }
}

/// Where a provider announces that an armed completion queue has an event.
#[derive(Default)]
pub struct CqNotify {
    target: OnceLock<Weak<CqCore>>,
    waker: AtomicWaker,
    handler: CqHandler,
    /// The channel that the queue was created with.
    attached: OnceLock<Attached>,
    unacknowledged: Unacknowledged,
}

impl CqNotify {
    /// The queue that it belongs to, for a provider that has an event about it; `None` if there is
    /// none yet or any longer.
    pub fn target(&self) -> Option<Arc<CqCore>> {
        self.target.get().and_then(Weak::upgrade)
    }

    /// Delivers one event: wakes the task that awaits the queue and runs the queue's handler.
    ///
    /// Call it once per arm, holding no lock. Under NoBlock waker and handler run when the thread is done
    /// with what it is doing (K4). If one panics, the others hear of the event all the same.
    pub fn fire(&self) {
        let mut panics = FirstPanic::default();
        if let Some(waker) = self.waker.take() {
            panics.catch(|| routine::wake(waker));
        }
        if let Some(attached) = self.attached.get() {
            panics.catch(|| self.announce(attached));
        }
        panics.catch(|| self.call_handler());
        panics.resume();
    }

    fn call_handler(&self) {
        if !self.handler.is_set() {
            return;
        }
        let Some(core) = self.target.get().and_then(Weak::upgrade) else {
            return;
        };
        if !self.handler.enter() {
            return;
        }
        let Some(in_use) = InUse::try_enter(Arc::clone(&core) as Arc<dyn Target>, User::Handler)
        else {
            return;
        };
        routine::defer(move || core.notify.run_handler(in_use));
    }

    /// Puts an event into the queue's channel, unless the queue is being destroyed.
    fn announce(&self, attached: &Attached) {
        let Some(target) = self.target.get() else {
            return;
        };
        if self.unacknowledged.count(target)
            && let Some(core) = target.upgrade()
        {
            attached.push(&core.notify);
        }
    }

    pub(crate) fn attach(&self, attached: Attached) {
        // A queue has one channel: the one named first.
        let _ = self.attached.set(attached);
    }

    pub(crate) fn acknowledge(&self) {
        self.unacknowledged.acknowledge();
    }

    /// The queue's destroy was accepted: its events are no longer taken from the channel.
    fn purge(&self) {
        if let Some(attached) = self.attached.get() {
            attached.purge(self);
        }
    }

    fn run_handler(&self, in_use: InUse) {
        let mut panics = FirstPanic::default();
        self.handler.run(&mut panics);
        // The destroy of a queue may have waited for its handler (K11).
        panics.catch(|| drop(in_use));
        panics.resume();
    }
}

impl std::fmt::Debug for CqNotify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqNotify").finish_non_exhaustive()
    }
}

/// Asks for a completion queue's attributes (IBTA vol. 1, 11.2.6.2); arguments of the verb.
#[derive(Debug)]
pub struct QueryCq(());

/// A completion queue as a query shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CqInfo {
    /// Entries that it has room for.
    pub cqe: u32,
    /// Completions that make an event; 0 or 1: each.
    pub moderation_count: u16,
    /// Microseconds after which a single completion makes an event, whatever the count is; 0: never.
    pub moderation_period_us: u32,
    /// A completion found no room and was lost; the queue is in error.
    pub overrun: bool,
}

verb!(QueryCq, CqCore => CqInfo);

impl QueryCq {
    /// Of a queue that may be shared.
    pub(crate) fn request(cq: &Arc<CqCore>) -> Request<'_, Self> {
        Request::new(cq, Self(()))
    }
}

impl Cq {
    /// Asks the device for the queue's attributes.
    ///
    /// # Errors
    /// The provider's: [`Error::Unsupported`] where queues cannot be asked.
    pub fn query(&self) -> Request<'_, QueryCq> {
        QueryCq::request(&self.core)
    }
}
