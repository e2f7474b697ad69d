//! A request in the provider's hands.
//!
//! Until the provider says that a request must wait, the command borrows the issuer's stack: it is
//! not `Send` and cannot be stored. [`Command::pend`] is the step that pays for a slot, a place in
//! the list, and a [`Pending`] that can be kept.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::Location;

use smallbox::smallbox;
use smallvec::SmallVec;

use crate::device::DeviceCore;
use crate::error::Error;
use crate::object::header::User;
use crate::object::{InUse, Target};
use crate::provider::{Done, Frame, Hook, Provider};
use crate::routine::{self, AnyRoutine, Parcel, Raise};
use crate::sync::Arc;
use crate::sync::atomic::{
    Ordering::{Relaxed, SeqCst},
    fence,
};
use crate::sync::slot::{Claim, Meta, Published, Slot};
pub use crate::verb::kind::Kind;
use crate::verb::table::{self, Objects, Verbs};
pub use crate::verb::table::{AnyCommand, PendingCommand};
use crate::verb::{RESULT_BYTES, Verb, VerbError};

mod origin;
mod request_id;
mod site;

pub use origin::Origin;
pub use request_id::RequestId;
use site::Forwarded;
pub(crate) use site::{Consumer, Delivery, Outcome, Poller, Site};

/// One verb's request, borrowed from its issuer. Dereferences to the verb's arguments.
///
/// Dropping it completes the request with [`Error::Dropped`].
#[must_use = "a command that is dropped fails its request"]
pub struct Command<'a, V: Verb> {
    args: &'a mut Option<V>,
    pub(crate) reply: Reply<'a, V>,
}

impl<V: Verb> Deref for Command<'_, V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        self.args
            .as_ref()
            .expect("a command holds its arguments until it is answered")
    }
}

impl<'a, V: Verb> Command<'a, V> {
    pub(crate) fn new(site: &'a Site<'a, V>, args: &'a mut Option<V>) -> Self {
        Self {
            args,
            reply: Reply { site, frames: None },
        }
    }

    /// What the verb acts on.
    #[inline]
    pub fn target(&self) -> &'a Arc<V::Target> {
        self.reply.site.target
    }

    /// On whose behalf.
    #[inline]
    pub fn origin(&self) -> Origin {
        self.reply.site.origin
    }

    /// The arguments, for filters that change them.
    #[inline]
    pub fn args_mut(&mut self) -> &mut V {
        self.args
            .as_mut()
            .expect("a command holds its arguments until it is answered")
    }

    /// Separates the arguments from the reply: for creates, whose object takes the arguments in.
    #[inline]
    pub fn split(self) -> (V, Reply<'a, V>) {
        let args = self
            .args
            .take()
            .expect("a command holds its arguments until it is answered");
        (args, self.reply)
    }

    /// Answers. The routine runs after the provider's `issue` has returned (K1); neither command
    /// nor target may be touched afterwards (K6).
    #[inline]
    pub fn complete(self, result: Result<V::Output, V::Error>) {
        drop(self.args.take());
        self.reply.complete(result);
    }

    /// Answers with an error; what the arguments own goes back to the caller.
    pub fn refuse(self, error: Error) {
        let (args, reply) = self.split();
        reply.complete(Err(args.refuse(error)));
    }

    /// Makes it a request that waits: takes a slot, enters it in the list of pending requests, and
    /// yields the arguments with a [`Pending`] to keep.
    ///
    /// `None`: the device's limit of pending requests is reached, and the request has been answered
    /// with [`Error::TooManyRequests`]. Destroys have a slot of their own.
    pub fn pend(self) -> Option<(V, Pending<V>)> {
        let (args, reply) = self.split();
        match reply.pend() {
            Ok(pending) => Some((args, pending)),
            Err(reply) => {
                let max = V::Target::device(reply.site.target).slots.limit();
                reply.complete(Err(args.refuse(Error::TooManyRequests { max })));
                None
            }
        }
    }

    #[inline]
    pub(crate) fn through<'b>(self, frame: &'b Frame<'b>) -> Command<'b, V>
    where
        'a: 'b,
    {
        let (site, _) = self.reply.into_parts();
        Command {
            args: self.args,
            reply: Reply {
                site,
                frames: Some(frame),
            },
        }
    }
}

/// The right to answer a request that has not pended. Dropping it answers [`Error::Dropped`].
#[must_use = "a reply that is dropped fails its request"]
pub struct Reply<'a, V: Verb> {
    site: &'a Site<'a, V>,
    pub(crate) frames: Option<&'a Frame<'a>>,
}

