//! Runs futures in virtual time, on one thread, in an order that depends only on the run.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use slab::Slab;
use verbs_core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Release},
};
use verbs_core::sync::{Arc, AtomicWaker, Mutex};
use verbs_link::time::{Due, Engine};
use verbs_link::time::{Instant, VirtualClock};

use crate::journal::Journal;
use crate::{Counts, Digest, Draw, Network, Sink, StreamNetwork};

/// A simulation: a clock, a network, and the futures that run on them. Clones are the same simulation.
///
/// Futures run one at a time, in the order in which they were woken. When none can continue, the clock jumps to the
/// next deadline, whatever set it: a packet's arrival, an HCA's timer, a [sleep](Sim::sleep). Any future that waits
/// only for virtual time can run here. See the [module](crate) for an example.
#[derive(Clone)]
pub struct Sim {
    inner: Rc<Inner>,
}

struct Inner {
    clock: VirtualClock,
    engine: Engine,
    network: Network,
    streams: StreamNetwork,
    journal: Journal,
    draw: RefCell<Draw>,
    tasks: RefCell<Slab<Option<Task>>>,
    ready: Arc<Ready>,
    /// Tasks spawned so far, so that a stale wake names no task.
    spawned: Cell<u64>,
    /// Waits for a time that are under way.
    sleeping: Arc<AtomicU32>,
}

struct Task {
    number: u64,
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
}

/// The tasks that can continue, in the order of their wakes.
#[derive(Default)]
struct Ready(Mutex<VecDeque<Arc<Woken>>>);

/// What a task's waker is.
struct Woken {
    key: usize,
    number: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, AcqRel) {
            let ready = Arc::clone(&self.ready);
            ready.0.lock().push_back(self);
        }
    }
}

/// Why a run ended before its future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stalled {
    /// No task can continue, and no deadline is set: something that a task waits for was lost. Deadlines of devices do
    /// not count, such as those of keepalives, when for a day no task has continued and none [sleeps](Sim::sleep).
    #[error("everybody waits and no deadline is set, at {0}")]
    Idle(Instant),
    /// The time is over.
    #[error("not done by {0}")]
    Late(Instant),
    /// Deadlines are set for the same instant over and over.
    #[error("time does not go on at {0}")]
    Spinning(Instant),
}

/// How long devices may be busy with themselves before a run has stalled.
const IDLE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Steps of the clock at one instant that are accepted as progress.
const STEPS_MAX: u32 = 1_000_000;

impl Sim {
    /// A simulation with that seed.
    pub fn new(seed: u64) -> Self {
        let clock = VirtualClock::new();
        let engine = Engine::new(clock.clone());
        let mut draw = Draw::new(seed);
        let journal = Journal::default();
        let network = Network::new(engine.clone(), journal.clone(), draw.fork());
        // A seed of its own, so that the draws of the others are what they are without streams.
        let own = Draw::new(!seed);
        let streams = StreamNetwork::new(engine.clone(), journal.clone(), own);
        let inner = Inner {
            clock,
            engine,
            network,
            streams,
            journal,
            draw: RefCell::new(draw),
            tasks: RefCell::default(),
            ready: Arc::default(),
            spawned: Cell::new(0),
            sleeping: Arc::default(),
        };
        Self {
            inner: Rc::new(inner),
        }
    }

    /// Its clock, for HCAs: [`Builder::clock`](hca_sim::Builder::clock).
    pub fn clock(&self) -> &VirtualClock {
        &self.inner.clock
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.inner.clock.now()
    }

    /// Its network.
    pub fn network(&self) -> &Network {
        &self.inner.network
    }

    /// Its streams.
    pub fn streams(&self) -> &StreamNetwork {
        &self.inner.streams
    }

    /// A stream of draws of the caller's own.
    pub fn draw(&self) -> Draw {
        self.inner.draw.borrow_mut().fork()
    }

    /// The digest of everything that has happened.
    pub fn digest(&self) -> Digest {
        self.inner.journal.digest()
    }

    /// How much has happened.
    pub fn counts(&self) -> Counts {
        self.inner.journal.counts()
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.inner.journal
    }

    /// Writes every packet to a capture that Wireshark reads, from now on.
    ///
    /// # Errors
    /// The sink's. [`Sim::finish_capture`] returns later ones.
    pub fn capture(&self, sink: Sink) -> std::io::Result<()> {
        self.inner.journal.capture(sink)
    }

    /// Ends the capture, if there is one.
    ///
    /// # Errors
    /// The sink's first error.
    pub fn finish_capture(&self) -> std::io::Result<()> {
        self.inner.journal.finish()
    }

