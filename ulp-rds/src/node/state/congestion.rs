//! Which ports are congested, here and at peers.

use std::net::IpAddr;

use super::State;
use crate::node::id::SocketId;

/// Says whether a port is congested; peers are told of changes.
pub(super) fn congest(state: &mut State, at: SocketId, congested: bool) {
    let Some(socket) = state.sockets.get_mut(at) else {
        return;
    };
    let at = socket.addr;
    socket.congested = congested;
    let Some(map) = state.maps.get_mut(&at.ip()) else {
        return;
    };
    if !map.set(at.port(), congested) {
        return;
    }
    for link in state.links.iter_mut().filter(|link| link.key.0 == at.ip()) {
        link.machine.congestion_changed(map);
        state.due.wakes.extend(link.driver.clone());
    }
    if !congested {
        freed(state, 1 << (at.port() % 64), None);
    }
}

/// Ports became free, at a peer of the address `at` or in this node.
pub(super) fn freed(state: &mut State, groups: u64, at: Option<IpAddr>) {
    for socket in state.sockets.iter_mut() {
        if at.is_some_and(|at| at != socket.addr.ip()) {
            continue;
        }
        state.due.wake(&mut socket.writers);
        let news = groups & socket.monitored;
        if news != 0 {
            socket.freed |= news;
            state.due.wake(&mut socket.readers);
        }
    }
}
