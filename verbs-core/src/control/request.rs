//! A request: what a caller formats and issues.
//!
//! A request is inert until it goes through one of three front ends, which share everything behind
//! them: [`Request::issue`] with a routine, `.await`, and [`Request::wait`]. Until a provider says
//! that the verb must wait, the request lives on the issuer's stack.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::command::{
    AnyCommand, Command, Consumer, Delivery, Origin, Outcome, Poller, RequestId, Site, SlotRef,
};
use crate::error::Error;
use crate::object::Target;
use crate::routine::{self, AnyRoutine, Raise, no_block};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::park::block_on;
use crate::verb::table;
use crate::verb::{Admit, Verb};
use crate::watch::{self, Current};

mod deliver;

use deliver::{Finish, announce, deliver};

/// A verb with its arguments and target, not issued yet. Dropping it does nothing.
///
/// # Completion
/// The provider answers inline or later, on any thread; the three front ends say how one learns of
/// it. Whether a verb is slow depends on the provider.
///
/// # Context
/// Building one never blocks. [`Request::issue`] is legal everywhere, also in routines and handlers.
///
/// # Cancel safety
/// The future issues at its first poll. Dropped before, nothing happened; dropped later, the verb
/// runs on and what it creates is destroyed (K9).
#[must_use = "a request does nothing until issued, awaited or waited for"]
pub struct Request<'a, V: Verb> {
    target: Held<'a, V::Target>,
    pub(crate) args: V,
    origin: Origin,
}

/// The target: borrowed from its handle, or owned by requests that consumed the handle.
enum Held<'a, T> {
    Borrowed(&'a Arc<T>),
    Owned(Arc<T>),
}

impl<T> Held<'_, T> {
    #[inline]
    fn get(&self) -> &Arc<T> {
        match self {
            Held::Borrowed(target) => target,
            Held::Owned(target) => target,
        }
    }
}

/// What [`Request::issue`] returns: a hint (K1).
#[derive(Debug)]
pub enum Issued {
    /// The provider has answered. The routine has run, or runs when the present one is done.
    Completed,
    /// The provider had not answered; it may have by now.
    Pending(CancelHandle),
}

/// Asks for a pending request to end early.
#[derive(Clone)]
pub struct CancelHandle(SlotRef);

impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CancelHandle({:?})", self.id())
    }
}

impl CancelHandle {
    /// A hint that never waits: the owner of the command decides and completes it (K8). `false`: too
    /// late, the request is being completed or was.
    ///
    /// Legal from any context. Accepted destroys take no notice.
    pub fn cancel(&self) -> bool {
        let id = self.0.id();
        let marked = self.0.slot().cancel(id.generation);
        if marked {
            let _level = Raise::new();
            if !self.0.device.events.cancel(id) {
                self.0.device.provider.cancel(id);
            }
        }
        marked
    }

    /// The request's name, as the list of pending requests shows it.
    pub fn id(&self) -> RequestId {
        self.0.id()
    }
}

impl<'a, V: Verb> Request<'a, V> {
    #[inline]
    pub(crate) fn new(target: &'a Arc<V::Target>, args: V) -> Self {
        Self {
            target: Held::Borrowed(target),
            args,
            origin: Origin::Trusted,
        }
    }

