//! A request of any verb, with its type forgotten: what lets one test speak of all verbs.

use std::any::Any;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use crate::command::{Kind, Origin};
use crate::error::Error;
use crate::extension::{Call, Extension};
use crate::request::{Issued, Request};
use crate::verb::table::{Objects, Verbs};
use crate::verb::{Verb, VerbError};

/// The result of a request whose type is forgotten. It keeps what it carries, an object or a handle
/// that came back, until it is dropped.
pub struct Answer {
    error: Option<Error>,
    kept: Box<dyn Any + Send>,
}

impl Answer {
    fn of<T: Send + 'static, E: VerbError>(result: Result<T, E>) -> Self {
        match result {
            Ok(output) => Self {
                error: None,
                kept: Box::new(output),
            },
            Err(error) => Self {
                error: Some(error.reason()),
                kept: Box::new(error),
            },
        }
    }

    /// Why it failed, if it did.
    pub fn error(&self) -> Option<Error> {
        self.error
    }

    /// On whose behalf the object was made that the output is; `None` if it is none.
    pub(crate) fn owner(&self) -> Option<Origin> {
        let object = Verbs::object_in(&*self.kept);
        object.map(|base| base.owner())
    }

    /// The output or the error, if it is of that type.
    pub fn kept<T: 'static>(self) -> Option<T> {
        self.kept.downcast().ok().map(|kept| *kept)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            None => f.write_str("Ok"),
            Some(error) => write!(f, "Err({error:?})"),
        }
    }
}

/// The routine of an [`AnyRequest`].
pub type AnyRoutine = Box<dyn FnOnce(Answer) + Send>;

/// The future of an [`AnyRequest`].
pub type AnyFuture<'r> = Pin<Box<dyn Future<Output = Answer> + 'r>>;

/// A request of any verb. Dropping it does nothing.
pub trait AnyRequest<'r> {
    /// The verb.
    fn kind(&self) -> Kind;

    /// As [`Request::on_behalf_of`].
    fn on_behalf_of(self: Box<Self>, origin: Origin) -> Box<dyn AnyRequest<'r> + 'r>;

    /// As [`Request::issue`].
    fn issue(self: Box<Self>, routine: AnyRoutine) -> Issued;

    /// As [`Request::wait`].
    fn wait(self: Box<Self>) -> Answer;

    /// As awaiting the request: issues at the first poll.
    fn future(self: Box<Self>) -> AnyFuture<'r>;
}

impl<'r, V: Verb> AnyRequest<'r> for Request<'r, V> {
    fn kind(&self) -> Kind {
        V::KIND
    }

    fn on_behalf_of(self: Box<Self>, origin: Origin) -> Box<dyn AnyRequest<'r> + 'r> {
        Box::new(Request::on_behalf_of(*self, origin))
    }

    fn issue(self: Box<Self>, routine: AnyRoutine) -> Issued {
        Request::issue(*self, move |result| routine(Answer::of(result)))
    }

    fn wait(self: Box<Self>) -> Answer {
        Answer::of(Request::wait(*self))
    }

    fn future(self: Box<Self>) -> AnyFuture<'r> {
        let future = (*self).into_future();
        Box::pin(async move { Answer::of(future.await) })
    }
}

impl<'r, E: Extension> AnyRequest<'r> for Call<'r, E> {
    fn kind(&self) -> Kind {
        Kind::CallExtension
    }

    /// A call has no origin of its own to set.
    fn on_behalf_of(self: Box<Self>, _origin: Origin) -> Box<dyn AnyRequest<'r> + 'r> {
        self
    }

    fn issue(self: Box<Self>, routine: AnyRoutine) -> Issued {
        Call::issue(*self, move |result| routine(Answer::of(result)))
    }

    fn wait(self: Box<Self>) -> Answer {
        Answer::of(Call::wait(*self))
    }

    fn future(self: Box<Self>) -> AnyFuture<'r> {
        Box::pin(async move { Answer::of((*self).run().await) })
    }
}
