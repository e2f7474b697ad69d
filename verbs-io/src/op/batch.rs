//! Several operations with one doorbell.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::kind::{Checked, Read, Send, Write, WriteWithImm};
use super::moving::Moving;
use super::posting::Posting;
use crate::buf::Buf;
use crate::error::Failed;
use crate::lane::request::Kind;
use crate::link::Link;
use crate::region::Token;

/// Operations that are posted together: [`Connection::batch`](crate::Connection::batch).
///
/// They begin when the batch is [submitted](Batch::submit) or dropped, in the order in which they were added, whether
/// or not their futures are polled. An operation of another task that is to be posted first submits them as well, so
/// that none waits for a batch.
///
/// ```no_run
/// # async fn example(conn: verbs_io::Connection, token: verbs_io::Token) -> Result<(), verbs_io::Error> {
/// let (data, notice) = (conn.buf().await, conn.buf().await);
/// let mut batch = conn.batch();
/// let written = batch.write(data, token);
/// let told = batch.send(notice);
/// batch.submit();
/// written.await?;
/// told.await?;
/// # Ok(())
/// # }
/// ```
pub struct Batch<'a> {
    link: &'a Link,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(link: &'a Link) -> Self {
        Self { link }
    }

    /// Adds a message; see [`Connection::send`](crate::Connection::send).
    pub fn send(&mut self, buf: Buf) -> Batched<'a> {
        Batched(Inner::Send(self.add(Ok(Send), buf)))
    }

    /// Adds a WRITE; see [`Connection::write`](crate::Connection::write).
    pub fn write(&mut self, buf: Buf, to: Token) -> Batched<'a> {
        let kind = Write::to(to, buf.len());
        Batched(Inner::Write(self.add(kind, buf)))
    }

    /// Adds a WRITE of which the peer is told; see [`Connection::write_with_imm`](crate::Connection::write_with_imm).
    pub fn write_with_imm(&mut self, buf: Buf, to: Token, imm: u32) -> Batched<'a> {
        let kind = WriteWithImm::to(to, buf.len(), imm);
        Batched(Inner::WriteWithImm(self.add(kind, buf)))
    }

    /// Adds a READ; see [`Connection::read`](crate::Connection::read).
    pub fn read(&mut self, buf: Buf, from: Token) -> Batched<'a> {
        let kind = Read::from(from, buf.len());
        Batched(Inner::Read(self.add(kind, buf)))
    }

    fn add<K: Kind>(&mut self, kind: Checked<K>, buf: Buf) -> Moving<'a, K> {
        let mut moving = Moving::new(self.link, kind, buf);
        moving.queue();
        moving
    }

    /// Posts them, as far as there is room; the rest when there is.
    pub fn submit(self) {}
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let conn = self.link.conn();
        self.link.core().with(|lane| lane.submit(conn));
    }
}

/// An operation of a [`Batch`]: has begun, or will when the batch is submitted. Yields its buffer.
///
/// # Errors
/// As the operation's own future.
///
/// # Cancel safety
/// Dropped before the operation was posted, it takes the operation with it; later the operation goes on, and the buffer
/// goes back by itself.
#[must_use = "dropping it may take the operation back"]
pub struct Batched<'a>(Inner<'a>);

enum Inner<'a> {
    Send(Moving<'a, Send>),
    Write(Moving<'a, Write>),
    WriteWithImm(Moving<'a, WriteWithImm>),
    Read(Moving<'a, Read>),
}

impl<'a> Batched<'a> {
    /// Waits only until it is in the send queue: for pipelines. The buffer goes back by itself. A failure ends the
    /// connection, so a later operation tells. Of a READ, what it has read is gone with the buffer: it shows that the peer
    /// answers.
    ///
    /// ```no_run
    /// # async fn example(conn: verbs_io::Connection, token: verbs_io::Token) -> Result<(), verbs_io::Error> {
    /// let (data, notice) = (conn.buf().await, conn.buf().await);
    /// let mut batch = conn.batch();
    /// let written = batch.write(data, token).posted();
    /// let told = batch.send(notice).posted();
    /// batch.submit();
    /// written.await?;
    /// told.await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As the operation's own future, for what is known when it is posted.
    ///
    /// # Cancel safety
    /// Dropped while it waits for room, it is not posted.
    pub fn posted(self) -> PostBatched<'a> {
        PostBatched(match self.0 {
            Inner::Send(moving) => Post::Send(moving.posted()),
            Inner::Write(moving) => Post::Write(moving.posted()),
            Inner::WriteWithImm(moving) => Post::WriteWithImm(moving.posted()),
            Inner::Read(moving) => Post::Read(moving.posted()),
        })
    }
}

/// Waits until an operation of a [`Batch`] is in the send queue: [`Batched::posted`].
#[must_use = "dropping it may take the operation back"]
pub struct PostBatched<'a>(Post<'a>);

enum Post<'a> {
    Send(Posting<'a, Send>),
    Write(Posting<'a, Write>),
    WriteWithImm(Posting<'a, WriteWithImm>),
    Read(Posting<'a, Read>),
}

impl Future for PostBatched<'_> {
    type Output = Result<(), Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Post::Send(posting) => posting.poll(cx),
            Post::Write(posting) => posting.poll(cx),
            Post::WriteWithImm(posting) => posting.poll(cx),
            Post::Read(posting) => posting.poll(cx),
        }
    }
}

impl fmt::Debug for PostBatched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostBatched").finish_non_exhaustive()
    }
}

impl Future for Batched<'_> {
    type Output = Result<Buf, Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Send(moving) => moving.poll(cx),
            Inner::Write(moving) => moving.poll(cx),
            Inner::WriteWithImm(moving) => moving.poll(cx),
            Inner::Read(moving) => moving.poll(cx),
        }
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl fmt::Debug for Batched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batched").finish_non_exhaustive()
    }
}
