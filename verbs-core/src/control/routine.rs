//! NoBlock, and the trampoline that keeps routines from nesting.
//!
//! Code that may not wait runs with the thread's *level* raised: routines, handlers, wakers and the
//! provider's own frames (K3). What becomes due in the meantime on the same thread is queued, and the
//! outermost frame drains the queue before it lowers the level. So no routine runs inside another,
//! none inside a provider's frame (K1), and a million verbs chained through routines need the stack
//! of one (K5).
//!
//! The queue is per thread and needs no lock. Its room is reserved before a provider is called
//! from a routine, so an inline completion never allocates when it is delivered (K7).
//!
//! The queue has no destructor of its own, so it works to the very end of a thread: a handle in a
//! thread-local value is dropped when the values of the thread go, in an order that no code chooses.
//!
//! Code of the client's may panic. Code that has several calls to make makes all of them and passes the
//! first panic on at the end ([`FirstPanic`]).

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::task::Waker;

use smallbox::SmallBox;
use smallbox::space::{S4, S16, S32};

use crate::command::Body;
use crate::panics::FirstPanic;
use crate::sync::panicking;

/// The value of a pended request's result, or of one about to be: `Option<Result<_, _>>`.
pub(crate) type Parcel = SmallBox<dyn Any + Send, S16>;

/// A routine with its type forgotten.
pub(crate) trait Routine: Send {
    /// Calls it with the result in the parcel; the second time does nothing.
    fn run(&mut self, parcel: &mut (dyn Any + Send));
}

pub(crate) type AnyRoutine = SmallBox<dyn Routine, S16>;

/// Jobs in order, each with its number.
type Queue<J> = RefCell<ManuallyDrop<VecDeque<(u64, J)>>>;
type Call = SmallBox<dyn FnMut() + Send, S32>;
/// A call that captures no more than a handler's or a waker's does.
type SmallCall = SmallBox<dyn FnMut() + Send, S4>;

enum Job {
    /// A pended request's routine with its result.
    Routine(Body),
    /// Anything else.
    Call(Call),
}

impl Job {
    fn run(self) {
        match self {
            Self::Routine(body) => body.run_routine(),
            Self::Call(mut call) => call(),
        }
    }
}

/// One level in `STATE`.
const LEVEL: u64 = 1;
/// One job in `STATE`.
const QUEUED: u64 = 1 << 32;

thread_local! {
    /// The level in the lower half, the number of jobs in `QUEUE` in the upper. One word, so that an
    /// inline verb looks once whether anything is to be drained, and at no thread-local with a
    /// destructor. Jobs are queued under a level only, so zero means level zero.
    static STATE: Cell<u64> = const { Cell::new(0) };
    /// Never dropped, so that destructors of other thread-local values find it; `BUFFER` gives its memory
    /// back.
    static QUEUE: Queue<Job> =
        const { RefCell::new(ManuallyDrop::new(VecDeque::new())) };
    /// The small calls among the jobs, apart, so that one is not moved as if it were large: handlers and wakers are
    /// most of what is queued. The number beside each says in which order both queues are drained.
    static SMALL: Queue<SmallCall> =
        const { RefCell::new(ManuallyDrop::new(VecDeque::new())) };
    /// The number of the next job.
    static NEXT: Cell<u64> = const { Cell::new(0) };
    /// The thread's values are being dropped, this one's were.
    static ENDING: Cell<bool> = const { Cell::new(false) };
    /// Touched when the queue gets memory.
    static BUFFER: Buffer = const { Buffer };
}

/// Gives the memory of the thread's queue back when the thread ends.
struct Buffer;

impl Drop for Buffer {
    fn drop(&mut self) {
        // From here on the queue gives its memory back whenever it was drained.
        ENDING.set(true);
        give_memory_back();
    }
}

/// Frees the queue's memory. A job is in it only if the client has leaked a level.
#[cold]
fn give_memory_back() {
    QUEUE.with(|queue| queue.borrow_mut().shrink_to_fit());
    SMALL.with(|queue| queue.borrow_mut().shrink_to_fit());
}

/// Whether the calling code may not wait: it runs in a routine, a handler, a waker or a provider.
#[inline]
pub fn no_block() -> bool {
    STATE.get() != 0
}

/// Runs `f` under NoBlock, as the crate's own callers of foreign code do.
///
/// For providers and drivers of events: whatever becomes due inside `f` runs when the outermost
/// such frame ends. A provider that completes requests from its own thread *while it holds a lock*
/// must wrap that loop, or routines would run under its lock (K4). Of several that panic, the first panic
/// is passed on, when all have run.
///
/// ```
/// # use verbs_core::{collect, no_block};
/// assert!(!no_block());
/// collect(|| assert!(no_block()));
/// ```
pub fn collect<R>(f: impl FnOnce() -> R) -> R {
    let _level = Raise::new();
    f()
}

/// The level is raised while this lives; dropping the outermost one drains the queue first.
///
/// The form of [`collect`] for a caller that has the level raised while it holds a lock: declare it before the
/// guard, so that what is queued runs when the lock is free.
#[derive(Debug)]
pub struct Raise(PhantomData<*mut ()>);

impl Raise {
    /// Raises the level of the calling thread.
    #[inline(always)]
    #[expect(clippy::new_without_default, reason = "it acts on the thread")]
    pub fn new() -> Self {
        STATE.set(STATE.get() + LEVEL);
        Self(PhantomData)
    }
}

