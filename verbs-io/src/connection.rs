//! Connections.

use std::fmt;
use std::net::SocketAddr;

use verbs_core::Qpn;
use verbs_core::sync::{Arc, Weak};

use crate::buf::Buf;
use crate::core::Closes;
use crate::error::Error;
use crate::lane::POOL;
use crate::lane::slot::Fault;
use crate::link::{ConnectionStats, Link, keepalive};
use crate::op::{self, Batch, kind};
use crate::region::{Token, Word};

/// A reliable connection: messages both ways, and the peer's memory.
///
/// Every call takes `&self` and clones are the same connection, so that any number of tasks use it. An operation is
/// a future that does nothing until it is polled. When it completes, its buffer comes back, in an error too.
///
/// Dropping the last clone ends the connection in the background; [`Connection::close`] waits for that, and for
/// what is under way before.
///
/// ```no_run
/// # async fn example(conn: verbs_io::Connection) -> Result<(), verbs_io::Error> {
/// let mut question = conn.buf().await;
/// question.fill_from(b"what time is it?");
/// let question = conn.send(question).await?; // the peer's adapter has it; the buffer is ours again
/// if let Some(answer) = conn.recv().await? {
///     println!("{}", String::from_utf8_lossy(&answer));
/// }
/// # drop(question);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Connection {
    link: Arc<Link>,
}

impl Connection {
    pub(crate) fn of(link: Link) -> Self {
        let link = Arc::new(link);
        keepalive::watch(&link);
        let closes = Arc::downgrade(&link) as Weak<dyn Closes>;
        link.core().made(closes);
        Self { link }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Sends a message. Completes when the peer's adapter has acknowledged it; see [`op::Send::posted`] for
    /// pipelines.
    ///
    /// The peer takes it with [`recv`](Connection::recv). It must not be longer than the peer's buffers, or the
    /// connection breaks. A peer that takes no messages holds the sender up, by retries of the device; over TCP by the
    /// stream, for 10 s ([`Opening::window`](crate::Opening::window)).
    ///
    /// # Errors
    /// [`Failed`](crate::Failed) with the buffer: [`Error::Closed`], [`Error::Broken`], [`Error::Removed`], [`Error::Post`].
    ///
    /// # Cancel safety
    /// Dropped before its first poll, nothing happened. Dropped while it waits for room, the message is not sent.
    /// Dropped later, the message is sent, and the buffer goes back by itself when the device is done with it.
    ///
    /// # Context
    /// Never blocks; may be polled by any executor, on any thread.
    #[inline]
    pub fn send(&self, buf: Buf) -> op::Send<'_> {
        op::Send::new(&self.link, Ok(kind::Send), buf)
    }

