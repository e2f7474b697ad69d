//! What comes: datagrams for sockets, and what connections say of those that were sent.

use std::net::SocketAddr;

use verbs_core::WcStatus;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::Ordering::Release;

use super::State;
use super::congestion;
use crate::config::DATAGRAM_CHARGE;
use crate::datagram::Datagram;
use crate::machine::{Arrived, Event, Incoming};
use crate::node::id::{LinkId, SocketId};
use crate::node::link::Told;
use crate::node::queues::{BATCH, Completion};
use crate::payload::Payload;
use crate::rdma::{Mapped, Notification, RdmaStatus};
use crate::wire::{Extension, Extensions, Header};

/// The next datagram of a socket: one that waits, or one that has come over the connection of the last one, if programs
/// look there themselves.
#[inline]
pub(crate) fn take(state: &mut State, at: SocketId) -> Option<Datagram> {
    let socket = state.sockets.get_mut(at)?;
    let near = socket.near;
    if !socket.queue.is_empty() {
        return take_queued(state, at);
    }
    let link = state.links.get_mut(near?)?;
    if !link.is_left {
        return None;
    }
    let mut datagram = None;
    look(state, near?, 1, Some((at, &mut datagram)));
    // One of several packets is in the queue.
    datagram.or_else(|| take_queued(state, at))
}

fn take_queued(state: &mut State, at: SocketId) -> Option<Datagram> {
    let socket = state.sockets.get_mut(at)?;
    let datagram = socket.queue.pop_front()?;
    if socket.queue.is_empty() {
        socket.is_filled.store(false, Release);
    }
    socket.queued -= datagram.payload.len() + DATAGRAM_CHARGE;
    let is_free = socket.congested && socket.queued <= state.config.receive_buffer / 2;
    // A program that was woken waits for events, and one that was not looks by itself.
    if !std::mem::take(&mut socket.is_woken)
        && let Some(near) = socket.near
        && let Some(link) = state.links.get_mut(near)
    {
        link.is_polled = true;
    }
    if is_free {
        congestion::congest(state, at, false);
    }
    Some(datagram)
}

/// Takes what has come over a connection, up to a number of completions, or to the datagram for a socket that has none in its
/// queue and is asked for; posts what is due then. Completions are polled so many at a time. Whether there was one.
#[inline]
pub(super) fn look(
    state: &mut State,
    id: LinkId,
    width: usize,
    mut asked: Option<(SocketId, &mut Option<Datagram>)>,
) -> bool {
    let mut any = false;
    for _ in 0..BATCH {
        let Some(link) = state.links.get_mut(id) else {
            break;
        };
        let Some(completion) = link.next(width) else {
            break;
        };
        any = true;
        if completed(state, id, &completion, &mut asked) {
            break;
        }
    }
    if any && state.links.get_mut(id).is_some_and(|link| link.is_due()) {
        after(state, id);
    }
    any
}

/// Takes a completion. Whether it was the datagram that is asked for.
#[inline]
fn completed(
    state: &mut State,
    id: LinkId,
    completion: &Completion,
    asked: &mut Option<(SocketId, &mut Option<Datagram>)>,
) -> bool {
    let Some(link) = state.links.get_mut(id) else {
        return true;
    };
    let (local, remote, _) = link.key;
    let (mut near, pool) = (link.receiver, &state.pool);
    let Some((packet, source, destination)) = link.single(completion) else {
        completed_slowly(state, id, completion);
        return false;
    };
    let Some(to) = state
        .sockets
        .at(SocketAddr::new(local, destination), &mut near)
    else {
        return false;
    };
    let len = packet.len() - Header::LEN;
    let mut payload = pool.room_for(len);
    let copied = payload.append(len, |into| packet.read(Header::LEN, into));
    debug_assert!(copied.is_some(), "it has as many bytes");
    link.receiver = near;
    let from = SocketAddr::new(remote, source);
    let Some(socket) = state.sockets.get_mut(to) else {
        return false;
    };
    socket.near = Some(id);
    if let Some((at, datagram)) = asked
        && *at == to
        && socket.queue.is_empty()
    {
        socket.counters.received += 1;
        socket.counters.bytes_received += len as u64;
        link.is_polled = true;
        **datagram = Some(Datagram {
            from,
            payload,
            cookie: None,
        });
        return true;
    }
    deliver(state, to, from, payload, Extensions::default());
    false
}

#[inline(never)]
fn completed_slowly(state: &mut State, id: LinkId, completion: &Completion) {
    let Some(link) = state.links.get_mut(id) else {
        return;
    };
    match link.completed(completion, &state.pool) {
        Told::Nothing => {}
        Told::Datagram(incoming) => arrived(state, id, incoming),
        Told::Operation(operation, status) => {
            rdma_ended(state, operation, status_of(status));
        }
    }
}

