//! The driver of a connection: one future that makes queue pairs, takes what they receive, and takes them down.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use verbs_cm::{ConnectRequest, Connection};
use verbs_core::Access;
use verbs_core::sync::Arc;

use super::Core;
use super::id::LinkId;
use super::queues::{Made, Queues};
use super::state::Turn;
use super::state::arming;
use crate::error::Error;
use crate::wire::Handshake;

/// What a driver is to do next.
enum Job {
    Connect(Handshake),
    Accept(ConnectRequest, Handshake, Handshake),
    End,
}

/// Drives a connection until the node is closed.
pub(super) async fn drive(core: Arc<Core>, id: LinkId) {
    loop {
        let made = match poll_fn(|cx| next(&core, id, cx)).await {
            Job::End => return,
            Job::Connect(asked) => connect(&core, asked).await,
            Job::Accept(request, peer, answer) => accept(&core, request, peer, answer).await,
        };
        let queues = match made {
            Ok((connection, made, peer)) => run(&core, id, connection, made, &peer).await,
            Err(error) => {
                tracing::debug!(%error, ?id, "no connection");
                None
            }
        };
        core.with_time(|state, now| state.lost(id, now, queues.as_deref()));
    }
}

fn next(core: &Arc<Core>, id: LinkId, cx: &mut Context<'_>) -> Poll<Job> {
    let (job, at) = core.with_time(|state, now| {
        let is_closed = state.closed;
        let Some(link) = state.links.get_mut(id).filter(|_| !is_closed) else {
            return (Some(Job::End), None);
        };
        // The task's own, which stays the same.
        link.driver.get_or_insert_with(|| cx.waker().clone());
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

type Connected = Result<(Connection, Made, Handshake), Error>;

async fn connect(core: &Core, asked: Handshake) -> Connected {
    let (qp, made) = Made::new(&core.device, &core.pd, &core.config).await?;
    let (local, remote) = (asked.source, asked.destination);
    let (data, len) = asked.emit();
    let connecting = verbs_cm::connect(&core.device, (remote, core.config.port(remote)), qp)
        .bind(SocketAddr::new(local, 0))
        .timeout(core.config.connect_timeout)
        .access(Access::REMOTE)
        .private_data(&data[..len]);
    let connection = connecting.await.map_err(|refused| refused.error)?;
    let peer = Handshake::parse(connection.private_data(), remote.is_ipv6());
    let peer = peer.and_then(|peer| peer.choose().map(|_| peer));
    Ok((connection, made, peer?))
}

async fn accept(
    core: &Core,
    request: ConnectRequest,
    peer: Handshake,
    answer: Handshake,
) -> Connected {
    let (qp, made) = Made::new(&core.device, &core.pd, &core.config).await?;
    let (data, len) = answer.emit();
    let accepting = request
        .accept(qp)
        .access(Access::REMOTE)
        .private_data(&data[..len]);
    let connection = accepting.await.map_err(|refused| refused.error)?;
    Ok((connection, made, peer))
}

/// Runs until the connection ends, and destroys the queue pair. Yields its queues, with the messages that are kept in them.
async fn run(
    core: &Arc<Core>,
    id: LinkId,
    mut connection: Connection,
    made: Made,
    peer: &Handshake,
) -> Option<Box<Queues>> {
    // They were not split off before.
    let mut queues = None;
    if let Some((send, recv)) = connection.take_queues() {
        let new = Queues::new(made, send, recv);
        core.with(|state| state.established(id, peer, new));
        poll_fn(|cx| turn(core, id, cx)).await;
        queues = core.with(|state| state.retire(id));
    }
    // Nothing moves any more when the queue pair has been destroyed; a device that has gone moves nothing either. What is posted
    // goes with the queue pair, and its memory after it.
    if let Some(qp) = connection.into_qp() {
        let _gone = qp.destroy().await;
    }
    queues
}

fn turn(core: &Arc<Core>, id: LinkId, cx: &mut Context<'_>) -> Poll<()> {
    match core.with_time(|state, now| arming::turn(state, id, now, cx)) {
        Turn::Over => return Poll::Ready(()),
        Turn::Waits => {}
        Turn::Later(at) => core.timer.wake_at(at, cx.waker().clone()),
        Turn::Again => cx.waker().wake_by_ref(),
    }
    Poll::Pending
}