    /// Writes the buffer to the start of the peer's memory that `to` is about. The peer is not told.
    ///
    /// # Errors
    /// As [`Connection::send`]; [`Error::OutOfRange`] if the buffer is longer than that, and [`Error::NoRight`],
    /// both before anything is posted. A token that the peer has revoked breaks the connection.
    ///
    /// # Cancel safety
    /// As [`Connection::send`].
    #[inline]
    pub fn write(&self, buf: Buf, to: Token) -> op::Write<'_> {
        let kind = kind::Write::to(to, buf.len());
        op::Write::new(&self.link, kind, buf)
    }

    /// Writes the buffer as [`Connection::write`] does, and tells the peer: it receives a message of no bytes, behind all that was
    /// sent before, whose [`Buf::imm`] is `imm`. What was written is in its memory then.
    ///
    /// ```no_run
    /// # async fn example(conn: verbs_io::Connection, token: verbs_io::Token, peer: verbs_io::Connection) -> Result<(), verbs_io::Error> {
    /// let mut record = conn.buf().await;
    /// record.fill_from(b"a record of a log");
    /// conn.write_with_imm(record, token, 17).await?;
    /// // The peer:
    /// if let Some(notice) = peer.recv().await? {
    ///     assert_eq!((notice.len(), notice.imm()), (0, Some(17)));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Connection::write`].
    ///
    /// # Cancel safety
    /// As [`Connection::send`].
    pub fn write_with_imm(&self, buf: Buf, to: Token, imm: u32) -> op::WriteWithImm<'_> {
        let kind = kind::WriteWithImm::to(to, buf.len(), imm);
        op::WriteWithImm::new(&self.link, kind, buf)
    }

    /// Fills the buffer, as long as it is, from the start of the peer's memory that `from` is about.
    ///
    /// # Errors
    /// As [`Connection::write`].
    ///
    /// # Cancel safety
    /// As [`Connection::send`].
    #[inline]
    pub fn read(&self, buf: Buf, from: Token) -> op::Read<'_> {
        let kind = kind::Read::from(from, buf.len());
        op::Read::new(&self.link, kind, buf)
    }

    /// Replaces a word of the peer's by `new` if it is `old`. Yields what it was: the swap took place if that is
    /// `old`.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Broken`], [`Error::Removed`], [`Error::NoRight`].
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the swap may still take place.
    #[inline]
    pub fn compare_swap(&self, word: Word, old: u64, new: u64) -> op::CompareSwap<'_> {
        op::CompareSwap::new(&self.link, kind::CompareSwap::of(word, old, new))
    }

    /// Adds to a word of the peer's, modulo 2^64. Yields what it was.
    ///
    /// # Errors
    /// As [`Connection::compare_swap`].
    ///
    /// # Cancel safety
    /// As [`Connection::compare_swap`].
    #[inline]
    pub fn fetch_add(&self, word: Word, n: u64) -> op::FetchAdd<'_> {
        op::FetchAdd::new(&self.link, kind::FetchAdd::of(word, n))
    }

    /// A batch: several operations that are posted with one doorbell, which costs the device less than one by one.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self.link())
    }

    /// The next message; `None` when the connection was closed in order, by either side, and all messages that
    /// came before were taken.
    ///
    /// The buffer is one of those that the connection receives in: dropping it, or sending it on, makes room for
    /// another message. Tasks that wait get messages in the order in which they came to wait.
    ///
    /// A peer that is gone without a word, as one that was killed, ends the wait too: within 2 s where its host refuses packets
    /// for it, and else by the endpoint's [keepalive](crate::Opening::keepalive), within 10 s unless the program says otherwise.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Removed`].
    ///
    /// # Cancel safety
    /// No message is lost: one that had been given to a future that is dropped goes to the next.
    #[inline]
    pub fn recv(&self) -> op::Recv<'_> {
        op::Recv::new(&self.link)
    }

    /// A buffer of the endpoint's pool, with its length set to all of its room; waits until there is one. Tasks get
    /// buffers in the order in which they came to wait.
    ///
    /// # Cancel safety
    /// A buffer that had been given to a future that is dropped goes back.
    pub fn buf(&self) -> op::TakeBuf<'_> {
        op::TakeBuf::new(self.link.core(), POOL)
    }

    /// Waits until everything posted has completed, then ends the connection. The peer's tasks get what was sent
    /// before, then `None`.
    ///
    /// Messages that have come and were not taken can still be received; then `recv` yields `None`.
    ///
    /// # Errors
    /// [`Error::Broken`] if the connection broke before; [`Error::Removed`].
    ///
    /// # Cancel safety
    /// Dropped before the operations under way have completed, nothing happened; dropped later, the connection ends
    /// all the same.
    pub async fn close(&self) -> Result<(), Error> {
        self.link.end().await
    }

    /// Completes when the connection is over, whichever side has ended it; says how: [`Error::Closed`],
    /// [`Error::Broken`] or [`Error::Removed`].
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
    pub async fn closed(&self) -> Error {
        let closed = self.link.with_link(verbs_cm::Connection::closed);
        if let Some(closed) = closed {
            let _ended = closed.await;
        }
        self.link.error_of(Fault::Over)
    }

    /// What has happened on it: retries, congestion and the round trip as its queue pair has counted them, and what is under
    /// way now. A monitor calls it now and then; it is a verb, and costs operations nothing.
    ///
    /// ```
    /// # async fn example(conn: verbs_io::Connection) -> Result<(), verbs_io::Error> {
    /// let stats = conn.stats().await?;
    /// println!("{} timeouts, round trip {:?}", stats.qp.timeouts, stats.qp.round_trip);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Verb`] with [`Unsupported`](verbs_core::Error::Unsupported) if the device has no such statistics;
    /// [`Error::Removed`].
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
    pub async fn stats(&self) -> Result<ConnectionStats, Error> {
        let qpn = self.link.qpn.unwrap_or_default();
        let qp = self.link.core().device.qp_stats(qpn).run().await?;
        Ok(self.link.stats(qp))
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.link.peer
    }

    /// What the peer said when the connection was made: with its request, or with its answer. Padded with zeros by
    /// networks that do not tell its length.
    pub fn private_data(&self) -> &[u8] {
        &self.link.private_data
    }

    /// The number of the queue pair, as captures and counters have it.
    pub fn qpn(&self) -> Option<Qpn> {
        self.link.qpn
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.link.peer)
            .field("qpn", &self.link.qpn)
            .finish_non_exhaustive()
    }
}
