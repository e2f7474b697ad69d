//! The driver of a connection: one future that makes queue pairs, takes what they receive, and takes them down. And the task of
//! one that a peer has asked for, until it is established.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{Either, select};
use verbs_cm::{ConnectRequest, Connection};
use verbs_core::Access;
use verbs_core::sync::Arc;

use super::Core;
use super::half_open::Arrived;
use super::id::{Key, LinkId};
use super::queues::{Made, Queues};
use super::state::Turn;
use super::state::arming;
use crate::error::Error;
use crate::machine::Asked;
use crate::wire::Handshake;

/// How long an attempt waits for a connection that the peer has asked for: its confirmation is on its way, unless the request was
/// forged. Linux drops a connection if it is asked for another one right then.
const PATIENCE: Duration = Duration::from_millis(10);

/// What a driver is to do next.
enum Job {
    Connect(Handshake),
    Take(Box<Arrived>),
    End,
}

/// Drives a connection until the node is closed, or the connection is forgotten.
pub(super) async fn drive(core: Arc<Core>, id: LinkId, number: u64) {
    loop {
        let made = match poll_fn(|cx| next(&core, id, number, cx)).await {
            Job::End => return,
            Job::Connect(asked) => connect(&core, id, asked).await,
            Job::Take(arrived) => Ok((arrived.connection, arrived.made, arrived.peer)),
        };
        let queues = match made {
            Ok((connection, made, peer)) => {
                core.with(|state| state.note_error(id, None));
                run(&core, id, connection, made, &peer).await
            }
            Err(error) => {
                tracing::debug!(%error, ?id, "no connection");
                core.with(|state| state.note_error(id, Some(error)));
                None
            }
        };
        core.with_time(|state, now| state.lost(id, now, queues.as_deref()));
    }
}

fn next(core: &Arc<Core>, id: LinkId, number: u64, cx: &mut Context<'_>) -> Poll<Job> {
    let (job, at) = core.with_time(|state, now| {
        let is_closed = state.closed;
        let link = state.links.get_mut(id);
        let Some(link) = link.filter(|link| !is_closed && link.number == number) else {
            return (Some(Job::End), None);
        };
        // The task's own, which stays the same.
        link.driver.get_or_insert_with(|| cx.waker().clone());
        if let Some(arrived) = link.arrived.take() {
            link.patient_until = None;
            link.machine.accept();
            return (Some(Job::Take(arrived)), None);
        }
        let Some(mut at) = link.machine.poll_timeout() else {
            return (None, None);
        };
        if at <= now && state.half_open.has(link.key) {
            at = *link.patient_until.get_or_insert(now + PATIENCE);
        }
        if at > now {
            return (None, Some(at));
        }
        link.patient_until = None;
        (link.machine.connect().map(Job::Connect), None)
    });
    if let Some(at) = at {
        core.timer.wake_at(at, cx.waker().clone());
    }
    job.map_or(Poll::Pending, Poll::Ready)
}

type Connected = Result<(Connection, Made, Handshake), Error>;

/// Asks for a connection, unless one that the peer has asked for is established before.
async fn connect(core: &Arc<Core>, id: LinkId, asked: Handshake) -> Connected {
    let connecting = pin!(ask(core, asked));
    // The driver is woken when one is.
    let arrived = poll_fn(|_| core.with(|state| state.has_arrived(id)));
    match select(arrived, connecting).await {
        Either::Left(_) => Err(Error::Superseded),
        Either::Right((connected, _)) => connected,
    }
}

async fn ask(core: &Core, asked: Handshake) -> Connected {
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

/// A request, before it is answered.
pub(super) struct Request {
    pub(super) number: u64,
    pub(super) key: Key,
    pub(super) request: ConnectRequest,
    pub(super) peer: Handshake,
    pub(super) asked: Asked,
}

/// Answers a request, and waits until the connection is established, or another one takes its place.
pub(super) async fn open(core: Arc<Core>, request: Request) {
    let number = request.number;
    let out = poll_fn(|cx| core.with(|state| state.half_open.poll_out(number, cx)));
    let accepting = pin!(accept(&core, request));
    let arrived = match select(accepting, out).await {
        Either::Left((Ok(arrived), _)) => Some(Box::new(arrived)),
        Either::Left((Err(error), _)) => {
            tracing::debug!(%error, "a connection that was asked for is not established");
            None
        }
        Either::Right(_) => None,
    };
    let refused = core.with_time(|state, now| {
        state.half_open.leave(number);
        state.arrived(arrived?, now).err()
    });
    if let Some(qp) = refused.and_then(|arrived| arrived.connection.into_qp()) {
        let _gone = qp.destroy().await;
    }
}

async fn accept(core: &Core, request: Request) -> Result<Arrived, Error> {
    let Request {
        number,
        key,
        request,
        peer,
        asked,
    } = request;
    let (qp, made) = Made::new(&core.device, &core.pd, &core.config).await?;
    let (data, len) = asked.answer.emit();
    let accepting = request
        .accept(qp)
        .access(Access::REMOTE)
        .private_data(&data[..len]);
    let connection = accepting.await.map_err(|refused| refused.error)?;
    Ok(Arrived {
        number,
        key,
        asked,
        connection,
        made,
        peer,
    })
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
