//! What the daemon tells of its clients, to anybody who may connect.

use verbs_core::host::Block;
use verbs_core::host::list::{CONNECTIONS_MAX, Cursor, Listed};

use super::Daemon;
use crate::client::ClientId;

/// A piece of the list; `None` if there are no clients from there on.
pub(super) fn piece(daemon: &Daemon, from: Cursor) -> Option<Listed> {
    // Without it, there is none from there on: numbers begin with 1.
    let first = ClientId::new(from.client.max(1))?;
    let members = daemon.clients.range(first..);
    let mut members = members.filter(|(_, client)| client.is_member());
    let (&id, client) = members.next()?;
    let skipped = match id.number() == from.client {
        true => from.connections as usize,
        false => 0,
    };
    let mut rest = daemon.connections.list(id).skip(skipped);
    let connections: Vec<_> = rest.by_ref().take(CONNECTIONS_MAX).collect();
    let next = match rest.next() {
        Some(_) => Some(Cursor {
            client: id.number(),
            connections: (skipped + connections.len()) as u32,
        }),
        None => members.next().map(|(next, _)| Cursor {
            client: next.number(),
            connections: 0,
        }),
    };
    Some(Listed {
        client: id.number(),
        uid: client.user.uid,
        pid: client.user.pid,
        name: client.name.clone()?,
        blocks: daemon.blocks.all_of(id).map(Block::number).collect(),
        services: daemon.services.of(id).collect(),
        groups: client.groups.keys().copied().collect(),
        shares: daemon.channels.of(id).map(ClientId::number).collect(),
        connections,
        next,
    })
}