impl<'a, V: Verb> Reply<'a, V> {
    /// Takes it apart without answering.
    #[inline(always)]
    fn into_parts(self) -> (&'a Site<'a, V>, Option<&'a Frame<'a>>) {
        let parts = (self.site, self.frames);
        std::mem::forget(self);
        parts
    }

    /// Answers; see [`Command::complete`].
    #[inline]
    pub fn complete(self, result: Result<V::Output, V::Error>) {
        let (site, frames) = self.into_parts();
        V::completed(site.target, &result);
        let makes_nothing = !Verbs::is_object::<V::Output>();
        let result = if makes_nothing || site.origin == Origin::Trusted {
            result
        } else {
            table::made::<V>(site.origin, result)
        };
        match frames {
            None => site.settle(Outcome::Done(result)),
            Some(frame) => site.settle(Outcome::Done(unwind::<V>(frame, result))),
        }
    }

    /// Makes it a request that waits; gives the reply back when the device's limit is reached.
    ///
    /// # Errors
    /// The reply itself, still to be used.
    #[inline(never)]
    pub fn pend(self) -> Result<Pending<V>, Self> {
        const { assert!(size_of::<Option<Result<V::Output, V::Error>>>() <= RESULT_BYTES) };
        let site = self.site;
        if let Some(mut pending) = site.consumer.pended() {
            let (_, frames) = self.into_parts();
            // Filters below the one that pended first see the result before those above it.
            pending.frames.insert_many(0, owned(frames));
            // The slot stays; its first pend told the front end where it is.
            return Ok(pending);
        }
        let device = V::Target::device(site.target);
        let Some(index) = device.slots.acquire(!V::DESTROYS) else {
            return Err(self);
        };
        let (_, frames) = self.into_parts();
        let target: Arc<V::Target> = Arc::clone(site.target);
        let claims = if V::DESTROYS {
            Claims::Destroys(target)
        } else if V::ORDERED {
            let owed = Delivery::new(Arc::<V::Target>::clone(&target));
            Claims::Ordered(Some(InUse::enter(target, User::Request)), owed)
        } else {
            Claims::Uses(Some(InUse::enter(target, User::Request)))
        };
        let parcel: Parcel = smallbox!(None::<Result<V::Output, V::Error>>);
        let routine = site.consumer.stash();
        let by_routine = routine.is_some();
        let body = Body {
            parcel,
            routine,
            frames: owned(frames),
            claims,
            fail: fail::<V>,
        };
        let meta = Meta {
            verb: V::KIND as u32,
            origin: site.origin.word(),
            target: site.target.base().id().word(),
            location: site.location,
            since_ns: device.now_ns(),
        };
        let generation = device.slots.get(index).occupy(&meta, body, by_routine);
        let slot = SlotRef {
            device: Arc::clone(device),
            index,
            generation,
        };
        site.settle(Outcome::Pended(slot.clone()));
        // With the fence of the removal sweep: one of the two sees the other, so no request that
        // pends during removal is missed by both (K15).
        fence(SeqCst);
        if device.removed.load(Relaxed) && !V::DESTROYS {
            slot.fail(Error::DeviceRemoved);
        }
        Ok(Pending {
            slot: Some(slot),
            target: Arc::clone(site.target),
            origin: site.origin,
            frames: SmallVec::new(),
            verb: PhantomData,
        })
    }
}

impl<V: Verb> Drop for Reply<'_, V> {
    #[cold]
    fn drop(&mut self) {
        let Self { site, frames } = *self;
        Reply { site, frames }.complete(Err(Error::Dropped.into()));
    }
}

/// A pending request in the provider's hands: `Send`, owned, as long-lived as the hardware needs.
///
/// Dropping it answers [`Error::Dropped`]. Answering one that the device's removal has answered
/// before is counted as late and has no effect (K8).
#[must_use = "a pending request that is dropped fails"]
pub struct Pending<V: Verb> {
    slot: Option<SlotRef>,
    target: Arc<V::Target>,
    origin: Origin,
    frames: Frames,
    verb: PhantomData<fn(V)>,
}

impl<V: Verb> Pending<V> {
    fn slot(&self) -> &SlotRef {
        self.slot
            .as_ref()
            .expect("a pending request has its slot until it is used")
    }

    /// Its name for [`Provider::cancel`].
    pub fn id(&self) -> RequestId {
        self.slot().id()
    }

    /// What the verb acts on.
    pub fn target(&self) -> &Arc<V::Target> {
        &self.target
    }

    /// On whose behalf.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether it should end early.
    pub fn cancelled(&self) -> bool {
        let slot = self.slot();
        slot.slot().cancelled(slot.generation)
    }

