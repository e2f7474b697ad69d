//! A stream of bytes over a connection.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::io::{AsyncRead, AsyncWrite};

use crate::buf::Buf;
use crate::connection::Connection;
use crate::error::{Error, Failed};
use crate::lane::POOL;
use crate::op::kind::Send;
use crate::op::{Place, Post};

/// A stream of bytes over a connection: [`Connection::into_stream`].
///
/// A write copies into a buffer and posts it; nothing is held back for a flush. [`poll_flush`](AsyncWrite::poll_flush)
/// waits until the peer's adapter has acknowledged everything. Closing flushes and ends the connection, which the peer
/// reads as the end of the stream. A connection that broke is an error of the kind
/// [`ConnectionReset`](io::ErrorKind::ConnectionReset).
///
/// Both ends use streams, or one of them takes the pieces with [`Connection::recv`]: there are no marks in the data.
///
/// # Cancel safety
/// A read or write that is dropped has moved no bytes. A stream that is dropped without having been flushed may take the
/// last write with it.
///
/// ```no_run
/// use futures::{AsyncReadExt, AsyncWriteExt};
///
/// # async fn example(conn: verbs_io::Connection) -> std::io::Result<()> {
/// let mut stream = conn.into_stream();
/// stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer).await?;
/// stream.close().await?;
/// # Ok(())
/// # }
/// ```
pub struct RdmaStream {
    conn: Connection,
    reading: Place,
    /// What was received, and how much of it was read.
    message: Option<(Buf, usize)>,
    taking: Place,
    /// What was written, and waits for room in the send queue.
    posting: Option<Post>,
    closing: Option<BoxFuture<'static, Result<(), Error>>>,
}

impl Connection {
    /// Makes a stream of bytes of it.
    pub fn into_stream(self) -> RdmaStream {
        RdmaStream {
            conn: self,
            reading: Place::new(),
            message: None,
            taking: Place::new(),
            posting: None,
            closing: None,
        }
    }
}

impl RdmaStream {
    /// The connection: for its addresses, or for operations beside the stream.
    pub fn connection(&self) -> &Connection {
        &self.conn
    }

    /// Waits until the last write is in the send queue.
    fn poll_posted(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(posting) = &mut self.posting else {
            return Poll::Ready(Ok(()));
        };
        let posted = ready!(posting.poll(self.conn.link(), &Ok(Send), cx));
        self.posting = None;
        Poll::Ready(posted.map_err(|Failed { error, .. }| error.into()))
    }
}

impl AsyncRead for RdmaStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            if let Some((message, done)) = &mut this.message {
                let rest = &message[*done..];
                let n = rest.len().min(into.len());
                into[..n].copy_from_slice(&rest[..n]);
                *done += n;
                let is_read = *done == message.len();
                if is_read {
                    this.message = None;
                }
                // A message of no bytes is not the end.
                if n != 0 || !is_read {
                    return Poll::Ready(Ok(n));
                }
            }
            if into.is_empty() {
                return Poll::Ready(Ok(0));
            }
            match ready!(this.reading.poll_message(this.conn.link(), cx))? {
                Some(message) => this.message = Some((message, 0)),
                None => return Poll::Ready(Ok(0)),
            }
        }
    }
}

impl AsyncWrite for RdmaStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_posted(cx))?;
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut buf = ready!(this.taking.poll_buf(this.conn.link().core(), POOL, cx));
        let n = from.len().min(buf.capacity());
        buf.fill_from(&from[..n]);
        this.posting = Some(Post::new(buf));
        match this.poll_posted(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // The next write, or a flush, waits for it.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(n)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_posted(cx))?;
        ready!(self.conn.link().poll_drained(cx));
        Poll::Ready(self.conn.link().broken().map_err(io::Error::from))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.closing.is_none() {
            ready!(this.poll_posted(cx))?;
        }
        let conn = &this.conn;
        let closing = this.closing.get_or_insert_with(|| {
            let conn = conn.clone();
            async move { conn.close().await }.boxed()
        });
        let closed = ready!(closing.poll_unpin(cx));
        this.closing = None;
        Poll::Ready(closed.map_err(io::Error::from))
    }
}

impl Drop for RdmaStream {
    fn drop(&mut self) {
        let link = self.conn.link();
        self.reading.leave(link.core());
        self.taking.leave(link.core());
        if let Some(posting) = &mut self.posting {
            posting.leave(link);
        }
    }
}

impl fmt::Debug for RdmaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaStream")
            .field("conn", &self.conn)
            .finish_non_exhaustive()
    }
}
