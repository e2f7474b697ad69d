//! What happens when a request of a client has completed.

use verbs_core::host::Handle;
use verbs_core::host::command::{Answer, Failure, Made, encode_result};
use verbs_core::host::quota::Quota;
use verbs_core::object::Refused;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Error, Origin, Request, Verb};

use super::object::Object;
use super::{Reply, State};

/// Answers one command.
pub(super) struct Done {
    state: Arc<Mutex<State>>,
    pub(super) origin: Origin,
    reply: Reply,
}

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

impl Done {
    pub(super) fn new(state: &Arc<Mutex<State>>, origin: Origin, reply: Reply) -> Self {
        Self {
            state: Arc::clone(state),
            origin,
            reply,
        }
    }

    pub(super) fn state(&self) -> &Arc<Mutex<State>> {
        &self.state
    }

    pub(super) fn answer(self, answer: Answer) {
        (self.reply)(encode_result(&Ok(answer)));
    }

    pub(super) fn fail(self, failure: Failure) {
        (self.reply)(encode_result(&Err(failure)));
    }

    pub(super) fn refuse(self, error: Error) {
        self.fail(Failure::Verb(error));
    }

    /// Another of the client's objects, of the kind that `of` picks.
    pub(super) fn find(&self, handle: Handle) -> Result<Arc<Object>, Failure> {
        let object = self.state.lock().objects.get(handle).cloned();
        let fits = |object: &Arc<Object>| handle.kind() == Some(object.kind());
        object
            .filter(fits)
            .ok_or(Failure::Verb(Error::AccessDenied))
    }

    /// Whether the client may have one more object, and that many more bytes of memory, which count as its own from now
    /// on.
    pub(super) fn admit(&self, bytes: u64) -> Result<(), Failure> {
        let mut state = self.state.lock();
        if state.objects.len() >= Quota::Objects.max() as usize {
            return Err(Failure::Quota(Quota::Objects.exceeded()));
        }
        let taken = state.usage.take_many(Quota::Memory, bytes.div_ceil(MIB));
        taken.map_err(Failure::Quota)
    }

    /// The memory no longer counts as the client's.
    pub(super) fn give_back(&self, bytes: u64) {
        give_back(&mut self.state.lock(), bytes);
    }

    /// Issues a request on the client's behalf; `answer` encodes its output.
    pub(super) fn issue<V: Verb<Error = Error>>(
        self,
        request: Request<'_, V>,
        answer: impl FnOnce(V::Output) -> Answer + Send + 'static,
    ) {
        let origin = self.origin;
        request
            .on_behalf_of(origin)
            .issue(move |result| match result {
                Ok(output) => self.answer(answer(output)),
                Err(error) => self.refuse(error),
            });
    }

    /// Issues a create; the object gets a handle.
    pub(super) fn create<V: Verb<Error = Error>>(
        self,
        request: Request<'_, V>,
        object: impl FnOnce(V::Output) -> Object + Send + 'static,
        answer: impl FnOnce(Made, &Object) -> Answer + Send + 'static,
    ) {
        let origin = self.origin;
        request
            .on_behalf_of(origin)
            .issue(move |result| match result {
                Ok(output) => self.enter(object(output), answer),
                Err(error) => self.refuse(error),
            });
    }

    /// Gives an object a handle.
    pub(super) fn enter(
        self,
        object: Object,
        answer: impl FnOnce(Made, &Object) -> Answer + Send + 'static,
    ) {
        let (kind, number) = (object.kind(), object.number());
        let object = Arc::new(object);
        let entered = {
            let mut state = self.state.lock();
            match state.is_over {
                // Its own drop destroys it.
                true => None,
                false => state.objects.insert(kind, Arc::clone(&object)).ok(),
            }
        };
        match entered {
            Some(handle) => {
                let answer = answer(Made { handle, number }, &object);
                // No other lookup may find it in use.
                drop(object);
                self.answer(answer);
            }
            None => {
                self.give_back(object.bytes());
                drop(object);
                self.fail(Failure::Quota(Quota::Objects.exceeded()));
            }
        }
    }

    /// Takes an object out of the table for a verb that consumes it.
    pub(super) fn take(&self, handle: Handle, object: Arc<Object>) -> Result<Object, Failure> {
        drop(object);
        let taken = self.state.lock().objects.take(handle);
        let taken = taken.and_then(Arc::into_inner);
        taken.ok_or(Failure::Verb(Error::Closing))
    }

    /// Puts it back.
    pub(super) fn restore(&self, handle: Handle, object: Object) {
        let late = {
            let mut state = self.state.lock();
            match state.is_over {
                true => Err(Arc::new(object)),
                false => state.objects.restore(handle, Arc::new(object)),
            }
        };
        // It belongs to a client that has ended: destroyed under no lock.
        drop(late);
    }

    /// Its handle no longer names anything.
    pub(super) fn forget(&self, handle: Handle, bytes: u64) {
        let mut state = self.state.lock();
        let left = state.objects.remove(handle);
        give_back(&mut state, bytes);
        drop(state);
        drop(left);
    }

    /// Issues a destroy of an object that was taken out; if it is refused, the object is put back.
    pub(super) fn destroy<H: Send + 'static, V>(
        self,
        (handle, bytes): (Handle, u64),
        request: Request<'static, V>,
        object: impl FnOnce(H) -> Object + Send + 'static,
        answer: Answer,
    ) where
        V: Verb<Output = (), Error = Refused<H>>,
    {
        let origin = self.origin;
        request
            .on_behalf_of(origin)
            .issue(move |result| match result {
                Ok(()) => {
                    self.forget(handle, bytes);
                    self.answer(answer);
                }
                Err(refused) => {
                    let failure = failure_of(&refused);
                    match refused.handle {
                        Some(back) => self.restore(handle, object(back)),
                        None => self.forget(handle, bytes),
                    }
                    self.fail(failure);
                }
            });
    }
}

fn give_back(state: &mut State, bytes: u64) {
    let has = state.usage.of(Quota::Memory);
    let mib = u32::try_from(bytes.div_ceil(MIB)).unwrap_or(u32::MAX);
    state.usage.put(Quota::Memory, has.saturating_sub(mib));
}

/// Why a destroy was refused.
pub(super) fn failure_of<H>(refused: &Refused<H>) -> Failure {
    match refused.busy {
        Some(busy) => Failure::Busy {
            objects: busy.total,
        },
        None => Failure::Verb(refused.error),
    }
}