    #[inline]
    pub(crate) fn owned(target: Arc<V::Target>, args: V) -> Request<'static, V> {
        Request {
            target: Held::Owned(target),
            args,
            origin: Origin::Trusted,
        }
    }

    /// Makes it on behalf of that origin (K16): a filter or daemon passes its client's origin on.
    ///
    /// What it creates is that client's. Of a client, a request ends with [`Error::AccessDenied`], and nothing has been
    /// done, if it acts on or names an object that another origin made, or if it closes or changes a device that is not
    /// its own. A trusted origin may do everything.
    ///
    /// # Examples
    /// ```
    /// # use verbs_core::testing::Null;
    /// use verbs_core::{Device, Error, Origin};
    ///
    /// # let device = Device::open(std::sync::Arc::new(Null::default())).wait()?;
    /// let [seven, eight] = [7, 8].map(|n| Origin::client(n).expect("not 0"));
    /// let pd = device.alloc_pd().on_behalf_of(seven).wait()?;
    /// let refused = pd.dealloc().on_behalf_of(eight).wait().unwrap_err();
    /// assert_eq!(refused.error, Error::AccessDenied);
    /// refused.handle.expect("it comes back").dealloc().on_behalf_of(seven).wait()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn on_behalf_of(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// Issues; `routine` runs exactly once, here or later (K1).
    ///
    /// Here means: in this call, after the provider has returned. Called under NoBlock, this returns
    /// first and the routine runs when the present one is done. Never blocks (K2).
    #[inline]
    #[track_caller]
    pub fn issue<F>(self, routine: F) -> Issued
    where
        F: FnOnce(Result<V::Output, V::Error>) + Send + 'static,
    {
        let location = Location::caller();
        if no_block() {
            return self.issue_nested(routine, location);
        }
        let Self {
            target,
            args,
            origin,
        } = self;
        let consumer = Routine::<V, F>::new(routine);
        let mut site = Site::new(target.get(), origin, location, &consumer);
        let mut args = Some(args);
        // Raised around the provider too: nothing foreign runs inside its frames (K1).
        let _level = Raise::new();
        let is_admitted = drive(&mut site, &mut args);
        match site.outcome.into_inner() {
            Some(Outcome::Pended(slot)) => Issued::Pending(CancelHandle(slot)),
            Some(Outcome::Done(result)) => {
                let _owed = Delivery::of::<V>(is_admitted, target.get(), &result);
                if let Some(routine) = consumer.routine.take() {
                    deliver::<V>(result, routine);
                }
                Issued::Completed
            }
            None => unanswered(),
        }
    }

    #[inline(never)]
    fn issue_nested<F>(self, routine: F, location: &'static Location<'static>) -> Issued
    where
        F: FnOnce(Result<V::Output, V::Error>) + Send + 'static,
    {
        routine::reserve();
        let Self {
            target,
            args,
            origin,
        } = self;
        let consumer = Routine::<V, F>::new(routine);
        let mut site = Site::new(target.get(), origin, location, &consumer);
        let mut args = Some(args);
        let is_admitted = drive(&mut site, &mut args);
        match site.outcome.into_inner() {
            Some(Outcome::Pended(slot)) => Issued::Pending(CancelHandle(slot)),
            Some(Outcome::Done(result)) => {
                let owed = Delivery::of::<V>(is_admitted, target.get(), &result);
                match consumer.routine.take() {
                    Some(routine) if V::ORDERED => routine::queue_call(move || {
                        let _owed = owed;
                        deliver::<V>(result, routine);
                    }),
                    Some(routine) => {
                        routine::queue_call(move || deliver::<V>(result, routine));
                    }
                    None => {}
                }
                Issued::Completed
            }
            None => unanswered(),
        }
    }

    /// Issues and blocks the thread until the verb has completed.
    ///
    /// # Errors
    /// The verb's; and [`Error::WouldBlock`] under NoBlock, at once and without side effects (K3).
    #[track_caller]
    pub fn wait(self) -> Result<V::Output, V::Error> {
        let location = Location::caller();
        if no_block() {
            return Err(self.args.refuse(Error::WouldBlock));
        }
        let Self {
            target,
            args,
            origin,
        } = self;
        let mut site = Site::new(target.get(), origin, location, &Poller);
        let mut args = Some(args);
        let level = Raise::new();
        let is_admitted = drive(&mut site, &mut args);
        drop(level);
        let (result, _owed) = match site.outcome.into_inner() {
            Some(Outcome::Done(result)) => {
                let owed = Delivery::of::<V>(is_admitted, target.get(), &result);
                (result, owed)
            }
            Some(Outcome::Pended(slot)) => (wait_for::<V>(&slot), None),
            None => unanswered(),
        };
        announce::<V>(&result);
        result
    }
}

/// Lets the provider have the request. Afterwards there is an outcome. `false`: the verb was not admitted.
#[inline(always)]
fn drive<V: Verb>(site: &mut Site<'_, V>, args: &mut Option<V>) -> bool {
    if site.origin != Origin::Trusted && is_denied(site, args) {
        return false;
    }
    let Some(verb) = args.as_mut() else {
        return false;
    };
    let device = V::Target::device(site.target);
    match verb.admit(site.target) {
        Admit::Go if !V::DESTROYS && device.removed.load(Relaxed) => {
            answer(site, args, Error::DeviceRemoved);
            return true;
        }
        Admit::Go => {}
        Admit::Refuse(error) => {
            *args = None;
            site.outcome = OnceCell::from(Outcome::Done(Err(error)));
            return false;
        }
        Admit::Park => {
            if let Some((verb, pending)) = Command::new(site, args).pend() {
                verb.park(Arc::clone(site.target), pending);
            }
            return true;
        }
    }
    let current = Current {
        verb: V::KIND as u32,
        origin: site.origin.word(),
        target: site.target.base().id().word(),
        location: site.location,
    };
    let command: AnyCommand<'_> = V::command(Command::new(site, args));
    watch::during(device.number, current, || device.provider.issue(command));
    if args.is_some() {
        // The command was dropped; what its arguments own goes back to the caller.
        answer(site, args, Error::Dropped);
    }
    true
}

/// Whether a client may not have that request made; it is answered then.
#[cold]
#[inline(never)]
fn is_denied<V: Verb>(site: &mut Site<'_, V>, args: &mut Option<V>) -> bool {
    let is_allowed = |verb: &V| table::allows(site.origin, &**site.target, verb);
    let denied = !args.as_ref().is_some_and(is_allowed);
    if denied {
        answer(site, args, Error::AccessDenied);
    }
    denied
}

