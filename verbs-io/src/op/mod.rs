//! The futures of operations, each by the name of its operation: [`Send`] is what
//! [`Connection::send`](crate::Connection::send) returns. Programs rarely name them: an `async` function awaits them.
//!
//! None does anything before its first poll. From then on its buffer belongs to the operation, until the future returns it or
//! is dropped.

mod atomic;
mod batch;
mod finished;
pub(crate) mod kind;
mod moving;
mod posting;
mod receive;
mod within;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::buf::Buf;
use crate::error::{Error, Failed};

use atomic::Atomic;
use kind::Checked;
use moving::Moving;
use posting::Posting;

pub(crate) use posting::Post;
pub(crate) use receive::Place;

pub use batch::{Batch, Batched, PostBatched};
pub use receive::{Recv, TakeBuf};
pub use within::Within;

macro_rules! futures {
    ($($(#[$doc:meta])* $Name:ident($Inner:ident<$Kind:ty>) -> $Output:ty, $($build:ident: $Arg:ty),*;)*) => { $(
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

            /// Gives it up when it has not completed after that time, by the device's clock, from its first poll on.
            ///
            /// # Errors
            /// Its own, and [`Error::TimedOut`]. That leaves the connection as it is. What was not posted by then is not; what
            /// was is carried out, or ends the connection when the device's retries are exceeded.
            ///
            /// # Cancel safety
            /// As without it.
            pub fn within(self, time: Duration) -> Within<'a, Self> {
                let link = self.0.link();
                Within::new(link, self, time)
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
    /// Sends a message: [`Connection::send`](crate::Connection::send).
    Send(Moving<kind::Send>) -> Result<Buf, Failed>, buf: Buf;
    /// Writes to the peer's memory: [`Connection::write`](crate::Connection::write).
    Write(Moving<kind::Write>) -> Result<Buf, Failed>, buf: Buf;
    /// Writes to the peer's memory, and tells the peer: [`Connection::write_with_imm`](crate::Connection::write_with_imm).
    WriteWithImm(Moving<kind::WriteWithImm>) -> Result<Buf, Failed>, buf: Buf;
    /// Reads the peer's memory: [`Connection::read`](crate::Connection::read).
    Read(Moving<kind::Read>) -> Result<Buf, Failed>, buf: Buf;
    /// Compares and swaps a word of the peer's memory: [`Connection::compare_swap`](crate::Connection::compare_swap).
    CompareSwap(Atomic<kind::CompareSwap>) -> Result<u64, Error>, ;
    /// Adds to a word of the peer's memory, and returns what it was: [`Connection::fetch_add`](crate::Connection::fetch_add).
    FetchAdd(Atomic<kind::FetchAdd>) -> Result<u64, Error>, ;
    /// Waits until a message is in the send queue: [`Send::posted`].
    PostSend(Posting<kind::Send>) -> Result<(), Failed>, buf: Buf;
    /// Waits until a WRITE is in the send queue: [`Write::posted`].
    PostWrite(Posting<kind::Write>) -> Result<(), Failed>, buf: Buf;
    /// Waits until a WRITE with immediate data is in the send queue: [`WriteWithImm::posted`].
    PostWriteWithImm(Posting<kind::WriteWithImm>) -> Result<(), Failed>, buf: Buf;
}

macro_rules! posted {
    ($($(#[$doc:meta])* $Name:ident -> $Post:ident;)*) => { $(
        impl<'a> $Name<'a> {
            $(#[$doc])*
            pub fn posted(self) -> $Post<'a> {
                let (conn, kind, buf) = self.0.into_parts();
                $Post::new(conn, kind, buf)
            }
        }
    )* };
}

posted! {
    /// Waits only until the message is in the send queue: for pipelines. The buffer goes back by itself. A failure
    /// ends the connection, so a later operation tells.
    ///
    /// # Errors
    /// As [`Connection::send`](crate::Connection::send), for what is known when it is posted.
    ///
    /// # Cancel safety
    /// Dropped while it waits for room, the message is not sent.
    Send -> PostSend;
    /// As [`Send::posted`].
    ///
    /// # Errors
    /// As [`Connection::write`](crate::Connection::write), for what is known when it is posted.
    ///
    /// # Cancel safety
    /// Dropped while it waits for room, nothing is written.
    Write -> PostWrite;
    /// As [`Send::posted`].
    ///
    /// # Errors
    /// As [`Connection::write_with_imm`](crate::Connection::write_with_imm), for what is known when it is posted.
    ///
    /// # Cancel safety
    /// Dropped while it waits for room, nothing is written.
    WriteWithImm -> PostWriteWithImm;
}