    /// Answers, from any thread. The routine runs here, or after what this thread is doing if that
    /// is under NoBlock.
    pub fn complete(mut self, result: Result<V::Output, V::Error>) {
        self.finish(result);
    }

    /// Passes the request down to another provider with its arguments, as if it had just been
    /// issued: for queues, quotas, and destroys that waited. That provider may answer at once or
    /// pend again; the slot stays the same.
    pub fn forward(self, mut args: V, to: &dyn Provider)
    where
        V: Verb,
    {
        let target = Arc::clone(&self.target);
        let location = self
            .slot()
            .slot()
            .inspect()
            .map_or_else(Location::caller, |seen| seen.meta.location);
        let (slot, origin) = (self.slot().clone(), self.origin);
        let consumer = Forwarded::new(self);
        let site = Site::<V>::new(&target, origin, location, &consumer);
        let mut held = Some(args);
        let _level = Raise::new();
        to.issue(V::command(Command::new(&site, &mut held)));
        let Some(pending) = consumer.pended() else {
            return;
        };
        let result = match site.outcome.into_inner() {
            Some(Outcome::Done(result)) => result,
            _ => Err(Error::Dropped.into()),
        };
        // A command that was dropped left its arguments behind.
        let result = match held.take() {
            Some(left) => {
                args = left;
                Err(args.refuse(Error::Dropped))
            }
            None => result,
        };
        debug_assert_eq!(slot.id(), pending.id());
        pending.complete(result);
    }

    fn finish(&mut self, result: Result<V::Output, V::Error>) {
        let Some(slot) = self.slot.take() else { return };
        V::completed(&self.target, &result);
        let makes_nothing = !Verbs::is_object::<V::Output>();
        let result = if makes_nothing || self.origin == Origin::Trusted {
            result
        } else {
            table::made::<V>(self.origin, result)
        };
        let mut result = Some(result);
        let level = Raise::new();
        unwind_owned::<V>(std::mem::take(&mut self.frames), &mut result);
        let Some(mut claim) = slot.slot().claim(slot.generation) else {
            slot.device.late.fetch_add(1, Relaxed);
            return;
        };
        let frames = claim.with_body(|body| std::mem::take(&mut body.frames));
        unwind_owned::<V>(frames, &mut result);
        claim.with_body(|body| body.put::<V>(result));
        slot.deliver(claim, level);
    }
}

impl<V: Verb> Drop for Pending<V> {
    fn drop(&mut self) {
        if self.slot.is_some() {
            self.finish(Err(Error::Dropped.into()));
        }
    }
}

impl<V: Verb> fmt::Debug for Pending<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} as {:?}",
            V::KIND,
            self.slot.as_ref().map(SlotRef::id)
        )
    }
}

type Frames = SmallVec<[(Arc<dyn Hook>, u64); 2]>;

fn owned(mut frame: Option<&Frame<'_>>) -> Frames {
    let mut frames = Frames::new();
    while let Some(&Frame { hook, token, next }) = frame {
        frames.push((Arc::clone(hook), token));
        frame = next;
    }
    frames
}

#[inline(never)]
fn unwind<V: Verb>(
    frame: &Frame<'_>,
    result: Result<V::Output, V::Error>,
) -> Result<V::Output, V::Error> {
    let (mut frame, mut result) = (Some(frame), Some(result));
    while let Some(&Frame { hook, token, next }) = frame {
        hook.completed(token, &mut Unwinding::<V>(&mut result));
        frame = next;
    }
    result.expect("a hook leaves a result")
}

fn unwind_owned<V: Verb>(frames: Frames, result: &mut Option<Result<V::Output, V::Error>>) {
    for (hook, token) in frames {
        hook.completed(token, &mut Unwinding::<V>(result));
    }
}

struct Unwinding<'r, V: Verb>(&'r mut Option<Result<V::Output, V::Error>>);

impl<V: Verb> Done for Unwinding<'_, V> {
    fn kind(&self) -> Kind {
        V::KIND
    }

    fn error(&self) -> Option<Error> {
        self.0
            .as_ref()
            .and_then(|result| result.as_ref().err())
            .map(VerbError::reason)
    }

    fn fail(&mut self, error: Error) {
        *self.0 = Some(Err(error.into()));
    }
}

/// What travels with a pending request.
pub(crate) struct Body {
    /// `Option<Result<_, _>>` of the verb.
    parcel: Parcel,
    routine: Option<AnyRoutine>,
    frames: Frames,
    claims: Claims,
    /// Fills the parcel with an error: for completers that do not know the verb.
    fail: fn(&mut Self, Error),
}

