//! What sockets send, and take back.

use std::net::SocketAddr;

use super::State;
use super::{congestion, receive};
use crate::config::SEND_MESSAGES_MAX;
use crate::error::SendError;
use crate::machine::{Outgoing, Short, State as Stage};
use crate::node::id::{LinkId, SocketId};
use crate::node::queues::BATCH;
use crate::node::socket::Socket;
use crate::payload::Payload;
use crate::rdma::SendOptions;
use crate::wire::{Extension, Extensions, FRAGMENT_LEN, MESSAGE_LEN_MAX, PING_PORT};

/// What a socket may send now.
struct Permit {
    from: SocketAddr,
    /// The connection, if the socket has sent there last.
    route: Option<LinkId>,
    /// Whether the peer is asked to acknowledge it without delay.
    ack_required: bool,
}

/// Sends a datagram, or says why not. What cannot be transmitted now is queued.
#[inline]
pub(crate) fn send(
    state: &mut State,
    from: SocketId,
    to: SocketAddr,
    payload: &[u8],
    options: Option<&SendOptions>,
) -> Result<(), SendError> {
    let permit = permit(state, from, to, payload.len(), options)?;
    let (Some(id), None) = (permit.route, options) else {
        return send_slowly(state, from, to, payload, options, &permit);
    };
    let link = state.links.get_mut(id).ok_or(SendError::Closed)?;
    if link.machine.is_congested(to.port()) {
        return Err(SendError::Congested(to));
    }
    let message = Short {
        source: permit.from.port(),
        destination: to.port(),
        len: payload.len() as u32,
        ack_required: permit.ack_required,
    };
    if payload.len() > FRAGMENT_LEN || !link.transmit_now(&message, payload) {
        return send_slowly(state, from, to, payload, options, &permit);
    }
    sent(state, from, payload.len());
    look_if_low(state, id);
    Ok(())
}

/// Whether a socket may send so many bytes there.
#[inline]
fn permit(
    state: &mut State,
    from: SocketId,
    to: SocketAddr,
    len: usize,
    options: Option<&SendOptions>,
) -> Result<Permit, SendError> {
    let socket = state.sockets.get_mut(from).ok_or(SendError::Closed)?;
    let (addr, (bytes, messages)) = (socket.addr, socket.unacked);
    let told = socket.notifications.len() + socket.operations;
    let route = match socket.route {
        Some((ip, id)) if ip == to.ip() => Some(id),
        _ => None,
    };
    if route.is_none() {
        check_destination(addr, to)?;
    }
    let rdma = options.and_then(|options| options.rdma.as_ref());
    if let Some(rdma) = rdma {
        if state.maps.contains_key(&to.ip()) {
            return Err(SendError::RdmaWithinNode(to));
        }
        rdma.check(state.atomics)?;
    }
    let buffer = state.config.send_buffer;
    let max = buffer.min(MESSAGE_LEN_MAX);
    if len > max {
        return Err(SendError::TooLong { len, max });
    }
    let has_room = rdma.is_none() || told < SEND_MESSAGES_MAX;
    // As in Linux, the last datagram may be longer than the room that is left: it asks for an acknowledgement, while those
    // before it, without which it does not fit, may not have.
    if bytes >= buffer || messages >= SEND_MESSAGES_MAX || !has_room {
        return Err(SendError::WouldBlock);
    }
    Ok(Permit {
        from: addr,
        route,
        ack_required: bytes + len > buffer / 2 || messages > SEND_MESSAGES_MAX / 2,
    })
}

/// A datagram is on its way, or queued.
#[inline]
fn sent(state: &mut State, from: SocketId, len: usize) {
    if let Some(socket) = state.sockets.get_mut(from) {
        let (bytes, messages) = socket.unacked;
        socket.unacked = (bytes + len, messages + 1);
        socket.counters.sent += 1;
        socket.counters.bytes_sent += len as u64;
    }
}

/// Looks what was sent and acknowledged, if that is what new datagrams will wait for.
#[inline]
fn look_if_low(state: &mut State, id: LinkId) {
    let Some(link) = state.links.get_mut(id) else {
        return;
    };
    if link.is_over {
        state.due.wakes.extend(link.driver.clone());
        return;
    }
    if !link.queues.as_ref().is_some_and(|queues| queues.is_low()) {
        return;
    }
    link.is_polled = true;
    if link.is_left {
        receive::look(state, id, BATCH, None);
    }
}

