//! What users and queue pairs may see, checked apart from the code that makes it happen.

use std::collections::BTreeMap;

use verbs_cm::wire::Transport;
use verbs_cm::{ConnId, Event, QpChange};
use verbs_core::addr::{Psn, Qpn};
use verbs_core::qp_state::check;
use verbs_core::{QpAttr, QpState, QpType};

/// A queue pair of the simulation: just its attributes.
#[derive(Debug, Default)]
pub(crate) struct Qp {
    pub(crate) state: QpState,
    pub(crate) attr: QpAttr,
    pub(crate) is_uc: bool,
}

impl Qp {
    pub(crate) fn new(transport: Transport) -> Self {
        Self {
            state: QpState::Init,
            attr: QpAttr::default(),
            is_uc: transport == Transport::Uc,
        }
    }

    /// A modify, as a device would take it.
    pub(crate) fn modify(&mut self, change: &QpChange) -> Result<(), String> {
        let to = change.attr.state.ok_or("a modify without a state")?;
        let qp_type = if self.is_uc { QpType::Uc } else { QpType::Rc };
        check(self.state, to, qp_type, change.attr.mask()).map_err(|error| error.to_string())?;
        self.state = to;
        self.attr.apply(&change.attr);
        Ok(())
    }

    /// Whether two queue pairs in RTS can talk to each other.
    pub(crate) fn fits(
        &self,
        qpn: Qpn,
        psn: Psn,
        peer: &Self,
        peer_qpn: Qpn,
    ) -> Result<(), String> {
        let mine = &self.attr;
        let fits = mine.dest_qpn == Some(peer_qpn)
            && peer.attr.dest_qpn == Some(qpn)
            && mine.sq_psn == Some(psn)
            && mine.sq_psn == peer.attr.rq_psn
            && mine.rq_psn == peer.attr.sq_psn
            && mine.path_mtu == peer.attr.path_mtu
            && mine.max_rd_atomic <= peer.attr.max_dest_rd_atomic
            && peer.attr.max_rd_atomic <= mine.max_dest_rd_atomic;
        if fits {
            Ok(())
        } else {
            Err(format!("queue pairs do not fit: {self:?} and {peer:?}"))
        }
    }
}

/// What a user has seen of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It asked for it, or was asked.
    Asked,
    Established,
    Disconnected,
    /// It had the last event.
    Ended,
}

/// Follows the events of one table.
#[derive(Debug, Default)]
pub(crate) struct Events {
    seen: BTreeMap<ConnId, Seen>,
}

impl Events {
    /// The user has connected.
    pub(crate) fn asked(&mut self, conn: ConnId) -> Result<(), String> {
        match self.seen.insert(conn, Seen::Asked) {
            None => Ok(()),
            Some(before) => Err(format!("{conn:?} is given out again after {before:?}")),
        }
    }

    /// The user has rejected or destroyed it: no event may follow.
    pub(crate) fn ended(&mut self, conn: ConnId) {
        self.seen.insert(conn, Seen::Ended);
    }

    pub(crate) fn event(&mut self, event: &Event) -> Result<(), String> {
        let Some(conn) = event.conn() else {
            return Ok(());
        };
        if let Event::ConnectRequest { .. } = event {
            return self.asked(conn);
        }
        let before = self.seen.get(&conn).copied();
        let after = match (before, event) {
            (Some(Seen::Asked), Event::Established { .. }) => Seen::Established,
            (
                Some(Seen::Asked),
                Event::Rejected { .. } | Event::Unreachable { .. } | Event::ConnectError { .. },
            ) => Seen::Ended,
            (Some(Seen::Established), Event::Disconnected { .. }) => Seen::Disconnected,
            (Some(Seen::Disconnected), Event::TimewaitExit { .. }) => Seen::Ended,
            _ => return Err(format!("{event:?} after {before:?}")),
        };
        self.seen.insert(conn, after);
        Ok(())
    }

    pub(crate) fn seen(&self, conn: ConnId) -> Option<Seen> {
        self.seen.get(&conn).copied()
    }

    /// Every connection has had its last event.
    pub(crate) fn all_ended(&self) -> Result<(), String> {
        match self.seen.iter().find(|(_, seen)| **seen != Seen::Ended) {
            None => Ok(()),
            Some((conn, seen)) => Err(format!("{conn:?} is left in {seen:?}")),
        }
    }
}
