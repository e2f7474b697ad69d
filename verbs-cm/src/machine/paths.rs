//! Alternate paths: one with the REQ, others while the connection is there, by LAP and APR (IBTA vol. 1, 12.8).
//!
//! The side that asked for the connection offers a path in a LAP. The other one has its queue pair take it over, and
//! says so in an APR; then the first queue pair takes it over, too. Each of them asks for it to be armed, which the
//! queue pairs settle between themselves ([`MigState`](verbs_core::MigState)). A path that is not loaded leaves the
//! connection as it was.

use verbs_core::mad::{Bits, MadBytes, TransactionId};
use verbs_core::{AltPath, Error, QpAttr};

use crate::event::{Event, PathError};
use crate::machine::qp::ack_timeout;
use crate::machine::{Connection, Ctx, Side, State};
use crate::params::{Accept, Route};
use crate::wire::{Apr, AprStatus, Lap, Message, Mra};

/// What became of the alternate path of a REQ, as the REP says it (IBTA vol. 1, 12.7.26).
const ACCEPTED: u32 = 0;
const UNSUPPORTED: u32 = 1;
const REJECTED: u32 = 2;

/// The alternate path of a REQ, seen from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Offer {
    /// There is none.
    #[default]
    None,
    /// One that can be loaded.
    Path(AltPath),
    /// This port has no alternate paths.
    Unsupported,
    /// It does not lead here, or is the first path.
    Unusable,
}

impl Offer {
    /// From what was found out about a path that was offered.
    pub(crate) fn found(path: Result<AltPath, AprStatus>) -> Self {
        match path {
            Ok(path) => Self::Path(path),
            Err(AprStatus::Unsupported) => Self::Unsupported,
            Err(_) => Self::Unusable,
        }
    }

    /// The path that is loaded when the request is accepted like that.
    pub(super) fn taken(self, accept: &Accept) -> Option<AltPath> {
        match self {
            Self::Path(path) if accept.takes_paths => Some(path),
            _ => None,
        }
    }

    /// What the REP says of it.
    pub(super) fn failover(self, accept: &Accept) -> Bits<2> {
        Bits::truncated(match self {
            Self::None => ACCEPTED,
            Self::Path(_) if accept.takes_paths => ACCEPTED,
            Self::Unsupported => UNSUPPORTED,
            Self::Path(_) | Self::Unusable => REJECTED,
        })
    }
}

/// Whether a REP says that the alternate path of the REQ is loaded.
pub(super) fn is_accepted(failover: Bits<2>) -> bool {
    failover.value() == ACCEPTED
}

/// A route as the alternate path of a queue pair of this side, whose peer takes so long to acknowledge.
pub(super) fn alternate(route: &Route, ack_delay: verbs_core::mad::TimeCode) -> AltPath {
    let timeout = ack_timeout(route.packet_lifetime, ack_delay).code();
    AltPath::new(route.av, route.pkey.1, timeout)
}

/// How far a path is that is loaded while the connection is there.
#[derive(Debug, Default)]
pub(super) enum Loading {
    #[default]
    Nothing,
    /// Active: the LAP has left, and is sent again so often.
    Asked {
        tid: TransactionId,
        lap: Box<MadBytes>,
        path: AltPath,
        retries_left: u32,
    },
    /// The queue pair takes it over; then this LAP, if there was one, is answered.
    Taken { lap: Option<Offered> },
    /// Passive: the answer has left, and is sent again when the LAP comes again.
    Answered { lap: Offered, apr: Box<MadBytes> },
}

/// A LAP that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offered {
    tid: TransactionId,
    lap: Box<Lap>,
}

/// The user offers the peer another path. Whether the state allows it.
pub(crate) fn load_path(conn: &mut Connection, ctx: &mut Ctx<'_>, route: &Route) -> bool {
    let Side::Active(connect) = &conn.side else {
        return false;
    };
    let is_busy = matches!(conn.loading, Loading::Asked { .. } | Loading::Taken { .. });
    if conn.state != State::Established || is_busy {
        return false;
    }
    conn.loads = conn.loads.wrapping_add(1);
    // Repetitions have the same number, and the next path has another.
    let number = conn.own_tid.request().wrapping_add(conn.loads);
    let tid = TransactionId::new(conn.own_tid.client(), number);
    let timeout = ack_timeout(route.packet_lifetime, ctx.port.ack_delay);
    let lap = Lap {
        local_id: conn.local_id,
        remote_id: conn.remote_id.unwrap_or_default(),
        remote_qpn: conn.remote_qpn,
        remote_response_timeout: connect.response_timeout,
        ..Lap::of(&route.to_wire(ctx.port, timeout))
    };
    let mad = Message::from(lap).emit(tid);
    ctx.out.send(conn.peer, mad);
    conn.deadline = Some(ctx.now + conn.wait);
    conn.loading = Loading::Asked {
        tid,
        lap: Box::new(mad),
        path: alternate(route, conn.ack_delay),
        retries_left: conn.req.max_cm_retries.value(),
    };
    true
}