/// Posts what is due on a connection, and hands on what it says.
#[inline]
pub(super) fn after(state: &mut State, id: LinkId) {
    let Some(link) = state.links.get_mut(id) else {
        return;
    };
    link.post(&mut state.operations);
    if link.is_over {
        state.due.wakes.extend(link.driver.clone());
    }
    dispatch(state, id);
}

/// A datagram has come over a connection. Where there is no socket it is discarded.
fn arrived(state: &mut State, id: LinkId, incoming: Incoming) {
    let Some(link) = state.links.get_mut(id) else {
        return;
    };
    let (local, remote, _) = link.key;
    let to = SocketAddr::new(local, incoming.destination);
    let Some(to) = state.sockets.at(to, &mut link.receiver) else {
        return;
    };
    if let Some(socket) = state.sockets.get_mut(to) {
        socket.near = Some(id);
    }
    let from = SocketAddr::new(remote, incoming.source);
    deliver(state, to, from, incoming.payload, incoming.extensions);
}

/// A datagram has come for a socket.
pub(super) fn deliver(
    state: &mut State,
    to: SocketId,
    from: SocketAddr,
    payload: Payload,
    extensions: Extensions,
) {
    let Some(socket) = state.sockets.get_mut(to) else {
        return;
    };
    let mut cookie = None;
    if !extensions.is_empty() {
        for extension in extensions.iter() {
            match extension {
                // The operation has been carried out, whatever becomes of its datagram.
                Extension::Rdma(rkey) => {
                    let is_used = |mapped: &mut Arc<Mapped>| mapped.cookie.rkey == rkey;
                    let used = socket.once.extract_if(.., is_used);
                    let released = used.filter_map(|mapped| mapped.release());
                    state.due.released.extend(released);
                }
                Extension::Destination(place) => {
                    cookie.get_or_insert(place.value());
                }
                _ => {}
            }
        }
    }
    let charge = payload.len() + DATAGRAM_CHARGE;
    if socket.queued + charge > state.config.receive_max {
        socket.counters.discarded += 1;
        return;
    }
    socket.counters.received += 1;
    socket.counters.bytes_received += payload.len() as u64;
    socket.queued += charge;
    socket.queue.push_back(Datagram {
        from,
        payload,
        cookie,
    });
    socket.is_filled.store(true, Release);
    socket.is_woken = !socket.readers.is_empty();
    state.due.wake(&mut socket.readers);
    if socket.queued > state.config.receive_buffer && !socket.congested {
        congestion::congest(state, to, true);
    }
}

/// The end of an operation that was to be told.
pub(crate) fn take_notification(state: &mut State, at: SocketId) -> Option<Notification> {
    state.sockets.get_mut(at)?.notifications.pop_front()
}

/// Hands on what a connection says.
#[inline]
pub(super) fn dispatch(state: &mut State, id: LinkId) {
    while let Some(link) = state.links.get_mut(id)
        && let Some(event) = link.machine.poll_event()
    {
        let local = link.key.0;
        match event {
            Event::Acked {
                source,
                messages,
                bytes,
            } => {
                let source = SocketAddr::new(local, source);
                if let Some(source) = state.sockets.at(source, &mut link.source) {
                    settle(state, source, messages, bytes);
                }
            }
            Event::Congestion(groups) => congestion::freed(state, groups, Some(local)),
        }
    }
}

/// Messages of a socket no longer wait for acknowledgement.
pub(super) fn settle(state: &mut State, at: SocketId, messages: usize, bytes: usize) {
    if let Some(socket) = state.sockets.get_mut(at) {
        let (unacked, count) = socket.unacked;
        socket.unacked = (
            unacked.saturating_sub(bytes),
            count.saturating_sub(messages),
        );
        state.due.wake(&mut socket.writers);
    }
}

/// An operation has ended.
fn rdma_ended(state: &mut State, id: u64, status: RdmaStatus) {
    if let Some((from, end)) = state.operations.ended(id, status) {
        notify(state, from, end);
    }
}

/// Tells a socket of the end of an operation, if it wants to hear of it.
pub(super) fn notify(state: &mut State, at: SocketAddr, end: Option<Notification>) {
    let id = state.sockets.find(at);
    if let Some(socket) = id.and_then(|id| state.sockets.get_mut(id)) {
        socket.operations = socket.operations.saturating_sub(1);
        socket.notifications.extend(end);
        state.due.wake(&mut socket.readers);
        state.due.wake(&mut socket.writers);
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
