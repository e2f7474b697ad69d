//! A connection, below its operations: its end of the lane, and the connection manager's part of it.

pub(crate) mod keepalive;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use verbs_cm::Ended;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::task::{self, OwnWaker};
use verbs_core::{PostError, QpStats, Qpn, WcStatus};

use crate::buf::Buf;
use crate::core::{Closes, Handle};
use crate::error::{Cause, Error, Failed, Operation};
use crate::lane::slot::Fault;
use crate::lane::{Lane, Side};
use crate::lane::{probe, reap, sleep};

/// A connection, as its operations have it. Dropping it ends the connection, in the background.
pub(crate) struct Link {
    core: Handle,
    /// Its end of the lane.
    conn: u32,
    pub(crate) qpn: Option<Qpn>,
    pub(crate) peer: SocketAddr,
    pub(crate) private_data: Vec<u8>,
    /// Taken out to be closed.
    link: Mutex<Option<verbs_cm::Connection>>,
}

impl Link {
    /// Takes over a connection that was made. `serial` tells which one of the end, and `asked` what the peer has said that
    /// asked for it.
    pub(crate) fn new(
        core: Handle,
        (conn, serial): (u32, u32),
        mut link: verbs_cm::Connection,
        asked: Option<Vec<u8>>,
    ) -> Self {
        let queues = link.take_queues();
        let (closed, lane) = (link.closed(), Arc::downgrade(core.core()));
        let this = Self {
            conn,
            qpn: link.qpn(),
            peer: link.peer_addr(),
            private_data: asked.unwrap_or_else(|| link.private_data().to_vec()),
            link: Mutex::new(Some(link)),
            core,
        };
        if let Some(queues) = queues {
            this.core.with(|lane| lane.open(conn, queues));
        }
        // Tasks that wait for messages hear of the end even while no receive is posted.
        task::detach(async move {
            // It fails only if it is cancelled, which nothing does.
            let _ended = closed.await;
            if let Some(core) = lane.upgrade() {
                core.with(|lane| lane.over(conn, serial));
            }
        });
        this
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Handle {
        &self.core
    }

    #[inline(always)]
    pub(crate) fn conn(&self) -> u32 {
        self.conn
    }

    /// Calls with the lane and this end of it.
    pub(crate) fn on_end<R>(&self, call: impl FnOnce(&mut Lane, u32) -> R) -> R {
        self.core.with(|lane| call(lane, self.conn))
    }

    /// The peer is gone: tasks that wait are told, and the connection is ended.
    #[cold]
    fn lose(&self) {
        tracing::debug!(peer = %self.peer, "a peer does not answer probes: its connection ends");
        self.on_end(probe::lose);
        if let Some(ending) = self.with_link(verbs_cm::Connection::disconnect) {
            ending.issue(|_ended| ());
        }
    }

    fn id(&self) -> usize {
        self.conn as usize
    }

    pub(crate) fn poll_drained(&self, cx: &Context<'_>) -> Poll<()> {
        let mut waker = OwnWaker::of(cx.waker());
        self.core().with(|lane| {
            reap::in_passing(lane);
            let end = &mut lane.ends[self.id()];
            if end.is_drained() {
                return Poll::Ready(());
            }
            waker.join(&mut end.drainers);
            sleep::arm_if_needed(lane, Side::Send);
            Poll::Pending
        })
    }

    /// Waits until everything posted has completed, then ends the connection.
    pub(crate) async fn end(&self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_drained(cx)).await;
        let closing = self.with_link(verbs_cm::Connection::disconnect);
        if let Some(closing) = closing {
            closing.await?;
        }
        self.broken()
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

    /// The connection's statistics, with those of its queue pair.
    pub(crate) fn stats(&self, qp: QpStats) -> ConnectionStats {
        self.core.with(|lane| {
            reap::in_passing(lane);
            let end = &lane.ends[self.id()];
            ConnectionStats {
                qp,
                posted: end.posted,
                waiting: end.waiting.len() as u32,
                unread: end.inbox.len() as u32,
                receives: end.recv_posted,
            }
        })
    }

    fn ended(&self) -> Option<Ended> {
        self.with_link(verbs_cm::Connection::ended).flatten()
    }

    /// Calls with the connection of the connection manager, unless it is being closed.
    pub(crate) fn with_link<R>(&self, call: impl FnOnce(&verbs_cm::Connection) -> R) -> Option<R> {
        self.link.lock().as_ref().map(call)
    }

    /// Why it broke, if it did.
    ///
    /// # Errors
    /// That.
    pub(crate) fn broken(&self) -> Result<(), Error> {
        match self.core.with(|lane| lane.ends[self.id()].fault) {
            Some(fault) if !fault.is_consequence() => Err(self.error_of(fault)),
            _ => Ok(()),
        }
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
            qpn: self.qpn.unwrap_or_default(),
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

/// What has happened on a connection, and what is under way: [`Connection::stats`](crate::Connection::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Of the queue pair, since it was created.
    pub qp: QpStats,
    /// Operations in the send queue now: posted, and not known to have completed.
    pub posted: u32,
    /// Operations that wait for room in the send queue now.
    pub waiting: u32,
    /// Messages that have arrived and that no task has taken yet.
    pub unread: u32,
    /// Receives that are posted now: messages that the peer can send before it has to wait.
    pub receives: u32,
}

impl Closes for Link {
    fn close(self: Arc<Self>) -> BoxFuture<'static, ()> {
        async move {
            // One that broke before is over as well.
            let _broken = self.end().await;
        }
        .boxed()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let Some(link) = self.link.lock().take() else {
            return;
        };
        let (core, conn) = (Arc::clone(self.core.core()), self.conn);
        // Disconnects, destroys the queue pair, and has its buffers back; goes on by itself.
        link.close().issue(move |_closed| {
            let queues = core.with(|lane| lane.retire(conn));
            drop(queues);
        });
    }
}
