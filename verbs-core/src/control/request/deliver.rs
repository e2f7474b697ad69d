//! The delivery of a result: the routine is called, then the events of a created object go (K14).

use std::any::Any;
use std::marker::PhantomData;

use crate::object::Target;
use crate::routine::Routine;
use crate::sync::Arc;
use crate::verb::Verb;

/// The routine of a request that pends.
pub(crate) struct Finish<V, F> {
    routine: Option<F>,
    verb: PhantomData<fn(V)>,
}

impl<V, F> Finish<V, F> {
    pub(crate) fn new(routine: F) -> Self {
        Self {
            routine: Some(routine),
            verb: PhantomData,
        }
    }
}

impl<V, F> Routine for Finish<V, F>
where
    V: Verb,
    F: FnOnce(Result<V::Output, V::Error>) + Send + 'static,
{
    fn run(&mut self, parcel: &mut (dyn Any + Send)) {
        let result = parcel
            .downcast_mut::<Option<Result<V::Output, V::Error>>>()
            .and_then(Option::take);
        if let (Some(routine), Some(result)) = (self.routine.take(), result) {
            deliver::<V>(result, routine);
        }
    }
}

/// Calls the routine, then lets the events of a created object go (K14).
#[inline(always)]
pub(crate) fn deliver<V: Verb>(
    result: Result<V::Output, V::Error>,
    routine: impl FnOnce(Result<V::Output, V::Error>),
) {
    match result.as_ref().ok().and_then(V::created) {
        Some(object) => deliver_created::<V>(object, result, routine),
        None => routine(result),
    }
}

/// Apart, so that verbs that create nothing do not pay for the guard.
#[inline(never)]
fn deliver_created<V: Verb>(
    object: Arc<dyn Target>,
    result: Result<V::Output, V::Error>,
    routine: impl FnOnce(Result<V::Output, V::Error>),
) {
    /// Also when the routine panics: it may have kept the object.
    struct Announce(Arc<dyn Target>);
    impl Drop for Announce {
        fn drop(&mut self) {
            self.0.base().device().announce(&*self.0);
        }
    }
    let _created = Announce(object);
    routine(result);
}

/// Lets the events of a created object go: its future or `wait` is about to return.
#[inline(always)]
pub(crate) fn announce<V: Verb>(result: &Result<V::Output, V::Error>) {
    if let Some(object) = result.as_ref().ok().and_then(V::created) {
        object.base().device().announce(&*object);
    }
}