/// What a pending request is to its target.
enum Claims {
    /// A user, until the result is there.
    Uses(Option<InUse>),
    /// The same, of a verb whose result the target's events must not overtake.
    Ordered(Option<InUse>, Delivery),
    /// Its destroy, which is no user of it and has a slot beyond the limit.
    Destroys(Arc<dyn Target>),
}

impl Body {
    fn ordinary(&self) -> bool {
        !matches!(self.claims, Claims::Destroys(_))
    }

    /// What made it a user of its target.
    fn take_use(&mut self) -> Option<InUse> {
        match &mut self.claims {
            Claims::Uses(in_use) | Claims::Ordered(in_use, _) => in_use.take(),
            Claims::Destroys(_) => None,
        }
    }

    fn put<V: Verb>(&mut self, result: Option<Result<V::Output, V::Error>>) {
        if let Claims::Ordered(_, owed) = &self.claims
            && V::ORDERED
        {
            let has_effect = |result: &Result<_, _>| result.as_ref().is_ok_and(V::took_effect);
            owed.settle(result.as_ref().is_some_and(has_effect));
        }
        let any: &mut (dyn Any + Send) = &mut *self.parcel;
        if let Some(place) = any.downcast_mut::<Option<Result<V::Output, V::Error>>>() {
            *place = result;
        }
    }

    fn take<V: Verb>(&mut self) -> Option<Result<V::Output, V::Error>> {
        let any: &mut (dyn Any + Send) = &mut *self.parcel;
        any.downcast_mut::<Option<Result<V::Output, V::Error>>>()
            .and_then(Option::take)
    }

    /// The routine with the result; afterwards the request is no longer a user of its target.
    pub(crate) fn run_routine(mut self) {
        if let Some(mut routine) = self.routine.take() {
            routine.run(&mut *self.parcel);
        }
    }
}

fn fail<V: Verb>(body: &mut Body, error: Error) {
    let mut result = Some(Err(error.into()));
    let frames = std::mem::take(&mut body.frames);
    unwind_owned::<V>(frames, &mut result);
    body.put::<V>(result);
    if let Claims::Destroys(target) = &body.claims {
        target.release();
    }
}

/// A pending request, from either side.
#[derive(Clone)]
pub(crate) struct SlotRef {
    pub(crate) device: Arc<DeviceCore>,
    index: u32,
    generation: u32,
}

impl SlotRef {
    pub(crate) fn new(device: &Arc<DeviceCore>, id: RequestId) -> Self {
        Self {
            device: Arc::clone(device),
            index: id.index,
            generation: id.generation,
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        RequestId {
            index: self.index,
            generation: self.generation,
        }
    }

    pub(crate) fn slot(&self) -> &Slot<Body> {
        self.device.slots.get(self.index)
    }

    /// Completes it with an error if no other completer was faster.
    pub(crate) fn fail(&self, error: Error) -> bool {
        let Some(mut claim) = self.slot().claim(self.generation) else {
            return false;
        };
        let level = Raise::new();
        // Hooks are foreign code, but the claim is no lock: no thread waits for it.
        claim.with_body(|body| (body.fail)(body, error));
        self.deliver(claim, level);
        true
    }

    /// Hands the result to the routine or task that waits for it, and lowers the level. A task is woken
    /// afterwards, so that its waker does not run under a lock of a provider that collects what becomes due
    /// (K4).
    fn deliver(&self, mut claim: Claim<'_, Body>, level: Raise) {
        if claim.by_routine() {
            let body = claim.into_body();
            self.device.slots.release(self.index, body.ordinary());
            routine::dispatch(body, &level);
            return;
        }
        let in_use = claim.with_body(Body::take_use);
        match claim.publish() {
            Published::Consumer(waker) => {
                drop(in_use);
                drop(level);
                if let Some(waker) = waker {
                    routine::wake(waker);
                }
            }
            // The future was dropped: a created object's own drop destroys it (K9).
            Published::Orphan(body) => {
                self.device.slots.release(self.index, body.ordinary());
                drop(in_use);
                drop(body);
            }
        }
    }

    /// The consumer has the body: gives the slot back and yields the result.
    pub(crate) fn consume<V: Verb>(&self, mut body: Body) -> Result<V::Output, V::Error> {
        self.device.slots.release(self.index, body.ordinary());
        body.take::<V>()
            .unwrap_or_else(|| Err(Error::Dropped.into()))
    }

    /// The consumer goes away before the result has come, or without looking at it.
    pub(crate) fn abandon(&self) {
        if let Some(body) = self.slot().detach() {
            self.device.slots.release(self.index, body.ordinary());
        }
    }
}
