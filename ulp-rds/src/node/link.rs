//! The driver of a connection: one future that makes queue pairs, runs the machine over them, and takes them down.

use std::future::{IntoFuture, poll_fn};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use futures::FutureExt;
use verbs_cm::{ConnectRequest, Connection, StepFuture};
use verbs_core::sync::{Arc, AtomicWaker};
use verbs_core::{Access, Send, Wc, WcStatus};

use super::Core;
use super::buffers::{Buffers, CONTROL, RDMA, SEND, STRIDE};
use super::operations::Key;
use crate::error::Error;
use crate::rdma::RdmaStatus;
use crate::wire::Handshake;

/// Completions that are polled at a time.
const BATCH: usize = 32;

/// Rounds of one turn; then others have theirs.
const ROUNDS_MAX: usize = 64;

/// What a driver is to do next.
enum Job {
    Connect(Handshake),
    Accept(ConnectRequest, Handshake, Handshake),
    End,
}

/// Drives a connection until the node is closed.
pub(super) async fn drive(core: Arc<Core>, key: Key) {
    let Some(waker) = core.with(|state, _| Some(Arc::clone(&state.links.get(&key)?.waker))) else {
        return;
    };
    loop {
        let made = match poll_fn(|cx| next(&core, key, &waker, cx)).await {
            Job::End => return,
            Job::Connect(asked) => connect(&core, key, asked).await,
            Job::Accept(request, peer, answer) => accept(&core, request, peer, answer).await,
        };
        match made {
            Ok((connection, buffers, peer)) => {
                core.with(|state, _| {
                    if let (Some(link), Some(map)) =
                        (state.links.get_mut(&key), state.maps.get(&key.0))
                    {
                        link.machine.established(&peer, map);
                    }
                    state.dispatch(key);
                });
                run(&core, key, &waker, connection, buffers).await;
            }
            Err(error) => tracing::debug!(%error, local = %key.0, remote = %key.1, "no connection"),
        }
        core.with(|state, now| state.lost(key, now));
    }
}

fn next(core: &Core, key: Key, waker: &AtomicWaker, cx: &mut Context<'_>) -> Poll<Job> {
    waker.register(cx.waker());
    let (job, at) = core.with(|state, now| {
        let is_closed = state.closed;
        let Some(link) = state.links.get_mut(&key).filter(|_| !is_closed) else {
            return (Some(Job::End), None);
        };
        if let Some((request, peer, answer)) = link.request.take() {
            return (Some(Job::Accept(request, peer, answer)), None);
        }
        match link.machine.poll_timeout() {
            Some(at) if at <= now => (link.machine.connect().map(Job::Connect), None),
            at => (None, at),
        }
    });
    if let Some(at) = at {
        core.timer.wake_at(at, cx.waker().clone());
    }
    job.map_or(Poll::Pending, Poll::Ready)
}

type Made = Result<(Connection, Buffers, Handshake), Error>;

async fn connect(core: &Core, key: Key, asked: Handshake) -> Made {
    let (qp, buffers) = Buffers::make(&core.device, &core.pd, &core.config).await?;
    let (local, remote, _) = key;
    let (data, len) = asked.emit();
    let connecting = verbs_cm::connect(&core.device, (remote, core.config.port(remote)), qp)
        .bind(SocketAddr::new(local, 0))
        .timeout(core.config.connect_timeout)
        .access(Access::REMOTE)
        .private_data(&data[..len]);
    let connection = connecting.await.map_err(|refused| refused.error)?;
    let peer = Handshake::parse(connection.private_data(), remote.is_ipv6());
    let peer = peer.and_then(|peer| peer.choose().map(|_| peer));
    Ok((connection, buffers, peer?))
}

async fn accept(core: &Core, request: ConnectRequest, peer: Handshake, answer: Handshake) -> Made {
    let (qp, buffers) = Buffers::make(&core.device, &core.pd, &core.config).await?;
    let (data, len) = answer.emit();
    let accepting = request
        .accept(qp)
        .access(Access::REMOTE)
        .private_data(&data[..len]);
    let connection = accepting.await.map_err(|refused| refused.error)?;
    Ok((connection, buffers, peer))
}