impl Drop for Raise {
    #[inline(always)]
    fn drop(&mut self) {
        if STATE.get() == LEVEL {
            STATE.set(0);
        } else {
            lower();
        }
    }
}

/// Lowers the level, and drains the queue before if it is the outermost one.
#[inline(never)]
fn lower() {
    let state = STATE.get();
    if state >= QUEUED && state % QUEUED == LEVEL {
        drain();
    }
    STATE.set(STATE.get() - LEVEL);
}

/// Makes room for one more job before a provider is called (K7).
#[inline]
pub(crate) fn reserve() {
    QUEUE.with(|queue| {
        let mut queue = queue.borrow_mut();
        if queue.len() == queue.capacity() {
            grow(&mut queue);
        }
    });
}

#[cold]
fn grow<J>(queue: &mut VecDeque<J>) {
    // Past its end the thread has no `BUFFER`; then `drain` gives the memory back.
    let _ = BUFFER.try_with(|_| ());
    queue.reserve(1);
}

/// Runs `call` where routines run: now if nothing of that kind is under way on this thread, else
/// when it is done. So calls that lead to each other need the stack of one (K5).
///
/// For providers whose objects call each other, and for services above the verbs that call routines of
/// their own. Never blocks, but for what `call` does.
pub fn defer(call: impl FnOnce() + Send + 'static) {
    if no_block() {
        queue_call(call);
    } else {
        collect(call);
    }
}

/// Wakes a task where routines run: now, or when what is under way on this thread is done. So a waker runs
/// under no lock of the caller that has a reason to wake it (K4).
///
/// For providers and services above the verbs, in place of [`Waker::wake`]. Never blocks, but for what
/// the waker does.
pub fn wake(waker: Waker) {
    defer(move || waker.wake());
}

/// Queues `call` behind what the thread is doing; the caller runs under NoBlock.
pub(crate) fn queue_call(call: impl FnOnce() + Send + 'static) {
    let mut call = Some(call);
    let call = move || {
        if let Some(call) = call.take() {
            call();
        }
    };
    if size_of_val(&call) <= size_of::<S4>() && align_of_val(&call) <= align_of::<S4>() {
        SMALL.with(|queue| push(queue, smallbox::smallbox!(call)));
    } else {
        QUEUE.with(|queue| push(queue, Job::Call(smallbox::smallbox!(call))));
    }
}

/// Runs a pended request's routine, or queues it if the level that the caller has raised is not the only
/// one. With nothing around it and nothing queued, this is where `drain` would run it.
pub(crate) fn dispatch(body: Body, _level: &Raise) {
    if STATE.get() == LEVEL {
        body.run_routine();
    } else {
        QUEUE.with(|queue| push(queue, Job::Routine(body)));
    }
}

/// Queues a job in one of the two queues.
fn push<J>(queue: &Queue<J>, job: J) {
    let mut queue = queue.borrow_mut();
    if queue.len() == queue.capacity() {
        grow(&mut queue);
    }
    queue.push_back((number(), job));
    STATE.set(STATE.get() + QUEUED);
}

/// The number of a job that is being queued.
fn number() -> u64 {
    NEXT.replace(NEXT.get().wrapping_add(1))
}

/// Runs what is queued. A routine that panics takes neither the queued ones with it nor the level.
#[cold]
#[inline(never)]
fn drain() {
    /// Dropped only if a job panics, so that one that does not pays nothing for it. That panic is the first
    /// and goes on; later ones are dropped.
    struct Rest;
    impl Drop for Rest {
        #[cold]
        fn drop(&mut self) {
            run_queued_catching();
            end_drain();
            // The caller, which would lower the level, is left here.
            STATE.set(STATE.get() - LEVEL);
        }
    }
    if panicking() {
        // The level is lowered by a destructor, which no second panic may leave.
        run_queued_catching();
    } else {
        let rest = Rest;
        run_queued();
        std::mem::forget(rest);
    }
    end_drain();
}

/// On a thread that unwinds already: the panic that it has goes on.
#[cold]
fn run_queued_catching() {
    let mut panics = FirstPanic::default();
    while panics.catch(run_queued).is_none() {}
    panics.resume();
}

#[inline(always)]
fn end_drain() {
    if ENDING.get() {
        give_memory_back();
    }
}

fn run_queued() {
    while STATE.get() >= QUEUED {
        let small = SMALL.with(|queue| queue.borrow().front().map(|(number, _)| *number));
        if let Some(number) = small
            && is_next(number)
        {
            let call = SMALL.with(|queue| queue.borrow_mut().pop_front());
            STATE.set(STATE.get() - QUEUED);
            if let Some((_, mut call)) = call {
                call();
            }
        } else if let Some((_, job)) = QUEUE.with(|queue| queue.borrow_mut().pop_front()) {
            STATE.set(STATE.get() - QUEUED);
            job.run();
        } else {
            debug_assert!(false, "what is counted is queued");
            return;
        }
    }
}

/// Whether the small call with that number was queued before all larger jobs. Numbers of jobs that wait are close to each
/// other, whatever they have wrapped around.
fn is_next(number: u64) -> bool {
    let large = QUEUE.with(|queue| queue.borrow().front().map(|(number, _)| *number));
    large.is_none_or(|large| number.wrapping_sub(large).cast_signed() < 0)
}
