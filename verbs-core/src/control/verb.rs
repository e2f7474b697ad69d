//! What a verb is: its arguments, what it acts on, what it yields.

use crate::command::{AnyCommand, Command, Kind, Pending};
use crate::error::Error;
use crate::object::{Refused, Target};
use crate::sync::Arc;

pub(crate) mod kind;
pub(crate) mod table;
mod types;

/// One verb: a struct of its arguments.
///
/// The verbs of this crate are the whole set; providers meet them as variants of
/// [`AnyCommand`]. What a device has beyond them goes through the typed extension call.
pub trait Verb: Sized + Send + 'static {
    /// What it acts on.
    type Target: Target;
    /// What it yields. Together with the error at most [`RESULT_BYTES`] long (K7).
    type Output: Send + 'static;
    /// How it fails.
    type Error: VerbError;
    /// Its place in the table of verbs.
    const KIND: Kind;
    /// Whether it destroys its target. Such a request has a slot of its own, is no user of its
    /// target, and goes to the provider even when the device has gone.
    const DESTROYS: bool = false;
    /// Whether events of its target wait until its result has been delivered: the target is told when the
    /// result is final and when it has been delivered ([`Target::settled`], [`Target::delivered`]).
    const ORDERED: bool = false;

    /// Wraps the typed command for the provider.
    fn command(command: Command<'_, Self>) -> AnyCommand<'_>;

    /// Runs when the request is issued, before the provider sees it.
    #[inline(always)]
    fn admit(&mut self, _target: &Self::Target) -> Admit<Self::Error> {
        Admit::Go
    }

    /// Keeps a request that [`Verb::admit`] wants parked.
    fn park(self, _target: Arc<Self::Target>, pending: Pending<Self>) {
        // Only verbs whose `admit` parks get here; without one the request ends as dropped.
        drop(pending);
    }

    /// Makes the error of a request that was refused, with what its arguments own.
    #[inline]
    fn refuse(self, error: Error) -> Self::Error {
        error.into()
    }

    /// The object in a create's result, if it can have events (K14).
    #[inline(always)]
    fn created(_output: &Self::Output) -> Option<Arc<dyn Target>> {
        None
    }

    /// Whether a verb with [`Verb::ORDERED`] has done what it was asked for, if it did not fail.
    #[inline(always)]
    fn took_effect(_output: &Self::Output) -> bool {
        true
    }

    /// Runs when the provider has completed, before the caller is told.
    #[inline(always)]
    fn completed(_target: &Arc<Self::Target>, _result: &Result<Self::Output, Self::Error>) {}
}

/// Bytes that the result of a verb may take (K7): what delivery needs is reserved when a request
/// pends, so its size has a bound.
pub const RESULT_BYTES: usize = 128;

/// What becomes of a request before the provider sees it.
pub enum Admit<E> {
    /// On to the provider.
    Go,
    /// Completed with this error.
    Refuse(E),
    /// Pends until its target is free of users or children.
    Park,
}

/// The error of a verb.
pub trait VerbError: From<Error> + Send + 'static {
    /// Why.
    fn reason(&self) -> Error;
}

impl VerbError for Error {
    fn reason(&self) -> Error {
        *self
    }
}

impl<H: Send + 'static> VerbError for Refused<H> {
    fn reason(&self) -> Error {
        self.error
    }
}

/// Declares a verb that needs nothing beyond its types, or also the object that its result is, if that has events.
macro_rules! verb {
    ($Verb:ident, $Target:ty => $Output:ty) => {
        $crate::verb::verb!($Verb, $Target => $Output, |_output| None);
    };
    ($Verb:ident, $Target:ty => $Output:ty, |$output:ident| $created:expr) => {
        impl $crate::verb::Verb for $Verb {
            type Target = $Target;
            type Output = $Output;
            type Error = $crate::error::Error;
            const KIND: $crate::command::Kind = $crate::command::Kind::$Verb;

            #[inline]
            fn command(
                command: $crate::command::Command<'_, Self>,
            ) -> $crate::command::AnyCommand<'_> {
                $crate::command::AnyCommand::$Verb(command)
            }

            #[inline(always)]
            fn created($output: &$Output) -> Option<$crate::sync::Arc<dyn $crate::object::Target>> {
                $created
            }
        }
    };
}
/// As `verb!`, for a verb that looks at its arguments when it is issued.
macro_rules! verb_admitted {
    ($Verb:ident, $Target:ty => $Output:ty, |$args:ident, $target:ident| $admit:expr) => {
        impl $crate::verb::Verb for $Verb {
            type Target = $Target;
            type Output = $Output;
            type Error = $crate::error::Error;
            const KIND: $crate::command::Kind = $crate::command::Kind::$Verb;

            fn command(
                command: $crate::command::Command<'_, Self>,
            ) -> $crate::command::AnyCommand<'_> {
                $crate::command::AnyCommand::$Verb(command)
            }

            fn admit(&mut self, $target: &$Target) -> $crate::verb::Admit<$crate::error::Error> {
                let $args = self;
                $admit
            }
        }
    };
}
pub(crate) use {verb, verb_admitted};