/// As [`send`](send), for what is no single packet that can be posted at once.
#[inline(never)]
fn send_slowly(
    state: &mut State,
    from: SocketId,
    to: SocketAddr,
    payload: &[u8],
    options: Option<&SendOptions>,
    permit: &Permit,
) -> Result<(), SendError> {
    let addr = permit.from;
    let id = match permit.route {
        Some(id) => id,
        None if state.maps.contains_key(&to.ip()) => {
            return loop_back(state, from, addr, to, payload, options);
        }
        None => route(state, from, to)?,
    };
    let link = state.links.get_mut(id).ok_or(SendError::Closed)?;
    if link.machine.is_congested(to.port()) {
        return Err(SendError::Congested(to));
    }
    let operation = options.and_then(|options| options.rdma.as_ref());
    let operation = operation.map(|rdma| (state.operations.next_id(), rdma));
    link.machine.send(Outgoing {
        source: addr.port(),
        destination: to.port(),
        payload: state.pool.copy_of(payload),
        ack_required: permit.ack_required,
        extensions: extensions_of(options),
        rdma: operation.map(|(id, rdma)| rdma.work(id)),
    });
    if link.machine.state() == Stage::Down {
        state.due.wakes.extend(link.driver.clone());
    }
    if let Some((id, rdma)) = operation {
        state.operations.queue(id, rdma, (addr, to), link.key);
        if let Some(socket) = state.sockets.get_mut(from) {
            socket.operations += 1;
        }
    }
    sent(state, from, payload.len());
    receive::after(state, id);
    look_if_low(state, id);
    Ok(())
}

/// The connection to another node, which the socket remembers.
fn route(state: &mut State, from: SocketId, to: SocketAddr) -> Result<LinkId, SendError> {
    let connections = state.config.connections_max;
    let socket = state.sockets.get_mut(from).ok_or(SendError::Closed)?;
    let key = (socket.addr.ip(), to.ip(), socket.tos);
    let id = state.link(key);
    let id = id.ok_or(SendError::Connections(connections))?;
    if let Some(socket) = state.sockets.get_mut(from) {
        socket.route = Some((to.ip(), id));
    }
    Ok(id)
}

/// From one socket of the node to another one, without a connection.
fn loop_back(
    state: &mut State,
    id: SocketId,
    from: SocketAddr,
    to: SocketAddr,
    payload: &[u8],
    options: Option<&SendOptions>,
) -> Result<(), SendError> {
    let map = state.maps.get(&to.ip());
    if map.is_some_and(|map| map.is_congested(to.port())) {
        return Err(SendError::Congested(to));
    }
    match to.port() {
        PING_PORT => receive::deliver(state, id, to, Payload::default(), Extensions::default()),
        _ => {
            if let Some(there) = state.sockets.find(to) {
                let payload = state.pool.copy_of(payload);
                receive::deliver(state, there, from, payload, extensions_of(options));
            }
        }
    }
    if let Some(socket) = state.sockets.get_mut(id) {
        socket.counters.sent += 1;
        socket.counters.bytes_sent += payload.len() as u64;
    }
    Ok(())
}

/// Takes back what was not acknowledged, to one destination or to all.
pub(crate) fn cancel(state: &mut State, id: SocketId, to: Option<SocketAddr>) -> usize {
    let Some(from) = state.sockets.get_mut(id).map(|socket| socket.addr) else {
        return 0;
    };
    let mut total = (0, 0);
    for link in state.links.iter_mut() {
        let is_meant = link.key.0 == from.ip() && to.is_none_or(|to| to.ip() == link.key.1);
        if is_meant {
            let port = to.map(|to| to.port());
            let (count, bytes) = link.machine.cancel(from.port(), port);
            total = (total.0 + count, total.1 + bytes);
        }
    }
    receive::settle(state, id, total.0, total.1);
    for end in state.operations.cancel(from, to) {
        receive::notify(state, from, end);
    }
    total.0
}

/// A socket is closed: what it has not sent is cancelled, what it has not read is gone.
pub(crate) fn close(state: &mut State, id: SocketId) -> Option<Socket> {
    cancel(state, id, None);
    congestion::congest(state, id, false);
    let mut socket = state.sockets.remove(id)?;
    state.due.wake(&mut socket.readers);
    state.due.wake(&mut socket.writers);
    Some(socket)
}

/// Bytes and messages of a socket that wait for acknowledgement.
pub(crate) fn unacked(state: &mut State, at: SocketId) -> (usize, usize) {
    let socket = state.sockets.get_mut(at);
    socket.map_or((0, 0), |socket| socket.unacked)
}

/// Whether a socket may send there.
fn check_destination(from: SocketAddr, to: SocketAddr) -> Result<(), SendError> {
    let is_destination =
        !to.ip().is_unspecified() && !to.ip().is_multicast() && to.is_ipv4() == from.is_ipv4();
    match is_destination {
        true => Ok(()),
        false => Err(SendError::Destination(to)),
    }
}

/// What a datagram says beside its payload: a place in memory, and the key that is used by the operation before it.
fn extensions_of(options: Option<&SendOptions>) -> Extensions {
    let mut extensions = Extensions::default();
    let Some(options) = options else {
        return extensions;
    };
    if options.rdma.is_none() && options.cookie.is_none() {
        return extensions;
    }
    let used = options
        .rdma
        .as_ref()
        .map(|rdma| Extension::Rdma(rdma.cookie.rkey));
    let place = options.cookie.map(Extension::Destination);
    for extension in used.into_iter().chain(place) {
        // Both take 14 bytes of 16.
        let _fits = extensions.push(extension);
    }
    extensions
}
