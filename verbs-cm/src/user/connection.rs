//! A connection, as its user has it.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;

use verbs_core::sync::Arc;
use verbs_core::{BatchError, PostError, Qp, Qpn, Recv, RecvQueue, SendQueue, SendWr};

use crate::alternate::Alternate;
use crate::endpoint::{Data, Endpoint};
use crate::error::{Error, NotConnected};
use crate::event::Ended;
use crate::info::{self, ConnectionInfo};
use crate::limit::Limit;
use crate::link::Link;
use crate::step::Step;

/// A queue pair that is connected, in RTS.
///
/// Dropping it ends the connection: the peer is told, without waiting for its answer, and the queue pair
/// is destroyed. [`Connection::close`] waits. The connection manager lives in the program's process: a
/// program that ends right after dropping may take the message with it. It keeps an open [`Manager`], and
/// awaits [`Manager::drained`].
///
/// [`Manager`]: crate::Manager
/// [`Manager::drained`]: crate::Manager::drained
pub struct Connection {
    link: Arc<dyn Link>,
    queues: Option<(SendQueue, RecvQueue)>,
    private_data: Data,
}

impl Connection {
    pub(crate) fn new(
        link: Arc<dyn Link>,
        queues: Option<(SendQueue, RecvQueue)>,
        private_data: Data,
    ) -> Self {
        info::list(&link);
        Self {
            link,
            queues,
            private_data,
        }
    }

    /// Addresses, queue pairs, state and transport, and what the host's network stack does for it.
    pub fn info(&self) -> ConnectionInfo {
        ConnectionInfo::of(&*self.link)
    }

