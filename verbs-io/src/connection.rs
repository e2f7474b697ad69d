//! Connections.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use verbs_cm::Ended;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::task::{self, OwnWaker};
use verbs_core::{PostError, Qpn, WcStatus};

use crate::buf::Buf;
use crate::core::Core;
use crate::error::{Cause, Error, Failed, Operation};
use crate::lane::slot::Fault;
use crate::op::kind::{CompareSwap, FetchAdd, Read, Send, Write};
use crate::op::{Adding, Reading, Receiving, Sending, Swapping, Taking, Writing};
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
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    conn: u32,
    qpn: Option<Qpn>,
    peer: SocketAddr,
    private_data: Vec<u8>,
    /// Taken out to be closed.
    link: Mutex<Option<verbs_cm::Connection>>,
}

impl Connection {
    /// Takes over a connection that was made. `serial` tells which one of the end.
    pub(crate) fn new(
        core: Arc<Core>,
        conn: u32,
        serial: u32,
        mut link: verbs_cm::Connection,
    ) -> Self {
        let queues = link.take_queues();
        let (closed, lane) = (link.closed(), Arc::downgrade(&core));
        let inner = Inner {
            conn,
            qpn: link.qpn(),
            peer: link.peer_addr(),
            private_data: link.private_data().to_vec(),
            link: Mutex::new(Some(link)),
            core,
        };
        if let Some(queues) = queues {
            inner.core.with(|lane| lane.open(conn, queues));
        }
        // Those who wait for messages hear of the end even while no receive is posted.
        task::detach(async move {
            // It fails only if it is cancelled, which nothing does.
            let _ended = closed.await;
            if let Some(core) = lane.upgrade() {
                core.with(|lane| lane.over(conn, serial));
            }
        });
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Sends a message. Completes when the peer's adapter has acknowledged it; see [`Sending::posted`] for
    /// pipelines.
    ///
    /// The peer takes it with [`recv`](Connection::recv). It must not be longer than the peer's buffers, or the
    /// connection breaks. A peer that takes no messages holds the sender up, by retries of the device.
    ///
    /// # Errors
    /// [`Failed`] with the buffer: [`Error::Closed`], [`Error::Broken`], [`Error::Removed`], [`Error::Post`].
    ///
    /// # Cancel safety
    /// Dropped before its first poll, nothing happened. Dropped while it waits for room, the message is not sent.
    /// Dropped later, the message is sent, and the buffer goes back by itself when the device is done with it.
    ///
    /// # Context
    /// Never blocks; may be polled by any executor, on any thread.
    #[inline]
    pub fn send(&self, buf: Buf) -> Sending<'_> {
        Sending::new(self, Ok(Send), buf)
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
    pub fn write(&self, buf: Buf, to: Token) -> Writing<'_> {
        let kind = Write::to(to, buf.len());
        Writing::new(self, kind, buf)
    }

