//! What a peer is asked to learn whether it still has a connection; see [`Watch`](crate::Watch).

use verbs_core::LinkLayer;
use verbs_core::addr::Gid;
use verbs_core::mad::{MadBytes, TransactionId};

use crate::machine::qp::ack_timeout;
use crate::machine::{Connection, Side, State};
use crate::params::Port;
use crate::wire::{Lap, Message};

/// How it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Passive: the REP once more. Each implementation confirms it again.
    Rep,
    /// Active: an alternate path, which a port of RoCE declines. Linux's says nothing.
    Lap,
}

/// The address of the peer, where it can be asked: the connection is established, and its port is a RoCE port of another
/// device.
pub(crate) fn watched_peer(conn: &Connection, port: &Port) -> Option<Gid> {
    let is_there = conn.state == State::Established && port.link_layer == LinkLayer::Ethernet;
    let peer = conn.peer.av.global.filter(|_| is_there)?.dgid;
    let is_own = port.gids.iter().any(|(_, own)| *own == peer);
    (!is_own).then_some(peer)
}

/// The question, which changes nothing at a peer that has the connection; and its transaction id.
pub(crate) fn about(conn: &Connection, port: &Port) -> Option<(Question, TransactionId, MadBytes)> {
    let remote_id = conn.remote_id?;
    let (question, tid, message) = match &conn.side {
        Side::Passive { rep, .. } => {
            let rep = rep.written_as(conn.is_extended());
            (Question::Rep, conn.peer_tid, Message::from(rep))
        }
        Side::Active(connect) => {
            let route = connect.route;
            let timeout = ack_timeout(route.packet_lifetime, port.ack_delay);
            let lap = Lap {
                local_id: conn.local_id,
                remote_id,
                remote_qpn: conn.remote_qpn,
                remote_response_timeout: connect.response_timeout,
                ..Lap::of(&route.to_wire(port, timeout))
            };
            (Question::Lap, conn.own_tid, lap.into())
        }
    };
    Some((question, tid, message.emit(tid)))
}