    /// What the peer's service said when the connection was made, padded with zeros by networks that do
    /// not tell its length.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.link.peer()
    }

    /// The queue pair's number.
    pub fn qpn(&self) -> Option<Qpn> {
        self.link.qpn()
    }

    /// Whether the connection is still there, as far as this end knows.
    pub fn is_established(&self) -> bool {
        self.link.is_established()
    }

    /// Which side has ended the connection; `None` while it is there.
    ///
    /// It is known before the queue pair goes to ERR, so that a program that finds work flushed
    /// ([`WcStatus::WrFlushErr`](verbs_core::WcStatus::WrFlushErr)) tells a connection that was closed from one
    /// that broke: `None` or [`Ended::Failed`] together with a failed completion is a break. RDMA NICs do not tell a
    /// peer that closes a connection over TCP from a link that breaks: [`Ended::Peer`] is either.
    ///
    /// Never waits; legal from a routine.
    pub fn ended(&self) -> Option<Ended> {
        self.link.ended()
    }

    /// Posts to the send queue; see [`SendQueue::post`].
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::Split`] if the queues were split off before the queue pair was
    /// connected.
    #[inline]
    pub fn post_send<'w>(&mut self, wr: impl Into<SendWr<'w>>) -> Result<(), PostError> {
        let (send, _) = self.queues.as_mut().ok_or(PostError::Split)?;
        send.post(wr)
    }

    /// Posts several to the send queue; see [`SendQueue::post_batch`].
    ///
    /// # Errors
    /// As [`Connection::post_send`].
    pub fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        let split = BatchError {
            posted: 0,
            error: PostError::Split,
        };
        let (send, _) = self.queues.as_mut().ok_or(split)?;
        send.post_batch(wrs)
    }

    /// Posts to the receive queue; see [`RecvQueue::post`].
    ///
    /// # Errors
    /// As [`Connection::post_send`].
    #[inline]
    pub fn post_recv(&mut self, wr: Recv<'_>) -> Result<(), PostError> {
        let (_, recv) = self.queues.as_mut().ok_or(PostError::Split)?;
        recv.post(wr)
    }

    /// Takes the queues off the connection, for a dispatcher that posts by itself; `None` if they were taken
    /// before, or split off the queue pair. The connection goes on as it was, and its own posts answer
    /// [`PostError::Split`].
    ///
    /// The queues post until the queue pair is destroyed, and then answer [`PostError::Destroyed`].
    pub fn take_queues(&mut self) -> Option<(SendQueue, RecvQueue)> {
        self.queues.take()
    }

    /// One half for each direction, for two threads or tasks. The connection lives as long as either.
    pub fn split(self) -> (SendHalf, RecvHalf) {
        let (send, recv) = self.queues.unzip();
        let link = Arc::clone(&self.link);
        (
            SendHalf { link, queue: send },
            RecvHalf {
                link: self.link,
                queue: recv,
            },
        )
    }

    /// Offers the peer an alternate path: both queue pairs load it, and move to it when the path in use fails, or when
    /// one of them is told to ([`QpAttr::migrate`](verbs_core::QpAttr::migrate)). The side that connected offers;
    /// after [`PathMig`](verbs_core::EventType::PathMig) it may offer the path that was left, or another. Each queue
    /// pair is armed by the first packet that it gets from the other afterwards. One offer at a time.
    ///
    /// # Errors
    /// [`Error::Path`] when the peer or the queue pair does not take it, or the peer does not answer;
    /// [`Error::Machine`] with [`CmError::NoAlternates`](crate::CmError::NoAlternates) on devices and networks without,
    /// and on the side that accepted, or [`CmError::State`](crate::CmError::State) while another offer is on its way;
    /// [`Error::Disconnected`]. The connection goes on as before.
    ///
    /// # Cancel safety
    /// An offer that has left is carried on when the step is dropped.
    ///
    /// ```no_run
    /// # async fn example(connection: &verbs_cm::Connection) -> Result<(), verbs_cm::Error> {
    /// // The second LIDs of both ports.
    /// let path = verbs_cm::Alternate::Lids { src_path_bits: 1, dlid: verbs_core::Lid(33) };
    /// connection.load_path(path).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn load_path(&self, path: impl Into<Alternate>) -> Step<()> {
        let (link, path) = (Arc::clone(&self.link), path.into());
        Step::new(async move {
            link.load_path(&path)?;
            poll_fn(|cx| link.poll_path(cx)).await
        })
    }

    /// Ends the connection: the queue pair goes to ERR, which flushes what is posted, and the peer is
    /// told. Ends when the peer has answered, or did not in spite of all retries; where the peer has
    /// ended the connection, when it was answered.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::Cancelled`].
    pub fn disconnect(&self) -> Step<()> {
        disconnect(&self.link)
    }

    /// Ends when the connection has, by either side: the queue pair is in ERR then. What the peer is to
    /// be told has left: a program that ends without it may take the last message with it, and leave the
    /// peer asking again and again.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::Cancelled`].
    pub fn closed(&self) -> Step<()> {
        closed(&self.link)
    }

    /// Disconnects, and destroys the queue pair.
    ///
    /// # Errors
    /// [`Error::Verb`] when the queue pair could not be destroyed: something is attached to it.
    pub fn close(self) -> Step<()> {
        Step::new(async move {
            disconnect(&self.link).await?;
            self.link.released().await;
            let Some(qp) = self.link.take_qp() else {
                return Ok(());
            };
            let destroyed = qp.destroy().await;
            destroyed.map_err(|refused| Error::Verb(refused.error))
        })
    }

    /// Takes the queue pair, in whatever state; the connection ends without it.
    pub fn into_qp(self) -> Option<Qp> {
        self.link.take_qp()
    }
}

fn disconnect(link: &Arc<dyn Link>) -> Step<()> {
    let link = Arc::clone(link);
    Step::new(async move {
        link.disconnect();
        over(&link).await;
        Ok(())
    })
}

fn closed(link: &Arc<dyn Link>) -> Step<()> {
    let link = Arc::clone(link);
    Step::new(async move {
        over(&link).await;
        Ok(())
    })
}