#[cold]
#[inline(never)]
fn answer<V: Verb>(site: &mut Site<'_, V>, args: &mut Option<V>, error: Error) {
    if let Some(verb) = args.take() {
        site.outcome = OnceCell::from(Outcome::Done(Err(verb.refuse(error))));
    }
}

/// A reply can only be forgotten with `mem::forget`, which leaves nothing to answer with.
#[cold]
fn unanswered() -> ! {
    unreachable!(
        "a provider forgot a reply (mem::forget); dropping it would have failed the request"
    )
}

/// The consumer side of [`Request::issue`].
struct Routine<V, F> {
    routine: Cell<Option<F>>,
    verb: std::marker::PhantomData<fn(V)>,
}

impl<V, F> Routine<V, F> {
    #[inline(always)]
    fn new(routine: F) -> Self {
        Self {
            routine: Cell::new(Some(routine)),
            verb: std::marker::PhantomData,
        }
    }
}

impl<V, F> Consumer<V> for Routine<V, F>
where
    V: Verb,
    F: FnOnce(Result<V::Output, V::Error>) + Send + 'static,
{
    fn stash(&self) -> Option<AnyRoutine> {
        let routine = self.routine.take()?;
        Some(smallbox::smallbox!(Finish::<V, F>::new(routine)))
    }
}

#[inline(never)]
fn wait_for<V: Verb>(slot: &SlotRef) -> Result<V::Output, V::Error> {
    let body = block_on(poll_fn(|cx| slot.slot().poll(cx)));
    slot.consume::<V>(body)
}

/// A request as a future; made by `.await`.
///
/// # Cancel safety
/// Dropping it detaches the request (K9). Forgetting it (`mem::forget`) does not: the result is kept for ever,
/// and if that is an object, its parents stay Busy.
#[must_use = "a future does nothing until polled"]
pub struct RequestFuture<'a, V: Verb> {
    target: Held<'a, V::Target>,
    /// `Some` until the first poll.
    args: Option<V>,
    origin: Origin,
    location: &'static Location<'static>,
    parked: Parked,
}

/// The slot of a future's request, while that pends. Dropping it detaches the request (K9).
struct Parked(Option<SlotRef>);

impl Drop for Parked {
    #[inline(always)]
    fn drop(&mut self) {
        // One look for the usual case: the request has completed or was never issued.
        if self.0.is_some() {
            self.abandon();
        }
    }
}

impl Parked {
    #[cold]
    #[inline(never)]
    fn abandon(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.abandon();
        }
    }
}

impl<V: Verb> Unpin for RequestFuture<'_, V> {}

impl<'a, V: Verb> IntoFuture for Request<'a, V> {
    type Output = Result<V::Output, V::Error>;
    type IntoFuture = RequestFuture<'a, V>;

    #[inline(always)]
    #[track_caller]
    fn into_future(self) -> RequestFuture<'a, V> {
        let Self {
            target,
            args,
            origin,
        } = self;
        RequestFuture {
            target,
            args: Some(args),
            origin,
            location: Location::caller(),
            parked: Parked(None),
        }
    }
}

impl<V: Verb> Future for RequestFuture<'_, V> {
    type Output = Result<V::Output, V::Error>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let me = &mut *self;
        if me.args.is_some() {
            let mut site = Site::new(me.target.get(), me.origin, me.location, &Poller);
            let level = Raise::new();
            let is_admitted = drive(&mut site, &mut me.args);
            drop(level);
            match site.outcome.into_inner() {
                Some(Outcome::Done(result)) => {
                    let _owed = Delivery::of::<V>(is_admitted, me.target.get(), &result);
                    announce::<V>(&result);
                    return Poll::Ready(result);
                }
                Some(Outcome::Pended(slot)) => me.parked.0 = Some(slot),
                None => unanswered(),
            }
        }
        me.poll_pended(cx)
    }
}

impl<V: Verb> RequestFuture<'_, V> {
    /// The way to cancel, once the first poll has issued the request and it pends.
    pub fn cancel_handle(&self) -> Option<CancelHandle> {
        self.parked.0.clone().map(CancelHandle)
    }

    #[inline(never)]
    fn poll_pended(&mut self, cx: &mut Context<'_>) -> Poll<Result<V::Output, V::Error>> {
        let slot = self
            .parked
            .0
            .as_ref()
            .expect("a future is not polled after it was ready");
        let Poll::Ready(body) = slot.slot().poll(cx) else {
            return Poll::Pending;
        };
        let result = slot.consume::<V>(body);
        announce::<V>(&result);
        self.parked.0 = None;
        Poll::Ready(result)
    }
}