/// Runs until the connection ends, and destroys the queue pair.
async fn run(core: &Core, key: Key, waker: &AtomicWaker, connection: Connection, buffers: Buffers) {
    let closed = connection.closed().into_future();
    let mut running = Running {
        core,
        key,
        connection,
        closed,
        buffers,
        scratch: vec![0; STRIDE],
        ended: false,
    };
    poll_fn(|cx| running.turn(waker, cx)).await;
    let Running {
        connection, closed, ..
    } = running;
    drop(closed);
    // Nothing moves any more when the queue pair has been destroyed; a device that has gone moves nothing either.
    if let Some(qp) = connection.into_qp() {
        let _gone = qp.destroy().await;
    }
}

/// A connection that is up.
struct Running<'c> {
    core: &'c Core,
    key: Key,
    connection: Connection,
    closed: StepFuture<(), verbs_cm::Error>,
    buffers: Buffers,
    scratch: Vec<u8>,
    ended: bool,
}

impl Running<'_> {
    fn turn(&mut self, waker: &AtomicWaker, cx: &mut Context<'_>) -> Poll<()> {
        waker.register(cx.waker());
        for _ in 0..ROUNDS_MAX {
            self.poll_completions();
            self.post();
            let (key, core) = (self.key, self.core);
            self.ended |= core.with(|state, _| state.closed || !state.is_up(key));
            self.ended |= self.closed.poll_unpin(cx).is_ready();
            if self.ended {
                return Poll::Ready(());
            }
            if self.buffers.cq.poll_ready(cx).is_pending() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_completions(&mut self) {
        let mut room = [Wc::default(); BATCH];
        loop {
            let polled = self.buffers.cq.poll(&mut room).len();
            for wc in &room[..polled] {
                self.completed(wc);
                if self.ended {
                    return;
                }
            }
            if polled < BATCH {
                return;
            }
        }
    }

    fn completed(&mut self, wc: &Wc) {
        let key = self.key;
        if wc.wr_id & RDMA != 0 {
            let (id, status) = (wc.wr_id & !RDMA, status_of(wc.status));
            self.core.with(|state, _| state.rdma_ended(id, status));
            self.ended |= !wc.is_ok();
            return;
        }
        if !wc.is_ok() {
            self.ended = true;
            return;
        }
        if wc.wr_id & SEND != 0 {
            self.buffers.give_back(wc.wr_id);
            if wc.wr_id & CONTROL != 0 {
                self.core.with(|state, _| {
                    if let Some(link) = state.links.get_mut(&key) {
                        link.machine.control_sent();
                    }
                });
            }
            return;
        }
        let (slot, len) = (wc.wr_id as u32, (wc.byte_len as usize).min(STRIDE));
        let packet = &mut self.scratch[..len];
        let is_read = self.buffers.read(slot, packet).is_some();
        let is_posted = self.connection.post_recv(self.buffers.recv(slot)).is_ok();
        self.ended |= !is_read || !is_posted;
        let handled = self.core.with(|state, _| {
            let Some(link) = state.links.get_mut(&key) else {
                return Ok(());
            };
            link.machine.receives_posted(1);
            let handled = link.machine.handle_packet(packet);
            state.dispatch(key);
            handled
        });
        if let Err(fault) = handled {
            tracing::warn!(%fault, remote = %key.1, "the connection is dropped");
            self.ended = true;
        }
    }

    /// Posts what there is room for.
    fn post(&mut self) {
        while !self.ended && self.buffers.has_room() {
            let key = self.key;
            let packet = self
                .core
                .with(|state, _| state.links.get_mut(&key)?.machine.poll_transmit());
            let Some(packet) = packet else {
                return;
            };
            if let Some(work) = packet.rdma {
                let rdma = self.core.with(|state, _| state.operations.begin(work.id));
                let posted = rdma.map(|rdma| rdma.post(&mut self.connection, RDMA | work.id));
                self.ended |= posted.is_some_and(|posted| posted.is_err());
            }
            let Some((id, sge)) = self.buffers.fill(&packet) else {
                return;
            };
            let mut send = Send::new(id).from(sge).signaled();
            if packet.rdma.is_some_and(|work| work.fenced) {
                send = send.fenced();
            }
            let posted = self.connection.post_send(match packet.is_last() {
                true => send.solicited(),
                false => send,
            });
            self.ended |= posted.is_err();
        }
    }
}

fn status_of(status: WcStatus) -> RdmaStatus {
    match status {
        WcStatus::Success => RdmaStatus::Success,
        WcStatus::RemAccessErr | WcStatus::RemInvReqErr | WcStatus::RemOpErr => {
            RdmaStatus::RemoteError
        }
        _ => RdmaStatus::Dropped,
    }
}