async fn over(link: &Arc<dyn Link>) {
    poll_fn(|cx| link.poll_over(cx)).await;
    link.drained().await;
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.link.peer())
            .finish_non_exhaustive()
    }
}

/// The sending half of a connection.
pub struct SendHalf {
    link: Arc<dyn Link>,
    queue: Option<SendQueue>,
}

impl SendHalf {
    /// Posts a work request; see [`SendQueue::post`].
    ///
    /// # Errors
    /// As [`Connection::post_send`].
    #[inline]
    pub fn post<'w>(&mut self, wr: impl Into<SendWr<'w>>) -> Result<(), PostError> {
        self.queue.as_mut().ok_or(PostError::Split)?.post(wr)
    }

    /// Posts several; see [`SendQueue::post_batch`].
    ///
    /// # Errors
    /// As [`SendHalf::post`].
    pub fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        let split = BatchError {
            posted: 0,
            error: PostError::Split,
        };
        self.queue.as_mut().ok_or(split)?.post_batch(wrs)
    }

    /// As [`Connection::ended`].
    pub fn ended(&self) -> Option<Ended> {
        self.link.ended()
    }

    /// As [`Connection::disconnect`].
    ///
    /// # Errors
    /// As there.
    pub fn disconnect(&self) -> Step<()> {
        disconnect(&self.link)
    }
}

/// The receiving half of a connection.
pub struct RecvHalf {
    link: Arc<dyn Link>,
    queue: Option<RecvQueue>,
}

impl RecvHalf {
    /// Posts a receive; see [`RecvQueue::post`].
    ///
    /// # Errors
    /// As [`Connection::post_recv`].
    #[inline]
    pub fn post(&mut self, wr: Recv<'_>) -> Result<(), PostError> {
        self.queue.as_mut().ok_or(PostError::Split)?.post(wr)
    }

    /// Posts several; see [`RecvQueue::post_batch`].
    ///
    /// # Errors
    /// As [`RecvHalf::post`].
    pub fn post_batch(&mut self, wrs: &[Recv<'_>]) -> Result<(), BatchError> {
        let split = BatchError {
            posted: 0,
            error: PostError::Split,
        };
        self.queue.as_mut().ok_or(split)?.post_batch(wrs)
    }

    /// As [`Connection::ended`].
    pub fn ended(&self) -> Option<Ended> {
        self.link.ended()
    }

    /// As [`Connection::closed`].
    ///
    /// # Errors
    /// As there.
    pub fn closed(&self) -> Step<()> {
        closed(&self.link)
    }
}

macro_rules! debug {
    ($($Half:ident)*) => { $(
        impl fmt::Debug for $Half {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($Half))
                    .field("peer", &self.link.peer())
                    .finish_non_exhaustive()
            }
        }
    )* };
}
debug!(SendHalf RecvHalf);

/// Waits until the connection is there; a queue pair whose connection will never be comes back.
pub(crate) async fn finish(endpoint: Arc<Endpoint>) -> Result<Connection, NotConnected> {
    match poll_fn(|cx| endpoint.poll_established(cx)).await {
        Ok(data) => {
            let queues = endpoint.take_queues();
            Ok(Connection::new(endpoint, queues, data))
        }
        Err(error) => {
            let qp = endpoint.take_qp();
            Err(NotConnected { error, qp })
        }
    }
}

/// As [`finish`], in time.
pub(crate) async fn finish_within(
    endpoint: Arc<Endpoint>,
    limit: &Limit,
) -> Result<Connection, NotConnected> {
    let peer = endpoint.peer;
    match limit.done(finish(Arc::clone(&endpoint))).await {
        Some(Err(NotConnected {
            error: Error::TimedOut(_),
            qp,
        })) => Err(NotConnected {
            error: limit.late(peer),
            qp,
        }),
        Some(ended) => ended,
        // The endpoint goes here, which takes the request back.
        None => Err(NotConnected {
            error: limit.late(peer),
            qp: endpoint.take_qp(),
        }),
    }
}
