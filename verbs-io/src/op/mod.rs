//! Operations as futures.
//!
//! None does anything before its first poll. From then on its slot, if it needs one, and its buffer are the lane's,
//! until the future takes them back or is dropped.

mod atomic;
mod batch;
mod finished;
pub(crate) mod kind;
mod moving;
mod posting;
mod receive;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::buf::Buf;
use crate::error::{Error, Failed};

use atomic::Atomic;
use kind::{Checked, CompareSwap, FetchAdd, Read, Send, Write};
use moving::Moving;
use posting::Posting;

pub(crate) use posting::Post;
pub(crate) use receive::Place;

pub use batch::{Batch, Batched};
pub use receive::{Receiving, Taking};

macro_rules! futures {
    ($($(#[$doc:meta])* $Name:ident($Inner:ident<$Kind:ident>) -> $Output:ty, $($build:ident: $Arg:ty),*;)*) => { $(
        $(#[$doc])*
        #[must_use = "nothing happens until it is awaited"]
        pub struct $Name<'a>($Inner<'a, $Kind>);

        impl<'a> $Name<'a> {
            #[inline(always)]
            pub(crate) fn new(
                conn: &'a crate::link::Link,
                kind: Checked<$Kind>,
                $($build: $Arg,)*
            ) -> Self {
                Self($Inner::new(conn, kind, $($build,)*))
            }
        }

        impl Future for $Name<'_> {
            type Output = $Output;

            #[inline(always)]
            fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                self.0.poll(cx)
            }
        }

        impl fmt::Debug for $Name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($Name)).finish_non_exhaustive()
            }
        }
    )* };
}

futures! {
    /// A message that is to be sent: [`Connection::send`](crate::Connection::send).
    Sending(Moving<Send>) -> Result<Buf, Failed>, buf: Buf;
    /// A WRITE that is to be done: [`Connection::write`](crate::Connection::write).
    Writing(Moving<Write>) -> Result<Buf, Failed>, buf: Buf;
    /// A READ that is to be done: [`Connection::read`](crate::Connection::read).
    Reading(Moving<Read>) -> Result<Buf, Failed>, buf: Buf;
    /// A compare and swap that is to be done: [`Connection::compare_swap`](crate::Connection::compare_swap).
    Swapping(Atomic<CompareSwap>) -> Result<u64, Error>, ;
    /// A fetch and add that is to be done: [`Connection::fetch_add`](crate::Connection::fetch_add).
    Adding(Atomic<FetchAdd>) -> Result<u64, Error>, ;
    /// A message that is to be posted: [`Sending::posted`].
    PostingSend(Posting<Send>) -> Result<(), Failed>, buf: Buf;
    /// A WRITE that is to be posted: [`Writing::posted`].
    PostingWrite(Posting<Write>) -> Result<(), Failed>, buf: Buf;
}

impl<'a> Sending<'a> {
    /// Waits only until the message is in the send queue: for pipelines. The buffer goes back by itself. A failure
    /// ends the connection, so a later operation tells.
    ///
    /// # Errors
    /// As [`Connection::send`](crate::Connection::send), for what is known when it is posted.
    ///
    /// # Cancel safety
    /// Dropped while it waits for room, the message is not sent.
    pub fn posted(self) -> PostingSend<'a> {
        let (conn, kind, buf) = self.0.into_parts();
        PostingSend::new(conn, kind, buf)
    }
}

impl<'a> Writing<'a> {
    /// As [`Sending::posted`].
    ///
    /// # Errors
    /// As [`Connection::write`](crate::Connection::write), for what is known when it is posted.
    ///
    /// # Cancel safety
    /// Dropped while it waits for room, nothing is written.
    pub fn posted(self) -> PostingWrite<'a> {
        let (conn, kind, buf) = self.0.into_parts();
        PostingWrite::new(conn, kind, buf)
    }
}