    /// Starts a future beside the others; it runs while [`Sim::run`] does.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let inner = &*self.inner;
        let number = inner.spawned.get();
        inner.spawned.set(number + 1);
        let mut tasks = inner.tasks.borrow_mut();
        let place = tasks.vacant_entry();
        let woken = Arc::new(Woken {
            key: place.key(),
            number,
            queued: AtomicBool::new(false),
            ready: Arc::clone(&inner.ready),
        });
        let waker = Waker::from(woken);
        waker.wake_by_ref();
        place.insert(Some(Task {
            number,
            future: Box::pin(future),
            waker,
        }));
    }

    /// Runs until `future` is done, with all futures that were [spawned](Sim::spawn).
    ///
    /// # Errors
    /// [`Stalled::Idle`], [`Stalled::Spinning`].
    pub fn run<F: Future>(&self, future: F) -> Result<F::Output, Stalled> {
        self.run_until(Instant::NEVER, future)
    }

    /// As [`Sim::run`], until `end` at most.
    ///
    /// # Errors
    /// [`Stalled`]; in that case the future is dropped.
    pub fn run_until<F: Future>(&self, end: Instant, future: F) -> Result<F::Output, Stalled> {
        let main = Arc::new(Woken {
            key: usize::MAX,
            number: u64::MAX,
            queued: AtomicBool::new(false),
            ready: Arc::clone(&self.inner.ready),
        });
        let waker = Waker::from(main);
        waker.wake_by_ref();
        let mut future = std::pin::pin!(future);
        let mut steps = 0;
        let mut continued = self.now();
        loop {
            while let Some(woken) = self.next_ready() {
                continued = self.now();
                if woken.number != u64::MAX {
                    self.poll_task(&woken);
                } else if let Poll::Ready(output) =
                    future.as_mut().poll(&mut Context::from_waker(&waker))
                {
                    return Ok(output);
                }
            }
            let before = self.now();
            match self.inner.clock.next_deadline() {
                None => return Err(Stalled::Idle(before)),
                Some(next) if next > end => return Err(Stalled::Late(before)),
                Some(_)
                    if before.since(continued) > IDLE_MAX
                        && self.inner.sleeping.load(Acquire) == 0 =>
                {
                    return Err(Stalled::Idle(continued));
                }
                Some(_) => drop(self.inner.clock.step()),
            }
            self.inner.journal.timer(self.now());
            steps = if self.now() > before { 0 } else { steps + 1 };
            if steps > STEPS_MAX {
                return Err(Stalled::Spinning(before));
            }
        }
    }

    /// Drops every task. Tasks may hold the simulation, so it would never end by itself.
    pub(crate) fn clear(&self) {
        let tasks = self.inner.tasks.take();
        drop(tasks);
    }

    fn next_ready(&self) -> Option<Arc<Woken>> {
        let woken = self.inner.ready.0.lock().pop_front()?;
        woken.queued.store(false, Release);
        Some(woken)
    }

    fn poll_task(&self, woken: &Woken) {
        let taken = match self.inner.tasks.borrow_mut().get_mut(woken.key) {
            Some(place)
                if place
                    .as_ref()
                    .is_some_and(|task| task.number == woken.number) =>
            {
                place.take()
            }
            _ => None,
        };
        let Some(mut task) = taken else { return };
        let waker = task.waker.clone();
        match task.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => drop(self.inner.tasks.borrow_mut().remove(woken.key)),
            Poll::Pending => self.inner.tasks.borrow_mut()[woken.key] = Some(task),
        }
    }

    /// Waits that long.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep {
            engine: self.inner.engine.clone(),
            deadline: self.now() + duration,
            alarm: None,
            sleeping: Arc::clone(&self.inner.sleeping),
        }
    }

    /// The output of `future`, or `None` if it takes longer than that, in which case it is dropped.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Option<F::Output> {
        let mut sleep = self.sleep(duration);
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => Pin::new(&mut sleep).poll(cx).map(|()| None),
        })
        .await
    }
}

/// Waits for a time; see [`Sim::sleep`].
#[must_use = "a future does nothing until awaited"]
pub struct Sleep {
    engine: Engine,
    deadline: Instant,
    alarm: Option<Arc<Alarm>>,
    /// Counted there while it has an alarm.
    sleeping: Arc<AtomicU32>,
}

#[derive(Default)]
struct Alarm {
    over: AtomicBool,
    waker: AtomicWaker,
}

impl Due for Alarm {
    fn due(&self, _now: Instant, _token: u64) {
        self.over.store(true, Release);
        self.waker.wake();
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(alarm) = &self.alarm {
            alarm.waker.register(cx.waker());
            return match alarm.over.load(Acquire) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            };
        }
        let alarm = Arc::new(Alarm::default());
        alarm.waker.register(cx.waker());
        let due = Arc::clone(&alarm) as Arc<dyn Due>;
        let _ = self.engine.at(self.deadline, due, 0);
        self.sleeping.fetch_add(1, AcqRel);
        self.alarm = Some(alarm);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if self.alarm.is_some() {
            self.sleeping.fetch_sub(1, AcqRel);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("now", &self.now())
            .field("tasks", &self.inner.tasks.borrow().len())
            .finish_non_exhaustive()
    }
}
