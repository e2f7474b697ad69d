//! Streams of bytes for `tokio`.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use futures::io::{AsyncRead as _, AsyncWrite as _};
use verbs_io::{Connection, RdmaStream};

/// An [`RdmaStream`] with `tokio`'s traits, for codecs, `copy_bidirectional`, TLS and whatever else takes a stream of
/// `tokio`'s. It needs no runtime of it. Operations need none either, so that all else works as it is.
///
/// # Cancel safety
/// As of [`RdmaStream`]: a read or write that is dropped has moved no bytes.
///
/// # Examples
/// ```
/// # #[cfg(feature = "sim")]
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use verbs::tokio::TokioStream;
///
/// let (a, b) = verbs::sim::pair().await?;
/// let (mut a, mut b) = (TokioStream::from(a), TokioStream::from(b));
/// a.write_all(b"hello").await?;
/// a.shutdown().await?;
/// let mut text = String::new();
/// b.read_to_string(&mut text).await?;
/// assert_eq!(text, "hello");
/// # Ok(()) })
/// # }
/// # #[cfg(not(feature = "sim"))] fn main() {}
/// ```
pub struct TokioStream(RdmaStream);

impl TokioStream {
    /// The stream within, for its connection.
    pub fn get_ref(&self) -> &RdmaStream {
        &self.0
    }

    fn inner(self: Pin<&mut Self>) -> Pin<&mut RdmaStream> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl From<RdmaStream> for TokioStream {
    fn from(stream: RdmaStream) -> Self {
        Self(stream)
    }
}

impl From<Connection> for TokioStream {
    fn from(conn: Connection) -> Self {
        Self(conn.into_stream())
    }
}

impl AsyncRead for TokioStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n = ready!(self.inner().poll_read(cx, into.initialize_unfilled()))?;
        into.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TokioStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write(cx, from)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_close(cx)
    }
}

impl fmt::Debug for TokioStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokioStream").field(&self.0).finish()
    }
}
