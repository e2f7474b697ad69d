//! The states of a connection, and which event leads from one to the next.

use std::fmt;

use State::*;

/// State of one end of a connection (IBTA vol. 1, 12.9.5 and 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// There is nothing: before, and after.
    Idle,
    /// Active: REQ sent, no answer yet.
    ReqSent,
    /// Active: the answer to the REQ takes longer.
    ReqMraRcvd,
    /// Active: REP received, the queue pair is on its way to RTS.
    RepRcvd,
    /// Active: the same, and the peer was told that it takes longer.
    RepMraSent,
    /// Passive: REQ received, the service has not answered.
    ReqRcvd,
    /// Passive: the same, and the peer was told that it takes longer.
    ReqMraSent,
    /// Passive: the service has accepted, the queue pair is on its way to RTR.
    Accepting,
    /// Passive: REP sent, no RTU yet.
    RepSent,
    /// Passive: the RTU takes longer.
    RepMraRcvd,
    /// Passive: RTU or data received, the queue pair is on its way to RTS.
    RtuRcvd,
    /// The connection is there.
    Established,
    /// DREQ sent, no DREP yet.
    DreqSent,
    /// DREQ received, the queue pair is on its way to ERR.
    DreqRcvd,
    /// The connection is over; late messages are still answered, and late packets may be under way.
    Timewait,
}

/// What happens to a connection. Edges of the state machine are named after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Edge {
    /// The user connects.
    Connect,
    /// A REQ came.
    RecvReq,
    /// An MRA came.
    RecvMra,
    /// A REP came.
    RecvRep,
    /// An RTU came, or data on the connection.
    RecvRtu,
    /// A REJ came.
    RecvRej,
    /// A DREQ came.
    RecvDreq,
    /// A DREP came.
    RecvDrep,
    /// The user asks for more time.
    Delay,
    /// The user accepts.
    Accept,
    /// The user rejects.
    Reject,
    /// The user disconnects, or the peer turns out not to know the connection.
    Disconnect,
    /// The user is no longer interested, or the peer's reply is of no use.
    Abort,
    /// The queue pair is where the state wants it.
    QpReady,
    /// The queue pair cannot get there.
    QpFailed,
    /// No answer in time: once more.
    Resend,
    /// No answer in time: that was the last time.
    GiveUp,
    /// Timewait is over.
    Expire,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 15] = [
        Idle,
        ReqSent,
        ReqMraRcvd,
        RepRcvd,
        RepMraSent,
        ReqRcvd,
        ReqMraSent,
        Accepting,
        RepSent,
        RepMraRcvd,
        RtuRcvd,
        Established,
        DreqSent,
        DreqRcvd,
        Timewait,
    ];

    /// The state after an event; `None` where the event has no meaning.
    pub const fn after(self, edge: Edge) -> Option<Self> {
        use Edge::*;
        Some(match (self, edge) {
            (Idle, Connect) => ReqSent,
            (Idle, RecvReq) => ReqRcvd,

            (ReqSent | ReqMraRcvd, RecvMra) => ReqMraRcvd,
            (ReqSent | ReqMraRcvd, Resend) => ReqSent,
            (ReqSent | ReqMraRcvd, RecvRep) => RepRcvd,
            (ReqSent | ReqMraRcvd, RecvRej | GiveUp | Abort) => Idle,
            (RepRcvd | RepMraSent, Delay) => RepMraSent,
            (RepRcvd | RepMraSent, QpReady) => Established,
            (RepRcvd | RepMraSent, QpFailed | RecvRej | RecvDreq | Abort) => Timewait,

            (ReqRcvd | ReqMraSent, Delay) => ReqMraSent,
            (ReqRcvd | ReqMraSent, Accept) => Accepting,
            (ReqRcvd | ReqMraSent, Reject | RecvRej | Abort) => Timewait,
            (Accepting, QpReady) => RepSent,
            (Accepting, QpFailed | RecvRej | Abort) => Timewait,
            (RepSent | RepMraRcvd, RecvMra) => RepMraRcvd,
            (RepSent | RepMraRcvd, Resend) => RepSent,
            (RepSent | RepMraRcvd, RecvRtu) => RtuRcvd,
            (RepSent | RepMraRcvd, RecvDreq) => DreqRcvd,
            (RepSent | RepMraRcvd, RecvRej | GiveUp | Abort) => Timewait,
            (RtuRcvd, QpReady) => Established,
            (RtuRcvd, QpFailed | Abort) => DreqSent,
            (RtuRcvd, RecvDreq) => DreqRcvd,
            (RtuRcvd, RecvRej) => Timewait,

            (Established, Disconnect | Abort) => DreqSent,
            (Established, RecvDreq) => DreqRcvd,
            (Established, RecvRej) => Timewait,
            (DreqSent, Resend) => DreqSent,
            (DreqSent, RecvDrep | RecvDreq | RecvRej | GiveUp) => Timewait,
            (DreqRcvd, QpReady | QpFailed | Abort) => Timewait,
            (Timewait, Expire) => Idle,
            _ => return None,
        })
    }

    /// Whether the user has a request and has not answered it.
    pub const fn awaits_user(self) -> bool {
        matches!(self, ReqRcvd | ReqMraSent)
    }
}

impl Edge {
    /// Every event.
    pub const ALL: [Self; 18] = [
        Self::Connect,
        Self::RecvReq,
        Self::RecvMra,
        Self::RecvRep,
        Self::RecvRtu,
        Self::RecvRej,
        Self::RecvDreq,
        Self::RecvDrep,
        Self::Delay,
        Self::Accept,
        Self::Reject,
        Self::Disconnect,
        Self::Abort,
        Self::QpReady,
        Self::QpFailed,
        Self::Resend,
        Self::GiveUp,
        Self::Expire,
    ];
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

/// The whole machine: each state, its events, and where they lead.
pub fn printed() -> String {
    let mut text = String::new();
    for state in State::ALL {
        text.push_str(&format!("{state}\n"));
        for edge in Edge::ALL {
            if let Some(after) = state.after(edge) {
                text.push_str(&format!("    {:<12}{after}\n", format!("{edge:?}")));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: no edge changes unnoticed. Method: the whole table against the one that was reviewed;
    /// after a wanted change `VERBS_REWRITE_SNAPSHOTS=1` writes it again.
    #[test]
    fn the_machine_is_the_one_that_was_reviewed() {
        if std::env::var_os("VERBS_REWRITE_SNAPSHOTS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/states.txt");
            std::fs::write(path, printed()).expect("the tree can be written");
        }
        assert_eq!(printed(), include_str!("states.txt"));
    }

    /// Goal: no state is a trap, and none is unreachable. Method: walk the table in both directions.
    #[test]
    fn every_state_is_reached_and_left() {
        let reach = |start: State, forwards: bool| {
            let mut found = BTreeSet::from([start]);
            loop {
                let before = found.len();
                for state in State::ALL {
                    for after in Edge::ALL.into_iter().filter_map(|edge| state.after(edge)) {
                        let (from, to) = if forwards {
                            (state, after)
                        } else {
                            (after, state)
                        };
                        if found.contains(&from) {
                            found.insert(to);
                        }
                    }
                }
                if found.len() == before {
                    return before;
                }
            }
        };
        assert_eq!(reach(Idle, true), State::ALL.len());
        assert_eq!(reach(Idle, false), State::ALL.len());
    }
}