    /// Fills the buffer, as long as it is, from the start of the peer's memory that `from` is about.
    ///
    /// # Errors
    /// As [`Connection::write`].
    ///
    /// # Cancel safety
    /// As [`Connection::send`].
    #[inline]
    pub fn read(&self, buf: Buf, from: Token) -> Reading<'_> {
        let kind = Read::from(from, buf.len());
        Reading::new(self, kind, buf)
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
    pub fn compare_swap(&self, word: Word, old: u64, new: u64) -> Swapping<'_> {
        Swapping::new(self, CompareSwap::of(word, old, new))
    }

    /// Adds to a word of the peer's, modulo 2^64. Yields what it was.
    ///
    /// # Errors
    /// As [`Connection::compare_swap`].
    ///
    /// # Cancel safety
    /// As [`Connection::compare_swap`].
    #[inline]
    pub fn fetch_add(&self, word: Word, n: u64) -> Adding<'_> {
        Adding::new(self, FetchAdd::of(word, n))
    }

    /// The next message; `None` when the connection was closed in order, by either side, and all messages that
    /// came before were taken.
    ///
    /// The buffer is one of those that the connection receives in: dropping it, or sending it on, makes room for
    /// another message. Tasks that wait get messages in the order in which they came to wait.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Removed`].
    ///
    /// # Cancel safety
    /// No message is lost: one that had been given to a future that is dropped goes to the next.
    #[inline]
    pub fn recv(&self) -> Receiving<'_> {
        Receiving::new(self)
    }

    /// A buffer of the endpoint's pool, with its length set to all of its room; waits until there is one. Tasks get
    /// buffers in the order in which they came to wait.
    ///
    /// # Cancel safety
    /// A buffer that had been given to a future that is dropped goes back.
    pub fn buf(&self) -> Taking<'_> {
        Taking::new(&self.inner.core)
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
        poll_fn(|cx| self.poll_drained(cx)).await;
        let closing = self
            .inner
            .link
            .lock()
            .as_ref()
            .map(|link| link.disconnect());
        if let Some(closing) = closing {
            closing.await?;
        }
        let fault = self.core().with(|lane| lane.ends[self.id()].fault);
        match fault {
            Some(fault) if !fault.is_consequence() => Err(self.error_of(fault)),
            _ => Ok(()),
        }
    }

    /// Completes when the connection is over, whichever side has ended it; says how: [`Error::Closed`],
    /// [`Error::Broken`] or [`Error::Removed`].
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
    pub async fn closed(&self) -> Error {
        let closed = self.inner.link.lock().as_ref().map(|link| link.closed());
        if let Some(closed) = closed {
            let _ended = closed.await;
        }
        self.error_of(Fault::Over)
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer
    }

    /// What the peer said when the connection was made.
    pub fn private_data(&self) -> &[u8] {
        &self.inner.private_data
    }

    /// The number of the queue pair, as captures and counters have it.
    pub fn qpn(&self) -> Option<Qpn> {
        self.inner.qpn
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    #[inline(always)]
    pub(crate) fn conn(&self) -> u32 {
        self.inner.conn
    }

    fn id(&self) -> usize {
        self.inner.conn as usize
    }

    fn poll_drained(&self, cx: &Context<'_>) -> Poll<()> {
        let mut waker = OwnWaker::of(cx.waker());
        self.core().with(|lane| {
            lane.reap();
            let end = &mut lane.ends[self.id()];
            if end.is_drained() {
                return Poll::Ready(());
            }
            waker.join(&mut end.drainers);
            lane.arm_if_needed();
            Poll::Pending
        })
    }

    /// What an operation says that has failed like that. What was only flushed fails for the reason of the end.
    #[cold]
    pub(crate) fn error_of(&self, fault: Fault) -> Error {
        let (first, is_dead) = self.core().with(|lane| {
            let first = lane.ends[self.id()].fault;
            (first, lane.is_dead)
        });
        let cause = match fault {
            Fault::Post(PostError::State(_) | PostError::Destroyed) => first,
            fault if fault.is_consequence() => first.or(Some(fault)),
            fault => Some(fault),
        };
        let removed = is_dead || self.core().device.target().is_removed();
        match cause {
            _ if removed => Error::Removed,
            Some(Fault::Removed | Fault::Post(PostError::DeviceRemoved)) => Error::Removed,
            Some(Fault::Post(error)) => Error::Post(error),
            Some(fault) if !fault.is_consequence() => Error::Broken(self.cause(fault)),
            consequence => match self.ended() {
                Some(by @ (Ended::Here | Ended::Peer)) => Error::Closed { by },
                _ => Error::Broken(self.cause(consequence.unwrap_or(Fault::Over))),
            },
        }
    }

    fn ended(&self) -> Option<Ended> {
        let link = self.inner.link.lock();
        link.as_ref().and_then(|link| link.ended())
    }

    fn cause(&self, fault: Fault) -> Cause {
        let (status, operation, vendor_err) = match fault {
            Fault::Status {
                status,
                operation,
                vendor_err,
            } => (status, operation, vendor_err),
            _ => (WcStatus::WrFlushErr, Operation::Recv, 0),
        };
        Cause {
            status,
            operation,
            qpn: self.inner.qpn.unwrap_or_default(),
            vendor_err,
        }
    }

    #[cold]
    pub(crate) fn failed(&self, fault: Fault, buf: Option<Buf>) -> Failed {
        Failed {
            error: self.error_of(fault),
            buf,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(link) = self.link.lock().take() else {
            return;
        };
        let (core, conn) = (Arc::clone(&self.core), self.conn);
        // Disconnects, destroys the queue pair, and has its buffers back; goes on by itself.
        link.close().issue(move |_closed| {
            let queues = core.with(|lane| lane.retire(conn));
            drop(queues);
        });
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.inner.peer)
            .field("qpn", &self.inner.qpn)
            .finish_non_exhaustive()
    }
}