/// A LAP; `path` is what the table has found out about it.
pub(crate) fn handle_lap(
    conn: &mut Connection,
    ctx: &mut Ctx<'_>,
    tid: TransactionId,
    lap: &Lap,
    path: Result<AltPath, AprStatus>,
) -> bool {
    // Before the RTU has come it is sent again, and so is the RTU.
    if conn.state != State::Established {
        return false;
    }
    let offered = Offered {
        tid,
        lap: Box::new(*lap),
    };
    match &conn.loading {
        Loading::Answered { lap, apr } if *lap == offered => {
            ctx.out.send(conn.peer, **apr);
            return true;
        }
        Loading::Taken { .. } | Loading::Asked { .. } => return false,
        Loading::Nothing | Loading::Answered { .. } => {}
    }
    let takes = matches!(conn.side, Side::Passive { takes_paths, .. } if takes_paths);
    let path = match path {
        Err(AprStatus::Unsupported) => path,
        _ if lap.remote_qpn != conn.qp.qpn() => Err(AprStatus::QpnMismatch),
        Ok(_) if !takes => Err(AprStatus::Rejected),
        path => path,
    };
    match path {
        Ok(path) => {
            conn.loading = Loading::Taken { lap: Some(offered) };
            take_path(conn, ctx, path);
        }
        Err(status) => answer_lap(conn, ctx, offered, status),
    }
    true
}

fn answer_lap(conn: &mut Connection, ctx: &mut Ctx<'_>, offered: Offered, status: AprStatus) {
    let apr = Message::from(Apr {
        local_id: conn.local_id,
        remote_id: conn.remote_id.unwrap_or_default(),
        status,
        ..Apr::default()
    });
    let mad = apr.emit(offered.tid);
    ctx.out.send(conn.peer, mad);
    conn.loading = Loading::Answered {
        lap: offered,
        apr: Box::new(mad),
    };
}

/// An APR: what the peer has made of the path.
pub(crate) fn handle_apr(
    conn: &mut Connection,
    ctx: &mut Ctx<'_>,
    tid: TransactionId,
    apr: &Apr,
) -> bool {
    let Loading::Asked {
        tid: asked, path, ..
    } = conn.loading
    else {
        return false;
    };
    if conn.state != State::Established || asked != tid {
        return false;
    }
    conn.deadline = None;
    if apr.status == AprStatus::Loaded {
        conn.loading = Loading::Taken { lap: None };
        take_path(conn, ctx, path);
    } else {
        path_refused(conn, ctx, PathError::Refused(apr.status));
    }
    true
}

/// An MRA: the peer takes longer to answer a LAP.
pub(super) fn handle_lap_mra(conn: &mut Connection, ctx: &mut Ctx<'_>, mra: &Mra) -> bool {
    let Loading::Asked { retries_left, .. } = &mut conn.loading else {
        return false;
    };
    let Some(less) = retries_left.checked_sub(1) else {
        return false;
    };
    *retries_left = less;
    let longer = mra.service_timeout.min(ctx.config.service_timeout_max);
    conn.deadline = Some(ctx.now + longer.duration() + conn.wait);
    true
}

/// No APR in time.
pub(super) fn lap_timeout(conn: &mut Connection, ctx: &mut Ctx<'_>) {
    conn.deadline = None;
    let Loading::Asked {
        lap, retries_left, ..
    } = &mut conn.loading
    else {
        return;
    };
    match retries_left.checked_sub(1) {
        Some(less) => {
            *retries_left = less;
            ctx.out.send(conn.peer, **lap);
            conn.deadline = Some(ctx.now + conn.wait);
        }
        None => path_refused(conn, ctx, PathError::NoAnswer),
    }
}

fn take_path(conn: &mut Connection, ctx: &mut Ctx<'_>, path: AltPath) {
    conn.qp.load(QpAttr::load_path(path));
    conn.step(ctx);
}

/// The queue pair has taken over a path, or could not.
pub(super) fn path_taken(conn: &mut Connection, ctx: &mut Ctx<'_>, result: Result<(), Error>) {
    let Loading::Taken { lap } = std::mem::take(&mut conn.loading) else {
        return;
    };
    if conn.state != State::Established {
        return;
    }
    let id = conn.id;
    match (lap, result) {
        (Some(offered), Ok(())) => {
            answer_lap(conn, ctx, offered, AprStatus::Loaded);
            conn.tell(ctx, Event::PathLoaded { conn: id });
        }
        // The peer goes on without, and the user here has not asked for it.
        (Some(offered), Err(_)) => answer_lap(conn, ctx, offered, AprStatus::Rejected),
        (None, Ok(())) => conn.tell(ctx, Event::PathLoaded { conn: id }),
        (None, Err(why)) => path_refused(conn, ctx, PathError::QueuePair(why)),
    }
}

fn path_refused(conn: &mut Connection, ctx: &mut Ctx<'_>, why: PathError) {
    conn.loading = Loading::Nothing;
    let id = conn.id;
    conn.tell(ctx, Event::PathRefused { conn: id, why });
}
