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
use crate::lane::request::{Kind, What};
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
        self.add(Ok(Send), buf)
    }

    /// Adds a WRITE; see [`Connection::write`](crate::Connection::write).
    pub fn write(&mut self, buf: Buf, to: Token) -> Batched<'a> {
        let kind = Write::to(to, buf.len());
        self.add(kind, buf)
    }

    /// Adds a WRITE of which the peer is told; see [`Connection::write_with_imm`](crate::Connection::write_with_imm).
    pub fn write_with_imm(&mut self, buf: Buf, to: Token, imm: u32) -> Batched<'a> {
        let kind = WriteWithImm::to(to, buf.len(), imm);
        self.add(kind, buf)
    }

    /// Adds a READ; see [`Connection::read`](crate::Connection::read).
    pub fn read(&mut self, buf: Buf, from: Token) -> Batched<'a> {
        let kind = Read::from(from, buf.len());
        self.add(kind, buf)
    }

    fn add<K: Kind>(&mut self, kind: Checked<K>, buf: Buf) -> Batched<'a> {
        let what = kind.map(|kind| kind.what(Some((buf.sge(), buf.index()))));
        let mut moving = Moving::new(self.link, what, buf);
        moving.queue();
        Batched(moving)
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
pub struct Batched<'a>(Moving<'a, What>);

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
        PostBatched(self.0.posted())
    }
}

/// Waits until an operation of a [`Batch`] is in the send queue: [`Batched::posted`].
#[must_use = "dropping it may take the operation back"]
pub struct PostBatched<'a>(Posting<'a, What>);

impl Future for PostBatched<'_> {
    type Output = Result<(), Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
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
        self.0.poll(cx)
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
